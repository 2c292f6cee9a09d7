//! The control plane: what is to be served and what is, the HTTP API, metrics.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod config;
pub mod device_url;
mod failure;
pub mod identity;
pub mod secrets;
pub mod units;

pub use failure::{Failure, FailureKind, Parts, chain};
