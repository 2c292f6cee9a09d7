//! Integration tests of the SCSI model, in one program.
#![allow(clippy::unwrap_used, clippy::expect_used)] // a test may

mod object_unit;
mod osd;
mod two_initiators;
mod unit;
