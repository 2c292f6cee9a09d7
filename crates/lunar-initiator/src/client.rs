//! The task side of a connection: drives the protocol state machine and serves the handles.

mod handler;

use crate::completion_barrier::BarrierToken;
use crate::connection_end::{ConnectionEnd, ended};
use crate::connection_handle::{CommandLoad, ConnectionState, Executed, HandleRequest};
use crate::quirks::Quirks;
use crate::session_context::SessionContext;
use crate::shared_session_state::{ConnectionMessage, SharedSessionState};
use crate::target_connector::{PortalAddress, TargetConnector};
use crate::uncertain_writes::UncertainWrite;
use crate::{Error, ErrorKind};
use lunar_block::Buffer;
use lunar_iscsi::connection::initiator::{
    CloseReason, Command, CommandResult, ConnectionOptions, InitiatorConnection, Input, Management,
    Output, RequestFailure, SendTargets,
};
use lunar_iscsi::connection::target::TargetRecord;
use lunar_iscsi::framing::{DataDestination, TaskHasher, TaskId};
use lunar_iscsi::login::initiator::Established;
use lunar_iscsi::pdu::{
    AsyncEvent, LogoutReason, ManagementFunction, ManagementResponse, RejectReason,
};
use lunar_iscsi::session::initiator::{ConnectionEnding, ToConnection, ToSession};
use lunar_net::Outbox;
use lunar_wire::{Lun, Time};
use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasherDefault;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

/// Maximum number of requests taken from the handles and not yet answered.
const PENDING_MAX: usize = 512;
/// Maximum number of requests taken from the handles at once; their buffer is kept.
const TAKEN_MAX: usize = 64;
/// Time after which the session is ended if the target does not answer an ABORT TASK.
const ABORT_TIME: Duration = Duration::from_secs(30);
/// Maximum number of ABORT TASKs in flight: a target rejects immediate requests beyond a limit of
/// its own, RFC 7143 §4.2.2.1.
const ABORTS_MAX: usize = 8;
/// Time after which an ABORT TASK is sent again that the target rejected as one immediate request
/// too many.
const ABORT_PAUSE: Duration = Duration::from_millis(100);
/// Time a connection that logs out waits for its commands.
const DRAIN_TIME: Duration = Duration::from_secs(30);

/// Maximum length of the queue of deadlines: pending commands, and some that were answered
/// meanwhile.
const DUE_MAX: usize = 4 * PENDING_MAX;

enum PendingRequest {
    Command {
        lun: Lun,
        opcode: u8,
        data_in: Option<Buffer>,
        _load: CommandLoad,
        answer: oneshot::Sender<Result<Executed, Error>>,
        /// The state machine refused the command because the connection was about to end.
        unsent: bool,
        /// Set while the command is being aborted and may have written data.
        uncertain: Option<UncertainWrite>,
        /// Barriers that wait until the command is over.
        barrier_tokens: Vec<BarrierToken>,
    },
    Targets {
        answer: oneshot::Sender<Result<Vec<TargetRecord>, Error>>,
    },
}

/// Destination of the data segment being received.
enum SegmentDestination {
    Discarded,
    Control { buffer: Vec<u8>, filled: usize },
    Command { id: TaskId, at: usize },
}

/// Sender for the result of a login.
pub(crate) type LoginAnswer = oneshot::Sender<Result<Box<Established>, ConnectionEnd>>;

/// Progress of a logout.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum LogoutProgress {
    /// No logout was requested.
    None,
    /// The connection waits for its commands until this time; the session continues without it.
    Draining(Time),
    /// The session is being logged out, by this connection or by another one.
    LoggingOutSession,
    /// Only this connection is being logged out: the target requested it, or the commands of the
    /// connection are drained.
    LoggingOutConnection,
}

/// An ABORT TASK in flight.
#[derive(Clone, Copy, Debug)]
struct Abort {
    id: TaskId,
    task: TaskId,
    lun: Lun,
    /// Time by which the target must answer.
    by: Time,
}

