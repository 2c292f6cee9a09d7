//! A limit on the memory that peers can make a process use, shared fairly between them.
//!
//! A [`MemoryBudget`] counts every byte that is charged to it, from the allocation to the drop of
//! the last share. Charges belong to an [`Account`]: one kind of memory of one [`MemoryOwner`],
//! such as the read data of a connection. While less than half of the limit is in use, a request
//! costs no more than the count of its account. Above that, memory is scarce: an owner may hold at
//! most as much as is still free (a dynamic threshold, Choudhury and Hahne 1998), so that some
//! memory is always free for owners that hold little. Requests that wait are served in ascending
//! order of the bytes that their owners would then hold.

use crate::buffer::IdleMemory;
use crate::statistics::thread_number;
use bytes::Bytes;
use counts_by_kind::CountsByKind;
use heap_trimmer::UsageDropDetector;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use thread_count::ThreadCount;
use tokio::sync::oneshot;
use wait_queue::{RequestId, WaitQueue};

mod counts_by_kind;
mod heap_trimmer;
mod thread_count;
mod wait_queue;

/// Divisor for the part of the limit that only unconditional charges and small requests may use:
/// 1/16. The charges are small and made by work that must continue when memory is short, such as
/// the answer to a ping.
const RESERVED_PART: usize = 16;

/// Divisor for the part of the limit that small requests leave to unconditional charges: 1/32.
const RESERVED_OF_SMALL_PART: usize = 32;

/// Divisor for the size of small requests: a request is small if its owner then holds at most 1/64
/// of the limit. With many owners the bound is half of an equal share, so that an owner of small
/// requests is not required to give memory back.
const SMALL_PART: usize = 64;

/// Divisor for exhaustion: memory is exhausted when less than 1/8 of the limit is free.
const EXHAUSTED_PART: usize = 8;

/// Divisor for small owners: while owners are few, an owner of less than 1/512 of the limit is not
/// required to give memory back, because its memory would make no difference.
const LITTLE_PART: usize = 512;

/// Divisor of an equal share: owners keep at least half of an equal share. However many owners
/// there are, these parts together are at most half of the limit.
const SHARE_PART: usize = 2;

/// Maximum number of owners that one release moves back in the queue because they hold more than
/// when they were queued.
const GRANT_RENEWALS_MAX: usize = 16;

/// Number of entries of dead accounts that a list may keep before they are removed.
const DEAD_ENTRIES_MAX: usize = 64;

/// A limit on memory, and the memory charged against it. Handles are cheap to clone and share one
/// count.
#[derive(Clone)]
pub struct MemoryBudget {
    shared: Arc<Shared>,
}

struct Shared {
    limit_bytes: usize,
    used_bytes: AtomicUsize,
    /// Set above half of the limit and cleared below three eighths: the hysteresis keeps changes
    /// rare.
    scarce: AtomicBool,
    /// Number of queue entries; a release skips the queue when it is 0.
    waiting: AtomicUsize,
    queue: Mutex<WaitQueue>,
    /// Bytes that accounts hold. They are counted here because accounts are in no list: a reader
    /// that walked such a list would delay each core that adds a connection to it.
    by_kind: CountsByKind,
    pools: Mutex<WeakList<IdleMemory>>,
    /// Bytes of [`MemoryKind::Socket`]. The kernel holds them, not the allocator.
    socket_bytes: AtomicUsize,
    usage_drops: UsageDropDetector,
    /// Number of live owners that [`MemoryBudget::owner`] has created.
    owners: AtomicUsize,
}

/// The use of a piece of memory.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum MemoryKind {
    /// Data from disks to initiators, until the socket has taken it.
    DataIn,
    /// Data from initiators to disks, until the command has ended.
    DataOut,
    /// Data that a command works on: compared, copied, repeated.
    Work,
    /// Text, ping data, parameter lists, and bytes that were received early.
    Control,
    /// Headers and small answers that wait to be sent.
    Outbox,
    /// Socket buffers of the kernel that peers keep full.
    Socket,
    /// Connections, and the state of their commands.
    Session,
    /// Traces of PDUs.
    Trace,
    /// Requests of the HTTP API and their answers.
    Api,
}

impl MemoryKind {
    /// All kinds, in the order of [`MemoryUsage::by_kind`].
    pub const ALL: [Self; 9] = [
        Self::DataIn,
        Self::DataOut,
        Self::Work,
        Self::Control,
        Self::Outbox,
        Self::Socket,
        Self::Session,
        Self::Trace,
        Self::Api,
    ];

