//! Memory that peers can cause: one limit for a process, shared out among those who cause it.
//!
//! A [`MemoryBudget`] counts every byte that is charged to it, from the allocation to the drop of
//! the last share. Charges belong to an [`Account`]: one kind of memory of one [`MemoryOwner`],
//! such as the read data of a connection. While less than half of the limit is in use, a request
//! costs no more than the count of its account. Above that memory is scarce: an owner may hold at
//! most as much as is still free (a dynamic threshold, Choudhury and Hahne 1998), so that some is
//! always free for those that hold little, and requests that wait are served in the order of what
//! their owners would hold with them, least first.

use crate::buffer::IdleMemory;
use bytes::Bytes;
use heap_trimmer::FallWatch;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use tokio::sync::oneshot;
use wait_queue::{RequestId, WaitQueue};

mod heap_trimmer;
mod wait_queue;

/// The part of the limit that only unconditional charges and small requests may use: 1/16. The
/// charges are small and made by what has to go on when memory is short, such as the answer to a
/// ping.
const RESERVED_PART: usize = 16;

/// The part of the limit that small requests leave to unconditional charges: 1/32.
const RESERVED_OF_SMALL_PART: usize = 32;

/// A request is small if its owner then holds no more than this part of the limit: 1/64. Where
/// owners are many, it is half of an equal share, so that such an owner is not asked to give back.
const SMALL_PART: usize = 64;

/// Memory is exhausted when less than this part of the limit is free: 1/8.
const EXHAUSTED_PART: usize = 8;

/// An owner of less than this part of the limit is not asked to give back as long as owners are
/// few: 1/512. Where others have taken all, what it holds would make no difference.
const LITTLE_PART: usize = 512;

/// Owners are not asked to give back what is less than an equal share divided by this: however many
/// they are, that is half of the limit at most.
const SHARE_PART: usize = 2;

/// Owners that one release puts back because they hold more than when they were put there, at most.
const GRANT_RENEWALS_MAX: usize = 16;

/// Entries of dead accounts that a list may keep before they are removed.
const DEAD_ENTRIES_MAX: usize = 64;

/// A limit on memory, and what is charged against it. Handles are cheap to clone and share one
/// count.
#[derive(Clone)]
pub struct MemoryBudget {
    shared: Arc<Shared>,
}

struct Shared {
    limit_bytes: usize,
    used_bytes: AtomicUsize,
    /// Set above half of the limit, cleared below three eighths: those who follow it change their
    /// ways seldom.
    scarce: AtomicBool,
    /// Entries of the queue: while there are none, a release looks no further.
    waiting: AtomicUsize,
    queue: Mutex<WaitQueue>,
    accounts: Mutex<WeakList<Account>>,
    pools: Mutex<WeakList<IdleMemory>>,
    falls: FallWatch,
    /// Owners that [`MemoryBudget::owner`] has made and that live.
    owners: AtomicUsize,
}

/// What memory is used for.
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
    /// Connections, and what is known of their commands.
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

    /// Its name in metrics and status.
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

/// Who is judged as one when memory is scarce, such as all connections of one initiator.
#[derive(Debug, Default)]
pub struct MemoryOwner {
    /// What its accounts hold, so that judging it costs the same however many it has.
    held_bytes: AtomicUsize,
    /// The budget that counts it among its owners.
    counted_by: Option<MemoryBudget>,
}

/// Charges of one kind by one owner, whose count has them too.
pub(crate) struct Account {
    budget: MemoryBudget,
    owner: Arc<MemoryOwner>,
    kind: MemoryKind,
    held_bytes: AtomicUsize,
    /// The pool that its buffers come from: here, so that a buffer has one share to count.
    pub(crate) idle: Arc<IdleMemory>,
}

/// What a budget counts.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct MemoryUsage {
    /// The limit.
    pub limit_bytes: usize,
    /// All that is charged, idle memory of pools included.
    pub used_bytes: usize,
    /// Memory of pools that nobody uses at the moment. It gives way to any request.
    pub idle_bytes: usize,
    /// What accounts hold, in the order of [`MemoryKind::ALL`].
    pub by_kind: [usize; MemoryKind::ALL.len()],
    /// Requests that wait for memory.
    pub waiting: usize,
}

impl MemoryUsage {
    /// Each kind with what accounts hold of it.
    pub fn kinds(&self) -> impl Iterator<Item = (MemoryKind, usize)> + '_ {
        MemoryKind::ALL.into_iter().zip(self.by_kind)
    }
}

