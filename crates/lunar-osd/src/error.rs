//! Errors of an object store.

use crate::{ObjectId, QuotaKind};
use std::sync::Arc;

/// A failure of a command, or of the store.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The partition does not exist.
    #[error("partition {0:#x} does not exist")]
    NoSuchPartition(u64),
    /// The object does not exist.
    #[error("object {:#x} does not exist in partition {:#x}", .0.object, .0.partition)]
    NoSuchObject(ObjectId),
    /// The requested id is in use.
    #[error("id {0:#x} is in use")]
    IdInUse(u64),
    /// The requested id is below [`FIRST_ID`](crate::FIRST_ID), or no id is left.
    #[error("id {0:#x} cannot be used")]
    InvalidId(u64),
    /// The partition contains objects.
    #[error("partition {0:#x} is not empty")]
    PartitionNotEmpty(u64),
    /// The collection has members.
    #[error("collection {:#x} of partition {:#x} is not empty", .0.object, .0.partition)]
    CollectionNotEmpty(ObjectId),
    /// The command does not suit objects of this kind.
    #[error("object {:#x} of partition {:#x} is of another kind", .0.object, .0.partition)]
    WrongObjectKind(ObjectId),
    /// The partition is a snapshot, which cannot be changed.
    #[error("partition {0:#x} is a snapshot")]
    ReadOnlySnapshot(u64),
    /// The command exceeds a quota.
    #[error("the quota {quota:?} of {limit} is exceeded")]
    QuotaExceeded {
        /// The object, partition or root that has the quota.
        owner: ObjectId,
        /// The quota.
        quota: QuotaKind,
        /// Its value.
        limit: u64,
    },
    /// The number of a reference to a collection is not from 1 to FFFFFF00h. OSD-2 §7.1.2.
    #[error("{0} is no number of a reference to a collection")]
    InvalidNumber(u32),
    /// A byte lies beyond the maximum length of an object, or a range starts beyond its end.
    #[error("bytes from {offset} on, {len} of them, are beyond the range of the object")]
    OutOfRange {
        /// First byte.
        offset: u64,
        /// Number of bytes.
        len: u64,
    },
    /// The value of an attribute is too long.
    #[error("an attribute of {0} bytes is too long")]
    AttributeTooLong(usize),
    /// The device has not enough free blocks.
    #[error("the store is full")]
    NoSpace,
    /// The changes of one command do not fit a record of the log.
    #[error("the command changes too much at once: {0} bytes of metadata")]
    CommandTooLarge(usize),
    /// The bytes on the device do not match their checksums, or contradict each other.
    #[error("the store is damaged: {0}")]
    Damaged(Arc<str>),
    /// The device does not contain a store that this version knows.
    #[error("no object store: {0}")]
    NotAStore(Arc<str>),
    /// The device has lost writes that no flush had made durable. All commands that were
    /// acknowledged as durable are kept; the store has to be opened again.
    #[error("the device has lost writes that were not flushed")]
    CacheLost,
    /// The device failed.
    #[error(transparent)]
    Device(Arc<lunar_block::Error>),
    /// The index failed.
    #[error("the index of the store failed: {0}")]
    Index(Arc<str>),
    /// An earlier failure stopped the store: it has to be opened again.
    #[error("the store stopped after a failure: {0}")]
    Stopped(Arc<str>),
}

impl StoreError {
    pub(crate) fn damaged(what: impl Into<String>) -> Self {
        Self::Damaged(what.into().into())
    }

    pub(crate) fn index(error: &dyn std::error::Error) -> Self {
        Self::Index(error.to_string().into())
    }
}

impl From<lunar_block::Error> for StoreError {
    fn from(error: lunar_block::Error) -> Self {
        Self::Device(Arc::new(error))
    }
}
