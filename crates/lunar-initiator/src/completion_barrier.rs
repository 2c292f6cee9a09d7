//! Hearing out: waiting for the end of what is under way, without a word from it.

use std::convert::Infallible;
use tokio::sync::mpsc;

/// Somebody waits until this and all its clones are dropped.
#[derive(Clone, Debug)]
pub(crate) struct BarrierToken {
    _end: mpsc::Sender<Infallible>,
}

/// The wait itself.
#[derive(Debug)]
pub(crate) struct CompletionBarrier {
    listeners: mpsc::Receiver<Infallible>,
}

impl CompletionBarrier {
    /// A wait, and what keeps it going.
    pub(crate) fn new() -> (BarrierToken, Self) {
        let (end, listeners) = mpsc::channel(1);
        (BarrierToken { _end: end }, Self { listeners })
    }

    /// Returns when the last listener is dropped. Whoever drops it says for how long that may take.
    pub(crate) async fn end(mut self) {
        let None = self.listeners.recv().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    /// Goal: the wait lasts as long as any listener, and no longer.
    #[test]
    fn the_last_listener_ends_the_wait() {
        let (listener, hearing) = CompletionBarrier::new();
        let mut wait = Box::pin(hearing.end());
        let other = listener.clone();
        drop(listener);
        assert!(wait.as_mut().now_or_never().is_none());
        drop(other);
        assert!(wait.as_mut().now_or_never().is_some());
    }
}
