//! The session: its window, its connections, and the order of delivery. RFC 7143 §4.2.2.1.

use super::management::{Managements, is_same_unit};
use super::window::{Arrived, Window};
use super::{Arrival, DataDue, Input, Output, ToConnection, ToSession};
use crate::framing::TaskId;
use crate::login::Joined;
use crate::pdu::{LogoutResult, TaskAttribute};
use crate::sorted_map::SortedMap;
use crate::text::{SessionParameters, TaskReporting};
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use lunar_wire::{Lun, SerialNumber, Time};

/// Limits of one session.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct SessionLimits {
    /// Maximum number of open numbered requests: MaxCmdSN − ExpCmdSN + 1 of an idle session.
    pub window_commands: u32,
}

impl Default for SessionLimits {
    fn default() -> Self {
        Self { window_commands: 128 }
    }
}

/// An accepted request that waits for delivery.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Waiting {
    pub(super) cid: u16,
    pub(super) ticket: u64,
    pub(super) immediate: bool,
    pub(super) cmd_sn: SerialNumber,
    pub(super) request: Arrival,
}

/// A SCSI command in the session.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct KnownCommand {
    /// The connection to which the task is allegiant: it carries data and response.
    /// RFC 7143 §4.2.5.1. `None` for a task that was left to the session.
    pub(super) cid: Option<u16>,
    pub(super) initiator_task_tag: u32,
    pub(super) lun: Lun,
    pub(super) attribute: TaskAttribute,
    pub(super) cmd_sn: SerialNumber,
    pub(super) immediate: bool,
    /// True if the command occupies the window.
    pub(super) counted: bool,
    /// True once the connection received the request to start the command.
    pub(super) delivered: bool,
    /// The strongest abort that was sent to the connection, if any.
    pub(super) aborting: Option<DataDue>,
}

impl KnownCommand {
    /// Another session's function hits it. With FastAbort (`has_fast_abort`) it hits all that has
    /// come in order.
    pub(super) fn is_exposed(&self, has_fast_abort: bool) -> bool {
        self.delivered || has_fast_abort && (self.counted || self.immediate)
    }
}

/// Maximum capacity of the output queue kept while it is empty.
const OUTPUTS_KEPT_MAX: usize = 32;
/// Room for so many requests that wait is kept while none does.
pub(super) const REQUESTS_KEPT_MAX: usize = 4;

