//! The machine of one connection in the initiator role.

use super::request::{Asked, PingPurpose, Request, TextPurpose};
use super::task::{Burst, Task, checked};
use super::{
    CloseReason, CommandResult, ConnectionLimits, ConnectionOptions, Failure, Input, Management,
    Output, SendTargets, Violation,
};
use crate::framing::{Header, Pdu, Place};
use crate::login::initiator::{Established, InitiatorLogin, Step};
use crate::pdu::{
    AsyncMessage, DataIn, LogoutReason, LogoutResponse, ManagementFunction, ManagementResponse,
    Opcode, Reject, ScsiResponse, TaskManagementResponse, TextResponse,
};
use crate::session::initiator::{Ending, ToConnection, ToSession};
use crate::text::{ConnectionParameters, SessionParameters};
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use bytes::Bytes;
use wire::{SerialNumber, Time};

/// One iSCSI connection in the initiator role: no socket, no clock, no lock.
///
/// Contract: after [`new`](Self::new) and after each [`handle`](Self::handle), call
/// [`poll`](Self::poll) until it returns [`Output::Wait`] or [`Output::Close`].
#[derive(Debug)]
pub struct InitiatorConnection {
    state: State,
    pub(super) cid: u16,
    pub(super) limits: ConnectionLimits,
    agreed: Option<SessionParameters>,
    pub(super) session: SessionParameters,
    pub(super) connection: ConnectionParameters,
    pub(super) exp_stat_sn: SerialNumber,
    window: (SerialNumber, SerialNumber),
    pub(super) incoming: Incoming,
    pub(super) next_ticket: u64,
    /// Requests that wait for their numbers, by ticket.
    pub(super) asked: BTreeMap<u64, Asked>,
    /// Texts that wait for the one before: one exchange at a time. RFC 7143 §11.10.
    texts: VecDeque<(TextPurpose, Bytes)>,
    /// Commands that were sent, by Initiator Task Tag.
    pub(super) tasks: BTreeMap<u32, Task>,
    /// Other requests that were sent, by Initiator Task Tag.
    pub(super) requests: BTreeMap<u32, Request>,
    /// Data-Out that is due, in the order it was asked for.
    pub(super) bursts: VecDeque<Burst>,
    /// Tags of tasks that management functions ended; late PDUs for them are no news.
    pub(super) ended_tags: VecDeque<u32>,
    pub(super) timers: Timers,
    pub(super) outputs: VecDeque<Output>,
}

#[derive(Debug)]
enum State {
    LoggingIn(InitiatorLogin),
    FullFeature,
    /// No new requests: a logout is asked for or under way.
    Draining,
    Closed,
}

/// The PDU whose data segment is being received.
#[derive(Debug)]
pub(super) enum Incoming {
    None,
    Login,
    Control(Header),
    DataIn { tag: u32, status: Option<DataIn>, over: bool },
    Discard(Opcode),
}

#[derive(Debug, Default)]
pub(super) struct Timers {
    login_by: Option<Time>,
    pub(super) logout_by: Option<Time>,
    /// When a logout is sent, though not all is over.
    drain_by: Option<Time>,
    /// When a ping of our own was sent that has no answer.
    pub(super) pinged: Option<Time>,
    /// When anything arrived last.
    heard: Time,
}

impl InitiatorConnection {
    /// A connection over a fresh transport; its login starts at once.
    pub fn new(now: Time, options: ConnectionOptions) -> Self {
        let cid = options.login.cid;
        let closed = options.login.cmd_sn;
        let mut login = InitiatorLogin::new(options.login);
        let mut steps = Vec::new();
        login.start(&mut steps);
        let mut connection = Self {
            state: State::LoggingIn(login),
            cid,
            limits: options.limits,
            agreed: options.session,
            session: SessionParameters::default(),
            connection: ConnectionParameters::default(),
            exp_stat_sn: SerialNumber::default(),
            window: (closed, closed.minus(1)),
            incoming: Incoming::None,
            next_ticket: 0,
            asked: BTreeMap::new(),
            texts: VecDeque::new(),
            tasks: BTreeMap::new(),
            requests: BTreeMap::new(),
            bursts: VecDeque::new(),
            ended_tags: VecDeque::new(),
            timers: Timers {
                login_by: Some(now.after(options.limits.login_time)),
                ..Timers::default()
            },
            outputs: VecDeque::new(),
        };
        connection.on_login_steps(now, steps);
        connection
    }

