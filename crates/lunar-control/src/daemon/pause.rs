//! Pauses between attempts to open a device whose storage is unreachable.

use crate::Failure;
use std::time::Duration;
use tokio::time::Instant;
use uuid::Uuid;

/// Pause after the first failed attempt; doubled after each further one.
pub(super) const PAUSE_MIN: Duration = Duration::from_secs(1);
/// Longest pause between two attempts, and the pause after a refusal.
pub(super) const PAUSE_MAX: Duration = Duration::from_secs(30);

/// The time of the next attempt.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RetryPause {
    next: Duration,
    /// `None` during an attempt.
    due: Option<Instant>,
}

impl RetryPause {
    /// The first attempt is due at once.
    pub(super) fn none() -> Self {
        Self { next: PAUSE_MIN, due: Some(Instant::now()) }
    }

    /// The first attempt has failed already.
    pub(crate) fn after(failure: &Failure) -> Self {
        let mut pause = Self::none();
        pause.failed(failure);
        pause
    }

    /// No attempt is due.
    pub(crate) fn never() -> Self {
        Self { next: PAUSE_MIN, due: None }
    }

    pub(crate) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Begins an attempt. Returns false if it is not due.
    pub(crate) fn begin(&mut self) -> bool {
        let is_due = self.due.is_some_and(|due| due <= Instant::now());
        if is_due {
            self.due = None;
        }
        is_due
    }

    /// Records a failed attempt, and schedules the next one.
    pub(crate) fn failed(&mut self, failure: &Failure) {
        let pause = match failure.is_temporary() {
            true => self.next,
            // A refusal repeats itself until an administrator changes something.
            false => PAUSE_MAX,
        };
        self.next = (self.next * 2).min(PAUSE_MAX);
        self.due = Some(Instant::now() + with_jitter(pause));
    }
}

/// Varies a pause at random between a half and the whole, so that the servers of a restarted
/// storage do not all log in at once.
fn with_jitter(pause: Duration) -> Duration {
    let half = pause / 2;
    let (random, _) = Uuid::new_v4().as_u64_pair();
    half + Duration::from_micros(random % (half.as_micros() as u64 + 1))
}
