//! The other services of the full feature phase: pings, texts, logouts, task management responses,
//! fences, asynchronous messages, and the end of the connection. RFC 7143 §11.5, §11.9 to §11.19.

use super::data_time::DATA_OUT_LATE;
use super::full_feature::{Body, CloseState, Fence, FullFeature, Ping};
use super::limits::seconds;
use super::{CloseReason, Output, Outputs, TargetRecord};
use crate::framing::{Header, Pdu};
use crate::pdu::{
    AsyncEvent, AsyncMessage, FinalFlag, FirstByte, LogoutReason, LogoutRequest, LogoutResponse,
    LogoutResult, ManagementResponse, NopIn, NopOut, Opcode, TAG_RESERVED, TaskManagementResponse,
    TextRequest, TextResponse,
};
use crate::session::target::ToSession;
use crate::text::exchange::{TextSegment, TextStep};
use alloc::vec::Vec;
use bytes::Bytes;
use lunar_wire::{Lun, SerialNumber, Time, U24};

impl FullFeature {
    /// Answers a ping. RFC 7143 §11.18, §11.19: the data comes back, up to the length the initiator
    /// can receive. Data that is cut is copied: it must not keep the memory of all of it.
    pub(super) fn answer_nop_out(&mut self, pdu: &NopOut, mut data: Bytes, out: &mut Outputs) {
        if pdu.initiator_task_tag == TAG_RESERVED {
            return;
        }
        if let Some(echo) = data.get(..self.parameters.send_data_segment_bytes_max as usize) {
            data = Bytes::copy_from_slice(echo);
        }
        let bhs = nop_in(pdu.initiator_task_tag, TAG_RESERVED).encode();
        self.send_status(bhs, data, out);
    }

    /// Builds a NOP-In that is not an answer. With a tag it is a ping.
    #[cold]
    fn nop_in(&self, target_transfer_tag: u32) -> Pdu {
        let mut bhs = nop_in(TAG_RESERVED, target_transfer_tag).encode();
        self.numbering.stamp_next_status(&mut bhs);
        Pdu::new(bhs)
    }

    fn send_ping(&mut self, now: Time, out: &mut Outputs) {
        let tag = self.numbering.transfer_tag();
        out.push_back(Output::Send(self.nop_in(tag)));
        self.ping = Some(Ping { sent: now });
    }

    /// Restarts the idle timer, and that for the answer to a ping.
    pub(super) fn on_sign_of_life(&mut self, now: Time) {
        self.last_received = now;
        if let Some(ping) = &mut self.ping {
            ping.sent = now;
        }
    }

    /// Returns a NOP-In if the window has opened and neither a PDU nor the response of a task will
    /// report it. RFC 7143 §11.4.11.
    pub(super) fn window_update(&self) -> Option<Pdu> {
        let quiet = self.is_open() && self.tasks.is_empty() && !self.is_discovery();
        (quiet && self.numbering.must_send_window()).then(|| self.nop_in(TAG_RESERVED))
    }

    pub(super) fn answer_text(&mut self, header: Header, data: &[u8], out: &mut Outputs) {
        let pdu = TextRequest::decode(&header.bhs);
        let mut steps = Vec::new();
        let waiting = self.text.is_waiting_for_driver();
        let bytes_max = self.parameters.send_data_segment_bytes_max;
        self.text.request(&pdu, data, bytes_max, &mut steps);
        if waiting {
            // The text in progress keeps its header; this one is rejected.
            return self.follow_text(&header, steps, out);
        }
        self.follow_text(&header, steps, out);
        self.text_request = self.text.is_waiting_for_driver().then_some(header);
    }

    pub(super) fn on_targets(&mut self, records: &[TargetRecord], more: bool, out: &mut Outputs) {
        let Some(header) = self.text_request.take() else { return };
        let mut steps = Vec::new();
        let bytes_max = self.parameters.send_data_segment_bytes_max;
        self.text.targets(records, more, bytes_max, &mut steps);
        if self.is_open() {
            self.follow_text(&header, steps, out);
            self.text_request = self.text.is_waiting_for_driver().then_some(header);
        }
    }

