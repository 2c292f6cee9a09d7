//! The full feature phase of one connection: received PDUs are checked; numbered requests go to the
//! session, which delivers them in order. RFC 7143 §4.2, §7, §11.

use super::data_time::{DataTime, NEVER};
use super::numbering::Numbering;
use super::resend::ResendStore;
use super::task::{Phase, Tasks};
use super::terminated_tags::TerminatedTags;
use super::transfer::PendingSegment;
use super::{CloseReason, ConnectionLimits, Outputs, Task};
use super::{Input, Output};
use crate::framing::{DataDestination, Header, SegmentDigest, TaskId};
use crate::login::SessionType;
use crate::login::target::Established;
use crate::pdu::{
    FinalFlag, FirstByte, LogoutReason, LogoutRequest, NopOut, Opcode, Reject, RejectReason,
    TAG_RESERVED, TaskManagementRequest, TextRequest,
};
use crate::session::target::{Arrival, ToConnection, ToSession};
use crate::sorted_map::SortedMap;
use crate::text::exchange::TargetExchange;
use crate::text::{ConnectionParameters, SessionParameters};
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::string::String;
use alloc::vec::Vec;
use bytes::Bytes;
use lunar_wire::{Field, SerialNumber, Time, U24};

/// Offsets of CmdSN (if present) and ExpStatSN in every PDU of an initiator.
const AT_CMD_SN: usize = 24;
const AT_EXP_STAT_SN: usize = 28;

/// The reason why a PDU is not processed.
pub(super) enum Refusal {
    /// Reject the PDU and continue.
    Reject(RejectReason),
    /// A format error: the session ends. RFC 7143 §7.7.
    Format(&'static str),
    /// Drop the PDU without a response.
    Ignore,
}

/// A request waiting for or in the session, identified by its ticket. A command is a
/// [task](super::task) instead, and its ticket is the number of its id.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) immediate: bool,
    pub(super) cmd_sn: SerialNumber,
    pub(super) body: Body,
    /// True once the session has accepted the request; a refused one is removed.
    pub(super) is_decided: bool,
}

/// Maximum memory of a waiting request in bytes: its body without data, which is charged as it
/// arrives, and its entry in the session.
const REQUEST_BYTES: usize = 256 + size_of::<Header>();

#[derive(Debug)]
pub(super) enum Body {
    Management(Box<TaskManagementRequest>),
    NopOut(Box<NopOut>, Bytes),
    Text(Box<Header>, Bytes),
    Logout(Box<LogoutRequest>),
}

/// The owner of a data segment.
#[derive(Debug)]
pub(super) enum Receiving {
    /// A PDU that is ignored, except for its data digest.
    Skipped,
    Command(TaskId, DataDestination),
    Request(Request, DataDestination),
    DataOut {
        task: TaskId,
        segment: PendingSegment,
        destination: DataDestination,
    },
}

/// Progress of the connection from open to closed.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum CloseState {
    Open,
    /// An Asynchronous Message requested a logout until this time.
    LogoutRequested(Time),
    /// The session is processing a logout of this connection.
    LoggingOut {
        initiator_task_tag: u32,
    },
    /// The session decides about the tasks.
    Detaching(CloseReason),
    /// Waiting until no task is active any more.
    Closing(CloseReason),
    Closed,
}

#[derive(Debug)]
pub(super) struct Ping {
    pub(super) sent: Time,
}

/// A fence: all responses sent so far are to be acknowledged. RFC 7143 §4.2.2.3.3.
#[derive(Debug)]
pub(super) struct Fence {
    pub(super) id: u64,
    pub(super) last_sent: SerialNumber,
}

