//! PDUs of a target besides the data and status of commands: answers to other requests, NOP-In,
//! Asynchronous Message, Reject.

use super::machine::{Incoming, InitiatorConnection};
use super::request::{PingPurpose, Queued, Request, TextPurpose};
use super::response::sense;
use super::task::Task;
use super::{CloseReason, Event, LogoutReply, Output, RequestFailure, Violation};
use crate::connection::target::TargetRecord;
use crate::framing::{DataDestination, Header, TaskId};
use crate::pdu::{
    AsyncEvent, AsyncMessage, BasicHeader, FirstByte, HEADER_BYTES, LogoutReason, LogoutResponse,
    ManagementFunction, ManagementResponse, NopIn, Opcode, Reject, ScsiCommand, TAG_RESERVED,
    TaskManagementResponse, TextFlags, TextResponse,
};
use crate::session::initiator::{ConnectionEnding, ToSession};
use crate::text::TaskReporting;
use alloc::string::String;
use alloc::vec::Vec;
use bytes::Bytes;
use core::time::Duration;
use lunar_wire::{Lun, SerialNumber, Time};

/// Maximum number of Text Responses in one exchange; empty ones do not count against the byte
/// limit.
const TEXT_ROUNDS_MAX: u32 = 256;

impl InitiatorConnection {
    /// Handles the header of a NOP-In; an answer to our ping consumes a StatSN, a ping of the
    /// target does not. RFC 7143 §11.19.
    pub(super) fn on_nop_in_header(&mut self, header: &Header) -> Result<(), Violation> {
        let nop = NopIn::decode(&header.bhs);
        self.on_window(nop.exp_cmd_sn, nop.max_cmd_sn);
        let tag = nop.initiator_task_tag;
        if tag != TAG_RESERVED {
            self.on_stat_sn(nop.stat_sn)?;
            return match self.requests.get(&tag) {
                Some(Request::Ping { .. }) => Ok(()),
                _ => Err(Violation::UnknownTag { pdu: Opcode::NOP_IN, tag }),
            };
        }
        self.on_next_stat_sn(nop.stat_sn)?;
        // A target that pings faster than we can answer gets fewer answers.
        let room = self.open_requests() < 2 * self.limits.requests_max as usize;
        if nop.target_transfer_tag != TAG_RESERVED && room {
            let target_transfer_tag = nop.target_transfer_tag;
            self.enqueue(Queued::Answer { lun: nop.lun, target_transfer_tag });
        }
        Ok(())
    }

    /// Handles a whole answer to a ping.
    pub(super) fn on_pong(&mut self, header: &Header, echo: &Bytes) -> Result<(), Violation> {
        let tag = NopIn::decode(&header.bhs).initiator_task_tag;
        if tag == TAG_RESERVED {
            return Ok(());
        }
        let Some(Request::Ping { purpose, data }) = self.take_request(tag) else { return Ok(()) };
        let echoed = data.len().min(self.connection.receive_data_segment_bytes_max as usize);
        if data[..echoed] != echo[..] {
            let what = "the target returned the data of a ping changed";
            return Err(Violation::Malformed { pdu: Opcode::NOP_IN, what });
        }
        match purpose {
            PingPurpose::Caller(id) => self.outputs.push_back(Output::Pong { id, result: Ok(()) }),
            PingPurpose::KeepAlive => self.timers.pinged = None,
            PingPurpose::FillGap(_) => {}
        }
        Ok(())
    }

