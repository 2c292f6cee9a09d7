//! Owned, page-aligned, pooled buffers, charged to a memory budget.

use crate::budget::{
    Account, MemoryBudget, MemoryCharge, MemoryKind, MemoryOwner, MemoryReservation,
};
use crate::statistics::thread_number;
use bytes::Bytes;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Alignment of the first byte of every buffer.
pub const PAGE_BYTES: usize = 4096;

/// Size of the largest buffer that is kept for reuse; longer ones are allocated and freed.
pub const POOLED_BUFFER_BYTES_MAX: usize = 16 << 20;

/// Memory that a default pool allocates for pooled buffers, in use and idle together.
pub const POOL_LIMIT_BYTES: usize = 256 << 20;

/// Divisor of the budget: a pool allocates at most a quarter of it for pooled buffers.
const BUDGET_DIVISOR: usize = 4;

/// Number of size classes: the powers of two from `PAGE_BYTES` to `POOLED_BUFFER_BYTES_MAX`.
const CLASSES: usize =
    (POOLED_BUFFER_BYTES_MAX.trailing_zeros() - PAGE_BYTES.trailing_zeros()) as usize + 1;

/// Number of free lists; several lists avoid contention between cores.
const FREE_LISTS: usize = 16;

/// A pool of page-aligned buffers, in size classes of powers of two.
///
/// A handle draws on one account of a [`MemoryBudget`]. Its buffers are charged to that account
/// from the time they are taken until their last share is dropped. [`account`](Self::account)
/// creates handles of other accounts, which share the memory. Handles are cheap to clone and can be
/// used from any thread.
///
/// Newly mapped memory costs a page fault per page, so a large transfer into a fresh allocation
/// takes several times as long as one into a reused buffer.
#[derive(Clone)]
pub struct BufferPool {
    account: Arc<Account>,
}

/// The idle memory of a pool, and its counts of memory in use.
pub(crate) struct IdleMemory {
    /// Free lists. A thread uses the list given by its thread number, so two threads may share
    /// one.
    lists: [FreeList; FREE_LISTS],
    /// False when all free lists are empty.
    has_idle: AtomicBool,
    pooled_bytes_max: usize,
    /// Memory of pooled buffers, in use and idle.
    pooled_bytes: AtomicUsize,
    /// Memory of buffers that are freed after use.
    single_use_bytes: AtomicUsize,
    over_limit: AtomicUsize,
}

/// Idle memory by class, for the threads that use this list; other threads take from it before they
/// allocate.
type FreeList = [Mutex<Vec<Memory>>; CLASSES];

/// A buffer that a disk or a socket fills: owned, page-aligned, returned to its pool when dropped.
pub struct Buffer {
    memory: Memory,
    len: usize,
    kind: BufferKind,
    account: Arc<Account>,
}

/// Selects how the memory of a buffer is released when the buffer is dropped.
#[derive(Clone, Copy)]
enum BufferKind {
    /// The memory returns to this free list, in this class.
    Pooled { list: u8, class: u8 },
    /// The memory is freed.
    SingleUse,
}

impl BufferPool {
    /// Creates a pool that allocates at most `pooled_bytes_max` for pooled buffers, with an
    /// unlimited budget: for clients, which connect only to peers chosen by their users.
    pub fn new(pooled_bytes_max: usize) -> Self {
        Self::of(&MemoryBudget::unlimited(), pooled_bytes_max)
    }

    /// Creates a pool whose memory, idle memory included, is charged to `budget`. Its pooled
    /// buffers take at most a quarter of the limit.
    pub fn with_budget(budget: &MemoryBudget) -> Self {
        Self::of(budget, (budget.limit_bytes() / BUDGET_DIVISOR).min(POOL_LIMIT_BYTES))
    }

    fn of(budget: &MemoryBudget, pooled_bytes_max: usize) -> Self {
        let idle = Arc::new(IdleMemory {
            lists: std::array::from_fn(|_| [const { Mutex::new(Vec::new()) }; CLASSES]),
            has_idle: AtomicBool::new(false),
            pooled_bytes_max,
            pooled_bytes: AtomicUsize::new(0),
            single_use_bytes: AtomicUsize::new(0),
            over_limit: AtomicUsize::new(0),
        });
        budget.add_pool(&idle);
        Self { account: Account::new(budget, &idle, &Arc::default(), MemoryKind::Work) }
    }

    /// Returns a handle to the same memory that draws on an account of its own.
    pub fn account(&self, owner: &Arc<MemoryOwner>, kind: MemoryKind) -> Self {
        Self { account: Account::new(self.budget(), &self.account.idle, owner, kind) }
    }

