//! Tracks acknowledged writes that are not flushed, and whether a cache loss may have lost them.

use crate::attentions::CacheLossCounts;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The acknowledged writes of one disk that a volatile cache may still hold.
///
/// [`Attentions`](crate::attentions::Attentions) counts the losses that the unit reports; each call
/// receives the current counts.
#[derive(Debug)]
pub(crate) struct FlushTracker {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The counts of the last call.
    counts: CacheLossCounts,
    /// Number of acknowledged writes.
    acknowledged: u64,
    /// Number of acknowledged writes that are durable or reported lost: always the oldest ones.
    settled: u64,
    /// Number of times writes may have been lost.
    losses: u64,
    /// True while the last loss has been reported to no caller.
    unreported: bool,
}

/// The state at the begin of an operation that writes and then flushes its writes.
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
    pub(crate) fn new(counts: CacheLossCounts) -> Self {
        Self { state: Mutex::new(State { counts, ..State::default() }) }
    }

    /// Records an acknowledged write that was sent when the counts were `sent_after`. If the counts
    /// have changed since, the write may be lost, whether it was executed before or after the
    /// change.
    pub(crate) fn acknowledged(&self, sent_after: CacheLossCounts, counts: CacheLossCounts) {
        let mut state = self.state();
        state.update(counts);
        if sent_after == counts {
            state.acknowledged += 1;
        } else {
            state.losses += 1;
            state.unreported = true;
        }
    }

    /// Marks the begin of an operation that writes and then flushes.
    pub(crate) fn mark(&self, counts: CacheLossCounts) -> FlushMark {
        let mut state = self.state();
        state.update(counts);
        FlushMark { losses: state.losses }
    }

    /// Begins a flush, for an operation that began at `since`. The flush covers all writes
    /// acknowledged before.
    ///
    /// # Errors
    /// `CacheLost` when there was a loss after `since`, even if it was reported to other callers,
    /// and once when there was a loss before that was not reported.
    pub(crate) fn begin(
        &self,
        since: FlushMark,
        counts: CacheLossCounts,
    ) -> Result<Flush, CacheLost> {
        let mut state = self.state();
        state.update(counts);
        if std::mem::take(&mut state.unreported) || state.losses != since.losses {
            return Err(CacheLost);
        }
        Ok(Flush { covers: state.acknowledged, losses: state.losses })
    }

    /// True when the flush covers writes that are neither durable nor reported lost.
    pub(crate) fn needs(&self, flush: Flush) -> bool {
        flush.covers > self.state().settled
    }

    /// Records that all acknowledged writes may be lost, when a response of the target is missing.
    pub(crate) fn lose(&self) {
        self.state().lose();
    }

    /// Number of times writes may have been lost.
    pub(crate) fn losses(&self, counts: CacheLossCounts) -> u64 {
        let mut state = self.state();
        state.update(counts);
        state.losses
    }

    /// Ends a flush that the target has answered.
    ///
    /// # Errors
    /// `CacheLost` when there was a loss since it began.
    pub(crate) fn end(&self, flush: Flush, counts: CacheLossCounts) -> Result<(), CacheLost> {
        let mut state = self.state();
        state.update(counts);
        if state.losses != flush.losses {
            state.unreported = false;
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
    /// Takes over the current counts, and records a loss if they show one.
    fn update(&mut self, counts: CacheLossCounts) {
        let reset = counts.resets != self.counts.resets && self.acknowledged > self.settled;
        // A failed write may have been reported as durable before; this is revoked.
        if reset || counts.failures != self.counts.failures {
            self.lose();
        }
        self.counts = counts;
    }

    /// Records that all acknowledged writes may be lost.
    fn lose(&mut self) {
        self.losses += 1;
        self.unreported = true;
        self.settled = self.acknowledged;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts with this number of resets, and no failures.
    fn counts(resets: u64) -> CacheLossCounts {
        CacheLossCounts { resets, failures: 0 }
    }

    /// Begins a flush that belongs to no earlier operation.
    fn begin(disk: &FlushTracker, resets: u64) -> Result<Flush, CacheLost> {
        disk.begin(disk.mark(counts(resets)), counts(resets))
    }

    /// Goal: a reset between an acknowledged write and the end of its flush is reported once; a
    /// reset without unflushed writes is not.
    #[test]
    fn a_loss_of_unflushed_writes_is_reported_once() {
        let disk = FlushTracker::new(counts(1));
        let flush = begin(&disk, 1).unwrap();
        assert_eq!(disk.end(flush, counts(2)), Ok(()), "nothing was written");
        disk.acknowledged(counts(2), counts(2));
        let flush = begin(&disk, 2).unwrap();
        assert_eq!(disk.end(flush, counts(2)), Ok(()));
        assert!(begin(&disk, 3).is_ok(), "all was flushed before the reset");
        disk.acknowledged(counts(3), counts(3));
        assert_eq!(begin(&disk, 4).unwrap_err(), CacheLost);
        assert!(begin(&disk, 4).is_ok(), "reported once");
    }

    /// Goal: each flush that ran during a loss fails, and a write that a flush does not cover waits
    /// for the next.
    #[test]
    fn every_flush_during_a_loss_fails() {
        let disk = FlushTracker::new(counts(0));
        disk.acknowledged(counts(0), counts(0));
        let (first, second) = (begin(&disk, 0).unwrap(), begin(&disk, 0).unwrap());
        assert_eq!(disk.end(first, counts(1)), Err(CacheLost));
        assert_eq!(disk.end(second, counts(1)), Err(CacheLost));
        let flush = begin(&disk, 1).unwrap();
        disk.acknowledged(counts(1), counts(1));
        assert_eq!(disk.end(flush, counts(1)), Ok(()));
        assert_eq!(begin(&disk, 2).unwrap_err(), CacheLost, "the flush had begun before the write");
    }

    /// Goal: an acknowledgement that is processed after the reset is known counts as one of a write
    /// before the reset.
    #[test]
    fn a_late_acknowledgement_may_be_lost() {
        let disk = FlushTracker::new(counts(0));
        let flush = begin(&disk, 1).unwrap();
        disk.acknowledged(counts(0), counts(1));
        assert_eq!(disk.end(flush, counts(1)), Err(CacheLost));
        assert!(begin(&disk, 1).is_ok());
    }

    /// Goal: an operation whose own write was lost fails, although another flush has already
    /// reported the loss; an operation that began after the loss does not fail.
    #[test]
    fn a_reported_loss_fails_operations_that_began_before_it() {
        let disk = FlushTracker::new(counts(0));
        let operation = disk.mark(counts(0));
        disk.acknowledged(counts(0), counts(0));
        assert_eq!(begin(&disk, 1).unwrap_err(), CacheLost, "another caller's flush reports it");
        let later = disk.mark(counts(1));
        disk.acknowledged(counts(1), counts(1));
        assert_eq!(
            disk.begin(operation, counts(1)).unwrap_err(),
            CacheLost,
            "the first write of the operation was lost"
        );
        let flush = disk.begin(later, counts(1)).unwrap();
        assert_eq!(disk.end(flush, counts(1)), Ok(()));
    }

    /// Goal: a failed write is reported once, even if a flush succeeded meanwhile.
    #[test]
    fn a_failed_write_is_reported_after_a_successful_flush() {
        let disk = FlushTracker::new(counts(0));
        disk.acknowledged(counts(0), counts(0));
        let flush = begin(&disk, 0).unwrap();
        assert!(disk.needs(flush));
        assert_eq!(disk.end(flush, counts(0)), Ok(()));
        let failed = CacheLossCounts { resets: 0, failures: 1 };
        assert_eq!(disk.begin(disk.mark(failed), failed).unwrap_err(), CacheLost);
        let flush = disk.begin(disk.mark(failed), failed).expect("reported once");
        assert!(!disk.needs(flush));
        assert_eq!(disk.end(flush, failed), Ok(()));
    }

    /// Goal: a flush fails when the target's report of a cache loss may be missing, and no later
    /// flush fails for it.
    #[test]
    fn a_missing_response_counts_as_a_loss() {
        let disk = FlushTracker::new(counts(0));
        disk.acknowledged(counts(0), counts(0));
        let flush = begin(&disk, 0).unwrap();
        disk.lose();
        assert_eq!(disk.end(flush, counts(0)), Err(CacheLost));
        assert!(begin(&disk, 0).is_ok(), "reported once");
        assert!(begin(&disk, 1).is_ok(), "nothing is left to be lost");
    }
}
