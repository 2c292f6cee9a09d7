//! Disks: the `BlockDevice` trait, its implementations (file, memory), decorators, and the
//! contract test every implementation passes.
//!
//! ```
//! use lunar_block::{BlockDevice, BlockRange, BufferPool, ErrorKind, MemoryDevice};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let disk = MemoryDevice::new(1 << 20, 512, 4096)?; // bytes, block, physical block
//! let first = BlockRange::new(0, 8);
//! disk.write(first, vec![7; 4096].into(), false).await?;
//! disk.flush().await?; // all writes that completed before are durable
//!
//! let pool = BufferPool::default();
//! let read = disk.read(first, pool.take(4096)).await?;
//! assert_eq!(read[..], [7; 4096]);
//! let beyond = disk.read(BlockRange::new(2048, 1), pool.take(512)).await;
//! assert_eq!(beyond.err().map(|error| error.kind), Some(ErrorKind::OutOfRange));
//! # Ok(())
//! # }
//! ```
//!
//! A new implementation passes the checks of [`contract`].
#![warn(missing_docs)]

mod backing;
mod budget;
mod buffer;
pub mod contract;
mod device;
mod durable;
mod error;
mod extents;
mod fair;
mod fault;
mod file;
mod io_context;
mod memory;
pub mod output_file;
mod ownership;
mod path_lookup;
mod poison;
mod random;
mod relay_map;
mod resize;
#[cfg(test)]
mod scratch;
mod state_directory;
mod statistics;
mod trusted;
mod unsafe_heap;

pub use backing::{BackingPath, BackingProbe, BackingState};
pub use budget::{MemoryBudget, MemoryCharge, MemoryKind, MemoryOwner, MemoryUsage};
pub use buffer::{Buffer, BufferPool, PAGE_BYTES, POOL_LIMIT_BYTES, POOLED_BUFFER_BYTES_MAX};
pub use device::{
    AtomicCompareAndWrite, AtomicLimits, AtomicWrite, BlockDevice, BlockRange, BoxFuture, Clear,
    DeviceLink, Extent, ExtentState, Geometry, OPTIMAL_TRANSFER_BYTES, PHYSICAL_BLOCK_BYTES_MAX,
    SpaceUsage, Sparse,
};
pub use error::{Error, ErrorKind};
pub use fair::FairDevice;
pub use fault::{Effect, Fault, FaultDevice, FaultOperation};
pub use file::{FileDevice, FileIdentity, FileOptions, FileSystems, file_identity, with_ring};
pub use io_context::{ForeignWaiters, IoContext};
pub use memory::MemoryDevice;
pub use ownership::{
    ExclusiveOwnership, OwnershipClaim, OwnershipFence, OwnershipGrant, WriteLease,
};
pub use path_lookup::{CreatedFile, is_among_devices, resolve_path};
pub use poison::PoisonWatcher;
pub use relay_map::{RELAY_PARTS_MAX, RelayMap, RelayPart, RelayStorage};
pub use resize::Resize;
pub use state_directory::{StateDirectory, StateLock};
pub use statistics::{DURATION_BOUNDS, DurationCounts, Durations, SyncCounts, thread_number};
pub use trusted::{SharedFolder, UntrustedFile, create_folder, open_folder};
