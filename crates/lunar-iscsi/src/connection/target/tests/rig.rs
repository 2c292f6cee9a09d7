//! Test rig: connections and their session, driven as the API requires; all outputs are kept for
//! the test.

use super::super::{
    CloseReason, ConnectionLimits, Input, Outcome, Output, TargetConnection, TargetRecord, Task,
    TransferFault,
};
use crate::framing::{DataDestination, Header, Pdu, SegmentDigest, TaskId};
use crate::login::{Admission, AdmissionDecision};
use crate::pdu::{
    FirstByte, HEADER_BYTES, LoginFlags, LoginRequest, ManagementFunction, ManagementResponse,
    Opcode, Stage,
};
use crate::session::target::{self as session, SessionLimits, TargetSession, ToSession};
use crate::text::Offer;
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use bytes::Bytes;
use core::time::Duration;
use lunar_wire::{Lun, SerialNumber, Time, U24};

/// The CmdSN of the leading login and of the first command: soon before the number wraps around.
pub(crate) const FIRST_CMD_SN: SerialNumber = SerialNumber(0xffff_fffe);

/// One connection under test, and its outputs.
pub(crate) struct TestConnection {
    pub(crate) machine: TargetConnection,
    pub(crate) sent: Vec<Pdu>,
    pub(crate) receives: Vec<DataDestination>,
    pub(crate) started: Vec<Task>,
    pub(crate) runs: Vec<TaskId>,
    /// Ranges of data-out that were handed over as they arrived.
    pub(crate) data_outs: Vec<(TaskId, u32, u32, SegmentDigest)>,
    /// Open PDUs: Initiator Task Tag, and index among those that were sent.
    pub(crate) open: Vec<(u32, usize)>,
    /// Digests given for open PDUs.
    pub(crate) digests: Vec<Option<u32>>,
    pub(crate) aborts: Vec<TaskId>,
    pub(crate) faults: Vec<(TaskId, TransferFault)>,
    pub(crate) buffers: BTreeMap<TaskId, Vec<u8>>,
    pub(crate) listed: Vec<Option<String>>,
    pub(crate) closed: Option<CloseReason>,
    pub(crate) deadline: Option<Time>,
    in_session: bool,
    awaited: Option<DataDestination>,
}

impl TestConnection {
    /// Forgets the destination of a segment that the test has delivered itself.
    pub(crate) fn forget_destination(&mut self) {
        self.awaited = None;
    }
}

pub(crate) struct Rig {
    pub(crate) now: Time,
    pub(crate) session: Option<TargetSession>,
    pub(crate) links: BTreeMap<u16, TestConnection>,
    pub(crate) managed: Vec<(u64, ManagementFunction, Lun)>,
    pub(crate) others_aborted: Vec<(u64, u32)>,
    pub(crate) ended: bool,
    /// True to answer aborts with Done at once.
    pub(crate) aborts_at_once: bool,
    pub(crate) offer: Offer,
    pub(crate) limits: ConnectionLimits,
    pub(crate) session_limits: SessionLimits,
    pub(crate) targets: Vec<TargetRecord>,
    /// Answer to a login instead of admission.
    pub(crate) identified: Option<AdmissionDecision>,
    inputs: VecDeque<(u16, Input)>,
}

impl Rig {
    pub(crate) fn new() -> Self {
        Self {
            now: Time::from_nanos(1_000_000_000),
            session: None,
            links: BTreeMap::new(),
            managed: Vec::new(),
            others_aborted: Vec::new(),
            ended: false,
            aborts_at_once: true,
            offer: Offer::target(),
            limits: ConnectionLimits::default(),
            session_limits: SessionLimits::default(),
            targets: Vec::new(),
            identified: None,
            inputs: VecDeque::new(),
        }
    }

    /// Creates a session of one connection, CID 1; `keys` are separated by spaces.
    pub(crate) fn normal(keys: &str) -> Self {
        let mut rig = Self::new();
        rig.login(1, keys);
        rig
    }

    /// Logs a connection in with one request and discards the responses.
    pub(crate) fn login(&mut self, cid: u16, keys: &str) {
        self.connect(cid);
        let discovery = keys.contains("SessionType=Discovery");
        let target = if discovery { "" } else { "TargetName=iqn.2026-01.example:t " };
        let text = alloc::format!("InitiatorName=iqn.2026-01.example:i {target}{keys}");
        let text: Vec<u8> =
            text.split_whitespace().flat_map(|pair| pair.bytes().chain([0])).collect();
        let tsih = self.session.as_ref().map_or(0, TargetSession::tsih);
        let request = login_request(cid, tsih);
        self.send(cid, request.encode(), &text);
        let link = self.link(cid);
        let sent = core::mem::take(&mut link.sent);
        assert_eq!(sent.len(), 1, "one login response");
        assert_eq!(sent[0].bhs[36..38], [0, 0], "login refused: {:?}", link.closed);
        assert!(link.closed.is_none());
    }

