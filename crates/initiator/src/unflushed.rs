//! What was acknowledged but not flushed, and whether it may be lost.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// The acknowledged writes of one disk that a volatile cache may still hold.
///
/// Resets of the unit are counted elsewhere; each call is told how many there were.
#[derive(Debug)]
pub(crate) struct Unflushed {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// How many resets were looked at.
    resets: u64,
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
pub(crate) struct Mark {
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
pub(crate) struct Lost;

impl Unflushed {
    pub(crate) fn new(resets: u64) -> Self {
        Self { state: Mutex::new(State { resets, ..State::default() }) }
    }

    /// A write was acknowledged that had been sent after `sent_after` resets. One that a reset
    /// came between may be lost, whichever came first.
    pub(crate) fn acknowledged(&self, sent_after: u64, resets: u64) {
        let mut state = self.state();
        state.look(resets);
        if sent_after == resets {
            state.acknowledged += 1;
        } else {
            state.losses += 1;
            state.untold = true;
        }
    }

    /// An operation begins that writes and then flushes.
    pub(crate) fn mark(&self, resets: u64) -> Mark {
        let mut state = self.state();
        state.look(resets);
        Mark { losses: state.losses }
    }

    /// A flush begins, of an operation that began at `since`. It covers what was acknowledged
    /// before.
    ///
    /// # Errors
    /// `Lost` when something was lost since, also if others were told, and once, when something
    /// was lost before.
    pub(crate) fn begin(&self, since: Mark, resets: u64) -> Result<Flush, Lost> {
        let mut state = self.state();
        state.look(resets);
        if std::mem::take(&mut state.untold) || state.losses != since.losses {
            return Err(Lost);
        }
        Ok(Flush { covers: state.acknowledged, losses: state.losses })
    }

    /// The target said that it is done.
    ///
    /// # Errors
    /// `Lost` when something was lost since it began.
    pub(crate) fn end(&self, flush: Flush, resets: u64) -> Result<(), Lost> {
        let mut state = self.state();
        state.look(resets);
        if state.losses != flush.losses {
            state.untold = false;
            return Err(Lost);
        }
        state.settled = state.settled.max(flush.covers);
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn look(&mut self, resets: u64) {
        if resets != self.resets && self.acknowledged > self.settled {
            self.losses += 1;
            self.untold = true;
            self.settled = self.acknowledged;
        }
        self.resets = resets;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A flush that nothing belongs to.
    fn begin(disk: &Unflushed, resets: u64) -> Result<Flush, Lost> {
        disk.begin(disk.mark(resets), resets)
    }

    /// Goal: a reset between an acknowledged write and the end of its flush is told; one without
    /// anything to lose is not.
    #[test]
    fn what_may_be_lost_is_told_once() {
        let disk = Unflushed::new(1);
        let flush = begin(&disk, 1).unwrap();
        assert_eq!(disk.end(flush, 2), Ok(()), "nothing was written");
        disk.acknowledged(2, 2);
        let flush = begin(&disk, 2).unwrap();
        assert_eq!(disk.end(flush, 2), Ok(()));
        assert!(begin(&disk, 3).is_ok(), "all was flushed before the reset");
        disk.acknowledged(3, 3);
        assert_eq!(begin(&disk, 4).unwrap_err(), Lost);
        assert!(begin(&disk, 4).is_ok(), "told once");
    }

    /// Goal: each flush that ran while something was lost fails, and a write that a flush does not
    /// cover waits for the next.
    #[test]
    fn all_who_flush_meanwhile_are_told() {
        let disk = Unflushed::new(0);
        disk.acknowledged(0, 0);
        let (first, second) = (begin(&disk, 0).unwrap(), begin(&disk, 0).unwrap());
        assert_eq!(disk.end(first, 1), Err(Lost));
        assert_eq!(disk.end(second, 1), Err(Lost));
        let flush = begin(&disk, 1).unwrap();
        disk.acknowledged(1, 1);
        assert_eq!(disk.end(flush, 1), Ok(()));
        assert_eq!(begin(&disk, 2).unwrap_err(), Lost, "the flush had begun before the write");
    }

    /// Goal: an acknowledgement that is looked at late, when the reset is known already, counts as
    /// from before it.
    #[test]
    fn a_late_acknowledgement_may_be_lost() {
        let disk = Unflushed::new(0);
        let flush = begin(&disk, 1).unwrap();
        disk.acknowledged(0, 1);
        assert_eq!(disk.end(flush, 1), Err(Lost));
        assert!(begin(&disk, 1).is_ok());
    }

    /// Goal: an operation whose own write was lost fails, though somebody else's flush was told of
    /// the loss; one that began after the loss does not.
    #[test]
    fn a_loss_that_another_was_told_of_is_told_to_whom_it_hits() {
        let disk = Unflushed::new(0);
        let operation = disk.mark(0);
        disk.acknowledged(0, 0);
        assert_eq!(begin(&disk, 1).unwrap_err(), Lost, "another's flush takes it");
        let later = disk.mark(1);
        disk.acknowledged(1, 1);
        assert_eq!(disk.begin(operation, 1).unwrap_err(), Lost, "its first write is gone");
        let flush = disk.begin(later, 1).unwrap();
        assert_eq!(disk.end(flush, 1), Ok(()));
    }
}