    fn follow_text(&mut self, header: &Header, steps: Vec<TextStep>, out: &mut Outputs) {
        for step in steps {
            match step {
                TextStep::Respond(segment) => self.send_text(header, segment, out),
                TextStep::Reject(reason) => self.reject(header, reason, out),
                TextStep::ListTargets { only, after, text_bytes } => {
                    out.push_back(Output::ListTargets { only, after, text_bytes });
                }
                TextStep::PeerSegmentBytesMax(bytes) => {
                    self.parameters.send_data_segment_bytes_max = bytes;
                }
            }
        }
    }

    fn send_text(&mut self, header: &Header, segment: TextSegment, out: &mut Outputs) {
        let bhs = TextResponse {
            first: FirstByte::plain(Opcode::TEXT_RESPONSE),
            flags: segment.flags,
            total_ahs_words: 0,
            data_segment_length: U24::default(),
            lun: segment.lun,
            initiator_task_tag: header.basic().initiator_task_tag,
            target_transfer_tag: segment.target_transfer_tag,
            stat_sn: SerialNumber(0),
            exp_cmd_sn: SerialNumber(0),
            max_cmd_sn: SerialNumber(0),
        }
        .encode();
        self.send_status(bhs, segment.data, out);
    }

    pub(super) fn management_done(
        &mut self,
        initiator_task_tag: u32,
        response: ManagementResponse,
        information: [u8; 3],
        out: &mut Outputs,
    ) {
        let ticket = self.requests.iter().find_map(|(ticket, request)| match &request.body {
            Body::Management(pdu) if pdu.initiator_task_tag == initiator_task_tag => Some(ticket),
            _ => None,
        });
        let Some(ticket) = ticket else { return };
        let _gone = self.take_request(ticket);
        if !self.is_open() {
            return;
        }
        let bhs = TaskManagementResponse {
            first: FirstByte::plain(Opcode::TASK_MANAGEMENT_RESPONSE),
            flags: FinalFlag::FINAL,
            response,
            total_ahs_words: 0,
            data_segment_length: U24::default(),
            information,
            initiator_task_tag,
            stat_sn: SerialNumber(0),
            exp_cmd_sn: SerialNumber(0),
            max_cmd_sn: SerialNumber(0),
        }
        .encode();
        self.send_status(bhs, Bytes::new(), out);
    }

    /// Reports to the initiator that all tasks of a unit are terminated; the acknowledgement frees
    /// their tags. RFC 7143 §11.9.1.
    pub(super) fn report_terminated(&mut self, lun: Lun, out: &mut Outputs) {
        if self.is_open() {
            self.send_async(AsyncEvent::TASKS_TERMINATED, lun, [0; 3], out);
            self.terminated_tags.mark_reported(lun, self.numbering.last_sent());
        }
    }

    /// Begins a fence for the session: all responses so far must be acknowledged before new ones
    /// are sent. RFC 7143 §4.2.2.3.3.
    pub(super) fn begin_fence(&mut self, now: Time, id: u64, out: &mut Outputs) {
        self.held.get_or_insert_default();
        let last_sent = self.numbering.last_sent();
        self.fences.push_back(Fence { id, last_sent });
        self.pass_fences(out);
        if !self.fences.is_empty() && self.is_open() {
            self.send_ping(now, out);
        }
    }

    pub(super) fn pass_fences(&mut self, out: &mut Outputs) {
        while let Some(fence) = self.fences.front()
            && self.numbering.is_acknowledged(fence.last_sent)
        {
            out.push_back(Output::ToSession(ToSession::Fenced(fence.id)));
            self.fences.pop_front();
        }
    }

    pub(super) fn end_fence(&mut self, out: &mut Outputs) {
        if self.is_closing() {
            return;
        }
        for task in self.held.take().unwrap_or_default() {
            self.end_task(task, out);
        }
    }

    /// Begins a logout. RFC 7143 §11.14. The session ends the tasks, then sends `LogoutDone`.
    pub(super) fn begin_logout(&mut self, pdu: &LogoutRequest, out: &mut Outputs) {
        let initiator_task_tag = pdu.initiator_task_tag;
        let cid = match pdu.reason() {
            LogoutReason::CLOSE_SESSION => None,
            LogoutReason::CLOSE_CONNECTION => Some(pdu.cid),
            _ => {
                let result = LogoutResult::RECOVERY_NOT_SUPPORTED;
                return self.send_logout_response(initiator_task_tag, result, out);
            }
        };
        if self.is_own_logout(pdu) {
            self.close_state = CloseState::LoggingOut { initiator_task_tag };
        } else {
            self.other_logouts.push_back(initiator_task_tag);
        }
        out.push_back(Output::ToSession(ToSession::Logout { cid }));
    }

