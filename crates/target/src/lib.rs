//! The target role: logical units, who may see which, and running what SCSI has planned.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod abort;
mod access;
mod connection;
mod error;
mod execute;
mod join;
mod manage;
mod options;
mod ranges;
mod server;
mod session;
mod state_file;
mod tasks;
mod unit;

pub use error::Error;
pub use options::{
    Access, ChapEntry, Limits, LunOptions, Network, Portal, ServerOptions, TargetOptions,
};
pub use server::{Server, ShutdownReport};
pub use unit::{CacheMode, LogicalUnit, LogicalUnitOptions, buffer_pool};