/// An ABORT TASK that is to be sent.
#[derive(Clone, Copy, Debug)]
struct WaitingAbort {
    task: TaskId,
    lun: Lun,
    /// Time by which the target must answer, if it rejected this ABORT TASK before.
    by: Option<Time>,
}

/// Parts from which a connection is made; most of them are shared with its session.
#[derive(Debug)]
pub(crate) struct ConnectionParts {
    pub(crate) connector: TargetConnector,
    pub(crate) address: PortalAddress,
    pub(crate) session_state: Arc<SharedSessionState>,
    pub(crate) session_context: SessionContext,
    pub(crate) state: Arc<ConnectionState>,
}

/// A connection's state machine, with its pending requests.
pub(crate) struct ConnectionClient {
    machine: InitiatorConnection,
    /// True after the first outputs of the state machine were taken.
    started: bool,
    /// True after the session was notified that the connection is gone.
    is_removed: bool,
    /// True after a command was answered.
    worked: bool,
    session_state: Arc<SharedSessionState>,
    link: Arc<ConnectionState>,
    /// Messages to this connection that are being processed.
    inbox: VecDeque<ConnectionMessage>,
    /// Messages for the session, except the window, of which only the newest counts.
    to_session: Vec<ToSession>,
    window: Option<ToSession>,
    requests: mpsc::Receiver<HandleRequest>,
    /// Buffer for requests being taken from `requests`; otherwise empty.
    taken: Vec<HandleRequest>,
    leaving: LogoutProgress,
    pending: HashMap<TaskId, PendingRequest, BuildHasherDefault<TaskHasher>>,
    /// Pending commands that the state machine refused, and the reasons.
    refused: Vec<(TaskId, &'static str)>,
    /// ABORT TASKs that were not answered, at most [`ABORTS_MAX`].
    aborts: Vec<Abort>,
    /// ABORT TASKs that are to be sent: at most one for each pending command.
    waiting_aborts: VecDeque<WaitingAbort>,
    /// Time before which no ABORT TASK is sent.
    aborts_from: Option<Time>,
    /// Commands in the order they were taken, with their deadlines.
    due: VecDeque<(TaskId, Time)>,
    command_time: Option<Duration>,
    filling: SegmentDestination,
    segment_bytes: usize,
    deadline: Option<Time>,
    logged_in: bool,
    /// Ending of the connection; the session receives it when the cause is known.
    ending: Option<ConnectionEnding>,
    close_reason: Option<CloseReason>,
    login: Option<LoginAnswer>,
    logout: Option<oneshot::Sender<Result<(), Error>>>,
    portal: String,
    session_context: SessionContext,
    quirks: Arc<Quirks>,
}

impl ConnectionClient {
    pub(crate) fn new(
        options: ConnectionOptions,
        parts: &ConnectionParts,
        requests: mpsc::Receiver<HandleRequest>,
        login: Option<LoginAnswer>,
        now: Time,
    ) -> Self {
        Self {
            machine: InitiatorConnection::new(now, options),
            started: false,
            is_removed: false,
            worked: false,
            session_state: Arc::clone(&parts.session_state),
            link: Arc::clone(&parts.state),
            inbox: VecDeque::new(),
            to_session: Vec::new(),
            window: None,
            requests,
            taken: Vec::new(),
            leaving: LogoutProgress::None,
            pending: HashMap::default(),
            refused: Vec::new(),
            aborts: Vec::new(),
            waiting_aborts: VecDeque::new(),
            aborts_from: None,
            due: VecDeque::new(),
            command_time: parts.connector.command_time(),
            filling: SegmentDestination::Discarded,
            segment_bytes: 0,
            deadline: None,
            logged_in: false,
            ending: None,
            close_reason: None,
            login,
            logout: None,
            portal: parts.address.portal.clone(),
            session_context: parts.session_context.clone(),
            quirks: Arc::clone(&parts.connector.quirks),
        }
    }

    /// Passes an input to the state machine and executes its outputs.
    fn handle(&mut self, now: Time, input: Input, out: &mut Outbox) {
        self.machine.handle(now, input);
        self.handle_outputs(now, out);
    }

