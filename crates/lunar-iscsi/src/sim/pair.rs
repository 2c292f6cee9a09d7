//! [`Pair`]: initiators and one target, their links, the clock.

use super::disk::SimDisk;
use super::host::{BackEvent, Host, InitiatorEnd, OutgoingWire, SimAnswer};
use super::log::Log;
use super::rng::Rng;
use super::server::{Context, RelayedEvent, Server, TargetEnd};
use super::wire::Wire;
use crate::connection::initiator::{
    CloseReason, Command, CommandResult, ConnectionLimits, ConnectionOptions, InitiatorConnection,
    Input as Ask, Management, RequestFailure, StreamingCommand,
};
use crate::connection::target::{self, Input as Serve, TargetConnection};
use crate::framing::{Digests, SegmentDigest, TaskId};
use crate::login::initiator::{ChapAnswer, InitiatorLoginOptions};
use crate::login::{ChapRequirement, SessionType};
use crate::pdu::{ManagementFunction, TaskAttribute};
use crate::session::initiator::{
    InitiatorSession, InitiatorSessionOptions, Input as ToSession, Isid, Output as FromSession,
};
use crate::session::target::{
    Input as ToServed, SessionLimits, ToConnection as ToTarget, ToSession as FromTarget,
};
use crate::text::Offer;
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::string::String;
use alloc::vec::Vec;
use bytes::Bytes;
use core::time::Duration;
use lunar_wire::{Lun, SerialNumber, Time};

/// Setup of a [`Pair`].
#[derive(Clone, Debug)]
pub struct PairOptions {
    /// Proposals of the initiators.
    pub initiator: Offer,
    /// Values the target is willing to negotiate.
    pub target: Offer,
    /// CHAP on both sides: the target's requirements and the initiator's credentials.
    pub chap: Option<(ChapRequirement, ChapAnswer)>,
    /// Limits of the initiators' connections.
    pub initiator_limits: ConnectionLimits,
    /// Limits of the target's connections.
    pub target_limits: target::ConnectionLimits,
    /// Limits of the target's sessions.
    pub session_limits: SessionLimits,
    /// Initial CmdSN of the sessions.
    pub cmd_sn: SerialNumber,
    /// Number of blocks of the disk behind LUN 1.
    pub block_count: usize,
    /// True if the target's connections receive messages of their session at once, as on one core;
    /// false if each has a queue, as between cores.
    pub one_core: bool,
}

impl Default for PairOptions {
    fn default() -> Self {
        Self {
            initiator: Offer { max_connections: 4, ..Offer::initiator() },
            target: Offer::target(),
            chap: None,
            initiator_limits: ConnectionLimits { ping_interval: None, ..Default::default() },
            target_limits: target::ConnectionLimits::default(),
            session_limits: SessionLimits::default(),
            cmd_sn: SerialNumber(u32::MAX - 5),
            block_count: 4096,
            one_core: false,
        }
    }
}

/// One connection: two ends, two directions.
#[derive(Debug)]
struct Link {
    host: usize,
    cid: u16,
    initiator: InitiatorEnd,
    target: TargetEnd,
    up: Wire,
    down: Wire,
    /// Number of delivered bytes, over both directions, after which the link is cut.
    cut_at: Option<u64>,
    delivered: u64,
    /// True if nothing is delivered, without informing either end.
    frozen: bool,
}

/// Initiators and a target, connected by links.
#[derive(Debug)]
pub struct Pair {
    options: PairOptions,
    rng: Rng,
    now: Time,
    hosts: Vec<Host>,
    links: Vec<Link>,
    server: Server,
    log: Log,
    answers: BTreeMap<TaskId, SimAnswer>,
    next_id: u64,
    /// True if nothing is delivered to the target, or to the initiator.
    pub(super) holds_up: bool,
    pub(super) holds_down: bool,
    /// Maximum number of bytes delivered at once.
    pub(super) piece_bytes_max: usize,
}

/// A possible next step.
#[derive(Clone, Copy, Debug)]
enum SimulationStep {
    Up(usize),
    Down(usize),
    HostHears(usize),
    LinkHearsHost(usize),
    ServerHears(usize),
    LinkHearsServer(usize),
    /// The caller of a streaming command gives some of its data.
    Give(usize),
    Work,
    Manage,
}

