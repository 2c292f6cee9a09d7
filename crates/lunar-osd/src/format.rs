//! Bytes on the device, `docs/formats/osd.md`. Everything that is read is hostile until parsed.

mod record;
mod rows;
mod superblock;

pub(crate) use record::{
    LogGroup, RECORD_HEADER_BYTES, ROW_BYTES_MAX, ROW_OVERHEAD_BYTES, RecordHeader,
};
pub(crate) use rows::{
    BLOB_BLOCKS_MAX, BLOB_BYTES_MAX, BlobRow, ExtentRow, LogPosition, ObjectRow, PartitionRow,
    RootRow, RowKey,
};
pub(crate) use superblock::{StoreLayout, Superblock};
