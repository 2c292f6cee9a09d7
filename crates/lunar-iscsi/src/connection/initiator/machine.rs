//! The state machine of one connection in the initiator role.

use super::request::{Request, RequestQueue, TextPurpose};
use super::task::{Burst, Task};
use super::{
    CloseReason, ConnectionLimits, ConnectionOptions, Input, Output, RequestFailure, Violation,
};
use crate::framing::{DataDestination, Header, Pdu, SegmentDigest, TaskId};
use crate::login::initiator::{Established, InitiatorLogin, Step};
use crate::pdu::{
    AsyncMessage, DataIn, LogoutResponse, Opcode, Reject, ScsiResponse, TaskManagementResponse,
    TextResponse,
};
use crate::session::initiator::{ConnectionEnding, ToConnection, ToSession};
use crate::text::{ConnectionParameters, SessionParameters};
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use bytes::Bytes;
use hashbrown::HashMap;
use lunar_wire::{SerialNumber, Time};

/// One iSCSI connection in the initiator role: no socket, no clock, no lock.
///
/// Contract: after [`new`](Self::new) and after each [`handle`](Self::handle), call
/// [`poll`](Self::poll) until it returns [`Output::Wait`] or [`Output::Close`].
#[derive(Debug)]
pub struct InitiatorConnection {
    pub(super) state: State,
    pub(super) cid: u16,
    pub(super) limits: ConnectionLimits,
    agreed: Option<SessionParameters>,
    pub(super) session: SessionParameters,
    pub(super) connection: ConnectionParameters,
    pub(super) exp_stat_sn: SerialNumber,
    window: (SerialNumber, SerialNumber),
    pub(super) incoming: Incoming,
    /// Requests that wait for their numbers.
    pub(super) queue: RequestQueue,
    /// Texts that wait for the one before; only one exchange runs at a time. RFC 7143 §11.10.
    pub(super) texts: VecDeque<(TextPurpose, Bytes)>,
    /// Commands that were sent, by Initiator Task Tag.
    pub(super) tasks: HashMap<u32, Task>,
    /// Other requests that were sent, by Initiator Task Tag.
    pub(super) requests: BTreeMap<u32, Request>,
    /// Data-Out to send, in the order in which it was requested, except that of streaming commands.
    pub(super) bursts: VecDeque<Burst>,
    /// Initiator Task Tags of the streaming commands that were sent.
    pub(super) streams: BTreeMap<TaskId, u32>,
    /// Tags of streaming commands that may have something to send, in turn.
    pub(super) ready: VecDeque<u32>,
    /// True once a Logout Request that ends all tasks was sent: no more Data-Out is sent.
    pub(super) data_is_over: bool,
    /// Tags of tasks that management functions ended; late PDUs for them are ignored.
    pub(super) ended_tags: VecDeque<u32>,
    pub(super) timers: Timers,
    pub(super) outputs: VecDeque<Output>,
}

#[derive(Debug)]
pub(super) enum State {
    LoggingIn(InitiatorLogin),
    FullFeature,
    /// Accepts no new requests: a logout is due or in progress.
    Draining,
    Closed,
}

/// The PDU whose data segment is being received.
#[derive(Debug)]
pub(super) enum Incoming {
    None,
    Login,
    Control(Header),
    DataIn {
        tag: u32,
        status: Option<DataIn>,
        /// Command, position and length of the segment if the command takes data as a stream.
        streamed: Option<(TaskId, u32, u32)>,
        over: bool,
    },
    Discard(Opcode),
}

#[derive(Debug, Default)]
pub(super) struct Timers {
    pub(super) login_by: Option<Time>,
    pub(super) logout_by: Option<Time>,
    /// Time at which a logout is sent even if requests are still open.
    pub(super) drain_by: Option<Time>,
    /// Time at which our unanswered ping was sent.
    pub(super) pinged: Option<Time>,
    /// No Data-Out PDU waits for too long for its data before this time.
    pub(super) parts_by: Option<Time>,
    /// Time of the last input.
    pub(super) now: Time,
    /// Time at which the last input from the target arrived.
    pub(super) heard: Time,
}

impl InitiatorConnection {
    /// Creates a connection over a fresh transport; its login starts at once.
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
            queue: RequestQueue::default(),
            texts: VecDeque::new(),
            tasks: HashMap::new(),
            requests: BTreeMap::new(),
            bursts: VecDeque::new(),
            streams: BTreeMap::new(),
            ready: VecDeque::new(),
            data_is_over: false,
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

    /// Handles one input. Infallible: a protocol violation by the target ends the connection.
    pub fn handle(&mut self, now: Time, input: Input) {
        self.timers.now = now;
        if let Err(violation) = self.step(now, input) {
            self.close(
                CloseReason::Violation(violation),
                ConnectionEnding::Violation,
                RequestFailure::Lost,
            );
        }
        self.log_out_when_drained();
    }

    /// Returns the next output. Data-Out PDUs are built here, only when they are taken.
    pub fn poll(&mut self) -> Output {
        if let Some(output) = self.outputs.pop_front() {
            return output;
        }
        if !self.ready.is_empty()
            && let Some(output) = self.next_of_streams()
        {
            return output;
        }
        match self.next_data_out() {
            Some(pdu) => Output::Send(pdu),
            None => Output::Wait(self.deadline()),
        }
    }

