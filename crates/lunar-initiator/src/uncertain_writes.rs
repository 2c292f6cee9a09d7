//! Writes of unknown outcome, and later writes that wait for them.
//!
//! A write whose caller is gone, or whose session was lost, may still be executed until the target
//! has confirmed its end: by the response to ABORT TASK, or to the login that replaces the lost
//! session (RFC 7143 §6.3.5). It could overwrite a later write to the same blocks over another
//! path, so the later write waits until then.

use lunar_block::BlockRange;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// Blocks of one disk with writes of unknown outcome.
#[derive(Debug, Default)]
pub(crate) struct UncertainWrites {
    /// Number of ranges; nearly always 0, which is checked without the lock.
    count: AtomicUsize,
    /// Number and range of each uncertain write. There are at most as many as commands in flight.
    ranges: Mutex<Vec<(u64, BlockRange)>>,
    /// Notified when an uncertain write ends.
    settled: Notify,
}

/// Ticket of a write, used if its outcome becomes unknown.
#[derive(Clone, Debug)]
pub(crate) struct WriteTicket {
    uncertain_writes: Arc<UncertainWrites>,
    range: BlockRange,
}

/// A write that may still be executed; dropped when the target can no longer execute it.
#[derive(Debug)]
pub(crate) struct UncertainWrite {
    uncertain_writes: Arc<UncertainWrites>,
    number: u64,
}

impl UncertainWrites {
    /// Returns a ticket for a write to `range`.
    pub(crate) fn ticket(self: &Arc<Self>, range: BlockRange) -> WriteTicket {
        WriteTicket { uncertain_writes: Arc::clone(self), range }
    }

    /// Waits until no uncertain write overlaps `range`.
    pub(crate) async fn wait_for_overlaps(&self, range: BlockRange) {
        while self.overlaps(range) {
            let settled = self.settled.notified();
            tokio::pin!(settled);
            // From here on no notification is missed; check again for one sent before.
            settled.as_mut().enable();
            if self.overlaps(range) {
                settled.await;
            }
        }
    }

    /// True when an uncertain write overlaps `range`.
    pub(crate) fn overlaps(&self, range: BlockRange) -> bool {
        self.count.load(Ordering::Acquire) > 0
            && self.ranges().iter().any(|(_, other)| overlap(range, *other))
    }

    fn ranges(&self) -> MutexGuard<'_, Vec<(u64, BlockRange)>> {
        self.ranges.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn overlap(one: BlockRange, other: BlockRange) -> bool {
    one.count > 0
        && other.count > 0
        && one.lba < other.lba.saturating_add(other.count)
        && other.lba < one.lba.saturating_add(one.count)
}

impl WriteTicket {
    /// Makes the write uncertain until the result is dropped.
    pub(crate) fn make_uncertain(&self) -> UncertainWrite {
        let mut ranges = self.uncertain_writes.ranges();
        let number = ranges.last().map_or(0, |(last, _)| last + 1);
        ranges.push((number, self.range));
        self.uncertain_writes.count.store(ranges.len(), Ordering::Release);
        UncertainWrite { uncertain_writes: Arc::clone(&self.uncertain_writes), number }
    }
}

impl Drop for UncertainWrite {
    fn drop(&mut self) {
        let mut ranges = self.uncertain_writes.ranges();
        ranges.retain(|(number, _)| *number != self.number);
        self.uncertain_writes.count.store(ranges.len(), Ordering::Release);
        drop(ranges);
        self.uncertain_writes.settled.notify_waiters();
    }
}

/// Uncertain writes of the lost sessions of one initiator, until another session replaces them.
#[derive(Debug, Default)]
pub(crate) struct LostSessionWrites {
    state: Mutex<LostSessionState>,
}

#[derive(Debug, Default)]
struct LostSessionState {
    /// Smallest number of a session that may still be alive at the target.
    first: u64,
    uncertain_writes: Vec<(u64, UncertainWrite)>,
}

impl LostSessionWrites {
    /// Keeps an uncertain write of the lost session `number`.
    pub(crate) fn hold(&self, number: u64, uncertain: UncertainWrite) {
        let mut state = self.state();
        if number >= state.first {
            state.uncertain_writes.push((number, uncertain));
        }
    }

    /// Releases the writes of all sessions before `number`, which has replaced them.
    pub(crate) fn release_before(&self, number: u64) {
        let mut state = self.state();
        state.first = state.first.max(number);
        let over =
            state.uncertain_writes.extract_if(.., |(lost, _)| *lost < number).collect::<Vec<_>>();
        drop(state);
        drop(over);
    }

    /// True when any write is kept.
    pub(crate) fn has_any(&self) -> bool {
        !self.state().uncertain_writes.is_empty()
    }

    fn state(&self) -> MutexGuard<'_, LostSessionState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    /// Goal: a write waits for the uncertain writes that it overlaps, for no others, and continues
    /// when the last of them is settled.
    #[test]
    fn overlapping_writes_wait() {
        let uncertain_writes = Arc::<UncertainWrites>::default();
        let ticket = |lba, count| uncertain_writes.ticket(BlockRange::new(lba, count));
        let (first, second) = (ticket(10, 5).make_uncertain(), ticket(14, 2).make_uncertain());
        for (lba, count, waits) in
            [(0, 10, false), (9, 2, true), (15, 1, true), (16, 9, false), (12, 0, false)]
        {
            let range = BlockRange::new(lba, count);
            assert_eq!(uncertain_writes.overlaps(range), waits && count > 0, "{range:?}");
        }
        let mut waiting = Box::pin(uncertain_writes.wait_for_overlaps(BlockRange::new(14, 1)));
        assert!(waiting.as_mut().now_or_never().is_none());
        drop(first);
        assert!(waiting.as_mut().now_or_never().is_none(), "the other overlaps too");
        drop(second);
        assert!(waiting.as_mut().now_or_never().is_some());
        assert_eq!(uncertain_writes.count.load(Ordering::Relaxed), 0);
    }

    /// Goal: writes of a lost session stay uncertain until another replaces it; a write that is
    /// reported after that is not kept.
    #[test]
    fn a_replacing_login_decides_earlier_writes() {
        let uncertain_writes = Arc::<UncertainWrites>::default();
        let range = BlockRange::new(0, 8);
        let held = LostSessionWrites::default();
        held.hold(1, uncertain_writes.ticket(range).make_uncertain());
        held.release_before(1);
        assert!(uncertain_writes.overlaps(range), "a session does not replace itself");
        held.release_before(4);
        assert!(!uncertain_writes.overlaps(range));
        held.hold(3, uncertain_writes.ticket(range).make_uncertain());
        assert!(!uncertain_writes.overlaps(range), "its session was replaced long ago");
        held.hold(4, uncertain_writes.ticket(range).make_uncertain());
        assert!(uncertain_writes.overlaps(range));
    }
}