/// Memory that was reserved and is not charged to an account yet; given back when dropped.
pub(crate) struct Reservation {
    budget: MemoryBudget,
    bytes: usize,
}

/// Memory that was reserved for a request that waited: its owner holds it from the grant on,
/// however late the request takes it.
struct Grant {
    reservation: Reservation,
    owner: Arc<MemoryOwner>,
}

/// Removes the entry of a request that is given up.
struct QueueEntry<'a> {
    budget: &'a MemoryBudget,
    id: RequestId,
}

impl MemoryBudget {
    /// A budget of `limit_bytes`.
    pub fn new(limit_bytes: usize) -> Self {
        let shared = Shared {
            limit_bytes,
            used_bytes: AtomicUsize::new(0),
            scarce: AtomicBool::new(false),
            waiting: AtomicUsize::new(0),
            queue: Mutex::default(),
            accounts: Mutex::default(),
            pools: Mutex::default(),
            falls: FallWatch::new(),
            owners: AtomicUsize::new(0),
        };
        Self { shared: Arc::new(shared) }
    }

    /// A budget that never refuses: for programs whose peers are chosen by their user.
    pub fn unlimited() -> Self {
        Self::new(usize::MAX)
    }

    /// The limit.
    pub fn limit_bytes(&self) -> usize {
        self.shared.limit_bytes
    }

    /// More than half of the limit is in use, or was and not much less is: what is not needed at
    /// once should be given back.
    #[inline]
    pub fn is_scarce(&self) -> bool {
        self.shared.scarce.load(Relaxed)
    }

    /// An owner that is counted among those who share the limit.
    pub fn owner(&self) -> Arc<MemoryOwner> {
        self.shared.owners.fetch_add(1, Relaxed);
        Arc::new(MemoryOwner { held_bytes: AtomicUsize::new(0), counted_by: Some(self.clone()) })
    }

    /// Seven eighths of the limit are in use, and the owner holds more than is free, and more than
    /// little; or requests have no memory left and the owner holds much for one of so many.
    /// Requests of one owner alone do not come to that; unconditional charges may.
    pub(crate) fn is_exhausted_by(&self, owner: &MemoryOwner) -> bool {
        let limit = self.shared.limit_bytes;
        let free = limit.saturating_sub(self.shared.used_bytes.load(Relaxed));
        free < limit / EXHAUSTED_PART
            && (owner.held_bytes() > free.max((limit / LITTLE_PART).min(self.spared_bytes()))
                || self.is_overdrawn_by(owner))
    }

    /// More is in use than requests may use that are not small, and the owner holds more than half
    /// of an equal share.
    pub(crate) fn is_overdrawn_by(&self, owner: &MemoryOwner) -> bool {
        let limit = self.shared.limit_bytes;
        let usable = limit - limit / RESERVED_PART;
        self.shared.used_bytes.load(Relaxed) > usable && owner.held_bytes() > self.spared_bytes()
    }

    /// Bytes that an owner is never asked to give back, however many owners there are.
    fn spared_bytes(&self) -> usize {
        self.shared.limit_bytes / SHARE_PART / self.shared.owners.load(Relaxed).max(1)
    }

    /// Memory in use has become `used` bytes.
    fn judge(&self, used: usize) {
        let limit = self.shared.limit_bytes;
        self.shared.falls.note(used, limit);
        let is_scarce = self.is_scarce();
        if !is_scarce && used > limit / 2 || is_scarce && used < limit / 8 * 3 {
            self.shared.scarce.store(!is_scarce, Relaxed);
        }
    }

    /// What is used at the moment. Counts that change meanwhile may be missing.
    pub fn usage(&self) -> MemoryUsage {
        let mut by_kind = [0; MemoryKind::ALL.len()];
        for account in lock(&self.shared.accounts).live() {
            by_kind[account.kind as usize] += account.held_bytes();
        }
        MemoryUsage {
            limit_bytes: self.shared.limit_bytes,
            used_bytes: self.shared.used_bytes.load(Relaxed),
            idle_bytes: lock(&self.shared.pools).live().map(|pool| pool.idle_bytes()).sum(),
            by_kind,
            waiting: self.shared.waiting.load(Relaxed),
        }
    }

