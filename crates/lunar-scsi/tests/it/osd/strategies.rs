//! Random commands that a device server may accept.

use lunar_scsi::osd::{
    AttributeName, AttributeParameters, AttributeToSet, BufferRange, CapabilityDescriptor,
    CapabilityFormat, ContainerFlushScope, DuplicationMethod, FlushScope, InlineAttribute,
    IsolationMethod, KeyToSet, ListRequest, ListToGet, MapType, MasterKeyStep, OSD_FIRST_ID,
    ObjectAddress, ObjectDescriptorType, ObjectRange, ObjectType, OsdCapability, OsdCdb,
    OsdCommand, OsdOffset, OsdOptions, OsdSecurityParameters, OsdTime, OsdVersion, PageToGet,
    PartitionCopyMethods, Permissions, RemoveScope, RequestNonce, SecurityMethod,
    TaskManagementCode, TimestampsControl,
};
use proptest::prelude::*;
use proptest::sample::select;

pub fn object() -> impl Strategy<Value = ObjectAddress> {
    (any::<u64>(), any::<u64>()).prop_map(|(partition, object)| ObjectAddress { partition, object })
}

fn requested_id() -> impl Strategy<Value = u64> {
    prop_oneof![Just(0), OSD_FIRST_ID..=u64::MAX]
}

fn requested() -> impl Strategy<Value = ObjectAddress> {
    (any::<u64>(), requested_id())
        .prop_map(|(partition, object)| ObjectAddress { partition, object })
}

pub fn range() -> impl Strategy<Value = ObjectRange> {
    (any::<u64>(), any::<u64>()).prop_map(|(start, length)| ObjectRange { start, length })
}

fn container_scope() -> impl Strategy<Value = ContainerFlushScope> {
    select(&[
        ContainerFlushScope::Contents,
        ContainerFlushScope::Attributes,
        ContainerFlushScope::Everything,
    ])
}

fn list(version: OsdVersion) -> impl Strategy<Value = ListRequest> {
    let with_attributes = any::<bool>().prop_map(move |set| set && version.is_osd2());
    (any::<u64>(), any::<u64>(), any::<u32>(), with_attributes).prop_map(
        |(allocation_bytes, initial, list_identifier, with_attributes)| ListRequest {
            allocation_bytes,
            initial,
            list_identifier,
            with_attributes,
        },
    )
}

/// Commands that every version has.
fn common_command(version: OsdVersion) -> impl Strategy<Value = OsdCommand> {
    let data = (object(), range()).prop_flat_map(|(object, range)| {
        select(vec![
            OsdCommand::Read { object, range },
            OsdCommand::Write { object, range },
            OsdCommand::Append { object, length: range.length },
            OsdCommand::Flush { object, scope: FlushScope::Object },
            OsdCommand::Flush { object, scope: FlushScope::Attributes },
            OsdCommand::Remove { object },
            OsdCommand::GetAttributes { object },
            OsdCommand::SetAttributes { object },
            OsdCommand::FormatOsd { capacity_bytes: range.length },
            OsdCommand::RemoveCollection { collection: object, force: false },
            OsdCommand::RemoveCollection { collection: object, force: true },
        ])
    });
    let create = (requested(), requested_id(), range(), any::<u16>()).prop_flat_map(
        |(requested, partition, range, count)| {
            let count = if requested.object == 0 { count } else { count % 2 };
            select(vec![
                OsdCommand::Create { requested, count },
                OsdCommand::CreateAndWrite { requested, range },
                OsdCommand::CreateCollection { requested },
                OsdCommand::CreatePartition { requested: partition },
            ])
        },
    );
    let containers = (object(), 1..u64::MAX, container_scope(), list(version)).prop_flat_map(
        |(collection, partition, scope, list)| {
            select(vec![
                OsdCommand::FlushCollection { collection, scope },
                OsdCommand::FlushPartition { partition, scope },
                OsdCommand::FlushOsd { scope },
                OsdCommand::List { partition, list },
                OsdCommand::ListCollection { collection, list },
                OsdCommand::RemovePartition { partition, scope: RemoveScope::EmptyOnly },
            ])
        },
    );
    prop_oneof![data, create, containers, keys(), performed()]
}

fn keys() -> impl Strategy<Value = OsdCommand> {
    let key = (any::<u64>(), 0_u8..16).prop_flat_map(|(partition, version)| {
        select(vec![
            KeyToSet::Root,
            KeyToSet::Partition { partition },
            KeyToSet::Working { partition, version },
        ])
    });
    let step = select(&[MasterKeyStep::SeedExchange, MasterKeyStep::Change]);
    let seed = any::<[u8; 20]>();
    let lengths = any::<(u32, u32)>();
    (key, step, any::<u8>(), any::<[u8; 7]>(), seed, lengths).prop_flat_map(
        |(key, step, group, identifier, seed, (parameter_list_bytes, allocation_bytes))| {
            select(vec![
                OsdCommand::SetKey { key, identifier, seed },
                OsdCommand::SetMasterKey {
                    step,
                    group,
                    identifier,
                    parameter_list_bytes,
                    allocation_bytes,
                },
            ])
        },
    )
}

