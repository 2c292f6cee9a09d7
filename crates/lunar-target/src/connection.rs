//! One connection of the target: its protocol machine, and the execution of the machine's outputs.

mod receiving;
mod relaying;
mod start;

use crate::access::{AccessRules, TargetsQuery};
use crate::admission::{Connections, CountedConnection};
use crate::connection_table::Phase;
use crate::join::{self, JoiningConnection, SessionLogins};
use crate::login::{Login, LoginPolicy};
use crate::memory::{ConnectionMemory, MemoryOwners};
use crate::options::Limits;
use crate::peer_network::PeerNetwork;
use crate::portals::ConnectionPath;
use crate::relay::RelayFactory;
use crate::session::{ConnectionEvent, ConnectionEventSender, KnownView, Session};
use crate::statistics::{Commands, Counters};
use crate::task_map::{self, TaskIds, TaskMap};
use crate::task_set::QueuedTaskPermit;
use crate::tasks::{TaskServices, Tasks, data_in_bytes};
use crate::unit::Unit;
use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::Abortable;
use lunar_block::MemoryKind;
use lunar_iscsi::connection::target::{
    CloseReason, ConnectionLimits, Input, Output, TargetConnection,
};
use lunar_iscsi::framing::{HEADER_SEGMENTS_BYTES_MAX, Header, SegmentDigest, TaskId};
use lunar_iscsi::login::target::LOGIN_SEGMENT_BYTES_MAX;
use lunar_iscsi::login::{Join, Joined, SessionType};
use lunar_iscsi::pdu::LoginStatus;
use lunar_iscsi::session::target::{DataDue, ToConnection, ToSession};
use lunar_net::{
    BufferLimits, BufferedBytes, Clock, ConnectionHandler, Cores, MoveBudget, Outbox, OwnerId,
    TURN_BYTES, TURN_PDUS, TapChange, TappedConnection,
};
use lunar_wire::{SerialNumber, Time};
use receiving::Receiving;
use relaying::Relaying;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

type Joining = Pin<Box<dyn Future<Output = Result<(Joined, Arc<Session>), LoginStatus>>>>;

/// SOME COMMANDS CLEARED BY ISCSI PROTOCOL EVENT.
const COMMANDS_CLEARED_BY_ISCSI: u16 = 0x477f;

/// Messages taken from the mailbox in one go.
const EVENT_BATCH: usize = 64;

/// Number of messages of each kind for which room is kept while there are none.
const MESSAGES_KEPT_MAX: usize = 4;

/// Memory of tasks and messages that is not searched for spare capacity: it is charged, and a
/// connection that waits for its next command has about as much.
const SPARE_BYTES_KEPT: usize = 4 << 10;

/// Bytes of room that text and ping data get first; later they get as much again as has arrived.
/// Data that is announced and does not arrive takes no memory.
const CONTROL_PIECE_BYTES: usize = 4 << 10;

/// Buffer limits of a connection outside normal sessions, whose peer may have proven nothing: one
/// PDU of a login, one answer, and little in the kernel.
const BUFFERS_OUTSIDE_SESSIONS: BufferLimits = BufferLimits {
    receive_bytes_max: HEADER_SEGMENTS_BYTES_MAX + LOGIN_SEGMENT_BYTES_MAX,
    send_bytes_max: 16 << 10,
    socket_bytes_max: Some(16 << 10),
};

/// Parts of a server that its connections use.
#[derive(Debug)]
pub(crate) struct ConnectionServices {
    pub(crate) limits: Limits,
    pub(crate) clock: Clock,
    pub(crate) memory: MemoryOwners,
    pub(crate) counters: Arc<Counters>,
    pub(crate) connections: Arc<Connections>,
    pub(crate) rules: Arc<AccessRules>,
    pub(crate) logins: Arc<LoginPolicy>,
    pub(crate) session_logins: Arc<SessionLogins>,
    pub(crate) tasks: Arc<TaskServices>,
    /// Creates the relays of connections; `None`: devices move all data.
    pub(crate) relays: Option<Arc<dyn RelayFactory>>,
}