#[derive(Debug)]
pub(super) struct FullFeature {
    pub(super) limits: ConnectionLimits,
    pub(super) session: SessionParameters,
    pub(super) parameters: ConnectionParameters,
    pub(super) cid: u16,
    pub(super) numbering: Numbering,
    /// PDUs that may have to be sent again; `None` at ErrorRecoveryLevel 0.
    pub(super) resend: Option<Box<ResendStore>>,
    pub(super) tasks: Tasks,
    pub(super) terminated_tags: TerminatedTags,
    pub(super) requests: SortedMap<u64, Request>,
    /// Number of requests and tasks that the session has neither accepted nor refused.
    pub(super) undecided: usize,
    /// The data segment being received and the header before it; `None` if its PDU was refused.
    receiving: Option<(Header, Receiving)>,
    pub(super) text: TargetExchange,
    /// The Text Request being answered: for the answer's fields and for the header in a Reject.
    pub(super) text_request: Option<Header>,
    pub(super) fences: VecDeque<Fence>,
    /// Tasks whose responses wait for the end of a fence, in this order.
    pub(super) held: Option<Vec<TaskId>>,
    /// True if an aborted task may be waiting for its data.
    pub(super) draining: bool,
    /// Time limits of data that is due.
    pub(super) data_time: DataTime,
    /// No Data-In PDU waits for too long for its data before this time.
    pub(super) parts_earliest: Time,
    /// Time of the input being handled.
    pub(super) now: Time,
    /// Time of the last PDU or other sign of life of the initiator.
    pub(super) last_received: Time,
    /// The unanswered ping.
    pub(super) ping: Option<Ping>,
    pub(super) close_state: CloseState,
    /// Tasks that were left to the session when the connection closed.
    pub(super) detached: Vec<TaskId>,
    /// Tags of logouts of other connections that the session is processing, in order.
    pub(super) other_logouts: VecDeque<u32>,
}

impl FullFeature {
    pub(super) fn new(now: Time, mut limits: ConnectionLimits, login: Established) -> Self {
        let (join, joined) = (login.join, login.joined);
        let text_bytes_max = limits.text_bytes_max;
        if joined.session.session_type == SessionType::Discovery {
            // The initiator of a discovery session may not be authenticated.
            limits.control_bytes_max = limits.control_bytes_max.min(text_bytes_max);
        }
        let target_name = join.claim.target_name;
        let r2ts_max = usize::from(joined.session.max_outstanding_r2t.max(1));
        let retired_tags_max = limits.retired_tasks_max.saturating_mul(r2ts_max);
        Self {
            session: joined.session,
            parameters: join.connection,
            cid: join.claim.cid,
            numbering: Numbering::new(login.next_stat_sn, joined.exp_cmd_sn, joined.max_cmd_sn),
            resend: ResendStore::new(joined.session.error_recovery_level, limits.resend_bytes_max),
            tasks: Tasks::new(joined.connection_serial),
            terminated_tags: TerminatedTags::new(retired_tags_max),
            requests: SortedMap::default(),
            undecided: 0,
            receiving: None,
            text: TargetExchange::new(joined.session.session_type, target_name, text_bytes_max),
            text_request: None,
            fences: VecDeque::new(),
            held: None,
            draining: false,
            data_time: DataTime::new(now, limits.data_out_seconds),
            parts_earliest: NEVER,
            now,
            last_received: now,
            ping: None,
            close_state: CloseState::Open,
            detached: Vec::new(),
            other_logouts: VecDeque::new(),
            limits,
        }
    }

    /// Handles one input; returns the task that it starts, if `ask` has had it delivered. Inlined,
    /// so that the compiler reduces it to one call where the caller knows the kind of input.
    #[inline(always)]
    pub(super) fn handle(
        &mut self,
        now: Time,
        input: Input,
        out: &mut Outputs,
        ask: impl FnOnce(&ToSession) -> Option<ToConnection>,
    ) -> Option<&Task> {
        self.now = now;
        match input {
            Input::Header(header) => return self.on_header(now, header, out, ask),
            Input::Payload { data, digest } => {
                return self.on_payload(now, data, digest, out, ask);
            }
            Input::HeaderDigestError => self.on_header_digest_error(out),
            Input::Targets { records, more } => self.on_targets(&records, more, out),
            Input::Session(message) => self.on_session(now, message, out),
            Input::Wants { task, offset_bytes, bytes } => {
                self.on_wants(task, offset_bytes, bytes, out);
            }
            Input::Stream(task) => self.on_stream(task, out),
            Input::DataIn { task, offset_bytes, data, digest } => {
                self.on_data_in(task, offset_bytes, data, digest, out);
            }
            Input::DataInBegin { task, offset_bytes, bytes } => {
                self.on_data_in_begin(task, offset_bytes, bytes, out);
            }
            Input::DataInPart { task, data, digest } => {
                self.on_data_in_part(task, data, digest, out);
            }
            Input::Done { task, outcome } => self.on_done(task, outcome, out, ask),
            Input::Failed { task, outcome } => self.on_failed(task, outcome, out),
            Input::Deadline => self.on_deadline(now, out),
            Input::PeerAccepts { bytes } => {
                self.data_time.moved(now, bytes);
                self.on_sign_of_life(now);
            }
            Input::PeerClosed => self.close(CloseReason::Ended, out),
            Input::Shutdown { within_seconds } => self.on_shutdown(now, within_seconds, out),
            // Answers to a login that is over.
            Input::Identified(_) | Input::Joined(_) => {}
        }
        None
    }

