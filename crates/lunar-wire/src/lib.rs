//! Basic types of all protocols here: big-endian fields, layout tables, serial numbers, LUNs, time
//! as a value, CRC32C.
//!
//! No I/O, no clock, no randomness: `no_std`, checked by the compiler.
#![no_std]
#![forbid(unsafe_code)]
#![warn(missing_docs)]

#[cfg(test)]
extern crate std;

mod crc;
mod field;
mod lun;
mod serial;
mod tables;
mod time;

pub use crc::{Crc32c, crc32c};
pub use field::{Field, U24};
pub use lun::{Lun, LunForm};
pub use serial::SerialNumber;
pub use time::Time;
