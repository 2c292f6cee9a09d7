//! Requests of an initiator: each waits in a queue for its CmdSN and tag from the session, is sent,
//! and waits for its response.

use super::data_out_stream::DataOutStream;
use super::machine::InitiatorConnection;
use super::submit::{names_one_task, without_task};
use super::task::{Burst, Task};
use super::write::InitialData;
use super::{Command, Management, Output, RequestFailure};
use crate::framing::ahs::encode_command;
use crate::framing::{Pdu, TaskId};
use crate::pdu::{
    CommandFlags, FinalFlag, FirstByte, LogoutReason, LogoutRequest, ManagementFunction,
    ManagementResponse, NopOut, Opcode, ScsiCommand, TAG_RESERVED, TaskManagementRequest,
    TextFlags, TextRequest,
};
use crate::session::initiator::ToSession;
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use bytes::Bytes;
use lunar_wire::{Lun, SerialNumber, Time, U24};

/// Data-out of a command whose data moves in pieces.
#[derive(Clone, Copy, Debug)]
pub(super) struct StreamedDataOut {
    /// Its length.
    pub(super) bytes: u32,
    /// Digest of the data that came with the command, if it is one segment.
    pub(super) prefix_digest: Option<u32>,
}

/// A request that waits for its CmdSN and Initiator Task Tag.
#[derive(Debug)]
pub(super) enum Queued {
    /// A command, and the ABORT TASK functions that wait for its withdrawal.
    Command {
        command: Command,
        /// The data-out if its data moves in pieces.
        streams: Option<StreamedDataOut>,
        aborts: Vec<Management>,
    },
    Management(Management),
    Ping {
        purpose: PingPurpose,
        data: Bytes,
    },
    /// The answer to a ping of the target, or the acknowledgement of an event: a NOP-Out without a
    /// tag.
    Answer {
        lun: Lun,
        target_transfer_tag: u32,
    },
    Text {
        purpose: TextPurpose,
        text: Bytes,
    },
    /// Continues a text exchange under its tag.
    MoreText {
        tag: u32,
        lun: Lun,
        target_transfer_tag: u32,
    },
    Logout {
        reason: LogoutReason,
        cid: u16,
        /// True if the caller requested it, and gets its result.
        by_caller: bool,
    },
}

/// Requests that wait for their CmdSN and tag, each with a ticket. Tickets count up, and the
/// session mostly grants in that order, so the first entry is nearly always the one that is looked
/// up.
#[derive(Debug, Default)]
pub(super) struct RequestQueue {
    entries: VecDeque<(u64, Queued)>,
    next_ticket: u64,
}

impl RequestQueue {
    /// Adds a request and returns its ticket.
    fn add(&mut self, request: Queued) -> u64 {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.entries.push_back((ticket, request));
        ticket
    }

    /// Removes the request with this ticket; `None` if there is none.
    fn remove(&mut self, ticket: u64) -> Option<Queued> {
        let at = match self.entries.front() {
            Some((first, _)) if *first == ticket => 0,
            _ => self.entries.binary_search_by_key(&ticket, |(other, _)| *other).ok()?,
        };
        self.entries.remove(at).map(|(_, request)| request)
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Iterates over tickets and requests, oldest first.
    pub(super) fn iter(&self) -> impl Iterator<Item = &(u64, Queued)> {
        self.entries.iter()
    }

    /// Iterates mutably over tickets and requests, oldest first.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut (u64, Queued)> {
        self.entries.iter_mut()
    }

    /// Removes all requests, oldest first.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = Queued> + use<> {
        core::mem::take(&mut self.entries).into_iter().map(|(_, request)| request)
    }
}

/// The purpose of a ping.
#[derive(Clone, Copy, Debug)]
pub(super) enum PingPurpose {
    /// Requested by the caller.
    Caller(TaskId),
    /// Checks whether the target is alive.
    KeepAlive,
    /// Sends a NOP-Out with the CmdSN of a command that the target rejected without counting it: a
    /// gap would block all later commands. RFC 7143 §7.3.
    FillGap(SerialNumber),
}

/// The purpose of a text exchange.
#[derive(Clone, Copy, Debug)]
pub(super) enum TextPurpose {
    Caller(TaskId),
    SendTargets(TaskId),
    /// The target requested a negotiation (Asynchronous Message 4).
    Renegotiate,
}

