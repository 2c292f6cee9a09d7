//! A session, which is used by its connections on any core and by task management.
//!
//! The protocol's session is a value behind one lock, held for one step and never across an await:
//! a connection on another core gets its answer without waking the first one up.

mod attachment;
mod luns;

use crate::connection_shares::ConnectionPermit;
use crate::lock::lock;
use crate::lun_table::LunTable;
use crate::options::TargetOptions;
use crate::portals::ConnectionPath;
use crate::quota::SessionQuota;
use crate::session_info::{ConnectionInfo, SessionInfo};
use crate::task_set::QueuedTaskPermit;
use crate::trace::TraceSlot;
use crate::unit::Unit;
use crate::view::View;
use arc_swap::{ArcSwap, Guard};
use attachment::SessionRights;
use lunar_block::{BufferPool, MemoryCharge};
use lunar_iscsi::framing::TaskId;
use lunar_iscsi::login::Joined;
use lunar_iscsi::pdu::{LogoutResult, ManagementFunction};
use lunar_iscsi::session::target::{
    Arrival, Input, Output, TargetSession, ToConnection, ToSession,
};
use lunar_iscsi::text::ConnectionParameters;
use lunar_net::{Clock, OwnerId};
use lunar_scsi::plan::NexusId;
use lunar_scsi::plan::buffers::NEXUS_BUFFER_BYTES_MAX;
use lunar_scsi::reservations::ItNexus;
use lunar_scsi::share::{Origin, Owner};
use lunar_scsi::unit::{Context, InitiatorPort, Logins, TargetPort};
use lunar_wire::{Lun, LunForm, Time};
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};
use tokio::sync::{oneshot, watch};

/// Message to a connection from outside its socket.
#[derive(Debug)]
pub(crate) enum ConnectionEvent {
    /// Message of its session.
    Session(ToConnection),
    /// Message of its session that delivers a command, which has entered its task set.
    Deliver {
        /// The message.
        value: ToConnection,
        /// The command.
        task: TaskId,
        /// The permit of the command from the task set.
        permit: QueuedTaskPermit,
    },
    /// The server stops: the connection requests the initiator to log out.
    Shutdown {
        /// Seconds that the initiator has.
        within_seconds: u16,
    },
    /// Time is up: the connection closes at once.
    Cut,
}

/// View of a session at some time.
pub(crate) struct KnownView {
    changes: u64,
    view: Arc<View>,
}

/// Sender to a connection. Unbounded in type only: a session sends at most a few values for each
/// command in its window.
pub(crate) type ConnectionEventSender = UnboundedSender<ConnectionEvent>;

/// Receives the number of tasks that were aborted for another nexus, once they have ended; an error
/// if the session is over.
pub(crate) type AbortedTasks = oneshot::Receiver<u32>;

/// Tasks of a session that are being aborted for another nexus.
pub(crate) struct BegunAborts {
    /// Number of tasks.
    pub(crate) tasks: usize,
    /// One for each LUN of the unit that had tasks.
    pub(crate) ended: Vec<AbortedTasks>,
}

/// The connection that a step is taken for.
struct StepConnection<'a> {
    cid: u16,
    events: &'a mut UnboundedReceiver<ConnectionEvent>,
    /// Destination of the messages to the connection, in order.
    pending_events: &'a mut VecDeque<ConnectionEvent>,
}

/// Reason why a connection cannot join.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum JoinError {
    /// The session already has a connection with this CID.
    Taken,
    /// The session has as many connections as were negotiated.
    Full,
}

/// Memory of a session for each unit that it sees, once it uses the unit: the unit's state of the
/// nexus, a task set, entries in tables. 610 bytes were measured.
pub(crate) const UNIT_BYTES: usize = 1 << 10;

/// Key that makes two sessions the same for session reinstatement, RFC 7143 §6.3.5.
#[derive(Clone, Debug, Eq, PartialEq, Hash)]
pub(crate) struct SessionKey {
    pub(crate) initiator_name: String,
    pub(crate) isid: [u8; 6],
    /// `None` for a discovery session.
    pub(crate) target_name: Option<String>,
    pub(crate) portal_group_tag: u16,
    /// `None` for a normal session.
    pub(crate) discovery: Option<Discovery>,
}