    /// Returns a handle to the same memory that draws on another account of the same owner.
    pub fn sibling(&self, kind: MemoryKind) -> Self {
        self.account(self.account.owner(), kind)
    }

    /// Returns the budget to which the memory is charged.
    pub fn budget(&self) -> &MemoryBudget {
        self.account.budget()
    }

    /// Returns the bytes charged to the account of this handle.
    #[inline]
    pub fn held_bytes(&self) -> usize {
        self.account.held_bytes()
    }

    /// Returns the owner of the account of this handle.
    pub fn owner(&self) -> &Arc<MemoryOwner> {
        self.account.owner()
    }

    /// Returns the bytes charged to all accounts of the owner.
    pub fn owner_bytes(&self) -> usize {
        self.account.owner().held_bytes()
    }

    /// Returns true when memory is exhausted and the owner of this account holds more than is free.
    /// The owner must then give back all memory that it can do without.
    pub fn must_release_memory(&self) -> bool {
        self.budget().is_exhausted_by(self.account.owner())
    }

    /// Returns true when requests have used up their part of the memory and the owner of this
    /// account holds more than half of an equal share. The owner must then give back data of its
    /// commands as well.
    pub fn must_release_data(&self) -> bool {
        self.budget().is_overdrawn_by(self.account.owner())
    }

    /// Returns the bytes that are charged for a buffer of `len` bytes.
    #[inline]
    pub fn charged_bytes(len: usize) -> usize {
        let bytes = class_of(len).map(|class| PAGE_BYTES << class);
        bytes.unwrap_or_else(|| len.saturating_add(PAGE_BYTES)).saturating_add(PAGE_BYTES)
    }

    /// Takes a buffer of exactly `len` bytes, even beyond the budget: for amounts that are bounded
    /// by other means. The buffer may hold data of its last user: fill all of it before it is
    /// shared, or use [`take_zeroed`](Self::take_zeroed).
    ///
    /// Beyond the limit of the pool the buffer is allocated for one use, and is counted by
    /// [`over_limit`](Self::over_limit).
    pub fn take(&self, len: usize) -> Buffer {
        self.take_idle(len)
            .unwrap_or_else(|| self.allocate(len, self.budget().reserve(Self::charged_bytes(len))))
    }

    /// Takes a buffer of exactly `len` zero bytes, however much memory is in use.
    pub fn take_zeroed(&self, len: usize) -> Buffer {
        let mut buffer = self.take(len);
        buffer.fill(0);
        buffer
    }

    /// Takes a buffer of exactly `len` bytes, as [`take`](Self::take) does; `None` if the budget
    /// has no room for this owner.
    #[inline]
    pub fn try_take(&self, len: usize) -> Option<Buffer> {
        if let Some(buffer) = self.take_idle(len) {
            return Some(buffer);
        }
        let reserved = self.budget().try_reserve(self.account.owner(), Self::charged_bytes(len))?;
        Some(self.allocate(len, reserved))
    }

    /// Takes a buffer of exactly `len` bytes as soon as the budget has room for this owner.
    /// Dropping the future cancels the request.
    pub async fn take_when_free(&self, len: usize) -> Buffer {
        if let Some(buffer) = self.try_take(len) {
            return buffer;
        }
        let bytes = Self::charged_bytes(len);
        let reserved = self.budget().reserve_when_free(self.account.owner(), bytes).await;
        self.allocate(len, reserved)
    }

    /// Charges memory that lies outside the pool, however much memory is in use.
    pub fn charge(&self, bytes: usize) -> MemoryCharge {
        MemoryCharge::new(&self.account, self.budget().reserve(bytes))
    }

    /// Charges memory that lies outside the pool, unless the budget has no room for this owner.
    pub fn try_charge(&self, bytes: usize) -> Option<MemoryCharge> {
        let reserved = self.budget().try_reserve(self.account.owner(), bytes)?;
        Some(MemoryCharge::new(&self.account, reserved))
    }

    /// Charges memory that lies outside the pool, as soon as the budget has room for this owner.
    /// Dropping the future cancels the request.
    pub async fn charge_when_free(&self, bytes: usize) -> MemoryCharge {
        let reserved = self.budget().reserve_when_free(self.account.owner(), bytes).await;
        MemoryCharge::new(&self.account, reserved)
    }

    /// Charges `bytes` until its last share is dropped, however much memory is in use.
    pub fn charge_vec(&self, bytes: Vec<u8>) -> Bytes {
        self.charge(bytes.capacity()).attach(bytes)
    }

