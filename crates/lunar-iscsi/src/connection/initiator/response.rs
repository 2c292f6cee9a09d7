//! SCSI Response: the end of a command. RFC 7143 §11.4.

use super::machine::InitiatorConnection;
use super::task::Task;
use super::{CommandResult, Residual, Violation};
use crate::framing::Header;
use crate::pdu::{Opcode, ResponseFlags, ScsiResponse, ServiceResponse};
use bytes::Bytes;

/// Status GOOD. SAM-5 §5.3: CHECK CONDITION is the first status that reports a failed command;
/// CONDITION MET and the intermediate statuses do not.
const STATUS_GOOD: u8 = 0x00;

impl InitiatorConnection {
    /// Checks the header of a SCSI Response, without its data segment.
    pub(super) fn on_response_header(&self, header: &Header) -> Result<(), Violation> {
        let tag = ScsiResponse::decode(&header.bhs).initiator_task_tag;
        if self.tasks.contains_key(&tag) || self.ended_tags.contains(&tag) {
            return Ok(());
        }
        Err(Violation::UnknownTag { pdu: Opcode::SCSI_RESPONSE, tag })
    }

    /// Handles a whole SCSI Response.
    pub(super) fn on_response(&mut self, header: &Header, data: &Bytes) -> Result<(), Violation> {
        let response = ScsiResponse::decode(&header.bhs);
        let tag = response.initiator_task_tag;
        let Some(task) = self.tasks.get(&tag) else {
            self.ended_tags.retain(|ended| *ended != tag);
            return Ok(());
        };
        let mut result = check(task, &response, data)?;
        if self.session.protocol_level >= 2 {
            result.status_qualifier = response.status_qualifier;
        }
        self.complete(tag, Ok(result));
        Ok(())
    }
}

/// Interprets the fields of a response that depend on each other.
fn check(task: &Task, response: &ScsiResponse, data: &Bytes) -> Result<CommandResult, Violation> {
    const PDU: Opcode = Opcode::SCSI_RESPONSE;
    let flags = response.flags;
    let completed = response.response == ServiceResponse::COMMAND_COMPLETED;
    // Residuals have no meaning otherwise. RFC 7143 §11.4.5.1.
    let (mut residual, mut read_residual) = (Residual::None, Residual::None);
    if completed {
        residual = Residuals {
            pdu: PDU,
            overflow: flags.has(ResponseFlags::OVERFLOW),
            underflow: flags.has(ResponseFlags::UNDERFLOW),
            bytes: response.residual_bytes,
        }
        .check()?;
        read_residual = Residuals {
            pdu: PDU,
            overflow: flags.has(ResponseFlags::BIDI_READ_OVERFLOW),
            underflow: flags.has(ResponseFlags::BIDI_READ_UNDERFLOW),
            bytes: response.bidi_read_residual_bytes,
        }
        .check()?;
    }
    // Some targets count R2Ts, so only a number above ours proves a loss.
    if completed && response.exp_data_sn > task.input_sn {
        let (got, expected) = (response.exp_data_sn, task.input_sn);
        return Err(Violation::DataSn { pdu: PDU, got, expected });
    }
    let data_in_bytes = if completed {
        let of_read = if task.is_bidirectional() { read_residual } else { residual };
        good_data(task, response.status, of_read)?
    } else {
        task.received.contiguous()
    };
    Ok(CommandResult {
        response: response.response,
        status: response.status,
        status_qualifier: 0,
        sense: sense(data, PDU)?,
        data_in_bytes,
        residual,
        read_residual,
    })
}

/// Number of bytes at the start of the data-in buffer that hold data. A command with status GOOD
/// must have delivered all data not covered by its residual; otherwise garbage would pass for data.
pub(super) fn good_data(task: &Task, status: u8, residual: Residual) -> Result<u32, Violation> {
    let expected = match residual {
        Residual::Underflow(bytes) => task.data_in_bytes_max.saturating_sub(bytes),
        Residual::None | Residual::Overflow(_) => task.data_in_bytes_max,
    };
    let got = task.received.contiguous();
    if status == STATUS_GOOD && (got < expected || task.received.total() != got) {
        return Err(Violation::MissingData { got, expected });
    }
    Ok(got.min(expected))
}

/// Extracts the sense data from a data segment that starts with SenseLength. RFC 7143 §11.4.7.
pub(super) fn sense(data: &Bytes, pdu: Opcode) -> Result<Bytes, Violation> {
    match data[..] {
        [] => Ok(Bytes::new()),
        [_] => Err(Violation::Malformed { pdu, what: "SenseLength is truncated" }),
        [high, low, ..] => {
            let end = 2 + usize::from(u16::from_be_bytes([high, low]));
            if end > data.len() {
                let what = "SenseLength exceeds the data segment";
                return Err(Violation::Malformed { pdu, what });
            }
            Ok(data.slice(2..end))
        }
    }
}

/// The residual fields of one direction in a header.
pub(super) struct Residuals {
    pub(super) pdu: Opcode,
    pub(super) overflow: bool,
    pub(super) underflow: bool,
    pub(super) bytes: u32,
}

impl Residuals {
    /// Interprets the fields. RFC 7143 §11.4.1: O and U exclude each other; without them the count
    /// has no meaning.
    pub(super) fn check(self) -> Result<Residual, Violation> {
        match (self.overflow, self.underflow) {
            (true, true) => Err(Violation::Malformed { pdu: self.pdu, what: "both O and U" }),
            (true, false) => Ok(Residual::Overflow(self.bytes)),
            (false, true) => Ok(Residual::Underflow(self.bytes)),
            (false, false) => Ok(Residual::None),
        }
    }
}
