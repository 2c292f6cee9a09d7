//! Bytes 10 to 51 of a CDB, from the fields of each command.

use crate::cdb::variable;
use crate::osd::layout::{
    KeyIdentification, MasterKeyParameters, Numbers, OsdCdbStart, ScsiCommandParameters,
    TaskManagementParameters,
};
use crate::osd::{
    ContainerFlushScope, FlushScope, KeyToSet, ListRequest, MasterKeyStep, ObjectAddress,
    ObjectRange, OsdCommand, OsdVersion, PartitionCopyMethods, RemoveScope,
};

/// Encodes the fields of a command; options, attributes and continuation are not included.
pub(super) fn command(
    version: OsdVersion,
    code: u16,
    command: &OsdCommand,
) -> (OsdCdbStart, [u8; 20]) {
    let start = OsdCdbStart {
        opcode: variable::OPCODE,
        control: 0,
        additional_bytes: (version.cdb_bytes() - variable::HEADER_BYTES) as u8,
        service_action: code,
        options: 0,
        format: 0,
        timestamps_control: 0,
        duplication_method: 0,
        time_of_duplication: 0,
        partition: 0,
        object: 0,
    };
    let mut builder = Builder { start, numbers: Numbers::default(), parameters: None };
    builder.put_data(command);
    builder.put_containers(command);
    builder.put_partition_copies(command);
    builder.put_keys(command);
    builder.put_performed(command);
    let Builder { start, numbers, parameters } = builder;
    (start, parameters.unwrap_or_else(|| numbers.encode(version)))
}

struct Builder {
    start: OsdCdbStart,
    numbers: Numbers,
    /// Bytes 32 to 51, if they are not numbers.
    parameters: Option<[u8; 20]>,
}

impl Builder {
    fn object(&mut self, object: &ObjectAddress) {
        (self.start.partition, self.start.object) = (object.partition, object.object);
    }

    fn range(&mut self, range: &ObjectRange) {
        (self.numbers.start, self.numbers.length) = (range.start, range.length);
    }

    /// Commands on the data of user objects.
    fn put_data(&mut self, command: &OsdCommand) {
        match command {
            OsdCommand::Create { requested, count } => {
                self.object(requested);
                self.numbers.length = u64::from(*count) << 48;
            }
            OsdCommand::CreateAndWrite { requested: object, range }
            | OsdCommand::Read { object, range }
            | OsdCommand::Write { object, range }
            | OsdCommand::Clear { object, range }
            | OsdCommand::Punch { object, range } => {
                self.object(object);
                self.range(range);
            }
            OsdCommand::Append { object, length } => {
                self.object(object);
                self.numbers.length = *length;
            }
            OsdCommand::Flush { object, scope } => {
                self.object(object);
                self.start.options |= match scope {
                    FlushScope::Object => 0,
                    FlushScope::Attributes => 1,
                    FlushScope::Range(_) => 2,
                };
                if let FlushScope::Range(range) = scope {
                    self.range(range);
                }
            }
            OsdCommand::ReadMap { object, allocation_bytes, start, map_type } => {
                self.object(object);
                self.range(&ObjectRange { start: *start, length: *allocation_bytes });
                self.numbers.last = u32::from(map_type.0) << 16;
            }
            OsdCommand::ReadMapsAndCompare { object, allocation_bytes, start } => {
                self.object(object);
                self.range(&ObjectRange { start: *start, length: *allocation_bytes });
            }
            OsdCommand::CopyUserObjects { requested, duplication } => {
                self.object(requested);
                self.start.duplication_method = duplication.0;
            }
            OsdCommand::Remove { object }
            | OsdCommand::GetAttributes { object }
            | OsdCommand::SetAttributes { object } => self.object(object),
            _ => {}
        }
    }

    fn flush_scope(&mut self, scope: &ContainerFlushScope) {
        self.start.options |= match scope {
            ContainerFlushScope::Contents => 0,
            ContainerFlushScope::Attributes => 1,
            ContainerFlushScope::Everything => 2,
        };
    }

    fn list(&mut self, list: &ListRequest) {
        let ListRequest { allocation_bytes, initial, list_identifier, with_attributes } = *list;
        let (length, start, last) = (allocation_bytes, initial, list_identifier);
        self.numbers = Numbers { length, start, last };
        self.start.format |= if with_attributes { 0x40 } else { 0 };
    }