    /// Adds a newly accepted connection.
    pub(crate) fn connect(&mut self, cid: u16) {
        let mut machine = TargetConnection::new(self.limits.clone(), SerialNumber(u32::MAX));
        assert!(matches!(machine.poll(), Output::Wait(Some(_))), "a login has a deadline");
        self.links.insert(
            cid,
            TestConnection {
                machine,
                sent: Vec::new(),
                receives: Vec::new(),
                started: Vec::new(),
                runs: Vec::new(),
                data_outs: Vec::new(),
                open: Vec::new(),
                digests: Vec::new(),
                aborts: Vec::new(),
                faults: Vec::new(),
                buffers: BTreeMap::new(),
                listed: Vec::new(),
                closed: None,
                deadline: None,
                in_session: false,
                awaited: None,
            },
        );
    }

    pub(crate) fn link(&mut self, cid: u16) -> &mut TestConnection {
        self.links.get_mut(&cid).unwrap()
    }

    /// Delivers one PDU, header and payload, with a correct digest.
    pub(crate) fn send(&mut self, cid: u16, bhs: [u8; HEADER_BYTES], data: &[u8]) {
        self.send_whole(cid, bhs, &[], data, true);
    }

    pub(crate) fn send_whole(
        &mut self,
        cid: u16,
        mut bhs: [u8; HEADER_BYTES],
        ahs: &[u8],
        data: &[u8],
        digest_ok: bool,
    ) {
        bhs[4] = (ahs.len() / 4) as u8;
        lunar_wire::Field::put(U24::new(data.len() as u32).unwrap(), &mut bhs[5..8]);
        self.input(cid, Input::Header(Header { bhs, ahs: ahs.into() }));
        let link = self.link(cid);
        if data.is_empty() || link.closed.is_some() {
            return;
        }
        let destination = link.awaited.take().expect("a destination for the payload");
        let mut control = Bytes::new();
        match destination {
            DataDestination::Control => control = Bytes::copy_from_slice(data),
            DataDestination::Stream { .. } | DataDestination::Discard => {}
            DataDestination::Task { task, offset_bytes, buffer_bytes } => {
                let buffer =
                    link.buffers.entry(task).or_insert_with(|| vec![0xee; buffer_bytes as usize]);
                assert_eq!(buffer.len(), buffer_bytes as usize, "the same for every segment");
                buffer[offset_bytes as usize..][..data.len()].copy_from_slice(data);
            }
        }
        let digest = if digest_ok { SegmentDigest::None } else { SegmentDigest::Mismatched };
        self.input(cid, Input::Payload { data: control, digest });
    }

    /// Passes an input to a connection and processes all outputs.
    pub(crate) fn input(&mut self, cid: u16, input: Input) {
        self.inputs.push_back((cid, input));
        self.run_until_idle();
    }

    pub(crate) fn at_session(&mut self, input: session::Input) {
        self.session_step(input);
        self.run_until_idle();
    }

    pub(crate) fn wants(&mut self, cid: u16, task: TaskId, bytes: u32) {
        self.wants_range(cid, task, 0, bytes);
    }

    pub(crate) fn wants_range(&mut self, cid: u16, task: TaskId, offset_bytes: u32, bytes: u32) {
        self.input(cid, Input::Wants { task, offset_bytes, bytes });
    }

    pub(crate) fn data_in(&mut self, cid: u16, task: TaskId, offset_bytes: u32, data: &[u8]) {
        let data = Bytes::copy_from_slice(data);
        self.input(cid, Input::DataIn { task, offset_bytes, data, digest: None });
    }

    pub(crate) fn done(&mut self, cid: u16, task: TaskId, outcome: Outcome) {
        self.link(cid).buffers.remove(&task);
        self.input(cid, Input::Done { task, outcome });
    }

    /// Answers the oldest fault on this connection as the executor, if there is one.
    pub(crate) fn answer_fault(&mut self, cid: u16) {
        let link = self.link(cid);
        if !link.faults.is_empty() {
            let (task, fault) = link.faults.remove(0);
            self.inputs.push_back((cid, Input::Failed { task, outcome: failed(fault) }));
        }
    }

    fn fail(&mut self, cid: u16, task: TaskId, fault: TransferFault) {
        let link = self.link(cid);
        link.aborts.push(task);
        link.buffers.remove(&task);
        link.faults.push((task, fault));
        if self.aborts_at_once {
            self.answer_fault(cid);
        }
    }