impl Pair {
    /// Creates a target with a disk at LUN 1, and an initiator that is not logged in.
    pub fn new(seed: u64, options: PairOptions) -> Self {
        let mut server = Server::new(
            options.target.clone(),
            options.chap.as_ref().map(|(requirement, _)| requirement.clone()),
            options.session_limits.clone(),
        );
        server.executor.add_disk(1, SimDisk::new(options.block_count));
        let mut pair = Self {
            rng: Rng::new(seed),
            now: Time::from_nanos(1),
            hosts: Vec::new(),
            links: Vec::new(),
            server,
            log: Log::default(),
            answers: BTreeMap::new(),
            next_id: 0,
            holds_up: false,
            holds_down: false,
            piece_bytes_max: usize::MAX,
            options,
        };
        pair.add_host("iqn.2026-01.example:host", [0x80, 0, 0, 7, 0, 0]);
        pair
    }

    /// Adds an initiator session; returns its index.
    pub fn add_host(&mut self, name: &str, isid: Isid) -> usize {
        let options =
            InitiatorSessionOptions { isid, cmd_sn: self.options.cmd_sn, queue_requests_max: 4096 };
        let session = InitiatorSession::new(options);
        self.hosts.push(Host { session, name: name.into(), ended: false });
        self.hosts.len() - 1
    }

    /// Opens connection `cid` of a host and starts its login; returns the index of its link.
    pub fn connect(&mut self, host: usize, cid: u16) -> usize {
        self.connect_as(host, cid, SessionType::Normal)
    }

    /// Like `connect`, for a session of this type.
    pub fn connect_as(&mut self, host: usize, cid: u16, session_type: SessionType) -> usize {
        let numbers = self.hosts[host].session.open(cid).expect("the session takes a connection");
        let normal = session_type == SessionType::Normal;
        let login = InitiatorLoginOptions {
            initiator_name: self.hosts[host].name.clone(),
            alias: None,
            target_name: normal.then(|| String::from(super::TARGET_NAME)),
            session_type,
            isid: numbers.isid,
            tsih: numbers.tsih,
            cid,
            initiator_task_tag: 0,
            cmd_sn: numbers.cmd_sn,
            offer: self.options.initiator.clone(),
            chap: self.options.chap.as_ref().map(|(_, answer)| answer.clone()),
            entropy: core::array::from_fn(|_| self.rng.bits() as u8),
        };
        let options = ConnectionOptions {
            login,
            session: self.hosts[host].session.parameters(),
            limits: self.options.initiator_limits,
        };
        let first_stat_sn = SerialNumber(self.rng.bits() as u32);
        let target = TargetConnection::new(self.options.target_limits.clone(), first_stat_sn);
        self.links.push(Link {
            host,
            cid,
            initiator: InitiatorEnd::new(InitiatorConnection::new(self.now, options)),
            target: TargetEnd::new(target),
            up: Wire::default(),
            down: Wire::default(),
            cut_at: None,
            delivered: 0,
            frozen: false,
        });
        let link = self.links.len() - 1;
        self.initiator(link, |end, _, up| end.poll(up));
        self.target(link, TargetEnd::poll);
        link
    }

    /// Logs in connection 0 of host 0.
    pub fn login(&mut self) -> usize {
        let link = self.connect(0, 0);
        self.run();
        assert!(self.is_logged_in(link), "{:?}", self.closed(link));
        link
    }

    /// True once the login of this link is complete.
    pub fn is_logged_in(&self, link: usize) -> bool {
        self.links[link].initiator.logged_in
    }

    /// The reason why the initiator closed this link, if it did.
    pub fn closed(&self, link: usize) -> Option<&CloseReason> {
        self.links[link].initiator.closed.as_ref()
    }

    /// The reason why the target closed this link, if it did.
    pub fn closed_by_target(&self, link: usize) -> Option<&target::CloseReason> {
        self.links[link].target.closed.as_ref()
    }

    /// The answer to the last logout on this link.
    pub fn logged_out(
        &self,
        link: usize,
    ) -> Option<&Result<crate::connection::initiator::LogoutReply, RequestFailure>> {
        self.links[link].initiator.logged_out.as_ref()
    }

    /// Asynchronous Messages that arrived on this link.
    pub fn events(&self, link: usize) -> &[crate::connection::initiator::Event] {
        &self.links[link].initiator.events
    }