/// Serves an accepted connection on one of the cores, if there is room for it.
pub(crate) fn spawn(
    services: &Arc<ConnectionServices>,
    cores: &Cores,
    tcp: std::net::TcpStream,
    path: ConnectionPath,
) {
    let (mailbox, events) = unbounded_channel();
    let Some((counted, abort)) = services.connections.enter(path.peer, &mailbox) else { return };
    let services = Arc::clone(services);
    let owner = services.memory.time_owner_of(PeerNetwork::of(path.peer.ip()));
    cores.spawn_for(owner, move || {
        let connection = move || Connection::new(services, counted, path, mailbox, events);
        Abortable::new(serve(connection, tcp, path), abort).map(|_| ())
    });
}

/// Serves a connection until it ends.
async fn serve(
    connection: impl FnOnce() -> Connection,
    tcp: std::net::TcpStream,
    path: ConnectionPath,
) {
    let tcp = match lunar_net::prepare(&tcp).and_then(|()| tokio::net::TcpStream::from_std(tcp)) {
        Ok(tcp) => tcp,
        Err(error) => {
            tracing::debug!(%error, peer = %path.peer, "cannot set up an accepted connection");
            return;
        }
    };
    let connection = connection();
    match connection.services.relays.clone() {
        None => drive(connection, tcp).await,
        Some(relays) => relaying::drive(connection, tcp, relays).await,
    }
}

async fn drive(mut connection: Connection, tcp: tokio::net::TcpStream) {
    let clock = connection.services.clock;
    lunar_net::drive(tcp, &mut connection, clock).await;
    connection.log_end();
}

struct Connection {
    services: Arc<ConnectionServices>,
    counted: CountedConnection,
    path: ConnectionPath,
    machine: TargetConnection,
    /// Inputs that the machine gets when it has no more outputs.
    pending_inputs: VecDeque<Input>,
    /// Events that were taken from the channel and are not handled yet. Its memory is kept.
    pending_events: VecDeque<ConnectionEvent>,
    /// True while the owner of the connection has no turn: of the session's messages only aborts
    /// are processed.
    is_out_of_turn: bool,
    mailbox: ConnectionEventSender,
    events: UnboundedReceiver<ConnectionEvent>,
    login: Login,
    joining: Option<(Joining, u16)>,
    session: Option<(Arc<Session>, u16)>,
    /// View of the units in this turn: a view that is kept for longer would keep units that are
    /// gone.
    view: Option<KnownView>,
    /// Generation of the session's trace that this connection uses; set in full feature phase.
    traced: Option<u32>,
    memory: ConnectionMemory,
    /// True in full feature phase of a normal session.
    in_normal_session: bool,
    tasks: Tasks,
    /// Task set permits of commands that are being started and have entered their task sets
    /// already.
    permits: TaskMap<QueuedTaskPermit>,
    commands: Commands,
    /// Tasks that the session aborts by task management, not through an event of the protocol.
    managed: TaskIds,
    /// Units with tasks that were aborted with this connection.
    units_of_aborted_tasks: Vec<Arc<dyn Unit>>,
    receiving: Receiving,
    deadline: Option<Time>,
    close_reason: Option<CloseReason>,
    relaying: Option<Relaying>,
}

impl Connection {
    fn new(
        services: Arc<ConnectionServices>,
        counted: CountedConnection,
        path: ConnectionPath,
        mailbox: ConnectionEventSender,
        events: UnboundedReceiver<ConnectionEvent>,
    ) -> Self {
        let limits = &services.limits;
        let defaults = ConnectionLimits::default();
        let machine_limits = ConnectionLimits {
            retired_tasks_max: (limits.window_commands as usize)
                .saturating_add(defaults.immediate_commands_max),
            login_seconds: limits.login_seconds.into(),
            ping_after_seconds: limits.ping_after_seconds.into(),
            ping_timeout_seconds: limits.ping_timeout_seconds.into(),
            text_bytes_max: limits.text_bytes,
            data_out_seconds: limits.data_out_seconds.into(),
            ..defaults
        };
        let machine = TargetConnection::new(machine_limits, SerialNumber(0));
        let memory = services.memory.accounts(PeerNetwork::of(path.peer.ip()), None);
        let tasks = Tasks::new(Arc::clone(&services.tasks), limits, &memory);
        let commands = Commands::new(services.clock);
        Self {
            services,
            counted,
            path,
            machine,
            pending_inputs: VecDeque::new(),
            pending_events: VecDeque::new(),
            is_out_of_turn: false,
            mailbox,
            events,
            login: Login::default(),
            joining: None,
            session: None,
            view: None,
            traced: None,
            memory,
            in_normal_session: false,
            tasks,
            permits: TaskMap::default(),
            commands,
            managed: TaskIds::default(),
            units_of_aborted_tasks: Vec::new(),
            receiving: Receiving::Discarded,
            // An immediate deadline: the machine then starts the login timer even if nothing
            // arrives.
            deadline: Some(Time::default()),
            close_reason: None,
            relaying: None,
        }
    }