impl SessionKey {
    /// The normal session of an I_T nexus, whose names are in lower case.
    pub(crate) fn of_nexus(nexus: &ItNexus) -> Self {
        let (initiator, port) = (nexus.initiator(), nexus.port());
        Self {
            initiator_name: initiator.name.clone(),
            isid: initiator.isid,
            target_name: Some(port.name.clone()),
            portal_group_tag: port.portal_group_tag,
            discovery: None,
        }
    }
}

/// Part of the key of discovery sessions, besides initiator and ISID. RFC 7143 §7.4.2.
#[derive(Clone, Debug, Eq, PartialEq, Hash)]
pub(crate) enum Discovery {
    /// The address that was reached: sessions over different portals are independent.
    Unnamed(SocketAddr),
    /// The target that was named.
    Named(String),
}

/// The server of sessions, as far as they need it: for functions that concern other sessions, too.
pub(crate) trait SessionHost: Send + Sync {
    /// Runs the rest of a function on this core, then reports the result to
    /// [`Session::managed`].
    fn manage(
        self: Arc<Self>,
        session: Arc<Session>,
        id: u64,
        function: ManagementFunction,
        lun: Lun,
    );

    /// Called when the session is over.
    fn session_ended(&self, session: &Session);
}

/// One session of this server.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) key: SessionKey,
    pub(crate) tsih: u16,
    pub(crate) nexus: NexusId,
    pub(crate) max_connections: u16,
    pub(crate) path: ConnectionPath,
    /// Origin of the initiator; `None` if its name is proven.
    origin: Option<Origin>,
    /// Owner that is charged for processor time: that of the leading connection.
    pub(crate) time_owner: OwnerId,
    pub(crate) since: SystemTime,
    view: ArcSwap<View>,
    /// Number of changes of the view.
    view_changes: AtomicU64,
    pub(crate) quota: SessionQuota,
    protocol_level: u16,
    port: TargetPort,
    ports: Vec<TargetPort>,
    /// The names of both ends, as attached to its units.
    it_nexus: Arc<ItNexus>,
    units_charge: Mutex<MemoryCharge>,
    /// Charges for buffers written at units, by the addresses of the units.
    buffer_charges: Mutex<HashMap<usize, MemoryCharge>>,
    rights: ArcSwap<SessionRights>,
    /// The nexus whose TARGET COLD RESET ended the initiator's last session, if one did.
    returns_from: Option<NexusId>,
    /// True when units report to the initiator that its LUNs have changed, and it has not read the
    /// list of LUNs since.
    luns_changed: AtomicBool,
    machine: Mutex<TargetSession>,
    members: Mutex<BTreeMap<u16, Member>>,
    /// Aborts for other nexuses, by their ids.
    aborts: Mutex<HashMap<u64, oneshot::Sender<u32>>>,
    next_abort: AtomicU64,
    host: Weak<dyn SessionHost>,
    clock: Clock,
    ended: watch::Sender<bool>,
    /// True when the server ends the session.
    ending: AtomicBool,
    /// True when the initiator has logged out.
    logged_out: AtomicBool,
    pub(crate) trace: Arc<TraceSlot>,
    /// Number of visits by functions of other sessions that abort tasks here.
    #[cfg(test)]
    visits: AtomicU64,
}

/// A connection of a session.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    pub(crate) mailbox: ConnectionEventSender,
    pub(crate) path: ConnectionPath,
    /// Parameters that the connection negotiated at login.
    pub(crate) parameters: ConnectionParameters,
    /// The permit of this connection among those of its initiator.
    pub(crate) _permit: Arc<ConnectionPermit>,
}

