//! SCSI: commands as types, the command table, sense, VPD and mode pages, reservations. Commands
//! are checked and planned here, and run elsewhere: no I/O, no clock, no randomness.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod attention;
pub mod cdb;
pub mod commands;
mod conditions;
pub mod copy;
pub mod inquiry;
pub mod log;
pub mod long_operation;
pub mod mode;
mod nexus_loss;
mod nexuses;
pub mod plan;
pub mod ports;
pub mod reservations;
pub mod rights;
pub mod sense;
pub mod share;
mod state;
mod threshold;
pub mod unit;
pub mod unsaved;
pub mod vpd;
