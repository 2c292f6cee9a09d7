//! Both roles in one thread: a simulated link that splits the stream anywhere, a virtual clock, and
//! random numbers from a seed. A run depends on the seed alone.
//!
//! [`Pair`] is the main test of this crate; in [`PassThrough`] a target passes commands on to
//! another. The feature `sim` makes both available to fuzzers and simulators.
#![allow(clippy::expect_used)] // test equipment: its expectations are the test

mod disk;
mod host;
mod log;
mod pair;
mod pass_through;
mod rng;
mod server;
#[cfg(test)]
mod tests;
mod wire;

pub use disk::{BLOCK_BYTES, EXCHANGE, SimDisk};
pub use host::SimAnswer;
pub use log::Log;
pub use pair::{Pair, PairOptions};
pub use pass_through::{
    COMMANDS_MAX, FIRST_BURST_BYTES_MAX, PassThrough, READ_BYTES_MAX, RELAY_BYTES_MAX,
    SEGMENT_BYTES_MAX, Side, TASK_BYTES_MAX, WAITING_BYTES_MAX,
};
pub use rng::Rng;
pub use server::EVENT;

/// The name of the only target.
pub const TARGET_NAME: &str = "iqn.2026-01.example:target";