    /// Returns the memory of all buffers in use, of all accounts, pooled or not. Each buffer counts
    /// with its class and the page that aligns it. A result of 0, while no buffer is being taken or
    /// dropped, means that every buffer and every share of one was dropped. The free lists are
    /// counted one after the other, so the result is approximate while buffers come and go.
    pub fn in_use_bytes(&self) -> usize {
        // Computed here because a count per command would cost more than this rare call.
        let idle = self.account.idle.idle_bytes();
        let pooled = self.account.idle.pooled_bytes.load(Relaxed).saturating_sub(idle);
        pooled + self.account.idle.single_use_bytes.load(Relaxed)
    }

    /// Returns the memory of idle buffers, ready for reuse.
    pub fn pooled_bytes(&self) -> usize {
        self.account.idle.idle_bytes()
    }

    /// Returns the number of buffers allocated for one use, because the pool was at its limit,
    /// memory was scarce, or the buffer was longer than [`POOLED_BUFFER_BYTES_MAX`].
    pub fn over_limit(&self) -> usize {
        self.account.idle.over_limit.load(Relaxed)
    }

    /// Takes a buffer of idle memory, which is already charged to the budget.
    #[inline]
    fn take_idle(&self, len: usize) -> Option<Buffer> {
        let class = class_of(len)?;
        let list = thread_number() % FREE_LISTS;
        let memory =
            self.account.idle.pop(list, class).or_else(|| self.account.idle.pop_any(class))?;
        let kind = BufferKind::Pooled { list: list as u8, class: class as u8 };
        Some(self.buffer(memory, len, kind))
    }

    /// Allocates a buffer; `reserved` is its charge.
    #[cold]
    fn allocate(&self, len: usize, reserved: MemoryReservation) -> Buffer {
        let bytes = reserved.into_bytes();
        let memory = Memory::new(bytes - PAGE_BYTES);
        let class = class_of(len).filter(|_| !self.budget().is_scarce());
        let kind = match class.filter(|_| self.account.idle.add_pooled(bytes, self.budget())) {
            Some(class) => {
                let list = (thread_number() % FREE_LISTS) as u8;
                BufferKind::Pooled { list, class: class as u8 }
            }
            None => {
                self.account.idle.over_limit.fetch_add(1, Relaxed);
                self.account.idle.single_use_bytes.fetch_add(bytes, Relaxed);
                BufferKind::SingleUse
            }
        };
        self.buffer(memory, len, kind)
    }

    #[inline]
    fn buffer(&self, memory: Memory, len: usize, kind: BufferKind) -> Buffer {
        self.account.add(memory.allocated_bytes());
        Buffer { memory, len, kind, account: Arc::clone(&self.account) }
    }
}

impl Buffer {
    /// Shortens the buffer; a greater `len` changes nothing. The charge stays the same.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Converts the buffer into read-only shares, without copying. The memory returns to its pool
    /// when the last share is dropped.
    pub fn freeze(self) -> Bytes {
        Bytes::from_owner(self)
    }

    /// Returns the pool of the buffer, with the account to which the buffer is charged.
    pub fn pool(&self) -> BufferPool {
        BufferPool { account: Arc::clone(&self.account) }
    }
}

/// Returns the class that holds `len` bytes; `None` if `len` is too long for the pool.
fn class_of(len: usize) -> Option<usize> {
    let pages = len.div_ceil(PAGE_BYTES).max(1).checked_next_power_of_two()?;
    let class = pages.trailing_zeros() as usize;
    (class < CLASSES).then_some(class)
}

impl IdleMemory {
    /// Counts `bytes` more of pooled memory if the limit of the pool allows. Idle memory of other
    /// classes is freed to make room.
    fn add_pooled(&self, bytes: usize, budget: &MemoryBudget) -> bool {
        let limit = self.pooled_bytes_max;
        let add = |now: usize| now.checked_add(bytes).filter(|sum| *sum <= limit);
        while self.pooled_bytes.fetch_update(Relaxed, Relaxed, add).is_err() {
            // Starts with the largest class, so that the fewest buffers are lost.
            let Some(memory) = (0..CLASSES).rev().find_map(|class| self.pop_any(class)) else {
                return false;
            };
            let freed = memory.allocated_bytes();
            drop(memory);
            self.pooled_bytes.fetch_sub(freed, Relaxed);
            budget.release(freed);
        }
        true
    }

    #[inline]
    fn pop(&self, list: usize, class: usize) -> Option<Memory> {
        self.lock(list, class).pop()
    }

