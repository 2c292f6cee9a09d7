//! The commands as values, whatever the version of the CDB.

use super::{MapType, OsdAction, TaskManagementCode};

/// The name of an object: the root with both ids 0, a partition with an object id 0, else a user
/// object or a collection.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct ObjectAddress {
    /// PARTITION_ID.
    pub partition: u64,
    /// USER_OBJECT_ID or COLLECTION_OBJECT_ID.
    pub object: u64,
}

/// The lowest id of partitions, and of user objects and collections in a partition.
///
/// Interpretation: 2^16, as all implementations have it; a paper has 2^20.
pub const OSD_FIRST_ID: u64 = 0x1_0000;

impl ObjectAddress {
    /// The root object.
    pub const ROOT: Self = Self::new(0, 0);

    /// Creates the name of an object.
    pub const fn new(partition: u64, object: u64) -> Self {
        Self { partition, object }
    }
}

/// Bytes of a user object.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct ObjectRange {
    /// STARTING BYTE ADDRESS.
    pub start: u64,
    /// LENGTH in bytes.
    pub length: u64,
}

/// The scope of FLUSH.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum FlushScope {
    /// All data, and the attributes.
    Object,
    /// The attributes.
    Attributes,
    /// A range of the data, and the attributes. OSD-2.
    Range(ObjectRange),
}

/// The scope of FLUSH COLLECTION, FLUSH PARTITION and FLUSH OSD.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ContainerFlushScope {
    /// The members, the objects of the partition, or the list of partitions.
    Contents,
    /// The attributes of the object of the command itself.
    Attributes,
    /// Both; of the root, the contents of all partitions too.
    Everything,
}

/// The fields that LIST and LIST COLLECTION share.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct ListRequest {
    /// ALLOCATION LENGTH in bytes.
    pub allocation_bytes: u64,
    /// INITIAL OBJECT_ID: lower ids are not listed.
    pub initial: u64,
    /// LIST IDENTIFIER of the list that continues; 0 if a new one begins.
    pub list_identifier: u32,
    /// LIST_ATTR: the attributes of the listed objects are returned with them. OSD-2.
    pub with_attributes: bool,
}

/// The treatment of the contents of a partition that is removed.
///
/// Interpretation: REMOVE SCOPE in byte 11, of OSD-2 revision 4 and later.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum RemoveScope {
    /// A partition with contents is not removed.
    EmptyOnly,
    /// The contents are removed too.
    Contents,
}

/// The key that SET KEY changes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum KeyToSet {
    /// The root key.
    Root,
    /// The key of a partition.
    Partition {
        /// PARTITION_ID.
        partition: u64,
    },
    /// A working key of a partition, or of partition zero.
    Working {
        /// PARTITION_ID.
        partition: u64,
        /// KEY VERSION, at most 15.
        version: u8,
    },
}

/// A step of SET MASTER KEY.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum MasterKeyStep {
    /// Seed exchange: Diffie-Hellman data in both directions.
    SeedExchange,
    /// Change of the master key.
    Change,
}

/// Methods of a copy of a partition or an object; supported ones are attributes of the root.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PartitionCopyMethods {
    /// OBJECT DUPLICATION METHOD.
    pub duplication: DuplicationMethod,
    /// TIME OF DUPLICATION METHOD.
    pub time_of_duplication: u8,
}

lunar_wire::wire_enum! {
    /// The method by which an object is duplicated.
    pub struct DuplicationMethod(u8) {
        DEFAULT = 0x00, SPACE_EFFICIENT = 0x01, PRE_ALLOCATED = 0x41, BYTE_BY_BYTE = 0x81,
        FASTER = 0xfd, HIGHER_DATA_PROTECTION = 0xfe, ANY = 0xff,
    }
}

