//! Pools: concatenations, stripes and mirrors of any block devices.
//!
//! Each member of a pool has a label, by which its members are found in any order. A pool is a
//! [`BlockDevice`](lunar_block::BlockDevice) itself, so pools can be members of pools.
//!
//! ```
//! use lunar_block::{BlockDevice, BlockRange, MemoryDevice};
//! use lunar_pool::{OpenOptions, Pool, PoolSpec};
//! use std::sync::Arc;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let disk = || MemoryDevice::new(4 << 20, 512, 4096).map(Arc::new);
//! let members: Vec<Arc<dyn BlockDevice>> = vec![disk()?, disk()?];
//! Pool::create(PoolSpec::Stripe { unit_bytes: 64 << 10 }, members.clone()).await?;
//! let pool = Pool::open("fast", members, OpenOptions::default()).await?;
//! pool.write(BlockRange::new(0, 256), vec![7; 128 << 10].into(), false).await?; // to both
//! pool.flush().await?;
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod assembly;
mod create;
mod error;
mod fenced_device;
pub mod format;
mod joined;
mod lease;
mod losses;
mod member_device;
mod member_io;
mod mirror;
mod ownership;
mod pool;
mod resolve;
mod status;

pub use create::{PoolSpec, STRIPE_UNIT_BYTES, STRIPE_UNIT_BYTES_MAX};
pub use error::{MirrorSide, PoolError, SplitMirror};
pub use joined::{DeviceExtent, ExtentOrder, JoinedDevice, JoinedShape};
pub use mirror::{
    ChangeQueue, ChangeTurn, LATE_MAX, LATENESS_WINDOW, Lateness, MirrorOptions, RunToEnd,
    ScrubOptions, ScrubProgress, ScrubReport, ScrubbedMember, TransferTurn,
};
pub use ownership::LeftOutMember;
pub use pool::{OpenOptions, Pool};
pub use status::{MemberState, PoolHealth, PoolMember, PoolStatus, UnusedDevice, UnusedState};