    #[cold]
    fn pop_any(&self, class: usize) -> Option<Memory> {
        (0..FREE_LISTS).find_map(|list| self.pop(list, class))
    }

    #[inline]
    fn push(&self, list: u8, class: u8, memory: Memory) {
        self.lock(list.into(), class.into()).push(memory);
        if !self.has_idle.load(Relaxed) {
            self.has_idle.store(true, SeqCst);
        }
    }

    #[inline]
    fn lock(&self, list: usize, class: usize) -> MutexGuard<'_, Vec<Memory>> {
        self.lists[list][class].lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn idle_bytes(&self) -> usize {
        let lists = (0..FREE_LISTS).flat_map(|list| (0..CLASSES).map(move |class| (list, class)));
        // All memory of a class has one size. The lock is held briefly, as a core waits for it.
        let of_class = |(list, class)| -> usize {
            let memory = self.lock(list, class);
            memory.first().map_or(0, Memory::allocated_bytes) * memory.len()
        };
        lists.map(of_class).sum()
    }

    /// Frees all idle memory and returns its size; the caller subtracts it from the budget.
    pub(crate) fn free_all(&self) -> usize {
        if !self.has_idle.swap(false, SeqCst) {
            return 0;
        }
        let lists = (0..FREE_LISTS).flat_map(|list| (0..CLASSES).map(move |class| (list, class)));
        let mut bytes = 0;
        for (list, class) in lists {
            let memory = std::mem::take(&mut *self.lock(list, class));
            bytes += memory.iter().map(Memory::allocated_bytes).sum::<usize>();
        }
        self.pooled_bytes.fetch_sub(bytes, Relaxed);
        bytes
    }
}

impl Drop for Buffer {
    #[inline]
    fn drop(&mut self) {
        let memory = std::mem::take(&mut self.memory);
        let bytes = memory.allocated_bytes();
        self.account.subtract(bytes);
        match self.kind {
            BufferKind::Pooled { list, class } if self.account.budget().may_keep_idle_memory() => {
                self.account.idle.push(list, class, memory);
            }
            kind => self.free(kind, memory),
        }
    }
}

impl Buffer {
    #[cold]
    fn free(&self, kind: BufferKind, memory: Memory) {
        let bytes = memory.allocated_bytes();
        drop(memory);
        match kind {
            BufferKind::Pooled { .. } => self.account.idle.pooled_bytes.fetch_sub(bytes, Relaxed),
            BufferKind::SingleUse => self.account.idle.single_use_bytes.fetch_sub(bytes, Relaxed),
        };
        self.account.budget().release(bytes);
    }
}

impl Deref for Buffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.memory.bytes[self.memory.start..][..self.len]
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.memory.bytes[self.memory.start..][..self.len]
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes)", self.len)
    }
}

impl Default for BufferPool {
    fn default() -> Self {
        Self::new(POOL_LIMIT_BYTES)
    }
}

impl fmt::Debug for BufferPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BufferPool")
            .field("pooled_bytes_max", &self.account.idle.pooled_bytes_max)
            .field("in_use_bytes", &self.in_use_bytes())
            .field("pooled_bytes", &self.pooled_bytes())
            .field("over_limit", &self.over_limit())
            .finish()
    }
}

/// Page-aligned memory: allocated one page longer than required, with the first aligned byte as its
/// start. The memory never moves, so safe code can find that byte once.
#[derive(Default)]
struct Memory {
    bytes: Box<[u8]>,
    start: usize,
}

impl Memory {
    fn new(bytes: usize) -> Self {
        let bytes = vec![0; bytes + PAGE_BYTES].into_boxed_slice();
        let address = bytes.as_ptr().addr();
        Self { start: address.next_multiple_of(PAGE_BYTES) - address, bytes }
    }