    /// Takes one input. Infallible: what the target does wrong ends the connection.
    pub fn handle(&mut self, now: Time, input: Input) {
        if let Err(violation) = self.step(now, input) {
            self.shut(CloseReason::Violation(violation), Ending::Violation, Failure::Lost);
        }
        self.log_out_when_drained();
    }

    /// The next output. Data-Out is made only when asked for here.
    pub fn poll(&mut self) -> Output {
        if let Some(output) = self.outputs.pop_front() {
            return output;
        }
        match self.next_data_out() {
            Some(pdu) => Output::Send(pdu),
            None => Output::Wait(self.deadline()),
        }
    }

    /// Nothing is in hand: no task, no request, no data to send.
    pub fn is_idle(&self) -> bool {
        self.in_hand() == 0 && self.bursts.is_empty()
    }

    /// How many requests are in hand, those that wait included.
    pub(super) fn in_hand(&self) -> usize {
        self.asked.len() + self.texts.len() + self.tasks.len() + self.requests.len()
    }

    fn step(&mut self, now: Time, input: Input) -> Result<(), Violation> {
        match input {
            Input::Header(header) => self.on_header(now, header)?,
            Input::Payload { data, digest_ok } => self.on_payload(now, data, digest_ok)?,
            Input::HeaderDigestError if self.is_open() => return Err(Violation::HeaderDigest),
            Input::HeaderDigestError => {}
            Input::Execute(command) => {
                let allowed = self.allowed().and_then(|()| checked(&command));
                let asked = Asked::Command { command, aborts: Vec::new() };
                self.ask_if(allowed, asked);
            }
            Input::Manage(management) => self.on_manage(management),
            Input::Ping { id, data } => {
                let fits = data.len() <= self.connection.send_data_segment_bytes_max as usize;
                let too_long = Failure::Refused("a ping longer than the target can receive");
                let allowed = self.allowed().and(if fits { Ok(()) } else { Err(too_long) });
                self.ask_if(allowed, Asked::Ping { purpose: PingPurpose::Asked(id), data });
            }
            Input::SendTargets { id, which } => {
                let value = match &which {
                    SendTargets::All => "All",
                    SendTargets::Name(name) => name,
                    SendTargets::This => "",
                };
                let text = [b"SendTargets=", value.as_bytes(), b"\0"].concat().into();
                self.on_ask_text(TextPurpose::SendTargets(id), text);
            }
            Input::Text { id, text } => self.on_ask_text(TextPurpose::Asked(id), text),
            Input::Logout { reason, cid } => self.on_ask_logout(reason, cid),
            Input::Session(message) => self.on_session(now, message),
            Input::Deadline => self.on_deadline(now),
            Input::PeerClosed => {
                self.shut(CloseReason::PeerClosed, Ending::Lost, Failure::Lost);
            }
        }
        Ok(())
    }

    fn on_header(&mut self, now: Time, header: Header) -> Result<(), Violation> {
        self.timers.heard = now;
        match &mut self.state {
            State::Closed => return Ok(()),
            State::LoggingIn(login) => {
                let mut steps = Vec::new();
                if login.on_header(&header, &mut steps) {
                    self.incoming = Incoming::Login;
                    self.outputs.push_back(Output::Receive(Place::Control));
                }
                self.on_login_steps(now, steps);
                return Ok(());
            }
            State::FullFeature | State::Draining => {}
        }
        let (opcode, bytes) = (header.opcode(), header.data_segment_bytes());
        let bytes_max = self.connection.receive_data_segment_bytes_max;
        if bytes > bytes_max {
            return Err(Violation::TooLong { pdu: opcode, bytes, bytes_max });
        }
        match opcode {
            Opcode::DATA_IN => return self.on_data_in(&header),
            Opcode::READY_TO_TRANSFER => return self.on_ready_to_transfer(&header),
            Opcode::NOP_IN => self.on_nop_in_header(&header)?,
            _ => self.on_answer_header(&header)?,
        }
        if bytes > 0 {
            self.receive_control(header);
            return Ok(());
        }
        self.on_control(now, &header, &Bytes::new())
    }

