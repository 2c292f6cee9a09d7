//! Owned, page-aligned, pooled buffers.

use crate::statistics::thread_number;
use bytes::Bytes;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The first byte of every buffer lies at a multiple of this.
pub const PAGE_BYTES: usize = 4096;

/// The largest buffer that is kept for the next user; longer ones are allocated and freed.
pub const POOLED_BUFFER_BYTES_MAX: usize = 16 << 20;

/// How much a default pool allocates for pooled buffers, in use and idle together.
pub const POOL_LIMIT_BYTES: usize = 256 << 20;

/// Classes are the powers of two from `PAGE_BYTES` to `POOLED_BUFFER_BYTES_MAX`.
const CLASSES: usize =
    (POOLED_BUFFER_BYTES_MAX.trailing_zeros() - PAGE_BYTES.trailing_zeros()) as usize + 1;

/// Idle memory is kept in so many shelves, so that cores do not fight over one.
const SHELVES: usize = 16;

/// Where buffers come from and go back to: page-aligned memory in classes of powers of two,
/// bounded. Handles are cheap to clone, share one pool, and may be used from any thread.
///
/// Memory that was just mapped costs a page fault per page, so a large transfer into a fresh
/// allocation takes several times as long as one into a buffer that was used before.
#[derive(Clone)]
pub struct BufferPool {
    shared: Arc<Shared>,
}

struct Shared {
    /// Each thread has one, by its number among all that ever asked: two may have the same.
    shelves: [Arc<Shelf>; SHELVES],
    counts: Arc<Counts>,
}

/// Idle memory by class, for the thread whose shelf it is; others take it before they allocate.
struct Shelf {
    idle: [Mutex<Vec<Memory>>; CLASSES],
    counts: Arc<Counts>,
}

struct Counts {
    limit_bytes: usize,
    /// Memory of pooled buffers, in use and idle.
    pooled_bytes: AtomicUsize,
    /// Memory of buffers that are freed after use.
    single_use_bytes: AtomicUsize,
    over_limit: AtomicUsize,
}

/// Bytes that a disk or a socket fills: owned, page-aligned, returned to its pool when dropped.
pub struct Buffer {
    memory: Memory,
    len: usize,
    /// The pooled class it belongs to; `None`: it is freed after use.
    class: Option<usize>,
    /// Where it was taken from.
    shelf: Arc<Shelf>,
}

impl BufferPool {
    /// A pool that allocates at most `limit_bytes` for pooled buffers.
    pub fn new(limit_bytes: usize) -> Self {
        let counts = Arc::new(Counts {
            limit_bytes,
            pooled_bytes: AtomicUsize::new(0),
            single_use_bytes: AtomicUsize::new(0),
            over_limit: AtomicUsize::new(0),
        });
        let shelves = std::array::from_fn(|_| {
            let idle = [const { Mutex::new(Vec::new()) }; CLASSES];
            Arc::new(Shelf { idle, counts: Arc::clone(&counts) })
        });
        Self { shared: Arc::new(Shared { shelves, counts }) }
    }

    /// A buffer of exactly `len` bytes. It may hold what its last user left there: fill all of it
    /// before anyone else sees it, or use [`take_zeroed`](Self::take_zeroed).
    ///
    /// It always succeeds: beyond the limit of the pool the buffer is allocated for this one use,
    /// and counted by [`over_limit`](Self::over_limit).
    pub fn take(&self, len: usize) -> Buffer {
        let shelf = &self.shared.shelves[thread_number() % SHELVES];
        let class = class_of(len);
        let idle = class.and_then(|class| shelf.pop(class));
        let pooled = idle.or_else(|| self.shared.find_or_allocate(class?));
        let (class, memory) = match pooled {
            Some(memory) => (class, memory),
            None => (None, self.shared.counts.single_use(len)),
        };
        Buffer { memory, len, class, shelf: Arc::clone(shelf) }
    }

    /// A buffer of exactly `len` zero bytes.
    pub fn take_zeroed(&self, len: usize) -> Buffer {
        let mut buffer = self.take(len);
        buffer.fill(0);
        buffer
    }

    /// Memory of all buffers that are in use, pooled or not; each counts with its class and the
    /// page that aligns it. 0, while none is taken or dropped: every buffer and every share of one
    /// was dropped. Shelves are looked at one after the other, so in between it is about right.
    pub fn in_use_bytes(&self) -> usize {
        // Not counted as they come and go: that is once for each command, and this is seldom asked.
        let idle = self.pooled_bytes();
        let counts = &self.shared.counts;
        let pooled = counts.pooled_bytes.load(Relaxed).saturating_sub(idle);
        pooled + counts.single_use_bytes.load(Relaxed)
    }

