//! The initiator role over a socket: a session with one connection.

use super::segment::IncomingSegment;
use crate::{BufferLimits, ConnectionHandler, Outbox, OwnerId};
use lunar_iscsi::connection::initiator::{
    CloseReason, CommandResult, ConnectionLimits, ConnectionOptions, InitiatorConnection, Input,
    Output, RequestFailure,
};
use lunar_iscsi::framing::{DataDestination, Header, SegmentDigest, TaskId};
use lunar_iscsi::login::SessionType;
use lunar_iscsi::login::initiator::InitiatorLoginOptions;
use lunar_iscsi::session::initiator::{
    InitiatorSession, InitiatorSessionOptions, Input as ToMachine, Output as FromMachine,
};
use lunar_iscsi::text::Offer;
use lunar_wire::{SerialNumber, Time};
use std::collections::VecDeque;
use std::task::{Context, Poll};

/// Sends the commands of an [`InitiatorSocket`], all of which move their data in pieces.
pub trait Requester {
    /// Returns the next input of the machine, or registers the waker. Requests are sent once the
    /// login is complete.
    fn poll_input(&mut self, context: &mut Context<'_>) -> Poll<Input>;
    /// Called when the target asks for data-out of a command.
    fn wants(&mut self, id: TaskId, offset_bytes: u32, bytes: u32);
    /// Returns whether the command takes a segment of its data-in, which begins to arrive.
    fn begin_segment(&mut self, _id: TaskId, _bytes: u32) -> bool {
        true
    }
    /// Takes a segment that was checked.
    fn data_in(&mut self, id: TaskId, offset_bytes: u32, data: Vec<u8>);
    /// Called when a command has ended.
    fn completed(&mut self, id: TaskId, result: Result<CommandResult, RequestFailure>);
    /// False while nothing is to be received. The waker is registered by `poll_input`.
    fn may_receive(&self) -> bool {
        true
    }
    /// True when the connection is to continue with another requester.
    fn is_detaching(&self) -> bool {
        false
    }
    /// Called when the connection has ended; all commands have completed.
    fn closed(&mut self) {}
}

/// Handler of a connection in the initiator role.
#[derive(Debug)]
pub struct InitiatorSocket<R> {
    /// Sends the commands.
    pub requester: R,
    /// Limits of buffered data.
    pub limits: BufferLimits,
    /// Owner of the connection.
    pub owner: Option<OwnerId>,
    machine: InitiatorConnection,
    session: InitiatorSession,
    pending_inputs: VecDeque<Input>,
    segment: IncomingSegment,
    deadline: Option<Time>,
    is_started: bool,
    is_logged_in: bool,
    close_reason: Option<CloseReason>,
}

impl<R: Requester> InitiatorSocket<R> {
    const CID: u16 = 0;

    /// Creates the initiator's end of a connection, which logs in when it is driven.
    pub fn new(requester: R, name: &str, offer: Offer) -> Self {
        let isid = [0x80, 0, 0, 7, 0, 0];
        let options =
            InitiatorSessionOptions { isid, cmd_sn: SerialNumber(1), queue_requests_max: 4096 };
        let mut session = InitiatorSession::new(options);
        let numbers = session.open(Self::CID).expect("a new session takes a connection");
        let login = InitiatorLoginOptions {
            initiator_name: name.into(),
            alias: None,
            target_name: Some(super::TARGET_NAME.into()),
            session_type: SessionType::Normal,
            isid: numbers.isid,
            tsih: numbers.tsih,
            cid: Self::CID,
            initiator_task_tag: 0,
            cmd_sn: numbers.cmd_sn,
            // Data is given in the order of the R2Ts.
            offer: Offer { data_pdu_in_order: true, data_sequence_in_order: true, ..offer },
            chap: None,
            entropy: [7; 33],
        };
        // No pings: they would time out while nothing is received because the other side is slow.
        let limits = ConnectionLimits { ping_interval: None, ..ConnectionLimits::default() };
        let options = ConnectionOptions { login, session: None, limits };
        Self {
            requester,
            limits: BufferLimits::LARGEST,
            owner: None,
            machine: InitiatorConnection::new(Time::ZERO, options),
            session,
            pending_inputs: VecDeque::new(),
            segment: IncomingSegment::default(),
            deadline: None,
            is_started: false,
            is_logged_in: false,
            close_reason: None,
        }
    }

    /// Returns the connection with another requester.
    pub fn with_requester<S>(self, requester: S) -> InitiatorSocket<S> {
        let Self { limits, owner, machine, session, pending_inputs, segment, deadline, .. } = self;
        let Self { is_started, is_logged_in, close_reason, .. } = self;
        InitiatorSocket {
            requester,
            limits,
            owner,
            machine,
            session,
            pending_inputs,
            segment,
            deadline,
            is_started,
            is_logged_in,
            close_reason,
        }
    }

