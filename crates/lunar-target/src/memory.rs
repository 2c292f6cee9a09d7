//! Memory used on behalf of initiators: its owners, and the waiting of commands for it.

use crate::abort::{AbortSignal, Aborted};
use crate::peer_network::PeerNetwork;
use bytes::Bytes;
use lunar_block::{Buffer, BufferPool, MemoryCharge, MemoryKind, MemoryOwner};
use lunar_net::{BufferLimits, BufferedBytes, OwnerId};
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

/// Length up to which answers are not charged one by one: the outbox of a connection counts them
/// while they wait to be sent.
const SMALL_REPLY_BYTES: usize = lunar_net::COUNTED_DATA_IN_BYTES_MAX;

/// Number of entries below which owners that are gone are not searched for.
const KNOWN_OWNERS_MIN: usize = 64;

/// Memory of an idle connection, including its part of a session: 12.9 KB were measured, and 3 KB
/// in the kernel.
pub(crate) const CONNECTION_BYTES: usize = 16 << 10;

/// Bytes of buffers or of command data up to which a connection is not dropped: data sent to a peer
/// that takes it counts until the socket is checked.
const SPARED_BYTES: usize = 8 << 10;

/// Step in which the memory of commands is charged.
const SESSION_STEP_BYTES: usize = 4 << 10;

/// Key of a memory owner. The memory of an owner counts as one when it is scarce, and its
/// sessions have one share of a limit (see `quota`). An owner is all connections from one address
/// (IPv6: one /64), and of these, those that have proven to be the same user. A name that is only
/// claimed makes no difference.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub(crate) struct OwnerKey {
    network: PeerNetwork,
    user: Option<String>,
}

/// The owners of a server's memory, as long as they own some.
#[derive(Debug)]
pub(crate) struct MemoryOwners {
    buffers: BufferPool,
    owners: Mutex<KnownOwners>,
    /// Hasher with a random key: no peer can choose values that collide with another owner.
    hasher: RandomState,
}

/// Owners by key. The number of live ones is at most that of connections.
#[derive(Debug, Default)]
struct KnownOwners {
    by_key: HashMap<OwnerKey, Weak<MemoryOwner>>,
    /// Number of live owners at the last removal of entries.
    live_at_removal: usize,
}

/// The memory accounts of one connection.
#[derive(Debug)]
pub(crate) struct ConnectionMemory {
    /// Id of the owner: the same for all its connections, also for later ones.
    pub(crate) owner_id: u64,
    /// Read data, until the socket has taken it.
    pub(crate) data_in: BufferPool,
    /// Data-out, until its command has ended.
    pub(crate) data_out: BufferPool,
    /// Text, ping data and parameter lists.
    pub(crate) control: BufferPool,
    /// Charge for the connection itself, and for the state of its commands.
    session: MemoryCharge,
    buffered: BufferedCharges,
}

/// The memory that a socket of a relay holds for the host of its connection.
#[derive(Debug)]
pub struct RelaySocketMemory {
    control: BufferPool,
    _session: MemoryCharge,
    buffered: BufferedCharges,
}

impl RelaySocketMemory {
    /// The memory of a socket that is being opened, in an account of the host.
    pub fn new(control: &BufferPool) -> Self {
        let session = control.sibling(MemoryKind::Session).charge(CONNECTION_BYTES);
        Self { control: control.clone(), _session: session, buffered: BufferedCharges::default() }
    }

    /// Current buffer limits of the socket.
    pub fn buffer_limits(&self) -> BufferLimits {
        buffer_limits(&self.control)
    }

    /// Charges the data that the socket buffers. Returns `false` if memory is exhausted, the host
    /// holds more than its share of it, and this socket has a part in that.
    pub fn may_hold(&mut self, bytes: BufferedBytes) -> bool {
        self.buffered.set(&self.control, bytes);
        !self.control.must_release_memory() || all_of(bytes) <= SPARED_BYTES
    }
}

/// Charges for data that a connection buffers while it waits for its peer; `None` until it does.
#[derive(Debug, Default)]
struct BufferedCharges(Option<Box<Buffered>>);

#[derive(Debug)]
struct Buffered {
    received: MemoryCharge,
    queued: MemoryCharge,
    socket: MemoryCharge,
}

