//! CDBs from the fields of a vector.

use super::{bytes_of, number, numbers, version_of};
use lunar_scsi::osd::{
    AttributeName, AttributeParameters, AttributeToSet, BufferRange, CapabilityDescriptor,
    CapabilityFormat, ContainerFlushScope, DuplicationMethod, FlushScope, InlineAttribute,
    IsolationMethod, KeyToSet, ListRequest, ListToGet, MapType, MasterKeyStep, ObjectAddress,
    ObjectDescriptorType, ObjectRange, ObjectType, OsdCapability, OsdCdb, OsdCommand, OsdOffset,
    OsdOptions, OsdSecurityParameters, OsdTime, PageToGet, PartitionCopyMethods, Permissions,
    RemoveScope, RequestNonce, SecurityMethod, TaskManagementCode, TimestampsControl,
};
use std::collections::BTreeMap;

/// Named fields, each of which is read exactly once.
struct Fields(BTreeMap<&'static str, &'static str>);

impl Fields {
    fn text(&mut self, name: &str) -> &'static str {
        self.0.remove(name).unwrap_or_else(|| panic!("no field {name}"))
    }

    fn get<T: TryFrom<u64, Error: std::fmt::Debug>>(&mut self, name: &str) -> T {
        number(self.text(name))
    }

    /// A number that is 0 if there is no field.
    fn optional(&mut self, name: &str) -> u64 {
        self.0.remove(name).map_or(0, number)
    }

    fn bytes<const N: usize>(&mut self, name: &str) -> [u8; N] {
        bytes_of(self.text(name)).try_into().unwrap()
    }

    fn object(&mut self) -> ObjectAddress {
        ObjectAddress::new(self.get("partition"), self.optional("object"))
    }

    fn range(&mut self) -> ObjectRange {
        ObjectRange { start: self.get("start"), length: self.get("length") }
    }

    fn list(&mut self) -> ListRequest {
        ListRequest {
            allocation_bytes: self.get("allocation"),
            initial: self.get("initial"),
            list_identifier: self.get("list_identifier"),
            with_attributes: false,
        }
    }

    fn container_scope(&mut self) -> ContainerFlushScope {
        match self.get::<u8>("scope") {
            0 => ContainerFlushScope::Contents,
            1 => ContainerFlushScope::Attributes,
            _ => ContainerFlushScope::Everything,
        }
    }

    fn duplication(&mut self) -> DuplicationMethod {
        DuplicationMethod(self.get("method"))
    }

    fn methods(&mut self) -> PartitionCopyMethods {
        let duplication = self.duplication();
        PartitionCopyMethods { duplication, time_of_duplication: self.get("time") }
    }
}

