//! Data-In: data of a command, optionally with its status. RFC 7143 §11.7.

use super::machine::{Incoming, InitiatorConnection};
use super::response::{Residuals, good_data};
use super::{CommandResult, Output, Residual, Violation};
use crate::framing::{DataDestination, Header};
use crate::pdu::{DataIn, DataInFlags, Opcode, ServiceResponse};
use bytes::Bytes;

impl InitiatorConnection {
    /// Checks the header of a Data-In and emits the destination of its data.
    pub(super) fn on_data_in(&mut self, header: &Header) -> Result<(), Violation> {
        const PDU: Opcode = Opcode::DATA_IN;
        let data_in = DataIn::decode(&header.bhs);
        let (tag, bytes) = (data_in.initiator_task_tag, data_in.data_segment_length.value());
        let has_status = data_in.flags.has(DataInFlags::STATUS);
        if has_status && !data_in.flags.has(DataInFlags::FINAL) {
            return Err(Violation::Malformed { pdu: PDU, what: "S without F" });
        }
        if has_status {
            self.on_stat_sn(data_in.stat_sn)?;
        }
        self.on_window(data_in.exp_cmd_sn, data_in.max_cmd_sn);
        let in_order = self.session.data_pdu_in_order && self.session.data_sequence_in_order;
        let Some(task) = self.tasks.get_mut(&tag) else {
            return self.on_late_data_in(tag, bytes, has_status);
        };
        if has_status && task.is_bidirectional() {
            return Err(Violation::Malformed { pdu: PDU, what: "S for a bidirectional command" });
        }
        if data_in.data_sn != task.input_sn {
            let (got, expected) = (data_in.data_sn, task.input_sn);
            return Err(Violation::DataSn { pdu: PDU, got, expected });
        }
        task.input_sn = task.input_sn.wrapping_add(1);
        let offset = data_in.buffer_offset_bytes;
        task.received
            .add(offset, bytes, task.data_in_bytes_max, in_order)
            .map_err(|misfit| Violation::Malformed { pdu: PDU, what: misfit.as_str() })?;
        let id = task.id;
        let streamed = task.stream.is_some().then_some((id, offset, bytes));
        let destination = match streamed {
            Some(_) => DataDestination::Stream { task: id, offset_bytes: offset },
            None => DataDestination::Task {
                task: id,
                offset_bytes: offset,
                buffer_bytes: task.data_in_bytes_max,
            },
        };
        let status = has_status.then_some(data_in);
        if bytes == 0 {
            return self.data_in_done(tag, status);
        }
        self.incoming = Incoming::DataIn { tag, status, streamed, over: false };
        self.outputs.push_back(Output::Receive(destination));
        Ok(())
    }

    /// Ignores data for a task that a management function ended; other unknown tags are violations.
    fn on_late_data_in(&mut self, tag: u32, bytes: u32, has_status: bool) -> Result<(), Violation> {
        if !self.ended_tags.contains(&tag) {
            return Err(Violation::UnknownTag { pdu: Opcode::DATA_IN, tag });
        }
        if has_status {
            self.ended_tags.retain(|ended| *ended != tag);
        }
        if bytes > 0 {
            self.incoming = Incoming::Discard(Opcode::DATA_IN);
            self.outputs.push_back(Output::Receive(DataDestination::Discard));
        }
        Ok(())
    }

    /// Handles a complete Data-In; one with a status ends the command. RFC 7143 §11.7.3: there is
    /// no sense data, and the residual fields are those of a response.
    pub(super) fn data_in_done(
        &mut self,
        tag: u32,
        status: Option<DataIn>,
    ) -> Result<(), Violation> {
        let (Some(status), Some(task)) = (status, self.tasks.get(&tag)) else { return Ok(()) };
        let residual = Residuals {
            pdu: Opcode::DATA_IN,
            overflow: status.flags.has(DataInFlags::OVERFLOW),
            underflow: status.flags.has(DataInFlags::UNDERFLOW),
            bytes: status.residual_bytes,
        }
        .check()?;
        let data_in_bytes = good_data(task, status.status, residual)?;
        let result = CommandResult {
            status_qualifier: 0,
            response: ServiceResponse::COMMAND_COMPLETED,
            status: status.status,
            sense: Bytes::new(),
            data_in_bytes,
            residual,
            read_residual: Residual::None,
        };
        self.complete(tag, Ok(result));
        Ok(())
    }
}
