//! The clock of a process, for the protocol state machines.

use lunar_wire::Time;
use std::time::Instant;

/// Nanoseconds since the start; cheap to copy, the same on every core. Based on the runtime's
/// clock: when a test pauses that, this clock stops too.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    start: tokio::time::Instant,
}

impl Clock {
    /// Returns a clock that starts at zero now.
    pub fn start() -> Self {
        Self { start: tokio::time::Instant::now() }
    }

    /// Returns the time since the start.
    pub fn now(&self) -> Time {
        Time::from_nanos(u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// Returns the instant of `time`, for a timer; `None` if it is too far away to matter.
    pub fn instant(&self, time: Time) -> Option<Instant> {
        let after = std::time::Duration::from_nanos(time.as_nanos());
        self.start.checked_add(after).map(tokio::time::Instant::into_std)
    }
}
