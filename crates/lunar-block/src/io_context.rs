//! The context of a transfer: its owner, and whether it can still be cancelled.

use crate::MemoryOwner;
use std::cell::RefCell;
use std::fmt;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering::SeqCst};

thread_local! {
    /// The context of the future that is being polled.
    static CURRENT: RefCell<Option<Arc<IoContext>>> = const { RefCell::new(None) };
}

/// The device has not reported a state: parts of the transfer may be with the system.
const UNKNOWN: u8 = 0;
/// No part of the transfer is with the system, or only parts that change no data.
const CANCELLABLE: u8 = 1;
/// The system has begun the transfer.
const BEGUN: u8 = 2;
/// The transfer is cancelled: no part of it may begin.
const CANCELLED: u8 = 3;

/// Tells whether transfers of other owners wait for the end of a transfer.
pub trait ForeignWaiters: fmt::Debug + Send + Sync {
    /// Returns `true` while others wait. When this becomes `true`, the future of the transfer is
    /// polled again.
    fn are_waiting(&self) -> bool;
}

/// The context of one transfer: its owner, and whether it can still be cancelled.
///
/// A device finds the context while its future is polled within [`scope`](Self::scope). The device
/// can use the owner to schedule transfers fairly, and records in the context when a transfer
/// begins. A transfer of a device that records nothing counts as begun. The future of one context
/// does one transfer at a time.
#[derive(Debug)]
pub struct IoContext {
    owner: Arc<MemoryOwner>,
    stage: AtomicU8,
    foreign_waiters: Option<Arc<dyn ForeignWaiters>>,
}

impl IoContext {
    /// Creates the context of a transfer that has not begun.
    pub fn new(owner: &Arc<MemoryOwner>) -> Arc<Self> {
        Self::with_foreign_waiters(owner, None)
    }

    /// Creates the context of a transfer that has not begun, and for which others may wait.
    pub fn with_foreign_waiters(
        owner: &Arc<MemoryOwner>,
        foreign_waiters: Option<Arc<dyn ForeignWaiters>>,
    ) -> Arc<Self> {
        let stage = AtomicU8::new(UNKNOWN);
        Arc::new(Self { owner: Arc::clone(owner), stage, foreign_waiters })
    }

    /// Creates the context of a part of this transfer, with the same owner and the same waiters:
    /// the part is cancelled on its own.
    pub fn part(&self) -> Arc<Self> {
        Self::with_foreign_waiters(&self.owner, self.foreign_waiters.clone())
    }

    /// Runs `work` in this context.
    pub async fn scope<T>(self: &Arc<Self>, work: impl Future<Output = T>) -> T {
        scope_in(Some(self), work).await
    }

    /// Runs `work` on behalf of the server itself, in no context: all owners may wait for it.
    pub async fn server_scope<T>(work: impl Future<Output = T>) -> T {
        scope_in(None, work).await
    }

    /// Calls `work` in this context.
    pub fn scope_sync<T>(self: &Arc<Self>, work: impl FnOnce() -> T) -> T {
        let _entered = ContextGuard::new(Some(self));
        work()
    }

    /// Cancels the transfer unless a part of it has begun or may have begun. If the result is
    /// `true`, its future can be dropped, and no part of it changes data after that.
    pub fn cancel(&self) -> bool {
        let from = self.stage.compare_exchange(CANCELLABLE, CANCELLED, SeqCst, SeqCst);
        matches!(from, Ok(_) | Err(CANCELLED))
    }

    /// Returns the context of the future that is being polled.
    pub fn current() -> Option<Arc<Self>> {
        CURRENT.with_borrow(Clone::clone)
    }

    /// Returns the owner of the transfer.
    pub fn owner(&self) -> &Arc<MemoryOwner> {
        &self.owner
    }

    /// Returns `true` while transfers of other owners wait for the end of this one.
    pub fn has_foreign_waiters(&self) -> bool {
        self.foreign_waiters.as_ref().is_some_and(|waiters| waiters.are_waiting())
    }

    /// Records that no part of the transfer that changes data is with the system.
    pub fn allow_cancel(&self) {
        self.stage.store(CANCELLABLE, SeqCst);
    }

    /// Records that the system begins the transfer. Returns `false` if the transfer was cancelled
    /// and must not begin.
    pub fn begin(&self) -> bool {
        self.stage.compare_exchange(CANCELLABLE, BEGUN, SeqCst, SeqCst).is_ok()
    }

    /// Records that the part that had begun is complete.
    pub fn end(&self) {
        self.stage.store(UNKNOWN, SeqCst);
    }
}

async fn scope_in<T>(entered: Option<&Arc<IoContext>>, work: impl Future<Output = T>) -> T {
    let mut work = pin!(work);
    poll_fn(|context| {
        let _entered = ContextGuard::new(entered);
        work.as_mut().poll(context)
    })
    .await
}

/// Sets the current context of this thread until it is dropped.
struct ContextGuard {
    outer: Option<Arc<IoContext>>,
}

impl ContextGuard {
    fn new(context: Option<&Arc<IoContext>>) -> Self {
        Self { outer: CURRENT.replace(context.cloned()) }
    }
}

impl Drop for ContextGuard {
    fn drop(&mut self) {
        CURRENT.set(self.outer.take());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    /// Goal: the context is available while its future is polled, and the transfer can be cancelled
    /// only while the device has recorded that nothing has begun.
    #[test]
    fn stages() {
        let context = IoContext::new(&Arc::default());
        assert!(!context.cancel(), "the device has reported nothing");
        assert!(IoContext::current().is_none());
        let seen = context.scope(async { IoContext::current() }).now_or_never().unwrap();
        assert!(Arc::ptr_eq(&seen.unwrap(), &context));
        let seen = context.scope_sync(IoContext::current);
        assert!(Arc::ptr_eq(&seen.unwrap(), &context));
        let server = IoContext::server_scope(async { IoContext::current() });
        assert!(context.scope(server).now_or_never().unwrap().is_none());
        assert!(IoContext::current().is_none());
        context.allow_cancel();
        assert!(context.begin());
        assert!(!context.cancel(), "it has begun");
        context.end();
        assert!(!context.cancel(), "the next state is unknown");
        context.allow_cancel();
        assert!(context.cancel());
        assert!(context.cancel(), "it stays cancelled");
        assert!(!context.begin());
    }
}