/// A command with its fields. Requested ids of 0 let the device server choose.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[allow(missing_docs)] // the fields are those of the standard
pub enum OsdCommand {
    /// Checks a partition, or the root with 0.
    ObjectStructureCheck { partition: u64 },
    /// Removes all partitions; a capacity of 0 keeps the present one.
    FormatOsd { capacity_bytes: u64 },
    /// Creates user objects; a count of 0 or 1 means one.
    Create { requested: ObjectAddress, count: u16 },
    /// Creates a user object and writes to it.
    CreateAndWrite { requested: ObjectAddress, range: ObjectRange },
    /// Reads bytes.
    Read { object: ObjectAddress, range: ObjectRange },
    /// Writes bytes.
    Write { object: ObjectAddress, range: ObjectRange },
    /// Writes bytes at the end.
    Append { object: ObjectAddress, length: u64 },
    /// Writes zeroes.
    Clear { object: ObjectAddress, range: ObjectRange },
    /// Removes bytes; the bytes behind them move down.
    Punch { object: ObjectAddress, range: ObjectRange },
    /// Makes data or attributes of a user object durable.
    Flush { object: ObjectAddress, scope: FlushScope },
    /// The same for a collection.
    FlushCollection { collection: ObjectAddress, scope: ContainerFlushScope },
    /// The same for a partition.
    FlushPartition { partition: u64, scope: ContainerFlushScope },
    /// The same for the root.
    FlushOsd { scope: ContainerFlushScope },
    /// Returns the map of written bytes and holes from a byte offset.
    ReadMap { object: ObjectAddress, allocation_bytes: u64, start: u64, map_type: MapType },
    /// Compares the map with that of the object in the CDB continuation segment.
    ///
    /// Interpretation: no source shows the fields; they are those of READ MAP, for all types.
    ReadMapsAndCompare { object: ObjectAddress, allocation_bytes: u64, start: u64 },
    /// Lists the user objects of a partition, or the partitions with 0.
    List { partition: u64, list: ListRequest },
    /// Lists the members of a collection, or the collections of a partition with object id 0.
    ListCollection { collection: ObjectAddress, list: ListRequest },
    /// Removes a user object.
    Remove { object: ObjectAddress },
    /// Creates a partition.
    CreatePartition { requested: u64 },
    /// Removes a partition.
    RemovePartition { partition: u64, scope: RemoveScope },
    /// Creates a collection.
    CreateCollection { requested: ObjectAddress },
    /// Creates a tracking collection with the members of the source, or none with source 0.
    CreateUserTrackingCollection { requested: ObjectAddress, source: u64 },
    /// Removes a collection; with FCR (`force`) also one that has members.
    RemoveCollection { collection: ObjectAddress, force: bool },
    /// Reads attributes of any object, then sets some.
    GetAttributes { object: ObjectAddress },
    /// Sets attributes of any object, then reads some.
    SetAttributes { object: ObjectAddress },
    /// Reads the same attributes of every member.
    GetMemberAttributes { collection: ObjectAddress },
    /// Sets the same attributes of every member.
    SetMemberAttributes { collection: ObjectAddress },
    /// Removes every member.
    RemoveMemberObjects { collection: ObjectAddress },
    /// Lists the members with certain attributes, or adds them to the collection `matches`.
    /// `list_bytes` is the length of the query list in data-out, of revision 3; later the list is
    /// in the CDB continuation segment, and the length is 0.
    Query { collection: ObjectAddress, allocation_bytes: u64, matches: u64, list_bytes: u32 },
    /// Copies the user object in the CDB continuation segment.
    CopyUserObjects { requested: ObjectAddress, duplication: DuplicationMethod },
    /// Creates a read-only copy of a partition.
    CreateSnapshot { requested: u64, source: u64, methods: PartitionCopyMethods },
    /// Creates a writable copy of a partition.
    CreateClone { requested: u64, source: u64, methods: PartitionCopyMethods },
    /// Makes a clone independent of its source.
    DetachClone { partition: u64 },
    /// Renews a snapshot or clone from its source.
    RefreshSnapshotOrClone { partition: u64, source: u64 },
    /// Returns a partition to the contents of a snapshot.
    RestorePartitionFromSnapshot { partition: u64, source: u64 },
    /// Sets a key.
    SetKey { key: KeyToSet, identifier: [u8; 7], seed: [u8; 20] },
    /// Sets the master key; `group` is the code of the Diffie-Hellman group.
    SetMasterKey {
        step: MasterKeyStep,
        group: u8,
        identifier: [u8; 7],
        parameter_list_bytes: u32,
        allocation_bytes: u32,
    },
    /// Runs a command of another command set.
    PerformScsiCommand { object: ObjectAddress, cdb: [u8; 16] },
    /// Runs a task management function; `tag` names the task.
    PerformTaskManagementFunction {
        object: ObjectAddress,
        allocation_bytes: u16,
        function: TaskManagementCode,
        tag: u64,
    },
}

