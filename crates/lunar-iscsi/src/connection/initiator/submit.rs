//! Requests of the caller: checks whether each is allowed now and valid.

use super::data_out_stream::OWN_ABORT;
use super::machine::{InitiatorConnection, State};
use super::request::{PingPurpose, Queued, Request, StreamedDataOut, TextPurpose};
use super::task::checked;
use super::{Command, Management, Output, RequestFailure, SendTargets, StreamingCommand};
use crate::framing::TaskId;
use crate::pdu::{LogoutReason, ManagementFunction, ManagementResponse};
use crate::session::initiator::ToSession;
use alloc::vec::Vec;
use bytes::Bytes;
use lunar_wire::Time;

impl InitiatorConnection {
    pub(super) fn on_execute(&mut self, command: Command) {
        let allowed = self.allowed().and_then(|()| checked(&command));
        self.queue_if(allowed, Queued::Command { command, streams: None, aborts: Vec::new() });
    }

    pub(super) fn on_stream(&mut self, streaming: StreamingCommand) {
        let StreamingCommand { command, data_out_bytes, prefix_digest } = streaming;
        let too_long = RequestFailure::Refused("more data than the length of the data-out");
        let fits = match command.data_out.len() <= data_out_bytes as usize {
            true => checked(&command),
            false => Err(too_long),
        };
        let allowed = self.allowed().and(fits);
        let streams = Some(StreamedDataOut { bytes: data_out_bytes, prefix_digest });
        self.queue_if(allowed, Queued::Command { command, streams, aborts: Vec::new() });
    }

    pub(super) fn on_ping(&mut self, id: TaskId, data: Bytes) {
        let fits = data.len() <= self.connection.send_data_segment_bytes_max as usize;
        let too_long = RequestFailure::Refused("the ping is longer than the target accepts");
        let allowed = self.allowed().and(if fits { Ok(()) } else { Err(too_long) });
        self.queue_if(allowed, Queued::Ping { purpose: PingPurpose::Caller(id), data });
    }

    pub(super) fn on_send_targets(&mut self, id: TaskId, which: &SendTargets) {
        let value = match which {
            SendTargets::All => "All",
            SendTargets::Name(name) => name,
            SendTargets::This => "",
        };
        let text = [b"SendTargets=", value.as_bytes(), b"\0"].concat().into();
        self.on_text_request(TextPurpose::SendTargets(id), text);
    }

    pub(super) fn on_manage(&mut self, management: Management) {
        let Management { id, function, referenced, .. } = management;
        if let Err(failure) = self.allowed() {
            return self.report_management(id, Err(failure));
        }
        if function == ManagementFunction::TASK_REASSIGN {
            let why = RequestFailure::Refused("the function requires ErrorRecoveryLevel 2");
            return self.report_management(id, Err(why));
        }
        let level = function.info().map_or(1, |info| info.level);
        if level > self.session.protocol_level {
            let why = RequestFailure::Refused("the function requires iSCSIProtocolLevel 2");
            return self.report_management(id, Err(why));
        }
        if function.is_multi_task() {
            self.outputs.push_back(Output::ToSession(ToSession::Hold));
        }
        if !names_one_task(function) {
            return self.enqueue(Queued::Management(management));
        }
        let Some(referenced) = referenced else {
            return self.report_management(
                id,
                Err(RequestFailure::Refused("the function requires a referenced task")),
            );
        };
        if self.tasks.values().any(|task| task.id == referenced) {
            return self.enqueue_function(management);
        }
        for (ticket, request) in self.queue.iter_mut() {
            if let Queued::Command { command, aborts, .. } = request
                && command.id == referenced
                && function == ManagementFunction::ABORT_TASK
            {
                aborts.push(management);
                let withdraw = ToSession::Withdraw { ticket: *ticket };
                return self.outputs.push_back(Output::ToSession(withdraw));
            }
        }
        self.report_management(id, Ok(without_task(function)));
    }

    /// Queues a function on one task. The data of a streaming command pauses until its abort is
    /// sent: a PDU that is opened meanwhile would not be completed, which costs the connection if
    /// there are no digests.
    pub(super) fn enqueue_function(&mut self, management: Management) {
        if management.function == ManagementFunction::ABORT_TASK
            && let Some(tag) = management.referenced.and_then(|id| self.streams.get(&id))
            && let Some(task) = self.tasks.get_mut(tag)
        {
            task.paused_by = Some(management.id);
        }
        self.enqueue(Queued::Management(management));
    }

    pub(super) fn on_text_request(&mut self, purpose: TextPurpose, text: Bytes) {
        let fits = text.len() <= self.connection.send_data_segment_bytes_max as usize;
        let too_long = RequestFailure::Refused("the text is longer than the target accepts");
        let allowed = self.allowed().and(if fits { Ok(()) } else { Err(too_long) });
        if allowed.is_ok() && self.text_is_pending() {
            self.texts.push_back((purpose, text));
        } else {
            self.queue_if(allowed, Queued::Text { purpose, text });
        }
    }

    /// True while a text exchange is in progress, or is queued and has no CmdSN yet.
    pub(super) fn text_is_pending(&self) -> bool {
        let is_text = |(_, request): &(u64, Queued)| {
            matches!(request, Queued::Text { .. } | Queued::MoreText { .. })
        };
        self.queue.iter().any(is_text)
            || self.requests.values().any(|request| matches!(request, Request::Text { .. }))
    }