    fn handle_outputs(&mut self, now: Time, out: &mut Outbox) {
        loop {
            match self.machine.poll() {
                Output::Wait(deadline) => {
                    self.deadline = deadline;
                    self.answer_refused();
                    return;
                }
                Output::ToSession(message) => self.send_to_session(now, message),
                output => self.execute(now, output, out),
            }
        }
    }

    /// Queues messages that many PDUs produce until the end of a poll, to send them under one lock
    /// of the session; sends other messages at once, in order.
    fn send_to_session(&mut self, now: Time, message: ToSession) {
        match message {
            // The cause follows.
            ToSession::Closed { ending } => self.ending = Some(ending),
            ToSession::Window { .. } => self.window = Some(message),
            ToSession::Request { .. } | ToSession::TagFree(_) => self.to_session.push(message),
            message => {
                self.to_session.push(message);
                self.send_messages();
                self.process_inbox(now);
            }
        }
    }

    /// Sends the queued messages to the session. The replies arrive in the inbox.
    fn send_messages(&mut self) {
        self.to_session.extend(self.window.take());
        if !self.to_session.is_empty() {
            self.session_state.handle_messages(
                self.link.cid,
                &mut self.to_session,
                &mut self.inbox,
            );
        }
    }

    fn has_messages(&self) -> bool {
        self.window.is_some() || !self.to_session.is_empty()
    }

    /// At the end of a poll, sends the queued messages to the session and acts on the replies.
    fn exchange_messages(&mut self, now: Time, out: &mut Outbox) {
        while self.has_messages() {
            self.send_messages();
            self.process_inbox(now);
            self.handle_outputs(now, out);
        }
    }

    /// Processes the inbox; the caller handles the outputs of the state machine.
    fn process_inbox(&mut self, now: Time) {
        let mut inbox = std::mem::take(&mut self.inbox);
        for message in inbox.drain(..) {
            match message {
                ConnectionMessage::Session(message) => {
                    if message == ToConnection::LoggingOut {
                        self.link.set_up(false);
                        self.leaving = LogoutProgress::LoggingOutSession;
                    }
                    self.machine.handle(now, Input::Session(message));
                }
                ConnectionMessage::Abort(id, uncertain) => self.abort(now, id, uncertain),
                ConnectionMessage::Retire if self.leaving == LogoutProgress::None => {
                    self.leaving = LogoutProgress::Draining(now.after(DRAIN_TIME));
                }
                ConnectionMessage::Retire => {}
                ConnectionMessage::Barrier(lun, token) => self.add_barrier_token(lun, &token),
            }
        }
        self.inbox = inbox;
    }

    /// Aborts a command whose caller is gone. Its buffers stay until it is known to be over.
    fn abort(&mut self, now: Time, id: TaskId, now_uncertain: Option<UncertainWrite>) {
        let Some(PendingRequest::Command { lun, unsent: false, uncertain, .. }) =
            self.pending.get_mut(&id)
        else {
            return; // answered already, or not taken yet and never sent
        };
        *uncertain = now_uncertain;
        let abort = WaitingAbort { task: id, lun: *lun, by: None };
        self.waiting_aborts.push_back(abort);
        self.send_aborts(now);
    }

    /// Sends ABORT TASKs that wait, unless too many are in flight. The outputs of the state machine
    /// are pumped by the caller.
    fn send_aborts(&mut self, now: Time) {
        if self.aborts_from.is_some_and(|from| now < from) {
            return;
        }
        self.aborts_from = None;
        while self.aborts.len() < ABORTS_MAX
            && let Some(WaitingAbort { task, lun, by }) = self.waiting_aborts.pop_front()
        {
            if !self.pending.contains_key(&task) {
                continue; // answered meanwhile
            }
            let id = self.link.new_id();
            let by = by.unwrap_or_else(|| now.after(ABORT_TIME));
            self.aborts.push(Abort { id, task, lun, by });
            let function = ManagementFunction::ABORT_TASK;
            let management = Management { id, function, lun, referenced: Some(task) };
            self.machine.handle(now, Input::Manage(management));
        }
    }

