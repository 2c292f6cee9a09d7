//! What was acknowledged is there after a power cut: the real binary on a disk that keeps what was
//! not synced in memory only (`interop::powercut`). `LUNAR_SEEDS` says how many seeds are played.

mod blocks;
mod changes;
mod deeds;
mod poison;
mod refused;
mod rig;
mod rounds;
mod starts;
mod states;