    /// True if the logout ends this connection, with or without the session.
    pub(super) fn is_own_logout(&self, pdu: &LogoutRequest) -> bool {
        match pdu.reason() {
            LogoutReason::CLOSE_SESSION => true,
            LogoutReason::CLOSE_CONNECTION => pdu.cid == self.cid,
            _ => false,
        }
    }

    pub(super) fn logout_done(&mut self, result: LogoutResult, out: &mut Outputs) {
        match self.close_state {
            CloseState::LoggingOut { initiator_task_tag } => {
                self.send_logout_response(initiator_task_tag, result, out);
                self.close(CloseReason::Ended, out);
            }
            CloseState::Open | CloseState::LogoutRequested(_) => {
                if let Some(initiator_task_tag) = self.other_logouts.pop_front() {
                    self.send_logout_response(initiator_task_tag, result, out);
                }
            }
            CloseState::Detaching(_) | CloseState::Closing(_) | CloseState::Closed => {}
        }
    }

    fn send_logout_response(
        &mut self,
        initiator_task_tag: u32,
        response: LogoutResult,
        out: &mut Outputs,
    ) {
        let bhs = LogoutResponse {
            first: FirstByte::plain(Opcode::LOGOUT_RESPONSE),
            flags: FinalFlag::FINAL,
            response,
            total_ahs_words: 0,
            data_segment_length: U24::default(),
            initiator_task_tag,
            stat_sn: SerialNumber(0),
            exp_cmd_sn: SerialNumber(0),
            max_cmd_sn: SerialNumber(0),
            time_to_wait_seconds: 0,
            time_to_retain_seconds: 0,
        }
        .encode();
        self.send_status(bhs, Bytes::new(), out);
    }

    /// Requests a logout from the initiator. RFC 7143 §11.9.1; a discovery session is just closed
    /// (§7.4.3).
    pub(super) fn on_shutdown(&mut self, now: Time, within_seconds: u16, out: &mut Outputs) {
        if self.close_state != CloseState::Open {
            return;
        }
        if self.is_discovery() {
            return self.close(CloseReason::Dropped, out);
        }
        if within_seconds == 0 {
            let wait = self.session.time_to_wait_seconds;
            self.send_async(AsyncEvent::SESSION_WILL_DROP, Lun::ZERO, [0, wait, 0], out);
            return self.close(CloseReason::Dropped, out);
        }
        let parameters = [0, 0, within_seconds];
        self.send_async(AsyncEvent::LOGOUT_REQUESTED, Lun::ZERO, parameters, out);
        self.close_state =
            CloseState::LogoutRequested(now.after(seconds(u32::from(within_seconds))));
    }

    fn send_async(&mut self, event: AsyncEvent, lun: Lun, parameters: [u16; 3], out: &mut Outputs) {
        let bhs = AsyncMessage {
            first: FirstByte::plain(Opcode::ASYNC_MESSAGE),
            flags: FinalFlag::FINAL,
            total_ahs_words: 0,
            data_segment_length: U24::default(),
            lun,
            initiator_task_tag: TAG_RESERVED,
            stat_sn: SerialNumber(0),
            exp_cmd_sn: SerialNumber(0),
            max_cmd_sn: SerialNumber(0),
            event,
            vendor_code: 0,
            parameter_1: parameters[0],
            parameter_2: parameters[1],
            parameter_3: parameters[2],
        }
        .encode();
        self.send_status(bhs, Bytes::new(), out);
    }

    /// Time at which [`on_deadline`](Self::on_deadline) must be called.
    pub(super) fn deadline(&self) -> Option<Time> {
        let data = self.data_time.earliest().min(self.parts_earliest);
        match self.close_state {
            CloseState::Open if !self.draining => {
                return Some(self.silence_ends().min(data));
            }
            CloseState::Closed => return None,
            _ => {}
        }
        let drains = self.draining.then(|| self.tasks.next_drain()).flatten();
        let drain = drains.map(|(until, _)| until);
        let logout = match self.close_state {
            CloseState::LogoutRequested(until) => Some(until),
            _ => None,
        };
        let silence = self.is_open().then(|| self.silence_ends());
        let silence = silence.map(|silence| silence.min(data));
        [drain, logout, silence].into_iter().flatten().min()
    }

