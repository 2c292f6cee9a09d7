//! Signal that tells a running command that it was aborted.

use futures_util::task::AtomicWaker;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;

/// Signals one running command that it was aborted.
#[derive(Clone, Debug, Default)]
pub(crate) struct AbortSignal {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    raised: AtomicBool,
    /// Waker of the waiter, if there is one: a command waits in one place at a time.
    waiting: AtomicWaker,
}

/// The command was aborted before it had its effect.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Aborted;

impl AbortSignal {
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
    pub(crate) async fn unless<T>(&self, work: impl Future<Output = T>) -> Result<T, Aborted> {
        let mut work = pin!(work);
        poll_fn(|context| {
            self.check()?;
            if let Poll::Ready(done) = work.as_mut().poll(context) {
                return Poll::Ready(Ok(done));
            }
            self.shared.waiting.register(context.waker());
            // The signal may have been raised before the waker was registered.
            self.check()?;
            Poll::Pending
        })
        .await
    }

    /// Waits until the command may move data in this turn ([`lunar_net::may_move`]), or until it is
    /// aborted.
    pub(crate) async fn may_move(&self) -> Result<(), Aborted> {
        self.unless(lunar_net::may_move()).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

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

    /// Fault: an aborted VERIFY waited for a turn in which it could move its next piece, and other
    /// commands of its session were always served first: a reset by another host took 7 s.
    #[test]
    fn an_aborted_command_waits_for_no_turn() {
        let signal = AbortSignal::default();
        let turn = lunar_net::MovingTurn::begin();
        lunar_net::count_moved(lunar_net::TURN_BYTES);
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let mut waits = Box::pin(signal.may_move());
            assert_eq!((&mut waits).now_or_never(), None);
            signal.raise();
            assert_eq!((&mut waits).now_or_never(), Some(Err(Aborted)));
        });
        drop(turn);
        assert_eq!(AbortSignal::default().may_move().now_or_never(), Some(Ok(())));
    }
}
