//! The virtualization switch: virtual disks, whose blocks lie on extents of other disks, such as
//! the LUNs of storage targets.
//!
//! ```
//! use lunar_block::{BlockDevice, BlockRange, MemoryDevice};
//! use lunar_switch::{ExtentOrder, VirtualDisk, extent};
//! use std::sync::Arc;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let storage = || MemoryDevice::new(4 << 20, 512, 4096).map(Arc::new);
//! let (a, b): (Arc<dyn BlockDevice>, Arc<dyn BlockDevice>) = (storage()?, storage()?);
//! let extents = [extent(&a, 1 << 20, 1 << 20)?, extent(&b, 0, 2 << 20)?];
//! let disk = VirtualDisk::new("virtual", &extents, ExtentOrder::Linear)?;
//! disk.write(BlockRange::new(2040, 16), vec![7; 8192].into(), false).await?; // to both
//! disk.flush().await?;
//! # Ok(())
//! # }
//! ```
//!
//! A virtual disk writes nothing but the data of its users.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod extent;
mod migration;
pub mod relay;
mod routing;
mod sparse;
mod virtual_disk;

pub use extent::{ExtentError, blocks_of, extent};
pub use lunar_pool::{DeviceExtent, ExtentOrder};
pub use migration::{
    Migration, MigrationEnd, MigrationOptions, MigrationPhase, MigrationProgress, MigrationRecord,
    RecordOutcome,
};
pub use routing::Routing;
pub use virtual_disk::VirtualDisk;
