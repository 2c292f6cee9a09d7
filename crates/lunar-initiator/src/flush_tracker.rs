//! What was acknowledged but not flushed, and whether it may be lost.

use crate::attentions::CacheLossCounts;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The acknowledged writes of one disk that a volatile cache may still hold.
///
/// What the unit tells of its cache is counted elsewhere; each call is given the counts.
#[derive(Debug)]
pub(crate) struct FlushTracker {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// What was looked at.
    told: CacheLossCounts,
    /// Writes acknowledged, and how many of the first of them are durable or told to be lost.
    acknowledged: u64,
    settled: u64,
    /// How often writes may have been lost.
    losses: u64,
    /// Nobody was told of the last loss yet.
    untold: bool,
}

/// When an operation began whose own writes its flush has to find.
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

/// Acknowledged writes may be lost.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct CacheLost;

impl FlushTracker {
    pub(crate) fn new(told: CacheLossCounts) -> Self {
        Self { state: Mutex::new(State { told, ..State::default() }) }
    }

    /// A write was acknowledged that had been sent after `sent_after` was told. One that something
    /// was told between may be lost, whichever came first.
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

    /// An operation begins that writes and then flushes.
    pub(crate) fn mark(&self, told: CacheLossCounts) -> FlushMark {
        let mut state = self.state();
        state.look(told);
        FlushMark { losses: state.losses }
    }

    /// A flush begins, of an operation that began at `since`. It covers what was acknowledged
    /// before.
    ///
    /// # Errors
    /// `CacheLost` when something was lost since, also if others were told, and once, when
    /// something was lost before.
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

    /// There is anything that it has to make durable.
    pub(crate) fn needs(&self, flush: Flush) -> bool {
        flush.covers > self.state().settled
    }

    /// What the target said is not known, and all that was acknowledged may be lost.
    pub(crate) fn lose(&self) {
        self.state().lose();
    }

    /// How often writes may have been lost.
    pub(crate) fn losses(&self, told: CacheLossCounts) -> u64 {
        let mut state = self.state();
        state.look(told);
        state.losses
    }

    /// The target said that it is done.
    ///
    /// # Errors
    /// `CacheLost` when something was lost since it began.
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
        // What failed may have been told to be durable already: that is taken back.
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

    /// So many resets, and no failures.
    fn told(resets: u64) -> CacheLossCounts {
        CacheLossCounts { resets, failures: 0 }
    }

    /// A flush that nothing belongs to.
    fn begin(disk: &FlushTracker, resets: u64) -> Result<Flush, CacheLost> {
        disk.begin(disk.mark(told(resets)), told(resets))
    }

    /// Goal: a reset between an acknowledged write and the end of its flush is told; one without
    /// anything to lose is not.
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

    /// Goal: each flush that ran while something was lost fails, and a write that a flush does not
    /// cover waits for the next.
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

    /// Goal: an acknowledgement that is looked at late, when the reset is known already, counts as
    /// from before it.
    #[test]
    fn a_late_acknowledgement_may_be_lost() {
        let disk = FlushTracker::new(told(0));
        let flush = begin(&disk, 1).unwrap();
        disk.acknowledged(told(0), told(1));
        assert_eq!(disk.end(flush, told(1)), Err(CacheLost));
        assert!(begin(&disk, 1).is_ok());
    }

    /// Goal: an operation whose own write was lost fails, though somebody else's flush was told of
    /// the loss; one that began after the loss does not.
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

    /// Goal: what failed later is told, whatever was flushed meanwhile, and once.
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

    /// Goal: a flush whose target may have said that its cache was lost fails, and no later one.
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
