//! A session and those who may touch it: its connections, on any core, and task management.
//!
//! The protocol's session is a value behind one lock, held for one step and never across an
//! await: a connection on another core gets its answer without waking the first one up.

use crate::manage;
use crate::server::Shared;
use crate::unit::LogicalUnit;
use iscsi::session::target::{Input, Output, TargetSession, ToConnection, ToSession};
use scsi::plan::NexusId;
use scsi::unit::{Context, InitiatorPort, TargetPort};
use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::{oneshot, watch};
use wire::{Lun, LunForm};

/// What reaches a connection from outside its socket.
#[derive(Debug)]
pub(crate) enum Mail {
    /// From its session.
    Session(ToConnection),
    /// The server stops: ask the initiator to log out.
    Shutdown {
        /// Seconds it is given.
        within_seconds: u16,
    },
    /// Time is up: close at once.
    Cut,
}

/// Sends to a connection. Unbounded in type only: a session sends at most a few values for each
/// command in its window.
pub(crate) type Mailbox = UnboundedSender<Mail>;

/// Why a connection cannot join.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum NoPlace {
    /// The session has a connection of its CID.
    Taken,
    /// It has as many as were negotiated.
    Full,
}

/// What makes two sessions the same for session reinstatement, RFC 7143 §6.3.5.
#[derive(Clone, Debug, Eq, PartialEq, Hash)]
pub(crate) struct SessionKey {
    pub(crate) initiator_name: String,
    pub(crate) isid: [u8; 6],
    /// `None`: a discovery session.
    pub(crate) target_name: Option<String>,
    pub(crate) portal_group_tag: u16,
    /// `None`: a normal session.
    pub(crate) discovery: Option<Discovery>,
}

/// What makes two discovery sessions the same, besides initiator and ISID. RFC 7143 §7.4.2.
#[derive(Clone, Debug, Eq, PartialEq, Hash)]
pub(crate) enum Discovery {
    /// The address that was reached: sessions over different portals are independent.
    Unnamed(SocketAddr),
    /// The target that was named.
    Named(String),
}

/// One session of this server.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) key: SessionKey,
    pub(crate) tsih: u16,
    pub(crate) nexus: NexusId,
    pub(crate) luns: BTreeMap<u16, Arc<LogicalUnit>>,
    pub(crate) max_connections: u16,
    protocol_level: u16,
    lun_list: Vec<Lun>,
    port: TargetPort,
    ports: Vec<TargetPort>,
    machine: Mutex<TargetSession>,
    mailboxes: Mutex<HashMap<u16, Mailbox>>,
    aborts: Mutex<HashMap<u64, oneshot::Sender<u32>>>,
    ended: watch::Sender<bool>,
}

/// What a new session is made of.
pub(crate) struct SessionParts {
    pub(crate) key: SessionKey,
    pub(crate) tsih: u16,
    pub(crate) nexus: NexusId,
    pub(crate) luns: BTreeMap<u16, Arc<LogicalUnit>>,
    pub(crate) max_connections: u16,
    pub(crate) port: TargetPort,
    /// All of the target, that one included, ordered by their relative identifiers.
    pub(crate) ports: Vec<TargetPort>,
    pub(crate) machine: TargetSession,
}

impl Session {
    /// Makes the session and tells its units of the new nexus.
    pub(crate) fn new(mut parts: SessionParts) -> Arc<Self> {
        let lun_list: Vec<_> = parts.luns.keys().map(|id| Lun::new(*id)).collect();
        parts.machine.set_units(lun_list.clone());
        let session = Self {
            lun_list,
            key: parts.key,
            tsih: parts.tsih,
            nexus: parts.nexus,
            luns: parts.luns,
            max_connections: parts.max_connections,
            protocol_level: parts.machine.parameters().protocol_level.into(),
            port: parts.port,
            ports: parts.ports,
            machine: Mutex::new(parts.machine),
            mailboxes: Mutex::default(),
            aborts: Mutex::default(),
            ended: watch::Sender::new(false),
        };
        let initiator =
            InitiatorPort { name: session.key.initiator_name.clone(), isid: session.key.isid };
        for unit in session.units() {
            unit.scsi().attach(session.nexus, initiator.clone(), session.port.clone());
        }
        Arc::new(session)
    }

    /// Each unit once, however many numbers it has here.
    pub(crate) fn units(&self) -> impl Iterator<Item = &Arc<LogicalUnit>> {
        let luns: Vec<_> = self.luns.values().collect();
        self.luns.values().enumerate().filter_map(move |(at, unit)| {
            let first = luns.iter().position(|other| Arc::ptr_eq(other, unit));
            (first == Some(at)).then_some(unit)
        })
    }

    /// The unit a LUN field names, if this initiator sees it.
    pub(crate) fn unit(&self, lun: Lun) -> Option<&Arc<LogicalUnit>> {
        match lun.form() {
            LunForm::Unit(id) => self.luns.get(&id),
            _ => None,
        }
    }

    /// The numbers under which `unit` is seen here.
    pub(crate) fn luns_of(&self, unit: &Arc<LogicalUnit>) -> Vec<Lun> {
        let same = self.luns.iter().filter(|(_, other)| Arc::ptr_eq(other, unit));
        same.map(|(id, _)| Lun::new(*id)).collect()
    }