    /// The numbers of all that consumes a StatSN.
    fn on_answer_header(&mut self, header: &Header) -> Result<(), Violation> {
        macro_rules! numbers {
            ($pdu:ident) => {{
                let pdu = $pdu::decode(&header.bhs);
                (pdu.stat_sn, pdu.exp_cmd_sn, pdu.max_cmd_sn)
            }};
        }
        let (stat_sn, exp_cmd_sn, max_cmd_sn) = match header.opcode() {
            Opcode::SCSI_RESPONSE => {
                self.on_response_header(header)?;
                numbers!(ScsiResponse)
            }
            Opcode::TASK_MANAGEMENT_RESPONSE => numbers!(TaskManagementResponse),
            Opcode::TEXT_RESPONSE => numbers!(TextResponse),
            Opcode::LOGOUT_RESPONSE => numbers!(LogoutResponse),
            Opcode::ASYNC_MESSAGE => numbers!(AsyncMessage),
            Opcode::REJECT => numbers!(Reject),
            got => return Err(Violation::Misplaced { got, state: "in full feature phase" }),
        };
        self.on_stat_sn(stat_sn)?;
        self.on_window(exp_cmd_sn, max_cmd_sn);
        Ok(())
    }

    fn on_payload(&mut self, now: Time, data: Bytes, digest_ok: bool) -> Result<(), Violation> {
        self.timers.heard = now;
        let incoming = core::mem::replace(&mut self.incoming, Incoming::None);
        let pdu = match &incoming {
            Incoming::Control(header) => header.opcode(),
            Incoming::DataIn { .. } => Opcode::DATA_IN,
            Incoming::Discard(opcode) => *opcode,
            Incoming::Login => Opcode::LOGIN_RESPONSE,
            Incoming::None => return Ok(()),
        };
        if !digest_ok {
            return Err(Violation::DataDigest { pdu });
        }
        match incoming {
            Incoming::Control(header) => self.on_control(now, &header, &data),
            Incoming::DataIn { tag, over: true, .. } => {
                self.end_task(tag);
                Ok(())
            }
            Incoming::DataIn { tag, status, .. } => self.data_in_done(tag, status),
            Incoming::Login => {
                let mut steps = Vec::new();
                if let State::LoggingIn(login) = &mut self.state {
                    login.on_payload(data, &mut steps);
                }
                self.on_login_steps(now, steps);
                Ok(())
            }
            Incoming::Discard(_) | Incoming::None => Ok(()),
        }
    }

    /// A whole PDU other than Data-In and R2T; its numbers were judged with its header.
    fn on_control(&mut self, now: Time, header: &Header, data: &Bytes) -> Result<(), Violation> {
        match header.opcode() {
            Opcode::SCSI_RESPONSE => self.on_response(header, data),
            Opcode::TASK_MANAGEMENT_RESPONSE => self.on_management(header),
            Opcode::TEXT_RESPONSE => self.on_text(header, data),
            Opcode::LOGOUT_RESPONSE => self.on_logout(header),
            Opcode::ASYNC_MESSAGE => self.on_async(now, header, data),
            Opcode::REJECT => self.on_reject(header, data),
            _ => self.on_pong(header, data),
        }
    }

    /// Each StatSN once, and in order: anything else means a lost response, which only session
    /// recovery mends at ErrorRecoveryLevel 0. RFC 7143 §4.2.2.2.
    pub(super) fn on_stat_sn(&mut self, stat_sn: SerialNumber) -> Result<(), Violation> {
        if stat_sn != self.exp_stat_sn {
            return Err(Violation::StatSn { got: stat_sn.0, expected: self.exp_stat_sn.0 });
        }
        self.exp_stat_sn = stat_sn.next();
        Ok(())
    }

