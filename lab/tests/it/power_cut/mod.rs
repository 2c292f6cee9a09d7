//! What was acknowledged is there after a power cut: the real binary on a disk that keeps what was
//! not synced in memory only (`lunar_lab::powercut`). `LUNAR_SEEDS` says how many seeds are played.

mod blocks;
mod changes;
mod deeds;
mod kernel;
mod left_overs;
mod poison;
mod refused;
mod rig;
mod rounds;
mod served;
mod starts;
mod states;
