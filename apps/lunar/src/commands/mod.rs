//! The commands, one file each.

pub mod check;
pub mod serve;
pub mod target;