    /// R2T and pings tell the next StatSN without consuming it.
    pub(super) fn on_next_stat_sn(&mut self, stat_sn: SerialNumber) -> Result<(), Violation> {
        if stat_sn.after(self.exp_stat_sn) {
            return Err(Violation::StatSn { got: stat_sn.0, expected: self.exp_stat_sn.0 });
        }
        Ok(())
    }

    pub(super) fn on_window(&mut self, exp_cmd_sn: SerialNumber, max_cmd_sn: SerialNumber) {
        if self.window != (exp_cmd_sn, max_cmd_sn) {
            self.window = (exp_cmd_sn, max_cmd_sn);
            let window = ToSession::Window { exp_cmd_sn, max_cmd_sn };
            self.outputs.push_back(Output::ToSession(window));
        }
    }

    fn on_login_steps(&mut self, now: Time, steps: Vec<Step>) {
        for step in steps {
            match step {
                Step::Send(pdu) => self.send(pdu),
                Step::Complete(established) => self.on_logged_in(now, *established),
                Step::Failed(failure) => {
                    let reason = CloseReason::LoginFailed(failure);
                    self.shut(reason, Ending::NotJoined, Failure::Lost);
                }
            }
        }
    }

    fn on_logged_in(&mut self, now: Time, established: Established) {
        self.state = State::FullFeature;
        self.timers.login_by = None;
        self.timers.heard = now;
        self.session = self.agreed.unwrap_or(established.session);
        self.connection = established.connection;
        self.exp_stat_sn = established.exp_stat_sn;
        let joined = ToSession::Joined { tsih: established.tsih, parameters: self.session };
        self.outputs.push_back(Output::FullFeature(self.connection));
        self.outputs.push_back(Output::ToSession(joined));
        self.on_window(established.exp_cmd_sn, established.max_cmd_sn);
        self.outputs.push_back(Output::LoggedIn(established));
    }

    fn on_session(&mut self, now: Time, message: ToConnection) {
        match message {
            ToConnection::Grant { ticket, cmd_sn, initiator_task_tag } => {
                self.granted(now, ticket, cmd_sn, initiator_task_tag);
            }
            ToConnection::Refused { ticket } => self.refused(ticket),
            ToConnection::TasksEnded { lun, before } => self.end_tasks(lun, before),
            ToConnection::LoggingOut if self.is_open() => self.state = State::Draining,
            ToConnection::LoggingOut => {}
            ToConnection::Close => self.shut(CloseReason::Dropped, Ending::Lost, Failure::Lost),
        }
    }

    fn on_manage(&mut self, management: Management) {
        let Management { id, function, referenced, .. } = management;
        let refused = |why| Output::Managed { id, result: Err(Failure::Refused(why)) };
        if let Err(failure) = self.allowed() {
            return self.outputs.push_back(Output::Managed { id, result: Err(failure) });
        }
        if function == ManagementFunction::TASK_REASSIGN {
            return self.outputs.push_back(refused("it needs ErrorRecoveryLevel 2"));
        }
        if function != ManagementFunction::ABORT_TASK {
            return self.ask(Asked::Management(management));
        }
        let Some(referenced) = referenced else {
            return self.outputs.push_back(refused("ABORT TASK without a task"));
        };
        if self.tasks.values().any(|task| task.id == referenced) {
            return self.ask(Asked::Management(management));
        }
        for (ticket, asked) in &mut self.asked {
            if let Asked::Command { command, aborts } = asked
                && command.id == referenced
            {
                aborts.push(management);
                let withdraw = ToSession::Withdraw { ticket: *ticket };
                return self.outputs.push_back(Output::ToSession(withdraw));
            }
        }
        let result = Ok(ManagementResponse::TASK_DOES_NOT_EXIST);
        self.outputs.push_back(Output::Managed { id, result });
    }

    fn on_ask_text(&mut self, purpose: TextPurpose, text: Bytes) {
        let fits = text.len() <= self.connection.send_data_segment_bytes_max as usize;
        let too_long = Failure::Refused("a text longer than the target can receive");
        let allowed = self.allowed().and(if fits { Ok(()) } else { Err(too_long) });
        if allowed.is_ok() && self.text_is_open() {
            self.texts.push_back((purpose, text));
        } else {
            self.ask_if(allowed, Asked::Text { purpose, text });
        }
    }