    pub(crate) fn good(&mut self, cid: u16, task: TaskId) {
        self.done(cid, task, Outcome::default());
    }

    pub(crate) fn managed(&mut self, id: u64) {
        self.managed_as(id, ManagementResponse::FUNCTION_COMPLETE, [0; 3]);
    }

    pub(crate) fn managed_as(
        &mut self,
        id: u64,
        response: ManagementResponse,
        information: [u8; 3],
    ) {
        self.at_session(session::Input::Managed { id, response, information });
    }

    /// Advances the time, deadline by deadline.
    pub(crate) fn wait(&mut self, span: Duration) {
        let end = self.now.after(span);
        loop {
            let next = self.links.iter().filter(|(_, link)| link.closed.is_none());
            let next = next.filter_map(|(cid, link)| Some((link.deadline?, *cid))).min();
            match next {
                Some((deadline, cid)) if deadline <= end => {
                    self.now = self.now.max(deadline);
                    self.input(cid, Input::Deadline);
                    let after = self.link(cid);
                    assert!(
                        after.closed.is_some() || after.deadline.is_none_or(|d| d > deadline),
                        "a deadline that does not go away"
                    );
                }
                _ => break,
            }
        }
        self.now = end;
    }

    /// Takes the PDUs that a connection has sent, none of which may be open.
    pub(crate) fn sent(&mut self, cid: u16) -> Vec<Pdu> {
        assert_eq!(self.link(cid).open, [], "open PDUs");
        core::mem::take(&mut self.link(cid).sent)
    }

    /// Takes the only PDU that a connection has sent.
    pub(crate) fn sent_one(&mut self, cid: u16) -> Pdu {
        let mut sent = self.sent(cid);
        assert_eq!(sent.len(), 1, "{sent:?}");
        sent.remove(0)
    }

    /// Takes the only task that was started.
    pub(crate) fn started(&mut self, cid: u16) -> Task {
        let mut started = core::mem::take(&mut self.link(cid).started);
        assert_eq!(started.len(), 1, "{started:?}");
        started.remove(0)
    }

    /// Asserts that no task, timer or buffer is left.
    pub(crate) fn assert_nothing_left(&mut self) {
        assert_eq!(self.session.as_ref().map_or(0, TargetSession::tasks), 0);
        for (cid, link) in &mut self.links {
            assert_eq!(link.machine.tasks(), 0, "tasks of connection {cid}");
            assert_eq!(link.machine.requests(), 0, "requests of connection {cid}");
            assert!(link.buffers.is_empty(), "buffers of connection {cid}");
            assert_eq!(link.open, [], "open PDUs of connection {cid}");
        }
    }

    pub(crate) fn run_until_idle(&mut self) {
        while let Some((cid, input)) = self.inputs.pop_front() {
            let now = self.now;
            self.link(cid).machine.handle(now, input);
            loop {
                match self.link(cid).machine.poll() {
                    Output::Wait(deadline) => {
                        self.link(cid).deadline = deadline;
                        break;
                    }
                    output => self.handle_output(cid, output),
                }
            }
        }
    }

    fn handle_output(&mut self, cid: u16, output: Output) {
        let is_last = !matches!(output, Output::DetachedTaskEnded(_));
        let is_closed = self.link(cid).closed.is_some();
        assert_eq!(is_closed, !is_last, "Close is the last output: {output:?}");
        match output {
            Output::Receive(destination) => {
                let link = self.link(cid);
                assert!(
                    link.awaited.replace(destination).is_none(),
                    "one Receive for each payload"
                );
                link.receives.push(destination);
            }
            Output::Send(pdu) => self.send_pdu(cid, pdu),
            Output::SendData { initiator_task_tag, data, digest } => {
                self.complete(cid, initiator_task_tag, &data, digest);
            }
            Output::DataOut { task, offset_bytes, bytes, digest } => {
                self.link(cid).data_outs.push((task, offset_bytes, bytes, digest));
            }
            Output::Identify(_) => {
                let admission = Admission {
                    portal_group_tag: 1,
                    target_alias: None,
                    chap: None,
                    offer: self.offer.clone(),
                    entropy: [7; 33],
                };
                let admit = AdmissionDecision::Admit(admission);
                let answer = self.identified.clone().unwrap_or(admit);
                self.inputs.push_back((cid, Input::Identified(Box::new(answer))));
            }
            Output::Join(join) => {
                let limits = self.session_limits.clone();
                let session = self.session.get_or_insert_with(|| {
                    TargetSession::new(9, join.session, join.cmd_sn, limits)
                });
                session.handle(self.now, session::Input::Join(cid));
                let joined = session.joined(cid);
                self.inputs.push_back((cid, Input::Joined(Ok(joined))));
                self.link(cid).in_session = true;
                self.follow_session();
            }
            Output::ListTargets { only, .. } => {
                self.link(cid).listed.push(only);
                let records = self.targets.clone();
                self.inputs.push_back((cid, Input::Targets { records, more: false }));
            }
            Output::ToSession(message) => {
                assert!(self.link(cid).in_session);
                let gone = message == ToSession::ConnectionClosed;
                self.session_step(session::Input::Connection(cid, message));
                self.link(cid).in_session &= !gone;
            }
            Output::Start(task) => self.link(cid).started.push(task),
            Output::Run(task) => self.link(cid).runs.push(task),
            Output::Abort(task) => self.abort(cid, task),
            Output::Fail { task, fault, .. } => self.fail(cid, task, fault),
            Output::FullFeature(_) => {}
            Output::Close(reason) => {
                let link = self.link(cid);
                assert!(!link.in_session, "the session was informed before");
                link.closed = Some(reason);
            }
            Output::DetachedTaskEnded(task) => self.session_step(session::Input::TaskEnded(task)),
            Output::Wait(_) => unreachable!(),
        }
    }

