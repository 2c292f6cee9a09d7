//! Results of plans.

use bytes::Bytes;
use lunar_scsi::sense::{Sense, SenseKey};

/// Result of a plan.
#[derive(Debug)]
pub(crate) enum PlanResult {
    /// GOOD, with this data-in.
    Good(Bytes),
    /// RESERVATION CONFLICT.
    Conflict,
    /// BUSY.
    Busy,
    /// CHECK CONDITION.
    Check(Sense),
    /// Aborted: the initiator expects no answer. Changes that had begun on the medium were
    /// finished, or look finished to later commands.
    Aborted,
}

/// INTERNAL TARGET FAILURE.
pub(crate) fn internal_failure() -> Sense {
    Sense::new(SenseKey::HARDWARE_ERROR, 0x4400)
}
