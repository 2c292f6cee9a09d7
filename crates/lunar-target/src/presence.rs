//! The connections of a running server: their admission, and the closing of those that make room.

use crate::backoff::PeerNetwork;
use crate::connection_table::{ConnectionTable, Joins, NoRoom, Phase};
use crate::login_refusal::LoginRefusal;
use crate::server::{Server, Shared};
use crate::session::{ConnectionEvent, ConnectionEventSender};
use futures_util::future::{AbortHandle, AbortRegistration};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, MutexGuard};

/// Handle to a connection from outside.
#[derive(Debug)]
pub(crate) struct ConnectionControl {
    mailbox: ConnectionEventSender,
    /// Drops the connection with all its state, wherever it runs.
    abort: AbortHandle,
    peer: SocketAddr,
    unsent_bytes: Arc<AtomicUsize>,
}

/// Counts a connection while it lives.
#[derive(Debug)]
pub(crate) struct Presence {
    shared: Arc<Shared>,
    id: u64,
    unsent_bytes: Arc<AtomicUsize>,
}

impl Shared {
    /// Adds a connection; returns `None` if there is no room for it, or the server stops. The
    /// returned registration aborts the connection when its place is needed.
    pub(crate) fn enter(
        self: &Arc<Self>,
        peer: SocketAddr,
        mailbox: &ConnectionEventSender,
    ) -> Option<(Presence, AbortRegistration)> {
        let (abort, registration) = AbortHandle::new_pair();
        let unsent_bytes: Arc<AtomicUsize> = Arc::default();
        let presence_bytes = Arc::clone(&unsent_bytes);
        let link = ConnectionControl { mailbox: mailbox.clone(), abort, peer, unsent_bytes };
        let mut table = self.connections();
        // A connection that comes after the shutdown message to all would not receive it.
        if self.is_stopping() {
            return None;
        }
        let id = self.next_id();
        let entered = table.enter(id, PeerNetwork::of(peer.ip()), link);
        drop(table);
        match entered {
            Ok(evicted) => self.close_evicted(evicted),
            Err(_) => {
                self.warn_of_connection(Some(peer), "the limit `connections` is reached");
                return None;
            }
        }
        let shared = Arc::clone(self);
        Some((Presence { shared, id, unsent_bytes: presence_bytes }, registration))
    }

    /// Closes a connection that is not logged in, if there is one, to free its open file.
    pub(crate) fn make_room(&self) {
        let evicted = self.connections().make_room();
        self.close_evicted(evicted);
    }

    /// Number of connections, logged in or not.
    pub(crate) fn connection_count(&self) -> usize {
        self.connections().len()
    }

    /// Number of connections that were evicted and are not closed yet.
    pub(crate) fn evicted_count(&self) -> usize {
        self.connections().evicted()
    }

    /// Sends a message to every connection; returns their number.
    pub(crate) fn tell_all(&self, mail: impl Fn() -> ConnectionEvent) -> usize {
        let connections = self.connections();
        for link in connections.handles() {
            let _ = link.mailbox.send(mail()); // the connection may be closing
        }
        connections.len()
    }

    fn close_evicted(&self, evicted: Option<ConnectionControl>) {
        let Some(link) = evicted else { return };
        link.abort.abort();
        self.counters.login_refused(LoginRefusal::Evicted);
        let why = "not logged in, or a discovery session, and closed in favor of another \
                   connection";
        self.warn_of_connection(Some(link.peer), why);
    }

    /// Limit on the number of connections.
    pub(crate) fn connections_max(&self) -> usize {
        self.connections().connections_max()
    }

    fn connections(&self) -> MutexGuard<'_, ConnectionTable<ConnectionControl>> {
        crate::server::lock(&self.connections)
    }
}

impl Presence {
    /// Called when the connection is about to be logged in.
    pub(crate) fn log_in(&self, phase: Phase, joins: Joins) -> Result<(), NoRoom> {
        let keeps_proven = self.shared.catalogue().asks_for_proof();
        self.shared.connections().log_in(self.id, phase, joins, keeps_proven)
    }

    /// Called when the connection's login has to wait.
    pub(crate) fn wait(&self) {
        self.shared.connections().wait(self.id);
    }

    /// Called when the connection no longer belongs to a session.
    pub(crate) fn log_out(&self) {
        let evicted = self.shared.connections().log_out(self.id);
        self.shared.close_evicted(evicted);
    }

    /// Sets the number of bytes that wait to be sent to the peer.
    pub(crate) fn set_unsent_bytes(&self, bytes: usize) {
        self.unsent_bytes.store(bytes, Relaxed);
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        self.shared.connections().remove(self.id);
    }
}

impl Server {
    /// Number of connections, logged in or not.
    pub fn connections(&self) -> usize {
        self.shared.connection_count()
    }

    /// Limit on the number of connections: the limit `connections`, or fewer if the system grants
    /// the process too few open files.
    pub fn connections_max(&self) -> usize {
        self.shared.connections_max()
    }

    /// Bytes of PDUs that wait in this process to be sent, of all connections.
    pub fn unsent_bytes(&self) -> usize {
        self.shared.connections().handles().map(|link| link.unsent_bytes.load(Relaxed)).sum()
    }
}
