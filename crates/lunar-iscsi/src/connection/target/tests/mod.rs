//! The target's connection and session together, PDU by PDU.

mod basics;
mod data_out;
mod data_time;
mod fast_abort;
mod hostile;
mod invariants;
mod level_two;
mod management;
mod ordering;
mod requests;
mod responses;
pub(crate) mod rig;
mod service;
