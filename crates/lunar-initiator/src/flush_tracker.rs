//! Tracks acknowledged writes that are not flushed, and whether they may be lost.

use crate::attentions::CacheLossCounts;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The acknowledged writes of one disk that a volatile cache may still hold.
///
/// Losses that the unit reports are counted elsewhere; each call receives the current counts.
#[derive(Debug)]
pub(crate) struct FlushTracker {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The counts of the last call.
    told: CacheLossCounts,
    /// Acknowledged writes, and the number of the first of them that are durable or reported lost.
    acknowledged: u64,
    settled: u64,
    /// Number of times writes may have been lost.
    losses: u64,
    /// True when no caller has been informed of the last loss yet.
    untold: bool,
}

/// Begin of an operation whose flush must cover its own writes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FlushMark {
    losses: u64,
}

/// A flush that has begun.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flush {
    covers: u64,
    losses: u64,
}

/// Error: acknowledged writes may be lost.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct CacheLost;

impl FlushTracker {
    pub(crate) fn new(told: CacheLossCounts) -> Self {
        Self { state: Mutex::new(State { told, ..State::default() }) }
    }

    /// Records an acknowledged write that was sent when the counts were `sent_after`. If the counts
    /// have changed since, the write may be lost, whichever came first.
    pub(crate) fn acknowledged(&self, sent_after: CacheLossCounts, told: CacheLossCounts) {
        let mut state = self.state();
        state.look(told);
        if sent_after == told {
            state.acknowledged += 1;
        } else {
            state.losses += 1;
            state.untold = true;
        }
    }

    /// Marks the begin of an operation that writes and then flushes.
    pub(crate) fn mark(&self, told: CacheLossCounts) -> FlushMark {
        let mut state = self.state();
        state.look(told);
        FlushMark { losses: state.losses }
    }

    /// Begins a flush, for an operation that began at `since`. The flush covers all writes
    /// acknowledged before.
    ///
    /// # Errors
    /// `CacheLost` when there was a loss since, even if other callers were informed, and once when
    /// there was a loss before.
    pub(crate) fn begin(
        &self,
        since: FlushMark,
        told: CacheLossCounts,
    ) -> Result<Flush, CacheLost> {
        let mut state = self.state();
        state.look(told);
        if std::mem::take(&mut state.untold) || state.losses != since.losses {
            return Err(CacheLost);
        }
        Ok(Flush { covers: state.acknowledged, losses: state.losses })
    }

    /// True when the flush has writes to make durable.
    pub(crate) fn needs(&self, flush: Flush) -> bool {
        flush.covers > self.state().settled
    }

    /// Records that all acknowledged writes may be lost, when a response of the target is missing.
    pub(crate) fn lose(&self) {
        self.state().lose();
    }

    /// Number of times writes may have been lost.
    pub(crate) fn losses(&self, told: CacheLossCounts) -> u64 {
        let mut state = self.state();
        state.look(told);
        state.losses
    }

