//! Limits how long a connection whose client stops reading occupies its slot.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

/// A stream that fails when a write makes no progress for a given time.
pub(super) struct StallLimit<S> {
    stream: S,
    limit: Duration,
    waiting: bool,
    timer: Pin<Box<Sleep>>,
}

impl<S> StallLimit<S> {
    pub(super) fn new(stream: S, limit: Duration) -> Self {
        Self { stream, limit, waiting: false, timer: Box::pin(sleep(limit)) }
    }

    /// Returns `done`, or an error if it is pending for too long.
    fn limited<T>(
        &mut self,
        context: &mut Context<'_>,
        done: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if done.is_ready() {
            self.waiting = false;
            return done;
        }
        if !self.waiting {
            self.waiting = true;
            self.timer.as_mut().reset(Instant::now() + self.limit);
        }
        ready!(self.timer.as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for StallLimit<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for StallLimit<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let done = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.limited(context, done)
    }

    /// Writes several slices in one call. Without this function, hyper copies the chunks of a body
    /// into one buffer and drops them, with their memory charge, before the data is sent.
    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let done = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.limited(context, done)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let done = Pin::new(&mut self.stream).poll_flush(context);
        self.limited(context, done)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let done = Pin::new(&mut self.stream).poll_shutdown(context);
        self.limited(context, done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncWriteExt;

    /// Goal: a client that stops reading loses the connection, one that reads does not.
    #[tokio::test]
    async fn clients_that_stop_reading_are_disconnected() {
        let (server, client) = tokio::io::duplex(1024);
        let mut server = StallLimit::new(server, Duration::from_millis(50));
        server.write_all(&[0; 1024]).await.unwrap();
        let error = server.write_all(&[0; 1]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        drop(client);
    }
}
