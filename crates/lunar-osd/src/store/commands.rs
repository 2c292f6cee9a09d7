//! Commands and their results.

use crate::{AttributeId, ObjectId, QuotaKind};
use bytes::Bytes;

/// A change of a store.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum ObjectCommand {
    /// Removes all partitions, and the attributes and quotas of the root. FORMAT OSD.
    RemoveAll,
    /// Creates a partition with this id, or with one that the store chooses.
    CreatePartition(Option<u64>),
    /// Removes a partition.
    RemovePartition {
        /// The partition.
        id: u64,
        /// True if its objects are removed too; otherwise it must be empty.
        with_contents: bool,
    },
    /// Creates an empty user object.
    Create {
        /// The partition.
        partition: u64,
        /// The id, or none if the store chooses it.
        id: Option<u64>,
    },
    /// Removes a user object with its attributes and its references to collections.
    Remove(ObjectId),
    /// Creates an empty collection.
    CreateCollection {
        /// The partition.
        partition: u64,
        /// The id, or none if the store chooses it. Objects and collections share the ids.
        id: Option<u64>,
    },
    /// Removes a collection.
    RemoveCollection {
        /// The collection.
        id: ObjectId,
        /// True if it may have members. They lose the references to it, and stay.
        with_members: bool,
    },
    /// Makes a user object a member of a collection of its partition, or ends that.
    SetMembership {
        /// The user object.
        object: ObjectId,
        /// The number of the reference: that of the attribute in the collections page.
        number: u32,
        /// The collection, or none.
        collection: Option<u64>,
    },
    /// Creates a copy of a user object; both share their data until one of them is changed.
    Copy {
        /// The user object.
        source: ObjectId,
        /// The partition of the copy.
        partition: u64,
        /// The id of the copy, or none if the store chooses it.
        id: Option<u64>,
        /// True if the attributes are copied too.
        with_attributes: bool,
    },
    /// Sets a quota of a user object, a partition or the root; `u64::MAX` ends it.
    SetQuota {
        /// The object.
        owner: ObjectId,
        /// The quota.
        quota: QuotaKind,
        /// Its value.
        limit: u64,
    },
    /// Makes a clone a primary partition.
    DetachClone(u64),
    /// Writes bytes; the object grows if they end beyond its end.
    Write {
        /// The object.
        object: ObjectId,
        /// First byte.
        offset: u64,
        /// The bytes.
        data: Bytes,
    },
    /// Writes bytes at the end of the object.
    Append {
        /// The object.
        object: ObjectId,
        /// The bytes.
        data: Bytes,
    },
    /// Makes bytes zero; the object grows if they end beyond its end.
    Clear {
        /// The object.
        object: ObjectId,
        /// First byte.
        offset: u64,
        /// Number of bytes.
        len: u64,
    },
    /// Removes bytes; those behind them move to the front.
    Punch {
        /// The object.
        object: ObjectId,
        /// First byte.
        offset: u64,
        /// Number of bytes.
        len: u64,
    },
    /// Sets the logical length: truncates the object, or lets it grow by zeroes.
    SetLength {
        /// The object.
        object: ObjectId,
        /// The new length.
        length: u64,
    },
    /// Sets an attribute, or removes it.
    SetAttribute {
        /// The object, partition or root.
        owner: ObjectId,
        /// The attribute.
        id: AttributeId,
        /// The value, or none to remove the attribute.
        value: Option<Bytes>,
    },
}

impl ObjectCommand {
    /// Returns true if the command needs no more space than a record: it works on a full store.
    pub(super) fn works_when_full(&self) -> bool {
        match self {
            Self::RemoveAll
            | Self::RemovePartition { .. }
            | Self::Remove(_)
            | Self::RemoveCollection { .. }
            | Self::DetachClone(_)
            | Self::SetQuota { .. }
            | Self::Clear { .. }
            | Self::Punch { .. }
            | Self::SetLength { .. } => true,
            Self::SetMembership { collection, .. } => collection.is_none(),
            Self::SetAttribute { value, .. } => value.is_none(),
            Self::CreatePartition(_)
            | Self::Create { .. }
            | Self::CreateCollection { .. }
            | Self::Copy { .. }
            | Self::Write { .. }
            | Self::Append { .. } => false,
        }
    }

    /// Returns the object whose rows the command changes.
    pub(super) fn changed_object(&self) -> Option<ObjectId> {
        match self {
            Self::Write { object, .. }
            | Self::Append { object, .. }
            | Self::Clear { object, .. }
            | Self::Punch { object, .. }
            | Self::SetLength { object, .. }
            | Self::SetMembership { object, .. } => Some(*object),
            Self::SetAttribute { owner, .. } => Some(*owner),
            _ => None,
        }
    }
}

/// The result of a command.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ObjectCommandResult {
    /// The command has no other result.
    Done,
    /// The id of the new partition.
    Partition(u64),
    /// The name of the new object or collection.
    Object(ObjectId),
    /// The first byte of the appended bytes.
    Offset(u64),
}

/// The way in which commands are applied.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct ChangeOptions {
    /// True if the commands are on stable storage when the future completes.
    pub durable: bool,
    /// The time for the timestamps of changed objects, in milliseconds since 1970-01-01 UTC. With
    /// none they stay as they are, as a bypass of timestamps demands. OSD-2 §5.2.8.
    pub time: Option<u64>,
}

/// The result of a copy of a partition.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum PartitionCopyTarget {
    /// A new snapshot with this id, or with one that the store chooses. CREATE SNAPSHOT.
    Snapshot(Option<u64>),
    /// A new clone. CREATE CLONE.
    Clone(Option<u64>),
    /// A partition that exists: its contents are replaced. REFRESH SNAPSHOT OR CLONE, and RESTORE
    /// PARTITION FROM SNAPSHOT.
    Existing(u64),
}