    fn handle(&mut self, now: Time, input: Input, out: &mut Outbox) {
        self.feed(now, input);
        self.handle_outputs(now, out);
    }

    /// Handles the pending inputs, and their outputs, until none is left.
    fn handle_pending_inputs(&mut self, now: Time, out: &mut Outbox) {
        if let Some(input) = self.pending_inputs.pop_front() {
            self.handle(now, input, out);
        }
    }

    /// Inlined: the kind of input is mostly known at compile time, and no input is copied.
    #[inline(always)]
    fn feed(&mut self, now: Time, input: Input) {
        match &input {
            Input::Done { task, outcome } | Input::Failed { task, outcome } => {
                self.commands.done(*task, outcome);
            }
            Input::DataIn { task, data, .. } => self.commands.data_in(*task, data.len()),
            Input::Session(ToConnection::AbortTask { task, data }) if *data != DataDue::Lost => {
                self.managed.insert(*task);
            }
            Input::HeaderDigestError => self.commands.header_digest_error(),
            _ => {}
        }
        self.machine.handle(now, input);
    }

    /// Handles the outputs of the machine, and the pending inputs when there is no further output.
    fn handle_outputs(&mut self, now: Time, out: &mut Outbox) {
        loop {
            match self.machine.poll() {
                Output::Send(pdu) => out.push(pdu),
                Output::ToSession(message) => self.send_to_session(now, message),
                Output::Start(task) => self.start(now, &task),
                Output::Receive(destination) => self.receive(destination),
                Output::Run(task) => self.run(now, task),
                Output::Wait(deadline) => {
                    self.deadline = deadline;
                    if !self.permits.is_empty() {
                        self.permits.clear(); // permits of tasks that failed before their start
                    }
                    match self.pending_inputs.pop_front() {
                        Some(input) => self.feed(now, input),
                        None => return,
                    }
                }
                output => self.handle_rare_output(output, out),
            }
        }
    }

    /// Queues the inputs of running tasks for the machine, such as data. They must come before the
    /// ends of these tasks, and after those of tasks that ended before. Returns their number, and
    /// that of their bytes.
    fn queue_task_inputs(&mut self) -> (usize, usize) {
        let (mut inputs, mut bytes) = (0, 0);
        while let Some(input) = self.tasks.next_input() {
            inputs += 1;
            bytes += data_in_bytes(&input);
            self.pending_inputs.push_back(input);
        }
        (inputs, bytes)
    }

    fn run(&mut self, now: Time, task: TaskId) {
        let Some((session, _)) = &self.session else { return };
        if let Some(answer) = self.tasks.run(session, task) {
            self.feed(now, answer);
        }
    }