impl OsdCommand {
    /// The command without its fields.
    pub const fn action(&self) -> OsdAction {
        match self {
            Self::ObjectStructureCheck { .. } => OsdAction::ObjectStructureCheck,
            Self::FormatOsd { .. } => OsdAction::FormatOsd,
            Self::Create { .. } => OsdAction::Create,
            Self::CreateAndWrite { .. } => OsdAction::CreateAndWrite,
            Self::Read { .. } => OsdAction::Read,
            Self::Write { .. } => OsdAction::Write,
            Self::Append { .. } => OsdAction::Append,
            Self::Clear { .. } => OsdAction::Clear,
            Self::Punch { .. } => OsdAction::Punch,
            Self::Flush { .. } => OsdAction::Flush,
            Self::FlushCollection { .. } => OsdAction::FlushCollection,
            Self::FlushPartition { .. } => OsdAction::FlushPartition,
            Self::FlushOsd { .. } => OsdAction::FlushOsd,
            Self::ReadMap { .. } => OsdAction::ReadMap,
            Self::ReadMapsAndCompare { .. } => OsdAction::ReadMapsAndCompare,
            Self::List { .. } => OsdAction::List,
            Self::ListCollection { .. } => OsdAction::ListCollection,
            Self::Remove { .. } => OsdAction::Remove,
            Self::CreatePartition { .. } => OsdAction::CreatePartition,
            Self::RemovePartition { .. } => OsdAction::RemovePartition,
            Self::CreateCollection { .. } => OsdAction::CreateCollection,
            Self::CreateUserTrackingCollection { .. } => OsdAction::CreateUserTrackingCollection,
            Self::RemoveCollection { .. } => OsdAction::RemoveCollection,
            Self::GetAttributes { .. } => OsdAction::GetAttributes,
            Self::SetAttributes { .. } => OsdAction::SetAttributes,
            Self::GetMemberAttributes { .. } => OsdAction::GetMemberAttributes,
            Self::SetMemberAttributes { .. } => OsdAction::SetMemberAttributes,
            Self::RemoveMemberObjects { .. } => OsdAction::RemoveMemberObjects,
            Self::Query { .. } => OsdAction::Query,
            Self::CopyUserObjects { .. } => OsdAction::CopyUserObjects,
            Self::CreateSnapshot { .. } => OsdAction::CreateSnapshot,
            Self::CreateClone { .. } => OsdAction::CreateClone,
            Self::DetachClone { .. } => OsdAction::DetachClone,
            Self::RefreshSnapshotOrClone { .. } => OsdAction::RefreshSnapshotOrClone,
            Self::RestorePartitionFromSnapshot { .. } => OsdAction::RestorePartitionFromSnapshot,
            Self::SetKey { .. } => OsdAction::SetKey,
            Self::SetMasterKey { .. } => OsdAction::SetMasterKey,
            Self::PerformScsiCommand { .. } => OsdAction::PerformScsiCommand,
            Self::PerformTaskManagementFunction { .. } => OsdAction::PerformTaskManagementFunction,
        }
    }

    /// Length of the command data in data-out, which begins after the CDB continuation segment.
    pub const fn data_out_bytes(&self) -> u64 {
        match self {
            Self::CreateAndWrite { range, .. } | Self::Write { range, .. } => range.length,
            Self::Append { length, .. } => *length,
            Self::Query { list_bytes, .. } => *list_bytes as u64,
            Self::SetMasterKey { parameter_list_bytes, .. } => *parameter_list_bytes as u64,
            _ => 0,
        }
    }

    /// Maximum length of the command data or parameter data at the start of data-in.
    pub const fn data_in_bytes(&self) -> u64 {
        match self {
            Self::Read { range, .. } => range.length,
            Self::ReadMap { allocation_bytes, .. }
            | Self::ReadMapsAndCompare { allocation_bytes, .. }
            | Self::Query { allocation_bytes, .. } => *allocation_bytes,
            Self::List { list, .. } | Self::ListCollection { list, .. } => list.allocation_bytes,
            Self::SetMasterKey { allocation_bytes, .. } => *allocation_bytes as u64,
            Self::PerformTaskManagementFunction { allocation_bytes, .. } => {
                *allocation_bytes as u64
            }
            _ => 0,
        }
    }
}
