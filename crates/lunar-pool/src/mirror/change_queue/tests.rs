//! Tests of the order of overlapping changes.

use super::*;
use futures_util::{FutureExt, poll};
use std::pin::pin;

fn range(lba: u64, count: u64) -> BlockRange {
    BlockRange::new(lba, count)
}

/// Enters the queue for an owner.
async fn enter(
    queue: &Arc<ChangeQueue>,
    owner: &Arc<MemoryOwner>,
    range: BlockRange,
) -> ChangeTurn {
    IoContext::new(owner).scope(ChangeQueue::enter(queue, range)).await
}

fn assert_empty(queue: &ChangeQueue) {
    let orders = queue.orders();
    assert!(orders.owners.is_empty() && orders.common.len() == 0 && orders.started.is_empty());
    assert_eq!(queue.count.load(SeqCst), 0);
}

/// Goal: overlapping changes of one owner run one after the other in their order, others side by
/// side, and one that is cancelled lets the next ones run.
#[tokio::test]
async fn overlapping_changes_wait() {
    let queue = Arc::new(ChangeQueue::default());
    let first = ChangeQueue::enter(&queue, range(0, 10)).await;
    let mut second = pin!(ChangeQueue::enter(&queue, range(8, 10)));
    assert!(poll!(&mut second).is_pending());
    let third = ChangeQueue::enter(&queue, range(10, 5)).now_or_never();
    assert!(third.is_none(), "it overlaps the second, which waits");
    let fourth = ChangeQueue::enter(&queue, range(20, 1)).now_or_never();
    assert!(fourth.is_some(), "nothing overlaps it");
    assert!(ChangeQueue::enter(&queue, range(20, 1)).now_or_never().is_none());
    assert_eq!(queue.source_of(range(9, 1)), ChangeSource::Only(0));
    assert_eq!(queue.source_of(range(10, 8)), ChangeSource::Any, "none has started there");
    drop(first);
    let second = second.await;
    assert!(ChangeQueue::enter(&queue, range(0, 8)).now_or_never().is_some());
    let mut waiting = pin!(queue.wait_for_overlapping(range(0, 100)));
    assert!(poll!(&mut waiting).is_pending());
    drop((second, fourth));
    waiting.await;
    assert_eq!(queue.source_of(range(0, 1000)), ChangeSource::Any);
    assert_empty(&queue);
}

/// Goal: a change keeps the source that it had when it started, also if it had to wait, and blocks
/// whose changes have different sources have none.
#[tokio::test]
async fn changes_keep_their_source() {
    let queue = Arc::new(ChangeQueue::default());
    let first = ChangeQueue::enter(&queue, range(0, 10)).await;
    let mut second = pin!(ChangeQueue::enter(&queue, range(5, 10)));
    assert!(poll!(&mut second).is_pending());
    queue.set_source(3);
    let third = ChangeQueue::enter(&queue, range(20, 10)).await;
    let source_of = |lba, count| queue.source_of(range(lba, count));
    assert_eq!(source_of(9, 11), ChangeSource::Only(0));
    assert_eq!(source_of(10, 20), ChangeSource::Only(3));
    assert_eq!(source_of(9, 12), ChangeSource::Unknown);
    drop(first);
    let second = second.await;
    assert_eq!(source_of(0, 5), ChangeSource::Any);
    assert_eq!(source_of(0, 100), ChangeSource::Only(3));
    assert_eq!(source_of(14, 1), ChangeSource::Only(3));
    drop((second, third));
    assert_eq!(source_of(0, 100), ChangeSource::Any);
    assert_empty(&queue);
}

