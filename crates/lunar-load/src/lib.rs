//! Load for disks: how many requests a second, how many bytes, how long each takes.
//!
//! A [`Work`] says what is asked of a disk, [`run`] asks it. A *closed loop* has so many requests
//! under way at all times: the next begins when one ends, so a disk that stalls is asked less. At
//! a *fixed rate* requests are due at their times whatever the disk does, and the time that one
//! waits for its turn counts: a stall is seen by all who would have come meanwhile.
//!
//! Disks that are compared take [`Turns`]; a [`relay`] puts a network between here and a target; a
//! [`probe`] tells what TCP alone does meanwhile; a [`report`] is what all of it came to.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod cpu;
mod latency;
mod offsets;
mod pace;
pub mod probe;
pub mod relay;
pub mod report;
mod run;
mod spread;
mod turns;
mod work;

pub use cpu::{Owner, processor_time};
pub use latency::Latency;
pub use run::{Failed, Outcome, run};
pub use spread::Spread;
pub use turns::{Measured, Subject, Turns};
pub use work::{DEPTH_MAX, Pace, Pattern, UNDER_WAY_BYTES_MAX, Work, WorkError};
