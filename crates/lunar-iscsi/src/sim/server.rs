//! The target's end of a link, and the sessions and the executor behind all of them.

use super::disk::{Executor, Takes, Work, refusal};
use super::host::OutgoingWire;
use super::wire::{Received, ReceivingEnd};
use crate::connection::target::{
    CloseReason, Input, Outcome, Output, TargetConnection, TargetRecord, Task, TransferFault,
};
use crate::framing::{DataDestination, Digests, SegmentDigest, TaskId};
use crate::login::{Admission, AdmissionDecision, ChapRequirement, Join, Joined};
use crate::pdu::{LoginStatus, ManagementFunction, ManagementResponse};
use crate::session::target::{
    Input as ToMachine, Output as FromMachine, SessionLimits, TargetSession, ToConnection,
    ToSession,
};
use crate::text::Offer;
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::string::String;
use alloc::vec::Vec;
use lunar_wire::{Lun, Time};

/// The target: state shared by all its connections.
#[derive(Debug)]
pub(super) struct Server {
    pub(super) name: String,
    pub(super) offer: Offer,
    pub(super) chap: Option<ChapRequirement>,
    pub(super) session_limits: SessionLimits,
    pub(super) sessions: BTreeMap<u16, Served>,
    next_tsih: u16,
    pub(super) executor: Executor,
    /// Reports about tasks, for a relay that executes them instead.
    pub(super) relay: Option<VecDeque<RelayedEvent>>,
    /// Task management functions to be carried out: session, id.
    pub(super) functions: Vec<(u16, u64, ManagementFunction, Lun)>,
    /// Aborts in other sessions by number, each with the session and id of its function.
    pub(super) others: BTreeMap<u64, (u16, u64)>,
    last_other: u64,
}

/// Answer of the simulated executor to QUERY ASYNCHRONOUS EVENT.
pub const EVENT: [u8; 3] = [0x16, 0x2a, 0x09];

/// One session of the target.
#[derive(Debug)]
pub(super) struct Served {
    pub(super) session: TargetSession,
    /// Name and ISID of the initiator.
    owner: (String, [u8; 6]),
    /// Connections: CID and link.
    pub(super) links: BTreeMap<u16, usize>,
}

impl Server {
    pub(super) fn new(
        offer: Offer,
        chap: Option<ChapRequirement>,
        session_limits: SessionLimits,
    ) -> Self {
        Self {
            name: super::TARGET_NAME.into(),
            offer,
            chap,
            session_limits,
            sessions: BTreeMap::new(),
            next_tsih: 1,
            executor: Executor::default(),
            relay: None,
            functions: Vec::new(),
            others: BTreeMap::new(),
            last_other: 0,
        }
    }

    fn identify(&self, target_name: Option<&str>) -> AdmissionDecision {
        if target_name.is_some_and(|name| name != self.name) {
            return AdmissionDecision::Refuse(LoginStatus::NOT_FOUND);
        }
        AdmissionDecision::Admit(Admission {
            portal_group_tag: 1,
            target_alias: None,
            chap: self.chap.clone(),
            offer: self.offer.clone(),
            entropy: core::array::from_fn(|at| at as u8 ^ 0x5a),
        })
    }

    /// Creates or finds the session. An older one of the same initiator and ISID ends: session
    /// reinstatement, RFC 7143 §6.3.5.
    fn join(&mut self, now: Time, link: usize, join: &Join) -> (u16, Result<Joined, LoginStatus>) {
        let claim = &join.claim;
        let owner = (claim.initiator_name.clone(), claim.isid);
        if claim.tsih != 0 {
            let found = self.sessions.get_mut(&claim.tsih).filter(|served| served.owner == owner);
            let Some(served) = found else {
                return (0, Err(LoginStatus::SESSION_DOES_NOT_EXIST));
            };
            return (claim.tsih, Ok(served.join(now, claim.cid, link)));
        }
        for served in self.sessions.values_mut().filter(|served| served.owner == owner) {
            served.session.handle(now, ToMachine::End);
        }
        let tsih = self.next_tsih;
        self.next_tsih += 1;
        let limits = self.session_limits.clone();
        let session = TargetSession::new(tsih, join.session, join.cmd_sn, limits);
        let mut served = Served { session, owner, links: BTreeMap::new() };
        let joined = served.join(now, claim.cid, link);
        self.sessions.insert(tsih, served);
        (tsih, Ok(joined))
    }

