//! Bytes on the device, `docs/formats/osd.md`. Everything that is read is hostile until parsed.

mod keys;
mod record;
mod rows;
mod superblock;

pub(crate) use keys::{RemovedRows, RowKey};
pub(crate) use record::{
    LogGroup, RECORD_HEADER_BYTES, ROW_BYTES_MAX, ROW_OVERHEAD_BYTES, RecordHeader,
};
pub(crate) use rows::{
    AccessedRow, BLOB_BLOCKS_MAX, BLOB_BYTES_MAX, BlobRow, ExtentRow, LogPosition, MemberRow,
    MembershipRow, ObjectRow, PartitionRow, QuotaFields, RootRow, SharedRow,
};
pub(crate) use superblock::{StoreLayout, Superblock};
