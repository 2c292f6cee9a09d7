//! Both roles in one thread: a simulated link that cuts the stream anywhere, a virtual clock,
//! chance from a seed. What the machines do in a run depends on the seed alone.
//!
//! [`Pair`] is the main test of this crate, and is there for fuzzers and simulators too, with the
//! feature `sim`.
#![allow(clippy::expect_used)] // test equipment: what it expects is what it tests

mod disk;
mod host;
mod log;
mod pair;
mod rng;
mod server;
#[cfg(test)]
mod tests;
mod wire;

pub use disk::{BLOCK_BYTES, Disk};
pub use host::Answer;
pub use log::Log;
pub use pair::{Options, Pair};
pub use rng::Rng;
pub use server::EVENT;

/// The one target there is.
pub const TARGET_NAME: &str = "iqn.2026-01.example:target";
