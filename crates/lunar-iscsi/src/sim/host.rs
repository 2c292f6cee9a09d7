//! The initiator's end of a link, and its session.

use super::rng::Rng;
use super::wire::{Received, ReceivingEnd, Wire};
use crate::connection::initiator::{
    CloseReason, CommandResult, Event, InitiatorConnection, Input, LogoutReply, Output,
    RequestFailure,
};
use crate::connection::target::TargetRecord;
use crate::framing::{DataDestination, Digests, SegmentDigest, TaskId};
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

/// A report about a streaming command to the relay that executes it.
#[derive(Debug)]
pub(super) enum BackEvent {
    Wants {
        id: TaskId,
        offset_bytes: u32,
        bytes: u32,
    },
    /// A segment of data-in begins.
    Segment {
        id: TaskId,
        offset_bytes: u32,
        bytes: u32,
    },
    /// Bytes of that segment.
    Bytes(Vec<u8>),
    /// The segment is complete and checked.
    DataIn {
        id: TaskId,
        offset_bytes: u32,
        bytes: u32,
        digest: SegmentDigest,
    },
    Completed {
        id: TaskId,
        result: Result<CommandResult, RequestFailure>,
    },
}

/// Data-out of a streaming command.
#[derive(Debug, Default)]
pub(super) struct OwedData {
    data: Bytes,
    /// Ranges that were asked for and not given, start and end.
    wanted: VecDeque<(usize, usize)>,
    /// Position of the next part of an announced range.
    at: usize,
    /// Number of announced bytes that were not given.
    open_bytes: usize,
}

/// The initiator's end of one connection.
#[derive(Debug)]
pub(super) struct InitiatorEnd {
    pub(super) machine: InitiatorConnection,
    pub(super) intake: ReceivingEnd,
    pub(super) digests: Option<Digests>,
    pub(super) buffers: BTreeMap<TaskId, Vec<u8>>,
    /// Streaming commands, with their data-out.
    pub(super) streams: BTreeMap<TaskId, OwedData>,
    /// Reports about streaming commands, for a relay that executes them.
    pub(super) relay: Option<VecDeque<BackEvent>>,
    /// Length of the data segment that was announced last.
    segment_bytes: u32,
    /// MaxRecvDataSegmentLength of the target.
    pub(super) segment_bytes_max: u32,
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
            streams: BTreeMap::new(),
            relay: None,
            segment_bytes: 0,
            segment_bytes_max: 0,
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
            let (buffers, relay) = (&mut self.buffers, &mut self.relay);
            let (used, received) = self.intake.take(&piece[at..], |destination, offset, bytes| {
                let (task, offset) = match destination {
                    DataDestination::Task { task, .. } => (task, offset),
                    DataDestination::Stream { task, offset_bytes } => {
                        if let Some(relay) = relay {
                            return relay.push_back(BackEvent::Bytes(bytes.to_vec()));
                        }
                        (task, offset_bytes as usize + offset)
                    }
                    DataDestination::Control | DataDestination::Discard => return,
                };
                let buffer = buffers.get_mut(&task).expect("the buffer of a command in hand");
                if let DataDestination::Task { buffer_bytes, .. } = destination {
                    assert_eq!(buffer.len(), buffer_bytes as usize);
                }
                buffer[offset..offset + bytes.len()].copy_from_slice(bytes);
            });
            at += used;
            match received {
                Some(Received::Header(header)) => {
                    self.segment_bytes = header.data_segment_bytes();
                    self.handle(now, Input::Header(header), up);
                }
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
        let command = match &input {
            Input::Execute(command) => Some(command),
            Input::Stream(streaming) => Some(&streaming.command),
            _ => None,
        };
        if let Some(command) = command.filter(|_| self.relay.is_none()) {
            self.buffers.insert(command.id, alloc::vec![0; command.data_in_bytes_max as usize]);
        }
        self.machine.handle(now, input);
        self.poll(up);
    }

    /// Adds a streaming command with its data-out.
    pub(super) fn add_stream(&mut self, id: TaskId, data: Bytes) {
        self.streams.insert(id, OwedData { data, ..OwedData::default() });
    }

    /// True if the target waits for data of a streaming command.
    pub(super) fn owes_data(&self) -> bool {
        self.streams.values().any(|stream| !stream.wanted.is_empty() || stream.open_bytes > 0)
    }