    /// The log of sent PDUs.
    pub fn log(&self) -> &Log {
        &self.log
    }

    /// Starts an exchange of blocks of LUN 1: writes `data` (whole blocks) and returns what was
    /// there.
    pub fn start_exchange(&mut self, link: usize, lba: u32, data: &[u8]) -> TaskId {
        let mut cdb = [0; 10];
        cdb[0] = super::EXCHANGE;
        cdb[2..6].copy_from_slice(&lba.to_be_bytes());
        let blocks = (data.len() / super::BLOCK_BYTES) as u16;
        cdb[7..9].copy_from_slice(&blocks.to_be_bytes());
        self.start(link, &cdb, data, data.len() as u32)
    }

    /// The disk behind a LUN.
    pub fn disk(&mut self, lun: u16) -> &mut SimDisk {
        self.server.executor.disk(lun)
    }

    /// The CDBs of all commands that were started, in order.
    pub fn started(&self) -> impl Iterator<Item = &Bytes> {
        self.server.executor.started.iter().map(|(_, cdb)| cdb)
    }

    /// Returns a new id for a request.
    pub fn new_id(&mut self) -> TaskId {
        self.next_id += 1;
        TaskId(self.next_id)
    }

    /// Starts a WRITE(16) at a block of LUN 1; `data` is whole blocks.
    pub fn start_write(&mut self, link: usize, lba: u64, data: &[u8]) -> TaskId {
        let cdb = transfer_cdb(0x8a, lba, data.len());
        self.start(link, &cdb, data, 0)
    }

    /// Starts a READ(16) of `bytes` bytes (whole blocks) at a block of LUN 1.
    pub fn start_read(&mut self, link: usize, lba: u64, bytes: usize) -> TaskId {
        self.start(link, &transfer_cdb(0x88, lba, bytes), &[], bytes as u32)
    }

    /// Starts a command for LUN 1; the data of one in three moves in pieces.
    pub fn start(&mut self, link: usize, cdb: &[u8], data_out: &[u8], data_in: u32) -> TaskId {
        let id = self.new_id();
        let command = Command {
            id,
            lun: Lun::new(1),
            cdb: cdb.into(),
            attribute: TaskAttribute::SIMPLE,
            priority: 0,
            data_out: Bytes::copy_from_slice(data_out),
            data_in_bytes_max: data_in,
            immediate: false,
        };
        self.log.source(&command.data_out);
        if self.rng.once_in(3) {
            let prefix_bytes = self.rng.below(data_out.len() + 1);
            self.links[link].initiator.add_stream(id, command.data_out.clone());
            let command = Command { data_out: command.data_out.slice(..prefix_bytes), ..command };
            let data_out_bytes = data_out.len() as u32;
            let streaming = StreamingCommand { command, data_out_bytes, prefix_digest: None };
            self.ask(link, Ask::Stream(Box::new(streaming)));
        } else {
            self.ask(link, Ask::Execute(command));
        }
        id
    }

    /// Writes and waits for the result.
    pub fn write(
        &mut self,
        link: usize,
        lba: u64,
        data: &[u8],
    ) -> Result<CommandResult, RequestFailure> {
        let id = self.start_write(link, lba, data);
        self.run();
        self.result(id).0
    }

    /// Reads and waits for the result and the buffer.
    pub fn read(
        &mut self,
        link: usize,
        lba: u64,
        bytes: usize,
    ) -> (Result<CommandResult, RequestFailure>, Vec<u8>) {
        let id = self.start_read(link, lba, bytes);
        self.run();
        self.result(id)
    }

    /// Passes an input to the initiator's end of a link.
    pub fn ask(&mut self, link: usize, input: Ask) {
        self.initiator(link, |end, now, up| end.handle(now, input, up));
    }

    /// Starts a task management function.
    ///
    /// Without data digests, an abort within data that was announced costs the connection
    /// ([`CloseReason::DataMissing`]), so the rest of that data is given first.
    pub fn manage(&mut self, link: usize, management: Management) {
        let Management { function, referenced, .. } = management;
        if function == ManagementFunction::ABORT_TASK && !self.digests(link).data {
            let end = &mut self.links[link].initiator;
            if let Some(rest) = referenced.and_then(|id| end.rest_of_announced(id)) {
                self.ask(link, rest);
            }
        }
        self.ask(link, Ask::Manage(management));
    }

