//! A SCSI command that was sent and has no status yet.

use super::{Command, RequestFailure};
use crate::connection::coverage::Coverage;
use crate::framing::TaskId;
use crate::framing::ahs::CDB_BYTES_MAX;
use bytes::Bytes;
use lunar_wire::{Lun, SerialNumber};

/// State of one command between its request and its response.
#[derive(Debug)]
pub(super) struct Task {
    pub(super) id: TaskId,
    pub(super) lun: Lun,
    pub(super) cmd_sn: SerialNumber,
    pub(super) immediate: bool,
    pub(super) data_out: Bytes,
    /// Ranges of data-out requested by R2Ts, plus the unsolicited data at the start.
    pub(super) requested: Coverage,
    /// Number of R2Ts whose data is not completely sent.
    pub(super) r2ts_open: u32,
    /// Id of the task management function that may end this task: with FastAbort no more data is
    /// sent until the function is answered. RFC 7143 §4.2.3.4 a).
    pub(super) paused_by: Option<TaskId>,
    pub(super) data_in_bytes_max: u32,
    pub(super) received: Coverage,
    /// The next DataSN or R2TSN: one sequence for both. RFC 7143 §4.2.2.4.
    pub(super) input_sn: u32,
}

impl Task {
    /// Creates a task that was just sent; `unsolicited_bytes` of its data-out are sent or due
    /// without an R2T.
    pub(super) fn new(command: Command, cmd_sn: SerialNumber, unsolicited_bytes: u32) -> Self {
        Self {
            id: command.id,
            lun: command.lun,
            cmd_sn,
            immediate: command.immediate,
            data_out: command.data_out,
            requested: Coverage::from_start(unsolicited_bytes),
            r2ts_open: 0,
            paused_by: None,
            data_in_bytes_max: command.data_in_bytes_max,
            received: Coverage::default(),
            input_sn: 0,
        }
    }

    /// Length of the data-out; checked to fit when the command was accepted.
    pub(super) fn data_out_bytes(&self) -> u32 {
        self.data_out.len() as u32
    }

    /// True if the command moves data in both directions.
    pub(super) fn is_bidirectional(&self) -> bool {
        !self.data_out.is_empty() && self.data_in_bytes_max > 0
    }

    /// True if a function on several tasks, sent with CmdSN `before`, covers this task.
    ///
    /// An immediate command carries the CmdSN of the next command, so an immediate command sent
    /// just before the function has the same CmdSN as the function.
    pub(super) fn is_older(&self, before: SerialNumber) -> bool {
        self.cmd_sn.before(before) || self.immediate && self.cmd_sn == before
    }
}

/// One sequence of Data-Out: unsolicited, or requested by one R2T.
#[derive(Clone, Copy, Debug)]
pub(super) struct Burst {
    pub(super) initiator_task_tag: u32,
    /// The reserved tag for unsolicited data.
    pub(super) target_transfer_tag: u32,
    /// LUN of the R2T; zero for unsolicited data.
    pub(super) lun: Lun,
    pub(super) at_bytes: u32,
    pub(super) end_bytes: u32,
    pub(super) data_sn: u32,
}

/// Checks that the command can be encoded.
pub(super) fn checked(command: &Command) -> Result<(), RequestFailure> {
    if command.cdb.is_empty() || command.cdb.len() > CDB_BYTES_MAX {
        return Err(RequestFailure::Refused("a CDB must have 1 to 260 bytes"));
    }
    if u32::try_from(command.data_out.len()).is_err() {
        return Err(RequestFailure::Refused(
            "the data-out is longer than its length field can represent",
        ));
    }
    Ok(())
}