    fn send_pdu(&mut self, cid: u16, pdu: Pdu) {
        super::invariants::check(&pdu);
        let link = self.link(cid);
        if pdu.missing_bytes() > 0 {
            let tag = pdu.initiator_task_tag();
            assert!(link.open.iter().all(|(open, _)| *open != tag), "one of each task");
            link.open.push((tag, link.sent.len()));
        }
        link.sent.push(pdu);
    }

    fn abort(&mut self, cid: u16, task: TaskId) {
        let at_once = self.aborts_at_once;
        let link = self.link(cid);
        link.aborts.push(task);
        link.buffers.remove(&task);
        if at_once {
            let outcome = Outcome::default();
            self.inputs.push_back((cid, Input::Done { task, outcome }));
        }
    }

    /// Adds a part to an open PDU.
    fn complete(&mut self, cid: u16, tag: u32, part: &[u8], digest: Option<u32>) {
        let link = self.link(cid);
        let at = link.open.iter().position(|(open, _)| *open == tag).expect("an open PDU");
        let pdu = &mut link.sent[link.open[at].1];
        assert!((1..=pdu.missing_bytes()).contains(&part.len()));
        pdu.data = [&pdu.data[..], part].concat().into();
        if pdu.missing_bytes() == 0 {
            link.open.remove(at);
            link.digests.push(digest);
        }
    }

    fn session_step(&mut self, input: session::Input) {
        if let Some(session) = &mut self.session {
            session.handle(self.now, input);
            self.follow_session();
        }
    }

    fn follow_session(&mut self) {
        let Some(session) = &mut self.session else { return };
        while let Some(output) = session.poll() {
            match output {
                session::Output::ToConnection(cid, message) => {
                    if self.links.get(&cid).is_some_and(|link| link.in_session) {
                        self.inputs.push_back((cid, Input::Session(message)));
                    }
                }
                session::Output::Manage { id, function, lun } => {
                    self.managed.push((id, function, lun));
                }
                session::Output::OthersAborted { id, tasks } => {
                    self.others_aborted.push((id, tasks));
                }
                session::Output::Ended => {
                    assert!(!self.ended, "a session ends once");
                    self.ended = true;
                }
            }
        }
    }
}

/// Builds a CHECK CONDITION with fixed format sense data.
pub(crate) fn failed(fault: TransferFault) -> Outcome {
    let (key, code) = fault.sense();
    let [code, qualifier] = code.to_be_bytes();
    let sense = [0x70, 0, key, 0, 0, 0, 0, 10, 0, 0, 0, 0, code, qualifier, 0, 0, 0, 0];
    Outcome { status: 2, sense: Bytes::copy_from_slice(&sense), ..Outcome::default() }
}

pub(crate) fn login_request(cid: u16, tsih: u16) -> LoginRequest {
    LoginRequest {
        first: FirstByte::immediate(Opcode::LOGIN_REQUEST),
        flags: LoginFlags::stage(Stage::OPERATIONAL_NEGOTIATION, Some(Stage::FULL_FEATURE_PHASE)),
        version_max: 0,
        version_min: 0,
        total_ahs_words: 0,
        data_segment_length: U24::default(),
        isid: [0x80, 0, 0, 0, 0, 1],
        tsih,
        initiator_task_tag: 0x77,
        cid,
        cmd_sn: FIRST_CMD_SN,
        exp_stat_sn: SerialNumber(0),
    }
}

/// Bytes that depend on their position.
pub(crate) fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at / 7 + at) as u8).collect()
}
