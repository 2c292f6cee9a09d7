//! Pools: concatenations, stripes and mirrors of any block devices.
//!
//! Each member of a pool has a label, by which its members are found in any order.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod format;
