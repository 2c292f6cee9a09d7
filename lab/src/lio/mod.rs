//! Our initiators against LIO, the target of the Linux kernel, in a guest
//! ([`lio_guest`](crate::peers::lio_guest)).

mod cases;
mod check;
pub(crate) mod clients;

pub use check::main;
