//! Limits of commands and of bytes a second: for a unit, for an initiator at a target, and for an
//! initiator at a unit. Decision 073.
//!
//! A command over its share is not refused, it waits: before it enters the task set of its unit,
//! before more of its data is asked for, in order with its session's other commands for that unit.

mod bucket;
mod cost;
mod dues;
mod fair_queue;
mod gate;
mod limit;
mod line;
mod targets;
mod turns;

pub(crate) use cost::{cost, prefetch_bytes_max};
pub(crate) use dues::Dues;
pub(crate) use gate::{InitiatorGates, InitiatorKey};
pub(crate) use limit::Cost;
pub use limit::{BYTES_PER_SECOND_MIN, IOPS_MIN, InitiatorLimit, Limit};
pub(crate) use line::{InLine, SessionQuota, UnitQuota};
pub(crate) use targets::TargetQuotas;