/// One iSCSI session in the target role.
///
/// After each [`handle`](Self::handle), call [`poll`](Self::poll) until it returns `None`.
#[derive(Debug)]
pub struct TargetSession {
    tsih: u16,
    pub(super) parameters: SessionParameters,
    pub(super) window: Window<Waiting>,
    /// Connections by CID, with the state of a logout.
    pub(super) connections: SortedMap<u16, Link>,
    /// Serial number of the connection that joined last.
    pub(super) last_serial: u16,
    /// All tasks of the session, whichever connection they came on.
    pub(super) tasks: SortedMap<TaskId, KnownCommand>,
    /// Requests that wait for a task management function to end: those whose number came, and
    /// immediate commands for units of which another session's function aborts the tasks.
    pub(super) ready: VecDeque<Waiting>,
    pub(super) managements: Managements,
    /// The existing units; `None` if only the executor has the list.
    units: Option<Vec<Lun>>,
    /// True if the initiator may use functions for administrators.
    pub(super) administers: bool,
    /// True if resets are refused.
    pub(super) refuses_resets: bool,
    pub(super) logouts: Vec<Logout>,
    pub(super) state: State,
    /// The connection whose message is being handled.
    speaker: Option<u16>,
    /// Ticket of an accepted request that was not yet reported to the speaker.
    accepted: Option<u64>,
    pub(super) outputs: VecDeque<Output>,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Link {
    /// Serial number of the connection in the session.
    serial: u16,
    /// The connection is being logged out or closed: its end is no failure.
    pub(super) leaving: bool,
    /// A new connection replaces this one.
    pub(super) replaced: bool,
    /// The connection was closed because the session ends.
    ended: bool,
    /// ExpCmdSN and MaxCmdSN last sent to the connection.
    pub(super) sent_window: (SerialNumber, SerialNumber),
}

impl Link {
    /// True if the numbers last sent to this connection show a closed window.
    fn shows_closed_window(&self, exp_cmd_sn: SerialNumber) -> bool {
        !exp_cmd_sn.before(self.sent_window.1.next())
    }
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum State {
    /// No connection has joined yet.
    New,
    Open,
    /// Every connection is being closed or logged out.
    ConnectionEnding,
    Ended,
}

/// A logout in progress.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Logout {
    /// The connection that requested the logout and gets the response.
    requested_by: u16,
    /// The connection to close; `None`: the session.
    cid: Option<u16>,
}

impl TargetSession {
    /// Creates a session without connections. `first_cmd_sn` is the CmdSN of the leading login.
    pub fn new(
        tsih: u16,
        parameters: SessionParameters,
        first_cmd_sn: SerialNumber,
        limits: SessionLimits,
    ) -> Self {
        let window = Window::new(first_cmd_sn, limits.window_commands);
        Self {
            tsih,
            parameters,
            window,
            connections: SortedMap::default(),
            last_serial: 0,
            tasks: SortedMap::default(),
            ready: VecDeque::new(),
            managements: Managements::default(),
            units: None,
            administers: true,
            refuses_resets: false,
            logouts: Vec::new(),
            state: State::New,
            speaker: None,
            accepted: None,
            outputs: VecDeque::new(),
        }
    }

    /// Sets the units that the initiator sees: functions for any other unit are answered "LUN does
    /// not exist" before they abort anything.
    pub fn set_units(&mut self, units: Vec<Lun>) {
        self.units = Some(units);
    }

    /// Sets whether the initiator administers the target; the default is true. Otherwise functions
    /// for administrators are answered "function authorization failed" before they abort anything.
    pub fn set_administers(&mut self, administers: bool) {
        self.administers = administers;
    }

    /// Sets whether resets are refused for lack of resources; the default is false. They are
    /// answered "function rejected" before they abort anything.
    pub fn set_refuses_resets(&mut self, refuses_resets: bool) {
        self.refuses_resets = refuses_resets;
    }

    pub(super) fn has_unit(&self, lun: Lun) -> bool {
        let same = |unit: &Lun| is_same_unit(*unit, lun);
        self.units.as_ref().is_none_or(|units| units.iter().any(same))
    }

    /// The TSIH of the session.
    pub fn tsih(&self) -> u16 {
        self.tsih
    }

    /// Parameters negotiated by the leading connection.
    pub fn parameters(&self) -> SessionParameters {
        self.parameters
    }

    /// ExpCmdSN and MaxCmdSN.
    pub fn window(&self) -> (SerialNumber, SerialNumber) {
        (self.window.expected(), self.window.max())
    }

    /// The answer to the login of connection `cid`, which has joined. If the session was ending, it
    /// has received [`ToConnection::Close`] instead, and the session ignores its messages.
    pub fn joined(&self, cid: u16) -> Joined {
        let (exp_cmd_sn, max_cmd_sn) = self.window();
        Joined {
            tsih: self.tsih,
            session: self.parameters,
            exp_cmd_sn,
            max_cmd_sn,
            connection_serial: self.connections.get(cid).map_or(0, |link| link.serial),
        }
    }

    /// Number of SCSI commands that have not ended.
    pub fn tasks(&self) -> usize {
        self.tasks.len()
    }

    /// Number of connections.
    pub fn connections(&self) -> usize {
        self.connections.len()
    }

    /// The units of the tasks that another session's function hits now: one number for each task,
    /// as its command bears it.
    pub fn luns_of_exposed_tasks(&self) -> impl Iterator<Item = Lun> + '_ {
        let has_fast_abort = self.has_fast_abort();
        let exposed = self.tasks.iter().filter(move |(_, known)| known.is_exposed(has_fast_abort));
        exposed.map(|(_, known)| known.lun)
    }

