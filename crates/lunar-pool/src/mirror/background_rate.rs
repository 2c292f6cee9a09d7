//! The rate of background work.

use super::Mirror;
use std::num::NonZeroU64;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

/// Rate limiter of background work that processes the mirror in pieces while users access it.
#[derive(Debug)]
pub(super) struct BackgroundRateLimiter {
    /// Number of operations of users at the last piece.
    foreground: u64,
    last_piece_bytes: u64,
}

/// Maximum rates in bytes per second.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rates {
    /// While users have operations.
    pub(super) busy: Option<NonZeroU64>,
    /// While they have none.
    pub(super) idle: Option<NonZeroU64>,
}

impl BackgroundRateLimiter {
    pub(super) fn new(mirror: &Mirror) -> Self {
        Self { foreground: mirror.foreground.load(SeqCst), last_piece_bytes: 0 }
    }

    /// Records that a piece of this length begins.
    pub(super) fn begin_piece(&mut self, bytes: u64) {
        self.last_piece_bytes = bytes;
    }

    /// Returns the rate that limits the next piece: users may have had operations since the last
    /// call.
    pub(super) fn rate(&mut self, mirror: &Mirror, rates: Rates) -> Option<NonZeroU64> {
        let foreground = mirror.foreground.load(SeqCst);
        let is_busy = std::mem::replace(&mut self.foreground, foreground) != foreground;
        if is_busy { rates.busy } else { rates.idle }
    }

    /// Waits for the time that the last piece takes at this rate.
    pub(super) async fn pause(&self, mirror: &Mirror, rate: Option<NonZeroU64>) {
        let Some(rate) = rate else { return };
        let pause = Duration::from_secs_f64(self.last_piece_bytes as f64 / rate.get() as f64);
        let mut closed = mirror.closed.subscribe();
        tokio::select! {
            _ = closed.wait_for(|closed| *closed) => {}
            () = tokio::time::sleep(pause) => {}
        }
    }

    /// Waits before another piece if users have operations, or if the rate is limited.
    pub(super) async fn wait(&mut self, mirror: &Mirror, rates: Rates) {
        let rate = self.rate(mirror, rates);
        self.pause(mirror, rate).await;
    }
}