    /// Commands on the root, partitions and collections.
    fn put_containers(&mut self, command: &OsdCommand) {
        match command {
            OsdCommand::ObjectStructureCheck { partition }
            | OsdCommand::CreatePartition { requested: partition }
            | OsdCommand::DetachClone { partition } => self.start.partition = *partition,
            OsdCommand::FormatOsd { capacity_bytes } => self.numbers.length = *capacity_bytes,
            OsdCommand::FlushCollection { collection, scope } => {
                self.object(collection);
                self.flush_scope(scope);
            }
            OsdCommand::FlushPartition { partition, scope } => {
                self.start.partition = *partition;
                self.flush_scope(scope);
            }
            OsdCommand::FlushOsd { scope } => self.flush_scope(scope),
            OsdCommand::List { partition, list } => {
                self.start.partition = *partition;
                self.list(list);
            }
            OsdCommand::ListCollection { collection, list } => {
                self.object(collection);
                self.list(list);
            }
            OsdCommand::RemovePartition { partition, scope } => {
                self.start.partition = *partition;
                self.start.format |= u8::from(*scope == RemoveScope::Contents);
            }
            OsdCommand::CreateUserTrackingCollection { requested, source } => {
                self.object(requested);
                self.numbers.start = *source;
            }
            OsdCommand::RemoveCollection { collection, force } => {
                self.object(collection);
                self.start.format |= u8::from(*force);
            }
            OsdCommand::CreateCollection { requested: collection }
            | OsdCommand::GetMemberAttributes { collection }
            | OsdCommand::SetMemberAttributes { collection }
            | OsdCommand::RemoveMemberObjects { collection } => self.object(collection),
            OsdCommand::Query { collection, allocation_bytes, matches, list_bytes } => {
                self.object(collection);
                let (length, start) = (*allocation_bytes, *matches);
                self.numbers = Numbers { length, start, last: *list_bytes };
            }
            _ => {}
        }
    }

    fn put_partition_copies(&mut self, command: &OsdCommand) {
        match command {
            OsdCommand::CreateSnapshot { requested, source, methods }
            | OsdCommand::CreateClone { requested, source, methods } => {
                let PartitionCopyMethods { duplication, time_of_duplication } = methods;
                self.start.partition = *requested;
                self.start.duplication_method = duplication.0;
                self.start.time_of_duplication = *time_of_duplication;
                self.numbers.start = *source;
            }
            OsdCommand::RefreshSnapshotOrClone { partition, source }
            | OsdCommand::RestorePartitionFromSnapshot { partition, source } => {
                self.start.partition = *partition;
                self.numbers.start = *source;
            }
            _ => {}
        }
    }

    fn key(&mut self, version_or_group: u8, identifier: &[u8; 7]) {
        let field = KeyIdentification { version_or_group, identifier: *identifier };
        self.start.object = u64::from_be_bytes(field.encode());
    }

    fn put_keys(&mut self, command: &OsdCommand) {
        match command {
            OsdCommand::SetKey { key, identifier, seed } => {
                let (code, partition, version) = match *key {
                    KeyToSet::Root => (1, 0, 0),
                    KeyToSet::Partition { partition } => (2, partition, 0),
                    KeyToSet::Working { partition, version } => (3, partition, version),
                };
                self.start.format |= code;
                self.start.partition = partition;
                self.key(version, identifier);
                self.parameters = Some(*seed);
            }
            OsdCommand::SetMasterKey {
                step,
                group,
                identifier,
                parameter_list_bytes,
                allocation_bytes,
            } => {
                self.start.format |= u8::from(*step == MasterKeyStep::Change);
                self.key(*group, identifier);
                let parameters = MasterKeyParameters {
                    parameter_list_bytes: *parameter_list_bytes,
                    allocation_bytes: *allocation_bytes,
                    last: 0,
                };
                self.parameters = Some(parameters.encode());
            }
            _ => {}
        }
    }

    fn put_performed(&mut self, command: &OsdCommand) {
        match command {
            OsdCommand::PerformScsiCommand { object, cdb } => {
                self.object(object);
                self.parameters = Some(ScsiCommandParameters { cdb: *cdb, last: 0 }.encode());
            }
            OsdCommand::PerformTaskManagementFunction {
                object,
                allocation_bytes,
                function,
                tag,
            } => {
                self.object(object);
                let parameters = TaskManagementParameters {
                    allocation_bytes: *allocation_bytes,
                    function: function.0,
                    tag: *tag,
                    last: 0,
                };
                self.parameters = Some(parameters.encode());
            }
            _ => {}
        }
    }
}