    fn add_barrier_token(&mut self, unit: Lun, token: &BarrierToken) {
        for pending in self.pending.values_mut() {
            match pending {
                PendingRequest::Command { lun, barrier_tokens, .. } if *lun == unit => {
                    barrier_tokens.push(token.clone());
                }
                _ => {}
            }
        }
    }

    fn execute(&mut self, now: Time, output: Output, out: &mut Outbox) {
        match output {
            Output::Receive(destination) => self.receive(destination),
            Output::Send(pdu) => out.push(pdu),
            Output::SendData { initiator_task_tag, data, digest } => {
                out.push_part(initiator_task_tag, data, digest);
            }
            Output::FullFeature(parameters) => out.set_digests(parameters.digests),
            Output::LoggedIn(established) => {
                self.logged_in = true;
                self.link.set_up(!self.link.is_retired());
                if let Some(answer) = self.login.take() {
                    // The receiver is gone if the handle's future was dropped.
                    let _ = answer.send(Ok(established));
                }
            }
            Output::Completed { id, result } => self.completed(id, result),
            Output::Targets { result: Err(RequestFailure::Lost), .. } => {}
            Output::Targets { id, result } => {
                if let Some(PendingRequest::Targets { answer }) = self.pending.remove(&id) {
                    let _ = answer.send(result.map_err(|failure| self.failed(failure)));
                }
            }
            // `finish` reports the cause, once it is known.
            Output::LoggedOut { result: Err(RequestFailure::Lost) } => {}
            Output::LoggedOut { result } => {
                if let Some(answer) = self.logout.take() {
                    let _ = answer.send(result.map(drop).map_err(|failure| self.failed(failure)));
                }
            }
            Output::Event(event) => {
                tracing::info!(
                    ?event,
                    portal = %self.portal,
                    "the target sent an Asynchronous Message"
                );
                if event.event == AsyncEvent::LOGOUT_REQUESTED
                    && self.leaving == LogoutProgress::None
                {
                    self.link.set_up(false);
                    self.leaving = LogoutProgress::LoggingOutConnection;
                }
            }
            Output::Close(reason) => self.close_reason = Some(reason),
            Output::Managed { id, result, .. } => self.aborted(now, id, &result),
            // Never requested here; pings are sent by the state machine itself.
            Output::Pong { .. } | Output::Text { .. } => {}
            // Only streaming commands have these outputs, and this client sends none.
            Output::Wants { .. } | Output::DataIn { .. } => {}
            Output::ToSession(_) | Output::Wait(_) => {}
        }
    }

    /// Handles the end of an ABORT TASK. A task that the target ended was reported before; a task
    /// that the target does not know, or could not abort, ends only with the session.
    fn aborted(
        &mut self,
        now: Time,
        id: TaskId,
        result: &Result<ManagementResponse, RequestFailure>,
    ) {
        const TOO_MANY: RequestFailure =
            RequestFailure::Rejected(RejectReason::IMMEDIATE_COMMAND_REJECT);
        let Some(at) = self.aborts.iter().position(|abort| abort.id == id) else { return };
        let Abort { task, lun, by, .. } = self.aborts.swap_remove(at);
        let stays = self.pending.contains_key(&task);
        if stays && *result == Err(TOO_MANY) {
            self.waiting_aborts.push_back(WaitingAbort { task, lun, by: Some(by) });
            self.aborts_from = Some(now.after(ABORT_PAUSE));
        } else if stays
            && matches!(self.leaving, LogoutProgress::None | LogoutProgress::Draining(_))
        {
            let what = format!("{} did not end an aborted command", self.portal);
            self.session_state.end(&Error::new(ErrorKind::SessionLost, what));
        }
        self.send_aborts(now);
    }

    fn receive(&mut self, destination: DataDestination) {
        self.filling = match destination {
            DataDestination::Control => {
                SegmentDestination::Control { buffer: vec![0; self.segment_bytes], filled: 0 }
            }
            DataDestination::Task { task, offset_bytes, .. } => {
                SegmentDestination::Command { id: task, at: offset_bytes as usize }
            }
            // No command of this client streams.
            DataDestination::Stream { .. } | DataDestination::Discard => {
                SegmentDestination::Discarded
            }
        };
    }

