//! A SCSI command that was sent and has no status yet.

use super::data_out_stream::DataOutStream;
use super::{Command, CommandResult, RequestFailure};
use crate::connection::coverage::Coverage;
use crate::framing::TaskId;
use crate::framing::ahs::CDB_BYTES_MAX;
use crate::pdu::{DataOut, FinalFlag, FirstByte, Opcode};
use alloc::boxed::Box;
use bytes::Bytes;
use lunar_wire::{Lun, SerialNumber, U24};

/// State of one command between its request and its response.
#[derive(Debug)]
pub(super) struct Task {
    pub(super) id: TaskId,
    pub(super) lun: Lun,
    pub(super) cmd_sn: SerialNumber,
    pub(super) immediate: bool,
    /// Data-out; for a streaming command, the first part of it.
    pub(super) data_out: Bytes,
    /// Length of the data-out.
    pub(super) data_out_bytes: u32,
    /// The rest of the data-out of a streaming command; `None` for other commands.
    pub(super) stream: Option<Box<DataOutStream>>,
    /// True while the command is being aborted because its caller did not provide its data.
    pub(super) is_data_missing: bool,
    /// True once an open PDU was ended with a wrong digest because the command is being aborted:
    /// the target may end the command for the digest before it receives the abort.
    pub(super) is_digest_falsified: bool,
    /// Ranges of data-out requested by R2Ts, plus the unsolicited data at the start.
    pub(super) requested: Coverage,
    /// Number of R2Ts whose data is not completely sent.
    pub(super) r2ts_open: u32,
    /// Id of the task management function that may end this task: with FastAbort, no more data is
    /// sent until the function is answered (RFC 7143 §4.2.3.4 a)). For an ABORT TASK of a streaming
    /// command, no data is sent while the function is queued without a CmdSN.
    pub(super) paused_by: Option<TaskId>,
    pub(super) data_in_bytes_max: u32,
    pub(super) received: Coverage,
    /// The next DataSN or R2TSN: one sequence for both. RFC 7143 §4.2.2.4.
    pub(super) input_sn: u32,
}

impl Task {
    /// Creates a task that was just sent, with data-out of `data_out_bytes` bytes;
    /// `unsolicited_bytes` of them are sent or due without an R2T.
    pub(super) fn new(
        command: Command,
        data_out_bytes: u32,
        cmd_sn: SerialNumber,
        unsolicited_bytes: u32,
    ) -> Self {
        Self {
            id: command.id,
            lun: command.lun,
            cmd_sn,
            immediate: command.immediate,
            data_out: command.data_out,
            data_out_bytes,
            stream: None,
            is_data_missing: false,
            is_digest_falsified: false,
            requested: Coverage::from_start(unsolicited_bytes),
            r2ts_open: 0,
            paused_by: None,
            data_in_bytes_max: command.data_in_bytes_max,
            received: Coverage::default(),
            input_sn: 0,
        }
    }

    /// Number of bytes of the data-out that were given with the command; checked to fit when it was
    /// accepted.
    pub(super) fn prefix_bytes(&self) -> u32 {
        self.data_out.len() as u32
    }

    /// Returns the result of a streaming command whose response is `result`. A response that the
    /// abort of the command caused is replaced by the error of the abort.
    pub(super) fn result_of_stream(
        &self,
        result: Result<CommandResult, RequestFailure>,
    ) -> Result<CommandResult, RequestFailure> {
        match result {
            _ if self.is_data_missing => Err(RequestFailure::DataMissing),
            Ok(result) if self.is_digest_falsified && is_aborted_command(&result.sense) => {
                Err(RequestFailure::Aborted)
            }
            result => result,
        }
    }

    /// True if the command moves data in both directions.
    pub(super) fn is_bidirectional(&self) -> bool {
        self.data_out_bytes > 0 && self.data_in_bytes_max > 0
    }

    /// True if a function on several tasks, sent with CmdSN `before`, covers this task.
    ///
    /// An immediate command carries the CmdSN of the next command, so an immediate command sent
    /// just before the function has the same CmdSN as the function.
    pub(super) fn is_older(&self, before: SerialNumber) -> bool {
        self.cmd_sn.before(before) || self.immediate && self.cmd_sn == before
    }
}

/// True if the sense data, of fixed or descriptor format, has the key ABORTED COMMAND, which
/// targets report for a wrong data digest (RFC 7143 §11.4.7.2).
fn is_aborted_command(sense: &[u8]) -> bool {
    let key = match sense.first().map(|code| code & 0x7f) {
        Some(0x70 | 0x71) => sense.get(2),
        Some(0x72 | 0x73) => sense.get(1),
        _ => None,
    };
    key.is_some_and(|key| key & 0x0f == 0x0b)
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

impl Burst {
    /// Builds the header of the next PDU, which holds `bytes` bytes.
    pub(super) fn header(&self, bytes: u32, exp_stat_sn: SerialNumber) -> DataOut {
        let is_last = self.at_bytes + bytes == self.end_bytes;
        DataOut {
            first: FirstByte::plain(Opcode::DATA_OUT),
            flags: FinalFlag::NONE.with_if(is_last, FinalFlag::FINAL),
            total_ahs_words: 0,
            data_segment_length: U24::truncate(bytes),
            lun: self.lun,
            initiator_task_tag: self.initiator_task_tag,
            target_transfer_tag: self.target_transfer_tag,
            exp_stat_sn,
            data_sn: self.data_sn,
            buffer_offset_bytes: self.at_bytes,
        }
    }

    /// Advances past a PDU of `bytes` bytes.
    pub(super) fn advance(&mut self, bytes: u32) {
        self.at_bytes += bytes;
        self.data_sn = self.data_sn.wrapping_add(1);
    }
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
