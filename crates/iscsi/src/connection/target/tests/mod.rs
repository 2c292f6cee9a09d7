//! The target's connection and session together, PDU by PDU.

mod basics;
#[allow(dead_code)]
mod requests;
#[allow(dead_code)]
pub(crate) mod rig;
