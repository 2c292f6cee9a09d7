//! Acknowledged data is there after a power cut: the real binary on a disk that keeps unsynced data
//! in memory only (`lunar_lab::powercut`).
//!
//! `LUNAR_SEEDS` is the number of seeds; `LUNAR_SEED` selects a single one.

mod blocks;
mod changes;
pub mod commands;
mod kernel;
mod left_overs;
mod mirror;
pub mod mirrored;
mod poison;
mod refused;
pub mod rig;
mod rounds;
mod served;
mod starts;
mod states;
