//! The connections of a server, and which of them is evicted to make room for a new one (decision
//! 089).
//!
//! A part of the table is kept for connections that are not logged in, and for discovery sessions
//! without proof. In that part the oldest connection of the address that has the most makes room,
//! so one address cannot keep others out. Connections that are logged in stay.

use crate::options::Limits;
use crate::peer_network::PeerNetwork;
use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};

/// Divisor of all connections for the part that is kept for connections that are not logged in.
const LOGINS_KEPT: usize = 8;
/// Divisor of the rest for the part that is kept for sessions that prove their identity, if some
/// target requires proof.
const PROVEN_KEPT: usize = 4;
/// Divisor of the room for connections without proof for the part that is kept for addresses with
/// few of them.
const NEWCOMERS_KEPT: usize = 16;
/// Number of connections below which an address counts as one with few.
const NEWCOMER_CONNECTIONS: usize = 8;
/// Connections that any other address may have for each one still free: a single address leaves a
/// fifth of the room free, and the next one may have four fifths of that fifth.
const UNPROVEN_PER_FREE: usize = 4;

/// Number of connections of an address, among those that had to wait for their login, that are the
/// last to make room: as many as can begin to wait within the time of a login, if each waits as
/// long as possible.
const WAITED_MAX: usize = 32;

/// Login state of a connection.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Phase {
    /// The connection is not logged in yet or no longer, or belongs to a discovery session without
    /// proof.
    NotLoggedIn,
    /// The connection belongs to a normal session without proof: its target does not require it.
    Unproven,
    /// The connection belongs to a session that has proven its identity.
    Proven,
}

/// Relation of a connection that logs in to the existing sessions.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum SessionRelation {
    /// The session is new.
    New,
    /// The session is reinstated: a connection of the same initiator ends in exchange.
    Again,
    /// The connection is added to a session, or replaces another one of it.
    Further,
}

/// Reasons why there is no room.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum ConnectionLimit {
    /// No room for any connection, or for any without proof.
    Table,
    /// No room for a further connection without proof from this address.
    Address,
}

/// Limits on the numbers of connections.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct TableLimits {
    connections: usize,
    logins: usize,
    logins_per_address: usize,
    /// Part of `connections` that is kept for logins.
    kept_for_logins: usize,
}

impl TableLimits {
    /// Limits with at most `connections` connections, even if `limits` allows more.
    pub(crate) fn new(limits: &Limits, connections: usize) -> Self {
        let connections = limits.connections.min(connections);
        let kept_for_logins = connections / LOGINS_KEPT;
        let logins = kept_for_logins.max(1);
        let logins_per_address = limits.logins_per_address.min(logins.div_ceil(2));
        Self { connections, logins, logins_per_address, kept_for_logins }
    }
}

/// The connections of a server, each with a `handle`.
#[derive(Debug)]
pub(crate) struct ConnectionTable<T> {
    limits: TableLimits,
    connections: HashMap<u64, Entry<T>>,
    not_logged_in: ByNetwork,
    /// Connections that are not logged in and had to wait for their login: the last to make room.
    waited: ByNetwork,
    unproven: ByNetwork,
    /// Connections that made room and have not been removed yet.
    evicted: usize,
}

#[derive(Debug)]
struct Entry<T> {
    network: PeerNetwork,
    phase: Phase,
    handle: T,
}

impl<T> ConnectionTable<T> {
    pub(crate) fn new(limits: TableLimits) -> Self {
        Self {
            limits,
            connections: HashMap::new(),
            not_logged_in: ByNetwork::default(),
            waited: ByNetwork::default(),
            unproven: ByNetwork::default(),
            evicted: 0,
        }
    }

    /// Number of connections, without those that were evicted.
    pub(crate) fn len(&self) -> usize {
        self.connections.len()
    }

    /// Limit on the number of connections.
    pub(crate) fn connections_max(&self) -> usize {
        self.limits.connections
    }

    /// Number of connections that were evicted and have not been removed yet.
    pub(crate) fn evicted(&self) -> usize {
        self.evicted
    }

    pub(crate) fn handles(&self) -> impl Iterator<Item = &T> {
        self.connections.values().map(|entry| &entry.handle)
    }