    fn completed(&mut self, id: TaskId, result: Result<CommandResult, RequestFailure>) {
        match result {
            // `finish` reports the cause, once it is known.
            Err(RequestFailure::Lost | RequestFailure::LoggedOut) => return,
            Err(RequestFailure::Refused(why)) => return self.refused.push((id, why)),
            _ => {}
        }
        let command = self.pending.remove(&id);
        // The barrier tokens are held until the result is recorded.
        let Some(PendingRequest::Command {
            lun,
            opcode,
            data_in,
            answer,
            barrier_tokens: _tokens,
            ..
        }) = command
        else {
            return;
        };
        if result.is_ok() && !self.worked {
            self.worked = true;
            self.session_state.record_answered_command();
        }
        while self.due.front().is_some_and(|(id, _)| !self.pending.contains_key(id)) {
            self.due.pop_front();
        }
        let result = match result {
            Ok(result) => {
                // Recorded in the order of the target's responses, before a caller acts on them.
                self.session_context.attentions.record(
                    lun,
                    self.session_context.number,
                    opcode,
                    &result,
                );
                Ok(Executed { result, data_in })
            }
            // Data that arrived damaged was discarded (RFC 7143 §7.8): the command had no effect.
            Err(failure @ RequestFailure::Rejected(RejectReason::DATA_DIGEST_ERROR)) => {
                Err(self.failed(failure).not_sent())
            }
            Err(failure) => Err(self.failed(failure)),
        };
        let _ = answer.send(result);
    }

    /// Fails overdue commands; their callers then abort them.
    fn fail_overdue(&mut self, now: Time) {
        while let Some((id, _)) = self.due.pop_front_if(|(_, by)| *by <= now) {
            let Some(PendingRequest::Command { answer, .. }) = self.pending.get_mut(&id) else {
                continue;
            };
            let (nobody, _) = oneshot::channel();
            let seconds = self.command_time.unwrap_or_default().as_secs();
            let what = format!("{} did not answer a command within {seconds} s", self.portal);
            let error = Error::new(ErrorKind::TimedOut, what).hint(
                "the device of the target may not be responding; use a longer --command-seconds \
                 to wait longer",
            );
            drop(std::mem::replace(answer, nobody).send(Err(error)));
        }
    }

    /// Answers commands that the state machine refused, or marks them as unsent if the connection
    /// ends.
    fn answer_refused(&mut self) {
        if self.refused.is_empty() {
            return;
        }
        let ending = self.close_reason.is_some() || self.leaving != LogoutProgress::None;
        for (id, why) in std::mem::take(&mut self.refused) {
            if let (true, Some(PendingRequest::Command { unsent, .. })) =
                (ending, self.pending.get_mut(&id))
            {
                *unsent = true;
            } else if let Some(PendingRequest::Command { answer, .. }) = self.pending.remove(&id) {
                let _ = answer.send(Err(self.failed(RequestFailure::Refused(why))));
            }
        }
    }

    fn failed(&self, failure: RequestFailure) -> Error {
        let portal = &self.portal;
        match failure {
            RequestFailure::Refused(why) => {
                Error::new(ErrorKind::Refused, format!("the request was not sent: {why}"))
            }
            RequestFailure::Rejected(reason) => Error::new(
                ErrorKind::Refused,
                format!("the target at {portal} rejected the request: {reason:?}"),
            ),
            RequestFailure::Aborted => Error::new(
                ErrorKind::Refused,
                format!("the target at {portal} aborted the command"),
            ),
            RequestFailure::LoggedOut | RequestFailure::Lost | RequestFailure::DataMissing => {
                Error::new(ErrorKind::SessionLost, format!("the session with {portal} was lost"))
            }
        }
    }