/// Parts of a new session.
pub(crate) struct SessionParts {
    pub(crate) key: SessionKey,
    pub(crate) tsih: u16,
    pub(crate) nexus: NexusId,
    /// `None` for a discovery session.
    pub(crate) target: Option<Arc<TargetOptions>>,
    pub(crate) luns: Arc<LunTable>,
    /// The nexus whose TARGET COLD RESET ended the initiator's last session, if one did.
    pub(crate) returns_from: Option<NexusId>,
    pub(crate) max_connections: u16,
    /// Path of the leading connection.
    pub(crate) path: ConnectionPath,
    /// Origin of the initiator; `None` if its name is proven.
    pub(crate) origin: Option<Origin>,
    /// Owner of the leading connection.
    pub(crate) time_owner: OwnerId,
    pub(crate) quota: SessionQuota,
    pub(crate) port: TargetPort,
    /// All ports of the target, including `port`, ordered by their relative identifiers.
    pub(crate) ports: Vec<TargetPort>,
    /// Charge of [`UNIT_BYTES`] for each unit.
    pub(crate) units_charge: MemoryCharge,
    pub(crate) machine: TargetSession,
    pub(crate) host: Weak<dyn SessionHost>,
    pub(crate) clock: Clock,
}

impl Session {
    /// Creates the session. Its nexus is attached to a unit only when it first concerns that unit.
    pub(crate) fn new(mut parts: SessionParts) -> Arc<Self> {
        let view = View::new(parts.luns);
        parts.machine.set_units(view.list().to_vec());
        let rights = SessionRights::new(parts.target);
        parts.machine.set_administers(rights.administers(&parts.key));
        let initiator =
            InitiatorPort { name: parts.key.initiator_name.clone(), isid: parts.key.isid };
        let it_nexus = ItNexus::new(&initiator, &parts.port).from_origin(parts.origin);
        Arc::new(Self {
            it_nexus: Arc::new(it_nexus),
            units_charge: Mutex::new(parts.units_charge),
            buffer_charges: Mutex::default(),
            rights: ArcSwap::from_pointee(rights),
            returns_from: parts.returns_from,
            luns_changed: AtomicBool::new(false),
            key: parts.key,
            tsih: parts.tsih,
            nexus: parts.nexus,
            max_connections: parts.max_connections,
            path: parts.path,
            origin: parts.origin,
            time_owner: parts.time_owner,
            since: SystemTime::now(),
            quota: parts.quota,
            protocol_level: parts.machine.parameters().protocol_level.into(),
            port: parts.port,
            ports: parts.ports,
            machine: Mutex::new(parts.machine),
            members: Mutex::default(),
            aborts: Mutex::default(),
            next_abort: AtomicU64::new(1),
            host: parts.host,
            clock: parts.clock,
            ended: watch::Sender::new(false),
            ending: AtomicBool::new(false),
            logged_out: AtomicBool::new(false),
            trace: Arc::default(),
            #[cfg(test)]
            visits: AtomicU64::new(0),
            view: ArcSwap::from_pointee(view),
            view_changes: AtomicU64::new(0),
        })
    }

    /// Charges the state that units have of the nexus: that of `units` units from now on.
    fn charge_units(&self, units: usize) {
        lock(&self.units_charge).set(units * UNIT_BYTES);
    }

    /// Creates a charge, of 0 bytes, for a function that the session requests. The function may
    /// outlive the session.
    pub(crate) fn function_charge(&self) -> MemoryCharge {
        lock(&self.units_charge).sibling()
    }

    /// Charges the memory that this nexus may use in the buffers of `unit`, once. Returns `false`
    /// if there is no memory for it.
    pub(crate) fn charge_buffers<U>(&self, unit: &Arc<U>, memory: &BufferPool) -> bool {
        let mut charges = lock(&self.buffer_charges);
        let unit = Arc::as_ptr(unit).addr();
        if charges.contains_key(&unit) {
            return true;
        }
        let charge = memory.try_charge(NEXUS_BUFFER_BYTES_MAX);
        charge.map(|charge| charges.insert(unit, charge)).is_some()
    }