    /// Returns the name of the kind in metrics and status.
    pub const fn label(self) -> &'static str {
        match self {
            Self::DataIn => "data_in",
            Self::DataOut => "data_out",
            Self::Work => "work",
            Self::Control => "control",
            Self::Outbox => "outbox",
            Self::Socket => "socket",
            Self::Session => "session",
            Self::Trace => "trace",
            Self::Api => "api",
        }
    }
}

/// A party whose memory counts as one when memory is scarce, such as all connections of one
/// initiator.
#[derive(Debug, Default)]
pub struct MemoryOwner {
    /// Bytes that all accounts of the owner hold: one count, so that a check costs the same for any
    /// number of accounts.
    held_bytes: ThreadCount,
    /// The budget that counts this owner among its owners.
    counted_by: Option<MemoryBudget>,
}

/// Charges of one kind by one owner. The bytes also count in the owner's total.
pub(crate) struct Account {
    budget: MemoryBudget,
    owner: Arc<MemoryOwner>,
    kind: MemoryKind,
    held_bytes: ThreadCount,
    /// The pool of the account's buffers. It is kept here so that a buffer needs only one reference
    /// count.
    pub(crate) idle: Arc<IdleMemory>,
}

/// The counts of a budget.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct MemoryUsage {
    /// The limit.
    pub limit_bytes: usize,
    /// Charged bytes, including idle memory of pools.
    pub used_bytes: usize,
    /// Memory of pools that is not in use at the moment. It is freed when any request needs it.
    pub idle_bytes: usize,
    /// Bytes that accounts hold, in the order of [`MemoryKind::ALL`].
    pub by_kind: [usize; MemoryKind::ALL.len()],
    /// Number of requests that wait for memory.
    pub waiting: usize,
}

impl MemoryUsage {
    /// Returns each kind with the bytes that accounts hold of it.
    pub fn kinds(&self) -> impl Iterator<Item = (MemoryKind, usize)> + '_ {
        MemoryKind::ALL.into_iter().zip(self.by_kind)
    }
}

/// Memory that is reserved but not charged to an account yet; released when dropped.
pub(crate) struct MemoryReservation {
    budget: MemoryBudget,
    bytes: usize,
}

/// Memory that is reserved for a request that waited. It counts as held by the owner from the grant
/// on, even before the request takes it.
struct Grant {
    reservation: MemoryReservation,
    owner: Arc<MemoryOwner>,
}

/// Removes the queue entry of a request when the request is dropped.
struct QueueEntry<'a> {
    budget: &'a MemoryBudget,
    id: RequestId,
}