    /// Memory of tasks, requests, tags of terminated tasks, and the text exchange, in bytes.
    pub(super) fn task_memory_bytes(&self) -> usize {
        self.tasks.memory_bytes(self.session.max_outstanding_r2t)
            + self.requests.memory_bytes()
            + self.requests.len() * REQUEST_BYTES
            + self.terminated_tags.memory_bytes()
            + self.resend.as_ref().map_or(0, |store| store.memory_bytes())
            + self.text.memory_bytes()
    }

    /// True if one more header may be handled: the session has decided about enough requests.
    pub(super) fn can_receive(&self) -> bool {
        self.undecided < self.limits.undecided_requests_max.max(1)
    }

    pub(super) fn is_discovery(&self) -> bool {
        self.session.session_type == SessionType::Discovery
    }

    /// True if features of RFC 7144 may be used.
    pub(super) fn is_level_2(&self) -> bool {
        self.session.protocol_level >= 2
    }

    /// True while requests are processed.
    pub(super) fn is_open(&self) -> bool {
        matches!(self.close_state, CloseState::Open | CloseState::LogoutRequested(_))
    }

    /// True once the connection is lost or closes: it starts no task, and sends nothing for one.
    pub(super) fn is_closing(&self) -> bool {
        use CloseState::{Closed, Closing, Detaching};
        matches!(self.close_state, Detaching(_) | Closing(_) | Closed)
    }

    fn on_payload(
        &mut self,
        now: Time,
        data: Bytes,
        digest: SegmentDigest,
        out: &mut Outputs,
        ask: impl FnOnce(&ToSession) -> Option<ToConnection>,
    ) -> Option<&Task> {
        self.last_received = now;
        let (header, receiving) = self.receiving.take()?;
        self.data_time.moved(now, header.data_segment_bytes().into());
        match receiving {
            Receiving::Command(task, _) if digest.is_ok() && self.is_open() => {
                self.announce_command(task, digest, out, ask)
            }
            receiving => {
                self.complete(&header, receiving, data, digest, out);
                None
            }
        }
    }

    /// Closes the connection. RFC 7143 §7.8: the next header cannot be found.
    fn on_header_digest_error(&mut self, out: &mut Outputs) {
        self.close(CloseReason::Violation("wrong header digest".into()), out);
    }

    fn on_header(
        &mut self,
        now: Time,
        header: Header,
        out: &mut Outputs,
        ask: impl FnOnce(&ToSession) -> Option<ToConnection>,
    ) -> Option<&Task> {
        self.last_received = now;
        self.ping = None;
        let has_data = header.data_segment_bytes() > 0;
        let exp_stat_sn = SerialNumber::get(&header.bhs[AT_EXP_STAT_SN..AT_EXP_STAT_SN + 4]);
        self.numbering.acknowledge(exp_stat_sn);
        if let Some(store) = &mut self.resend {
            store.acknowledge(&self.numbering);
        }
        if !self.fences.is_empty() {
            self.pass_fences(out);
        }
        let checked = if self.is_open() { self.check(&header, out) } else { Err(Refusal::Ignore) };
        match checked {
            Ok(receiving) if has_data => {
                out.push_back(Output::Receive(receiving.destination()));
                self.receiving = Some((header, receiving));
                return None;
            }
            Ok(Receiving::Command(task, _)) => {
                return self.announce_command(task, SegmentDigest::None, out, ask);
            }
            Ok(receiving) => {
                let no_digest = SegmentDigest::None;
                self.complete(&header, receiving, Bytes::new(), no_digest, out);
                return None;
            }
            Err(Refusal::Reject(reason)) => self.reject(&header, reason, out),
            Err(Refusal::Format(what)) => self.drop_session(what, out),
            Err(Refusal::Ignore) if has_data && self.is_open() => {
                self.receiving = Some((header, Receiving::Skipped));
            }
            Err(Refusal::Ignore) => {}
        }
        if has_data && self.close_state != CloseState::Closed {
            out.push_back(Output::Receive(DataDestination::Discard));
        }
        None
    }

