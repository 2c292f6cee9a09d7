//! Disks: the `BlockDevice` trait, its implementations (file, memory), decorators, and the
//! contract test every implementation passes.
#![warn(missing_docs)]

mod buffer;
mod device;
mod error;

pub use buffer::{Buffer, BufferPool};
pub use device::{BlockDevice, BlockRange, BoxFuture, Extent, ExtentState, Geometry, Sparse};
pub use error::{Error, ErrorKind};
