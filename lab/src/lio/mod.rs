//! LIO, the target of the Linux kernel, as a peer: a Debian kernel in a QEMU guest
//! (lab/kernel), which our initiators on this machine use.

mod cases;
mod check;
mod clients;
mod guest;
mod kernel_log;

pub use check::main;