fn performed() -> impl Strategy<Value = OsdCommand> {
    let function = select(&[
        TaskManagementCode::ABORT_TASK,
        TaskManagementCode::QUERY_UNIT_ATTENTION,
        TaskManagementCode::I_T_NEXUS_RESET,
    ]);
    (object(), any::<[u8; 16]>(), any::<u16>(), function, any::<u64>()).prop_flat_map(
        |(object, cdb, allocation_bytes, function, tag)| {
            select(vec![
                OsdCommand::PerformScsiCommand { object, cdb },
                OsdCommand::PerformTaskManagementFunction {
                    object,
                    allocation_bytes,
                    function,
                    tag,
                },
            ])
        },
    )
}

/// Commands of OSD-2.
fn further_command() -> impl Strategy<Value = OsdCommand> {
    let map_type = select(&[MapType::ALL, MapType::HOLE, MapType::DAMAGED_ATTRIBUTES]);
    let data = (object(), range(), map_type).prop_flat_map(|(object, range, map_type)| {
        let (start, allocation_bytes) = (range.start, range.length);
        select(vec![
            OsdCommand::Clear { object, range },
            OsdCommand::Punch { object, range },
            OsdCommand::Flush { object, scope: FlushScope::Range(range) },
            OsdCommand::ReadMap { object, allocation_bytes, start, map_type },
            OsdCommand::ReadMapsAndCompare { object, allocation_bytes, start },
            OsdCommand::ObjectStructureCheck { partition: object.partition },
        ])
    });
    let collections = (object(), requested(), any::<(u64, u64)>()).prop_flat_map(
        |(collection, requested, (source, allocation_bytes))| {
            select(vec![
                OsdCommand::GetMemberAttributes { collection },
                OsdCommand::SetMemberAttributes { collection },
                OsdCommand::RemoveMemberObjects { collection },
                OsdCommand::CreateUserTrackingCollection { requested, source },
                OsdCommand::Query { collection, allocation_bytes, matches: source, list_bytes: 0 },
            ])
        },
    );
    let methods = any::<(u8, u8)>().prop_map(|(duplication, time_of_duplication)| {
        PartitionCopyMethods { duplication: DuplicationMethod(duplication), time_of_duplication }
    });
    let copies = (requested(), requested_id(), any::<u64>(), methods).prop_flat_map(
        |(object, requested, source, methods)| {
            let (partition, duplication) = (requested | 1, methods.duplication);
            select(vec![
                OsdCommand::CopyUserObjects { requested: object, duplication },
                OsdCommand::CreateSnapshot { requested, source, methods },
                OsdCommand::CreateClone { requested, source, methods },
                OsdCommand::DetachClone { partition },
                OsdCommand::RefreshSnapshotOrClone { partition, source },
                OsdCommand::RestorePartitionFromSnapshot { partition, source },
                OsdCommand::RemovePartition { partition, scope: RemoveScope::Contents },
            ])
        },
    );
    prop_oneof![data, collections, copies]
}

fn options(version: OsdVersion, command: &OsdCommand) -> BoxedStrategy<OsdOptions> {
    let action = command.action();
    let is_osd2 = version.is_osd2();
    let has_scope = matches!(
        command,
        OsdCommand::Flush { .. }
            | OsdCommand::FlushCollection { .. }
            | OsdCommand::FlushPartition { .. }
            | OsdCommand::FlushOsd { .. }
    );
    let isolation = match is_osd2 && !has_scope {
        true => vec![0, 1, 2, 4, 5, 7],
        false => vec![0],
    };
    let timestamps = select(&[TimestampsControl::UPDATE, TimestampsControl::BYPASS]);
    (any::<[bool; 3]>(), select(isolation), timestamps)
        .prop_map(move |([dpo, fua, immediate], isolation, timestamps)| OsdOptions {
            dpo,
            fua,
            isolation: IsolationMethod(isolation),
            timestamps,
            immediate: immediate && is_osd2 && action.has_tracking(),
        })
        .boxed()
}

fn name() -> impl Strategy<Value = AttributeName> {
    (1..u32::MAX, 0..u32::MAX).prop_map(|(page, number)| AttributeName { page, number })
}

/// A range of a buffer that the version can express.
fn buffer(version: OsdVersion, lengths: std::ops::Range<u32>) -> BoxedStrategy<BufferRange> {
    let step = if version.is_osd2() { 8 } else { 256 };
    (0..0x0fff_ffff_u64, lengths)
        .prop_map(move |(steps, length)| BufferRange {
            offset: if length == 0 { 0 } else { steps * step },
            length,
        })
        .boxed()
}