/// A request other than a SCSI command that was sent and waits for its answer.
#[derive(Debug)]
pub(super) enum Request {
    Management {
        id: TaskId,
        function: ManagementFunction,
        lun: Lun,
        cmd_sn: SerialNumber,
        /// Initiator Task Tag of the task that ABORT TASK refers to, else [`TAG_RESERVED`].
        referenced_task_tag: u32,
    },
    Ping {
        purpose: PingPurpose,
        data: Bytes,
    },
    Text {
        purpose: TextPurpose,
        gathered: Vec<u8>,
        rounds: u32,
    },
    Logout {
        reason: LogoutReason,
        cid: u16,
        /// True if the caller requested it, and gets its result.
        by_caller: bool,
    },
}

impl InitiatorConnection {
    /// Queues a request and requests its CmdSN and tag from the session.
    pub(super) fn enqueue(&mut self, request: Queued) {
        let immediate = match &request {
            Queued::Command { command, .. } => command.immediate,
            Queued::Ping { purpose: PingPurpose::FillGap(_), .. } => true,
            Queued::Management(_) | Queued::Ping { .. } | Queued::Answer { .. } => true,
            Queued::Logout { .. } => true,
            Queued::Text { .. } | Queued::MoreText { .. } => false,
        };
        let tag = !matches!(request, Queued::Answer { .. } | Queued::MoreText { .. });
        let ticket = self.queue.add(request);
        self.outputs.push_back(Output::ToSession(ToSession::Request { ticket, immediate, tag }));
    }

    /// Sends the request whose CmdSN and tag the session granted.
    pub(super) fn granted(&mut self, now: Time, ticket: u64, cmd_sn: SerialNumber, tag: u32) {
        match self.queue.remove(ticket) {
            // Immediate requests only, which leave no gap.
            Some(request) if self.is_logging_out() => {
                if tag != TAG_RESERVED {
                    self.free_tag(tag);
                }
                self.fail_queued(request, RequestFailure::LoggedOut);
            }
            Some(Queued::Command { command, streams, aborts }) => {
                self.send_command(command, streams, cmd_sn, tag);
                // The withdrawal came too late, so the command is aborted like any sent one.
                aborts.into_iter().for_each(|abort| self.enqueue_function(abort));
            }
            Some(Queued::Management(management)) => self.send_management(management, cmd_sn, tag),
            Some(Queued::Ping { purpose, data }) => self.send_ping(now, purpose, data, cmd_sn, tag),
            Some(Queued::Answer { lun, target_transfer_tag }) => {
                let nop = self.nop_out(lun, target_transfer_tag, cmd_sn, TAG_RESERVED);
                self.send(Pdu::new(nop.encode()));
            }
            Some(Queued::Text { purpose, text }) => self.send_text(purpose, text, cmd_sn, tag),
            Some(Queued::MoreText { tag, lun, target_transfer_tag }) => {
                let header = self.text_request(tag, lun, target_transfer_tag, cmd_sn);
                self.send(Pdu::new(header.encode()));
            }
            Some(Queued::Logout { reason, cid, by_caller }) => {
                self.send_logout(now, Queued::Logout { reason, cid, by_caller }, cmd_sn, tag);
            }
            None => {}
        }
    }

    /// Fails a request that the session refused: too many wait, it was withdrawn, or the session
    /// ends.
    pub(super) fn refused(&mut self, ticket: u64) {
        let why = RequestFailure::Refused("the session accepts no more requests");
        match self.queue.remove(ticket) {
            Some(Queued::Command { command, aborts, .. }) => {
                let failure = if aborts.is_empty() { why } else { RequestFailure::Aborted };
                self.outputs.push_back(Output::Completed { id: command.id, result: Err(failure) });
                for abort in aborts {
                    self.report_management(abort.id, Ok(ManagementResponse::FUNCTION_COMPLETE));
                }
            }
            Some(Queued::MoreText { tag, .. }) => {
                if let Some(request) = self.requests.remove(&tag) {
                    self.free_tag(tag);
                    self.fail_request(request, why);
                }
            }
            Some(request) => self.fail_queued(request, why),
            None => {}
        }
    }