    /// Time at which the silence of the peer has an effect.
    fn silence_ends(&self) -> Time {
        match &self.ping {
            _ if self.is_discovery() => {
                self.last_received.after(seconds(self.limits.discovery_idle_seconds))
            }
            Some(ping) => ping.sent.after(seconds(self.limits.ping_timeout_seconds)),
            None => self.last_received.after(seconds(self.limits.ping_after_seconds)),
        }
    }

    pub(super) fn on_deadline(&mut self, now: Time, out: &mut Outputs) {
        while let Some((until, task)) = self.tasks.next_drain()
            && until <= now
        {
            self.stop_draining(task, out);
        }
        self.draining = self.tasks.next_drain().is_some();
        if let CloseState::LogoutRequested(until) = self.close_state
            && until <= now
        {
            let wait = self.session.time_to_wait_seconds;
            let parameters = [self.cid, wait, 0];
            self.send_async(AsyncEvent::CONNECTION_WILL_DROP, Lun::ZERO, parameters, out);
            return self.close(CloseReason::Dropped, out);
        }
        if !self.is_open() {
            return;
        }
        if self.data_time.earliest() <= now && self.data_time.is_late(now, self.tasks.data_clocks())
        {
            return self.close(CloseReason::TimedOut(DATA_OUT_LATE), out);
        }
        if self.parts_earliest <= now {
            self.fail_late_parts(now, out);
        }
        if now < self.silence_ends() {
            return;
        }
        if self.is_discovery() {
            self.close(CloseReason::TimedOut("the discovery session was idle for too long"), out);
        } else if self.ping.is_some() {
            self.close(CloseReason::TimedOut("the initiator did not answer a ping"), out);
        } else {
            self.send_ping(now, out);
        }
    }

    /// Ends the connection: the session decides about its tasks. When those that end with the
    /// connection have ended, `Close` follows.
    pub(super) fn close(&mut self, reason: CloseReason, out: &mut Outputs) {
        if self.is_closing() {
            return;
        }
        self.close_state = CloseState::Detaching(reason);
        self.undecided -= self.requests.values().filter(|request| !request.is_decided).count();
        self.requests.clear();
        self.terminated_tags.clear();
        self.text_request = None;
        // No response is sent any more.
        self.held = Some(Vec::new());
        // The acknowledgements will never come, so the fences must end now.
        for fence in self.fences.drain(..) {
            out.push_back(Output::ToSession(ToSession::Fenced(fence.id)));
        }
        out.push_back(Output::ToSession(ToSession::ConnectionClosing));
    }

    /// Ends the transfers of the tasks that the session has not aborted. Those that run, and need
    /// no more data from the initiator, continue without the connection; the others end with it.
    pub(super) fn detach_tasks(&mut self, out: &mut Outputs) {
        let CloseState::Detaching(reason) = &self.close_state else { return };
        self.close_state = CloseState::Closing(reason.clone());
        for task in self.tasks.ids() {
            match self.tasks.get(task) {
                Some(entry) if entry.has_all_it_needs() => {
                    self.tasks.remove(task);
                    self.detached.push(task);
                }
                _ => self.abort_task(task, None, out),
            }
        }
        self.check_closed(out);
    }

    pub(super) fn check_closed(&mut self, out: &mut Outputs) {
        if let CloseState::Closing(reason) = &self.close_state
            && self.tasks.is_empty()
        {
            let reason = reason.clone();
            self.close_state = CloseState::Closed;
            out.push_back(Output::ToSession(ToSession::ConnectionClosed));
            out.push_back(Output::Close(reason));
        }
    }
}

fn nop_in(initiator_task_tag: u32, target_transfer_tag: u32) -> NopIn {
    NopIn {
        first: FirstByte::plain(Opcode::NOP_IN),
        flags: FinalFlag::FINAL,
        total_ahs_words: 0,
        data_segment_length: U24::default(),
        lun: Lun::ZERO,
        initiator_task_tag,
        target_transfer_tag,
        stat_sn: SerialNumber(0),
        exp_cmd_sn: SerialNumber(0),
        max_cmd_sn: SerialNumber(0),
    }
}
