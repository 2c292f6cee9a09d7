//! Tests of the target's connection and session together, with single PDUs.

mod allegiance;
mod basics;
mod data_out;
mod data_time;
mod direct;
mod fast_abort;
mod hostile;
mod invariants;
mod level_two;
mod management;
mod ordering;
mod pieces;
mod requests;
mod resend;
mod responses;
pub(crate) mod rig;
mod service;
mod streams;