    /// Handles the end of a task management function. RFC 7143 §11.6.
    pub(super) fn on_management(&mut self, header: &Header) -> Result<(), Violation> {
        const PDU: Opcode = Opcode::TASK_MANAGEMENT_RESPONSE;
        let answer = TaskManagementResponse::decode(&header.bhs);
        let tag = answer.initiator_task_tag;
        let Some(Request::Management { id, function, lun, cmd_sn, referenced_task_tag }) =
            self.take_request(tag)
        else {
            return Err(Violation::UnknownTag { pdu: PDU, tag });
        };
        if answer.response == ManagementResponse::FUNCTION_COMPLETE {
            if function == ManagementFunction::ABORT_TASK
                && self.tasks.contains_key(&referenced_task_tag)
            {
                self.complete(referenced_task_tag, Err(RequestFailure::Aborted));
            }
            if function.is_multi_task() {
                let lun = (!function.is_of_all_units()).then_some(lun);
                self.end_tasks_everywhere(lun, cmd_sn);
            }
        }
        let level_2 = self.session.protocol_level >= 2;
        let information = if level_2 { answer.information } else { [0; 3] };
        self.managed_with(id, function, Ok(answer.response), information);
        Ok(())
    }

    /// True with TaskReporting=FastAbort.
    pub(super) fn has_fast_abort(&self) -> bool {
        self.session.task_reporting == TaskReporting::FastAbort
    }

    /// Holds back Data-Out of the tasks that a function covers. RFC 7143 §4.2.3.4 a): the initiator
    /// "MUST NOT send any more Data-Out PDUs for affected tasks on the issuing connection … once
    /// the TMF is sent". If the function fails, the tasks continue.
    pub(super) fn pause(&mut self, by: TaskId, lun: Option<Lun>, before: SerialNumber) {
        for task in self.tasks.values_mut().filter(|task| is_covered(task, lun, before)) {
            task.paused_by = Some(by);
        }
    }

    fn end_tasks_everywhere(&mut self, lun: Option<Lun>, before: SerialNumber) {
        self.end_tasks(lun, before);
        self.outputs.push_back(Output::ToSession(ToSession::TasksEnded { lun, before }));
    }

    /// Ends the tasks of this connection that a completed function covers. PDUs that the target
    /// sent for them earlier may still arrive if the function ran on another connection.
    pub(super) fn end_tasks(&mut self, lun: Option<Lun>, before: SerialNumber) {
        let tags = self.tags_of(|task| is_covered(task, lun, before));
        self.end_tagged(tags);
    }

    fn end_tagged(&mut self, tags: Vec<u32>) {
        for tag in tags {
            match &mut self.incoming {
                // Data is arriving in its buffer; the task ends when the segment is complete.
                Incoming::DataIn { tag: busy, over, .. } if *busy == tag => *over = true,
                _ => self.end_task(tag),
            }
        }
    }

    /// Ends one task whose PDUs of the target may still arrive.
    pub(super) fn end_task(&mut self, tag: u32) {
        /// Maximum number of remembered tags of ended tasks; late PDUs for older tags are
        /// violations.
        const ENDED_TAGS_MAX: usize = 1024;
        self.complete(tag, Err(RequestFailure::Aborted));
        if self.ended_tags.len() >= ENDED_TAGS_MAX {
            self.ended_tags.pop_front();
        }
        self.ended_tags.push_back(tag);
    }

    /// Handles one Text Response of an exchange. RFC 7143 §11.11.
    pub(super) fn on_text(&mut self, header: &Header, text: &Bytes) -> Result<(), Violation> {
        const PDU: Opcode = Opcode::TEXT_RESPONSE;
        let answer = TextResponse::decode(&header.bhs);
        let tag = answer.initiator_task_tag;
        let bytes_max = self.limits.text_bytes_max;
        let Some(Request::Text { gathered, rounds, .. }) = self.requests.get_mut(&tag) else {
            return Err(Violation::UnknownTag { pdu: PDU, tag });
        };
        *rounds += 1;
        if gathered.len() + text.len() > bytes_max as usize || *rounds > TEXT_ROUNDS_MAX {
            return Err(Violation::TextTooLong { bytes_max });
        }
        gathered.extend_from_slice(text);
        let (is_final, continues) =
            (answer.flags.has(TextFlags::FINAL), answer.flags.has(TextFlags::CONTINUE));
        let target_transfer_tag = answer.target_transfer_tag;
        match (is_final, target_transfer_tag) {
            (true, _) if continues => Err(Violation::Malformed { pdu: PDU, what: "both F and C" }),
            (true, _) => {
                self.text_done(tag);
                Ok(())
            }
            (false, TAG_RESERVED) => {
                Err(Violation::Malformed { pdu: PDU, what: "neither F nor a Target Transfer Tag" })
            }
            (false, _) => {
                self.enqueue(Queued::MoreText { tag, lun: answer.lun, target_transfer_tag });
                Ok(())
            }
        }
    }

