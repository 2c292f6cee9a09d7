//! Returns freed memory from the allocator to the system. A limit on memory in use bounds the size
//! of a process only if freed memory returns to the system.

use super::{MemoryBudget, Shared};
use crate::unsafe_heap::{map_large_memory, trim_heap};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{OnceLock, Weak};
use std::thread::{self, Thread};
use std::time::Duration;

/// Divisor for a drop: freed memory returns to the system when memory in use has dropped by 1/8 of
/// the limit.
const DROP_PART: usize = 8;

/// Minimum time between two trims, because each trim visits all free memory.
const TRIM_PAUSE: Duration = Duration::from_secs(1);

/// Detects that much less memory of the allocator is in use than at the last peak, and wakes the
/// trimmer. Memory of sockets does not count.
pub(super) struct UsageDropDetector {
    /// Greatest memory in use since the last drop.
    peak_bytes: AtomicUsize,
    has_dropped: AtomicBool,
    trimmer: OnceLock<Thread>,
}

impl UsageDropDetector {
    pub(super) fn new() -> Self {
        let (peak_bytes, has_dropped) = (AtomicUsize::new(0), AtomicBool::new(false));
        Self { peak_bytes, has_dropped, trimmer: OnceLock::new() }
    }

    /// Records that memory in use has changed to `used` bytes; `limit` bounds it. Changes that
    /// arrive out of order are noticed a little later.
    #[inline]
    pub(super) fn update(&self, used: usize, limit: usize) {
        let peak = self.peak_bytes.load(Relaxed);
        if used > peak {
            self.peak_bytes.store(used, Relaxed);
        } else if peak - used > limit / DROP_PART {
            self.record_drop(used);
        }
    }

    #[cold]
    fn record_drop(&self, used: usize) {
        self.peak_bytes.store(used, Relaxed);
        self.has_dropped.store(true, SeqCst);
        self.wake();
    }

    fn wake(&self) {
        if let Some(trimmer) = self.trimmer.get() {
            trimmer.unpark();
        }
    }
}

impl Drop for UsageDropDetector {
    fn drop(&mut self) {
        self.wake();
    }
}

impl MemoryBudget {
    /// Starts a thread that returns freed memory to the system whenever much less is charged than
    /// before, at most once a second, as long as the budget lives. From then on, the allocator maps
    /// each large buffer separately: the kernel provides zeroed pages, so the thread that takes a
    /// new buffer spends no time on zeroing. This is for the one budget of a process; later calls
    /// change nothing.
    ///
    /// # Errors
    /// The system cannot start a thread.
    pub fn start_heap_trimmer(&self) -> io::Result<()> {
        map_large_memory();
        self.start_trimmer(trim_heap)
    }

    fn start_trimmer(&self, trim: impl Fn() + Send + 'static) -> io::Result<()> {
        if self.shared.usage_drops.trimmer.get().is_some() {
            return Ok(());
        }
        let shared = Arc::downgrade(&self.shared);
        let named = thread::Builder::new().name("heap-trimmer".to_owned());
        let thread = named.spawn(move || trim_after_drops(&shared, trim))?;
        if self.shared.usage_drops.trimmer.set(thread.thread().clone()).is_err() {
            // Another call came first; this thread is never woken.
            tracing::debug!("a heap trimmer is already running");
        }
        Ok(())
    }
}

fn trim_after_drops(shared: &Weak<Shared>, trim: impl Fn()) {
    while let Some(budget) = shared.upgrade() {
        let has_dropped = budget.usage_drops.has_dropped.swap(false, SeqCst);
        drop(budget);
        if has_dropped {
            trim();
            thread::sleep(TRIM_PAUSE);
        } else {
            thread::park();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BufferPool, MemoryKind};
    use std::sync::mpsc;

    const LIMIT: usize = 16 << 20;

    /// Fault: memory of 40,000 completed commands stayed with the process, and buffers were
    /// allocated in addition: 400 MiB were resident although 218 MiB of 256 MiB were charged.
    #[test]
    fn freed_memory_is_trimmed_once() {
        let budget = MemoryBudget::new(LIMIT);
        let (trims, trimmed) = mpsc::channel();
        budget.start_trimmer(move || trims.send(()).unwrap()).unwrap();
        budget.start_trimmer(|| panic!("there is one already")).unwrap();
        let pool = BufferPool::with_budget(&budget);
        let mut charge = pool.charge(LIMIT / 4);
        charge.set(LIMIT / 8);
        assert!(!budget.shared.usage_drops.has_dropped.load(SeqCst), "an eighth and no more");
        charge.set(LIMIT / 8 - 1);
        trimmed.recv_timeout(Duration::from_secs(60)).expect("an eighth less is in use");
        for bytes in [LIMIT / 4, LIMIT / 8, LIMIT / 4, LIMIT / 8] {
            charge.set(bytes);
            assert!(
                !budget.shared.usage_drops.has_dropped.load(SeqCst),
                "it counts from the last drop"
            );
        }
        drop((charge, pool, budget));
        assert!(trimmed.into_iter().count() <= 1, "the thread ends with the budget");
    }
    /// Fault: the memory of sockets grew while that of buffers fell, so the sum did not drop, and
    /// the process kept 136 MiB for buffers of 50 MiB.
    #[test]
    fn sockets_do_not_hide_a_drop() {
        let budget = MemoryBudget::new(LIMIT);
        let pool = BufferPool::with_budget(&budget);
        let mut data = pool.charge(LIMIT / 2);
        let mut sockets = pool.sibling(MemoryKind::Socket).charge(0);
        for bytes in (1..=16).map(|step| LIMIT / 64 * step) {
            sockets.set(bytes);
            data.set(LIMIT / 2 - bytes);
        }
        assert!(budget.shared.usage_drops.has_dropped.load(SeqCst), "a quarter of the limit less");
    }
}
