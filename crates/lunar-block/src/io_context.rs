//! The context of a transfer: its owner, and whether it can still be cancelled.

use crate::MemoryOwner;
use futures_util::future::join_all;
use std::cell::RefCell;
use std::fmt;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicU8, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

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
    /// The transfer of which this one is a part, if its parts are cancelled together.
    joint: Option<Arc<JointParts>>,
}

/// The parts of one transfer that are cancelled together: the stage of the transfer is that of its
/// parts.
#[derive(Debug)]
struct JointParts {
    transfer: Arc<IoContext>,
    counts: Mutex<PartCounts>,
}

#[derive(Debug)]
struct PartCounts {
    /// Number of parts that have not ended.
    open: usize,
    /// Number of these that cannot be cancelled.
    busy: usize,
}

impl JointParts {
    fn counts(&self) -> MutexGuard<'_, PartCounts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that one more part can be cancelled.
    fn allow_cancel(&self) {
        let mut counts = self.counts();
        counts.busy -= 1;
        if counts.busy == 0 {
            self.transfer.allow_cancel();
        }
    }

    /// Records that a part begins that could be cancelled. Returns `false` if it was.
    fn begin(&self) -> bool {
        let mut counts = self.counts();
        let begins = counts.busy > 0 || self.transfer.begin();
        counts.busy += usize::from(begins);
        begins
    }

    fn end(&self, was_busy: bool) {
        let mut counts = self.counts();
        counts.open -= 1;
        counts.busy -= usize::from(was_busy);
        match (counts.open, counts.busy) {
            (0, _) if self.transfer.begin() => self.transfer.end(),
            (1.., 0) if was_busy => self.transfer.allow_cancel(),
            _ => {}
        }
    }
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
        Arc::new(Self { owner: Arc::clone(owner), stage, foreign_waiters, joint: None })
    }

    /// Creates the context of a part of this transfer, with the same owner and the same waiters:
    /// the part is cancelled on its own.
    pub fn part(&self) -> Arc<Self> {
        Self::with_foreign_waiters(&self.owner, self.foreign_waiters.clone())
    }

    /// Does the transfer by parts, side by side, each in a context of its own. The transfer can be
    /// cancelled while none of the parts that have not ended has begun, or may have.
    pub async fn join_parts<P: Future>(
        self: &Arc<Self>,
        parts: impl IntoIterator<Item = P>,
    ) -> Vec<P::Output> {
        let parts: Vec<P> = parts.into_iter().collect();
        let counts = PartCounts { open: parts.len(), busy: parts.len() };
        let joint = Arc::new(JointParts { transfer: Arc::clone(self), counts: Mutex::new(counts) });
        join_all(parts.into_iter().map(|part| {
            let context = Arc::new(Self {
                owner: Arc::clone(&self.owner),
                stage: AtomicU8::new(UNKNOWN),
                foreign_waiters: self.foreign_waiters.clone(),
                joint: Some(Arc::clone(&joint)),
            });
            let joint = Arc::clone(&joint);
            async move {
                let done = context.scope(part).await;
                joint.end(is_busy(context.stage.load(SeqCst)));
                done
            }
        }))
        .await
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
        let before = self.stage.swap(CANCELLABLE, SeqCst);
        if let Some(joint) = self.joint.as_ref().filter(|_| is_busy(before)) {
            joint.allow_cancel();
        }
    }

    /// Records that the system begins the transfer. Returns `false` if the transfer was cancelled
    /// and must not begin.
    pub fn begin(&self) -> bool {
        if self.stage.compare_exchange(CANCELLABLE, BEGUN, SeqCst, SeqCst).is_err() {
            return false;
        }
        let begins = self.joint.as_ref().is_none_or(|joint| joint.begin());
        if !begins {
            self.stage.store(CANCELLED, SeqCst);
        }
        begins
    }

    /// Records that the part that had begun is complete.
    pub fn end(&self) {
        self.stage.store(UNKNOWN, SeqCst);
    }
}

/// True if a transfer in this stage cannot be cancelled.
fn is_busy(stage: u8) -> bool {
    matches!(stage, UNKNOWN | BEGUN)
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
    use futures_util::future::{BoxFuture, pending, ready};

    /// A part that waits for ever after `before`.
    fn part(before: fn(&IoContext)) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            before(&IoContext::current().unwrap());
            pending::<()>().await;
        })
    }

    fn waiting() -> BoxFuture<'static, ()> {
        part(IoContext::allow_cancel)
    }

    fn begun() -> BoxFuture<'static, ()> {
        part(|context| {
            context.allow_cancel();
            assert!(context.begin());
        })
    }

    /// Goal: a transfer of several parts can be cancelled while all that have not ended wait, also
    /// if a part has parts itself.
    #[test]
    fn joint_parts_are_cancelled_together() {
        let can_cancel = |parts: Vec<BoxFuture<'static, ()>>| {
            let context = IoContext::new(&Arc::default());
            let done = context.join_parts(parts).now_or_never();
            (done.is_none(), context.cancel())
        };
        let nested = |parts: Vec<BoxFuture<'static, ()>>| -> BoxFuture<'static, ()> {
            Box::pin(async move { drop(IoContext::current().unwrap().join_parts(parts).await) })
        };
        let ended = || -> BoxFuture<'static, ()> { Box::pin(ready(())) };
        assert_eq!(can_cancel(vec![waiting(), waiting(), ended()]), (true, true));
        assert_eq!(can_cancel(vec![waiting(), begun()]), (true, false));
        assert_eq!(can_cancel(vec![waiting(), part(|_| ())]), (true, false), "it may have begun");
        assert_eq!(can_cancel(vec![ended(), ended()]), (false, false));
        assert_eq!(can_cancel(vec![nested(vec![waiting(), waiting()]), waiting()]), (true, true));
        assert_eq!(can_cancel(vec![nested(vec![waiting(), begun()]), waiting()]), (true, false));
        assert_eq!(can_cancel(vec![nested(vec![ended(), ended()]), waiting()]), (true, true));
        let ends = nested(vec![ended(), begun()]);
        assert_eq!(can_cancel(vec![ends, waiting()]), (true, false));
    }

    /// Goal: after a transfer is cancelled, no part of it begins; after one part has begun, it is
    /// not cancelled.
    #[test]
    fn no_part_begins_after_a_cancel() {
        for is_cancelled in [false, true] {
            let context = IoContext::new(&Arc::default());
            let (send, receive) = std::sync::mpsc::channel();
            let parts = (0..2).map(|_| {
                let send = send.clone();
                part_sending(send)
            });
            assert!(context.join_parts(parts).now_or_never().is_none());
            let parts: Vec<Arc<IoContext>> = receive.try_iter().collect();
            assert_eq!(parts.len(), 2);
            if is_cancelled {
                assert!(context.cancel());
            }
            assert_eq!(
                parts.iter().map(|part| part.begin()).collect::<Vec<_>>(),
                [!is_cancelled; 2]
            );
            assert_eq!(context.cancel(), is_cancelled);
            if !is_cancelled {
                parts[0].end();
                parts[0].allow_cancel();
                assert!(!context.cancel(), "the second part has begun");
                parts[1].allow_cancel();
                assert!(context.cancel() && !parts[1].begin());
            }
        }
    }

    async fn part_sending(contexts: std::sync::mpsc::Sender<Arc<IoContext>>) {
        let context = IoContext::current().unwrap();
        context.allow_cancel();
        contexts.send(context).unwrap();
        pending::<()>().await;
    }

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
