//! Counters of a running server, for monitoring.
//!
//! The data path counts with relaxed additions into counters of its own thread; they are added up
//! when they are read.

mod commands;
mod counters;
mod operation;
mod report;
mod target_counters;

pub(crate) use commands::Commands;
pub use operation::OperationClass;
pub use report::{CommandErrors, LunStatistics, OperationStatistics, Statistics, TargetStatistics};
pub(crate) use target_counters::Counters;
