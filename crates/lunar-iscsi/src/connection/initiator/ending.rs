//! The end of requests and of the connection, and the timers for both.

use super::machine::{Incoming, InitiatorConnection, State, Timers};
use super::request::{PingPurpose, Queued, Request, TextPurpose};
use super::task::Task;
use super::{CloseReason, CommandResult, Management, Output, RequestFailure};
use crate::session::initiator::{ConnectionEnding, ToSession};
use alloc::vec::Vec;
use bytes::Bytes;
use lunar_wire::Time;

impl InitiatorConnection {
    /// Reports a task as completed and frees its tag.
    pub(super) fn complete(&mut self, tag: u32, mut result: Result<CommandResult, RequestFailure>) {
        if let Some(mut task) = self.tasks.remove(&tag) {
            if task.stream.is_some() {
                self.complete_stream(tag, &mut task);
                result = task.result_of_stream(result);
            }
            self.bursts.retain(|burst| burst.initiator_task_tag != tag);
            self.outputs.push_back(Output::Completed { id: task.id, result });
            self.free_tag(tag);
        }
    }

    /// Returns the tags of the tasks that match, in the order of the caller's ids.
    pub(super) fn tags_of(&self, meant: impl Fn(&Task) -> bool) -> Vec<u32> {
        let tasks = self.tasks.iter().filter(|(_, task)| meant(task));
        let mut tags: Vec<_> = tasks.map(|(tag, task)| (task.id, *tag)).collect();
        tags.sort_unstable();
        tags.into_iter().map(|(_, tag)| tag).collect()
    }

    /// Removes the request with this tag and frees the tag.
    pub(super) fn take_request(&mut self, tag: u32) -> Option<Request> {
        let request = self.requests.remove(&tag)?;
        self.free_tag(tag);
        Some(request)
    }

    pub(super) fn fail_queued(&mut self, request: Queued, failure: RequestFailure) {
        match request {
            Queued::Command { command, aborts, .. } => {
                let id = command.id;
                self.outputs.push_back(Output::Completed { id, result: Err(failure) });
                for abort in aborts {
                    self.report_management(abort.id, Err(failure));
                }
            }
            Queued::Management(Management { id, function, .. }) => {
                self.managed(id, function, Err(failure));
            }
            Queued::Ping { purpose, .. } => self.fail_ping(purpose, failure),
            Queued::Text { purpose, .. } => self.fail_text(purpose, failure),
            Queued::Logout { by_caller: true, .. } => {
                self.outputs.push_back(Output::LoggedOut { result: Err(failure) });
            }
            Queued::Answer { .. } | Queued::MoreText { .. } | Queued::Logout { .. } => {}
        }
    }

    pub(super) fn fail_request(&mut self, request: Request, failure: RequestFailure) {
        match request {
            Request::Management { id, function, .. } => {
                self.managed(id, function, Err(failure));
            }
            Request::Ping { purpose, .. } => self.fail_ping(purpose, failure),
            Request::Text { purpose, .. } => self.fail_text(purpose, failure),
            Request::Logout { by_caller, .. } => {
                self.timers.logout_by = None;
                if by_caller {
                    self.outputs.push_back(Output::LoggedOut { result: Err(failure) });
                }
            }
        }
    }

    pub(super) fn fail_ping(&mut self, purpose: PingPurpose, failure: RequestFailure) {
        match purpose {
            PingPurpose::Caller(id) => {
                self.outputs.push_back(Output::Pong { id, result: Err(failure) });
            }
            // A target that rejects a ping is alive.
            PingPurpose::KeepAlive => self.timers.pinged = None,
            PingPurpose::FillGap(_) => {}
        }
    }

    pub(super) fn fail_text(&mut self, purpose: TextPurpose, failure: RequestFailure) {
        match purpose {
            TextPurpose::Caller(id) => {
                self.outputs.push_back(Output::Text { id, result: Err(failure) });
            }
            TextPurpose::SendTargets(id) => {
                self.outputs.push_back(Output::Targets { id, result: Err(failure) });
            }
            TextPurpose::Renegotiate => {}
        }
    }

    /// Ends the connection, once: reports every open request, then closes.
    pub(super) fn close(
        &mut self,
        reason: CloseReason,
        ending: ConnectionEnding,
        failure: RequestFailure,
    ) {
        let ending = match core::mem::replace(&mut self.state, State::Closed) {
            State::Closed => return,
            State::LoggingIn(_) => ConnectionEnding::NotJoined,
            State::FullFeature | State::Draining => ending,
        };
        self.bursts.clear();
        self.ready.clear();
        self.ended_tags.clear();
        self.incoming = Incoming::None;
        for tag in self.tags_of(|_| true) {
            self.complete(tag, Err(failure));
        }
        for (_, request) in core::mem::take(&mut self.requests) {
            self.fail_request(request, failure);
        }
        let unsent = RequestFailure::Refused("the connection ended first");
        for request in self.queue.drain() {
            self.fail_queued(request, unsent);
        }
        for (purpose, _) in core::mem::take(&mut self.texts) {
            self.fail_text(purpose, unsent);
        }
        self.timers = Timers::default();
        self.outputs.push_back(Output::ToSession(ToSession::Closed { ending }));
        self.outputs.push_back(Output::Close(reason));
    }

    pub(super) fn deadline(&self) -> Option<Time> {
        let ping = match (&self.state, self.timers.pinged, self.limits.ping_interval) {
            (State::LoggingIn(_) | State::Draining | State::Closed, ..) => None,
            (_, None, None) => None,
            (_, Some(pinged), _) => {
                Some(pinged.max(self.timers.heard).after(self.limits.ping_time))
            }
            (_, None, Some(interval)) => Some(self.timers.heard.after(interval)),
        };
        let timers = &self.timers;
        if let (None, None, None, None) =
            (timers.login_by, timers.logout_by, timers.drain_by, timers.parts_by)
        {
            return ping; // nearly always
        }
        let others = [timers.login_by, timers.logout_by, timers.drain_by, timers.parts_by];
        others.into_iter().chain([ping]).flatten().min()
    }

    pub(super) fn on_deadline(&mut self, now: Time) {
        let due = |time: Option<Time>| time.is_some_and(|time| time <= now);
        if due(self.timers.login_by) {
            return self.time_out("the login");
        }
        if due(self.timers.logout_by) {
            return self.time_out("a logout");
        }
        if due(self.timers.drain_by) {
            self.log_out_drained();
        }
        if due(self.timers.parts_by) {
            self.fail_late_parts(now);
        }
        if !due(self.deadline()) {
            return;
        }
        if self.timers.pinged.is_some() {
            return self.time_out("a ping");
        }
        // The deadline of the ping is measured from now, until the ping is sent.
        self.timers.pinged = Some(now);
        self.enqueue(Queued::Ping { purpose: PingPurpose::KeepAlive, data: Bytes::new() });
    }

    pub(super) fn time_out(&mut self, what: &'static str) {
        self.close(CloseReason::TimedOut(what), ConnectionEnding::Lost, RequestFailure::Lost);
    }
}