    /// True when no task, no request and no data to send is left.
    pub fn is_idle(&self) -> bool {
        self.open_requests() == 0 && self.bursts.is_empty()
    }

    /// Number of open requests, including those that wait for their numbers.
    pub(super) fn open_requests(&self) -> usize {
        self.queue.len() + self.texts.len() + self.tasks.len() + self.requests.len()
    }

    fn step(&mut self, now: Time, input: Input) -> Result<(), Violation> {
        match input {
            Input::Header(header) => self.on_header(now, header)?,
            Input::Payload { data, digest } => self.on_payload(now, data, digest)?,
            Input::HeaderDigestError if self.is_open() => return Err(Violation::HeaderDigest),
            Input::HeaderDigestError => {}
            Input::Execute(command) => self.on_execute(command),
            Input::Stream(streaming) => self.on_stream(*streaming),
            Input::DataOut { id, offset_bytes, data, digest } => {
                self.on_data_out(id, offset_bytes, data, digest);
            }
            Input::DataOutBegin { id, offset_bytes, bytes } => {
                self.on_data_out_begin(id, offset_bytes, bytes);
            }
            Input::DataOutPart { id, data, digest } => self.on_data_out_part(id, data, digest),
            Input::Manage(management) => self.on_manage(management),
            Input::Ping { id, data } => self.on_ping(id, data),
            Input::SendTargets { id, which } => self.on_send_targets(id, &which),
            Input::Text { id, text } => self.on_text_request(TextPurpose::Caller(id), text),
            Input::Logout { reason, cid } => self.on_logout_request(reason, cid),
            Input::Session(message) => self.on_session(now, message),
            Input::Deadline => self.on_deadline(now),
            Input::PeerClosed => {
                let reason = match &self.state {
                    State::LoggingIn(login) if login.newer_keys_are_unanswered() => {
                        CloseReason::NewerKeysUnanswered
                    }
                    _ => CloseReason::PeerClosed,
                };
                self.close(reason, ConnectionEnding::Lost, RequestFailure::Lost);
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
                    self.outputs.push_back(Output::Receive(DataDestination::Control));
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

    /// Checks the numbers of every PDU that consumes a StatSN.
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

    fn on_payload(
        &mut self,
        now: Time,
        data: Bytes,
        digest: SegmentDigest,
    ) -> Result<(), Violation> {
        self.timers.heard = now;
        let incoming = core::mem::replace(&mut self.incoming, Incoming::None);
        let pdu = match &incoming {
            Incoming::Control(header) => header.opcode(),
            Incoming::DataIn { .. } => Opcode::DATA_IN,
            Incoming::Discard(opcode) => *opcode,
            Incoming::Login => Opcode::LOGIN_RESPONSE,
            Incoming::None => return Ok(()),
        };
        if !digest.is_ok() {
            return Err(Violation::DataDigest { pdu });
        }
        match incoming {
            Incoming::Control(header) => self.on_control(now, &header, &data),
            Incoming::DataIn { tag, over: true, .. } => {
                self.end_task(tag);
                Ok(())
            }
            Incoming::DataIn { tag, status, streamed, .. } => {
                if let Some((id, offset_bytes, bytes)) = streamed {
                    self.outputs.push_back(Output::DataIn { id, offset_bytes, bytes, digest });
                }
                self.data_in_done(tag, status)
            }
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

    /// Handles a whole PDU other than Data-In and R2T; its numbers were checked with its header.
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

    /// Requires each StatSN once and in order: any other value means a lost response, which at
    /// ErrorRecoveryLevel 0 only session recovery repairs. RFC 7143 §4.2.2.2.
    pub(super) fn on_stat_sn(&mut self, stat_sn: SerialNumber) -> Result<(), Violation> {
        if stat_sn != self.exp_stat_sn {
            return Err(Violation::StatSn { got: stat_sn.0, expected: self.exp_stat_sn.0 });
        }
        self.exp_stat_sn = stat_sn.next();
        Ok(())
    }

    /// Checks the next StatSN, which R2Ts and pings carry without consuming it.
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
                Step::Complete(established) => self.on_logged_in(now, established),
                Step::Failed(failure) => {
                    let reason = CloseReason::LoginFailed(failure);
                    self.close(reason, ConnectionEnding::NotJoined, RequestFailure::Lost);
                }
            }
        }
    }

    fn on_logged_in(&mut self, now: Time, established: Box<Established>) {
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
            ToConnection::LoggingOut if self.is_open() => {
                self.state = State::Draining;
                self.end_data();
            }
            ToConnection::LoggingOut => {}
            // Wait for the logout response, which comes soon: the target has closed the other
            // connections.
            ToConnection::Close if self.is_logging_out() => {}
            ToConnection::Close => {
                self.close(CloseReason::Dropped, ConnectionEnding::Lost, RequestFailure::Lost);
            }
        }
    }

    pub(super) fn send(&mut self, pdu: Pdu) {
        self.outputs.push_back(Output::Send(pdu));
    }

    pub(super) fn free_tag(&mut self, tag: u32) {
        self.outputs.push_back(Output::ToSession(ToSession::TagFree(tag)));
    }
}