/// Fault: a change waited for all earlier changes of another owner that overlap it. Goal: it waits
/// for the one that has started, and the owner's next one waits for it.
#[tokio::test]
async fn owners_take_turns() {
    let queue = Arc::new(ChangeQueue::default());
    let (many, one) = (Arc::default(), Arc::default());
    let started = enter(&queue, &many, range(0, 64)).await;
    let mut waiting: Vec<_> =
        (0..1000).map(|_| Box::pin(enter(&queue, &many, range(0, 64)))).collect();
    for change in &mut waiting {
        assert!(poll!(change).is_pending());
    }
    let mut other = Box::pin(enter(&queue, &one, range(8, 8)));
    assert!(poll!(&mut other).is_pending());
    drop(started);
    assert!(poll!(&mut waiting[0]).is_pending(), "it comes behind the other owner's change");
    let other = other.now_or_never().expect("nothing that has started overlaps it");
    let mut again = Box::pin(enter(&queue, &one, range(8, 8)));
    assert!(poll!(&mut again).is_pending());
    drop(other);
    let next = waiting.remove(0).now_or_never().expect("it is next");
    assert!(poll!(&mut again).is_pending());
    drop(next);
    assert!(again.now_or_never().is_some());
    drop(waiting);
    assert_empty(&queue);
}

/// Fault: changes of a host that was gone had their turns all the same, each for the time of a
/// write. Goal: one that waits can be cancelled, and ends when its turn comes; one that has its
/// turn cannot.
#[tokio::test]
async fn waiting_transfers_can_be_cancelled() {
    let queue = Arc::new(ChangeQueue::default());
    let contexts: Vec<_> = (0..3).map(|_| IoContext::new(&Arc::default())).collect();
    let enter = |at: usize| {
        let context: &Arc<IoContext> = &contexts[at];
        Box::pin(context.scope(ChangeQueue::enter_transfer(&queue, range(0, 8))))
    };
    let first = enter(0).await.expect("nothing was cancelled");
    let (mut second, mut third) = (enter(1), enter(2));
    assert!(poll!(&mut second).is_pending() && poll!(&mut third).is_pending());
    assert!(!contexts[0].cancel() && contexts[1].cancel());
    drop(first);
    assert!(second.now_or_never().expect("its turn has come").is_none());
    let third = third.now_or_never().expect("nothing is before it").expect("it goes on");
    assert!(!contexts[2].cancel());
    drop(third);
    assert_empty(&queue);
}

/// Goal: a long change waits for the changes that were there before it, not for the many short
/// changes of others that arrive later.
#[tokio::test]
async fn a_long_change_is_not_passed() {
    let queue = Arc::new(ChangeQueue::default());
    let owners: Vec<Arc<MemoryOwner>> = (0..4).map(|_| Arc::default()).collect();
    let mut started = Vec::new();
    for (at, owner) in (0..).zip(&owners[1..]) {
        started.push(enter(&queue, owner, range(at, 1)).await);
    }
    let mut long = Box::pin(enter(&queue, &owners[0], range(0, 100)));
    assert!(poll!(&mut long).is_pending());
    for owner in &owners[1..] {
        for at in 0..100 {
            assert!(enter(&queue, owner, range(at, 1)).now_or_never().is_none());
        }
    }
    drop(started);
    assert!(long.now_or_never().is_some());
    assert_empty(&queue);
}

/// Goal: a change that is cancelled while it waits, in either order, leaves nothing behind, and
/// those behind it still wait for the ones before it.
#[tokio::test]
async fn dropped_waiters_leave_nothing() {
    let queue = Arc::new(ChangeQueue::default());
    let (one, other) = (Arc::default(), Arc::default());
    let started = enter(&queue, &one, range(0, 8)).await;
    for owner in [&one, &other] {
        let mut dropped = Box::pin(enter(&queue, owner, range(0, 8)));
        assert!(poll!(&mut dropped).is_pending());
        let mut behind = Box::pin(enter(&queue, owner, range(4, 8)));
        assert!(poll!(&mut behind).is_pending());
        drop(dropped);
        assert!(poll!(&mut behind).is_pending(), "the first change has not ended");
    }
    let mut last = Box::pin(enter(&queue, &other, range(0, 4)));
    assert!(poll!(&mut last).is_pending());
    drop(started);
    assert!(last.now_or_never().is_some());
    assert_empty(&queue);
}
