//! Measure of contention: the share of the time for which an owner uses a device.

use std::time::Duration;
use tokio::time::Instant;

/// Time constant of [`BusyShare`]: an initiator that sends one command after another is idle
/// between two of them for much less.
const SHARE_TIME: Duration = Duration::from_millis(100);

/// Share below which an owner without commands is forgotten.
const FORGOTTEN_SHARE: f64 = 0.01;

/// The share of recent time in which an owner had commands, weighted by age. A new owner counts
/// in full at first.
#[derive(Debug)]
pub(super) struct BusyShare {
    /// The share at `since`.
    share: f64,
    since: Instant,
    is_busy: bool,
}

impl BusyShare {
    pub(super) fn new(now: Instant) -> Self {
        Self { share: 1.0, since: now, is_busy: false }
    }

    /// Records whether the owner has commands from now on.
    pub(super) fn set(&mut self, is_busy: bool, now: Instant) {
        if self.is_busy != is_busy {
            *self = Self { share: self.at(now), since: now, is_busy };
        }
    }

    /// Returns the share, from 0 to 1.
    pub(super) fn at(&self, now: Instant) -> f64 {
        let limit = if self.is_busy { 1.0 } else { 0.0 };
        let age = now.saturating_duration_since(self.since);
        limit + (self.share - limit) * (-age.as_secs_f64() / SHARE_TIME.as_secs_f64()).exp()
    }

    pub(super) fn is_forgotten(&self, now: Instant) -> bool {
        !self.is_busy && self.at(now) < FORGOTTEN_SHARE
    }
}
