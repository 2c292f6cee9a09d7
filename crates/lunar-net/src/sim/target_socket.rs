//! The target role over a socket: a session with one connection.

use super::segment::IncomingSegment;
use crate::{BufferLimits, ConnectionHandler, Outbox, OwnerId};
use lunar_iscsi::connection::target::{
    CloseReason, ConnectionLimits, Input, Output, TargetConnection, Task, TransferFault,
};
use lunar_iscsi::framing::{DataDestination, Header, SegmentDigest, TaskId};
use lunar_iscsi::login::{Admission, AdmissionDecision, Join, Joined};
use lunar_iscsi::pdu::ManagementResponse;
use lunar_iscsi::session::target::{
    Input as ToMachine, Output as FromMachine, SessionLimits, TargetSession,
};
use lunar_iscsi::text::Offer;
use lunar_wire::{SerialNumber, Time};
use std::collections::VecDeque;
use std::task::{Context, Poll};

/// Executes the commands of a [`TargetSocket`]. The data-out of all tasks is requested, and comes
/// as it arrives.
pub trait TaskExecutor {
    /// Begins a task.
    fn start(&mut self, task: &Task);
    /// Returns whether the task takes a segment of its data-out, which begins to arrive.
    fn begin_segment(&mut self, _task: TaskId, _bytes: u32) -> bool {
        true
    }
    /// Takes a segment that was checked.
    fn data_out(&mut self, task: TaskId, offset_bytes: u32, data: Vec<u8>);
    /// Ends a task, of which the transfer has failed if there is a fault. Answered by `Done` or
    /// `Failed`.
    fn end(&mut self, task: TaskId, fault: Option<TransferFault>);
    /// Returns the next input of the machine, or registers the waker.
    fn poll_input(&mut self, context: &mut Context<'_>) -> Poll<Input>;
    /// False while nothing is to be received. The waker is registered by `poll_input`.
    fn may_receive(&self) -> bool {
        true
    }
    /// Called when the connection has ended.
    fn closed(&mut self) {}
}

/// Handler of a connection in the target role. It admits every initiator.
#[derive(Debug)]
pub struct TargetSocket<E> {
    /// Executes the commands.
    pub executor: E,
    /// Limits of buffered data.
    pub limits: BufferLimits,
    /// Owner of the connection.
    pub owner: Option<OwnerId>,
    machine: TargetConnection,
    session: Option<TargetSession>,
    cid: u16,
    offer: Offer,
    pending_inputs: VecDeque<Input>,
    segment: IncomingSegment,
    deadline: Option<Time>,
    close_reason: Option<CloseReason>,
}

impl<E: TaskExecutor> TargetSocket<E> {
    /// Creates the target's end of a connection that is about to log in. All data-out is requested,
    /// by one R2T of a task at a time.
    pub fn new(executor: E, offer: Offer) -> Self {
        let offer = Offer {
            initial_r2t: true,
            immediate_data: false,
            max_outstanding_r2t: 1,
            data_pdu_in_order: true,
            data_sequence_in_order: true,
            ..offer
        };
        Self {
            executor,
            limits: BufferLimits::LARGEST,
            owner: None,
            machine: TargetConnection::new(ConnectionLimits::default(), SerialNumber(1)),
            session: None,
            cid: 0,
            offer,
            pending_inputs: VecDeque::new(),
            segment: IncomingSegment::default(),
            deadline: Some(Time::ZERO), // so that the machine starts its login timer
            close_reason: None,
        }
    }

    /// The reason why the connection has ended.
    pub fn close_reason(&self) -> Option<&CloseReason> {
        self.close_reason.as_ref()
    }

    fn handle(&mut self, now: Time, input: Input, out: &mut Outbox) {
        self.machine.handle(now, input);
        loop {
            match self.machine.poll() {
                Output::Wait(deadline) => {
                    self.deadline = deadline;
                    match self.pending_inputs.pop_front() {
                        Some(input) => self.machine.handle(now, input),
                        None => return,
                    }
                }
                output => self.handle_output(now, output, out),
            }
        }
    }