    /// The initiator that owns the session's resources.
    pub(crate) fn owner(&self) -> Owner<'_> {
        Owner { name: &self.key.initiator_name, origin: self.origin }
    }

    /// The current view.
    pub(crate) fn view(&self) -> Guard<Arc<View>> {
        self.view.load()
    }

    /// The current view, for frequent callers: `known` caches it until it changes, and keeps all
    /// its units alive.
    ///
    /// A caller that has received a message of the session's machine sees at least the view of that
    /// time: both change under the machine's lock.
    pub(crate) fn cached_view<'a>(&self, known: &'a mut Option<KnownView>) -> &'a View {
        let changes = self.view_changes.load(Acquire);
        if known.as_ref().is_some_and(|known| known.changes != changes) {
            *known = None;
        }
        &known.get_or_insert_with(|| KnownView { changes, view: self.view.load_full() }).view
    }

    /// Replaces the view. Tasks that have begun continue with their units.
    fn set_view(&self, view: View) -> Arc<View> {
        let view = Arc::new(view);
        let mut machine = self.machine();
        machine.set_units(view.list().to_vec());
        self.view.store(Arc::clone(&view));
        self.view_changes.fetch_add(1, Release);
        view
    }

    /// The unit of a LUN field, if this initiator sees it.
    pub(crate) fn unit(&self, lun: Lun) -> Option<Arc<dyn Unit>> {
        self.view.load().unit(lun).cloned()
    }

    /// Context of the planner, with the units in `view`.
    pub(crate) fn context<'a>(&'a self, view: &'a View) -> Context<'a> {
        Context {
            ports: &self.ports,
            protocol_level: self.protocol_level,
            now_milliseconds: milliseconds_since_1970,
            ..Context::new(view.list(), &self.port)
        }
    }

    /// Context at a unit, which can look up the sessions that see it.
    pub(crate) fn context_at<'a>(&'a self, view: &'a View, logins: &'a dyn Logins) -> Context<'a> {
        Context { logins, ..self.context(view) }
    }

    /// Parameters that the leading connection negotiated; they apply to all connections.
    pub(crate) fn parameters(&self) -> lunar_iscsi::text::SessionParameters {
        self.machine().parameters()
    }

    /// The answer to the login of connection `cid`, which has joined.
    pub(crate) fn joined(&self, cid: u16) -> Joined {
        self.machine().joined(cid)
    }

    /// Adds a connection, if there is room for it and no other has its CID.
    pub(crate) fn join(self: &Arc<Self>, cid: u16, member: Member) -> Result<(), JoinError> {
        {
            let mut members = self.members();
            if members.contains_key(&cid) {
                return Err(JoinError::Taken);
            }
            if members.len() >= usize::from(self.max_connections.max(1)) {
                return Err(JoinError::Full);
            }
            members.insert(cid, member);
        }
        self.step(self.clock.now(), Input::Join(cid), None);
        Ok(())
    }

    /// Handles a message of a connection at once, if it concerns no other connection and the
    /// mailbox is empty. Returns `None` if the message was not processed and
    /// [`handle_message`](Self::handle_message) is to be called.
    pub(crate) fn try_handle_message(
        &self,
        cid: u16,
        message: &ToSession,
        events: &UnboundedReceiver<ConnectionEvent>,
    ) -> Option<ToConnection> {
        let mut machine = self.machine();
        // The end of a task is answered with the window, which earlier messages may follow.
        let has_single_answer = matches!(message, ToSession::TaskEnded(_)) || events.is_empty();
        if has_single_answer { machine.try_handle(cid, message) } else { None }
    }

    /// Processes a message of a connection. `pending_events` receives earlier events for the
    /// connection, then the answers.
    pub(crate) fn handle_message(
        self: &Arc<Self>,
        now: Time,
        cid: u16,
        message: ToSession,
        events: &mut UnboundedReceiver<ConnectionEvent>,
        pending_events: &mut VecDeque<ConnectionEvent>,
    ) {
        let closed = matches!(message, ToSession::ConnectionClosed);
        if let ToSession::Arrived { request: Arrival::Management { .. }, .. } = message {
            // A reset waits for its visits, possibly for long, and may outlive the session.
            let refuses_resets = lock(&self.units_charge).must_release_memory();
            self.machine().set_refuses_resets(refuses_resets);
        }
        let connection = StepConnection { cid, events, pending_events };
        self.step(now, Input::Connection(cid, message), Some(connection));
        if closed {
            self.members().remove(&cid);
        }
    }

    /// Removes a connection that ended without a message.
    pub(crate) fn lose(self: &Arc<Self>, cid: u16) {
        let closed = Input::Connection(cid, ToSession::ConnectionClosed);
        self.step(self.clock.now(), closed, None);
        self.members().remove(&cid);
    }

    /// Reports the end of a task that a connection left to the session.
    pub(crate) fn task_ended(self: &Arc<Self>, task: TaskId) {
        self.step(self.clock.now(), Input::TaskEnded(task), None);
    }

    /// Ends the session: its connections close, its tasks are aborted.
    pub(crate) fn end(self: &Arc<Self>) {
        self.ending.store(true, Release);
        self.step(self.clock.now(), Input::End, None);
    }

    /// Closes one connection, to be replaced: [`join`](Self::join) or [`end`](Self::end) follows.
    pub(crate) fn replace_connection(self: &Arc<Self>, cid: u16) {
        self.step(self.clock.now(), Input::Replace(cid), None);
    }

    /// True when [`end`](Self::end) was called.
    pub(crate) fn is_ending(&self) -> bool {
        self.ending.load(Acquire)
    }

    /// True when the session is over.
    pub(crate) fn has_ended(&self) -> bool {
        *self.ended.borrow()
    }

    /// Waits until the session is over.
    pub(crate) async fn ended(&self) {
        let mut ended = self.ended.subscribe();
        let _ = ended.wait_for(|ended| *ended).await;
    }

    /// Aborts this session's tasks on `unit` for another nexus.
    pub(crate) fn abort_on_unit(self: &Arc<Self>, unit: &Arc<dyn Unit>) -> BegunAborts {
        #[cfg(test)]
        self.visits.fetch_add(1, Relaxed);
        let mut tasks = 0;
        let mut numbers = BTreeSet::new();
        {
            let view = self.view();
            let machine = self.machine();
            let mut last = None; // usually all have the same LUN
            for lun in machine.luns_of_exposed_tasks() {
                if last.is_none_or(|(other, _)| other != lun) {
                    let is_affected = view.unit(lun).is_some_and(|other| Arc::ptr_eq(other, unit));
                    last = Some((lun, is_affected));
                }
                // Both forms of a LUN mean the same unit.
                if let (Some((_, true)), LunForm::Unit(id)) = (last, lun.form()) {
                    tasks += 1;
                    numbers.insert(id);
                }
            }
        }
        let begin = |id| self.begin_abort(Lun::new(id));
        BegunAborts { tasks, ended: numbers.into_iter().map(begin).collect() }
    }

    /// Aborts this session's tasks on the LUNs selected by `is_affected` for another nexus: returns
    /// one value for each LUN that had tasks.
    fn abort_on_luns(self: &Arc<Self>, is_affected: impl Fn(u16) -> bool) -> Vec<AbortedTasks> {
        let hit = |lun: Lun| match lun.form() {
            LunForm::Unit(id) if is_affected(id) => Some(id),
            _ => None,
        };
        // Both forms of a LUN mean the same unit.
        let hit: BTreeSet<u16> = self.machine().luns_of_exposed_tasks().filter_map(hit).collect();
        hit.into_iter().map(|id| self.begin_abort(Lun::new(id))).collect()
    }

    fn begin_abort(self: &Arc<Self>, lun: Lun) -> AbortedTasks {
        let id = self.next_abort.fetch_add(1, Relaxed);
        let (sender, receiver) = oneshot::channel();
        lock(&self.aborts).insert(id, sender);
        let input = Input::AbortedByOther { id, lun: Some(lun) };
        self.step(self.clock.now(), input, None);
        receiver
    }

    /// Reports the end of task management to the machine; `done` is [`Input::Managed`].
    pub(crate) fn managed(self: &Arc<Self>, done: Input) {
        self.step(self.clock.now(), done, None);
    }

    fn machine(&self) -> MutexGuard<'_, TargetSession> {
        lock(&self.machine)
    }

    /// Connections by CID.
    pub(crate) fn members(&self) -> MutexGuard<'_, BTreeMap<u16, Member>> {
        lock(&self.members)
    }

    /// Current state of the session, for observers.
    pub(crate) fn info(&self) -> SessionInfo {
        let connections = self
            .members()
            .iter()
            .map(|(cid, member)| ConnectionInfo {
                cid: *cid,
                peer: member.path.peer,
                local: member.path.local,
                parameters: member.parameters,
            })
            .collect();
        SessionInfo {
            tsih: self.tsih,
            initiator_name: self.key.initiator_name.clone(),
            isid: self.key.isid,
            target_name: self.key.target_name.clone(),
            portal_group_tag: self.key.portal_group_tag,
            parameters: self.parameters(),
            since: self.since,
            commands: self.tasks(),
            luns: self.view().ids().collect(),
            connections,
        }
    }

    /// Number of commands that have not ended.
    pub(crate) fn tasks(&self) -> usize {
        self.machine().tasks()
    }

    /// Requests the initiator to log out. RFC 7143 §11.9.1, event 1.
    pub(crate) fn request_logout(&self, within_seconds: u16) {
        for member in self.members().values() {
            // The connection may be closing.
            let _ = member.mailbox.send(ConnectionEvent::Shutdown { within_seconds });
        }
    }

    /// Takes one step of the machine. Values for other connections are put into their mailboxes
    /// under the lock, so that they arrive in the order of the steps. The connection that the step
    /// is taken for empties its mailbox under the lock, and gets the answers after those events.
    fn step(self: &Arc<Self>, now: Time, input: Input, mut connection: Option<StepConnection<'_>>) {
        let mut ended = false;
        let mut machine = self.machine();
        if let Some(StepConnection { events, pending_events, .. }) = &mut connection
            && !events.is_empty()
        {
            pending_events.extend(std::iter::from_fn(|| events.try_recv().ok()));
        }
        machine.handle(now, input);
        while let Some(output) = machine.poll() {
            match output {
                Output::ToConnection(cid, value) => {
                    if matches!(value, ToConnection::LogoutDone(LogoutResult::CLOSED)) {
                        self.logged_out.store(true, Relaxed);
                    }
                    let event = self.event_with(&machine, value);
                    match &mut connection {
                        Some(connection) if cid == connection.cid => {
                            connection.pending_events.push_back(event);
                        }
                        _ => self.send(cid, event),
                    }
                }
                Output::Manage { id, function, lun } => {
                    if let Some(host) = self.host.upgrade() {
                        host.manage(Arc::clone(self), id, function, lun);
                    }
                }
                Output::OthersAborted { id, tasks } => {
                    if let Some(waiting) = lock(&self.aborts).remove(&id) {
                        let _ = waiting.send(tasks); // the waiter may be gone
                    }
                }
                Output::Ended => ended = true,
            }
        }
        drop(machine);
        if ended {
            self.finish();
        }
    }

    /// Wraps a message to a connection. If a session has several connections, a delivered command
    /// enters its task set here: the connections may get to their commands in any order, while
    /// CmdSN orders the commands of all (SAM-5 §8, RFC 7143 §4.2.2.1).
    fn event_with(&self, machine: &TargetSession, value: ToConnection) -> ConnectionEvent {
        let ToConnection::Deliver { ticket, .. } = value else {
            return ConnectionEvent::Session(value);
        };
        if machine.connections() < 2 {
            return ConnectionEvent::Session(value);
        }
        let Some((lun, attribute)) = machine.command(ticket) else {
            return ConnectionEvent::Session(value);
        };
        match self.view.load().nexus(lun) {
            Some(nexus) => {
                let permit = nexus.task_set.enter(attribute);
                ConnectionEvent::Deliver { value, task: TaskId(ticket), permit }
            }
            None => ConnectionEvent::Session(value),
        }
    }

    fn send(&self, cid: u16, event: ConnectionEvent) {
        if let Some(member) = self.members().get(&cid) {
            let _ = member.mailbox.send(event); // the connection may be closing
        }
    }

    fn finish(self: &Arc<Self>) {
        let logged_out = self.logged_out.load(Relaxed);
        self.detach_all(logged_out);
        lock(&self.aborts).clear();
        if let Some(host) = self.host.upgrade() {
            host.session_ended(self);
        }
        self.ended.send_replace(true);
        self.trace.session_ended();
        tracing::info!(
            initiator = self.key.initiator_name,
            target = self.key.target_name,
            tsih = self.tsih,
            "session ended"
        );
    }
}

fn milliseconds_since_1970() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
pub(crate) mod tests;