    /// Starts the next queued text exchange once the previous one has ended.
    pub(super) fn next_text(&mut self) {
        if !self.text_is_pending()
            && let Some((purpose, text)) = self.texts.pop_front()
        {
            self.enqueue(Queued::Text { purpose, text });
        }
    }

    pub(super) fn on_logout_request(&mut self, reason: LogoutReason, cid: Option<u16>) {
        let cid = cid.unwrap_or(self.cid);
        let allowed = match self.state {
            State::FullFeature | State::Draining if self.timers.logout_by.is_none() => Ok(()),
            _ => Err(RequestFailure::Refused(
                "the connection is not logged in, or is already logging out",
            )),
        };
        if allowed.is_ok() && (reason == LogoutReason::CLOSE_SESSION || cid == self.cid) {
            self.state = State::Draining;
            self.timers.drain_by = None;
            self.withdraw_all();
        }
        self.queue_if(allowed, Queued::Logout { reason, cid, by_caller: true });
    }

    /// Stops accepting requests, and logs this connection out when all requests have ended, at the
    /// latest at `by`.
    pub(super) fn drain(&mut self, by: Time) {
        if matches!(self.state, State::FullFeature) {
            self.state = State::Draining;
            self.timers.drain_by = Some(by);
        }
    }

    pub(super) fn log_out_when_drained(&mut self) {
        if self.timers.drain_by.is_some() && self.open_requests() == 0 {
            self.log_out_drained();
        }
    }

    pub(super) fn log_out_drained(&mut self) {
        self.timers.drain_by = None;
        self.withdraw_all();
        let reason = LogoutReason::CLOSE_CONNECTION;
        self.enqueue(Queued::Logout { reason, cid: self.cid, by_caller: false });
    }

    /// Withdraws requests that wait for a CmdSN: nothing may be sent behind a Logout Request
    /// (RFC 7143 §11.14), so a CmdSN granted later would be lost and would block the other
    /// connections. Requests that have their CmdSN by then are sent before the logout, because
    /// numbers are granted in order.
    fn withdraw_all(&mut self) {
        for (ticket, request) in self.queue.iter() {
            let waits = match request {
                Queued::Command { command, .. } => !command.immediate,
                Queued::Text { .. } | Queued::MoreText { .. } => true,
                _ => false,
            };
            if waits {
                let withdraw = ToSession::Withdraw { ticket: *ticket };
                self.outputs.push_back(Output::ToSession(withdraw));
            }
        }
    }

    /// Reports a task management function that ended or was never sent.
    pub(super) fn managed(
        &mut self,
        id: TaskId,
        function: ManagementFunction,
        result: Result<ManagementResponse, RequestFailure>,
    ) {
        self.managed_with(id, function, result, [0; 3]);
    }

    pub(super) fn managed_with(
        &mut self,
        id: TaskId,
        function: ManagementFunction,
        result: Result<ManagementResponse, RequestFailure>,
        information: [u8; 3],
    ) {
        // Tasks that the function did not end continue.
        for task in self.tasks.values_mut().filter(|task| task.paused_by == Some(id)) {
            task.paused_by = None;
        }
        self.queue_all_streams();
        if id == OWN_ABORT {
            return;
        }
        self.outputs.push_back(Output::Managed { id, result, information });
        if function.is_multi_task() {
            self.outputs.push_back(Output::ToSession(ToSession::Release));
        }
    }

    pub(super) fn report_management(
        &mut self,
        id: TaskId,
        result: Result<ManagementResponse, RequestFailure>,
    ) {
        if id != OWN_ABORT {
            self.outputs.push_back(Output::Managed { id, result, information: [0; 3] });
        }
    }

    pub(super) fn queue_if(&mut self, allowed: Result<(), RequestFailure>, request: Queued) {
        match allowed {
            Ok(()) => self.enqueue(request),
            Err(failure) => self.fail_queued(request, failure),
        }
    }

    pub(super) fn is_open(&self) -> bool {
        matches!(self.state, State::FullFeature | State::Draining)
    }

    /// Checks that new requests are accepted in this state.
    pub(super) fn allowed(&self) -> Result<(), RequestFailure> {
        let why = match self.state {
            State::LoggingIn(_) => "the login is not complete",
            State::Draining => "the connection is being logged out",
            State::Closed => "the connection is closed",
            State::FullFeature if self.open_requests() >= self.limits.requests_max as usize => {
                "too many requests are outstanding"
            }
            State::FullFeature => return Ok(()),
        };
        Err(RequestFailure::Refused(why))
    }
}

pub(super) fn names_one_task(function: ManagementFunction) -> bool {
    [ManagementFunction::ABORT_TASK, ManagementFunction::QUERY_TASK].contains(&function)
}

/// Response to a function on one task if the target has no such task: RFC 7143 §11.6.1,
/// RFC 7144 §6.4.2.
pub(super) fn without_task(function: ManagementFunction) -> ManagementResponse {
    match function {
        ManagementFunction::QUERY_TASK => ManagementResponse::FUNCTION_COMPLETE,
        _ => ManagementResponse::TASK_DOES_NOT_EXIST,
    }
}
