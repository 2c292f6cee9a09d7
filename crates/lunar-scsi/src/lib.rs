//! SCSI: commands as types, the command table, sense, VPD and mode pages, reservations. Commands
//! are checked and planned here, and run elsewhere: no I/O, no clock, no randomness.
//!
//! ```
//! use lunar_scsi::plan::{LbaRange, NexusId, Plan, Refusal};
//! use lunar_scsi::unit::{BlockUnit, Context, InitiatorPort, TargetPort, UnitOptions};
//! use lunar_wire::Lun;
//!
//! let mut unit = BlockUnit::new(UnitOptions { block_count: 2048, ..UnitOptions::default() });
//! let (name, isid) = ("iqn.2026-11.org.example:host".to_owned(), [0x80, 0, 0, 0, 0, 1]);
//! let target = "iqn.2026-11.org.example:disk".to_owned();
//! let port = TargetPort { name: target, portal_group_tag: 1, relative_id: 1 };
//! let nexus = NexusId(1);
//! unit.attach(nexus, InitiatorPort { name, isid }, port.clone());
//!
//! let luns = [Lun::new(0)];
//! let context = Context::new(&luns, &port);
//! let read_10 = [0x28, 0, 0, 0, 0, 8, 0, 0, 4, 0]; // four blocks from LBA 8
//! // A new nexus is first informed of the power-on, SAM-5 §5.14.
//! let attention = unit.plan(nexus, &context, &read_10);
//! assert!(matches!(attention, Err(Refusal::Check(_))));
//! let plan = unit.plan(nexus, &context, &read_10);
//! assert!(matches!(plan, Ok(Plan::Read { range: LbaRange { lba: 8, count: 4 }, .. })));
//! ```
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
pub mod osd;
pub mod plan;
pub mod ports;
pub mod primary;
pub mod reported_identity;
pub mod reservations;
pub mod rights;
pub mod sense;
pub mod share;
mod state;
mod threshold;
pub mod unit;
pub mod unsaved;
pub mod vpd;