    /// Carries out a task management function on the sessions; the disks are not affected.
    pub(super) fn manage(&mut self, now: Time, at: usize) {
        let (tsih, id, function, lun) = self.functions.swap_remove(at);
        let exists = match lun.form() {
            _ if function.is_of_all_units() => true,
            lunar_wire::LunForm::Unit(number) => self.executor.has_disk(number),
            _ => false,
        };
        let mut information = [0; 3];
        let response = match function {
            _ if !exists => ManagementResponse::LUN_DOES_NOT_EXIST,
            ManagementFunction::QUERY_ASYNCHRONOUS_EVENT => {
                information = EVENT;
                ManagementResponse::FUNCTION_SUCCEEDED
            }
            _ => ManagementResponse::FUNCTION_COMPLETE,
        };
        let own = [ManagementFunction::ABORT_TASK_SET, ManagementFunction::I_T_NEXUS_RESET];
        if exists && function.is_multi_task() && !own.contains(&function) {
            let lun = (!function.is_of_all_units()).then_some(lun);
            for (_, served) in self.sessions.iter_mut().filter(|(other, _)| **other != tsih) {
                self.last_other += 1;
                self.others.insert(self.last_other, (tsih, id));
                let aborted = ToMachine::AbortedByOther { id: self.last_other, lun };
                served.session.handle(now, aborted);
            }
        }
        if self.others.values().all(|function| *function != (tsih, id)) {
            self.managed(now, tsih, id, response, information);
        }
    }

    fn managed(
        &mut self,
        now: Time,
        tsih: u16,
        id: u64,
        response: ManagementResponse,
        information: [u8; 3],
    ) {
        if let Some(served) = self.sessions.get_mut(&tsih) {
            served.session.handle(now, ToMachine::Managed { id, response, information });
        }
    }

    /// Handles the end of the tasks of one session that another session's function affected.
    fn others_aborted(&mut self, now: Time, other: u64) {
        let Some((tsih, id)) = self.others.remove(&other) else { return };
        if self.others.values().all(|function| *function != (tsih, id)) {
            self.managed(now, tsih, id, ManagementResponse::FUNCTION_COMPLETE, [0; 3]);
        }
    }

    /// Collects the messages of the sessions to the connections.
    pub(super) fn poll_sessions(&mut self, now: Time) -> Vec<(usize, ToConnection)> {
        let mut messages = Vec::new();
        let (mut ended, mut aborted) = (Vec::new(), Vec::new());
        for (tsih, served) in &mut self.sessions {
            while let Some(output) = served.session.poll() {
                match output {
                    FromMachine::ToConnection(cid, message) => {
                        if let Some(link) = served.links.get(&cid) {
                            messages.push((*link, message));
                        }
                    }
                    FromMachine::Manage { id, function, lun } => {
                        self.functions.push((*tsih, id, function, lun));
                    }
                    FromMachine::OthersAborted { id, .. } => aborted.push(id),
                    FromMachine::Ended => ended.push(*tsih),
                }
            }
        }
        for tsih in ended {
            let served = self.sessions.remove(&tsih).expect("it was there");
            assert_eq!(served.session.tasks(), 0, "an ended session has no tasks");
            self.functions.retain(|function| function.0 != tsih);
        }
        if aborted.is_empty() {
            return messages;
        }
        for id in aborted {
            self.others_aborted(now, id);
        }
        messages.extend(self.poll_sessions(now));
        messages
    }
}

impl Served {
    fn join(&mut self, now: Time, cid: u16, link: usize) -> Joined {
        self.links.insert(cid, link);
        self.session.handle(now, ToMachine::Join(cid));
        self.session.joined(cid)
    }
}

/// The target's end of one connection.
#[derive(Debug)]
pub(super) struct TargetEnd {
    pub(super) machine: TargetConnection,
    pub(super) intake: ReceivingEnd,
    pub(super) digests: Option<Digests>,
    pub(super) to_session: VecDeque<ToSession>,
    pub(super) from_session: VecDeque<ToConnection>,
    pub(super) tsih: u16,
    pub(super) cid: u16,
    /// Tasks that the executor ends because their transfer failed.
    failing: BTreeMap<TaskId, TransferFault>,
    pub(super) closed: Option<CloseReason>,
    pub(super) deadline: Option<Time>,
    /// Length of the data segment that was announced last.
    segment_bytes: u32,
    /// MaxRecvDataSegmentLength of the initiator.
    pub(super) segment_bytes_max: u32,
}

fn failed(fault: TransferFault) -> Outcome {
    let (key, code) = fault.sense();
    refusal(key, code)
}

impl TargetEnd {
    pub(super) fn new(machine: TargetConnection) -> Self {
        Self {
            machine,
            intake: ReceivingEnd::default(),
            digests: None,
            to_session: VecDeque::new(),
            from_session: VecDeque::new(),
            tsih: 0,
            cid: 0,
            failing: BTreeMap::new(),
            closed: None,
            deadline: None,
            segment_bytes: 0,
            segment_bytes_max: 0,
        }
    }

