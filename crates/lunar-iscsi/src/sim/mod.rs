//! Both roles in one thread: a simulated link that splits the stream anywhere, a virtual clock, and
//! random numbers from a seed. A run depends on the seed alone.
//!
//! [`Pair`] is the main test of this crate; the feature `sim` makes it available to fuzzers and
//! simulators.
//! feature `sim`.
#![allow(clippy::expect_used)] // test equipment: its expectations are the test

mod disk;
mod host;
mod log;
mod pair;
mod rng;
mod server;
#[cfg(test)]
mod tests;
mod wire;

pub use disk::{BLOCK_BYTES, SimDisk};
pub use host::SimAnswer;
pub use log::Log;
pub use pair::{Pair, PairOptions};
pub use rng::Rng;
pub use server::EVENT;

/// The name of the only target.
pub const TARGET_NAME: &str = "iqn.2026-01.example:target";