fn attributes(version: OsdVersion) -> impl Strategy<Value = AttributeParameters> {
    let any_buffer = || buffer(version, 0..u32::MAX);
    let get =
        (1..=u32::MAX, any_buffer()).prop_map(|(page, retrieved)| PageToGet { page, retrieved });
    let set = (name(), buffer(version, 0..0xffff))
        .prop_map(|(name, value)| AttributeToSet { name, value });
    let page = (proptest::option::of(get), proptest::option::of(set))
        .prop_map(|(get, set)| AttributeParameters::Page { get, set });
    let some_bytes = || buffer(version, 1..u32::MAX);
    let get =
        (some_bytes(), any_buffer()).prop_map(|(list, retrieved)| ListToGet { list, retrieved });
    let list = (proptest::option::of(get), proptest::option::of(some_bytes()))
        .prop_map(|(get, set)| AttributeParameters::List { get, set });
    let value = proptest::collection::vec(any::<u8>(), 0..=18);
    let one = (name(), value).prop_map(|(name, value)| InlineAttribute { name, value });
    let one = proptest::option::of(one).prop_map(AttributeParameters::SetOne);
    match version.is_osd2() {
        true => prop_oneof![page, list, one].boxed(),
        false => prop_oneof![page, list].boxed(),
    }
}

pub fn capability(version: OsdVersion) -> impl Strategy<Value = OsdCapability> {
    let descriptor = (any::<[u32; 2]>(), any::<u16>(), object(), range()).prop_map(
        |([allowed_attributes_access, policy_access_tag], boot_epoch, object, range)| {
            CapabilityDescriptor {
                allowed_attributes_access,
                policy_access_tag,
                boot_epoch,
                object,
                range,
            }
        },
    );
    let nibbles = proptest::array::uniform5(0_u8..16);
    let times = (any::<u64>(), any::<u64>());
    let opaque = (any::<[u8; 20]>(), any::<[u8; 12]>());
    (nibbles, times, opaque, any::<u8>(), any::<u16>(), descriptor).prop_map(
        move |(nibbles, times, (audit, discriminator), object_type, permissions, descriptor)| {
            let [format, key_version, integrity_algorithm, method, descriptor_type] = nibbles;
            let mut capability = OsdCapability {
                format: CapabilityFormat(format),
                key_version,
                integrity_algorithm,
                security_method: SecurityMethod(method),
                expiration: OsdTime::from_millis(times.0 >> 16),
                audit,
                discriminator,
                created: OsdTime::from_millis(times.1 >> 16),
                object_type: ObjectType(object_type),
                permissions: Permissions(permissions),
                descriptor_type: ObjectDescriptorType(descriptor_type),
                descriptor,
            };
            if !version.is_osd2() || format == 1 {
                let CapabilityDescriptor { policy_access_tag, object, .. } = descriptor;
                capability.descriptor =
                    CapabilityDescriptor { policy_access_tag, object, ..Default::default() };
            }
            capability
        },
    )
}

fn security(version: OsdVersion) -> impl Strategy<Value = OsdSecurityParameters> {
    (any::<[u8; 32]>(), any::<u64>(), any::<[u8; 6]>(), any::<(u32, u32)>()).prop_map(
        move |(mut integrity_value, time, random, (data_in, data_out))| {
            integrity_value[version.integrity_value_bytes()..].fill(0);
            OsdSecurityParameters {
                integrity_value,
                nonce: RequestNonce { time: OsdTime::from_millis(time >> 16), random },
                data_in_integrity_offset: OsdOffset(data_in),
                data_out_integrity_offset: OsdOffset(data_out),
            }
        },
    )
}

/// A CDB of OSD-1 or OSD-2.
pub fn cdb() -> impl Strategy<Value = OsdCdb> {
    let command = prop_oneof![
        common_command(OsdVersion::Osd1).prop_map(|command| (OsdVersion::Osd1, command)),
        common_command(OsdVersion::Osd2).prop_map(|command| (OsdVersion::Osd2, command)),
        further_command().prop_map(|command| (OsdVersion::Osd2, command)),
    ];
    command.prop_flat_map(|(version, command)| {
        let has_continuation = version.is_osd2() && command.action().has_continuation();
        let continuation = match has_continuation {
            true => prop_oneof![Just(0), (6_u32..8192).prop_map(|eights| eights * 8)].boxed(),
            false => Just(0).boxed(),
        };
        let parts = (options(version, &command), continuation, attributes(version));
        let rest = (any::<u8>(), capability(version), security(version));
        (parts, rest).prop_map(move |((options, bytes, attributes), rest)| OsdCdb {
            version,
            control: rest.0,
            options,
            command,
            continuation_bytes: bytes,
            attributes,
            capability: rest.1,
            security: rest.2,
        })
    })
}