    /// Checks the fields that all headers share, then those of each kind. RFC 7143 §11.2.1.
    fn check(&mut self, header: &Header, out: &mut Outputs) -> Result<Receiving, Refusal> {
        let opcode = header.opcode();
        let bytes = header.data_segment_bytes();
        if bytes > self.parameters.receive_data_segment_bytes_max {
            return Err(Refusal::Format("the data segment exceeds MaxRecvDataSegmentLength"));
        }
        if !header.ahs.is_empty() && opcode != Opcode::SCSI_COMMAND {
            return Err(Refusal::Format("an additional header segment is not allowed here"));
        }
        if self.is_discovery() {
            check_in_discovery(header)?;
        }
        match opcode {
            Opcode::SCSI_COMMAND => self.check_command(header),
            Opcode::DATA_OUT => self.check_data_out(header, out),
            Opcode::NOP_OUT => self.check_nop_out(header),
            Opcode::TASK_MANAGEMENT_REQUEST => self.check_management(header),
            Opcode::TEXT_REQUEST => self.check_text(header),
            Opcode::LOGOUT_REQUEST => self.check_logout(header),
            Opcode::SNACK_REQUEST => self.check_snack(header, out),
            Opcode::LOGIN_REQUEST => Err(Refusal::Reject(RejectReason::PROTOCOL_ERROR)),
            _ => Err(Refusal::Reject(RejectReason::COMMAND_NOT_SUPPORTED)),
        }
    }

    fn check_nop_out(&mut self, header: &Header) -> Result<Receiving, Refusal> {
        let pdu = NopOut::decode(&header.bhs);
        if pdu.initiator_task_tag == TAG_RESERVED && pdu.first.is_immediate() {
            // The answer to a ping or an acknowledgement; nothing else is left to do.
            self.terminated_tags.acknowledged(pdu.lun, pdu.exp_stat_sn);
            return Err(Refusal::Ignore);
        }
        self.check_request(
            header,
            DataDestination::Control,
            Body::NopOut(Box::new(pdu), Bytes::new()),
        )
    }

    fn check_management(&mut self, header: &Header) -> Result<Receiving, Refusal> {
        let pdu = TaskManagementRequest::decode(&header.bhs);
        if pdu.data_segment_length.value() != 0 {
            return Err(Refusal::Format("a task management request with data"));
        }
        self.check_tag(pdu.initiator_task_tag)?;
        self.check_request(header, DataDestination::Discard, Body::Management(Box::new(pdu)))
    }

    fn check_text(&mut self, header: &Header) -> Result<Receiving, Refusal> {
        let pdu = TextRequest::decode(&header.bhs);
        if pdu.initiator_task_tag == TAG_RESERVED {
            return Err(Refusal::Format("the reserved Initiator Task Tag"));
        }
        // RFC 7143 §11.10: one at a time. All waiting texts could otherwise be answered at once.
        if self.requests.values().any(|request| matches!(request.body, Body::Text(..))) {
            return Err(Refusal::Reject(RejectReason::PROTOCOL_ERROR));
        }
        let text = Body::Text(Box::new(header.clone()), Bytes::new());
        self.check_request(header, DataDestination::Control, text)
    }

    fn check_logout(&mut self, header: &Header) -> Result<Receiving, Refusal> {
        let pdu = LogoutRequest::decode(&header.bhs);
        if pdu.data_segment_length.value() != 0 {
            return Err(Refusal::Format("a logout request with data"));
        }
        if pdu.reason().name().is_none() {
            return Err(Refusal::Format("a reserved logout reason"));
        }
        if pdu.initiator_task_tag == TAG_RESERVED {
            return Err(Refusal::Format("the reserved Initiator Task Tag"));
        }
        if self.other_logouts.len() >= self.limits.immediate_commands_max.max(1) {
            return Err(Refusal::Reject(RejectReason::LONG_OPERATION_REJECT));
        }
        self.check_request(header, DataDestination::Discard, Body::Logout(Box::new(pdu)))
    }

    /// Checks that the tag for a new task is free. RFC 7143 §4.2.2.1, §11.2.1.8.
    fn check_tag(&self, initiator_task_tag: u32) -> Result<(), Refusal> {
        match self.tasks.with_tag(initiator_task_tag) {
            Some(_) => Err(Refusal::Reject(RejectReason::TASK_IN_PROGRESS)),
            None => self.check_tag_of_no_task(initiator_task_tag),
        }
    }

