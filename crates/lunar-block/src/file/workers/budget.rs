//! A limit on the threads of all pools together.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

/// A limit on the threads of several pools. The first thread of each pool does not count, so that
/// every pool works.
pub(in crate::file) struct ThreadBudget {
    threads_max: usize,
    threads: AtomicUsize,
}

impl ThreadBudget {
    pub(in crate::file) const fn new(threads_max: usize) -> Self {
        Self { threads_max, threads: AtomicUsize::new(0) }
    }

    /// Reserves a slot for one more thread of a pool that has `threads`; returns `false` if none is
    /// free.
    pub(super) fn take_slot(&self, threads: usize) -> bool {
        let more = |taken| (taken < self.threads_max).then_some(taken + 1);
        threads == 0 || self.threads.fetch_update(SeqCst, SeqCst, more).is_ok()
    }

    /// Releases the slot of a thread; `threads` remain in the pool.
    pub(super) fn release_slot(&self, threads: usize) {
        if threads > 0 {
            self.threads.fetch_sub(1, SeqCst);
        }
    }

    #[cfg(test)]
    pub(super) fn taken(&self) -> usize {
        self.threads.load(SeqCst)
    }
}
