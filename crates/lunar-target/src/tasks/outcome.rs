//! Results of tasks, as inputs of the connection's machine.

use super::admission::Shortage;
use super::{Planned, TaskResult};
use crate::plan_result::PlanResult;
use crate::relay::RelayedPiece;
use crate::unit::Unit;
use bytes::Bytes;
use lunar_iscsi::connection::target::{Input, Outcome};
use lunar_iscsi::framing::TaskId;
use lunar_scsi::sense::{Sense, SenseFormat, SenseKey, Status};
use std::num::NonZeroU32;
use std::sync::Arc;

/// STATUS QUALIFIER of commands that may be tried again: the nexus should wait for this many tenths
/// of a second. SAM-5 §5.3.2. Other commands of the connection have ended by then, unless the disk
/// hangs.
const RETRY_TENTHS: u16 = 1;

pub(super) fn good(data_in: Bytes, data_out_bytes: u32, fenced: bool) -> Outcome {
    let status = Status::GOOD.0;
    Outcome { status, data_in, data_out_bytes, fenced, ..Outcome::default() }
}

pub(super) fn outcome(ran: TaskResult, unit: Option<&Arc<dyn Unit>>) -> Outcome {
    let status = |status: Status| Outcome {
        status: status.0,
        data_out_bytes: ran.wants_bytes,
        fenced: ran.fenced,
        ..Outcome::default()
    };
    match ran.result {
        PlanResult::Good(data_in) => Outcome {
            data_in_bytes: ran.data_in_bytes,
            ..good(data_in, ran.wants_bytes, ran.fenced)
        },
        PlanResult::GoodRelayed(RelayedPiece { data, digest }) => Outcome {
            data_in_bytes: ran.data_in_bytes,
            data_in_digest: digest.and_then(NonZeroU32::new),
            ..good(data, ran.wants_bytes, ran.fenced)
        },
        PlanResult::Conflict => status(Status::RESERVATION_CONFLICT),
        PlanResult::Busy => {
            Outcome { data_out_bytes: ran.wants_bytes, ..retry_later(Status::BUSY) }
        }
        PlanResult::Aborted => Outcome::default(), // no response is sent
        PlanResult::Check(sense) => {
            Outcome { data_out_bytes: ran.wants_bytes, ..check_condition(unit, &sense) }
        }
        PlanResult::CheckAfter { data_in, sense } => Outcome {
            data_out_bytes: ran.wants_bytes,
            data_in_bytes: ran.data_in_bytes,
            data_in,
            ..check_condition(unit, &sense)
        },
    }
}

/// BUSY or TASK SET FULL, with the time after which there may be room.
pub(super) fn retry_later(status: Status) -> Outcome {
    Outcome { status: status.0, status_qualifier: RETRY_TENTHS, ..Outcome::default() }
}

pub(super) fn check_condition(unit: Option<&Arc<dyn Unit>>, sense: &Sense) -> Outcome {
    let bytes = match unit {
        Some(unit) => unit.encode_sense(sense),
        None => sense.encode(SenseFormat::Fixed),
    };
    Outcome {
        status: Status::CHECK_CONDITION.0,
        sense: bytes.into(),
        // The response may be the first one that reports aborted tasks.
        fenced: sense.key == SenseKey::UNIT_ATTENTION,
        ..Outcome::default()
    }
}

/// Result of a task that waited for memory in vain.
pub(super) fn no_memory(task: TaskId, planned: &Planned, why: Shortage) -> Input {
    let status = match why {
        Shortage::Connection => Status::TASK_SET_FULL,
        Shortage::Process => Status::BUSY,
    };
    let outcome = Outcome { data_out_bytes: planned.wants_bytes, ..retry_later(status) };
    Input::Done { task, outcome }
}

/// Adds to the answer to a refused command the data that it would have moved.
pub(super) fn with_data_out(input: Input, wants: u64) -> Input {
    match input {
        Input::Done { task, outcome } => {
            let data_out_bytes = u32::try_from(wants).unwrap_or(u32::MAX);
            Input::Done { task, outcome: Outcome { data_out_bytes, ..outcome } }
        }
        other => other,
    }
}