    fn text_done(&mut self, tag: u32) {
        let Some(Request::Text { purpose, gathered, .. }) = self.take_request(tag) else { return };
        match purpose {
            TextPurpose::Caller(id) => {
                let result = Ok(Bytes::from(gathered));
                self.outputs.push_back(Output::Text { id, result });
            }
            TextPurpose::SendTargets(id) => {
                let result = Ok(target_records(&gathered));
                self.outputs.push_back(Output::Targets { id, result });
            }
            // An empty request proposes nothing, so the answer changes nothing.
            TextPurpose::Renegotiate => {}
        }
        self.next_text();
    }

    /// Handles the end of a logout. RFC 7143 §11.15.
    pub(super) fn on_logout(&mut self, header: &Header) -> Result<(), Violation> {
        const PDU: Opcode = Opcode::LOGOUT_RESPONSE;
        let answer = LogoutResponse::decode(&header.bhs);
        let tag = answer.initiator_task_tag;
        let Some(Request::Logout { reason, cid, by_caller }) = self.take_request(tag) else {
            return Err(Violation::UnknownTag { pdu: PDU, tag });
        };
        self.timers.logout_by = None;
        if by_caller {
            let reply = LogoutReply {
                result: answer.response,
                time_to_wait_seconds: answer.time_to_wait_seconds,
                time_to_retain_seconds: answer.time_to_retain_seconds,
            };
            self.outputs.push_back(Output::LoggedOut { result: Ok(reply) });
        }
        let ending = match reason {
            LogoutReason::CLOSE_SESSION => ConnectionEnding::SessionLogout,
            _ if cid != self.cid => return Ok(()),
            _ => ConnectionEnding::ConnectionLogout,
        };
        self.close(CloseReason::LoggedOut, ending, RequestFailure::LoggedOut);
        Ok(())
    }

    /// Handles an Asynchronous Message. RFC 7143 §11.9.
    pub(super) fn on_async(
        &mut self,
        now: Time,
        header: &Header,
        data: &Bytes,
    ) -> Result<(), Violation> {
        let message = AsyncMessage::decode(&header.bhs);
        let is_scsi = message.event == AsyncEvent::SCSI_EVENT;
        self.outputs.push_back(Output::Event(Event {
            event: message.event,
            lun: message.lun,
            vendor_code: message.vendor_code,
            parameters: [message.parameter_1, message.parameter_2, message.parameter_3],
            sense: if is_scsi { sense(data, Opcode::ASYNC_MESSAGE)? } else { Bytes::new() },
        }));
        match message.event {
            AsyncEvent::LOGOUT_REQUESTED => {
                // Logs out one second before the time limit of the target, even with open requests.
                let patience = Duration::from_secs(message.parameter_3.into());
                let spare = Duration::from_secs(1).min(patience / 2);
                self.drain(now.after(patience - spare));
            }
            AsyncEvent::RENEGOTIATE if !self.text_is_pending() => {
                self.enqueue(Queued::Text {
                    purpose: TextPurpose::Renegotiate,
                    text: Bytes::new(),
                });
            }
            AsyncEvent::TASKS_TERMINATED if self.has_fast_abort() => self.on_terminated(&message),
            // The target carries out events 2 and 3; when the connection ends, all requests are
            // reported.
            _ => {}
        }
        Ok(())
    }

