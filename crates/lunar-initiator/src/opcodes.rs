//! Operation codes and service actions of the commands that the initiator sends.

use lunar_scsi::commands::{opcode, service_action};

pub(crate) const INQUIRY: u8 = opcode("INQUIRY");
pub(crate) const MODE_SENSE_6: u8 = opcode("MODE SENSE (6)");
pub(crate) const READ_CAPACITY_10: u8 = opcode("READ CAPACITY (10)");
pub(crate) const READ_CAPACITY_16: u8 = opcode("READ CAPACITY (16)");
pub(crate) const READ_CAPACITY_16_ACTION: u8 = service_action("READ CAPACITY (16)");
pub(crate) const REPORT_LUNS: u8 = opcode("REPORT LUNS");
pub(crate) const SYNCHRONIZE_CACHE_10: u8 = opcode("SYNCHRONIZE CACHE (10)");
