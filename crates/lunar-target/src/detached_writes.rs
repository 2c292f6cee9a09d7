//! Aborted writes that the system is still at.
//!
//! What the system has begun cannot be called back: on a disk that hangs it may reach the medium
//! minutes after the command was aborted. Its initiator is not kept waiting for it; but the blocks
//! are. Whoever comes later, to read or to write, waits until the system is through with them, so
//! that nobody sees an aborted write come after he has seen that it had not, and none overwrites
//! what was written since. See docs/decisions/074.

use crate::ranges::RangeGuard;
use crate::unit::LogicalUnit;
use lunar_block::{BoxFuture, IoContext, MemoryOwner};
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

/// How long an aborted write is waited for before it is left. A disk that works is through by then:
/// that a task is aborted means nearly always that it is over.
pub(crate) const ABORT_GRACE: Duration = Duration::from_millis(300);

/// A leftover that lasts longer is reported: a busy disk is through by then.
const HANG_REPORT_DELAY: Duration = Duration::from_secs(5);

/// Leftovers of one owner at a unit; while there are as many, its further writes get BUSY. Each
/// holds its data.
const OWNER_LEFTOVERS_MAX: usize = 64;

/// Leftovers of all owners at a unit; while there are as many, all further writes get BUSY.
const LEFTOVERS_MAX: usize = 256;

/// A change of the medium: begun when it is polled first, and then not to be dropped before its
/// end, unless its [`IoContext`] can be cancelled.
pub(crate) type Change = BoxFuture<'static, Result<(), lunar_block::Error>>;

/// How many writes of a unit were left to the system.
#[derive(Debug, Default)]
pub(crate) struct DetachedWrites {
    count: AtomicUsize,
    owners: Mutex<Vec<OwnerDetachedWrites>>,
    /// Leftovers that were reported.
    reported: AtomicUsize,
}

/// The leftovers of one owner, which is compared by identity.
#[derive(Debug)]
struct OwnerDetachedWrites {
    owner: Arc<MemoryOwner>,
    count: usize,
}

impl DetachedWrites {
    /// How many there are now.
    pub(crate) fn count(&self) -> usize {
        self.count.load(SeqCst)
    }

    /// True if some owner may have as many as it may have: who asks without an owner is to ask
    /// again with it.
    pub(crate) fn may_be_too_many(&self) -> bool {
        self.count() >= OWNER_LEFTOVERS_MAX
    }

    /// True if this owner may begin no more.
    pub(crate) fn are_too_many(&self, owner: &Arc<MemoryOwner>) -> bool {
        let count = self.count();
        if count < OWNER_LEFTOVERS_MAX {
            return false;
        }
        let of_owner = |owners: &[OwnerDetachedWrites]| {
            let mut owners = owners.iter();
            owners.find(|other| Arc::ptr_eq(&other.owner, owner)).map_or(0, |other| other.count)
        };
        count >= LEFTOVERS_MAX || of_owner(&self.owners()) >= OWNER_LEFTOVERS_MAX
    }

    fn add(&self, owner: &Arc<MemoryOwner>) {
        let mut owners = self.owners();
        match owners.iter_mut().find(|other| Arc::ptr_eq(&other.owner, owner)) {
            Some(other) => other.count += 1,
            None => owners.push(OwnerDetachedWrites { owner: Arc::clone(owner), count: 1 }),
        }
        self.count.fetch_add(1, SeqCst);
    }

    fn remove(&self, owner: &Arc<MemoryOwner>) {
        let mut owners = self.owners();
        if let Some(at) = owners.iter().position(|other| Arc::ptr_eq(&other.owner, owner)) {
            owners[at].count -= 1;
            if owners[at].count == 0 {
                owners.swap_remove(at);
            }
        }
        self.count.fetch_sub(1, SeqCst);
    }

    fn owners(&self) -> MutexGuard<'_, Vec<OwnerDetachedWrites>> {
        self.owners.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A change of an owner, and how far it has come.
pub(crate) struct TrackedChange {
    owner: Arc<MemoryOwner>,
    context: Arc<IoContext>,
    work: Change,
    /// Nothing has begun before the first poll.
    polled: bool,
}

impl TrackedChange {
    /// A change to be begun for this owner.
    pub(crate) fn new(owner: &Arc<MemoryOwner>, work: Change) -> Self {
        Self { owner: Arc::clone(owner), context: IoContext::new(owner), work, polled: false }
    }

    /// Waits until the change has ended. Can be called again when it was dropped before.
    pub(crate) async fn ended(&mut self) -> Result<(), lunar_block::Error> {
        self.polled = true;
        self.context.scope(&mut self.work).await
    }

    /// Waits until the change has ended, or until nothing of it is with the system: then it is
    /// cancelled and must not be polled again, and `None` is returned.
    async fn ended_or_cancelled(&mut self) -> Option<Result<(), lunar_block::Error>> {
        if !self.polled {
            return None;
        }
        let (context, mut work) = (&self.context, Pin::new(&mut self.work));
        let poll = poll_fn(|task| {
            if context.cancel() {
                return Poll::Ready(None);
            }
            match work.as_mut().poll(task) {
                Poll::Ready(done) => Poll::Ready(Some(done)),
                Poll::Pending if context.cancel() => Poll::Ready(None),
                Poll::Pending => Poll::Pending,
            }
        });
        context.scope(poll).await
    }
}

impl LogicalUnit {
    /// Cancels `change`, whose command is aborted. What of it is with the system is waited for a
    /// moment; then it is left, and `guard` with it. `None`: its outcome is not known.
    pub(crate) async fn finish_or_leave(
        self: &Arc<Self>,
        guard: RangeGuard,
        mut change: TrackedChange,
    ) -> Option<(RangeGuard, Result<(), lunar_block::Error>)> {
        let ended = tokio::time::timeout(ABORT_GRACE, change.ended_or_cancelled()).await;
        if let Ok(ended) = ended {
            drop(change); // before its range is let go
            return ended.map(|done| (guard, done));
        }
        guard.block_readers();
        let mut left = DetachedWriteGuard::new(Arc::clone(self), &change.owner);
        // Not one of the core's own tasks: a server that stops does not wait for it.
        tokio::spawn(async move {
            let mut ended = std::pin::pin!(change.ended_or_cancelled());
            if tokio::time::timeout(HANG_REPORT_DELAY, &mut ended).await.is_err() {
                left.report();
                ended.await;
            }
            drop(guard);
            drop(left);
        });
        None
    }
}

/// One is counted while this lives.
struct DetachedWriteGuard {
    unit: Arc<LogicalUnit>,
    owner: Arc<MemoryOwner>,
    reported: bool,
}

impl DetachedWriteGuard {
    fn new(unit: Arc<LogicalUnit>, owner: &Arc<MemoryOwner>) -> Self {
        unit.detached_writes.add(owner);
        Self { unit, owner: Arc::clone(owner), reported: false }
    }

    /// Says in the log that the disk hangs, if no other leftover has.
    fn report(&mut self) {
        self.reported = true;
        if self.unit.detached_writes.reported.fetch_add(1, SeqCst) == 0 {
            let device = self.unit.device().name();
            tracing::error!(
                device,
                "disk not responding: an aborted write is still pending; I/O to its blocks waits"
            );
        }
    }
}

impl Drop for DetachedWriteGuard {
    fn drop(&mut self) {
        self.unit.detached_writes.remove(&self.owner);
        if self.reported && self.unit.detached_writes.reported.fetch_sub(1, SeqCst) == 1 {
            let device = self.unit.device().name();
            tracing::warn!(device, "disk responding again: the aborted writes have returned");
        }
    }
}
