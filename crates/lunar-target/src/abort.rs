//! Signal that tells a running command that it was aborted, and its connection that it is awaited.

use crate::awaited::AwaitedSignal;
use futures_util::task::AtomicWaker;
use lunar_block::{ForeignWaiters, IoContext, MemoryOwner};
use pin_project_lite::pin_project;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll};

/// Signals one running command that it was aborted, and its connection that commands of other
/// owners wait for it.
#[derive(Clone, Debug, Default)]
pub(crate) struct AbortSignal {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    raised: AtomicBool,
    /// Waker of the waiter, if there is one: a command waits for one thing at a time.
    waiting: AtomicWaker,
    /// Number of reasons for which the command is [awaited](crate::awaited): claims that it holds
    /// or waits for, and its wait at a limit.
    awaited: AtomicUsize,
    /// `None` for work that no connection polls.
    connection: Option<Arc<AwaitedSignal>>,
}

impl ForeignWaiters for Shared {
    fn are_waiting(&self) -> bool {
        self.awaited.load(Ordering::SeqCst) > 0
    }
}

pin_project! {
    /// Work that is waited for until the command is aborted. An async function would have the work
    /// twice in its memory, as its argument and where it is polled.
    pub(crate) struct UnlessAborted<'a, F> {
        signal: &'a AbortSignal,
        #[pin]
        work: F,
    }
}

impl<F: Future> Future for UnlessAborted<'_, F> {
    type Output = Result<F::Output, Aborted>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let (signal, work) = (this.signal, this.work);
        signal.check()?;
        let was_awaited = signal.is_awaited();
        if let Poll::Ready(done) = work.poll(context) {
            return Poll::Ready(Ok(done));
        }
        signal.shared.waiting.register(context.waker());
        // Both signals may have been raised before the waker was registered.
        signal.check()?;
        if signal.is_awaited() && !was_awaited {
            context.waker().wake_by_ref();
        }
        Poll::Pending
    }
}

/// Makes a command awaited until it is dropped.
#[derive(Debug)]
pub(crate) struct AwaitedGuard<'a>(&'a AbortSignal);

impl Drop for AwaitedGuard<'_> {
    fn drop(&mut self) {
        self.0.uncount_awaited();
    }
}

/// The command was aborted before it had its effect.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Aborted;

impl AbortSignal {
    /// Signal of a command that the connection with this signal polls.
    pub(crate) fn new(connection: &Arc<AwaitedSignal>) -> Self {
        let connection = Some(Arc::clone(connection));
        Self { shared: Arc::new(Shared { connection, ..Shared::default() }) }
    }

    /// Counts one more reason for which the command is awaited. The caller has to call
    /// [`signal_connection`](Self::signal_connection) next.
    pub(crate) fn count_awaited(&self) {
        self.shared.awaited.fetch_add(1, Ordering::SeqCst);
    }

    pub(crate) fn uncount_awaited(&self) {
        self.shared.awaited.fetch_sub(1, Ordering::SeqCst);
    }

    /// True while commands of other owners wait for this one.
    pub(crate) fn is_awaited(&self) -> bool {
        self.shared.are_waiting()
    }

    /// Lets the connection poll its awaited commands out of turn, and the command look at its
    /// transfer: others [wait for it](IoContext::has_foreign_waiters) now.
    pub(crate) fn signal_connection(&self) {
        if let Some(connection) = &self.shared.connection {
            connection.raise();
        }
        self.shared.waiting.wake();
    }

    /// Context of a transfer of the command, which has foreign waiters while the command is
    /// awaited.
    pub(crate) fn io_context(&self, owner: &Arc<MemoryOwner>) -> Arc<IoContext> {
        let waiters = Arc::clone(&self.shared) as Arc<dyn ForeignWaiters>;
        IoContext::with_foreign_waiters(owner, Some(waiters))
    }

