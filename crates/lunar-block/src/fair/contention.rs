//! Measure of contention: the share of the time for which owners use a device.

use std::time::Duration;
use tokio::time::Instant;

/// Time constant of [`BusyShare`]: an initiator that sends one command after another is idle
/// between two of them for much less.
const SHARE_TIME: Duration = Duration::from_millis(100);

/// Share below which an owner without commands is forgotten.
const FORGOTTEN_SHARE: f64 = 0.01;

/// The share of recent time in which an owner had commands, weighted by age. A new owner counts
/// in full at first.
#[derive(Clone, Copy, Debug)]
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

    pub(super) fn is_busy(&self) -> bool {
        self.is_busy
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
        limit + (self.share - limit) * decay(self.since, now)
    }

    /// Returns the time from which an owner without commands is forgotten.
    pub(super) fn forgotten_at(&self) -> Instant {
        let times = (self.share / FORGOTTEN_SHARE).ln().max(0.0);
        self.since + SHARE_TIME.mul_f64(times)
    }
}

/// The sum of the shares of several owners. All follow the same exponential function, and so does
/// the sum.
#[derive(Debug, Default)]
pub(super) struct BusyShares {
    /// The sum at `since`.
    sum: f64,
    since: Option<Instant>,
    /// Number of owners.
    owners: usize,
    /// Number of owners that have commands.
    busy: usize,
}

impl BusyShares {
    /// Adds the share of an owner.
    pub(super) fn add(&mut self, share: &BusyShare, now: Instant) {
        self.sum = self.at(now) + share.at(now);
        self.since = self.since.max(Some(now));
        self.owners += 1;
        self.busy += usize::from(share.is_busy);
    }

    /// Removes the share of an owner, as it was added.
    pub(super) fn remove(&mut self, share: &BusyShare, now: Instant) {
        let rest = self.at(now) - share.at(now);
        self.owners -= 1;
        self.busy -= usize::from(share.is_busy);
        // Without owners, rounding errors end.
        self.sum = if self.owners == 0 { 0.0 } else { rest.max(0.0) };
        self.since = self.since.max(Some(now));
    }

    /// Returns the sum without the share of this owner.
    pub(super) fn others(&self, share: &BusyShare, now: Instant) -> f64 {
        self.at(now) - share.at(now)
    }

    fn at(&self, now: Instant) -> f64 {
        let limit = self.busy as f64;
        self.since.map_or(0.0, |since| limit + (self.sum - limit) * decay(since, now))
    }
}

/// Returns the factor by which a difference becomes smaller from one time to another.
fn decay(since: Instant, now: Instant) -> f64 {
    let age = now.saturating_duration_since(since);
    (-age.as_secs_f64() / SHARE_TIME.as_secs_f64()).exp()
}
