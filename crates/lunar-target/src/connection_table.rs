//! The connections of a server, and who goes when there is no room for one more (decision 089).
//!
//! A part of the table is kept for connections that are not logged in, and for discovery sessions
//! without proof. There the oldest one of the address that has the most makes room, so one address
//! cannot keep others out. What is logged in stays.

use crate::backoff::PeerNetwork;
use crate::options::Limits;
use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};

/// One part in so many of all connections is kept for those that are not logged in.
const LOGINS_KEPT: usize = 8;
/// One part in so many of what is left is kept for sessions that prove who they are, where some
/// target asks for it.
const PROVEN_KEPT: usize = 4;
/// One part in so many of the room for connections without proof is kept for addresses that have
/// few of them.
const NEWCOMERS_KEPT: usize = 16;
/// Such an address has fewer of them than this.
const NEWCOMER_CONNECTIONS: usize = 8;
/// Any other address may have so many times as many of them as there is room left besides: alone it
/// leaves a fifth of that free, and the next one may have four fifths of this.
const UNPROVEN_PER_FREE: usize = 4;

/// So many connections of an address that had to wait for their login are the last to make room:
/// as many as come to wait in the time that a login may take, if each waits as long as it can.
const WAITED_MAX: usize = 32;

/// How far a connection is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Phase {
    /// It is not logged in yet, or not any more, or of a discovery session that has proven nothing.
    NotLoggedIn,
    /// Of a normal session that has proven nothing: its target does not ask for it.
    Unproven,
    /// Of a session that has proven who it is.
    Proven,
}

/// What a connection that logs in is to the sessions there are.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Joins {
    /// A session that is new.
    New,
    /// A session that it begins anew: a connection of the same initiator goes for it.
    Again,
    /// One more connection of a session, or one in the place of another.
    Further,
}

/// There is no room.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum NoRoom {
    /// For anybody, or anybody who proves nothing.
    Table,
    /// For one more connection without proof of this address.
    Address,
}

/// How many connections there may be.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct TableLimits {
    connections: usize,
    logins: usize,
    logins_per_address: usize,
    /// Of `connections`.
    kept_for_logins: usize,
}

impl TableLimits {
    /// At most `connections`, however many more the limits allow.
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
    /// Those of them that had to wait for their login: the last to make room.
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

    /// How many there are, without those that were evicted.
    pub(crate) fn len(&self) -> usize {
        self.connections.len()
    }

    /// How many there may be.
    pub(crate) fn connections_max(&self) -> usize {
        self.limits.connections
    }

    /// How many made room and are not gone yet.
    pub(crate) fn evicted(&self) -> usize {
        self.evicted
    }

    pub(crate) fn handles(&self) -> impl Iterator<Item = &T> {
        self.connections.values().map(|entry| &entry.handle)
    }

    /// A connection was accepted, under an `id` greater than all before. Returns the one that makes
    /// room for it.
    pub(crate) fn enter(
        &mut self,
        id: u64,
        network: PeerNetwork,
        handle: T,
    ) -> Result<Option<T>, NoRoom> {
        let evicted = self.make_room_for_login(network)?;
        self.not_logged_in.insert(network, id);
        self.connections.insert(id, Entry { network, phase: Phase::NotLoggedIn, handle });
        Ok(evicted)
    }

    /// One connection that is not logged in makes room for something else.
    pub(crate) fn make_room(&mut self) -> Option<T> {
        self.first_to_go().and_then(|id| self.evict(id))
    }

    /// The login of a connection has to wait, because others failed before (decision 051): until it
    /// is through, or the connection is closed, those of its address that came later make room.
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

    /// A connection is about to be logged in. `keeps_proven`: some target asks for proof.
    pub(crate) fn log_in(
        &mut self,
        id: u64,
        phase: Phase,
        joins: Joins,
        keeps_proven: bool,
    ) -> Result<(), NoRoom> {
        let Some(entry) = self.connections.get(&id) else { return Err(NoRoom::Table) };
        if phase != Phase::NotLoggedIn {
            self.judge(entry.network, phase, joins, keeps_proven)?;
        }
        self.set_phase(id, phase);
        Ok(())
    }

    /// A connection is not logged in any more, or was not let in after all. Returns the one that
    /// makes room among those.
    pub(crate) fn log_out(&mut self, id: u64) -> Option<T> {
        let entry = self.connections.get(&id)?;
        if entry.phase == Phase::NotLoggedIn {
            return None;
        }
        let evicted = self.make_room_for_login(entry.network);
        self.set_phase(id, Phase::NotLoggedIn);
        evicted.ok().flatten()
    }

    /// A connection is gone.
    pub(crate) fn remove(&mut self, id: u64) {
        match self.connections.remove(&id) {
            Some(Entry { network, phase, .. }) => self.leave(phase, network, id),
            None => self.evicted = self.evicted.saturating_sub(1),
        }
    }

    fn make_room_for_login(&mut self, network: PeerNetwork) -> Result<Option<T>, NoRoom> {
        let goes = if self.not_logged_in.count(network) >= self.limits.logins_per_address {
            self.oldest_to_go(network)
        } else if self.not_logged_in.len() >= self.limits.logins
            || self.connections.len() >= self.limits.connections
        {
            Some(self.first_to_go().ok_or(NoRoom::Table)?)
        } else {
            None
        };
        Ok(goes.and_then(|id| self.evict(id)))
    }

    /// Whether there is room for one more that is logged in.
    fn judge(
        &self,
        network: PeerNetwork,
        phase: Phase,
        joins: Joins,
        keeps_proven: bool,
    ) -> Result<(), NoRoom> {
        // Of a session that there is already, some more are let in: half of what is kept for logins
        // stays.
        let kept = match joins {
            Joins::New => self.limits.kept_for_logins,
            Joins::Again | Joins::Further => self.limits.kept_for_logins / 2,
        };
        let room = self.limits.connections - kept;
        let free = room.saturating_sub(self.connections.len() - self.not_logged_in.len());
        if free == 0 {
            return Err(NoRoom::Table);
        }
        if phase == Phase::Proven || joins == Joins::Again {
            return Ok(());
        }
        let room = room - if keeps_proven { room / PROVEN_KEPT } else { 0 };
        let free = free.min(room.saturating_sub(self.unproven.len()));
        if free == 0 {
            return Err(NoRoom::Table);
        }
        let shared = free.saturating_sub(room / NEWCOMERS_KEPT);
        let share = NEWCOMER_CONNECTIONS.max(UNPROVEN_PER_FREE * shared);
        if self.unproven.count(network) >= share { Err(NoRoom::Address) } else { Ok(()) }
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

/// Connections by where they come from; those of the network with the most are found at once.
#[derive(Debug, Default)]
struct ByNetwork {
    networks: HashMap<PeerNetwork, BTreeSet<u64>>,
    ranks: BTreeSet<Rank>,
    len: usize,
}

/// By how many a network has; of several with as many the one with the oldest comes last.
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

    /// Those of a network, the oldest first.
    fn ids(&self, network: PeerNetwork) -> impl Iterator<Item = u64> + Clone {
        self.networks.get(&network).into_iter().flatten().copied()
    }

    fn has(&self, network: PeerNetwork, id: u64) -> bool {
        self.networks.get(&network).is_some_and(|ids| ids.contains(&id))
    }

    /// The oldest one of the network with the most.
    fn first_to_go(&self) -> Option<u64> {
        self.ranks.last().map(|rank| rank.oldest.0)
    }
}

#[cfg(test)]
mod tests;