    /// Ends the tasks that the target terminated. RFC 7143 §11.9.1: "all active tasks for a LU with
    /// a matching LUN field … are being terminated": nothing more is sent for these tasks, and the
    /// message is acknowledged by a NOP-Out with its LUN. Tasks that the target had not received
    /// when it sent the message are not affected.
    fn on_terminated(&mut self, message: &AsyncMessage) {
        let lun = message.lun;
        let tags =
            self.tags_of(|task| same_unit(task.lun, lun) && task.cmd_sn.before(message.exp_cmd_sn));
        self.end_tagged(tags);
        self.enqueue(Queued::Answer { lun, target_transfer_tag: TAG_RESERVED });
    }

    /// Handles a Reject by the type of the rejected header in its data segment.
    /// RFC 7143 §7.3, §11.17.
    pub(super) fn on_reject(&mut self, header: &Header, data: &Bytes) -> Result<(), Violation> {
        let reject = Reject::decode(&header.bhs);
        let malformed = |what| Violation::Malformed { pdu: Opcode::REJECT, what };
        let Some(bad) = data.first_chunk::<HEADER_BYTES>() else {
            return Err(malformed("the header of the rejected PDU is missing"));
        };
        let basic = BasicHeader::decode(bad);
        let tag = basic.initiator_task_tag;
        let failure = RequestFailure::Rejected(reject.reason);
        match FirstByte(bad[0]).opcode() {
            Opcode::SCSI_COMMAND => {
                let command = ScsiCommand::decode(bad);
                let is_ours = |task: &Task| task.cmd_sn == command.cmd_sn;
                if !self.tasks.get(&tag).is_some_and(is_ours) {
                    return Ok(());
                }
                self.complete(tag, Err(failure));
                let counted = command.cmd_sn.before(reject.exp_cmd_sn);
                if !command.first.is_immediate() && !counted {
                    let purpose = PingPurpose::FillGap(command.cmd_sn);
                    self.enqueue(Queued::Ping { purpose, data: Bytes::new() });
                }
            }
            // A status of the task follows. RFC 7143 §7.3.
            Opcode::DATA_OUT => {}
            _ if tag == TAG_RESERVED => {}
            _ => {
                if let Some(request) = self.take_request(tag) {
                    self.fail_request(request, failure);
                    self.next_text();
                }
            }
        }
        Ok(())
    }

    /// Directs the data segment of an answer to the state machine.
    pub(super) fn receive_control(&mut self, header: Header) {
        self.incoming = Incoming::Control(header);
        self.outputs.push_back(Output::Receive(DataDestination::Control));
    }
}

/// True if a function on several tasks covers this task.
fn is_covered(task: &Task, lun: Option<Lun>, before: SerialNumber) -> bool {
    lun.is_none_or(|lun| same_unit(lun, task.lun)) && task.is_older(before)
}

/// True if both LUN fields address the same unit, in whatever format.
fn same_unit(one: Lun, other: Lun) -> bool {
    one == other || one.form() == other.form() && one.form() != lunar_wire::LunForm::Other
}

/// Parses the answer to SendTargets. RFC 7143 Appendix C: each TargetName is followed by its
/// addresses. Malformed parts are skipped.
fn target_records(text: &[u8]) -> Vec<TargetRecord> {
    let mut records: Vec<TargetRecord> = Vec::new();
    for pair in text.split(|byte| *byte == 0) {
        let Ok(pair) = core::str::from_utf8(pair) else { continue };
        match (pair.split_once('='), records.last_mut()) {
            (Some(("TargetName", name)), _) => {
                records.push(TargetRecord { name: String::from(name), addresses: Vec::new() });
            }
            (Some(("TargetAddress", address)), Some(record)) => {
                if let Some((address, tag)) = address.rsplit_once(',')
                    && let Ok(tag) = tag.parse()
                {
                    record.addresses.push((String::from(address), tag));
                }
            }
            _ => {}
        }
    }
    records
}