    /// Takes one piece from the link; returns how many bytes were used.
    pub(super) fn arrive(&mut self, piece: &[u8], context: &mut Context<'_>) -> usize {
        let mut at = 0;
        while self.closed.is_none() && self.intake.is_ready(self.machine.can_receive()) {
            let link = context.link;
            let Server { executor, relay, .. } = &mut *context.server;
            let (used, received) =
                self.intake.take(&piece[at..], |destination, offset, bytes| match destination {
                    DataDestination::Task { task, buffer_bytes, .. } => {
                        let buffer = (executor.buffers)
                            .entry((link, task))
                            .or_insert_with(|| alloc::vec![0; buffer_bytes as usize]);
                        assert_eq!(buffer.len(), buffer_bytes as usize);
                        buffer[offset..offset + bytes.len()].copy_from_slice(bytes);
                    }
                    DataDestination::Stream { task, .. } => match relay {
                        Some(relay) => relay.push_back(RelayedEvent::Bytes(bytes.to_vec())),
                        None => executor.take_streamed((link, task), bytes),
                    },
                    DataDestination::Control | DataDestination::Discard => {}
                });
            at += used;
            match received {
                Some(Received::Header(header)) => {
                    self.segment_bytes = header.data_segment_bytes();
                    self.handle(Input::Header(header), context);
                }
                Some(Received::HeaderDigestError) => self.handle(Input::HeaderDigestError, context),
                Some(Received::Payload { data, digest }) => {
                    self.handle(Input::Payload { data, digest }, context);
                }
                None if used == 0 => return at,
                None => {}
            }
        }
        if self.closed.is_some() { piece.len() } else { at }
    }

    /// Passes the result of a job of the executor.
    pub(super) fn job_done(&mut self, task: TaskId, work: Work, context: &mut Context<'_>) {
        let input = match work {
            Work::Piece { offset_bytes, data } => {
                context.up.log.source(&data);
                Input::DataIn { task, offset_bytes, data, digest: None }
            }
            Work::Begin { offset_bytes, bytes } => Input::DataInBegin { task, offset_bytes, bytes },
            Work::Part { data } => {
                context.up.log.source(&data);
                Input::DataInPart { task, data, digest: None }
            }
            Work::End(outcome) => return self.done(task, outcome, context),
        };
        self.handle(input, context);
    }

    fn done(&mut self, task: TaskId, outcome: Outcome, context: &mut Context<'_>) {
        context.up.log.source(&outcome.data_in);
        let input = match self.failing.remove(&task) {
            Some(fault) => Input::Failed { task, outcome: failed(fault) },
            None => Input::Done { task, outcome },
        };
        self.handle(input, context);
    }

    pub(super) fn handle(&mut self, input: Input, context: &mut Context<'_>) {
        if let Input::Done { task, .. } | Input::Failed { task, .. } = &input {
            // Refused before its data arrived: the data has no destination any more.
            self.intake.forget(*task);
        }
        self.machine.handle(context.now, input);
        self.poll(context);
    }

    pub(super) fn poll(&mut self, context: &mut Context<'_>) {
        let (now, link) = (context.now, context.link);
        loop {
            let output = self.machine.poll();
            let Some(output) = self.relayed(output, context) else { continue };
            let Some(output) = self.follow_task(output, context) else { continue };
            match output {
                Output::SendData { initiator_task_tag, data, digest } => {
                    context.up.log.sent_data(&data);
                    context.up.wire.send_part(initiator_task_tag, &data, digest);
                }
                Output::Send(pdu) => {
                    assert!(self.closed.is_none(), "sent after Close: {pdu:?}");
                    context.up.log.sent(&pdu);
                    context.up.wire.send(&pdu);
                }
                Output::Identify(claim) => {
                    let answer = context.server.identify(claim.target_name.as_deref());
                    self.machine.handle(now, Input::Identified(Box::new(answer)));
                }
                Output::Join(join) => {
                    self.cid = join.claim.cid;
                    let (tsih, joined) = context.server.join(now, link, &join);
                    self.tsih = tsih;
                    self.machine.handle(now, Input::Joined(joined));
                }
                Output::ListTargets { only, .. } => {
                    let name = &context.server.name;
                    let is_requested = only.as_ref().is_none_or(|only| only == name);
                    let addresses = alloc::vec![("127.0.0.1:3260".into(), 1)];
                    let record = TargetRecord { name: name.clone(), addresses };
                    let records = if is_requested { alloc::vec![record] } else { Vec::new() };
                    self.machine.handle(now, Input::Targets { records, more: false });
                }
                Output::ToSession(message) => self.to_session.push_back(message),
                Output::FullFeature(parameters) => {
                    self.segment_bytes_max = parameters.send_data_segment_bytes_max;
                    self.digests = Some(parameters.digests);
                    self.intake.set_digests(parameters.digests);
                    context.up.wire.set_digests(parameters.digests);
                }
                Output::Close(reason) => {
                    assert!(self.closed.is_none(), "closed twice");
                    self.closed = Some(reason);
                    self.deadline = None;
                    context.up.wire.ended = true;
                    context.server.executor.forget(link);
                    return;
                }
                Output::Wait(deadline) => {
                    self.deadline = deadline;
                    return;
                }
                Output::Receive(_)
                | Output::DataOut { .. }
                | Output::Start(_)
                | Output::Run(_)
                | Output::Abort(_)
                | Output::DetachedTaskEnded(_)
                | Output::Fail { .. } => unreachable!("carried out before"),
            }
        }
    }
}