    /// True once a Logout Request for this connection or the session was sent.
    pub(super) fn is_logging_out(&self) -> bool {
        self.requests.values().any(|request| match request {
            Request::Logout { reason, cid, .. } => {
                *reason == LogoutReason::CLOSE_SESSION || *cid == self.cid
            }
            _ => false,
        })
    }

    fn send_command(
        &mut self,
        command: Command,
        streams: Option<StreamedDataOut>,
        cmd_sn: SerialNumber,
        tag: u32,
    ) {
        let prefix_bytes = command.data_out.len() as u32;
        let data_out_bytes = streams.map_or(prefix_bytes, |streams| streams.bytes);
        let prefix_digest = streams.and_then(|streams| streams.prefix_digest);
        let mut initial = InitialData::of(data_out_bytes, &self.session, &self.connection)
            .limited_to(prefix_bytes);
        let is_cut = initial.immediate_bytes < prefix_bytes
            && prefix_bytes <= self.connection.send_data_segment_bytes_max;
        if prefix_digest.is_some() && is_cut {
            // The segment stays whole, and keeps its digest, if it is sent for an R2T.
            initial = initial.limited_to(0);
        }
        let (write, read) = (data_out_bytes > 0, command.data_in_bytes_max > 0);
        let bidirectional_read = (write && read).then_some(command.data_in_bytes_max);
        let (cdb, ahs) = encode_command(&command.cdb, bidirectional_read);
        let unsolicited_follows = initial.unsolicited_bytes > initial.immediate_bytes;
        let header = ScsiCommand {
            first: first(Opcode::SCSI_COMMAND, command.immediate),
            flags: CommandFlags::NONE
                .with_if(!unsolicited_follows, CommandFlags::FINAL)
                .with_if(read, CommandFlags::READ)
                .with_if(write, CommandFlags::WRITE)
                .with_attribute(command.attribute),
            priority: if self.session.protocol_level >= 2 { command.priority << 4 } else { 0 },
            total_ahs_words: (ahs.len() / 4) as u8,
            data_segment_length: U24::truncate(initial.immediate_bytes),
            lun: command.lun,
            initiator_task_tag: tag,
            expected_data_transfer_length: if write {
                data_out_bytes
            } else {
                command.data_in_bytes_max
            },
            cmd_sn,
            exp_stat_sn: self.exp_stat_sn,
            cdb,
        };
        let data = command.data_out.slice(..initial.immediate_bytes as usize);
        let digest = prefix_digest.filter(|_| initial.immediate_bytes == prefix_bytes);
        self.send(Pdu { ahs, digest, ..Pdu::with_data(header.encode(), data) });
        let mut task = Task::new(command, data_out_bytes, cmd_sn, initial.unsolicited_bytes);
        if streams.is_some() {
            self.streams.insert(task.id, tag);
            task.stream = Some(Box::new(DataOutStream::new(prefix_digest)));
        }
        self.tasks.insert(tag, task);
        if unsolicited_follows {
            let burst = Burst {
                initiator_task_tag: tag,
                target_transfer_tag: TAG_RESERVED,
                lun: Lun::ZERO,
                at_bytes: initial.immediate_bytes,
                end_bytes: initial.unsolicited_bytes,
                data_sn: 0,
            };
            match streams {
                Some(_) => self.queue_stream_burst(burst),
                None => self.bursts.push_back(burst),
            }
        }
    }

    fn send_management(&mut self, management: Management, cmd_sn: SerialNumber, tag: u32) {
        let Management { id, function, mut lun, referenced } = management;
        let (mut referenced_task_tag, mut ref_cmd_sn) = (TAG_RESERVED, SerialNumber(0));
        if names_one_task(function) {
            let mut tasks = self.tasks.iter();
            let Some((tag_of, task)) = tasks.find(|(_, task)| Some(task.id) == referenced) else {
                // The task ended while the function waited for its numbers.
                self.free_tag(tag);
                return self.report_management(id, Ok(without_task(function)));
            };
            // RFC 7143 §11.5.5: for a task of an immediate command the function uses its own CmdSN.
            ref_cmd_sn = if task.immediate { cmd_sn } else { task.cmd_sn };
            (referenced_task_tag, lun) = (*tag_of, task.lun);
            // The caller gives no more data for a command that it aborts.
            let aborts = function == ManagementFunction::ABORT_TASK && task.stream.is_some();
            if aborts && !self.abandon_stream(referenced_task_tag) {
                return self.managed(id, function, Err(RequestFailure::Lost));
            }
        }
        if function.is_multi_task() && self.has_fast_abort() {
            self.pause(id, (!function.is_of_all_units()).then_some(lun), cmd_sn);
        }
        let header = TaskManagementRequest {
            first: FirstByte::immediate(Opcode::TASK_MANAGEMENT_REQUEST),
            flags_and_function: FinalFlag::FINAL.0 | function.0,
            total_ahs_words: 0,
            data_segment_length: U24::default(),
            lun,
            initiator_task_tag: tag,
            referenced_task_tag,
            cmd_sn,
            exp_stat_sn: self.exp_stat_sn,
            ref_cmd_sn,
            exp_data_sn: 0,
        };
        self.send(Pdu::new(header.encode()));
        self.requests
            .insert(tag, Request::Management { id, function, lun, cmd_sn, referenced_task_tag });
    }

