//! The target role: logical units, who may see which, and running what SCSI has planned.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod error;
mod options;
mod server;
mod unit;

pub use error::Error;
pub use options::{
    Access, ChapEntry, Limits, LunOptions, Network, Portal, ServerOptions, TargetOptions,
};
pub use server::{Server, ShutdownReport};
pub use unit::{CacheMode, LogicalUnit, LogicalUnitOptions};