    /// A streaming command of a link with data that was announced and is not complete.
    pub fn announcing(&self, link: usize) -> Option<TaskId> {
        self.links[link].initiator.announcing()
    }

    /// Passes an input to the target's end of a link.
    pub fn handle_at_target(&mut self, link: usize, input: Serve) {
        self.target(link, |end, context| end.handle(input, context));
    }

    /// Takes the answer to a request, which must have arrived.
    pub fn answer(&mut self, id: TaskId) -> SimAnswer {
        self.answers.remove(&id).unwrap_or_else(|| panic!("no answer to {id:?}"))
    }

    /// True if there is an answer to this request.
    pub fn is_answered(&self, id: TaskId) -> bool {
        self.answers.contains_key(&id)
    }

    /// Takes the answer to a command, and its data-in buffer.
    pub fn result(&mut self, id: TaskId) -> (Result<CommandResult, RequestFailure>, Vec<u8>) {
        match self.answer(id) {
            SimAnswer::Completed(result, buffer) => (result, buffer),
            other => panic!("{other:?}"),
        }
    }

    /// Cuts a link now.
    pub fn cut(&mut self, link: usize) {
        let link = &mut self.links[link];
        link.up.cut();
        link.down.cut();
    }

    /// Cuts a link once `bytes` bytes were delivered on it.
    pub fn cut_after(&mut self, link: usize, bytes: u64) {
        self.links[link].cut_at = Some(bytes);
    }

    /// Delivers nothing on a link from now on, without informing either end: the peer seems dead.
    pub fn freeze(&mut self, link: usize) {
        self.links[link].frozen = true;
    }

    /// True once the requested bit flip has happened.
    pub fn is_flipped(&self, link: usize) -> bool {
        let link = &self.links[link];
        link.up.flip_bit.is_none() && link.down.flip_bit.is_none()
    }

    /// Parameters negotiated by a host's session, which must be logged in.
    pub fn session_parameters(&self, host: usize) -> crate::text::SessionParameters {
        self.hosts[host].session.parameters().expect("logged in")
    }

    /// Number of sessions at the target.
    pub fn served_sessions(&self) -> usize {
        self.server.sessions.len()
    }

    /// Bytes delivered on a link, both directions.
    pub fn delivered(&self, link: usize) -> u64 {
        self.links[link].delivered
    }

    /// Flips the bit that is sent `ahead_bits` from now.
    pub fn flip(&mut self, link: usize, to_target: bool, ahead_bits: u64) {
        let link = &mut self.links[link];
        let wire = if to_target { &mut link.up } else { &mut link.down };
        wire.flip_bit = Some(wire.sent_bytes * 8 + ahead_bits);
    }

    /// Takes one random possible step. `false` if only a timer can cause further steps.
    pub fn step(&mut self) -> bool {
        let moves = self.moves();
        if moves.is_empty() {
            return false;
        }
        self.now = self.now.after(Duration::from_micros(1));
        match *self.rng.pick(&moves) {
            SimulationStep::Up(link) => self.deliver_up(link),
            SimulationStep::Down(link) => self.deliver_down(link),
            SimulationStep::HostHears(link) => self.host_hears(link),
            SimulationStep::LinkHearsHost(link) => {
                if let Some(message) = self.links[link].initiator.from_session.pop_front() {
                    self.ask(link, Ask::Session(message));
                }
            }
            SimulationStep::ServerHears(link) => self.server_hears(link),
            SimulationStep::LinkHearsServer(link) => {
                if let Some(message) = self.links[link].target.from_session.pop_front() {
                    self.handle_at_target(link, Serve::Session(message));
                }
            }
            SimulationStep::Give(number) => {
                let input = self.links[number].initiator.give(&mut self.rng);
                self.ask(number, input);
            }
            SimulationStep::Work => {
                let ((link, task), work) = self.server.executor.work(&mut self.rng);
                self.target(link, |end, context| end.job_done(task, work, context));
            }
            SimulationStep::Manage => {
                let at = self.rng.below(self.server.functions.len());
                self.server.manage(self.now, at);
            }
        }
        self.route_server();
        true
    }

    /// Runs until only a timer can cause further steps.
    pub fn run(&mut self) {
        /// More steps than any test needs; a run that does not end is a bug.
        const STEPS_MAX: u32 = 5_000_000;
        for _ in 0..STEPS_MAX {
            if !self.step() {
                return;
            }
        }
        panic!("a run without end");
    }