    /// Memory is not scarce and no request waits: what is given back may be kept for later.
    #[inline]
    pub(crate) fn is_relaxed(&self) -> bool {
        !self.is_scarce() && self.shared.waiting.load(Relaxed) == 0
    }

    pub(crate) fn add_pool(&self, pool: &Arc<IdleMemory>) {
        lock(&self.shared.pools).add(pool);
    }

    /// Reserves `bytes` for an owner, unless memory is scarce and the owner holds its share.
    #[inline]
    pub(crate) fn try_reserve(&self, owner: &MemoryOwner, bytes: usize) -> Option<Reservation> {
        if self.add_up_to(bytes, self.shared.limit_bytes / 2) {
            return Some(self.reservation(bytes));
        }
        self.reserve_scarce(owner, bytes)
    }

    #[cold]
    fn reserve_scarce(&self, owner: &MemoryOwner, bytes: usize) -> Option<Reservation> {
        self.shed_idle();
        let held_bytes = owner.held_bytes();
        // Requests that wait and need no more come first.
        let is_next = self.shared.waiting.load(SeqCst) == 0
            || lock(&self.shared.queue)
                .least_needed()
                .is_none_or(|least| held_bytes.saturating_add(bytes) < least);
        is_next.then(|| self.reserve_share(held_bytes, bytes)).flatten()
    }

    /// Reserves `bytes` if the owner then holds no more than what was free before. The sum of both
    /// decides: where one request is refused, each that needs more is refused as well.
    fn reserve_share(&self, held_bytes: usize, bytes: usize) -> Option<Reservation> {
        let limit = self.shared.limit_bytes;
        let needed = held_bytes.saturating_add(bytes);
        let is_small = needed <= (limit / SMALL_PART).min(self.spared_bytes());
        let usable = limit - limit / if is_small { RESERVED_OF_SMALL_PART } else { RESERVED_PART };
        let free = usable.saturating_sub(self.shared.used_bytes.load(SeqCst));
        let fits = needed <= free;
        (fits && self.add_up_to(bytes, usable)).then(|| self.reservation(bytes))
    }

    /// Reserves `bytes` whatever is in use: for what is bounded by other means.
    pub(crate) fn reserve(&self, bytes: usize) -> Reservation {
        let before = self.shared.used_bytes.fetch_add(bytes, SeqCst);
        self.judge(before.saturating_add(bytes));
        self.reservation(bytes)
    }

    /// Waits until `bytes` can be reserved. Dropped, it is given up.
    pub(crate) async fn reserve_when_free(
        &self,
        owner: &Arc<MemoryOwner>,
        bytes: usize,
    ) -> Reservation {
        let (grant, granted) = oneshot::channel();
        self.shared.waiting.fetch_add(1, SeqCst);
        let id = lock(&self.shared.queue).push(owner, bytes, grant);
        let entry = QueueEntry { budget: self, id };
        // A release before the entry was there granted it nothing.
        self.grant_waiting();
        let grant = granted.await;
        drop(entry);
        // The sender is dropped by its grant only.
        grant.map_or_else(|_| self.reserve(bytes), Grant::into_reservation)
    }

    fn reservation(&self, bytes: usize) -> Reservation {
        Reservation { budget: self.clone(), bytes }
    }

    fn add_up_to(&self, bytes: usize, most: usize) -> bool {
        let add = |used: usize| used.checked_add(bytes).filter(|sum| *sum <= most);
        match self.shared.used_bytes.fetch_update(SeqCst, Relaxed, add) {
            Ok(before) => {
                self.judge(before + bytes);
                true
            }
            Err(_) => false,
        }
    }

    fn subtract(&self, bytes: usize) {
        let before = self.shared.used_bytes.fetch_sub(bytes, SeqCst);
        self.judge(before.saturating_sub(bytes));
    }

    pub(crate) fn release(&self, bytes: usize) {
        self.subtract(bytes);
        if self.shared.waiting.load(SeqCst) > 0 {
            self.grant_waiting();
        }
    }

    /// Frees the idle memory of all pools.
    fn shed_idle(&self) {
        let pools: Vec<_> = lock(&self.shared.pools).live().collect();
        for pool in pools {
            let bytes = pool.shed();
            self.subtract(bytes);
        }
    }