    /// Ends a flush that the target has answered.
    ///
    /// # Errors
    /// `CacheLost` when there was a loss since it began.
    pub(crate) fn end(&self, flush: Flush, told: CacheLossCounts) -> Result<(), CacheLost> {
        let mut state = self.state();
        state.look(told);
        if state.losses != flush.losses {
            state.untold = false;
            return Err(CacheLost);
        }
        state.settled = state.settled.max(flush.covers);
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn look(&mut self, told: CacheLossCounts) {
        let reset = told.resets != self.told.resets && self.acknowledged > self.settled;
        // A failed write may have been reported as durable before; this is revoked.
        if reset || told.failures != self.told.failures {
            self.lose();
        }
        self.told = told;
    }

    fn lose(&mut self) {
        self.losses += 1;
        self.untold = true;
        self.settled = self.acknowledged;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts with this number of resets, and no failures.
    fn told(resets: u64) -> CacheLossCounts {
        CacheLossCounts { resets, failures: 0 }
    }

    /// Begins a flush that belongs to no earlier operation.
    fn begin(disk: &FlushTracker, resets: u64) -> Result<Flush, CacheLost> {
        disk.begin(disk.mark(told(resets)), told(resets))
    }

    /// Goal: a reset between an acknowledged write and the end of its flush is reported once; a
    /// reset without unflushed writes is not.
    #[test]
    fn what_may_be_lost_is_told_once() {
        let disk = FlushTracker::new(told(1));
        let flush = begin(&disk, 1).unwrap();
        assert_eq!(disk.end(flush, told(2)), Ok(()), "nothing was written");
        disk.acknowledged(told(2), told(2));
        let flush = begin(&disk, 2).unwrap();
        assert_eq!(disk.end(flush, told(2)), Ok(()));
        assert!(begin(&disk, 3).is_ok(), "all was flushed before the reset");
        disk.acknowledged(told(3), told(3));
        assert_eq!(begin(&disk, 4).unwrap_err(), CacheLost);
        assert!(begin(&disk, 4).is_ok(), "told once");
    }

    /// Goal: each flush that ran during a loss fails, and a write that a flush does not cover waits
    /// for the next.
    #[test]
    fn all_who_flush_meanwhile_are_told() {
        let disk = FlushTracker::new(told(0));
        disk.acknowledged(told(0), told(0));
        let (first, second) = (begin(&disk, 0).unwrap(), begin(&disk, 0).unwrap());
        assert_eq!(disk.end(first, told(1)), Err(CacheLost));
        assert_eq!(disk.end(second, told(1)), Err(CacheLost));
        let flush = begin(&disk, 1).unwrap();
        disk.acknowledged(told(1), told(1));
        assert_eq!(disk.end(flush, told(1)), Ok(()));
        assert_eq!(begin(&disk, 2).unwrap_err(), CacheLost, "the flush had begun before the write");
    }

    /// Goal: an acknowledgement that is processed after the reset is known counts as from before
    /// the reset.
    #[test]
    fn a_late_acknowledgement_may_be_lost() {
        let disk = FlushTracker::new(told(0));
        let flush = begin(&disk, 1).unwrap();
        disk.acknowledged(told(0), told(1));
        assert_eq!(disk.end(flush, told(1)), Err(CacheLost));
        assert!(begin(&disk, 1).is_ok());
    }

    /// Goal: an operation whose own write was lost fails, although another flush has already
    /// reported the loss; an operation that began after the loss does not fail.
    #[test]
    fn a_loss_that_another_was_told_of_is_told_to_whom_it_hits() {
        let disk = FlushTracker::new(told(0));
        let operation = disk.mark(told(0));
        disk.acknowledged(told(0), told(0));
        assert_eq!(begin(&disk, 1).unwrap_err(), CacheLost, "another's flush takes it");
        let later = disk.mark(told(1));
        disk.acknowledged(told(1), told(1));
        assert_eq!(
            disk.begin(operation, told(1)).unwrap_err(),
            CacheLost,
            "its first write is gone"
        );
        let flush = disk.begin(later, told(1)).unwrap();
        assert_eq!(disk.end(flush, told(1)), Ok(()));
    }

    /// Goal: a failed write is reported once, even if a flush succeeded meanwhile.
    #[test]
    fn a_failure_is_told_though_all_was_flushed() {
        let disk = FlushTracker::new(told(0));
        disk.acknowledged(told(0), told(0));
        let flush = begin(&disk, 0).unwrap();
        assert!(disk.needs(flush));
        assert_eq!(disk.end(flush, told(0)), Ok(()));
        let failed = CacheLossCounts { resets: 0, failures: 1 };
        assert_eq!(disk.begin(disk.mark(failed), failed).unwrap_err(), CacheLost);
        let flush = disk.begin(disk.mark(failed), failed).expect("told once");
        assert!(!disk.needs(flush));
        assert_eq!(disk.end(flush, failed), Ok(()));
    }

    /// Goal: a flush fails when the target's report of a cache loss may be missing, and no later
    /// flush fails for it.
    #[test]
    fn what_was_not_heard_may_be_lost() {
        let disk = FlushTracker::new(told(0));
        disk.acknowledged(told(0), told(0));
        let flush = begin(&disk, 0).unwrap();
        disk.lose();
        assert_eq!(disk.end(flush, told(0)), Err(CacheLost));
        assert!(begin(&disk, 0).is_ok(), "told once");
        assert!(begin(&disk, 1).is_ok(), "nothing is left to be lost");
    }
}