    /// Adds an accepted connection under an `id` greater than all before. Returns the connection
    /// that makes room for it.
    pub(crate) fn enter(
        &mut self,
        id: u64,
        network: PeerNetwork,
        handle: T,
    ) -> Result<Option<T>, ConnectionLimit> {
        let evicted = self.make_room_for_login(network)?;
        self.not_logged_in.insert(network, id);
        self.connections.insert(id, Entry { network, phase: Phase::NotLoggedIn, handle });
        Ok(evicted)
    }

    /// Evicts one connection that is not logged in, to make room for something else.
    pub(crate) fn make_room(&mut self) -> Option<T> {
        self.first_to_go().and_then(|id| self.evict(id))
    }

    /// Called when the login of a connection has to wait because earlier logins failed (decision
    /// 051). Until the login is done, or the connection is closed, later connections of its address
    /// make room first.
    pub(crate) fn wait(&mut self, id: u64) {
        let Some(Entry { network, phase: Phase::NotLoggedIn, .. }) = self.connections.get(&id)
        else {
            return;
        };
        let waited_max = WAITED_MAX.min(self.limits.logins_per_address / 2);
        if self.waited.count(*network) < waited_max {
            self.waited.insert(*network, id);
        }
    }

    fn first_to_go(&self) -> Option<u64> {
        let oldest = self.connections.get(&self.not_logged_in.first_to_go()?)?;
        self.oldest_to_go(oldest.network)
    }

    fn oldest_to_go(&self, network: PeerNetwork) -> Option<u64> {
        let mut ids = self.not_logged_in.ids(network);
        let oldest = ids.clone().next();
        ids.find(|id| !self.waited.has(network, *id)).or(oldest)
    }

    /// Called when a connection is about to be logged in. `keeps_proven` is true if some target
    /// requires proof.
    pub(crate) fn log_in(
        &mut self,
        id: u64,
        phase: Phase,
        relation: SessionRelation,
        keeps_proven: bool,
    ) -> Result<(), ConnectionLimit> {
        let Some(entry) = self.connections.get(&id) else { return Err(ConnectionLimit::Table) };
        if phase != Phase::NotLoggedIn {
            self.check_limits(entry.network, phase, relation, keeps_proven)?;
        }
        self.set_phase(id, phase);
        Ok(())
    }

    /// Called when a connection is no longer logged in, or was not admitted after all. Returns the
    /// connection that makes room among those not logged in.
    pub(crate) fn log_out(&mut self, id: u64) -> Option<T> {
        let entry = self.connections.get(&id)?;
        if entry.phase == Phase::NotLoggedIn {
            return None;
        }
        let evicted = self.make_room_for_login(entry.network);
        self.set_phase(id, Phase::NotLoggedIn);
        evicted.ok().flatten()
    }

    /// Removes a connection that has ended.
    pub(crate) fn remove(&mut self, id: u64) {
        match self.connections.remove(&id) {
            Some(Entry { network, phase, .. }) => self.leave(phase, network, id),
            None => self.evicted = self.evicted.saturating_sub(1),
        }
    }

    fn make_room_for_login(&mut self, network: PeerNetwork) -> Result<Option<T>, ConnectionLimit> {
        let goes = if self.not_logged_in.count(network) >= self.limits.logins_per_address {
            self.oldest_to_go(network)
        } else if self.not_logged_in.len() >= self.limits.logins
            || self.connections.len() >= self.limits.connections
        {
            Some(self.first_to_go().ok_or(ConnectionLimit::Table)?)
        } else {
            None
        };
        Ok(goes.and_then(|id| self.evict(id)))
    }