    fn send_ping(
        &mut self,
        now: Time,
        purpose: PingPurpose,
        data: Bytes,
        cmd_sn: SerialNumber,
        tag: u32,
    ) {
        let mut header = self.nop_out(Lun::ZERO, TAG_RESERVED, cmd_sn, tag);
        match purpose {
            PingPurpose::KeepAlive => self.timers.pinged = Some(now),
            PingPurpose::FillGap(missing) => {
                header.first = FirstByte::plain(Opcode::NOP_OUT);
                header.cmd_sn = missing;
            }
            PingPurpose::Caller(_) => {}
        }
        self.send(Pdu::with_data(header.encode(), data.clone()));
        self.requests.insert(tag, Request::Ping { purpose, data });
    }

    fn nop_out(&self, lun: Lun, ttt: u32, cmd_sn: SerialNumber, tag: u32) -> NopOut {
        NopOut {
            first: FirstByte::immediate(Opcode::NOP_OUT),
            flags: FinalFlag::FINAL,
            total_ahs_words: 0,
            data_segment_length: U24::default(),
            lun,
            initiator_task_tag: tag,
            target_transfer_tag: ttt,
            cmd_sn,
            exp_stat_sn: self.exp_stat_sn,
        }
    }

    fn send_text(&mut self, purpose: TextPurpose, text: Bytes, cmd_sn: SerialNumber, tag: u32) {
        let header = self.text_request(tag, Lun::ZERO, TAG_RESERVED, cmd_sn);
        self.send(Pdu::with_data(header.encode(), text));
        self.requests.insert(tag, Request::Text { purpose, gathered: Vec::new(), rounds: 0 });
    }

    fn text_request(&self, tag: u32, lun: Lun, ttt: u32, cmd_sn: SerialNumber) -> TextRequest {
        TextRequest {
            first: FirstByte::plain(Opcode::TEXT_REQUEST),
            flags: TextFlags::FINAL,
            total_ahs_words: 0,
            data_segment_length: U24::default(),
            lun,
            initiator_task_tag: tag,
            target_transfer_tag: ttt,
            cmd_sn,
            exp_stat_sn: self.exp_stat_sn,
        }
    }

    fn send_logout(&mut self, now: Time, request: Queued, cmd_sn: SerialNumber, tag: u32) {
        let Queued::Logout { reason, cid, by_caller } = request else { return };
        let header = LogoutRequest {
            first: FirstByte::immediate(Opcode::LOGOUT_REQUEST),
            flags_and_reason: FinalFlag::FINAL.0 | reason.0,
            total_ahs_words: 0,
            data_segment_length: U24::default(),
            initiator_task_tag: tag,
            cid: if reason == LogoutReason::CLOSE_SESSION { 0 } else { cid },
            cmd_sn,
            exp_stat_sn: self.exp_stat_sn,
        };
        self.send(Pdu::new(header.encode()));
        self.timers.logout_by = Some(now.after(self.limits.logout_time));
        if reason == LogoutReason::CLOSE_SESSION {
            self.outputs.push_back(Output::ToSession(ToSession::LoggingOut));
        }
        self.requests.insert(tag, Request::Logout { reason, cid, by_caller });
        if self.is_logging_out() {
            self.end_data();
        }
    }
}

fn first(opcode: Opcode, immediate: bool) -> FirstByte {
    if immediate { FirstByte::immediate(opcode) } else { FirstByte::plain(opcode) }
}