    /// Runs for at most `steps` steps.
    pub fn run_steps(&mut self, steps: usize) {
        for _ in 0..steps {
            if !self.step() {
                return;
            }
        }
    }

    /// Advances the time: delivers every deadline on the way, and runs its consequences.
    pub fn pass(&mut self, span: Duration) {
        let end = self.now.after(span);
        self.run();
        while let Some(next) = self.next_deadline().filter(|next| *next <= end) {
            self.deliver_deadlines(next);
            self.run();
        }
        self.now = self.now.max(end);
    }

    /// Advances the time to `now`, and delivers the deadlines that have come.
    pub(super) fn deliver_deadlines(&mut self, now: Time) {
        self.now = self.now.max(now);
        for link in 0..self.links.len() {
            let due = |deadline: Option<Time>| deadline.is_some_and(|at| at <= now);
            if due(self.links[link].initiator.deadline) {
                self.ask(link, Ask::Deadline);
            }
            if due(self.links[link].target.deadline) {
                self.handle_at_target(link, Serve::Deadline);
            }
        }
    }

    pub(super) fn next_deadline(&self) -> Option<Time> {
        let ends = |link: &Link| [link.initiator.deadline, link.target.deadline];
        self.links.iter().flat_map(ends).flatten().min()
    }

    /// Payload bytes that arrived, and bytes that were copied to their destination, on both sides.
    pub fn payload_and_copied_bytes(&self) -> (u64, u64) {
        let intakes =
            self.links.iter().flat_map(|link| [&link.initiator.intake, &link.target.intake]);
        intakes.fold((0, 0), |(payload, copied), intake| {
            (payload + intake.payload_bytes, copied + intake.copied_bytes)
        })
    }

    /// Asserts that nothing is left on either side: no task, tag, buffer or byte on a link; and no
    /// timer or session if the link is closed.
    ///
    /// # Panics
    /// If anything is left.
    pub fn assert_nothing_left(&self) {
        for (number, link) in self.links.iter().enumerate() {
            let (initiator, target) = (&link.initiator, &link.target);
            assert!(initiator.machine.is_idle(), "link {number}: {:?}", initiator.machine);
            assert!(initiator.buffers.is_empty(), "link {number}: data-in buffers");
            assert!(initiator.streams.is_empty(), "link {number}: {:?}", initiator.streams);
            let is_open = link.up.is_open() || link.down.is_open();
            assert!(!is_open || initiator.closed.is_some(), "link {number}: an open PDU");
            assert_eq!(target.machine.tasks(), 0, "link {number}: {:?}", target.machine);
            assert_eq!(target.machine.requests(), 0, "link {number}: {:?}", target.machine);
            let quiet = link.frozen || link.up.is_empty() && link.down.is_empty();
            assert!(quiet, "link {number}: bytes on the way");
            assert!(initiator.to_session.is_empty() && initiator.from_session.is_empty());
            assert!(target.to_session.is_empty() && target.from_session.is_empty());
            if initiator.closed.is_some() {
                assert_eq!(initiator.deadline, None, "link {number}: a timer");
                assert!(target.closed.is_some(), "link {number}: {:?}", target.machine);
                assert_eq!(target.deadline, None, "link {number}: a timer");
            }
        }
        assert!(self.hosts.iter().all(|host| host.session.is_idle()), "{:?}", self.hosts);
        let executor = &self.server.executor;
        assert!(executor.is_idle() && self.server.functions.is_empty(), "{executor:?}");
        assert!(self.server.others.is_empty(), "{:?}", self.server.others);
        let open = |link: &Link| link.target.closed.is_none();
        for served in self.server.sessions.values() {
            assert_eq!(served.session.tasks(), 0, "{:?}", served.session);
            let alive = served.links.values().any(|link| open(&self.links[*link]));
            assert!(alive, "a session without connections: {:?}", served.session);
        }
    }