impl TargetEnd {
    /// Carries out an output about a task; returns any other output.
    fn follow_task(&mut self, output: Output, context: &mut Context<'_>) -> Option<Output> {
        let (now, link) = (context.now, context.link);
        match output {
            Output::Receive(destination) => {
                if let DataDestination::Stream { task, .. } = destination {
                    context.server.executor.begin_segment((link, task));
                }
                self.intake.receive(destination);
            }
            Output::DataOut { task, offset_bytes, bytes, .. } => {
                let (offset, bytes) = (offset_bytes as usize, bytes as usize);
                context.server.executor.checked((link, task), offset, bytes);
            }
            Output::Start(task) => {
                let task_id = task.id;
                let wants =
                    |offset_bytes, bytes| Input::Wants { task: task_id, offset_bytes, bytes };
                match context.server.executor.start(link, &task) {
                    Takes::Nothing => {}
                    Takes::Whole { bytes } => self.machine.handle(now, wants(0, bytes)),
                    Takes::Stream { bytes } => {
                        self.machine.handle(now, Input::Stream(task_id));
                        let third = bytes / 3;
                        self.machine.handle(now, wants(0, third));
                        self.machine.handle(now, wants(third, third));
                        self.machine.handle(now, wants(2 * third, bytes - 2 * third));
                    }
                }
            }
            Output::Run(task) => context.server.executor.run((link, task)),
            Output::Abort(task) => {
                self.intake.forget(task);
                context.server.executor.abort((link, task));
            }
            Output::Fail { task, fault, .. } => {
                self.intake.forget(task);
                if context.server.executor.abort((link, task)) {
                    self.failing.insert(task, fault);
                } else {
                    let outcome = failed(fault);
                    self.machine.handle(now, Input::Failed { task, outcome });
                }
            }
            other => return Some(other),
        }
        None
    }

    /// Reports an output about a task to the relay, if there is one; returns any other output.
    fn relayed(&mut self, output: Output, context: &mut Context<'_>) -> Option<Output> {
        let Some(relay) = &mut context.server.relay else { return Some(output) };
        relay.push_back(match output {
            Output::Receive(destination @ DataDestination::Stream { task, offset_bytes }) => {
                self.intake.receive(destination);
                RelayedEvent::Segment { task, offset_bytes, bytes: self.segment_bytes }
            }
            Output::Start(task) => RelayedEvent::Start(task),
            Output::DataOut { task, offset_bytes, bytes, digest } => {
                RelayedEvent::DataOut { task, offset_bytes, bytes, digest }
            }
            Output::Abort(task) => {
                self.intake.forget(task);
                RelayedEvent::Abort(task)
            }
            Output::Fail { task, fault, .. } => {
                self.intake.forget(task);
                RelayedEvent::Fail { task, fault }
            }
            other => return Some(other),
        });
        None
    }
}

/// A report about a task to the relay that executes it.
#[derive(Debug)]
pub(super) enum RelayedEvent {
    Start(Task),
    /// A segment of data-out begins.
    Segment {
        task: TaskId,
        offset_bytes: u32,
        bytes: u32,
    },
    /// Bytes of that segment.
    Bytes(Vec<u8>),
    /// A range of data-out is complete and checked.
    DataOut {
        task: TaskId,
        offset_bytes: u32,
        bytes: u32,
        digest: SegmentDigest,
    },
    Abort(TaskId),
    Fail {
        task: TaskId,
        fault: TransferFault,
    },
}

/// State that a target's end uses besides its own.
pub(super) struct Context<'a> {
    pub(super) now: Time,
    pub(super) link: usize,
    pub(super) server: &'a mut Server,
    pub(super) up: OutgoingWire<'a>,
}
