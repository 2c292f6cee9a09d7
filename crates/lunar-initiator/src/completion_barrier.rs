//! A barrier that waits for the end of all commands in flight: each holds a token, and drops it
//! when it ends.

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
    tokens: mpsc::Receiver<Infallible>,
}

impl CompletionBarrier {
    /// Returns a token and its barrier.
    pub(crate) fn new() -> (BarrierToken, Self) {
        let (end, tokens) = mpsc::channel(1);
        (BarrierToken { _end: end }, Self { tokens })
    }

    /// Returns when the last token is dropped. There is no time limit here: each command has one.
    pub(crate) async fn end(mut self) {
        let None = self.tokens.recv().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    /// Goal: the wait lasts as long as any token, and no longer.
    #[test]
    fn dropping_the_last_token_ends_the_wait() {
        let (token, barrier) = CompletionBarrier::new();
        let mut wait = Box::pin(barrier.end());
        let other = token.clone();
        drop(token);
        assert!(wait.as_mut().now_or_never().is_none());
        drop(other);
        assert!(wait.as_mut().now_or_never().is_some());
    }
}