    /// Checks whether there is room for one more logged-in connection.
    fn check_limits(
        &self,
        network: PeerNetwork,
        phase: Phase,
        relation: SessionRelation,
        keeps_proven: bool,
    ) -> Result<(), ConnectionLimit> {
        // An existing session gets some further connections: half of the part for logins stays
        // free.
        let kept = match relation {
            SessionRelation::New => self.limits.kept_for_logins,
            SessionRelation::Again | SessionRelation::Further => self.limits.kept_for_logins / 2,
        };
        let room = self.limits.connections - kept;
        let free = room.saturating_sub(self.connections.len() - self.not_logged_in.len());
        if free == 0 {
            return Err(ConnectionLimit::Table);
        }
        if phase == Phase::Proven || relation == SessionRelation::Again {
            return Ok(());
        }
        let room = room - if keeps_proven { room / PROVEN_KEPT } else { 0 };
        let free = free.min(room.saturating_sub(self.unproven.len()));
        if free == 0 {
            return Err(ConnectionLimit::Table);
        }
        let shared = free.saturating_sub(room / NEWCOMERS_KEPT);
        let share = NEWCOMER_CONNECTIONS.max(UNPROVEN_PER_FREE * shared);
        if self.unproven.count(network) >= share { Err(ConnectionLimit::Address) } else { Ok(()) }
    }

    fn set_phase(&mut self, id: u64, phase: Phase) {
        let Some(entry) = self.connections.get_mut(&id) else { return };
        let (network, before) = (entry.network, std::mem::replace(&mut entry.phase, phase));
        self.leave(before, network, id);
        if let Some(members) = self.members(phase) {
            members.insert(network, id);
        }
    }

    fn evict(&mut self, id: u64) -> Option<T> {
        let Entry { network, phase, handle } = self.connections.remove(&id)?;
        self.leave(phase, network, id);
        self.evicted += 1;
        Some(handle)
    }

    fn leave(&mut self, phase: Phase, network: PeerNetwork, id: u64) {
        if self.waited.has(network, id) {
            self.waited.remove(network, id);
        }
        if let Some(members) = self.members(phase) {
            members.remove(network, id);
        }
    }

    fn members(&mut self, phase: Phase) -> Option<&mut ByNetwork> {
        match phase {
            Phase::NotLoggedIn => Some(&mut self.not_logged_in),
            Phase::Unproven => Some(&mut self.unproven),
            Phase::Proven => None,
        }
    }
}

/// Connections by network; the network with the most is found without a search.
#[derive(Debug, Default)]
struct ByNetwork {
    networks: HashMap<PeerNetwork, BTreeSet<u64>>,
    ranks: BTreeSet<Rank>,
    len: usize,
}

/// Order of networks by number of connections; among equals the one with the oldest comes last.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
struct Rank {
    count: usize,
    oldest: Reverse<u64>,
}

impl Rank {
    fn of(ids: &BTreeSet<u64>) -> Option<Self> {
        ids.first().map(|oldest| Self { count: ids.len(), oldest: Reverse(*oldest) })
    }
}

impl ByNetwork {
    fn insert(&mut self, network: PeerNetwork, id: u64) {
        self.change(network, |ids| ids.insert(id));
        self.len += 1;
    }

    fn remove(&mut self, network: PeerNetwork, id: u64) {
        self.change(network, |ids| ids.remove(&id));
        self.len -= 1;
    }

    fn change(&mut self, network: PeerNetwork, change: impl FnOnce(&mut BTreeSet<u64>) -> bool) {
        let ids = self.networks.entry(network).or_default();
        let before = Rank::of(ids);
        change(ids);
        let after = Rank::of(ids);
        if after.is_none() {
            self.networks.remove(&network);
        }
        before.inspect(|rank| _ = self.ranks.remove(rank));
        self.ranks.extend(after);
    }

    fn len(&self) -> usize {
        self.len
    }

    fn count(&self, network: PeerNetwork) -> usize {
        self.networks.get(&network).map_or(0, BTreeSet::len)
    }

    /// Connections of a network, the oldest first.
    fn ids(&self, network: PeerNetwork) -> impl Iterator<Item = u64> + Clone {
        self.networks.get(&network).into_iter().flatten().copied()
    }

    fn has(&self, network: PeerNetwork, id: u64) -> bool {
        self.networks.get(&network).is_some_and(|ids| ids.contains(&id))
    }

    /// The oldest connection of the network with the most.
    fn first_to_go(&self) -> Option<u64> {
        self.ranks.last().map(|rank| rank.oldest.0)
    }
}

#[cfg(test)]
mod tests;