    fn ask(&mut self, now: Time, request: HandleRequest, out: &mut Outbox) {
        match request {
            HandleRequest::Execute { answer, .. } if answer.is_closed() => {}
            HandleRequest::Execute { id, lun, cdb, data_out, data_in, load, answer } => {
                let data_in_bytes_max = data_in.as_ref().map_or(0, |buffer| buffer.len() as u32);
                let (unsent, uncertain, barrier_tokens) = (false, None, Vec::new());
                let pending = PendingRequest::Command {
                    lun,
                    opcode: cdb.first().copied().unwrap_or_default(),
                    data_in,
                    _load: load,
                    answer,
                    unsent,
                    uncertain,
                    barrier_tokens,
                };
                self.pending.insert(id, pending);
                if let Some(time) = self.command_time {
                    if self.due.len() >= DUE_MAX {
                        // An unanswered command at the front keeps answered ones in the queue.
                        self.due.retain(|(id, _)| self.pending.contains_key(id));
                    }
                    self.due.push_back((id, now.after(time)));
                }
                let attribute = lunar_iscsi::pdu::TaskAttribute::SIMPLE;
                let command = Command {
                    id,
                    lun,
                    cdb,
                    attribute,
                    priority: 0,
                    data_out,
                    data_in_bytes_max,
                    immediate: false,
                };
                self.handle(now, Input::Execute(command), out);
            }
            HandleRequest::SendTargets { answer } => {
                let id = self.link.new_id();
                self.pending.insert(id, PendingRequest::Targets { answer });
                self.handle(now, Input::SendTargets { id, which: SendTargets::All }, out);
            }
            HandleRequest::Logout { answer } => {
                self.logout = Some(answer);
                self.log_out(now, out);
            }
        }
    }

    /// Takes requests while there is room; requests made during the login wait in the channel.
    /// Returns true when there was any.
    fn poll_requests(&mut self, now: Time, context: &mut Context<'_>, out: &mut Outbox) -> bool {
        let mut any = false;
        while self.takes_requests() {
            let room = TAKEN_MAX.min(PENDING_MAX - self.pending.len());
            let mut taken = std::mem::take(&mut self.taken);
            let polled = self.requests.poll_recv_many(context, &mut taken, room);
            taken.drain(..).for_each(|request| self.ask(now, request, out));
            self.taken = taken;
            match polled {
                Poll::Ready(0) => self.log_out(now, out),
                Poll::Ready(_) => {}
                Poll::Pending => break,
            }
            any = true;
        }
        any
    }

    /// True when the connection takes requests; otherwise they wait in the channel.
    fn takes_requests(&self) -> bool {
        self.logged_in && self.leaving == LogoutProgress::None && self.pending.len() < PENDING_MAX
    }

    /// Logs the session out, unless another of its connections does.
    fn log_out(&mut self, now: Time, out: &mut Outbox) {
        self.link.set_up(false);
        if self.leaving != LogoutProgress::LoggingOutSession {
            self.leaving = LogoutProgress::LoggingOutSession;
            if self.session_state.begin_logout() {
                let logout = Input::Logout { reason: LogoutReason::CLOSE_SESSION, cid: None };
                self.handle(now, logout, out);
            }
        }
    }

    /// Logs the connection out of a session that continues, once its commands are drained.
    fn leave_when_drained(&mut self, now: Time, out: &mut Outbox) {
        if self.logged_in
            && let LogoutProgress::Draining(by) = self.leaving
            && (self.pending.is_empty() || by <= now)
        {
            self.leaving = LogoutProgress::LoggingOutConnection;
            let logout = Input::Logout { reason: LogoutReason::CLOSE_CONNECTION, cid: None };
            self.handle(now, logout, out);
        }
    }

    /// Time by which the next ABORT TASK must be answered.
    fn abort_deadline(&self) -> Option<Time> {
        let waiting = self.waiting_aborts.iter().filter_map(|abort| abort.by);
        self.aborts.iter().map(|abort| abort.by).chain(waiting).min()
    }

    /// True when the connection was logged in.
    pub(crate) fn was_up(&self) -> bool {
        self.logged_in
    }

    /// True when the connection received the response to a command.
    pub(crate) fn has_worked(&self) -> bool {
        self.worked
    }