impl MemoryBudget {
    /// Creates a budget of `limit_bytes`.
    pub fn new(limit_bytes: usize) -> Self {
        let shared = Shared {
            limit_bytes,
            used_bytes: AtomicUsize::new(0),
            scarce: AtomicBool::new(false),
            waiting: AtomicUsize::new(0),
            queue: Mutex::default(),
            by_kind: CountsByKind::default(),
            pools: Mutex::default(),
            socket_bytes: AtomicUsize::new(0),
            usage_drops: UsageDropDetector::new(),
            owners: AtomicUsize::new(0),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Creates a budget that never refuses: for programs whose user chooses the peers.
    pub fn unlimited() -> Self {
        Self::new(usize::MAX)
    }

    /// Returns the limit.
    pub fn limit_bytes(&self) -> usize {
        self.shared.limit_bytes
    }

    /// Returns true when more than half of the limit is in use, and until less than three eighths
    /// are. Memory that is not needed at once should then be given back.
    #[inline]
    pub fn is_scarce(&self) -> bool {
        self.shared.scarce.load(Relaxed)
    }

    /// Creates an owner that counts among the owners that share the limit.
    pub fn owner(&self) -> Arc<MemoryOwner> {
        self.shared.owners.fetch_add(1, Relaxed);
        Arc::new(MemoryOwner { held_bytes: ThreadCount::default(), counted_by: Some(self.clone()) })
    }

    /// Returns true when more than seven eighths of the limit are in use and the owner holds more
    /// than is free and more than a little, or when the budget is overdrawn by the owner. Requests
    /// of one owner alone do not lead to this state; unconditional charges may.
    pub(crate) fn is_exhausted_by(&self, owner: &MemoryOwner) -> bool {
        let limit = self.shared.limit_bytes;
        let free = limit.saturating_sub(self.shared.used_bytes.load(Relaxed));
        free < limit / EXHAUSTED_PART
            && (owner.held_bytes() > free.max((limit / LITTLE_PART).min(self.spared_bytes()))
                || self.is_overdrawn_by(owner))
    }

    /// Returns true when more memory is in use than requests other than small ones may use, and the
    /// owner holds more than half of an equal share.
    pub(crate) fn is_overdrawn_by(&self, owner: &MemoryOwner) -> bool {
        let limit = self.shared.limit_bytes;
        let usable = limit - limit / RESERVED_PART;
        self.shared.used_bytes.load(Relaxed) > usable && owner.held_bytes() > self.spared_bytes()
    }

    /// Bytes that an owner is never required to give back: half of an equal share.
    fn spared_bytes(&self) -> usize {
        self.shared.limit_bytes / SHARE_PART / self.shared.owners.load(Relaxed).max(1)
    }

    /// Updates the state of the budget after memory in use has changed to `used` bytes.
    fn update_state(&self, used: usize) {
        let limit = self.shared.limit_bytes;
        // A charge for a socket may count in one of the sums only for a moment; charges are small.
        let heap_bytes = used.saturating_sub(self.shared.socket_bytes.load(Relaxed));
        self.shared.usage_drops.update(heap_bytes, limit);
        let is_scarce = self.is_scarce();
        if !is_scarce && used > limit / 2 || is_scarce && used < limit / 8 * 3 {
            self.shared.scarce.store(!is_scarce, Relaxed);
        }
    }

    /// Returns the current usage, in a time that does not depend on the number of accounts. Counts
    /// that change at the same time may be missing.
    pub fn usage(&self) -> MemoryUsage {
        MemoryUsage {
            limit_bytes: self.shared.limit_bytes,
            used_bytes: self.shared.used_bytes.load(Relaxed),
            idle_bytes: lock(&self.shared.pools).live().map(|pool| pool.idle_bytes()).sum(),
            by_kind: self.shared.by_kind.read(),
            waiting: self.shared.waiting.load(Relaxed),
        }
    }

    /// Returns true when memory is not scarce and no request waits, so that freed memory may be
    /// kept.
    #[inline]
    pub(crate) fn may_keep_idle_memory(&self) -> bool {
        !self.is_scarce() && self.shared.waiting.load(Relaxed) == 0
    }

    pub(crate) fn add_pool(&self, pool: &Arc<IdleMemory>) {
        lock(&self.shared.pools).add(pool);
    }

    /// Reserves `bytes` for an owner, unless memory is scarce and the owner holds its share
    /// already.
    #[inline]
    pub(crate) fn try_reserve(
        &self,
        owner: &MemoryOwner,
        bytes: usize,
    ) -> Option<MemoryReservation> {
        if self.add_up_to(bytes, self.shared.limit_bytes / 2) {
            return Some(self.reservation(bytes));
        }
        self.reserve_scarce(owner, bytes)
    }

    #[cold]
    fn reserve_scarce(&self, owner: &MemoryOwner, bytes: usize) -> Option<MemoryReservation> {
        self.free_idle();
        let held_bytes = owner.held_bytes();
        // Waiting requests that need no more than this one come first.
        let is_next = self.shared.waiting.load(SeqCst) == 0
            || lock(&self.shared.queue)
                .least_needed()
                .is_none_or(|least| held_bytes.saturating_add(bytes) < least);
        is_next.then(|| self.reserve_share(held_bytes, bytes)).flatten()
    }

    /// Reserves `bytes` if the owner then holds no more than was free before. The sum of held and
    /// requested bytes decides: when one request is refused, each request that needs more is
    /// refused as well.
    fn reserve_share(&self, held_bytes: usize, bytes: usize) -> Option<MemoryReservation> {
        let limit = self.shared.limit_bytes;
        let needed = held_bytes.saturating_add(bytes);
        let is_small = needed <= (limit / SMALL_PART).min(self.spared_bytes());
        let usable = limit - limit / if is_small { RESERVED_OF_SMALL_PART } else { RESERVED_PART };
        let free = usable.saturating_sub(self.shared.used_bytes.load(SeqCst));
        let fits = needed <= free;
        (fits && self.add_up_to(bytes, usable)).then(|| self.reservation(bytes))
    }

    /// Reserves `bytes` however much memory is in use: for amounts that are bounded by other means.
    pub(crate) fn reserve(&self, bytes: usize) -> MemoryReservation {
        let before = self.shared.used_bytes.fetch_add(bytes, SeqCst);
        self.update_state(before.saturating_add(bytes));
        self.reservation(bytes)
    }

    /// Waits until `bytes` can be reserved. Dropping the future cancels the request.
    pub(crate) async fn reserve_when_free(
        &self,
        owner: &Arc<MemoryOwner>,
        bytes: usize,
    ) -> MemoryReservation {
        let (grant, granted) = oneshot::channel();
        self.shared.waiting.fetch_add(1, SeqCst);
        let id = lock(&self.shared.queue).push(owner, bytes, grant);
        let entry = QueueEntry { budget: self, id };
        // A release before the entry was queued granted it nothing.
        self.grant_waiting();
        let grant = granted.await;
        drop(entry);
        // The sender is dropped only after its grant was sent.
        grant.map_or_else(|_| self.reserve(bytes), Grant::into_reservation)
    }

    fn reservation(&self, bytes: usize) -> MemoryReservation {
        MemoryReservation { budget: self.clone(), bytes }
    }

    fn add_up_to(&self, bytes: usize, limit_bytes: usize) -> bool {
        let add = |used: usize| used.checked_add(bytes).filter(|sum| *sum <= limit_bytes);
        match self.shared.used_bytes.fetch_update(SeqCst, Relaxed, add) {
            Ok(before) => {
                self.update_state(before + bytes);
                true
            }
            Err(_) => false,
        }
    }

    fn subtract(&self, bytes: usize) {
        let before = self.shared.used_bytes.fetch_sub(bytes, SeqCst);
        self.update_state(before.saturating_sub(bytes));
    }

    pub(crate) fn release(&self, bytes: usize) {
        self.subtract(bytes);
        if self.shared.waiting.load(SeqCst) > 0 {
            self.grant_waiting();
        }
    }

    /// Frees the idle memory of all pools.
    fn free_idle(&self) {
        let pools: Vec<_> = lock(&self.shared.pools).live().collect();
        for pool in pools {
            let bytes = pool.free_all();
            self.subtract(bytes);
        }
    }

    /// Grants memory to waiting requests, as far as memory is free.
    #[cold]
    fn grant_waiting(&self) {
        self.free_idle();
        let mut queue = lock(&self.shared.queue);
        queue.renew_some();
        for _ in 0..=GRANT_RENEWALS_MAX {
            while let Some(first) = queue.first()
                && let Some(reserved) = self.reserve_share(first.owner.held_bytes(), first.bytes)
            {
                let grant = Grant::new(reserved, first.owner);
                self.shared.waiting.fetch_sub(1, SeqCst);
                let sender = queue.pop_first();
                // The request was cancelled: the reservation goes to the next one.
                if let Some(Err(mut unused)) = sender.map(|sender| sender.send(grant)) {
                    let bytes = unused.take();
                    self.subtract(bytes);
                }
            }
            // All other requests need more than the refused one, unless its owner holds more by
            // now.
            if !queue.renew_first() {
                break;
            }
        }
    }
}

impl Drop for QueueEntry<'_> {
    fn drop(&mut self) {
        let removed = lock(&self.budget.shared.queue).remove(self.id);
        if removed {
            self.budget.shared.waiting.fetch_sub(1, SeqCst);
        }
    }
}

impl Grant {
    fn new(reservation: MemoryReservation, owner: &Arc<MemoryOwner>) -> Self {
        owner.held_bytes.add(reservation.bytes);
        Self { reservation, owner: Arc::clone(owner) }
    }

