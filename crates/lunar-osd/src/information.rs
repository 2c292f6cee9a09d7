//! Properties of objects: kinds, quotas and times.

use crate::ObjectId;

/// The kind of an object. OSD-2 §4.6.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ObjectKind {
    /// The root, which contains the partitions.
    Root,
    /// A partition, which contains collections and user objects.
    Partition,
    /// A collection, which has user objects as members.
    Collection,
    /// A user object, which contains bytes.
    User,
}

/// The origin of a partition. OSD-2 §4.13.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum PartitionKind {
    /// A partition that was created empty, or a detached clone.
    Primary,
    /// The contents of another partition at one time; nothing in it can be changed.
    Snapshot,
    /// The contents of another partition at one time, changed since.
    Clone,
}

impl PartitionKind {
    pub(crate) const fn code(self) -> u8 {
        self as u8
    }

    pub(crate) fn from_code(code: u8) -> Option<Self> {
        [Self::Primary, Self::Snapshot, Self::Clone].into_iter().find(|kind| kind.code() == code)
    }
}

/// A limit that commands must not exceed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum QuotaKind {
    /// Length of an object in bytes. That of a partition is for its new objects, that of the root
    /// for new partitions.
    ObjectLength,
    /// Bytes of all blocks of the objects of a partition, shared ones as often as they are used.
    Capacity,
    /// Number of objects and collections of a partition.
    ObjectCount,
    /// Number of references of an object to collections.
    Memberships,
    /// Number of partitions of the root.
    PartitionCount,
}

/// The limits of an object; `u64::MAX`: none.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ObjectQuotas {
    /// [`QuotaKind::ObjectLength`].
    pub object_length: u64,
    /// [`QuotaKind::Capacity`].
    pub capacity: u64,
    /// [`QuotaKind::ObjectCount`].
    pub object_count: u64,
    /// [`QuotaKind::Memberships`].
    pub memberships: u64,
    /// [`QuotaKind::PartitionCount`].
    pub partition_count: u64,
}

/// Times in milliseconds since 1970-01-01 UTC; 0: never, or without a time. OSD-2 §7.1.2.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct ObjectTimes {
    /// The creation.
    pub created: u64,
    /// The last access to attributes that was [recorded](crate::ObjectStore::record_access).
    pub attributes_accessed: u64,
    /// The last change of an attribute, a quota or a membership.
    pub attributes_modified: u64,
    /// The last access to the data that was recorded.
    pub data_accessed: u64,
    /// The last change of the data; of a partition, of its list of objects.
    pub data_modified: u64,
}

/// An access without a change, of which the time can be recorded.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum AccessKind {
    /// To attributes.
    Attributes,
    /// To the bytes of a user object, or to a list.
    Data,
}

/// Properties of an object.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct ObjectInformation {
    /// The name.
    pub id: ObjectId,
    /// The kind.
    pub kind: ObjectKind,
    /// Logical length of a user object in bytes.
    pub length: u64,
    /// Bytes of the blocks of a user object, or of all of a partition, shared ones as often as
    /// they are used; of the root, the bytes of the device that are in use.
    pub used_bytes: u64,
    /// Number of objects and collections of a partition, or of partitions.
    pub contained: u64,
    /// Limits.
    pub quotas: ObjectQuotas,
    /// Times.
    pub times: ObjectTimes,
    /// The origin of a partition.
    pub partition_kind: PartitionKind,
    /// The partition from which a snapshot or clone was made; it may have been removed since.
    pub source: Option<u64>,
}