    fn moves(&self) -> Vec<SimulationStep> {
        let mut moves = Vec::new();
        for (number, link) in self.links.iter().enumerate() {
            let (initiator, target) = (&link.initiator, &link.target);
            let closed = target.closed.is_some();
            let ready = closed || target.intake.is_ready(target.machine.can_receive());
            let up = link.up.is_due() && (ready || link.up.is_empty()) && !self.holds_up;
            let down = link.down.is_due() && !self.holds_down;
            let checks = [
                (up && !link.frozen, SimulationStep::Up(number)),
                (down && !link.frozen, SimulationStep::Down(number)),
                (!initiator.to_session.is_empty(), SimulationStep::HostHears(number)),
                (!initiator.from_session.is_empty(), SimulationStep::LinkHearsHost(number)),
                (!target.to_session.is_empty(), SimulationStep::ServerHears(number)),
                (!target.from_session.is_empty(), SimulationStep::LinkHearsServer(number)),
                (initiator.owes_data(), SimulationStep::Give(number)),
            ];
            moves.extend(checks.iter().filter(|(can, _)| *can).map(|(_, what)| *what));
        }
        if self.server.executor.is_due() {
            moves.push(SimulationStep::Work);
        }
        if !self.server.functions.is_empty() {
            moves.push(SimulationStep::Manage);
        }
        moves
    }

    fn deliver_up(&mut self, number: usize) {
        let link = &mut self.links[number];
        if link.up.is_empty() {
            link.up.end_reported = true;
            return self.handle_at_target(number, Serve::PeerClosed);
        }
        let piece = link.up.piece(&mut self.rng, self.piece_bytes_max);
        let mut used = 0;
        self.target(number, |end, context| used = end.arrive(&piece, context));
        self.links[number].up.put_back(&piece[used..]);
        self.count_delivered(number, used);
    }

    fn deliver_down(&mut self, number: usize) {
        let link = &mut self.links[number];
        if link.down.is_empty() {
            link.down.end_reported = true;
            return self.ask(number, Ask::PeerClosed);
        }
        let piece = link.down.piece(&mut self.rng, self.piece_bytes_max);
        self.initiator(number, |end, now, up| end.arrive(now, &piece, up));
        self.count_delivered(number, piece.len());
    }

    fn count_delivered(&mut self, number: usize, bytes: usize) {
        let link = &mut self.links[number];
        link.delivered += bytes as u64;
        if link.cut_at.is_some_and(|at| link.delivered >= at) {
            link.cut_at = None;
            self.cut(number);
        }
    }

    fn host_hears(&mut self, number: usize) {
        let link = &mut self.links[number];
        let (host, cid) = (link.host, link.cid);
        let Some(message) = link.initiator.to_session.pop_front() else { return };
        self.hosts[host].session.handle(ToSession::Connection(cid, message));
        while let Some(output) = self.hosts[host].session.poll() {
            match output {
                FromSession::ToConnection(cid, message) => {
                    let is_receiver = |link: &&mut Link| link.host == host && link.cid == cid;
                    if let Some(link) = self.links.iter_mut().rev().find(is_receiver) {
                        link.initiator.from_session.push_back(message);
                    }
                }
                FromSession::Established { .. } => {}
                FromSession::Ended(_) => self.hosts[host].ended = true,
            }
        }
    }

    fn server_hears(&mut self, number: usize) {
        let end = &mut self.links[number].target;
        let Some(message) = end.to_session.pop_front() else { return };
        if let Some(served) = self.server.sessions.get_mut(&end.tsih) {
            served.session.handle(self.now, ToServed::Connection(end.cid, message));
        } else if message == FromTarget::ConnectionClosing {
            // A connection that joined while its session ended has no tasks.
            end.from_session.push_back(ToTarget::DetachTasks);
        }
    }

    fn route_server(&mut self) {
        for (link, message) in self.server.poll_sessions(self.now) {
            if self.options.one_core {
                self.handle_at_target(link, Serve::Session(message));
            } else {
                self.links[link].target.from_session.push_back(message);
            }
        }
    }