impl BufferedCharges {
    fn set(&mut self, control: &BufferPool, bytes: BufferedBytes) {
        if bytes != BufferedBytes::default() || self.0.is_some() {
            self.charge(control, bytes);
        }
    }

    #[cold]
    fn charge(&mut self, control: &BufferPool, bytes: BufferedBytes) {
        let buffered = self.0.get_or_insert_with(|| {
            let charge = |kind| control.sibling(kind).charge(0);
            Box::new(Buffered {
                received: control.charge(0),
                queued: charge(MemoryKind::Outbox),
                socket: charge(MemoryKind::Socket),
            })
        });
        buffered.received.set(bytes.received);
        buffered.queued.set(bytes.queued);
        buffered.socket.set(bytes.socket);
    }
}

fn all_of(bytes: BufferedBytes) -> usize {
    bytes.received + bytes.queued + bytes.socket
}

fn buffer_limits(control: &BufferPool) -> BufferLimits {
    if control.budget().is_scarce() { SCARCE_LIMITS } else { BufferLimits::LARGEST }
}

/// Buffer limits of a connection while memory is scarce: enough for a peer that takes its answers.
const SCARCE_LIMITS: BufferLimits = BufferLimits {
    receive_bytes_max: 16 << 10,
    send_bytes_max: 64 << 10,
    socket_bytes_max: Some(128 << 10),
};

impl OwnerKey {
    /// The owner of connections from `network` that have proven to be `user`, or have proven
    /// nothing.
    pub(crate) fn new(network: PeerNetwork, user: Option<String>) -> Self {
        Self { network, user }
    }

    /// The owner of connections from an address without proof.
    #[cfg(test)]
    pub(crate) fn of_address(address: std::net::IpAddr) -> Self {
        Self::new(PeerNetwork::of(address), None)
    }
}

impl MemoryOwners {
    pub(crate) fn new(buffers: BufferPool) -> Self {
        Self { buffers, owners: Mutex::default(), hasher: RandomState::new() }
    }

    /// The memory that all owners share.
    pub(crate) fn buffers(&self) -> &BufferPool {
        &self.buffers
    }

    /// The owner of the core time of connections from `network`, as far as they have proven
    /// nothing.
    pub(crate) fn time_owner_of(&self, network: PeerNetwork) -> OwnerId {
        OwnerId(self.hasher.hash_one(OwnerKey::new(network, None)))
    }

    /// Creates the accounts of a connection from `network` that has proven to be `user`, or has
    /// proven nothing.
    pub(crate) fn accounts(&self, network: PeerNetwork, user: Option<String>) -> ConnectionMemory {
        let key = OwnerKey::new(network, user);
        let owner_id = self.hasher.hash_one(&key);
        let owner = self.owner(key);
        let account = |kind| self.buffers.account(&owner, kind);
        let session = account(MemoryKind::Session).charge(CONNECTION_BYTES);
        ConnectionMemory {
            owner_id,
            session,
            data_in: account(MemoryKind::DataIn),
            data_out: account(MemoryKind::DataOut),
            control: account(MemoryKind::Control),
            buffered: BufferedCharges::default(),
        }
    }

    fn owner(&self, key: OwnerKey) -> Arc<MemoryOwner> {
        let mut owners = self.owners.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(owner) = owners.by_key.get(&key).and_then(Weak::upgrade) {
            return owner;
        }
        owners.remove_gone();
        let owner = self.buffers.budget().owner();
        owners.by_key.insert(key, Arc::downgrade(&owner));
        owner
    }
}

impl KnownOwners {
    /// Removes owners that are gone, once the entries have doubled since the last removal: a
    /// constant cost for each new owner.
    fn remove_gone(&mut self) {
        if self.by_key.len() < KNOWN_OWNERS_MIN.max(2 * self.live_at_removal) {
            return;
        }
        self.by_key.retain(|_, owner| owner.strong_count() > 0);
        self.live_at_removal = self.by_key.len();
    }
}

impl ConnectionMemory {
    /// Current buffer limits of the connection.
    pub(crate) fn buffer_limits(&self) -> BufferLimits {
        buffer_limits(&self.control)
    }

    /// A charge for running commands.
    pub(crate) fn commands_charge(&self) -> MemoryCharge {
        self.session.sibling()
    }