    /// The same check for a tag that belongs to no task.
    pub(super) fn check_tag_of_no_task(&self, initiator_task_tag: u32) -> Result<(), Refusal> {
        if initiator_task_tag == TAG_RESERVED {
            return Err(Refusal::Format("the reserved Initiator Task Tag"));
        }
        let managing = |request: &Request| {
            matches!(&request.body, Body::Management(pdu)
                if pdu.initiator_task_tag == initiator_task_tag)
        };
        if self.requests.values().any(managing) {
            return Err(Refusal::Reject(RejectReason::TASK_IN_PROGRESS));
        }
        Ok(())
    }

    /// Checks the fields that all requests with a CmdSN share.
    fn check_request(
        &self,
        header: &Header,
        destination: DataDestination,
        body: Body,
    ) -> Result<Receiving, Refusal> {
        let immediate = header.is_immediate();
        let cmd_sn = self.check_cmd_sn(header, Some(&body))?;
        let bytes = header.data_segment_bytes() as usize;
        if destination == DataDestination::Control
            && self.control_bytes() + bytes > self.limits.control_bytes_max
        {
            return Err(Refusal::Reject(RejectReason::LONG_OPERATION_REJECT));
        }
        let request = Request { immediate, cmd_sn, body, is_decided: false };
        Ok(Receiving::Request(request, destination))
    }

    /// Returns the CmdSN of a request that may be new: its CmdSN is not past, or it is immediate
    /// and their limit is not reached. `body` is `None` for a command.
    pub(super) fn check_cmd_sn(
        &self,
        header: &Header,
        body: Option<&Body>,
    ) -> Result<SerialNumber, Refusal> {
        let immediate = header.is_immediate();
        let cmd_sn = SerialNumber::get(&header.bhs[AT_CMD_SN..AT_CMD_SN + 4]);
        if !immediate && self.numbering.is_past(cmd_sn) {
            return Err(Refusal::Ignore);
        }
        if immediate && self.immediate_limit_reached(body) {
            return Err(Refusal::Reject(RejectReason::IMMEDIATE_COMMAND_REJECT));
        }
        Ok(cmd_sn)
    }

    /// True if no more immediate requests of this kind are accepted. Task management has its own
    /// limit: RFC 7143 §4.2.2.1. A logout that ends the connection is always accepted.
    fn immediate_limit_reached(&self, body: Option<&Body>) -> bool {
        let known = |managing: bool| {
            let alike = self.requests.values().filter(|request| {
                request.immediate && matches!(request.body, Body::Management(_)) == managing
            });
            alike.count()
        };
        let known = match body {
            Some(Body::Management(_)) => known(true),
            Some(Body::Logout(pdu)) if self.is_own_logout(pdu) => 0,
            _ => self.tasks.immediate() + known(false),
        };
        known >= self.limits.immediate_commands_max.max(1)
    }

    /// Bytes of data held by requests that wait for delivery.
    fn control_bytes(&self) -> usize {
        let bytes = self.requests.values().map(|request| match &request.body {
            Body::NopOut(_, data) | Body::Text(_, data) => data.len(),
            Body::Management(_) | Body::Logout(_) => 0,
        });
        bytes.sum()
    }

    /// Handles a complete PDU.
    fn complete(
        &mut self,
        header: &Header,
        receiving: Receiving,
        data: Bytes,
        digest: SegmentDigest,
        out: &mut Outputs,
    ) {
        let digest_ok = digest.is_ok();
        if !self.is_open() {
            return;
        }
        match receiving {
            // RFC 7143 §7.8 requires a Reject of "any iSCSI PDU with a payload digest error"; but a
            // numbered PDU outside of the window is ignored, §4.2.2.1.
            Receiving::Skipped if !digest_ok && is_unnumbered(header) => {
                self.reject(header, RejectReason::DATA_DIGEST_ERROR, out);
            }
            Receiving::Skipped => {}
            // RFC 7143 §7.3: its CmdSN does not count as received.
            Receiving::Command(task, _) => {
                self.reject(header, RejectReason::DATA_DIGEST_ERROR, out);
                self.forget_task(task, out);
            }
            Receiving::Request(..) if !digest_ok => {
                self.reject(header, RejectReason::DATA_DIGEST_ERROR, out);
            }
            Receiving::Request(mut request, _) => {
                if let Body::NopOut(_, whole) | Body::Text(_, whole) = &mut request.body {
                    *whole = data;
                }
                self.announce(request, out);
            }
            Receiving::DataOut { task, segment, .. } => {
                if !digest_ok {
                    self.reject(header, RejectReason::DATA_DIGEST_ERROR, out);
                }
                self.data_arrived(task, segment, digest, out);
            }
        }
    }