    fn initiator(
        &mut self,
        number: usize,
        work: impl FnOnce(&mut InitiatorEnd, Time, &mut OutgoingWire<'_>),
    ) {
        let link = &mut self.links[number];
        let mut up = OutgoingWire { wire: &mut link.up, log: &mut self.log };
        work(&mut link.initiator, self.now, &mut up);
        for (id, answer) in link.initiator.answers.drain(..) {
            assert!(self.answers.insert(id, answer).is_none(), "two answers to {id:?}");
        }
    }

    fn target(&mut self, number: usize, work: impl FnOnce(&mut TargetEnd, &mut Context<'_>)) {
        let link = &mut self.links[number];
        let mut context = Context {
            now: self.now,
            link: number,
            server: &mut self.server,
            up: OutgoingWire { wire: &mut link.down, log: &mut self.log },
        };
        work(&mut link.target, &mut context);
        self.route_server();
    }
}

/// The access of a relay to its end of a link.
impl Pair {
    pub(super) fn now(&self) -> Time {
        self.now
    }

    /// Executes the commands of the target by a relay.
    pub(super) fn relay_target(&mut self) {
        self.server.relay = Some(VecDeque::new());
    }

    /// Reports about the streaming commands of an initiator to a relay.
    pub(super) fn relay_initiator(&mut self, link: usize) {
        self.links[link].initiator.relay = Some(VecDeque::new());
    }

    pub(super) fn next_front_event(&mut self) -> Option<RelayedEvent> {
        self.server.relay.as_mut()?.pop_front()
    }

    pub(super) fn next_back_event(&mut self, link: usize) -> Option<BackEvent> {
        self.links[link].initiator.relay.as_mut()?.pop_front()
    }

    /// Number of bytes that wait to be delivered to the target, and whether a PDU there is open.
    pub(super) fn waiting_up(&self, link: usize) -> (usize, bool) {
        let up = &self.links[link].up;
        (up.waiting_bytes(), up.is_open())
    }

    /// Number of bytes that wait to be delivered to the initiator, and whether a PDU there is open.
    pub(super) fn waiting_down(&self, link: usize) -> (usize, bool) {
        let down = &self.links[link].down;
        (down.waiting_bytes(), down.is_open())
    }

    pub(super) fn digests(&self, link: usize) -> Digests {
        let link = &self.links[link];
        link.target.digests.or(link.initiator.digests).unwrap_or_default()
    }

    /// Maximum length of a PDU's data that the relay may send on this link.
    pub(super) fn relay_segment_bytes_max(&self, link: usize) -> u32 {
        let link = &self.links[link];
        match &self.server.relay {
            Some(_) => {
                let session = self.hosts[link.host].session.parameters();
                let burst = session.map_or(0, |session| session.max_burst_bytes);
                link.target.segment_bytes_max.min(burst)
            }
            None => link.initiator.segment_bytes_max,
        }
    }

    /// Records a buffer that data is sent from.
    pub(super) fn add_source(&mut self, data: &Bytes) {
        self.log.source(data);
    }

    /// Takes the data that came before its task took it as a stream, with the report about it.
    pub(super) fn take_collected(&mut self, task: TaskId) -> Option<(Bytes, SegmentDigest)> {
        let events = self.server.relay.as_mut()?;
        let is_report = |event: &RelayedEvent| match event {
            RelayedEvent::DataOut { task: owner, .. } => *owner == task,
            _ => false,
        };
        let at = events.iter().position(is_report)?;
        match events.remove(at)? {
            RelayedEvent::DataOut { offset_bytes, bytes, digest, .. } => {
                Some((self.collected(task, offset_bytes, bytes)?, digest))
            }
            _ => None,
        }
    }

    /// Returns data in the buffer of a task.
    pub(super) fn collected(&self, task: TaskId, offset_bytes: u32, bytes: u32) -> Option<Bytes> {
        let buffers = &self.server.executor.buffers;
        let buffer = buffers.iter().find(|((_, owner), _)| *owner == task)?.1;
        let start = offset_bytes as usize;
        Some(Bytes::copy_from_slice(&buffer[start..start + bytes as usize]))
    }

    /// Frees the buffer of a task.
    pub(super) fn forget_collected(&mut self, task: TaskId) {
        self.server.executor.buffers.retain(|(_, owner), _| *owner != task);
    }

    /// Returns a new id that is none of the target's tasks.
    pub(super) fn new_id_apart(&mut self) -> TaskId {
        TaskId(1 << 32 | self.new_id().0)
    }
}

/// Builds a READ(16) or WRITE(16).
fn transfer_cdb(opcode: u8, lba: u64, bytes: usize) -> [u8; 16] {
    let mut cdb = [0; 16];
    cdb[0] = opcode;
    cdb[2..10].copy_from_slice(&lba.to_be_bytes());
    cdb[10..14].copy_from_slice(&((bytes / super::BLOCK_BYTES) as u32).to_be_bytes());
    cdb
}