    fn allocated_bytes(&self) -> usize {
        self.bytes.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: every length gives a buffer of that length at a page boundary, and all memory returns.
    #[test]
    fn aligned_and_returned() {
        let pool = BufferPool::default();
        let mut held = Vec::new();
        for len in [0, 1, 511, 512, 4095, 4096, 4097, 65536, 1 << 20, (16 << 20) + 1] {
            let mut buffer = pool.take(len);
            assert_eq!(buffer.len(), len);
            assert_eq!(buffer.as_ptr().addr() % PAGE_BYTES, 0);
            buffer.fill(0xA5);
            held.push(buffer);
        }
        assert_eq!(pool.over_limit(), 1, "only the one longer than the largest class");
        assert!(pool.in_use_bytes() > 17 << 20);
        drop(held);
        assert_eq!(pool.in_use_bytes(), 0);
        assert!(pool.pooled_bytes() > 1 << 20);
    }

    /// Goal: a dropped buffer is reused, and `take_zeroed` clears its old contents.
    #[test]
    fn reused() {
        let pool = BufferPool::default();
        let mut buffer = pool.take(8192);
        buffer.fill(7);
        let address = buffer.as_ptr().addr();
        drop(buffer);
        let again = pool.take_zeroed(5000);
        assert_eq!(again.as_ptr().addr(), address);
        assert!(again.iter().all(|b| *b == 0));
    }

    /// Goal: the limit holds for pooled memory. Beyond it buffers are allocated and freed, not
    /// refused, and idle memory of other classes is freed first.
    #[test]
    fn bounded() {
        let limit = 4 * (2 * PAGE_BYTES);
        let pool = BufferPool::new(limit);
        let held: Vec<_> = (0..6).map(|_| pool.take(1)).collect();
        assert_eq!(pool.over_limit(), 2);
        drop(held);
        assert_eq!((pool.in_use_bytes(), pool.pooled_bytes()), (0, limit));
        let larger = pool.take(2 * PAGE_BYTES);
        assert_eq!(pool.over_limit(), 2, "idle pages made room");
        drop(larger);
        assert!(pool.pooled_bytes() <= limit);
        assert_eq!(pool.in_use_bytes(), 0);
    }

    /// Goal: a frozen buffer shows the same bytes at the same address, and its memory returns with
    /// the last share.
    #[test]
    fn frozen_without_a_copy() {
        let pool = BufferPool::default();
        let mut buffer = pool.take(1000);
        buffer.fill(3);
        buffer.truncate(600);
        buffer.truncate(700);
        let address = buffer.as_ptr();
        let bytes = buffer.freeze();
        let tail = bytes.slice(500..);
        assert_eq!((bytes.len(), bytes.as_ptr()), (600, address));
        drop(bytes);
        assert!(pool.in_use_bytes() > 0);
        assert_eq!(&tail[..], &[3; 100]);
        drop(tail);
        assert_eq!(pool.in_use_bytes(), 0);
    }

    /// Goal: idle memory of one thread is available to all: another thread takes it before it
    /// allocates, and one limit applies to all threads together.
    #[test]
    fn idle_memory_is_for_all_threads() {
        let pool = BufferPool::new(2 * (2 * PAGE_BYTES));
        let used = std::thread::scope(|scope| {
            let use_two = || {
                let buffers = [pool.take(1), pool.take(1)];
                buffers.each_ref().map(|buffer| buffer.as_ptr().addr())
            };
            scope.spawn(use_two).join().unwrap()
        });
        let again = [pool.take(1), pool.take(1)];
        assert!(again.iter().all(|buffer| used.contains(&buffer.as_ptr().addr())));
        assert_eq!(pool.over_limit(), 0);
        drop(pool.take(1));
        assert_eq!(pool.over_limit(), 1);
        drop(again);
        assert_eq!((pool.in_use_bytes(), pool.pooled_bytes()), (0, 2 * (2 * PAGE_BYTES)));
    }

    /// Goal: a reader of the usage has no accounts to walk, because they are in no list. Fault:
    /// readers of `GET /status` walked the accounts of thousands of connections under a lock that
    /// each new connection took for each of its accounts.
    #[test]
    fn accounts_are_in_no_list() {
        let pool = BufferPool::default().sibling(MemoryKind::Session);
        assert_eq!(Arc::weak_count(&pool.account), 0);
        let _charge = pool.charge(500);
        assert_eq!(pool.budget().usage().by_kind[MemoryKind::Session as usize], 500);
    }

    /// Goal: threads that take and drop at random never exceed the limit of the pool, and leave
    /// nothing.
    #[test]
    fn many_threads() {
        let pool = BufferPool::new(1 << 20);
        std::thread::scope(|scope| {
            for seed in 0..4u64 {
                let pool = pool.clone();
                scope.spawn(move || {
                    let mut random = seed;
                    let mut held = Vec::new();
                    for _ in 0..2000 {
                        random = random.wrapping_mul(6364136223846793005).wrapping_add(1);
                        held.push(pool.take((random >> 33) as usize % 200_000));
                        if held.len() > 8 {
                            held.clear();
                        }
                    }
                });
            }
        });
        assert_eq!(pool.in_use_bytes(), 0);
        assert!(pool.pooled_bytes() <= 1 << 20);
        assert_eq!(pool.pooled_bytes(), pool.account.idle.pooled_bytes.load(Relaxed));
    }
}