    /// Handles the outputs that do not occur with every command.
    #[cold]
    fn handle_rare_output(&mut self, output: Output, out: &mut Outbox) {
        match output {
            Output::Identify(claim) => {
                let answer = self.login.identify(&self.services.logins, *claim, self.path);
                if answer.is_none() {
                    self.counted.wait();
                }
                self.pending_inputs.extend(answer.map(Box::new).map(Input::Identified));
            }
            Output::Join(join) => self.join(*join),
            Output::ListTargets { only, after, text_bytes } => {
                let query = TargetsQuery { only, after, text_bytes };
                let initiator = self.session.as_ref().map(|(session, _)| session);
                let name = initiator.map_or("", |session| &session.key.initiator_name);
                let (records, more) = self.services.rules.visible_targets(name, self.path, &query);
                self.pending_inputs.push_back(Input::Targets { records, more });
            }
            Output::Abort(task) => {
                self.commands.abort(task);
                self.forget_segment(task);
                if let (Some(unit), false) =
                    (self.tasks.unit_of(task), self.managed.contains(&task))
                {
                    self.units_of_aborted_tasks.push(Arc::clone(unit));
                }
                self.pending_inputs.extend(self.tasks.abort(task));
            }
            Output::Fail { task, lun, fault } => {
                self.forget_segment(task);
                if let Some((session, _)) = &self.session {
                    let unit = session.unit(lun);
                    self.pending_inputs.extend(self.tasks.fail(task, unit.as_ref(), fault));
                }
            }
            Output::FullFeature(parameters) => {
                out.set_digests(parameters.digests);
                self.traced = Some(0);
                let session = self.session.as_ref().map(|(session, _)| session);
                self.in_normal_session =
                    session.is_some_and(|session| session.key.target_name.is_some());
                self.begin_relaying(&parameters);
            }
            Output::Close(reason) => self.close(reason),
            Output::DetachedTaskEnded(task) => {
                if let Some((session, _)) = &self.session {
                    session.task_ended(task);
                }
            }
            Output::SendData { initiator_task_tag, data, digest } => {
                out.push_part(initiator_task_tag, data, digest);
            }
            Output::DataOut { task, offset_bytes, bytes, digest } => {
                let is_filling =
                    matches!(&self.receiving, Receiving::Task { task: its, .. } if *its == task);
                self.tasks.data_arrived(task, offset_bytes, bytes, digest, is_filling);
            }
            // These are handled in `handle_outputs`.
            Output::Send(_)
            | Output::ToSession(_)
            | Output::Start(_)
            | Output::Receive(_)
            | Output::Run(_)
            | Output::Wait(_) => {}
        }
    }

    fn close(&mut self, reason: CloseReason) {
        // Called now: the peer may take its time to close, and try again meanwhile.
        match &reason {
            CloseReason::LoginRefused { status, why } => {
                self.login.refused(&self.services.logins, self.path, *status, why);
            }
            CloseReason::TimedOut(_) if self.session.is_none() => {
                self.login.timed_out(&self.services.logins, self.path);
            }
            _ => {}
        }
        self.close_reason = Some(reason);
        self.counted.log_out();
    }

    /// Passes a message to the session. The machine gets the answer before any other input, so that
    /// its next PDU carries the current window.
    fn send_to_session(&mut self, now: Time, message: ToSession) {
        let Some((session, cid)) = &self.session else { return };
        if let ToSession::TaskEnded(task) = &message
            && !self.managed.is_empty()
        {
            self.managed.remove(task);
        }
        if self.pending_events.is_empty()
            && let Some(answer) = session.try_handle_message(*cid, &message, &self.events)
        {
            return self.feed(now, Input::Session(answer));
        }
        let closed = matches!(message, ToSession::ConnectionClosed);
        session.handle_message(now, *cid, message, &mut self.events, &mut self.pending_events);
        if closed {
            // RFC 7143 §11.14.5. If the session ended with the connection, its nexus is gone and
            // gets no unit attention.
            for unit in self.units_of_aborted_tasks.drain(..) {
                session.nexuses_of(&unit, |nexuses| {
                    nexuses.raise_for(COMMANDS_CLEARED_BY_ISCSI, session.nexus);
                });
            }
        }
        while !self.is_out_of_turn
            && let Some(event) = self.pending_events.pop_front()
        {
            let input = self.input_of(event);
            self.feed(now, input);
        }
    }

