//! Verification of a store that is not in use. Nothing on the device is changed.

mod blobs;
mod members;
mod shadow;
#[cfg(test)]
mod tests;
mod walk;

use crate::block_io::BlockIo;
use crate::store::recovery;
use crate::{ObjectId, StoreError};
use lunar_block::BlockDevice;
use shadow::ShadowDevice;
use std::sync::Arc;

/// Maximum number of problems that a report describes.
pub const CHECK_PROBLEMS_MAX: usize = 1000;

/// Length of the cache of the index during a check.
const CACHE_BYTES: usize = 64 << 20;

/// A contradiction in a store.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum CheckProblem {
    /// A row of the index cannot be parsed. The text names its key.
    #[error("row {0} is invalid")]
    InvalidRow(String),
    /// A row belongs to nothing that exists or is being removed.
    #[error("row {0} belongs to nothing")]
    OrphanRow(String),
    /// Two extents of an object have the same bytes, or an extent ends behind the object.
    #[error("extents of map {map} are wrong at byte {offset}")]
    WrongExtent {
        /// Serial number of the extent map.
        map: u64,
        /// First byte of the extent.
        offset: u64,
    },
    /// The number of extents of a blob is not the stored one.
    #[error("blob {blob} has {counted} extents, not {stored}")]
    WrongReferences {
        /// First block of the blob.
        blob: u64,
        /// Number of extents that were found.
        counted: u64,
        /// Number in the row of the blob; 0 if there is none.
        stored: u64,
    },
    /// Blocks of a blob are outside the data area or have another owner too.
    #[error("blocks of blob {0} have another owner")]
    OverlappingBlob(u64),
    /// A block does not match its checksum, or cannot be read.
    #[error("block {0} does not match its checksum")]
    DamagedBlock(u64),
    /// Blocks in use are free in the bitmap, or the other way round.
    #[error("the bitmap is wrong for {count} blocks, the first is {first}")]
    WrongBitmap {
        /// The first of them.
        first: u64,
        /// Their number.
        count: u64,
    },
    /// The number of users of shared rows is not the stored one.
    #[error("shared rows {serial} have {counted} users, not {stored}")]
    WrongUsers {
        /// Serial number of the rows.
        serial: u64,
        /// Number of objects that were found.
        counted: u64,
        /// Stored number.
        stored: u64,
    },
    /// A sum to which a quota applies is not the stored one.
    #[error("{what} of {:#x}/{:#x}: {counted}, not {stored}", .owner.partition, .owner.object)]
    WrongSum {
        /// The object, partition or root.
        owner: ObjectId,
        /// The quantity.
        what: CheckedSum,
        /// Its value as counted.
        counted: u64,
        /// Its stored value.
        stored: u64,
    },
    /// A reference to a collection, or a member, is without its counterpart.
    #[error("object {object:#x} and collection {collection} do not refer to each other")]
    WrongMembership {
        /// Serial number of the collection.
        collection: u64,
        /// Id of the object.
        object: u64,
    },
}

/// A sum that a store maintains.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum CheckedSum {
    /// Bytes of all blocks of an object or partition.
    UsedBytes,
    /// Number of objects and collections of a partition.
    ObjectCount,
    /// Number of partitions.
    PartitionCount,
}

impl std::fmt::Display for CheckedSum {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::UsedBytes => "used bytes",
            Self::ObjectCount => "number of objects",
            Self::PartitionCount => "number of partitions",
        })
    }
}

/// The result of a check.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub struct CheckReport {
    /// Number of partitions.
    pub partitions: u64,
    /// Number of user objects.
    pub objects: u64,
    /// Number of collections.
    pub collections: u64,
    /// Number of attributes, shared ones once.
    pub attributes: u64,
    /// Number of extents, shared ones once.
    pub extents: u64,
    /// Number of runs of blocks that extents use.
    pub blobs: u64,
    /// Number of bytes of those, whose checksums were verified.
    pub data_bytes: u64,
    /// Number of sets of rows that are still to be removed.
    pub removals: u64,
    /// The first problems, up to [`CHECK_PROBLEMS_MAX`].
    pub problems: Vec<CheckProblem>,
    /// Number of all problems.
    pub problem_count: u64,
}

impl CheckReport {
    fn add(&mut self, problem: CheckProblem) {
        self.problem_count += 1;
        if self.problems.len() < CHECK_PROBLEMS_MAX {
            self.problems.push(problem);
        }
    }
}

/// Verifies the store on `device`, which nobody uses meanwhile: the log as it would be replayed,
/// every row, every checksum, the owner of every block, every sum to which a quota applies. Repairs
/// nothing, and writes nothing to the device.
///
/// Memory: about 150 bytes for each object and 40 for each blob, and the contents of the log.
///
/// # Errors
/// `NotAStore`; `Damaged`, `Index` or `Device` if the rows cannot be read at all.
pub async fn check(device: Arc<dyn BlockDevice>) -> Result<CheckReport, StoreError> {
    let io = BlockIo::new(ShadowDevice::new(device));
    crate::store::blocking(move || {
        let shared = recovery::open_only(io.clone(), CACHE_BYTES)?;
        let result = walk::check_rows(&shared, &io);
        shared.close();
        result
    })
    .await
}