    /// The unit and the attribute of the command with this ticket; `None` if it is no command, or
    /// has ended.
    pub fn command(&self, ticket: u64) -> Option<(Lun, TaskAttribute)> {
        let known = self.tasks.get(TaskId(ticket))?;
        Some((known.lun, known.attribute))
    }

    /// Handles one input. `now` is not used yet: connection recovery will need it.
    pub fn handle(&mut self, _now: Time, input: Input) {
        if let Input::Connection(cid, message) = &input
            && let Some(answer) = self.try_handle(*cid, message)
        {
            return self.outputs.push_back(Output::ToConnection(*cid, answer));
        }
        self.step(input);
    }

    /// Handles any input, in any state.
    pub(super) fn step(&mut self, input: Input) {
        match input {
            Input::Connection(cid, message) if self.connections.contains_key(cid) => {
                self.speaker = (message != ToSession::ConnectionClosed).then_some(cid);
                self.on_message(cid, message);
            }
            // A connection that has joined too late has no tasks in the session.
            Input::Connection(cid, ToSession::ConnectionClosing) => {
                self.outputs.push_back(Output::ToConnection(cid, ToConnection::DetachTasks));
            }
            // A message of a connection that has ended.
            Input::Connection(..) => {}
            Input::Join(cid) => self.join(cid),
            Input::TaskEnded(task) => self.task_ended(task),
            Input::Replace(cid) => self.replace(cid),
            Input::Managed { id, response, information } => {
                self.managed(id, response, information);
            }
            Input::AbortedByOther { id, lun } => self.abort_for_other(id, lun),
            Input::End => self.end(),
        }
        self.step_managements();
        self.deliver_ready();
        self.step_logouts();
        self.report_accepted();
        self.send_window();
        self.check_ended();
        self.speaker = None;
    }

    /// Returns the next output.
    pub fn poll(&mut self) -> Option<Output> {
        let output = self.outputs.pop_front();
        if output.is_none() {
            self.free_spare_memory();
        }
        output
    }

    /// Frees memory that many requests or outputs needed once and none needs now.
    fn free_spare_memory(&mut self) {
        if self.outputs.capacity() > OUTPUTS_KEPT_MAX {
            self.outputs = VecDeque::new();
        }
        if self.ready.is_empty() {
            self.ready.shrink_to(REQUESTS_KEPT_MAX);
        }
        self.managements.free_spare();
    }

    pub(super) fn output(&mut self, output: Output) {
        self.outputs.push_back(output);
    }

    pub(super) fn send(&mut self, cid: u16, message: ToConnection) {
        if self.connections.contains_key(cid) {
            self.outputs.push_back(Output::ToConnection(cid, message));
        }
    }

    /// True if responses of different connections have to be fenced.
    pub(super) fn has_fences(&self) -> bool {
        self.connections.len() > 1
    }

    /// True if fences also hold responses back. RFC 7143 §13.23.
    pub(super) fn holds_responses(&self) -> bool {
        self.parameters.task_reporting != TaskReporting::Rfc3720
    }

    /// True if RFC 7143 §4.2.3.4 applies instead of §4.2.3.3.
    pub(super) fn has_fast_abort(&self) -> bool {
        self.parameters.task_reporting == TaskReporting::FastAbort
    }

    fn on_message(&mut self, cid: u16, message: ToSession) {
        match message {
            ToSession::Arrived { ticket, immediate, cmd_sn, request } => {
                self.arrived(Waiting { cid, ticket, immediate, cmd_sn, request });
            }
            ToSession::TaskEnded(task) => self.task_ended(task),
            ToSession::FenceResponse(task) => self.fence_response(cid, task),
            ToSession::Fenced(id) => self.fenced(cid, id),
            ToSession::ConnectionClosing => self.connection_closing(cid),
            ToSession::ConnectionClosed => self.connection_closed(cid),
            ToSession::Logout { cid: closed } => self.logout(cid, closed),
            ToSession::DropSession => self.end(),
        }
    }