/// Parses the fields of a vector.
pub(super) fn cdb(fields: &[&'static str]) -> OsdCdb {
    let named = fields[2..].iter().map(|field| field.split_once('=').unwrap());
    let mut fields_by_name = Fields(named.collect());
    let fields_left = &mut fields_by_name;
    let command = command(fields[1], fields_left);
    let mut cdb = OsdCdb::new(version_of(fields[0]), command);
    cdb.control = fields_left.optional("control") as u8;
    let dpo_fua = fields_left.optional("dpo_fua") == 1;
    cdb.options = OsdOptions {
        dpo: dpo_fua,
        fua: dpo_fua,
        isolation: IsolationMethod(fields_left.optional("isolation") as u8),
        timestamps: TimestampsControl(fields_left.optional("timestamps") as u8),
        immediate: false,
    };
    cdb.continuation_bytes = fields_left.optional("continuation") as u32;
    cdb.attributes = attributes(fields_left.text("attributes"));
    if let Some(text) = fields_left.0.remove("capability") {
        cdb.capability = capability(text);
    }
    if let Some(text) = fields_left.0.remove("security") {
        cdb.security = security(text);
    }
    assert!(fields_by_name.0.is_empty(), "{:?}", fields_by_name.0);
    cdb
}

fn command(name: &str, fields: &mut Fields) -> OsdCommand {
    match name {
        "FormatOsd" => OsdCommand::FormatOsd { capacity_bytes: fields.get("length") },
        "Create" => OsdCommand::Create { requested: fields.object(), count: fields.get("count") },
        "CreateAndWrite" => {
            OsdCommand::CreateAndWrite { requested: fields.object(), range: fields.range() }
        }
        "Read" => OsdCommand::Read { object: fields.object(), range: fields.range() },
        "Write" => OsdCommand::Write { object: fields.object(), range: fields.range() },
        "Append" => OsdCommand::Append { object: fields.object(), length: fields.get("length") },
        "Clear" => OsdCommand::Clear { object: fields.object(), range: fields.range() },
        "Punch" => OsdCommand::Punch { object: fields.object(), range: fields.range() },
        "Flush" => {
            let scope = match fields.get::<u8>("scope") {
                0 => FlushScope::Object,
                _ => FlushScope::Attributes,
            };
            OsdCommand::Flush { object: fields.object(), scope }
        }
        "ReadMap" => OsdCommand::ReadMap {
            object: fields.object(),
            allocation_bytes: fields.get("allocation"),
            start: fields.get("start"),
            map_type: MapType(fields.get("map_type")),
        },
        "ReadMapsAndCompare" => OsdCommand::ReadMapsAndCompare {
            object: fields.object(),
            allocation_bytes: fields.get("allocation"),
            start: fields.get("start"),
        },
        "Remove" => OsdCommand::Remove { object: fields.object() },
        "GetAttributes" => OsdCommand::GetAttributes { object: fields.object() },
        "SetAttributes" => OsdCommand::SetAttributes { object: fields.object() },
        "CopyUserObjects" => OsdCommand::CopyUserObjects {
            requested: fields.object(),
            duplication: fields.duplication(),
        },
        _ => container_command(name, fields),
    }
}

fn container_command(name: &str, fields: &mut Fields) -> OsdCommand {
    match name {
        "FlushCollection" => OsdCommand::FlushCollection {
            collection: fields.object(),
            scope: fields.container_scope(),
        },
        "FlushPartition" => OsdCommand::FlushPartition {
            partition: fields.get("partition"),
            scope: fields.container_scope(),
        },
        "FlushOsd" => OsdCommand::FlushOsd { scope: fields.container_scope() },
        "List" => OsdCommand::List { partition: fields.get("partition"), list: fields.list() },
        "ListCollection" => {
            OsdCommand::ListCollection { collection: fields.object(), list: fields.list() }
        }
        "CreateCollection" => OsdCommand::CreateCollection { requested: fields.object() },
        "CreateUserTrackingCollection" => OsdCommand::CreateUserTrackingCollection {
            requested: fields.object(),
            source: fields.get("source"),
        },
        // The script sets FCR.
        "RemoveCollection" => {
            OsdCommand::RemoveCollection { collection: fields.object(), force: true }
        }
        "GetMemberAttributes" => OsdCommand::GetMemberAttributes { collection: fields.object() },
        "SetMemberAttributes" => OsdCommand::SetMemberAttributes { collection: fields.object() },
        "RemoveMemberObjects" => OsdCommand::RemoveMemberObjects { collection: fields.object() },
        "Query" => OsdCommand::Query {
            collection: fields.object(),
            allocation_bytes: fields.get("allocation"),
            matches: fields.optional("matches"),
            list_bytes: fields.optional("list_bytes") as u32,
        },
        _ => partition_command(name, fields),
    }
}

fn partition_command(name: &str, fields: &mut Fields) -> OsdCommand {
    if name.starts_with("SetMasterKey") || name.starts_with("Perform") {
        return performed_command(name, fields);
    }
    let partition = fields.get("partition");
    match name {
        "ObjectStructureCheck" => OsdCommand::ObjectStructureCheck { partition },
        "CreatePartition" => OsdCommand::CreatePartition { requested: partition },
        "RemovePartition" => {
            OsdCommand::RemovePartition { partition, scope: RemoveScope::EmptyOnly }
        }
        "CreateSnapshot" => OsdCommand::CreateSnapshot {
            requested: partition,
            source: fields.get("source"),
            methods: fields.methods(),
        },
        "CreateClone" => OsdCommand::CreateClone {
            requested: partition,
            source: fields.get("source"),
            methods: fields.methods(),
        },
        "DetachClone" => OsdCommand::DetachClone { partition },
        "RefreshSnapshotOrClone" => {
            OsdCommand::RefreshSnapshotOrClone { partition, source: fields.get("source") }
        }
        "RestorePartitionFromSnapshot" => {
            OsdCommand::RestorePartitionFromSnapshot { partition, source: fields.get("source") }
        }
        // The script sets a working key.
        "SetKey" => OsdCommand::SetKey {
            key: KeyToSet::Working { partition, version: fields.get("version") },
            identifier: fields.bytes("identifier"),
            seed: fields.bytes("seed"),
        },
        _ => panic!("{name}"),
    }
}

fn performed_command(name: &str, fields: &mut Fields) -> OsdCommand {
    match name {
        "SetMasterKey" => OsdCommand::SetMasterKey {
            step: MasterKeyStep::Change,
            group: fields.get("group"),
            identifier: fields.bytes("identifier"),
            parameter_list_bytes: fields.get("list_bytes"),
            allocation_bytes: fields.get("allocation"),
        },
        "PerformScsiCommand" => {
            OsdCommand::PerformScsiCommand { object: fields.object(), cdb: fields.bytes("cdb") }
        }
        _ => OsdCommand::PerformTaskManagementFunction {
            object: fields.object(),
            allocation_bytes: fields.get("allocation"),
            function: TaskManagementCode(fields.get("function")),
            tag: fields.get("tag"),
        },
    }
}

fn attributes(text: &str) -> AttributeParameters {
    let Some((kind, rest)) = text.split_once(':') else {
        assert_eq!(text, "none");
        return AttributeParameters::NONE;
    };
    if kind == "one" {
        let parts: Vec<_> = rest.split(':').collect();
        let name = AttributeName::new(number(parts[0]), number(parts[1]));
        return AttributeParameters::SetOne(Some(InlineAttribute {
            name,
            value: bytes_of(parts[2]),
        }));
    }
    let parts = numbers(rest);
    let range = |length: u64, offset| BufferRange { offset, length: length as u32 };
    if kind == "list" {
        let (list, retrieved) = (range(parts[0], parts[1]), range(parts[2], parts[3]));
        let get = Some(ListToGet { list, retrieved });
        return AttributeParameters::List { get, set: Some(range(parts[4], parts[5])) };
    }
    let page = parts[0] as u32;
    let get = Some(PageToGet { page, retrieved: range(parts[1], parts[2]) });
    let name = AttributeName::new(parts[3] as u32, parts[4] as u32);
    let set = Some(AttributeToSet { name, value: range(parts[5], parts[6]) });
    AttributeParameters::Page { get, set }
}

/// Parses a capability.
pub(super) fn capability(text: &str) -> OsdCapability {
    let parts: Vec<_> = text.split(':').collect();
    OsdCapability {
        format: CapabilityFormat(number(parts[0])),
        key_version: number(parts[1]),
        integrity_algorithm: number(parts[2]),
        security_method: SecurityMethod(number(parts[3])),
        expiration: OsdTime::from_millis(number(parts[4])),
        audit: bytes_of(parts[5]).try_into().unwrap(),
        discriminator: bytes_of(parts[6]).try_into().unwrap(),
        created: OsdTime::from_millis(number(parts[7])),
        object_type: ObjectType(number(parts[8])),
        permissions: Permissions(number(parts[9])),
        descriptor_type: ObjectDescriptorType(number(parts[10])),
        descriptor: CapabilityDescriptor {
            allowed_attributes_access: number(parts[11]),
            policy_access_tag: number(parts[12]),
            boot_epoch: number(parts[13]),
            object: ObjectAddress::new(number(parts[14]), number(parts[15])),
            range: ObjectRange { start: number(parts[16]), length: number(parts[17]) },
        },
    }
}

fn security(text: &str) -> OsdSecurityParameters {
    let parts: Vec<_> = text.split(':').collect();
    let mut integrity_value = [0; 32];
    let value = bytes_of(parts[0]);
    integrity_value[..value.len()].copy_from_slice(&value);
    OsdSecurityParameters {
        integrity_value,
        nonce: RequestNonce {
            time: OsdTime::from_millis(number(parts[1])),
            random: bytes_of(parts[2]).try_into().unwrap(),
        },
        data_in_integrity_offset: OsdOffset(number(parts[3])),
        data_out_integrity_offset: OsdOffset(number(parts[4])),
    }
}
