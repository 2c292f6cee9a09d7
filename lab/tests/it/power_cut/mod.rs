//! Acknowledged data is there after a power cut: the real binary on a disk that keeps unsynced data
//! in memory only (`lunar_lab::powercut`).
//!
//! `LUNAR_SEEDS` is the number of seeds; `LUNAR_SEED` selects a single one.

mod blocks;
mod changes;
mod commands;
mod kernel;
mod left_overs;
mod poison;
mod refused;
mod rig;
mod rounds;
mod served;
mod starts;
mod states;
