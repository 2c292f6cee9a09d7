//! Basic types of the protocol crates: big-endian fields, layout tables, serial numbers, LUNs, time
//! as a value, CRC32C.
//!
//! No I/O, no clock, no randomness: `no_std`, checked by the compiler.
//!
//! ```
//! use lunar_wire::{Crc32c, Lun, LunForm, SerialNumber, crc32c};
//!
//! // LUN 300 needs the flat address method, SAM-5 §4.7.
//! assert_eq!(Lun::new(300).0, [0x41, 0x2c, 0, 0, 0, 0, 0, 0]);
//! assert_eq!(Lun::new(300).form(), LunForm::Unit(300));
//!
//! // Sequence numbers wrap, RFC 1982.
//! assert!(SerialNumber(u32::MAX).before(SerialNumber(0)));
//!
//! // A digest over several parts equals that over all of them.
//! let mut digest = Crc32c::new();
//! digest.update(b"1234");
//! digest.update(b"56789");
//! assert_eq!(digest.value(), crc32c(b"123456789"));
//! ```
//!
//! A layout is declared as a table of byte offsets: see [`wire_struct!`] and [`wire_enum!`].
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
