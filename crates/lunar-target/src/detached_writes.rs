//! Aborted writes that are still pending in the operating system.
//!
//! A write that the operating system has begun cannot be cancelled: on a disk that hangs it may
//! reach the medium minutes after the command was aborted. Its initiator does not wait for it, but
//! its blocks stay locked. Later reads and writes of these blocks wait until the system has
//! finished, so that no initiator sees an aborted write appear after it has seen the old data, and
//! the aborted write overwrites no newer data. See docs/decisions/074.

use crate::disk_unit::DiskUnit;
use crate::ranges::RangeGuard;
use lunar_block::{BoxFuture, IoContext, MemoryOwner};
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

/// Time to wait for an aborted write before it is detached. A working disk finishes the write
/// within this time, so the writes of nearly all aborted tasks have ended.
pub(crate) const ABORT_GRACE: Duration = Duration::from_millis(300);

/// Time after which a detached write is reported: a busy disk finishes earlier.
const HANG_REPORT_DELAY: Duration = Duration::from_secs(5);

/// Limit of detached writes of one owner at a unit. While it is reached, further writes of the
/// owner get BUSY. Each detached write holds its data.
const OWNER_DETACHED_WRITES_MAX: usize = 64;

/// Limit of detached writes of all owners at a unit. While it is reached, all further writes get
/// BUSY.
const DETACHED_WRITES_MAX: usize = 256;

/// A change of the medium. It begins when it is polled first, and must not be dropped before its
/// end unless its [`IoContext`] can be cancelled.
pub(crate) type MediumChange = BoxFuture<'static, Result<(), lunar_block::Error>>;

/// Counts of the detached writes of a unit.
#[derive(Debug, Default)]
pub(crate) struct DetachedWrites {
    count: AtomicUsize,
    owners: Mutex<Vec<OwnerDetachedWrites>>,
    /// Number of detached writes that were reported.
    reported: AtomicUsize,
}

/// The detached writes of one owner, which is compared by identity.
#[derive(Debug)]
struct OwnerDetachedWrites {
    owner: Arc<MemoryOwner>,
    count: usize,
}

impl DetachedWrites {
    /// Current number of detached writes.
    pub(crate) fn count(&self) -> usize {
        self.count.load(SeqCst)
    }

    /// True if some owner may have reached its limit. The caller then calls [`Self::are_too_many`]
    /// for its owner.
    pub(crate) fn may_be_too_many(&self) -> bool {
        self.count() >= OWNER_DETACHED_WRITES_MAX
    }

    /// True if this owner may begin no further writes.
    pub(crate) fn are_too_many(&self, owner: &Arc<MemoryOwner>) -> bool {
        if !self.may_be_too_many() {
            return false;
        }
        let of_owner = |owners: &[OwnerDetachedWrites]| {
            let mut owners = owners.iter();
            owners.find(|other| Arc::ptr_eq(&other.owner, owner)).map_or(0, |other| other.count)
        };
        self.count() >= DETACHED_WRITES_MAX || of_owner(&self.owners()) >= OWNER_DETACHED_WRITES_MAX
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

/// A change on behalf of an owner, with its progress.
pub(crate) struct TrackedChange {
    owner: Arc<MemoryOwner>,
    context: Arc<IoContext>,
    work: MediumChange,
    /// True after the first poll; nothing has begun before.
    polled: bool,
}

impl TrackedChange {
    /// A change on behalf of this owner, in this context, that has not begun.
    pub(crate) fn new(
        owner: &Arc<MemoryOwner>,
        context: Arc<IoContext>,
        work: MediumChange,
    ) -> Self {
        Self { owner: Arc::clone(owner), context, work, polled: false }
    }

    /// Waits until the change has ended. Can be called again if the future was dropped before.
    pub(crate) async fn ended(&mut self) -> Result<(), lunar_block::Error> {
        self.polled = true;
        self.context.scope(&mut self.work).await
    }

    /// Waits until the change has ended, or until no part of it is with the system. In the latter
    /// case the change is cancelled and must not be polled again, and `None` is returned.
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

impl DiskUnit {
    /// Cancels `change`, whose command is aborted. Waits up to [`ABORT_GRACE`] for parts that the
    /// operating system has begun; then the change is detached, together with `guard`. Returns
    /// `None` if its outcome is not known.
    pub(crate) async fn finish_or_detach(
        self: &Arc<Self>,
        guard: RangeGuard,
        mut change: TrackedChange,
    ) -> Option<(RangeGuard, Result<(), lunar_block::Error>)> {
        let ended = tokio::time::timeout(ABORT_GRACE, change.ended_or_cancelled()).await;
        if let Ok(ended) = ended {
            drop(change); // before its range is released
            return ended.map(|done| (guard, done));
        }
        guard.block_readers();
        let mut detached = DetachedWriteGuard::new(Arc::clone(self), &change.owner);
        // Not one of the core's own tasks: a stopping server does not wait for it.
        tokio::spawn(async move {
            let mut ended = std::pin::pin!(change.ended_or_cancelled());
            if tokio::time::timeout(HANG_REPORT_DELAY, &mut ended).await.is_err() {
                detached.report();
                ended.await;
            }
            drop(guard);
            drop(detached);
        });
        None
    }
}

/// Counts one detached write while it lives.
pub(crate) struct DetachedWriteGuard {
    unit: Arc<DiskUnit>,
    owner: Arc<MemoryOwner>,
    reported: bool,
}

impl DetachedWriteGuard {
    pub(crate) fn new(unit: Arc<DiskUnit>, owner: &Arc<MemoryOwner>) -> Self {
        unit.detached_writes.add(owner);
        Self { unit, owner: Arc::clone(owner), reported: false }
    }

    /// Logs that the disk does not respond, unless another detached write has logged it.
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