    fn into_reservation(mut self) -> MemoryReservation {
        let bytes = self.take();
        self.reservation.budget.reservation(bytes)
    }

    fn take(&mut self) -> usize {
        let bytes = std::mem::take(&mut self.reservation.bytes);
        self.owner.held_bytes.subtract(bytes);
        bytes
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        // The drop of the reservation returns the bytes to the budget next.
        self.owner.held_bytes.subtract(self.reservation.bytes);
    }
}

impl MemoryReservation {
    /// Returns the bytes, which the caller counts from now on; [`MemoryBudget::release`] releases
    /// them.
    pub(crate) fn into_bytes(mut self) -> usize {
        std::mem::take(&mut self.bytes)
    }
}

impl Drop for MemoryReservation {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.budget.release(self.bytes);
        }
    }
}

impl MemoryOwner {
    /// Returns the bytes that the accounts of the owner hold.
    pub fn held_bytes(&self) -> usize {
        self.held_bytes.get()
    }
}

impl Drop for MemoryOwner {
    fn drop(&mut self) {
        if let Some(budget) = &self.counted_by {
            budget.shared.owners.fetch_sub(1, Relaxed);
        }
    }
}

impl Account {
    /// Creates an empty account of `owner`.
    pub(crate) fn new(
        budget: &MemoryBudget,
        idle: &Arc<IdleMemory>,
        owner: &Arc<MemoryOwner>,
        kind: MemoryKind,
    ) -> Arc<Self> {
        Arc::new(Self {
            budget: budget.clone(),
            owner: Arc::clone(owner),
            kind,
            held_bytes: ThreadCount::default(),
            idle: Arc::clone(idle),
        })
    }

