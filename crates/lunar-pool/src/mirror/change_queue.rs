//! The order of overlapping changes.

use lunar_block::BlockRange;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Semaphore;

/// The changes of a mirror that have not ended. A change waits for all earlier ones that overlap
/// it, so that all members get overlapping changes in the same order; other changes run side by
/// side.
#[derive(Debug, Default)]
pub(super) struct ChangeQueue {
    /// Number of changes, checked without the lock.
    count: AtomicUsize,
    changes: Mutex<Vec<QueuedChange>>,
}

#[derive(Clone, Debug)]
struct QueuedChange {
    range: BlockRange,
    /// Closed when the change has ended.
    ended: Arc<Semaphore>,
}

/// A change in the queue, which leaves it when this value is dropped.
#[derive(Debug)]
pub(super) struct ChangeTurn {
    queue: Arc<ChangeQueue>,
    ended: Arc<Semaphore>,
}

impl ChangeQueue {
    /// Enters the queue at once, and waits until all earlier overlapping changes have ended.
    pub(super) async fn enter(queue: &Arc<Self>, range: BlockRange) -> ChangeTurn {
        let (turn, earlier) = Self::push(queue, range);
        wait_for(earlier).await;
        turn
    }

    fn push(queue: &Arc<Self>, range: BlockRange) -> (ChangeTurn, Vec<Arc<Semaphore>>) {
        let mut changes = queue.changes();
        let earlier = overlapping(&changes, range);
        let ended = Arc::new(Semaphore::new(0));
        changes.push(QueuedChange { range, ended: Arc::clone(&ended) });
        queue.count.store(changes.len(), SeqCst);
        (ChangeTurn { queue: Arc::clone(queue), ended }, earlier)
    }

    /// True if a change that overlaps `range` has not ended.
    #[inline]
    pub(super) fn overlaps(&self, range: BlockRange) -> bool {
        self.count.load(SeqCst) > 0
            && self.changes().iter().any(|change| overlap(change.range, range))
    }

    /// Waits until all changes that overlap `range` now have ended.
    pub(super) async fn wait_for_overlapping(&self, range: BlockRange) {
        let earlier = overlapping(&self.changes(), range);
        wait_for(earlier).await;
    }

    fn changes(&self) -> MutexGuard<'_, Vec<QueuedChange>> {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for ChangeTurn {
    fn drop(&mut self) {
        let mut changes = self.queue.changes();
        if let Some(at) = changes.iter().position(|change| Arc::ptr_eq(&change.ended, &self.ended))
        {
            changes.swap_remove(at);
        }
        self.queue.count.store(changes.len(), SeqCst);
        drop(changes);
        self.ended.close();
    }
}

fn overlapping(changes: &[QueuedChange], range: BlockRange) -> Vec<Arc<Semaphore>> {
    let earlier = changes.iter().filter(|change| overlap(change.range, range));
    earlier.map(|change| Arc::clone(&change.ended)).collect()
}

async fn wait_for(changes: Vec<Arc<Semaphore>>) {
    for ended in changes {
        // There are no permits: this ends with an error when the semaphore is closed.
        let _ = ended.acquire().await;
    }
}

fn overlap(one: BlockRange, other: BlockRange) -> bool {
    one.lba < other.lba + other.count && other.lba < one.lba + one.count
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::{FutureExt, poll};
    use std::pin::pin;

    /// Goal: overlapping changes run one after the other in their order, others side by side, and
    /// one that gives up lets the next ones run.
    #[tokio::test]
    async fn overlapping_changes_wait() {
        let queue = Arc::new(ChangeQueue::default());
        let range = BlockRange::new;
        let first = ChangeQueue::enter(&queue, range(0, 10)).await;
        let mut second = pin!(ChangeQueue::enter(&queue, range(8, 10)));
        assert!(poll!(&mut second).is_pending());
        let third = ChangeQueue::enter(&queue, range(10, 5)).now_or_never();
        assert!(third.is_none(), "it overlaps the second, which waits");
        let fourth = ChangeQueue::enter(&queue, range(20, 1)).now_or_never();
        assert!(fourth.is_some(), "nothing overlaps it");
        assert!(ChangeQueue::enter(&queue, range(20, 1)).now_or_never().is_none());
        assert!(queue.overlaps(range(9, 1)) && !queue.overlaps(range(18, 2)));
        drop(first);
        let second = second.await;
        assert!(ChangeQueue::enter(&queue, range(0, 8)).now_or_never().is_some());
        let mut waiting = pin!(queue.wait_for_overlapping(range(0, 100)));
        assert!(poll!(&mut waiting).is_pending());
        drop((second, fourth));
        waiting.await;
        assert!(!queue.overlaps(range(0, 1000)));
        assert_eq!(queue.changes().len(), 0);
    }
}