    /// Returns why the connection ended; the session's cause if it was dropped.
    fn cause(&self) -> ConnectionEnd {
        let reason = self.close_reason.as_ref().unwrap_or(&CloseReason::PeerClosed);
        let ended = ended(reason, &self.portal);
        match (reason, self.session_state.cause()) {
            (CloseReason::Dropped, Some(cause)) => cause.clone().into(),
            _ => ended,
        }
    }

    /// Notifies the session that the connection is gone. At ErrorRecoveryLevel 0 the outcome of
    /// commands sent on it is unknown until a new session replaces this one (RFC 7143 §7.1.4.4): if
    /// there are any, the session ends too.
    fn end_connection(&mut self) {
        if std::mem::replace(&mut self.is_removed, true) {
            return;
        }
        // Requests and tags end with the connection.
        self.to_session.clear();
        let ending = self.ending.take().unwrap_or(ConnectionEnding::Lost);
        let cause = self.cause().error;
        let left_behind = self.record_lost_responses(ending);
        let closed = self.close_reason == Some(CloseReason::PeerClosed);
        if closed {
            self.session_state.record_target_close();
        }
        if closed && self.logged_in {
            self.session_state.record_close_of_target();
        }
        let dropped = self.logged_in && self.close_reason == Some(CloseReason::Dropped);
        if dropped && self.session_state.note_others_open() {
            self.quirks.note_order_loss(&self.portal, Instant::now());
        }
        let last =
            self.session_state.remove_connection(self.link.cid, ending, self.window.take(), &cause);
        if ending == ConnectionEnding::Lost && left_behind {
            self.session_state.end(&cause);
        }
        self.link.mailbox.drop_barrier_tokens();
        if closed && self.logged_in && !self.session_state.is_over() {
            self.session_state.take_close_of_target();
        }
        if last && let Some(end) = self.session_state.multi_connection_end() {
            self.quirks.note_multi_connection_end(end, &self.portal, Instant::now());
        }
    }

    /// Records lost responses before the session removes the connection; true if there were any.
    fn record_lost_responses(&self, ending: ConnectionEnding) -> bool {
        let left_behind = self.pending.values().filter_map(|pending| match pending {
            PendingRequest::Command { lun, unsent: false, .. } => Some(*lun),
            _ => None,
        });
        let mut any = false;
        for lun in left_behind {
            any = true;
            match ending {
                ConnectionEnding::ConnectionLogout => {
                    self.session_context.attentions.record_lost_response(lun);
                }
                _ => self.session_state.record_lost_responses(),
            }
        }
        any
    }

    /// Answers all pending requests with the cause of the end. Returns it with the receiver of
    /// further requests.
    pub(crate) fn finish(mut self) -> (ConnectionEnd, mpsc::Receiver<HandleRequest>) {
        self.link.set_up(false);
        self.answer_refused();
        self.end_connection();
        let ended = self.cause();
        if let Some(answer) = self.login.take() {
            let _ = answer.send(Err(ended.clone()));
        }
        for (_, pending) in std::mem::take(&mut self.pending) {
            match pending {
                PendingRequest::Command { answer, unsent: true, .. } => {
                    drop(answer.send(Err(ended.error.clone().not_sent())));
                }
                PendingRequest::Command { answer, uncertain, .. } => {
                    if let Some(uncertain) = uncertain {
                        self.session_context.hold(&self.session_state, uncertain);
                    }
                    drop(answer.send(Err(ended.error.clone())));
                }
                PendingRequest::Targets { answer } => drop(answer.send(Err(ended.error.clone()))),
            }
        }
        if let Some(answer) = self.logout.take() {
            let logged_out = matches!(self.close_reason, Some(CloseReason::LoggedOut));
            let _ = answer.send(if logged_out { Ok(()) } else { Err(ended.error.clone()) });
        }
        let (_, nothing) = mpsc::channel(1);
        let requests = std::mem::replace(&mut self.requests, nothing);
        (ended, requests)
    }
}

/// A connection that is dropped early, by a panic or with its runtime, also ends its session.
impl Drop for ConnectionClient {
    fn drop(&mut self) {
        self.end_connection();
    }
}