    fn join(&mut self, join: Join) {
        self.services.logins.succeeded(&join, self.path);
        if join.user.is_some() {
            let network = PeerNetwork::of(self.path.peer.ip());
            self.memory = self.services.memory.accounts(network, join.user.clone());
            let services = &self.services;
            self.tasks = Tasks::new(Arc::clone(&services.tasks), &services.limits, &self.memory);
        }
        let key = join::session_key(&join, self.path);
        let relation = self.services.session_logins.relation(&key, join.claim.tsih);
        let phase = match join.claim.session_type {
            _ if join.user.is_some() => Phase::Proven,
            SessionType::Normal => Phase::Unproven,
            SessionType::Discovery => Phase::NotLoggedIn,
        };
        let keeps_proven = self.services.rules.catalogue.load().requires_proof();
        if let Err(connection_limit) = self.counted.log_in(phase, relation, keeps_proven) {
            let status = self.login.connection_limit(connection_limit);
            return self.pending_inputs.push_back(Input::Joined(Err(status)));
        }
        let cid = join.claim.cid;
        let joiner = JoiningConnection {
            path: self.path,
            mailbox: self.mailbox.clone(),
            memory: self.memory.control.sibling(MemoryKind::Session),
            time_owner: OwnerId(self.memory.owner_id),
        };
        let joining = Arc::clone(&self.services.session_logins).join(join, key, joiner);
        self.joining = Some((Box::pin(joining), cid));
    }

    /// Handles queued events one by one, so that the session's messages keep their order.
    fn poll_events(&mut self, now: Time, context: &mut Context<'_>, out: &mut Outbox) -> bool {
        let mut any = false;
        for _ in 0..EVENT_BATCH {
            let event = match self.pending_events.pop_front() {
                Some(event) => event,
                None => match self.events.poll_recv(context) {
                    Poll::Ready(Some(event)) => event,
                    Poll::Ready(None) | Poll::Pending => return any,
                },
            };
            let input = self.input_of(event);
            self.handle(now, input, out);
            any = true;
        }
        context.waker().wake_by_ref();
        any
    }

    /// Processes the session's messages that abort tasks, ahead of its other messages: a reset by
    /// another host waits until these tasks are quiet. A message in between that starts such a task
    /// finds it ended.
    fn poll_aborts(&mut self, now: Time, context: &mut Context<'_>, out: &mut Outbox) -> bool {
        while let Poll::Ready(Some(event)) = self.events.poll_recv(context) {
            self.pending_events.push_back(event);
        }
        let is_abort = |event: &ConnectionEvent| {
            matches!(event, ConnectionEvent::Session(ToConnection::AbortTask { .. }))
        };
        let mut left = EVENT_BATCH;
        let mut at = 0;
        while at < self.pending_events.len() {
            if !is_abort(&self.pending_events[at]) {
                at += 1;
                continue;
            }
            if left == 0 {
                context.waker().wake_by_ref();
                break;
            }
            left -= 1;
            if let Some(event) = self.pending_events.remove(at) {
                let input = self.input_of(event);
                self.handle(now, input, out);
            }
        }
        left < EVENT_BATCH
    }

    /// Queues the ends of tasks for the machine, as many as belong into one turn.
    fn poll_finished(&mut self, context: &mut Context<'_>) -> bool {
        let (mut tasks, mut bytes) = (0, 0);
        self.tasks.poll_out_of_turn(context);
        if !self.tasks.have_begun() {
            return self.queue_task_inputs().0 > 0; // without reading the clock
        }
        let mut inputs = 0;
        let mut moving = MoveBudget::begin();
        while tasks < TURN_PDUS && bytes < TURN_BYTES && moving.begin_next() {
            let ended = self.tasks.poll_finished(context);
            let (more_inputs, more_bytes) = self.queue_task_inputs();
            (inputs, bytes) = (inputs + more_inputs, bytes + more_bytes);
            let Some(ended) = ended else { break };
            bytes += data_in_bytes(&ended);
            self.pending_inputs.push_back(ended);
            tasks += 1;
        }
        tasks > 0 || inputs > 0
    }

    fn poll_joining(&mut self, context: &mut Context<'_>) -> bool {
        let Some((joining, cid)) = &mut self.joining else { return false };
        let Poll::Ready(joined) = joining.as_mut().poll(context) else { return false };
        let cid = *cid;
        self.joining = None;
        self.pending_inputs.push_back(Input::Joined(joined.map(|(joined, session)| {
            self.commands.joined(&self.services.counters, &session);
            self.session = Some((session, cid));
            joined
        })));
        true
    }

