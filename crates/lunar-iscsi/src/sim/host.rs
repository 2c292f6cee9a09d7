//! The initiator's end of a link, and its session.

use super::wire::{Received, ReceivingEnd, Wire};
use crate::connection::initiator::{
    CloseReason, CommandResult, Event, InitiatorConnection, Input, LogoutReply, Output,
    RequestFailure,
};
use crate::connection::target::TargetRecord;
use crate::framing::{DataDestination, Digests, TaskId};
use crate::pdu::ManagementResponse;
use crate::session::initiator::{InitiatorSession, ToConnection, ToSession};
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use bytes::Bytes;
use lunar_wire::Time;

/// An initiator session.
#[derive(Debug)]
pub(super) struct Host {
    pub(super) session: InitiatorSession,
    pub(super) name: alloc::string::String,
    pub(super) ended: bool,
}

/// The answer to a request.
#[derive(Clone, Debug)]
pub enum SimAnswer {
    /// Answer to a command, with the data-in buffer.
    Completed(Result<CommandResult, RequestFailure>, Vec<u8>),
    /// Answer to a task management function, with its Additional Response Information.
    Managed(Result<ManagementResponse, RequestFailure>, [u8; 3]),
    /// Answer to a ping.
    Pong(Result<(), RequestFailure>),
    /// Answer to SendTargets.
    Targets(Result<Vec<TargetRecord>, RequestFailure>),
    /// Answer to a text.
    Text(Result<Bytes, RequestFailure>),
}

/// The initiator's end of one connection.
#[derive(Debug)]
pub(super) struct InitiatorEnd {
    pub(super) machine: InitiatorConnection,
    pub(super) intake: ReceivingEnd,
    pub(super) digests: Option<Digests>,
    pub(super) buffers: BTreeMap<TaskId, Vec<u8>>,
    pub(super) to_session: VecDeque<ToSession>,
    pub(super) from_session: VecDeque<ToConnection>,
    pub(super) answers: Vec<(TaskId, SimAnswer)>,
    pub(super) events: Vec<Event>,
    pub(super) logged_in: bool,
    pub(super) logged_out: Option<Result<LogoutReply, RequestFailure>>,
    pub(super) closed: Option<CloseReason>,
    pub(super) deadline: Option<Time>,
}

impl InitiatorEnd {
    pub(super) fn new(machine: InitiatorConnection) -> Self {
        Self {
            machine,
            intake: ReceivingEnd::default(),
            digests: None,
            buffers: BTreeMap::new(),
            to_session: VecDeque::new(),
            from_session: VecDeque::new(),
            answers: Vec::new(),
            events: Vec::new(),
            logged_in: false,
            logged_out: None,
            closed: None,
            deadline: None,
        }
    }

    /// Takes one piece from the link and puts the unused rest back.
    pub(super) fn arrive(&mut self, now: Time, piece: &[u8], up: &mut OutgoingWire<'_>) {
        let mut at = 0;
        while self.closed.is_none() && self.intake.is_ready(true) {
            let buffers = &mut self.buffers;
            let (used, received) = self.intake.take(&piece[at..], |place, offset, bytes| {
                let DataDestination::Task { task, buffer_bytes, .. } = place else { return };
                let buffer = buffers.get_mut(&task).expect("the buffer of a command in hand");
                assert_eq!(buffer.len(), buffer_bytes as usize);
                buffer[offset..offset + bytes.len()].copy_from_slice(bytes);
            });
            at += used;
            match received {
                Some(Received::Header(header)) => self.handle(now, Input::Header(header), up),
                Some(Received::HeaderDigestError) => self.handle(now, Input::HeaderDigestError, up),
                Some(Received::Payload { data, digest }) => {
                    self.handle(now, Input::Payload { data, digest }, up);
                }
                None if used == 0 => return,
                None => {}
            }
        }
    }

    pub(super) fn handle(&mut self, now: Time, input: Input, up: &mut OutgoingWire<'_>) {
        if let Input::Execute(command) = &input {
            self.buffers.insert(command.id, alloc::vec![0; command.data_in_bytes_max as usize]);
        }
        self.machine.handle(now, input);
        self.poll(up);
    }

    pub(super) fn poll(&mut self, up: &mut OutgoingWire<'_>) {
        loop {
            match self.machine.poll() {
                Output::Receive(place) => self.intake.receive(place),
                Output::Send(pdu) => {
                    assert!(self.closed.is_none(), "sent after Close: {pdu:?}");
                    up.log.sent(&pdu);
                    up.wire.send(&pdu);
                }
                Output::FullFeature(parameters) => {
                    self.digests = Some(parameters.digests);
                    self.intake.set_digests(parameters.digests);
                    up.wire.set_digests(parameters.digests);
                }
                Output::LoggedIn(_) => self.logged_in = true,
                Output::ToSession(message) => self.to_session.push_back(message),
                Output::Completed { id, result } => {
                    let buffer = self.buffers.remove(&id).expect("one end for each command");
                    self.answers.push((id, SimAnswer::Completed(result, buffer)));
                }
                Output::Managed { id, result, information } => {
                    self.answers.push((id, SimAnswer::Managed(result, information)));
                }
                Output::Pong { id, result } => self.answers.push((id, SimAnswer::Pong(result))),
                Output::Targets { id, result } => {
                    self.answers.push((id, SimAnswer::Targets(result)));
                }
                Output::Text { id, result } => self.answers.push((id, SimAnswer::Text(result))),
                Output::LoggedOut { result } => self.logged_out = Some(result),
                Output::Event(event) => self.events.push(event),
                Output::Close(reason) => {
                    assert!(self.closed.is_none(), "closed twice");
                    self.closed = Some(reason);
                    up.wire.ended = true;
                }
                Output::Wait(deadline) => {
                    self.deadline = deadline;
                    return;
                }
            }
        }
    }
}

/// The outgoing wire of an end, and the log.
pub(super) struct OutgoingWire<'a> {
    pub(super) wire: &'a mut Wire,
    pub(super) log: &'a mut super::log::Log,
}