    /// Reports a complete command, with the digest of its immediate data, to the session. If `ask`
    /// has it delivered at once, it starts, and is returned.
    #[inline]
    fn announce_command(
        &mut self,
        task: TaskId,
        digest: SegmentDigest,
        out: &mut Outputs,
        ask: impl FnOnce(&ToSession) -> Option<ToConnection>,
    ) -> Option<&Task> {
        let entry = self.tasks.get_mut(task)?;
        if entry.transfer.is_settled() {
            self.data_time.stop(&mut entry.transfer.clock, self.now);
        }
        entry.transfer.buffer_digest = digest;
        entry.undecided = true;
        self.undecided += 1;
        let initiator_task_tag = entry.transfer.initiator_task_tag;
        let (lun, attribute) = (entry.task.lun, entry.task.attribute);
        let arrived = ToSession::Arrived {
            ticket: task.0,
            immediate: entry.immediate,
            cmd_sn: entry.cmd_sn,
            request: Arrival::Command { task, initiator_task_tag, lun, attribute },
        };
        match if out.is_empty() { ask(&arrived) } else { None } {
            Some(ToConnection::Deliver { ticket, exp_cmd_sn, max_cmd_sn }) => {
                self.numbering.set_window(exp_cmd_sn, max_cmd_sn);
                return self.start_delivered(ticket, out);
            }
            Some(answer) => self.on_session(self.now, answer, out),
            None => out.push_back(Output::ToSession(arrived)),
        }
        None
    }

    /// Reports any other complete request to the session.
    fn announce(&mut self, request: Request, out: &mut Outputs) {
        let TaskId(ticket) = self.tasks.next_id();
        let arrival = match &request.body {
            Body::Management(pdu) => Arrival::Management {
                initiator_task_tag: pdu.initiator_task_tag,
                function: pdu.function(),
                lun: pdu.lun,
                referenced_task_tag: pdu.referenced_task_tag,
                ref_cmd_sn: pdu.ref_cmd_sn,
            },
            Body::NopOut(..) | Body::Text(..) | Body::Logout(_) => Arrival::Other,
        };
        out.push_back(Output::ToSession(ToSession::Arrived {
            ticket,
            immediate: request.immediate,
            cmd_sn: request.cmd_sn,
            request: arrival,
        }));
        self.undecided += 1;
        self.requests.insert(ticket, request);
    }

    /// Records whether the session accepts a request; drops one that it ignores.
    fn on_verdict(&mut self, ticket: u64, accepted: bool, out: &mut Outputs) {
        if let Some(entry) = self.tasks.get_mut(TaskId(ticket)) {
            self.undecided -= usize::from(core::mem::take(&mut entry.undecided));
            // A task that was aborted meanwhile stays.
            if !accepted && entry.phase == Phase::Waiting {
                self.forget_task(TaskId(ticket), out);
            }
        } else if !accepted {
            let _gone = self.take_request(ticket);
        } else if let Some(request) = self.requests.get_mut(ticket)
            && !core::mem::replace(&mut request.is_decided, true)
        {
            self.undecided -= 1;
        }
    }

    /// Removes a waiting request, whether or not the session has accepted it.
    pub(super) fn take_request(&mut self, ticket: u64) -> Option<Request> {
        let request = self.requests.remove(ticket)?;
        self.undecided -= usize::from(!request.is_decided);
        Some(request)
    }

