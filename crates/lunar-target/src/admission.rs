//! The connections of a running server: their admission, and the closing of those that make room.

use crate::connection_table::{
    ConnectionLimit, ConnectionTable, Phase, SessionRelation, TableLimits,
};
use crate::lock::lock;
use crate::log_budget::LogBudget;
use crate::log_text::printable;
use crate::login_refusal::LoginRefusal;
use crate::peer_network::PeerNetwork;
use crate::session::{ConnectionEvent, ConnectionEventSender};
use crate::statistics::Counters;
use futures_util::future::{AbortHandle, AbortRegistration};
use lunar_net::Clock;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::sync::watch;

/// The connections of a server.
#[derive(Debug)]
pub(crate) struct Connections {
    table: Mutex<ConnectionTable<ConnectionControl>>,
    last_id: AtomicU64,
    counters: Arc<Counters>,
    /// Budget of log lines about connections that ended with an error.
    log_budget: LogBudget,
    clock: Clock,
    /// True when the server stops.
    stop: watch::Receiver<bool>,
}

/// Handle to a connection from outside.
#[derive(Debug)]
struct ConnectionControl {
    mailbox: ConnectionEventSender,
    /// Drops the connection with all its state, wherever it runs.
    abort: AbortHandle,
    peer: SocketAddr,
    unsent_bytes: Arc<AtomicUsize>,
}

/// Counts a connection while it lives.
#[derive(Debug)]
pub(crate) struct CountedConnection {
    connections: Arc<Connections>,
    id: u64,
    unsent_bytes: Arc<AtomicUsize>,
}

impl Connections {
    pub(crate) fn new(
        limits: TableLimits,
        counters: Arc<Counters>,
        clock: Clock,
        stop: watch::Receiver<bool>,
    ) -> Self {
        Self {
            table: Mutex::new(ConnectionTable::new(limits)),
            last_id: AtomicU64::new(0),
            counters,
            log_budget: LogBudget::default(),
            clock,
            stop,
        }
    }

    /// Adds a connection; returns `None` if there is no room for it, or the server stops. The
    /// returned registration aborts the connection when another connection needs its slot.
    pub(crate) fn enter(
        self: &Arc<Self>,
        peer: SocketAddr,
        mailbox: &ConnectionEventSender,
    ) -> Option<(CountedConnection, AbortRegistration)> {
        let (abort, registration) = AbortHandle::new_pair();
        let unsent_bytes: Arc<AtomicUsize> = Arc::default();
        let presence_bytes = Arc::clone(&unsent_bytes);
        let link = ConnectionControl { mailbox: mailbox.clone(), abort, peer, unsent_bytes };
        let mut table = self.table();
        // A connection that comes after the shutdown message to all would not receive it.
        if *self.stop.borrow() {
            return None;
        }
        let id = self.last_id.fetch_add(1, Relaxed) + 1;
        let entered = table.enter(id, PeerNetwork::of(peer.ip()), link);
        drop(table);
        match entered {
            Ok(evicted) => self.close_evicted(evicted),
            Err(_) => {
                self.warn(Some(peer), "the limit `connections` is reached");
                return None;
            }
        }
        let connections = Arc::clone(self);
        Some((CountedConnection { connections, id, unsent_bytes: presence_bytes }, registration))
    }

    /// Closes a connection that is not logged in, if there is one, to free its open file.
    pub(crate) fn make_room(&self) {
        let evicted = self.table().make_room();
        self.close_evicted(evicted);
    }

    /// Number of connections, logged in or not.
    pub(crate) fn count(&self) -> usize {
        self.table().len()
    }

    /// Number of connections that were evicted and are not closed yet.
    pub(crate) fn evicted_count(&self) -> usize {
        self.table().evicted()
    }

    /// Sends a message to every connection; returns their number.
    pub(crate) fn send_to_all(&self, event: impl Fn() -> ConnectionEvent) -> usize {
        let table = self.table();
        for link in table.handles() {
            let _ = link.mailbox.send(event()); // the connection may be closing
        }
        table.len()
    }

    fn close_evicted(&self, evicted: Option<ConnectionControl>) {
        let Some(link) = evicted else { return };
        link.abort.abort();
        self.counters.login_refused(LoginRefusal::Evicted);
        let why = "not logged in, or a discovery session, and closed in favor of another \
                   connection";
        self.warn(Some(link.peer), why);
    }

    /// Limit on the number of connections.
    pub(crate) fn connections_max(&self) -> usize {
        self.table().connections_max()
    }

    /// Bytes of PDUs that wait in this process to be sent, of all connections.
    pub(crate) fn unsent_bytes(&self) -> usize {
        self.table().handles().map(|link| link.unsent_bytes.load(Relaxed)).sum()
    }

    /// Logs the reason why a connection was closed, unless such lines come in a flood.
    pub(crate) fn warn(&self, peer: Option<SocketAddr>, why: &str) {
        if let Some(suppressed) = self.log_budget.take_line(self.clock.now()) {
            let suppressed = (suppressed > 0).then_some(suppressed);
            let peer = peer.map(tracing::field::display);
            tracing::warn!(peer, suppressed, "connection closed: {}", printable(why));
        }
    }

    fn table(&self) -> MutexGuard<'_, ConnectionTable<ConnectionControl>> {
        lock(&self.table)
    }
}

impl CountedConnection {
    /// Called when the connection is about to be logged in. `keeps_proven` is true if some target
    /// requires proof of identity.
    pub(crate) fn log_in(
        &self,
        phase: Phase,
        relation: SessionRelation,
        keeps_proven: bool,
    ) -> Result<(), ConnectionLimit> {
        self.connections.table().log_in(self.id, phase, relation, keeps_proven)
    }

    /// Called when the connection's login has to wait.
    pub(crate) fn wait(&self) {
        self.connections.table().wait(self.id);
    }

    /// Called when the connection no longer belongs to a session.
    pub(crate) fn log_out(&self) {
        let evicted = self.connections.table().log_out(self.id);
        self.connections.close_evicted(evicted);
    }

    /// Sets the number of bytes that wait to be sent to the peer.
    pub(crate) fn set_unsent_bytes(&self, bytes: usize) {
        self.unsent_bytes.store(bytes, Relaxed);
    }
}

impl Drop for CountedConnection {
    fn drop(&mut self) {
        self.connections.table().remove(self.id);
    }
}