    /// The reason why the connection has ended.
    pub fn close_reason(&self) -> Option<&CloseReason> {
        self.close_reason.as_ref()
    }

    fn handle(&mut self, now: Time, input: Input, out: &mut Outbox) {
        self.machine.handle(now, input);
        self.handle_outputs(now, out);
    }

    fn handle_outputs(&mut self, now: Time, out: &mut Outbox) {
        loop {
            match self.machine.poll() {
                Output::Wait(deadline) => {
                    self.deadline = deadline;
                    match self.pending_inputs.pop_front() {
                        Some(input) => self.machine.handle(now, input),
                        None => return,
                    }
                }
                output => self.handle_output(output, out),
            }
        }
    }

    fn handle_output(&mut self, output: Output, out: &mut Outbox) {
        match output {
            Output::Send(pdu) => out.push(pdu),
            Output::SendData { initiator_task_tag, data, digest } => {
                out.push_part(initiator_task_tag, data, digest);
            }
            Output::Receive(destination) => {
                let bytes = self.segment.announced_bytes as u32;
                let is_wanted = match destination {
                    DataDestination::Stream { task, .. } => {
                        self.requester.begin_segment(task, bytes)
                    }
                    _ => true,
                };
                self.segment.receive(destination, is_wanted);
            }
            Output::Wants { id, offset_bytes, bytes } => {
                self.requester.wants(id, offset_bytes, bytes);
            }
            Output::DataIn { id, offset_bytes, bytes, .. } => {
                let data = self.segment.take();
                if data.len() == bytes as usize {
                    self.requester.data_in(id, offset_bytes, data);
                }
            }
            Output::Completed { id, result } => self.requester.completed(id, result),
            Output::FullFeature(parameters) => out.set_digests(parameters.digests),
            Output::LoggedIn(_) => self.is_logged_in = true,
            Output::ToSession(message) => {
                self.session.handle(ToMachine::Connection(Self::CID, message));
                while let Some(output) = self.session.poll() {
                    if let FromMachine::ToConnection(_, message) = output {
                        self.pending_inputs.push_back(Input::Session(message));
                    }
                }
            }
            Output::Close(reason) => {
                self.close_reason = Some(reason);
                self.requester.closed();
            }
            Output::Managed { .. }
            | Output::Pong { .. }
            | Output::Targets { .. }
            | Output::Text { .. }
            | Output::LoggedOut { .. }
            | Output::Event(_)
            | Output::Wait(_) => {}
        }
    }
}

impl<R: Requester> ConnectionHandler for InitiatorSocket<R> {
    fn header(&mut self, now: Time, header: Header, out: &mut Outbox) {
        self.segment.announce(header.data_segment_bytes());
        self.handle(now, Input::Header(header), out);
    }
    fn header_digest_error(&mut self, now: Time, out: &mut Outbox) {
        self.handle(now, Input::HeaderDigestError, out);
    }
    fn payload_buffer(&mut self, _missing: usize) -> &mut [u8] {
        self.segment.room()
    }
    fn payload_filled(&mut self, bytes: usize) {
        self.segment.filled(bytes);
    }
    fn payload_end(&mut self, now: Time, digest: SegmentDigest, out: &mut Outbox) {
        let data = self.segment.control_data();
        self.handle(now, Input::Payload { data, digest }, out);
    }
    fn poll_work(&mut self, now: Time, context: &mut Context<'_>, out: &mut Outbox) -> Poll<()> {
        let mut worked = !self.is_started;
        if worked {
            self.is_started = true;
            self.handle_outputs(now, out); // the Login Request
        }
        while self.is_logged_in
            && self.close_reason.is_none()
            && let Poll::Ready(input) = self.requester.poll_input(context)
        {
            self.handle(now, input, out);
            worked = true;
        }
        if worked || self.is_detaching() { Poll::Ready(()) } else { Poll::Pending }
    }
    fn deadline(&self) -> Option<Time> {
        self.deadline
    }
    fn elapsed(&mut self, now: Time, out: &mut Outbox) {
        self.handle(now, Input::Deadline, out);
    }
    fn peer_closed(&mut self, now: Time, out: &mut Outbox) {
        self.handle(now, Input::PeerClosed, out);
    }
    fn owner(&self) -> Option<OwnerId> {
        self.owner
    }
    fn buffer_limits(&self) -> BufferLimits {
        self.limits
    }
    fn can_receive(&self) -> bool {
        self.requester.may_receive()
    }
    fn is_over(&self) -> bool {
        self.close_reason.is_some()
    }
    fn is_detaching(&self) -> bool {
        self.requester.is_detaching()
    }
}
