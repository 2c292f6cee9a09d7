//! Waits for the end of all commands in flight, without a message from them.

use std::convert::Infallible;
use tokio::sync::mpsc;

/// Token that keeps a barrier waiting; the wait ends when all clones are dropped.
#[derive(Clone, Debug)]
pub(crate) struct BarrierToken {
    _end: mpsc::Sender<Infallible>,
}

/// Waits until all its tokens are dropped.
#[derive(Debug)]
pub(crate) struct CompletionBarrier {
    listeners: mpsc::Receiver<Infallible>,
}

impl CompletionBarrier {
    /// Returns a token and its barrier.
    pub(crate) fn new() -> (BarrierToken, Self) {
        let (end, listeners) = mpsc::channel(1);
        (BarrierToken { _end: end }, Self { listeners })
    }

    /// Returns when the last token is dropped. The holders of tokens limit the time.
    pub(crate) async fn end(mut self) {
        let None = self.listeners.recv().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    /// Goal: the wait lasts as long as any token, and no longer.
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