    fn arrived(&mut self, waiting: Waiting) {
        let (cid, ticket) = (waiting.cid, waiting.ticket);
        let open = self.state == State::Open && !self.leaving(cid);
        let accepted = open && (waiting.immediate || self.window.may_arrive(waiting.cmd_sn));
        if !accepted {
            return self.send(cid, ToConnection::Verdict { ticket, accepted });
        }
        self.accepted = Some(ticket);
        if let Arrival::Command { task, initiator_task_tag, lun, attribute } = &waiting.request {
            let known = KnownCommand {
                cid: Some(cid),
                initiator_task_tag: *initiator_task_tag,
                lun: *lun,
                attribute: *attribute,
                cmd_sn: waiting.cmd_sn,
                immediate: waiting.immediate,
                counted: false,
                delivered: false,
                aborting: None,
            };
            self.tasks.insert(*task, known);
        }
        if waiting.immediate {
            return match &waiting.request {
                Arrival::Command { lun, .. } if self.managements.holds_immediate(*lun) => {
                    self.ready.push_back(waiting);
                }
                _ => self.deliver(waiting),
            };
        }
        if self.window.pass(waiting.cmd_sn) {
            self.in_order(waiting);
        } else {
            self.window.insert(waiting.cmd_sn, waiting);
        }
        self.advance_window();
    }

    /// Handles a request whose number is the next one.
    fn in_order(&mut self, waiting: Waiting) {
        if let Arrival::Command { task, .. } = &waiting.request
            && let Some(known) = self.tasks.get_mut(*task)
        {
            known.counted = true;
        }
        self.ready.push_back(waiting);
    }

    /// Takes the requests that are in order now out of the window.
    pub(super) fn advance_window(&mut self) {
        while let Some(arrived) = self.window.next() {
            if let Arrived::Request(waiting) = arrived {
                self.in_order(waiting);
            }
        }
    }

    /// Delivers requests in order, up to a task management function that later requests must not
    /// overtake.
    fn deliver_ready(&mut self) {
        while !self.managements.is_barrier()
            && let Some(waiting) = self.ready.pop_front()
        {
            self.deliver(waiting);
            self.step_managements();
        }
    }

    fn deliver(&mut self, waiting: Waiting) {
        let Waiting { cid, ticket, immediate, .. } = waiting;
        match &waiting.request {
            Arrival::Command { task, .. } => {
                // Gone: aborted while it waited.
                let Some(known) = self.tasks.get_mut(*task) else { return };
                if known.aborting.is_none() {
                    known.delivered = true;
                    self.send_delivered(cid, ticket);
                }
            }
            Arrival::Management { .. } => {
                self.report_accepted();
                self.manage(waiting);
            }
            Arrival::Other => {
                if !immediate {
                    self.window.end();
                }
                self.send_delivered(cid, ticket);
            }
        }
    }

    /// Delivers a request; the message carries the window.
    fn send_delivered(&mut self, cid: u16, ticket: u64) {
        if self.speaker == Some(cid) && self.accepted == Some(ticket) {
            self.accepted = None; // implied by the delivery
        }
        let window @ (exp_cmd_sn, max_cmd_sn) = self.window();
        if let Some(link) = self.connections.get_mut(cid) {
            link.sent_window = window;
            let delivered = ToConnection::Deliver { ticket, exp_cmd_sn, max_cmd_sn };
            self.outputs.push_back(Output::ToConnection(cid, delivered));
        }
    }

    /// Reports to the speaker that its request was accepted and waits.
    fn report_accepted(&mut self) {
        if let (Some(cid), Some(ticket)) = (self.speaker, self.accepted.take()) {
            self.send(cid, ToConnection::Verdict { ticket, accepted: true });
        }
    }