    /// A text exchange is under way or about to be.
    pub(super) fn text_is_open(&self) -> bool {
        let asked = |asked: &Asked| matches!(asked, Asked::Text { .. } | Asked::MoreText { .. });
        self.asked.values().any(asked)
            || self.requests.values().any(|request| matches!(request, Request::Text { .. }))
    }

    /// The turn of the next text, once the one before is over.
    pub(super) fn next_text(&mut self) {
        if !self.text_is_open()
            && let Some((purpose, text)) = self.texts.pop_front()
        {
            self.ask(Asked::Text { purpose, text });
        }
    }

    fn on_ask_logout(&mut self, reason: LogoutReason, cid: Option<u16>) {
        let cid = cid.unwrap_or(self.cid);
        let allowed = match self.state {
            State::FullFeature | State::Draining if self.timers.logout_by.is_none() => Ok(()),
            _ => Err(Failure::Refused("not logged in, or logging out already")),
        };
        if allowed.is_ok() && (reason == LogoutReason::CLOSE_SESSION || cid == self.cid) {
            self.state = State::Draining;
            self.timers.drain_by = None;
        }
        self.ask_if(allowed, Asked::Logout { reason, cid, told: true });
    }

    /// Takes no new requests, and logs this connection out when all is over, at the latest `by`.
    pub(super) fn drain(&mut self, by: Time) {
        if matches!(self.state, State::FullFeature) {
            self.state = State::Draining;
            self.timers.drain_by = Some(by);
        }
    }

    fn log_out_when_drained(&mut self) {
        if self.timers.drain_by.is_some() && self.in_hand() == 0 {
            self.log_out_drained();
        }
    }

    fn log_out_drained(&mut self) {
        self.timers.drain_by = None;
        let reason = LogoutReason::CLOSE_CONNECTION;
        self.ask(Asked::Logout { reason, cid: self.cid, told: false });
    }

    fn ask_if(&mut self, allowed: Result<(), Failure>, asked: Asked) {
        match allowed {
            Ok(()) => self.ask(asked),
            Err(failure) => self.fail_asked(asked, failure),
        }
    }

    fn is_open(&self) -> bool {
        matches!(self.state, State::FullFeature | State::Draining)
    }

    /// New requests are welcome.
    fn allowed(&self) -> Result<(), Failure> {
        let why = match self.state {
            State::LoggingIn(_) => "the login is not through",
            State::Draining => "the connection is being logged out",
            State::Closed => "the connection is closed",
            State::FullFeature if self.in_hand() >= self.limits.requests_max as usize => {
                "too many requests are in hand"
            }
            State::FullFeature => return Ok(()),
        };
        Err(Failure::Refused(why))
    }

    pub(super) fn send(&mut self, pdu: Pdu) {
        self.outputs.push_back(Output::Send(pdu));
    }

    pub(super) fn free_tag(&mut self, tag: u32) {
        self.outputs.push_back(Output::ToSession(ToSession::TagFree(tag)));
    }

    /// A task is over.
    pub(super) fn complete(&mut self, tag: u32, result: Result<CommandResult, Failure>) {
        if let Some(task) = self.tasks.remove(&tag) {
            self.bursts.retain(|burst| burst.initiator_task_tag != tag);
            self.outputs.push_back(Output::Completed { id: task.id, result });
            self.free_tag(tag);
        }
    }

    /// The request of this tag is over.
    pub(super) fn take_request(&mut self, tag: u32) -> Option<Request> {
        let request = self.requests.remove(&tag)?;
        self.free_tag(tag);
        Some(request)
    }

    pub(super) fn fail_asked(&mut self, asked: Asked, failure: Failure) {
        let result = Err(failure);
        match asked {
            Asked::Command { command, aborts } => {
                let id = command.id;
                self.outputs.push_back(Output::Completed { id, result: Err(failure) });
                for abort in aborts {
                    let result = Err(failure);
                    self.outputs.push_back(Output::Managed { id: abort.id, result });
                }
            }
            Asked::Management(Management { id, .. }) => {
                self.outputs.push_back(Output::Managed { id, result });
            }
            Asked::Ping { purpose, .. } => self.fail_ping(purpose, failure),
            Asked::Text { purpose, .. } => self.fail_text(purpose, failure),
            Asked::Logout { told: true, .. } => {
                self.outputs.push_back(Output::LoggedOut { result: Err(failure) });
            }
            Asked::Answer { .. } | Asked::MoreText { .. } | Asked::Logout { .. } => {}
        }
    }