    fn handle_output(&mut self, now: Time, output: Output, out: &mut Outbox) {
        match output {
            Output::Send(pdu) => out.push(pdu),
            Output::SendData { initiator_task_tag, data, digest } => {
                out.push_part(initiator_task_tag, data, digest);
            }
            Output::Receive(destination) => {
                let bytes = self.segment.announced_bytes as u32;
                let is_wanted = match destination {
                    DataDestination::Stream { task, .. } => {
                        self.executor.begin_segment(task, bytes)
                    }
                    _ => true,
                };
                self.segment.receive(destination, is_wanted);
            }
            Output::Start(task) => {
                if task.expected_data_out_bytes() > 0 {
                    self.pending_inputs.push_back(Input::Stream(task.id));
                }
                self.executor.start(&task);
            }
            Output::DataOut { task, offset_bytes, bytes, .. } => {
                let data = self.segment.take();
                if data.len() == bytes as usize {
                    self.executor.data_out(task, offset_bytes, data);
                }
            }
            Output::Abort(task) => self.executor.end(task, None),
            Output::Fail { task, fault, .. } => self.executor.end(task, Some(fault)),
            Output::Identify(_) => {
                let admission = AdmissionDecision::Admit(Admission {
                    portal_group_tag: 1,
                    target_alias: None,
                    chap: None,
                    offer: self.offer.clone(),
                    entropy: [7; 33],
                });
                self.pending_inputs.push_back(Input::Identified(Box::new(admission)));
            }
            Output::Join(join) => {
                let joined = self.join(now, &join);
                self.pending_inputs.push_back(Input::Joined(Ok(joined)));
            }
            Output::ToSession(message) => {
                if let Some(session) = &mut self.session {
                    session.handle(now, ToMachine::Connection(self.cid, message));
                }
                self.poll_session(now);
            }
            Output::FullFeature(parameters) => out.set_digests(parameters.digests),
            Output::ListTargets { .. } => {
                let (records, more) = (Vec::new(), false);
                self.pending_inputs.push_back(Input::Targets { records, more });
            }
            Output::Close(reason) => {
                self.close_reason = Some(reason);
                self.executor.closed();
            }
            Output::Run(_) | Output::DetachedTaskEnded(_) | Output::Wait(_) => {}
        }
    }

    fn join(&mut self, now: Time, join: &Join) -> Joined {
        self.cid = join.claim.cid;
        let mut session =
            TargetSession::new(1, join.session, join.cmd_sn, SessionLimits::default());
        session.handle(now, ToMachine::Join(self.cid));
        let joined = session.joined(self.cid);
        self.session = Some(session);
        joined
    }

    fn poll_session(&mut self, now: Time) {
        let Some(session) = &mut self.session else { return };
        while let Some(output) = session.poll() {
            match output {
                FromMachine::ToConnection(_, message) => {
                    self.pending_inputs.push_back(Input::Session(message));
                }
                FromMachine::Manage { id, .. } => {
                    let response = ManagementResponse::FUNCTION_COMPLETE;
                    let managed = ToMachine::Managed { id, response, information: [0; 3] };
                    session.handle(now, managed);
                }
                FromMachine::OthersAborted { .. } | FromMachine::Ended => {}
            }
        }
    }
}

impl<E: TaskExecutor> ConnectionHandler for TargetSocket<E> {
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
        let mut worked = false;
        while let Poll::Ready(input) = self.executor.poll_input(context) {
            self.handle(now, input, out);
            worked = true;
        }
        if worked { Poll::Ready(()) } else { Poll::Pending }
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
    fn send_progressed(&mut self, now: Time, bytes: usize, out: &mut Outbox) {
        self.handle(now, Input::PeerAccepts { bytes: bytes as u64 }, out);
    }
    fn owner(&self) -> Option<OwnerId> {
        self.owner
    }
    fn buffer_limits(&self) -> BufferLimits {
        self.limits
    }
    fn can_receive(&self) -> bool {
        self.machine.can_receive() && self.executor.may_receive()
    }
    fn is_over(&self) -> bool {
        self.close_reason.is_some()
    }
}
