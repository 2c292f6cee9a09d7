//! Load generator for disks: measures requests a second, bytes a second and latencies.
//!
//! A [`Workload`] describes the requests, [`run`] sends them to a disk. A *closed loop* keeps a
//! fixed number of requests in flight: the next begins when one ends, so a stalled disk gets fewer
//! requests. At a *fixed rate* requests are due at their times whatever the disk does, and the time
//! that a late request waits counts as its latency: a stall delays all requests that are due
//! meanwhile.
//!
//! A [`Comparison`] measures several disks; a [`relay`] simulates a network to a target; a
//! [`probe`] measures plain TCP meanwhile; a [`report`] presents the results. LUNs of targets are
//! opened by [`remote`], behind a relay or not.
//!
//! ```
//! use lunar_block::{BlockDevice, MemoryDevice};
//! use lunar_load::{AccessPattern, Pace, Workload, run};
//! use std::sync::Arc;
//! use std::time::Duration;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let disk: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::new(1 << 20, 512, 4096)?);
//! let result = run(&disk, Workload {
//!     pattern: AccessPattern::RandomRead,
//!     io_bytes: 4096,
//!     range_bytes: None,
//!     depth: 8,
//!     pace: Pace::Closed,
//!     warm_up: Duration::ZERO,
//!     time: Duration::from_secs(1),
//!     seed: 1,
//!     durable: false,
//! });
//! assert!(result.await?.requests_per_second() > 0.0);
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod comparison;
mod cpu;
mod latency;
mod offsets;
mod pace;
pub mod probe;
pub mod relay;
pub mod remote;
pub mod report;
mod run;
mod spread;
mod work;

pub use comparison::{Comparison, Measured, Subject, measure_in_rounds};
pub use cpu::{ListeningProcess, processor_time};
pub use latency::Latency;
pub use offsets::split_mix_64;
pub use run::{LoadError, LoadResult, run};
pub use spread::Spread;
pub use work::{AccessPattern, DEPTH_MAX, IN_FLIGHT_BYTES_MAX, Pace, Workload, WorkloadError};
