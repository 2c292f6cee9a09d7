//! Disks: the `BlockDevice` trait, its implementations (file, memory), decorators, and the
//! contract test every implementation passes.
#![warn(missing_docs)]

mod buffer;
mod device;
mod error;
mod file;
mod memory;

pub use buffer::{Buffer, BufferPool, PAGE_BYTES, POOL_LIMIT_BYTES, POOLED_BUFFER_BYTES_MAX};
pub use device::{
    BlockDevice, BlockRange, BoxFuture, Extent, ExtentState, Geometry, OPTIMAL_TRANSFER_BYTES,
    PHYSICAL_BLOCK_BYTES_MAX, Sparse,
};
pub use error::{Error, ErrorKind};
pub use file::{FileDevice, FileIdentity, FileOptions, file_identity};
pub use memory::MemoryDevice;
