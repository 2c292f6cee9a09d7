//! The fields of each command, from bytes 10 to 51 of a CDB.

use crate::osd::layout::{
    KeyIdentification, MasterKeyParameters, Numbers, OsdCdbStart, RawCdb, ScsiCommandParameters,
    TaskManagementParameters, at, count_in,
};
use crate::osd::{
    ContainerFlushScope, DuplicationMethod, FlushScope, KeyToSet, ListRequest, MapType,
    MasterKeyStep, OSD_FIRST_ID, ObjectAddress, ObjectRange, OsdAction, OsdCommand, OsdVersion,
    PartitionCopyMethods, RemoveScope, TaskManagementCode,
};
use crate::sense::Sense;

/// Decodes the fields of `action`.
pub(super) fn command(raw: &RawCdb, action: OsdAction) -> Result<OsdCommand, Sense> {
    let numbers = Numbers::decode(raw.version, &raw.parameters);
    let fields = CommandFields { raw, start: &raw.start, numbers, version: raw.version };
    match action {
        OsdAction::Read
        | OsdAction::Write
        | OsdAction::Append
        | OsdAction::Clear
        | OsdAction::Punch
        | OsdAction::ReadMap
        | OsdAction::ReadMapsAndCompare => fields.data(action),
        OsdAction::Flush
        | OsdAction::FlushCollection
        | OsdAction::FlushPartition
        | OsdAction::FlushOsd => fields.flush_command(action),
        OsdAction::Create
        | OsdAction::CreateAndWrite
        | OsdAction::CreatePartition
        | OsdAction::CreateCollection
        | OsdAction::CreateUserTrackingCollection
        | OsdAction::CopyUserObjects
        | OsdAction::CreateSnapshot
        | OsdAction::CreateClone => fields.create(action),
        OsdAction::SetKey => fields.set_key(),
        OsdAction::SetMasterKey => fields.set_master_key(),
        OsdAction::PerformScsiCommand | OsdAction::PerformTaskManagementFunction => {
            fields.perform(action)
        }
        _ => fields.other(action),
    }
}

struct CommandFields<'a> {
    raw: &'a RawCdb,
    start: &'a OsdCdbStart,
    numbers: Numbers,
    version: OsdVersion,
}

fn invalid(byte: u16, bit: Option<u8>) -> Sense {
    Sense::invalid_field_in_cdb(byte, bit)
}

/// INVALID FIELD IN CDB at the low bits of byte 11, whose highest is `bit`.
fn invalid_option(bit: u8) -> Sense {
    invalid(at::FORMAT, Some(bit))
}