    fn input_of(&mut self, event: ConnectionEvent) -> Input {
        match event {
            ConnectionEvent::Session(value) => Input::Session(value),
            ConnectionEvent::Deliver { value, task, permit } => {
                self.permits.insert(task, permit);
                Input::Session(value)
            }
            ConnectionEvent::Shutdown { within_seconds } => Input::Shutdown { within_seconds },
            ConnectionEvent::Cut => Input::PeerClosed,
        }
    }

    /// Memory of messages not processed yet, and of tasks that begin or end, beyond the memory that
    /// is kept while there are none.
    fn messages_bytes(&self) -> usize {
        let beyond_kept = |capacity: usize| capacity.saturating_sub(MESSAGES_KEPT_MAX);
        beyond_kept(self.pending_inputs.capacity()) * size_of::<Input>()
            + beyond_kept(self.pending_events.capacity()) * size_of::<ConnectionEvent>()
            + task_map::memory_bytes(&self.permits)
            + task_map::ids_memory_bytes(&self.managed)
    }

    /// Memory of tasks and messages, including spare capacity.
    fn task_bytes(&self) -> usize {
        self.machine.task_memory_bytes()
            + self.tasks.memory_bytes()
            + self.commands.memory_bytes()
            + self.messages_bytes()
    }

    /// Frees memory that many messages or tasks needed once and that is unused now.
    fn free_spare_memory(&mut self) {
        if self.pending_inputs.is_empty() {
            self.pending_inputs.shrink_to(MESSAGES_KEPT_MAX);
        }
        if self.pending_events.is_empty() {
            self.pending_events.shrink_to(MESSAGES_KEPT_MAX);
        }
        task_map::free_spare(&mut self.permits);
        task_map::free_spare_ids(&mut self.managed);
        self.machine.free_spare_memory();
        self.tasks.free_spare_memory();
        self.commands.free_spare_memory();
    }

    fn log_end(&self) {
        let peer = Some(self.path.peer);
        match &self.close_reason {
            Some(CloseReason::Violation(what)) => {
                let why = format!("the peer violated the protocol: {what}");
                self.services.connections.warn(peer, &why);
            }
            // A login that took too long was already logged as a login timeout.
            Some(CloseReason::TimedOut(what)) if self.session.is_some() => {
                self.services.connections.warn(peer, what);
            }
            reason => tracing::debug!(peer = %self.path.peer, ?reason, "connection closed"),
        }
    }
}

impl Drop for Connection {
    /// Ends the session after a panic. A connection that panicked did not report its end to the
    /// session, which would otherwise never end, and its initiator could not log in again.
    fn drop(&mut self) {
        if let (Some((session, cid)), None) = (&self.session, &self.close_reason) {
            session.lose(*cid);
            session.end();
        }
        // Their executions end with the connection's.
        for task in self.machine.detached_tasks() {
            if let Some((session, _)) = &self.session {
                session.task_ended(*task);
            }
        }
    }
}

impl ConnectionHandler for Connection {
    fn header(&mut self, now: Time, header: Header, out: &mut Outbox) {
        self.receiving = Receiving::Discarded;
        let (announced_bytes, flags) = (header.data_segment_bytes(), header.bhs[1]);
        self.receive_input(now, Input::Header(header));
        self.handle_outputs(now, out);
        self.begin_segment(announced_bytes, flags);
    }

    fn header_digest_error(&mut self, now: Time, out: &mut Outbox) {
        self.handle(now, Input::HeaderDigestError, out);
    }

    fn payload_buffer(&mut self, _missing: usize) -> &mut [u8] {
        match &mut self.receiving {
            Receiving::Discarded | Receiving::StreamAt { .. } => &mut [],
            Receiving::Stream(segment) => segment.room(),
            Receiving::Control { data, charge, filled, segment_bytes } => {
                if data.len() == *filled {
                    let step = (*filled).max(CONTROL_PIECE_BYTES).min(*segment_bytes - *filled);
                    charge.set(*filled + step);
                    data.reserve_exact(step);
                    data.resize(*filled + step, 0);
                }
                &mut data[*filled..]
            }
            Receiving::Task { task, at, end } => self.tasks.room(*task, *at, *end),
        }
    }

