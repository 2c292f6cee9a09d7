//! PDUs and SCSI commands as bytes, written from the standards alone.

pub mod command_queue;
pub mod cutter;
pub mod extended_copy;