    pub(super) fn on_session(&mut self, now: Time, message: ToConnection, out: &mut Outputs) {
        match message {
            ToConnection::Verdict { ticket, accepted } => self.on_verdict(ticket, accepted, out),
            ToConnection::Deliver { ticket, exp_cmd_sn, max_cmd_sn } => {
                self.numbering.set_window(exp_cmd_sn, max_cmd_sn);
                let started = self.start_delivered(ticket, out).cloned();
                out.extend(started.map(Output::Start));
            }
            ToConnection::Window { exp_cmd_sn, max_cmd_sn } => {
                self.numbering.set_window(exp_cmd_sn, max_cmd_sn);
            }
            ToConnection::AbortTask { task, data } => self.abort_for_session(now, task, data, out),
            ToConnection::DetachTasks => self.detach_tasks(out),
            ToConnection::TasksTerminated { lun } => self.report_terminated(lun, out),
            ToConnection::ManagementDone { initiator_task_tag, response, information } => {
                self.management_done(initiator_task_tag, response, information, out);
            }
            ToConnection::LogoutDone(result) => self.logout_done(result, out),
            ToConnection::Fence { id } => self.begin_fence(now, id, out),
            ToConnection::SendFenced { task } => self.respond(task, out),
            ToConnection::Release => self.end_fence(out),
            ToConnection::Close => self.close(CloseReason::Dropped, out),
        }
    }

    /// Starts a task that the session delivers and returns it, or carries out another request.
    #[inline]
    pub(super) fn start_delivered(&mut self, ticket: u64, out: &mut Outputs) -> Option<&Task> {
        if self.tasks.get(TaskId(ticket)).is_some() {
            return self.start_task(TaskId(ticket), out);
        }
        if let Some(request) = self.take_request(ticket) {
            self.deliver(request, out);
        }
        None
    }

    /// Carries out a request that the session delivers.
    fn deliver(&mut self, request: Request, out: &mut Outputs) {
        match request.body {
            Body::NopOut(pdu, data) => self.answer_nop_out(&pdu, data, out),
            Body::Text(header, data) => self.answer_text(*header, &data, out),
            Body::Logout(pdu) => self.begin_logout(&pdu, out),
            // The session answers these itself.
            Body::Management(_) => {}
        }
    }

    /// Rejects a PDU; the Reject carries its whole header. RFC 7143 §11.17.
    pub(super) fn reject(&mut self, header: &Header, reason: RejectReason, out: &mut Outputs) {
        let bhs = Reject {
            first: FirstByte::plain(Opcode::REJECT),
            flags: FinalFlag::FINAL,
            reason,
            total_ahs_words: 0,
            data_segment_length: U24::default(),
            initiator_task_tag: TAG_RESERVED,
            stat_sn: SerialNumber(0),
            exp_cmd_sn: SerialNumber(0),
            max_cmd_sn: SerialNumber(0),
            data_sn: 0,
        }
        .encode();
        let mut data = Vec::with_capacity(header.bhs.len() + header.ahs.len());
        data.extend_from_slice(&header.bhs);
        data.extend_from_slice(&header.ahs);
        data.truncate(self.parameters.send_data_segment_bytes_max as usize);
        self.send_status(bhs, Bytes::from(data), out);
    }

    /// Ends all connections of the session after a format error. RFC 7143 §7.7.
    pub(super) fn drop_session(&mut self, what: &str, out: &mut Outputs) {
        out.push_back(Output::ToSession(ToSession::DropSession));
        self.close(CloseReason::Violation(String::from(what)), out);
    }
}

/// Checks a request in a discovery session. RFC 7143 §4.3: "the target MUST ONLY accept Text
/// Requests with the SendTargets key and a Logout Request with reason 'close the session'. All
/// other requests MUST be rejected." The keys of a text are checked when it is complete.
fn check_in_discovery(header: &Header) -> Result<(), Refusal> {
    let accepted = match header.opcode() {
        Opcode::TEXT_REQUEST => true,
        Opcode::LOGOUT_REQUEST => {
            LogoutRequest::decode(&header.bhs).reason() == LogoutReason::CLOSE_SESSION
        }
        // A NOP-Out that requests no answer is dropped later.
        Opcode::NOP_OUT => NopOut::decode(&header.bhs).initiator_task_tag == TAG_RESERVED,
        _ => false,
    };
    if accepted { Ok(()) } else { Err(Refusal::Reject(RejectReason::PROTOCOL_ERROR)) }
}

/// True if the PDU has no CmdSN, or one that does not count.
fn is_unnumbered(header: &Header) -> bool {
    header.opcode() == Opcode::DATA_OUT || header.is_immediate()
}

impl Receiving {
    fn destination(&self) -> DataDestination {
        match self {
            Self::Skipped => DataDestination::Discard,
            Self::Command(_, destination)
            | Self::Request(_, destination)
            | Self::DataOut { destination, .. } => *destination,
        }
    }
}
