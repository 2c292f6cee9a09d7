//! The one clock of a process, as protocol machines are told it.

use std::time::Instant;
use wire::Time;

/// Nanoseconds since it was made; cheap to copy, the same on every core.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    start: Instant,
}

impl Clock {
    /// Starts at zero now.
    pub fn start() -> Self {
        Self { start: Instant::now() }
    }

    /// Time since the start.
    pub fn now(&self) -> Time {
        Time::from_nanos(u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// The instant of `time`, for a timer; `None` if it is too far away to matter.
    pub fn instant(&self, time: Time) -> Option<Instant> {
        self.start.checked_add(std::time::Duration::from_nanos(time.as_nanos()))
    }
}