    pub(crate) fn budget(&self) -> &MemoryBudget {
        &self.budget
    }

    pub(crate) fn owner(&self) -> &Arc<MemoryOwner> {
        &self.owner
    }

    pub(crate) fn held_bytes(&self) -> usize {
        self.held_bytes.get()
    }

    #[inline]
    pub(crate) fn add(&self, bytes: usize) {
        let thread = thread_number();
        self.held_bytes.add_by(thread, bytes);
        self.owner.held_bytes.add_by(thread, bytes);
        self.budget.shared.by_kind.add_by(thread, self.kind, bytes);
        if self.kind == MemoryKind::Socket {
            self.budget.shared.socket_bytes.fetch_add(bytes, Relaxed);
        }
    }

    #[inline]
    pub(crate) fn subtract(&self, bytes: usize) {
        self.add(bytes.wrapping_neg());
    }
}

/// A charge for memory that lies outside the pool; it ends when dropped.
#[derive(Debug)]
pub struct MemoryCharge {
    account: Arc<Account>,
    bytes: usize,
}

impl MemoryCharge {
    pub(crate) fn new(account: &Arc<Account>, reservation: MemoryReservation) -> Self {
        let bytes = reservation.into_bytes();
        account.add(bytes);
        Self { account: Arc::clone(account), bytes }
    }

    /// Creates another charge to the same account, of 0 bytes.
    pub fn sibling(&self) -> Self {
        Self { account: Arc::clone(&self.account), bytes: 0 }
    }

    /// Attaches the charge to `bytes`: it ends when their last share is dropped.
    pub fn attach(self, bytes: impl AsRef<[u8]> + Send + 'static) -> Bytes {
        Bytes::from_owner(Charged { bytes, _charge: self })
    }

    /// Returns the charged bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns true when memory is exhausted and the owner of the charge holds more than is free,
    /// see [`BufferPool::must_release_memory`](crate::BufferPool::must_release_memory).
    pub fn must_release_memory(&self) -> bool {
        self.account.budget.is_exhausted_by(&self.account.owner)
    }

    /// Changes the charge to `bytes`, however much memory is in use.
    #[inline]
    pub fn set(&mut self, bytes: usize) {
        if bytes != self.bytes {
            self.change(bytes);
        }
    }

    fn change(&mut self, bytes: usize) {
        if bytes > self.bytes {
            let more = self.account.budget.reserve(bytes - self.bytes).into_bytes();
            self.account.add(more);
        } else {
            self.account.subtract(self.bytes - bytes);
            self.account.budget.release(self.bytes - bytes);
        }
        self.bytes = bytes;
    }
}

/// Bytes with their charge.
struct Charged<B> {
    bytes: B,
    _charge: MemoryCharge,
}

impl<B: AsRef<[u8]>> AsRef<[u8]> for Charged<B> {
    fn as_ref(&self) -> &[u8] {
        self.bytes.as_ref()
    }
}

impl Drop for MemoryCharge {
    fn drop(&mut self) {
        self.set(0);
    }
}

/// Weak references to values; entries of dropped values are removed from time to time.
#[derive(Debug)]
struct WeakList<T> {
    entries: Vec<Weak<T>>,
    live_at_most: usize,
}

impl<T> Default for WeakList<T> {
    fn default() -> Self {
        Self { entries: Vec::new(), live_at_most: 0 }
    }
}

impl<T> WeakList<T> {
    fn add(&mut self, value: &Arc<T>) {
        if self.entries.len() >= 2 * self.live_at_most + DEAD_ENTRIES_MAX {
            self.entries.retain(|entry| entry.strong_count() > 0);
            self.live_at_most = self.entries.len();
        }
        self.entries.push(Arc::downgrade(value));
    }

    fn live(&self) -> impl Iterator<Item = Arc<T>> {
        self.entries.iter().filter_map(Weak::upgrade)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Debug for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Account({}: {} bytes)", self.kind.label(), self.held_bytes())
    }
}

impl fmt::Debug for MemoryBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let used_bytes = self.shared.used_bytes.load(Relaxed);
        f.debug_struct("MemoryBudget")
            .field("limit_bytes", &self.shared.limit_bytes)
            .field("used_bytes", &used_bytes)
            .finish()
    }
}

#[cfg(test)]
mod tests;
