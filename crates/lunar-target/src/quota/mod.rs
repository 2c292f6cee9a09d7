//! Limits of commands and of bytes per second: for a unit, for an initiator at a target, and for an
//! initiator at a unit. Decision 073.
//!
//! A command beyond a limit is not refused, but waits: before it enters the task set of its unit,
//! and before more of its data is requested. Commands of one session for one unit wait in their
//! order.

mod bucket;
mod charge;
mod fair_queue;
mod fair_scheduler;
mod limit;
mod rate_limiter;
mod session_queue;
mod targets;

pub(crate) use charge::QuotaCharge;
pub use limit::{BYTES_PER_SECOND_MIN, Cost, IOPS_MIN, InitiatorLimit, Limit};
pub(crate) use rate_limiter::{InitiatorKey, InitiatorLimiters};
pub(crate) use session_queue::{QueuedCommand, SessionQuota, UnitQuota};
pub(crate) use targets::TargetQuotas;