    /// Memory of idle buffers, ready for the next user.
    pub fn pooled_bytes(&self) -> usize {
        self.shared.shelves.iter().map(|shelf| shelf.idle_bytes()).sum()
    }

    /// How many buffers were allocated for one use, because the pool was at its limit or the
    /// buffer longer than [`POOLED_BUFFER_BYTES_MAX`].
    pub fn over_limit(&self) -> usize {
        self.shared.counts.over_limit.load(Relaxed)
    }
}

impl Buffer {
    /// Makes it shorter; a greater `len` changes nothing.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Shares it, read-only, without copying; it returns to its pool when the last share is
    /// dropped.
    pub fn freeze(self) -> Bytes {
        Bytes::from_owner(self)
    }
}

/// The class that holds `len` bytes; `None`: too long for the pool.
fn class_of(len: usize) -> Option<usize> {
    let pages = len.div_ceil(PAGE_BYTES).max(1).checked_next_power_of_two()?;
    let class = pages.trailing_zeros() as usize;
    (class < CLASSES).then_some(class)
}

impl Shared {
    /// Memory of `class`: what lies idle for another thread, or new one if the limit allows. Idle
    /// memory of other classes gives way.
    #[cold]
    fn find_or_allocate(&self, class: usize) -> Option<Memory> {
        if let Some(memory) = self.pop(class) {
            return Some(memory);
        }
        let bytes = PAGE_BYTES << class;
        let allocated = bytes + PAGE_BYTES;
        while !self.counts.reserve(allocated) {
            // The largest first: the fewest are lost.
            let memory = (0..CLASSES).rev().find_map(|class| self.pop(class))?;
            self.counts.pooled_bytes.fetch_sub(memory.allocated_bytes(), Relaxed);
        }
        Some(Memory::new(bytes))
    }

    fn pop(&self, class: usize) -> Option<Memory> {
        self.shelves.iter().find_map(|shelf| shelf.pop(class))
    }
}

impl Shelf {
    fn pop(&self, class: usize) -> Option<Memory> {
        self.idle(class).pop()
    }

    fn idle(&self, class: usize) -> MutexGuard<'_, Vec<Memory>> {
        self.idle[class].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn idle_bytes(&self) -> usize {
        let of_class = |class| self.idle(class).iter().map(Memory::allocated_bytes).sum::<usize>();
        (0..CLASSES).map(of_class).sum()
    }
}

impl Counts {
    /// Counts `bytes` more, unless that would pass the limit.
    fn reserve(&self, bytes: usize) -> bool {
        let limit = self.limit_bytes;
        let add = |now: usize| now.checked_add(bytes).filter(|sum| *sum <= limit);
        self.pooled_bytes.fetch_update(Relaxed, Relaxed, add).is_ok()
    }

    #[cold]
    fn single_use(&self, len: usize) -> Memory {
        let memory = Memory::new(len.next_multiple_of(PAGE_BYTES));
        self.over_limit.fetch_add(1, Relaxed);
        self.single_use_bytes.fetch_add(memory.allocated_bytes(), Relaxed);
        memory
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let memory = std::mem::take(&mut self.memory);
        match self.class {
            Some(class) => self.shelf.idle(class).push(memory),
            None => {
                let bytes = memory.allocated_bytes();
                self.shelf.counts.single_use_bytes.fetch_sub(bytes, Relaxed);
            }
        }
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
            .field("limit_bytes", &self.shared.counts.limit_bytes)
            .field("in_use_bytes", &self.in_use_bytes())
            .field("pooled_bytes", &self.pooled_bytes())
            .field("over_limit", &self.over_limit())
            .finish()
    }
}

/// Page-aligned memory: a page longer than asked for, with the first aligned byte as its start.
/// The memory never moves, so safe code can find that byte once.
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

    /// Every length gives a buffer of that length at a page boundary, and all memory comes back.
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

    /// A buffer that was dropped is given out again, and `take_zeroed` hides what it held.
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

    /// The limit holds for pooled memory; beyond it buffers are allocated and freed, not refused,
    /// and idle memory of another class gives way first.
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

    /// A frozen buffer shows the bytes it held, at the same address, and returns with the last
    /// share.
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

    /// What one thread has used lies idle for all: another one takes it before it allocates, and
    /// the limit is that of all together.
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

    /// Threads that take and drop at random never push the pool past its limit, and leave nothing.
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
        assert_eq!(pool.pooled_bytes(), pool.shared.counts.pooled_bytes.load(Relaxed));
    }
}
