//! iSCSI, RFC 7143, in both roles, as values: no I/O, no clock, no randomness.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod connection;
pub mod framing;
pub mod login;
pub mod pdu;
pub mod session;
#[cfg(any(test, feature = "sim"))]
pub mod sim;
mod sorted_map;
pub mod text;