    /// Charges the data that the connection buffers while it waits for its peer, and `task_bytes`
    /// for the state of its commands; `running_bytes` are charged already, by
    /// [`commands_charge`](Self::commands_charge). Returns `false` if memory is exhausted, the
    /// owner holds more than its share of it, and this connection has a part in that.
    pub(crate) fn may_hold(
        &mut self,
        bytes: BufferedBytes,
        task_bytes: usize,
        running_bytes: usize,
    ) -> bool {
        self.session.set(CONNECTION_BYTES + task_bytes.next_multiple_of(SESSION_STEP_BYTES));
        self.buffered.set(&self.control, bytes);
        if !self.control.must_release_memory() {
            return true;
        }
        let gives_data_back = self.holds_data() && self.control.must_release_data();
        !gives_data_back && !self.holds_more_than_idle(bytes, running_bytes)
    }

    /// True when the connection holds more command data than [`SPARED_BYTES`].
    pub(crate) fn holds_data(&self) -> bool {
        self.data_in.held_bytes() + self.data_out.held_bytes() > SPARED_BYTES
    }

    /// True when the connection holds more than one that waits for its next command.
    fn holds_more_than_idle(&self, bytes: BufferedBytes, running_bytes: usize) -> bool {
        all_of(bytes) > SPARED_BYTES
            || self.control.held_bytes() > 0
            || self.session.bytes() + running_bytes > CONNECTION_BYTES + 2 * SESSION_STEP_BYTES
    }
}

/// Memory source of a running command.
#[derive(Clone, Debug)]
pub(crate) struct WorkMemory {
    pub(crate) buffers: BufferPool,
    /// Time for which the command waits for memory before it ends BUSY.
    pub(crate) wait_max: Duration,
}

/// Reason why a command got no memory.
pub(crate) enum NoMemory {
    Aborted,
    /// No memory was free in time.
    TimedOut,
}

impl WorkMemory {
    /// Takes a buffer of `bytes`, as soon as there is memory for it. The caller must hold no lock
    /// that other commands may wait for.
    pub(crate) async fn take(&self, bytes: usize, abort: &AbortSignal) -> Result<Buffer, NoMemory> {
        match self.buffers.try_take(bytes) {
            Some(buffer) => Ok(buffer),
            None => self.in_time(self.buffers.take_when_free(bytes), abort).await,
        }
    }

    /// Charges `bytes` of memory outside the pool, as soon as there is room for them. The caller
    /// must hold no lock that other commands may wait for.
    pub(crate) async fn charge(
        &self,
        bytes: usize,
        abort: &AbortSignal,
    ) -> Result<MemoryCharge, NoMemory> {
        match self.buffers.try_charge(bytes) {
            Some(charge) => Ok(charge),
            None => self.in_time(self.buffers.charge_when_free(bytes), abort).await,
        }
    }

    async fn in_time<T>(
        &self,
        memory: impl Future<Output = T>,
        abort: &AbortSignal,
    ) -> Result<T, NoMemory> {
        match abort.unless(tokio::time::timeout(self.wait_max, memory)).await {
            Ok(Ok(memory)) => Ok(memory),
            Ok(Err(_)) => Err(NoMemory::TimedOut),
            Err(Aborted) => Err(NoMemory::Aborted),
        }
    }

    /// Charges an answer of this capacity, which is kept until its command runs. Short answers need
    /// no charge.
    pub(crate) fn charge_reply(&self, bytes: usize) -> Result<Option<MemoryCharge>, NoMemory> {
        match bytes {
            ..=SMALL_REPLY_BYTES => Ok(None),
            _ => self.buffers.try_charge(bytes).map(Some).ok_or(NoMemory::TimedOut),
        }
    }