    fn task_ended(&mut self, task: TaskId) {
        let Some(known) = self.tasks.remove(task) else { return };
        if known.counted {
            self.window.end();
        }
        if self.managements.task_ended(task) {
            self.release();
        }
    }

    /// Makes the connection abort a task, unless it has received an abort at least as strong.
    pub(super) fn abort(&mut self, task: TaskId, data: DataDue) {
        let Some(known) = self.tasks.get_mut(task) else { return };
        let previous = known.aborting;
        if previous >= Some(data) {
            return; // no change, and many resets may hit the same task
        }
        known.aborting = Some(data);
        let cid = known.cid;
        if previous.is_none() && !known.counted && !known.immediate && data != DataDue::Lost {
            // The command arrived early: its number stays received. That of a command that is lost
            // with its connection does not.
            self.window.plug(known.cmd_sn);
        }
        if let Some(cid) = cid {
            self.send(cid, ToConnection::AbortTask { task, data });
        }
    }

    fn join(&mut self, cid: u16) {
        if self.connections.contains_key(cid) {
            // The driver has not reported the end of the older connection.
            self.connection_closed(cid);
        }
        if matches!(self.state, State::ConnectionEnding | State::Ended) {
            self.outputs.push_back(Output::ToConnection(cid, ToConnection::Close));
            return;
        }
        self.state = State::Open;
        let window @ (exp_cmd_sn, max_cmd_sn) = self.window();
        let link = Link {
            serial: self.next_serial(),
            leaving: false,
            replaced: false,
            ended: false,
            sent_window: window,
        };
        self.connections.insert(cid, link);
        self.send(cid, ToConnection::Window { exp_cmd_sn, max_cmd_sn });
    }

    /// Returns a serial number for a connection that joins. It is never 0, and differs from those
    /// of all connections and tasks of the session, which are far fewer than there are numbers.
    fn next_serial(&mut self) -> u16 {
        loop {
            self.last_serial = self.last_serial.wrapping_add(1);
            let serial = self.last_serial;
            let is_used = serial == 0
                || self.connections.values().any(|link| link.serial == serial)
                || self.tasks.keys().any(|task| task.connection_serial() == serial);
            if !is_used {
                return serial;
            }
        }
    }

    fn replace(&mut self, cid: u16) {
        if let Some(link) = self.connections.get_mut(cid)
            && !link.replaced
        {
            (link.leaving, link.replaced) = (true, true);
            self.send(cid, ToConnection::Close);
        }
    }

    /// Handles a connection that has ended; its tasks have ended before, or were left to the
    /// session.
    fn connection_closed(&mut self, cid: u16) {
        let Some(link) = self.connections.remove(cid) else { return };
        for task in self.tasks_of(cid) {
            self.task_ended(task);
        }
        // RFC 7143 §7.11: unacknowledged requests are discarded.
        self.window.discard(|waiting| waiting.cid == cid);
        for waiting in core::mem::take(&mut self.ready) {
            if waiting.cid != cid {
                self.ready.push_back(waiting);
            } else if !matches!(waiting.request, Arrival::Command { .. }) {
                self.window.end();
            }
        }
        for _ in 0..self.managements.discard(cid) {
            self.window.end();
        }
        if self.managements.connection_closed(cid) {
            self.release();
        }
        for logout in core::mem::take(&mut self.logouts) {
            if logout.requested_by == cid {
                continue;
            }
            if logout.cid == Some(cid) {
                let done = ToConnection::LogoutDone(LogoutResult::CLOSED);
                self.send(logout.requested_by, done);
            } else {
                self.logouts.push(logout);
            }
        }
        // ErrorRecoveryLevel 0: a command lost with its connection cannot be sent again, and later
        // commands wait for it.
        let lost = !link.leaving && self.window.has_gap();
        let is_last = self.connections.is_empty() && !link.replaced;
        if is_last || lost {
            self.end();
        }
    }