    /// Gives memory to those that wait, as far as there is some.
    #[cold]
    fn grant_waiting(&self) {
        self.shed_idle();
        let mut queue = lock(&self.shared.queue);
        queue.renew_some();
        for _ in 0..=GRANT_RENEWALS_MAX {
            while let Some(first) = queue.first()
                && let Some(reserved) = self.reserve_share(first.owner.held_bytes(), first.bytes)
            {
                let grant = Grant::new(reserved, first.owner);
                self.shared.waiting.fetch_sub(1, SeqCst);
                let sender = queue.pop_first();
                // The request was given up: the reservation is for the next one.
                if let Some(Err(mut unused)) = sender.map(|sender| sender.send(grant)) {
                    let bytes = unused.take();
                    self.subtract(bytes);
                }
            }
            // All others need more than what is refused, unless its owner has got more meanwhile.
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
    fn new(reservation: Reservation, owner: &Arc<MemoryOwner>) -> Self {
        owner.held_bytes.fetch_add(reservation.bytes, Relaxed);
        Self { reservation, owner: Arc::clone(owner) }
    }

    fn into_reservation(mut self) -> Reservation {
        let bytes = self.take();
        self.reservation.budget.reservation(bytes)
    }

    fn take(&mut self) -> usize {
        let bytes = std::mem::take(&mut self.reservation.bytes);
        self.owner.held_bytes.fetch_sub(bytes, Relaxed);
        bytes
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        // The reservation gives it back next.
        self.owner.held_bytes.fetch_sub(self.reservation.bytes, Relaxed);
    }
}

impl Reservation {
    /// The bytes are counted elsewhere from now on: [`MemoryBudget::release`] gives them back.
    pub(crate) fn into_bytes(mut self) -> usize {
        std::mem::take(&mut self.bytes)
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.budget.release(self.bytes);
        }
    }
}

impl MemoryOwner {
    /// What its accounts hold.
    pub fn held_bytes(&self) -> usize {
        self.held_bytes.load(Relaxed)
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
    /// An account of `owner`, with nothing in it.
    pub(crate) fn new(
        budget: &MemoryBudget,
        idle: &Arc<IdleMemory>,
        owner: &Arc<MemoryOwner>,
        kind: MemoryKind,
    ) -> Arc<Self> {
        let account = Arc::new(Self {
            budget: budget.clone(),
            owner: Arc::clone(owner),
            kind,
            held_bytes: AtomicUsize::new(0),
            idle: Arc::clone(idle),
        });
        lock(&account.budget.shared.accounts).add(&account);
        account
    }

    pub(crate) fn budget(&self) -> &MemoryBudget {
        &self.budget
    }

    pub(crate) fn owner(&self) -> &Arc<MemoryOwner> {
        &self.owner
    }

    pub(crate) fn held_bytes(&self) -> usize {
        self.held_bytes.load(Relaxed)
    }

    #[inline]
    pub(crate) fn add(&self, bytes: usize) {
        self.held_bytes.fetch_add(bytes, Relaxed);
        self.owner.held_bytes.fetch_add(bytes, Relaxed);
    }

    #[inline]
    pub(crate) fn subtract(&self, bytes: usize) {
        self.held_bytes.fetch_sub(bytes, Relaxed);
        self.owner.held_bytes.fetch_sub(bytes, Relaxed);
    }
}

/// A charge for memory that lies elsewhere: it ends when dropped.
#[derive(Debug)]
pub struct MemoryCharge {
    account: Arc<Account>,
    bytes: usize,
}

impl MemoryCharge {
    pub(crate) fn new(account: &Arc<Account>, reservation: Reservation) -> Self {
        let bytes = reservation.into_bytes();
        account.add(bytes);
        Self { account: Arc::clone(account), bytes }
    }

    /// Another charge to the same account, of nothing yet.
    pub fn sibling(&self) -> Self {
        Self { account: Arc::clone(&self.account), bytes: 0 }
    }

    /// The bytes that it is for: it ends with their last share.
    pub fn attach(self, bytes: impl AsRef<[u8]> + Send + 'static) -> Bytes {
        Bytes::from_owner(Charged { bytes, _charge: self })
    }

    /// How much is charged.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Charges `bytes` from now on, whatever else is in use.
    pub fn set(&mut self, bytes: usize) {
        if bytes > self.bytes {
            let more = self.account.budget.reserve(bytes - self.bytes).into_bytes();
            self.account.add(more);
        } else if bytes < self.bytes {
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

/// Values that live elsewhere; entries of those that are gone are removed now and then.
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
