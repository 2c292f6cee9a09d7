//! The commands, one file each.

mod api_args;
pub mod apply;
pub mod bench;
pub mod check;
pub mod completions;
pub mod copy;
pub mod ctl;
pub mod discover;
pub mod info;
pub mod man;
mod pipes;
pub mod pool;
pub mod progress;
pub mod read;
pub mod serve;
mod serve_api;
mod serve_chap;
mod session;
pub mod switch;
pub mod target;
mod transfer;
pub mod write;

pub use session::{default_initiator_name, runtime};
