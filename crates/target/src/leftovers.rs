//! Aborted writes that the system is still at.
//!
//! What the system has begun cannot be called back: on a disk that hangs it may reach the medium
//! minutes after the command was aborted. Its initiator is not kept waiting for it; but the blocks
//! are. Whoever comes later, to read or to write, waits until the system is through with them, so
//! that nobody sees an aborted write come after he has seen that it had not, and none overwrites
//! what was written since. See docs/decisions/074.

use crate::ranges::RangeGuard;
use crate::unit::LogicalUnit;
use block::BoxFuture;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

/// How long an aborted write is waited for before it is left. A disk that works is through by then:
/// that a task is aborted means nearly always that it is over.
pub(crate) const ABORT_GRACE: Duration = Duration::from_millis(300);

/// So many of one unit; while there are as many, further writes get BUSY. Each holds its data.
const LEFTOVERS_MAX: usize = 64;

/// A change of the medium: begun when it is polled first, and then not to be dropped before its
/// end.
pub(crate) type Change = BoxFuture<'static, Result<(), block::Error>>;

/// How many writes of a unit were left to the system.
#[derive(Debug, Default)]
pub(crate) struct Leftovers {
    count: AtomicUsize,
}

impl Leftovers {
    /// How many there are now.
    pub(crate) fn count(&self) -> usize {
        self.count.load(SeqCst)
    }

    /// No more is to be begun.
    pub(crate) fn are_too_many(&self) -> bool {
        self.count() >= LEFTOVERS_MAX
    }
}

impl LogicalUnit {
    /// Waits a moment for `work`, which was begun and whose command is aborted; then leaves it, and
    /// `guard` with it.
    pub(crate) async fn finish_or_leave(
        self: &Arc<Self>,
        guard: RangeGuard,
        mut work: Change,
    ) -> Option<(RangeGuard, Result<(), block::Error>)> {
        if let Ok(done) = tokio::time::timeout(ABORT_GRACE, &mut work).await {
            return Some((guard, done));
        }
        guard.seclude();
        let left = Left::new(Arc::clone(self));
        // Not one of the core's own tasks: a server that stops does not wait for it.
        tokio::spawn(async move {
            let _ = work.await;
            drop(guard);
            drop(left);
        });
        None
    }
}

/// One is counted while this lives.
struct Left(Arc<LogicalUnit>);

impl Left {
    fn new(unit: Arc<LogicalUnit>) -> Self {
        if unit.leftovers.count.fetch_add(1, SeqCst) == 0 {
            let device = unit.device().name();
            tracing::error!(
                device,
                "the disk hangs: an aborted write does not return; who wants its blocks waits"
            );
        }
        Self(unit)
    }
}

impl Drop for Left {
    fn drop(&mut self) {
        if self.0.leftovers.count.fetch_sub(1, SeqCst) == 1 {
            let device = self.0.device().name();
            tracing::warn!(device, "the aborted writes that hung have returned");
        }
    }
}