    /// Gives some data of a random streaming command that owes some.
    pub(super) fn give(&mut self, rng: &mut Rng) -> Input {
        let owes =
            |(_, stream): &(_, &mut OwedData)| !stream.wanted.is_empty() || stream.open_bytes > 0;
        let mut owing: Vec<_> = self.streams.iter_mut().filter(owes).collect();
        let at = rng.below(owing.len());
        let (id, stream) = &mut owing[at];
        let id = **id;
        if stream.open_bytes > 0 {
            let bytes = 1 + rng.below(stream.open_bytes);
            let data = stream.data.slice(stream.at..stream.at + bytes);
            stream.at += bytes;
            stream.open_bytes -= bytes;
            return Input::DataOutPart { id, data, digest: None };
        }
        let (start, end) = stream.wanted.front_mut().expect("a range");
        let (offset_bytes, bytes) = (*start as u32, 1 + rng.below(*end - *start));
        let range = *start..*start + bytes;
        *start += bytes;
        if *start == *end {
            stream.wanted.pop_front();
        }
        if rng.once_in(2) {
            (stream.at, stream.open_bytes) = (range.start, bytes);
            return Input::DataOutBegin { id, offset_bytes, bytes: bytes as u32 };
        }
        Input::DataOut { id, offset_bytes, data: stream.data.slice(range), digest: None }
    }

    /// The first streaming command with a range that was announced and is not complete.
    pub(super) fn announcing(&self) -> Option<TaskId> {
        let (id, _) = self.streams.iter().find(|(_, stream)| stream.open_bytes > 0)?;
        Some(*id)
    }

    /// Returns the rest of the range that was announced for a streaming command, if any is missing.
    pub(super) fn rest_of_announced(&mut self, id: TaskId) -> Option<Input> {
        let stream = self.streams.get_mut(&id).filter(|stream| stream.open_bytes > 0)?;
        let bytes = core::mem::take(&mut stream.open_bytes);
        let data = stream.data.slice(stream.at..stream.at + bytes);
        stream.at += bytes;
        Some(Input::DataOutPart { id, data, digest: None })
    }

    pub(super) fn poll(&mut self, up: &mut OutgoingWire<'_>) {
        loop {
            let output = self.machine.poll();
            let Some(output) = self.follow_data(output) else { continue };
            match output {
                Output::Send(pdu) => {
                    assert!(self.closed.is_none(), "sent after Close: {pdu:?}");
                    up.log.sent(&pdu);
                    up.wire.send(&pdu);
                }
                Output::SendData { initiator_task_tag, data, digest } => {
                    up.log.sent_data(&data);
                    up.wire.send_part(initiator_task_tag, &data, digest);
                }
                Output::FullFeature(parameters) => {
                    self.segment_bytes_max = parameters.send_data_segment_bytes_max;
                    self.digests = Some(parameters.digests);
                    self.intake.set_digests(parameters.digests);
                    up.wire.set_digests(parameters.digests);
                }
                Output::LoggedIn(_) => self.logged_in = true,
                Output::ToSession(message) => self.to_session.push_back(message),
                Output::Completed { id, result } => {
                    let buffer = self.buffers.remove(&id).expect("one end for each command");
                    self.streams.remove(&id);
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
                Output::Receive(_) | Output::Wants { .. } | Output::DataIn { .. } => {
                    unreachable!("followed before")
                }
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

    /// Follows an output about the data of a command, or reports it to the relay; returns any
    /// other.
    fn follow_data(&mut self, output: Output) -> Option<Output> {
        let Some(relay) = &mut self.relay else { return self.follow_own_data(output) };
        relay.push_back(match output {
            Output::Receive(destination @ DataDestination::Stream { task: id, offset_bytes }) => {
                self.intake.receive(destination);
                BackEvent::Segment { id, offset_bytes, bytes: self.segment_bytes }
            }
            Output::Wants { id, offset_bytes, bytes } => {
                BackEvent::Wants { id, offset_bytes, bytes }
            }
            Output::DataIn { id, offset_bytes, bytes, digest } => {
                BackEvent::DataIn { id, offset_bytes, bytes, digest }
            }
            Output::Completed { id, result } => BackEvent::Completed { id, result },
            other => return self.follow_own_data(other),
        });
        None
    }

    fn follow_own_data(&mut self, output: Output) -> Option<Output> {
        match output {
            Output::Receive(destination) => self.intake.receive(destination),
            Output::Wants { id, offset_bytes, bytes } => {
                let stream = self.streams.get_mut(&id).expect("a streaming command");
                let start = offset_bytes as usize;
                stream.wanted.push_back((start, start + bytes as usize));
            }
            Output::DataIn { id, offset_bytes, bytes, .. } => {
                let end = (offset_bytes + bytes) as usize;
                assert!(self.streams.contains_key(&id) && end <= self.buffers[&id].len());
            }
            other => return Some(other),
        }
        None
    }
}

/// The outgoing wire of an end, and the log.
pub(super) struct OutgoingWire<'a> {
    pub(super) wire: &'a mut Wire,
    pub(super) log: &'a mut super::log::Log,
}