impl CommandFields<'_> {
    fn object(&self) -> ObjectAddress {
        ObjectAddress::new(self.start.partition, self.start.object)
    }

    fn range(&self) -> ObjectRange {
        ObjectRange { start: self.numbers.start, length: self.numbers.length }
    }

    /// Bits 3 to 0 of byte 11, which depend on the command.
    fn command_option(&self) -> u8 {
        self.start.format & 0x0f
    }

    fn data(&self, action: OsdAction) -> Result<OsdCommand, Sense> {
        let (object, range) = (self.object(), self.range());
        let (start, allocation_bytes) = (range.start, range.length);
        Ok(match action {
            OsdAction::Read => OsdCommand::Read { object, range },
            OsdAction::Write => OsdCommand::Write { object, range },
            OsdAction::Append => OsdCommand::Append { object, length: range.length },
            OsdAction::Clear => OsdCommand::Clear { object, range },
            OsdAction::Punch => OsdCommand::Punch { object, range },
            OsdAction::ReadMap => {
                let map_type = MapType((self.numbers.last >> 16) as u16);
                map_type.name().ok_or(invalid(at::LAST, None))?;
                OsdCommand::ReadMap { object, allocation_bytes, start, map_type }
            }
            _ => OsdCommand::ReadMapsAndCompare { object, allocation_bytes, start },
        })
    }

    /// FLUSH SCOPE with the pointer to refuse it.
    ///
    /// Interpretation: byte 10 has the scope; if it is 0 there, byte 11, where Linux has it.
    fn flush_scope(&self) -> (u8, Sense) {
        match self.start.options & 0x03 {
            0 => (self.command_option(), invalid_option(3)),
            scope => (scope, invalid(at::OPTIONS, Some(1))),
        }
    }

    fn flush_command(&self, action: OsdAction) -> Result<OsdCommand, Sense> {
        let (scope, refusal) = self.flush_scope();
        let object = self.object();
        if action == OsdAction::Flush {
            let scope = match scope {
                0 => FlushScope::Object,
                1 => FlushScope::Attributes,
                2 if self.version.is_osd2() => FlushScope::Range(self.range()),
                _ => return Err(refusal),
            };
            return Ok(OsdCommand::Flush { object, scope });
        }
        let scope = match scope {
            0 => ContainerFlushScope::Contents,
            1 => ContainerFlushScope::Attributes,
            2 => ContainerFlushScope::Everything,
            _ => return Err(refusal),
        };
        Ok(match action {
            OsdAction::FlushOsd => OsdCommand::FlushOsd { scope },
            OsdAction::FlushPartition if object.object == 0 => {
                OsdCommand::FlushPartition { partition: object.partition, scope }
            }
            // Linux sends FLUSH COLLECTION with the service action of FLUSH PARTITION.
            _ => OsdCommand::FlushCollection { collection: object, scope },
        })
    }

    /// A requested object, whose id is 0 or not reserved.
    fn requested(&self) -> Result<ObjectAddress, Sense> {
        match self.start.object {
            1..OSD_FIRST_ID => Err(invalid(at::OBJECT, None)),
            _ => Ok(self.object()),
        }
    }

    fn requested_partition(&self) -> Result<u64, Sense> {
        match self.start.partition {
            1..OSD_FIRST_ID => Err(invalid(at::PARTITION, None)),
            partition => Ok(partition),
        }
    }

    fn create(&self, action: OsdAction) -> Result<OsdCommand, Sense> {
        let source = self.numbers.start;
        let duplication = DuplicationMethod(self.start.duplication_method);
        let time_of_duplication = self.start.time_of_duplication;
        let methods = PartitionCopyMethods { duplication, time_of_duplication };
        Ok(match action {
            OsdAction::Create => {
                let (requested, count) = (self.requested()?, count_in(self.numbers.length));
                if count > 1 && requested.object != 0 {
                    return Err(invalid(at::OBJECT, None));
                }
                OsdCommand::Create { requested, count }
            }
            OsdAction::CreateAndWrite => {
                OsdCommand::CreateAndWrite { requested: self.requested()?, range: self.range() }
            }
            OsdAction::CreatePartition => {
                OsdCommand::CreatePartition { requested: self.requested_partition()? }
            }
            OsdAction::CreateCollection => {
                OsdCommand::CreateCollection { requested: self.requested()? }
            }
            OsdAction::CreateUserTrackingCollection => {
                OsdCommand::CreateUserTrackingCollection { requested: self.requested()?, source }
            }
            OsdAction::CopyUserObjects => {
                OsdCommand::CopyUserObjects { requested: self.requested()?, duplication }
            }
            OsdAction::CreateSnapshot => {
                let requested = self.requested_partition()?;
                OsdCommand::CreateSnapshot { requested, source, methods }
            }
            _ => {
                let requested = self.requested_partition()?;
                OsdCommand::CreateClone { requested, source, methods }
            }
        })
    }

    fn list(&self) -> Result<ListRequest, Sense> {
        const LIST_ATTR: u8 = 0x40;
        // SORT ORDER: ascending.
        if self.command_option() != 0 {
            return Err(invalid_option(3));
        }
        Ok(ListRequest {
            allocation_bytes: self.numbers.length,
            initial: self.numbers.start,
            list_identifier: self.numbers.last,
            with_attributes: self.version.is_osd2() && self.start.format & LIST_ATTR != 0,
        })
    }

    fn other(&self, action: OsdAction) -> Result<OsdCommand, Sense> {
        let (object, collection) = (self.object(), self.object());
        let (partition, source) = (self.start.partition, self.numbers.start);
        Ok(match action {
            OsdAction::ObjectStructureCheck => OsdCommand::ObjectStructureCheck { partition },
            OsdAction::FormatOsd => OsdCommand::FormatOsd { capacity_bytes: self.numbers.length },
            OsdAction::List => OsdCommand::List { partition, list: self.list()? },
            OsdAction::ListCollection => {
                OsdCommand::ListCollection { collection, list: self.list()? }
            }
            OsdAction::Remove => OsdCommand::Remove { object },
            OsdAction::RemovePartition => self.remove_partition()?,
            OsdAction::RemoveCollection => {
                OsdCommand::RemoveCollection { collection, force: self.start.format & 1 != 0 }
            }
            OsdAction::GetAttributes => OsdCommand::GetAttributes { object },
            OsdAction::SetAttributes => OsdCommand::SetAttributes { object },
            OsdAction::GetMemberAttributes => OsdCommand::GetMemberAttributes { collection },
            OsdAction::SetMemberAttributes => OsdCommand::SetMemberAttributes { collection },
            OsdAction::RemoveMemberObjects => OsdCommand::RemoveMemberObjects { collection },
            OsdAction::Query => self.query(),
            OsdAction::DetachClone => OsdCommand::DetachClone { partition },
            OsdAction::RefreshSnapshotOrClone => {
                OsdCommand::RefreshSnapshotOrClone { partition, source }
            }
            _ => OsdCommand::RestorePartitionFromSnapshot { partition, source },
        })
    }

    fn remove_partition(&self) -> Result<OsdCommand, Sense> {
        let partition = self.start.partition;
        if partition == 0 {
            return Err(invalid(at::PARTITION, None));
        }
        let scope = match (self.command_option(), self.version) {
            (0, _) => RemoveScope::EmptyOnly,
            (1, OsdVersion::Osd2) => RemoveScope::Contents,
            _ => return Err(invalid_option(3)),
        };
        Ok(OsdCommand::RemovePartition { partition, scope })
    }

    fn query(&self) -> OsdCommand {
        let is_r03 = self.version == OsdVersion::Osd2R03;
        OsdCommand::Query {
            collection: self.object(),
            allocation_bytes: self.numbers.length,
            matches: if is_r03 { 0 } else { self.numbers.start },
            list_bytes: if is_r03 { self.numbers.last } else { 0 },
        }
    }

    fn key_identification(&self) -> KeyIdentification {
        KeyIdentification::decode(&self.start.object.to_be_bytes())
    }

    fn set_key(&self) -> Result<OsdCommand, Sense> {
        let KeyIdentification { version_or_group, identifier } = self.key_identification();
        let (partition, version) = (self.start.partition, version_or_group & 0x0f);
        let key = match self.command_option() & 0b11 {
            1 if partition != 0 => return Err(invalid(at::PARTITION, None)),
            1 => KeyToSet::Root,
            2 => KeyToSet::Partition { partition },
            3 => KeyToSet::Working { partition, version },
            _ => return Err(invalid_option(1)),
        };
        if version != 0 && !matches!(key, KeyToSet::Working { .. }) {
            return Err(invalid(at::OBJECT, Some(3)));
        }
        Ok(OsdCommand::SetKey { key, identifier, seed: self.raw.parameters })
    }

    fn set_master_key(&self) -> Result<OsdCommand, Sense> {
        let step = match self.command_option() & 0b11 {
            0 => MasterKeyStep::SeedExchange,
            1 => MasterKeyStep::Change,
            _ => return Err(invalid_option(1)),
        };
        let KeyIdentification { version_or_group: group, identifier } = self.key_identification();
        let lengths = MasterKeyParameters::decode(&self.raw.parameters);
        let MasterKeyParameters { parameter_list_bytes, allocation_bytes, .. } = lengths;
        Ok(OsdCommand::SetMasterKey {
            step,
            group,
            identifier,
            parameter_list_bytes,
            allocation_bytes,
        })
    }

    fn perform(&self, action: OsdAction) -> Result<OsdCommand, Sense> {
        let object = self.object();
        if action == OsdAction::PerformScsiCommand {
            let cdb = ScsiCommandParameters::decode(&self.raw.parameters).cdb;
            return Ok(OsdCommand::PerformScsiCommand { object, cdb });
        }
        let raw = TaskManagementParameters::decode(&self.raw.parameters);
        let function = TaskManagementCode(raw.function);
        function.name().ok_or(invalid(at::PARAMETERS + 7, None))?;
        let (allocation_bytes, tag) = (raw.allocation_bytes, raw.tag);
        Ok(OsdCommand::PerformTaskManagementFunction { object, allocation_bytes, function, tag })
    }
}