    /// Begins a logout. RFC 7143 §11.14.
    fn logout(&mut self, requested_by: u16, cid: Option<u16>) {
        match cid {
            None => {
                self.state = State::ConnectionEnding;
                let others: Vec<_> =
                    self.connections.keys().filter(|cid| *cid != requested_by).collect();
                for cid in others {
                    self.leave(cid);
                    self.send(cid, ToConnection::Close);
                }
                self.leave(requested_by);
                self.abort_all_of(requested_by);
            }
            Some(own) if own == requested_by => {
                self.leave(own);
                self.abort_all_of(own);
            }
            Some(other) if self.connections.contains_key(other) => {
                self.leave(other);
                self.send(other, ToConnection::Close);
            }
            Some(_) => {
                let done = ToConnection::LogoutDone(LogoutResult::CID_NOT_FOUND);
                return self.send(requested_by, done);
            }
        }
        self.logouts.push(Logout { requested_by, cid });
    }

    /// Answers completed logouts of the asking connection itself, or of the session. Logouts of
    /// another connection are answered when it closes.
    fn step_logouts(&mut self) {
        for logout in core::mem::take(&mut self.logouts) {
            let own = logout.cid.is_none_or(|cid| cid == logout.requested_by);
            let is_only = logout.cid.is_some() || self.connections.len() == 1;
            let quiet = self.tasks.values().all(|known| known.cid != Some(logout.requested_by));
            if own && is_only && quiet {
                let done = ToConnection::LogoutDone(LogoutResult::CLOSED);
                self.send(logout.requested_by, done);
            } else {
                self.logouts.push(logout);
            }
        }
    }

    fn leave(&mut self, cid: u16) {
        if let Some(link) = self.connections.get_mut(cid) {
            link.leaving = true;
        }
    }

    fn leaving(&self, cid: u16) -> bool {
        self.connections.get(cid).is_none_or(|link| link.leaving)
    }

    fn abort_all_of(&mut self, cid: u16) {
        for task in self.tasks_of(cid) {
            self.abort(task, DataDue::Discarded);
        }
    }

    /// Ends the session: closes every connection.
    pub(super) fn end(&mut self) {
        if matches!(self.state, State::Ended) {
            return;
        }
        self.state = State::ConnectionEnding;
        let all: Vec<_> = self.connections.keys().collect();
        for cid in all {
            if let Some(link) = self.connections.get_mut(cid)
                && !core::mem::replace(&mut link.ended, true)
            {
                link.leaving = true;
                self.send(cid, ToConnection::Close);
            }
        }
    }

    /// Reports the current window to the connections that need it: the speaker, which will send a
    /// response, and connections that show a closed window, because the initiator must learn that
    /// it is open (RFC 7143 §11.4.11). PDUs of other connections carry an older window, which never
    /// takes anything back.
    fn send_window(&mut self) {
        if let Some(cid) = self.speaker {
            self.send_window_to(cid);
        }
        let somebody_speaks = self.speaker.is_some();
        if self.connections.len() > usize::from(somebody_speaks) {
            let exp_cmd_sn = self.window.expected();
            let needs = |link: &Link| !somebody_speaks || link.shows_closed_window(exp_cmd_sn);
            let all = self.connections.iter().filter(|(_, link)| needs(link));
            let all: Vec<_> = all.map(|(cid, _)| cid).collect();
            all.into_iter().for_each(|cid| self.send_window_to(cid));
        }
    }

    pub(super) fn send_window_to(&mut self, cid: u16) {
        let window @ (exp_cmd_sn, max_cmd_sn) = self.window();
        if let Some(link) = self.connections.get_mut(cid)
            && core::mem::replace(&mut link.sent_window, window) != window
        {
            self.send(cid, ToConnection::Window { exp_cmd_sn, max_cmd_sn });
        }
    }

    fn check_ended(&mut self) {
        if self.state == State::ConnectionEnding
            && self.connections.is_empty()
            && self.tasks.is_empty()
        {
            self.state = State::Ended;
            self.outputs.push_back(Output::Ended);
        }
    }
}
