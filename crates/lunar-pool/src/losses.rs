//! The losses of a pool, and their report by flushes.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// The losses of acknowledged writes that flushes of the users have reported.
///
/// A member reports a loss to one flush only, which may be a flush of the pool itself. The pool
/// counts losses, and every flush fails that began while a loss was not reported; the failed flush
/// reports it.
#[derive(Debug)]
pub(crate) struct LossLatch {
    reported: AtomicU64,
}

/// A flush of a user that has begun.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LatchedFlush {
    reported: u64,
}

impl LossLatch {
    /// Creates the latch of a pool that had `losses` before it was opened.
    pub(crate) fn new(losses: u64) -> Self {
        Self { reported: AtomicU64::new(losses) }
    }

    /// Begins a flush.
    pub(crate) fn begin(&self) -> LatchedFlush {
        LatchedFlush { reported: self.reported.load(SeqCst) }
    }

    /// Ends a flush when the pool has `losses`. Returns false if the flush must fail. A flush that
    /// fails, for this or another reason, reports all losses before.
    pub(crate) fn end(&self, flush: LatchedFlush, succeeded: bool, losses: u64) -> bool {
        let good = succeeded && losses == flush.reported;
        if !good {
            self.reported.fetch_max(losses, SeqCst);
        }
        good
    }

    /// True if a loss was not reported.
    pub(crate) fn is_unreported(&self, losses: u64) -> bool {
        losses > self.reported.load(SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: each flush that began before a loss was reported fails, and none that began later.
    #[test]
    fn every_earlier_flush_fails() {
        let latch = LossLatch::new(3);
        assert!(latch.end(latch.begin(), true, 3));
        let (one, two) = (latch.begin(), latch.begin());
        assert!(latch.is_unreported(4));
        assert!(!latch.end(one, true, 4));
        assert!(!latch.is_unreported(4));
        let later = latch.begin();
        assert!(!latch.end(two, true, 4));
        assert!(latch.end(later, true, 4));
        assert!(!latch.end(latch.begin(), false, 5), "it failed, and reports the loss");
        assert!(latch.end(latch.begin(), true, 5));
    }
}