    pub(super) fn fail_request(&mut self, request: Request, failure: Failure) {
        match request {
            Request::Management { id, .. } => {
                self.outputs.push_back(Output::Managed { id, result: Err(failure) });
            }
            Request::Ping { purpose, .. } => self.fail_ping(purpose, failure),
            Request::Text { purpose, .. } => self.fail_text(purpose, failure),
            Request::Logout { told, .. } => {
                self.timers.logout_by = None;
                if told {
                    self.outputs.push_back(Output::LoggedOut { result: Err(failure) });
                }
            }
        }
    }

    fn fail_ping(&mut self, purpose: PingPurpose, failure: Failure) {
        match purpose {
            PingPurpose::Asked(id) => {
                self.outputs.push_back(Output::Pong { id, result: Err(failure) });
            }
            // A target that rejects a ping is alive.
            PingPurpose::KeepAlive => self.timers.pinged = None,
            PingPurpose::Plug(_) => {}
        }
    }

    fn fail_text(&mut self, purpose: TextPurpose, failure: Failure) {
        match purpose {
            TextPurpose::Asked(id) => {
                self.outputs.push_back(Output::Text { id, result: Err(failure) });
            }
            TextPurpose::SendTargets(id) => {
                self.outputs.push_back(Output::Targets { id, result: Err(failure) });
            }
            TextPurpose::Renegotiate => {}
        }
    }

    /// Ends the connection: everything in hand is reported, then it closes. Happens once.
    pub(super) fn shut(&mut self, reason: CloseReason, ending: Ending, failure: Failure) {
        let ending = match core::mem::replace(&mut self.state, State::Closed) {
            State::Closed => return,
            State::LoggingIn(_) => Ending::NotJoined,
            State::FullFeature | State::Draining => ending,
        };
        self.bursts.clear();
        self.ended_tags.clear();
        self.incoming = Incoming::None;
        while let Some((tag, _)) = self.tasks.first_key_value() {
            self.complete(*tag, Err(failure));
        }
        for (_, request) in core::mem::take(&mut self.requests) {
            self.fail_request(request, failure);
        }
        let unsent = Failure::Refused("the connection ended first");
        for (_, asked) in core::mem::take(&mut self.asked) {
            self.fail_asked(asked, unsent);
        }
        for (purpose, _) in core::mem::take(&mut self.texts) {
            self.fail_text(purpose, unsent);
        }
        self.timers = Timers::default();
        self.outputs.push_back(Output::ToSession(ToSession::Closed { ending }));
        self.outputs.push_back(Output::Close(reason));
    }

    fn deadline(&self) -> Option<Time> {
        let ping = match (&self.state, self.timers.pinged, self.limits.ping_interval) {
            (State::LoggingIn(_) | State::Draining | State::Closed, ..) => None,
            (_, None, None) => None,
            (_, Some(pinged), _) => {
                Some(pinged.max(self.timers.heard).after(self.limits.ping_time))
            }
            (_, None, Some(interval)) => Some(self.timers.heard.after(interval)),
        };
        let timers = &self.timers;
        [timers.login_by, timers.logout_by, timers.drain_by, ping].into_iter().flatten().min()
    }

    fn on_deadline(&mut self, now: Time) {
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
        if !due(self.deadline()) {
            return;
        }
        if self.timers.pinged.is_some() {
            return self.time_out("a ping");
        }
        // Until its numbers come, the time of asking counts.
        self.timers.pinged = Some(now);
        self.ask(Asked::Ping { purpose: PingPurpose::KeepAlive, data: Bytes::new() });
    }

    fn time_out(&mut self, what: &'static str) {
        self.shut(CloseReason::TimedOut(what), Ending::Lost, Failure::Lost);
    }
}
