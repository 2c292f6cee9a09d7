//! A store of objects with attributes on a block device.
//!
//! Objects have 64-bit ids, lie in partitions, and hold up to 2^63 − 1 bytes and any number of
//! attributes. The bytes lie on any [`BlockDevice`](lunar_block::BlockDevice): a file, memory, a
//! pool, a LUN of another target. `docs/formats/osd.md` describes the format.
//!
//! ```
//! use lunar_block::MemoryDevice;
//! use lunar_osd::{FormatOptions, ObjectStore, StoreOptions};
//! use std::sync::Arc;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let device = Arc::new(MemoryDevice::new(32 << 20, 512, 4096)?);
//! ObjectStore::format(device.clone(), FormatOptions::default()).await?;
//! let store = ObjectStore::open(device, StoreOptions::default()).await?;
//! let partition = store.create_partition(None).await?;
//! let object = store.create(partition, None).await?;
//! store.write(object, 3, b"data".as_slice().into()).await?;
//! assert_eq!(&store.read(object, 0, 100).await?[..], b"\0\0\0data");
//! store.close().await?;
//! # Ok(())
//! # }
//! ```
//!
//! # Modules
//!
//! | module | content |
//! |---|---|
//! | `store` | [`ObjectStore`]: the interface, and the state shared with readers |
//! | `store/commands`, `store/methods` | commands as values, and a method for each |
//! | `store/commit` | the thread of a store, which commits commands in groups |
//! | `store/plan` | a command as changes of rows and as data, without effect until committed |
//! | `store/read` | reads, outside the thread |
//! | `store/checkpoint` | changed rows move into the index while commands continue |
//! | `store/background` | removal of the rows of removed objects; space for the device |
//! | `store/partition_copy` | snapshots and clones |
//! | `store/recovery` | format, and opening: the index, then the records of the log |
//! | `log` | the ring of records |
//! | `objects` | the kinds of objects as rows |
//! | `objects/directory`, `objects/lists` | creation, removal and lists |
//! | `objects/extents`, `objects/copies` | bytes in blobs, and rows that copies share |
//! | `objects/collections` | members of collections, in both directions |
//! | `objects/quotas`, `objects/information` | limits and properties |
//! | `objects/reclaim` | the rows of removed objects |
//! | `index` | rows: changed ones in memory, the others in redb on chunks of the device |
//! | `allocator` | free blocks |
//! | `check` | verification of a device that is not in use |
//! | `format` | bytes on the device: superblock, records, keys and rows |
//!
//! A command becomes changes of rows, and data. The record of a group of commands, which contains
//! both, is written to the log; one flush makes the group durable.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod allocator;
mod block_io;
mod check;
mod error;
mod format;
mod id;
mod index;
mod information;
mod log;
mod objects;
mod store;

pub use check::{CHECK_PROBLEMS_MAX, CheckProblem, CheckReport, CheckedSum, check};
pub use error::StoreError;
pub use id::{AttributeId, FIRST_ID, ObjectId};
pub use information::{
    AccessKind, ObjectInformation, ObjectKind, ObjectQuotas, ObjectTimes, PartitionKind, QuotaKind,
};
pub use store::{
    ATTRIBUTE_BYTES_MAX, ChangeOptions, FormatOptions, ObjectCommand, ObjectCommandResult,
    ObjectStore, PartitionCopyTarget, StoreOptions,
};