    /// Makes the command awaited.
    pub(crate) fn awaited(&self) -> AwaitedGuard<'_> {
        self.count_awaited();
        self.signal_connection();
        AwaitedGuard(self)
    }

    /// Aborts the command at the next point where it can be aborted.
    pub(crate) fn raise(&self) {
        self.shared.raised.store(true, Ordering::SeqCst);
        self.shared.waiting.wake();
    }

    /// Returns an error if the command was aborted.
    pub(crate) fn check(&self) -> Result<(), Aborted> {
        if self.shared.raised.load(Ordering::SeqCst) { Err(Aborted) } else { Ok(()) }
    }

    /// Waits for `work` until the command is aborted. `work` is then dropped, so it must have no
    /// effect on the medium.
    pub(crate) fn unless<F: Future>(&self, work: F) -> UnlessAborted<'_, F> {
        UnlessAborted { signal: self, work }
    }

    /// Lets the connection continue with other commands, and with this one in its owner's turn,
    /// unless the command is aborted. If the runtime woke the connection later, as
    /// `tokio::task::yield_now` does, its other commands would be polled in vain.
    pub(crate) async fn yield_now(&self) -> Result<(), Aborted> {
        let mut yielded = false;
        self.unless(poll_fn(|context| {
            if std::mem::replace(&mut yielded, true) {
                return Poll::Ready(());
            }
            context.waker().wake_by_ref();
            Poll::Pending
        }))
        .await
    }

    /// Waits until the command may move data in this turn ([`lunar_net::wait_to_move`]), or is
    /// aborted.
    pub(crate) async fn wait_to_move(&self) -> Result<(), Aborted> {
        self.unless(lunar_net::wait_to_move()).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use std::pin::pin;
    use std::task::{Wake, Waker};

    /// Number of times a task was woken.
    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Fault: a command that became awaited while it was polled, before its waker was registered,
    /// did not look at its transfer, which waited behind others of its owner.
    #[test]
    fn a_command_that_becomes_awaited_is_polled_again() {
        let signal = AbortSignal::default();
        let woken = Arc::<Woken>::default();
        let waker = Waker::from(Arc::clone(&woken));
        let mut context = Context::from_waker(&waker);
        let mut guard = None;
        let mut polls = 0;
        let transfer = poll_fn(|_| {
            polls += 1;
            guard.get_or_insert_with(|| signal.awaited());
            Poll::<()>::Pending
        });
        let mut waits = Box::pin(signal.unless(transfer));
        assert!(waits.as_mut().poll(&mut context).is_pending());
        assert_eq!(woken.0.load(Ordering::SeqCst), 1);
        assert!(waits.as_mut().poll(&mut context).is_pending());
        assert_eq!(woken.0.load(Ordering::SeqCst), 1, "once");
        drop(waits);
        assert_eq!(polls, 2);
    }

    #[test]
    fn work_is_done_or_dropped() {
        let signal = AbortSignal::default();
        assert_eq!(signal.unless(async { 7 }).now_or_never(), Some(Ok(7)));
        let mut waits = Box::pin(signal.unless(std::future::pending::<()>()));
        assert_eq!((&mut waits).now_or_never(), None);
        signal.raise();
        assert_eq!((&mut waits).now_or_never(), Some(Err(Aborted)));
        assert_eq!(signal.unless(async { 7 }).now_or_never(), Some(Err(Aborted)), "from now on");
        assert_eq!(signal.check(), Err(Aborted));
    }

    /// Goal: a transfer has foreign waiters while its command is awaited, and is polled as soon as
    /// it has some, so that the disk can see it.
    #[test]
    fn a_transfer_has_waiters_while_its_command_is_awaited() {
        let (signal, woken) = (AbortSignal::default(), Arc::<Woken>::default());
        let context = signal.io_context(&Arc::default());
        let mut transfer = pin!(signal.unless(context.scope(std::future::pending::<()>())));
        let waker = Waker::from(Arc::clone(&woken));
        assert!(transfer.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        assert!(!context.has_foreign_waiters() && woken.0.load(Ordering::SeqCst) == 0);
        let awaited = signal.awaited();
        assert!(context.has_foreign_waiters() && woken.0.load(Ordering::SeqCst) == 1);
        drop(awaited);
        assert!(!context.has_foreign_waiters());
    }

    /// Fault: an aborted VERIFY waited for a turn in which it could move its next piece, and other
    /// commands of its session were always served first: a reset by another host took 7 s.
    #[test]
    fn an_aborted_command_waits_for_no_turn() {
        let signal = AbortSignal::default();
        let turn = lunar_net::MoveBudget::begin();
        lunar_net::count_moved(lunar_net::TURN_BYTES);
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let mut waits = Box::pin(signal.wait_to_move());
            assert_eq!((&mut waits).now_or_never(), None);
            signal.raise();
            assert_eq!((&mut waits).now_or_never(), Some(Err(Aborted)));
        });
        drop(turn);
        assert_eq!(AbortSignal::default().wait_to_move().now_or_never(), Some(Ok(())));
    }
}
