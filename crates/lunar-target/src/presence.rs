//! The connections of a running server: letting them in, and closing those that make room.

use crate::backoff::PeerNetwork;
use crate::connection_table::{ConnectionTable, Joins, NoRoom, Phase};
use crate::login_refusal::LoginRefusal;
use crate::server::{Server, Shared};
use crate::session::{Mail, Mailbox};
use futures_util::future::{AbortHandle, AbortRegistration};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, MutexGuard};

/// How a connection is reached from outside.
#[derive(Debug)]
pub(crate) struct ConnectionControl {
    mailbox: Mailbox,
    /// Drops the connection with all that it has, wherever it is.
    abort: AbortHandle,
    peer: SocketAddr,
    unsent_bytes: Arc<AtomicUsize>,
}

/// A connection is counted while this lives.
#[derive(Debug)]
pub(crate) struct Presence {
    shared: Arc<Shared>,
    id: u64,
    unsent_bytes: Arc<AtomicUsize>,
}

impl Shared {
    /// Counts a connection in; `None` when there is no room for it, or the server stops. What is
    /// returned with it ends the connection when its place is needed.
    pub(crate) fn enter(
        self: &Arc<Self>,
        peer: SocketAddr,
        mailbox: &Mailbox,
    ) -> Option<(Presence, AbortRegistration)> {
        let (abort, registration) = AbortHandle::new_pair();
        let unsent_bytes: Arc<AtomicUsize> = Arc::default();
        let presence_bytes = Arc::clone(&unsent_bytes);
        let link = ConnectionControl { mailbox: mailbox.clone(), abort, peer, unsent_bytes };
        let mut table = self.connections();
        // Who comes after all were told to go would not hear of it.
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

    /// Closes a connection that is not logged in, if there is one: its open file is needed.
    pub(crate) fn make_room(&self) {
        let evicted = self.connections().make_room();
        self.close_evicted(evicted);
    }

    /// How many connections there are, logged in or not.
    pub(crate) fn connection_count(&self) -> usize {
        self.connections().len()
    }

    /// How many connections made room for others and are not closed yet.
    pub(crate) fn evicted_count(&self) -> usize {
        self.connections().evicted()
    }

    /// Tells every connection; returns how many there are.
    pub(crate) fn tell_all(&self, mail: impl Fn() -> Mail) -> usize {
        let connections = self.connections();
        for link in connections.handles() {
            let _ = link.mailbox.send(mail()); // it may be closing
        }
        connections.len()
    }

    fn close_evicted(&self, evicted: Option<ConnectionControl>) {
        let Some(link) = evicted else { return };
        link.abort.abort();
        self.counters.login_refused(LoginRefusal::Evicted);
        let why = "it was not logged in, or for discovery only, and made room for another one";
        self.warn_of_connection(Some(link.peer), why);
    }

    /// How many connections there may be.
    pub(crate) fn connections_max(&self) -> usize {
        self.connections().connections_max()
    }

    fn connections(&self) -> MutexGuard<'_, ConnectionTable<ConnectionControl>> {
        crate::server::lock(&self.connections)
    }
}

impl Presence {
    /// The connection is about to be logged in.
    pub(crate) fn log_in(&self, phase: Phase, joins: Joins) -> Result<(), NoRoom> {
        let keeps_proven = self.shared.catalogue().asks_for_proof();
        self.shared.connections().log_in(self.id, phase, joins, keeps_proven)
    }

    /// The connection's login has to wait.
    pub(crate) fn wait(&self) {
        self.shared.connections().wait(self.id);
    }

    /// The connection is in no session any more.
    pub(crate) fn log_out(&self) {
        let evicted = self.shared.connections().log_out(self.id);
        self.shared.close_evicted(evicted);
    }

    /// So much waits to be sent to the peer.
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
    /// How many connections there are, logged in or not.
    pub fn connections(&self) -> usize {
        self.shared.connection_count()
    }

    /// How many connections there may be: the limit `connections`, or fewer where the system grants
    /// the process too few open files.
    pub fn connections_max(&self) -> usize {
        self.shared.connections_max()
    }

    /// Bytes of PDUs that wait in this process to be sent, of all connections.
    pub fn unsent_bytes(&self) -> usize {
        self.shared.connections().handles().map(|link| link.unsent_bytes.load(Relaxed)).sum()
    }
}