    fn payload_filled(&mut self, bytes: usize) {
        match &mut self.receiving {
            Receiving::Discarded | Receiving::StreamAt { .. } => {}
            Receiving::Stream(segment) => segment.filled(bytes),
            Receiving::Control { filled, .. } => *filled += bytes,
            Receiving::Task { at, .. } => *at += bytes,
        }
    }

    fn payload_end(&mut self, now: Time, digest: SegmentDigest, out: &mut Outbox) {
        let data = match std::mem::replace(&mut self.receiving, Receiving::Discarded) {
            Receiving::Control { data, charge, .. } => {
                lunar_net::mark_costly();
                charge.attach(data)
            }
            Receiving::Stream(segment) => {
                segment.finish();
                Bytes::new()
            }
            _ => Bytes::new(),
        };
        if digest == SegmentDigest::Mismatched {
            self.commands.data_digest_error();
        }
        self.receive_input(now, Input::Payload { data, digest });
        self.handle_outputs(now, out);
    }

    fn poll_work(&mut self, now: Time, context: &mut Context<'_>, out: &mut Outbox) -> Poll<()> {
        let identified = self.login.poll(self.path, context);
        let mut any = identified.is_some();
        self.pending_inputs.extend(identified.map(Box::new).map(Input::Identified));
        any |= self.poll_joining(context);
        self.handle_pending_inputs(now, out);
        any |= self.poll_events(now, context, out);
        any |= self.poll_finished(context);
        if let Some((session, _)) = &self.session
            && self.tasks.have_deferred()
        {
            let started = self.tasks.start_deferred(session, context);
            any |= !started.is_empty();
            self.pending_inputs.extend(started);
        }
        self.handle_pending_inputs(now, out);
        self.counted.set_unsent_bytes(out.bytes());
        if any || self.tasks.is_unpolled() { Poll::Ready(()) } else { Poll::Pending }
    }

    fn poll_out_of_turn(&mut self, now: Time, context: &mut Context<'_>, out: &mut Outbox) -> bool {
        self.is_out_of_turn = true;
        let mut any = self.poll_aborts(now, context, out);
        self.tasks.take_awaited(context);
        any |= self.tasks.poll_out_of_turn(context);
        while let Some(ended) = self.tasks.next_aborted() {
            self.handle(now, ended, out);
            any = true;
        }
        self.is_out_of_turn = false;
        any
    }

    fn before_sending(&mut self) {
        self.view = None;
        self.commands.count_ended();
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

    fn tap(&mut self) -> TapChange {
        let (Some(known), Some((session, _))) = (&mut self.traced, &self.session) else {
            return TapChange::Unchanged;
        };
        if *known == session.trace.generation() {
            return TapChange::Unchanged;
        }
        let ConnectionPath { peer, local, .. } = self.path;
        let tap;
        (*known, tap) = session.trace.tap();
        TapChange::Replace(tap.map(|tap| TappedConnection::new(tap, peer, local)))
    }

    fn owner(&self) -> Option<OwnerId> {
        Some(OwnerId(self.memory.owner_id))
    }

    fn buffer_limits(&self) -> BufferLimits {
        match self.in_normal_session {
            true => self.memory.buffer_limits(),
            false => BUFFERS_OUTSIDE_SESSIONS,
        }
    }

    fn holds_data(&self) -> bool {
        self.memory.holds_data()
    }

    fn may_hold(&mut self, bytes: BufferedBytes) -> bool {
        let mut task_bytes = self.task_bytes();
        if task_bytes > SPARE_BYTES_KEPT && self.tasks.are_quiet() {
            self.free_spare_memory();
            task_bytes = self.task_bytes();
        }
        let may = self.memory.may_hold(bytes, task_bytes, self.tasks.charge_running());
        if !may {
            let why = "memory is exhausted, and this initiator uses most of it (memory_bytes_max)";
            self.services.connections.warn(Some(self.path.peer), why);
        }
        may
    }

    fn can_receive(&self) -> bool {
        self.joining.is_none() && self.close_reason.is_none() && self.machine.can_receive()
    }

    fn is_over(&self) -> bool {
        self.close_reason.is_some() && self.joining.is_none() && self.tasks.are_quiet()
    }
}

#[cfg(test)]
mod tests;