    /// What the planner may know.
    pub(crate) fn context(&self) -> Context<'_> {
        Context {
            ports: &self.ports,
            protocol_level: self.protocol_level,
            now_milliseconds: milliseconds_since_1970(),
            ..Context::new(&self.lun_list, &self.port)
        }
    }

    /// What its leading connection negotiated; holds for all of them.
    pub(crate) fn parameters(&self) -> iscsi::text::SessionParameters {
        self.machine().parameters()
    }

    /// Command window, for a Login Response.
    pub(crate) fn window(&self) -> (wire::SerialNumber, wire::SerialNumber) {
        self.machine().window()
    }

    /// Takes a connection in, if there is room for it and none of its CID.
    pub(crate) fn join(
        self: &Arc<Self>,
        shared: &Arc<Shared>,
        cid: u16,
        mailbox: Mailbox,
    ) -> Result<(), NoPlace> {
        {
            let mut mailboxes = self.mailboxes();
            if mailboxes.contains_key(&cid) {
                return Err(NoPlace::Taken);
            }
            if mailboxes.len() >= usize::from(self.max_connections.max(1)) {
                return Err(NoPlace::Full);
            }
            mailboxes.insert(cid, mailbox);
        }
        self.step(shared, Input::Join(cid), None);
        Ok(())
    }

    /// A connection speaks; returns what is for itself.
    pub(crate) fn hear(
        self: &Arc<Self>,
        shared: &Arc<Shared>,
        cid: u16,
        message: ToSession,
    ) -> Vec<ToConnection> {
        let closed = message == ToSession::ConnectionClosed;
        let own = self.step(shared, Input::Connection(cid, message), Some(cid));
        if closed {
            self.mailboxes().remove(&cid);
        }
        own
    }

    /// Ends the session: its connections close, its tasks are aborted.
    pub(crate) fn end(self: &Arc<Self>, shared: &Arc<Shared>) {
        self.step(shared, Input::End, None);
    }

    /// Closes one connection, to be replaced: [`join`](Self::join) or [`end`](Self::end) follows.
    pub(crate) fn replace_connection(self: &Arc<Self>, shared: &Arc<Shared>, cid: u16) {
        self.step(shared, Input::Replace(cid), None);
    }

    /// Whether it is over.
    pub(crate) fn has_ended(&self) -> bool {
        *self.ended.borrow()
    }

    /// Waits until the session is over.
    pub(crate) async fn ended(&self) {
        let mut ended = self.ended.subscribe();
        let _ = ended.wait_for(|ended| *ended).await;
    }

    /// Aborts this session's tasks on `lun` for another nexus; returns how many there were, once
    /// they are quiet.
    pub(crate) async fn abort_for_other(
        self: &Arc<Self>,
        shared: &Arc<Shared>,
        lun: Option<Lun>,
    ) -> u32 {
        let id = shared.next_id();
        let (sender, receiver) = oneshot::channel();
        lock(&self.aborts).insert(id, sender);
        self.step(shared, Input::AbortedByOther { id, lun }, None);
        receiver.await.unwrap_or(0)
    }

    /// Task management is through: `done` is [`Input::Managed`].
    pub(crate) fn managed(self: &Arc<Self>, shared: &Arc<Shared>, done: Input) {
        self.step(shared, done, None);
    }

    fn machine(&self) -> MutexGuard<'_, TargetSession> {
        lock(&self.machine)
    }

    fn mailboxes(&self) -> MutexGuard<'_, HashMap<u16, Mailbox>> {
        lock(&self.mailboxes)
    }

    /// One step of the machine. Values for other connections are put into their mailboxes under the
    /// lock, so that they arrive in the order of the steps.
    fn step(
        self: &Arc<Self>,
        shared: &Arc<Shared>,
        input: Input,
        own_cid: Option<u16>,
    ) -> Vec<ToConnection> {
        let mut own = Vec::new();
        let mut ended = false;
        let mut machine = self.machine();
        machine.handle(shared.clock.now(), input);
        while let Some(output) = machine.poll() {
            match output {
                Output::ToConnection(cid, value) if Some(cid) == own_cid => own.push(value),
                Output::ToConnection(cid, value) => {
                    if let Some(mailbox) = self.mailboxes().get(&cid) {
                        let _ = mailbox.send(Mail::Session(value)); // it may be closing
                    }
                }
                Output::Manage { id, function, lun } => {
                    manage::spawn(Arc::clone(shared), Arc::clone(self), id, function, lun);
                }
                Output::OthersAborted { id, tasks } => {
                    if let Some(waiting) = lock(&self.aborts).remove(&id) {
                        let _ = waiting.send(tasks); // whoever asked may be gone
                    }
                }
                Output::Ended => ended = true,
            }
        }
        drop(machine);
        if ended {
            self.over(shared);
        }
        own
    }

    fn over(self: &Arc<Self>, shared: &Arc<Shared>) {
        for unit in self.units() {
            unit.scsi().detach(self.nexus);
        }
        lock(&self.aborts).clear();
        shared.sessions().remove(self.tsih);
        self.ended.send_replace(true);
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

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