    /// Converts an answer, which is charged until it is sent. A short one keeps no more memory than
    /// its length.
    pub(crate) fn reply(&self, reply: Vec<u8>) -> Bytes {
        match reply.len() {
            ..=SMALL_REPLY_BYTES => reply.into_boxed_slice().into(),
            _ => self.buffers.charge_vec(reply),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fault: an answer that was cut to an allocation length of 4 bytes kept 4 KiB, which nothing
    /// charged: one host took all memory in 2 s.
    #[test]
    fn a_short_answer_keeps_no_more_than_its_length() {
        let memory = WorkMemory { buffers: BufferPool::default(), wait_max: Duration::ZERO };
        let mut answer = vec![1; 4096];
        answer.truncate(4);
        let kept = memory.reply(answer).try_into_mut().expect("it has one user").capacity();
        assert!(kept < 64, "{kept} bytes are kept");
    }

    /// Goal: connections of one network are one owner, other networks and proven users are others;
    /// owners that are gone leave no entry for long.
    #[test]
    fn owners_are_found_again() {
        let owners = MemoryOwners::new(BufferPool::default());
        let of = |address: &str, user: Option<&str>| {
            let network = PeerNetwork::of(address.parse().unwrap());
            owners.accounts(network, user.map(str::to_owned))
        };
        let one = of("192.0.2.1", None);
        let _held = one.data_in.take(1);
        let bytes = BufferPool::charged_bytes(1) + CONNECTION_BYTES;
        for (address, user, held) in [
            ("192.0.2.1", None, bytes),
            ("192.0.2.1", Some("vm"), 0),
            ("192.0.2.2", None, 0),
            ("::ffff:192.0.2.1", None, bytes),
        ] {
            let owned = of(address, user).data_out.owner_bytes();
            assert_eq!(owned, held + CONNECTION_BYTES, "{address} {user:?}");
        }
        for host in 0..1000 {
            drop(of(&std::net::Ipv4Addr::from_bits(host).to_string(), None));
        }
        assert!(owners.owners.lock().unwrap().by_key.len() <= KNOWN_OWNERS_MIN);
    }

    /// Fault: a connection that held only buffers for WRITEs whose data did not come was not
    /// dropped when unconditional charges left no buffer to others: an initiator elsewhere had BUSY
    /// for 16 s.
    #[test]
    fn connections_holding_data_are_dropped_without_memory() {
        const LIMIT: usize = 64 << 20;
        let owners =
            MemoryOwners::new(BufferPool::with_budget(&lunar_block::MemoryBudget::new(LIMIT)));
        let of = |address: &str| owners.accounts(PeerNetwork::of(address.parse().unwrap()), None);
        let nothing = BufferedBytes::default();
        let (mut holder, mut other, mut idle) = (of("192.0.2.1"), of("192.0.2.2"), of("192.0.2.1"));
        let data: Vec<_> = std::iter::from_fn(|| holder.data_out.try_take(1 << 20)).collect();
        assert_eq!(data.len(), 31);
        let few = other.data_in.try_take(4096);
        let rest = owners.buffers().charge(28 << 20);
        assert!(holder.holds_data() && holder.may_hold(nothing, 0, 0), "requests have some left");
        let more = owners.buffers().charge(2 << 20);
        assert!(!holder.may_hold(nothing, 0, 0));
        assert!(idle.may_hold(nothing, 0, 0), "a connection of the same owner without data");
        assert!(other.may_hold(nothing, 0, 0), "an owner that holds little");
        drop((more, rest));
        assert!(holder.may_hold(nothing, 0, 0));
        drop((data, few));
        assert!(!holder.holds_data());
    }

    /// Fault: a host's sockets to storages, and what they buffered, did not count: hosts that take
    /// no data had 60 MiB more than a limit of 128 MiB.
    #[test]
    fn sockets_of_relays_count() {
        let budget = lunar_block::MemoryBudget::new(64 << 20);
        let owners = MemoryOwners::new(BufferPool::with_budget(&budget));
        let host = owners.accounts(PeerNetwork::of("192.0.2.1".parse().unwrap()), None);
        let before = host.control.owner_bytes();
        let mut socket = RelaySocketMemory::new(&host.control);
        let bytes = BufferedBytes { received: 64 << 10, queued: 100, socket: 3000 };
        assert!(socket.may_hold(bytes));
        assert_eq!(
            host.control.owner_bytes(),
            before + CONNECTION_BYTES + bytes.received + bytes.queued + bytes.socket
        );
        let data: Vec<_> = std::iter::from_fn(|| host.data_out.try_take(1 << 20)).collect();
        let rest = owners.buffers().charge(32 << 20);
        assert!(!socket.may_hold(bytes) && socket.may_hold(BufferedBytes::default()));
        drop((data, rest, socket));
        assert_eq!(host.control.owner_bytes(), before);
    }
}
