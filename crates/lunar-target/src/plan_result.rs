//! Results of commands at their units.

use crate::relay::RelayedPiece;
use bytes::Bytes;
use lunar_scsi::sense::{Sense, SenseKey};

/// Result of the work of a command.
#[derive(Debug)]
pub enum PlanResult {
    /// GOOD, with this data-in.
    Good(Bytes),
    /// GOOD, with this data-in, or the last piece of it, which a relay has moved.
    GoodRelayed(RelayedPiece),
    /// RESERVATION CONFLICT.
    Conflict,
    /// BUSY.
    Busy,
    /// CHECK CONDITION.
    Check(Sense),
    /// CHECK CONDITION, with the data-in that the command returns all the same.
    CheckAfter {
        /// The data-in.
        data_in: Bytes,
        /// The reason.
        sense: Sense,
    },
    /// Aborted: the initiator expects no answer. Changes that had begun on the medium were
    /// finished, or look finished to later commands.
    Aborted,
}

/// INTERNAL TARGET FAILURE.
pub(crate) fn internal_failure() -> Sense {
    Sense::new(SenseKey::HARDWARE_ERROR, 0x4400)
}
