//! Load generator for disks: measures requests a second, bytes a second and latencies.
//!
//! A [`Workload`] describes the requests, [`run`] sends them to a disk. A *closed loop* keeps a
//! fixed number of requests in flight: the next begins when one ends, so a stalled disk gets fewer
//! requests. At a *fixed rate* requests are due at their times whatever the disk does, and the time
//! that one waits for its turn counts: a stall delays all requests that are due meanwhile.
//!
//! Disks are compared in [`Turns`]; a [`relay`] simulates a network to a target; a [`probe`]
//! measures plain TCP meanwhile; a [`report`] presents the results. LUNs of targets are opened by
//! [`remote`], behind a relay or not.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

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
mod turns;
mod work;

pub use cpu::{ListeningProcess, processor_time};
pub use latency::Latency;
pub use run::{Failed, LoadResult, run};
pub use spread::Spread;
pub use turns::{Measured, Subject, Turns, in_rounds};
pub use work::{AccessPattern, DEPTH_MAX, Pace, UNDER_WAY_BYTES_MAX, WorkError, Workload};
