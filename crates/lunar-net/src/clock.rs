//! The one clock of a process, as protocol machines are told it.

use lunar_wire::Time;
use std::time::Instant;

/// Nanoseconds since it was made; cheap to copy, the same on every core. It is the runtime's clock:
/// where a test has paused that, it stands too.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    start: tokio::time::Instant,
}

impl Clock {
    /// Starts at zero now.
    pub fn start() -> Self {
        Self { start: tokio::time::Instant::now() }
    }

    /// Time since the start.
    pub fn now(&self) -> Time {
        Time::from_nanos(u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// The instant of `time`, for a timer; `None` if it is too far away to matter.
    pub fn instant(&self, time: Time) -> Option<Instant> {
        let after = std::time::Duration::from_nanos(time.as_nanos());
        self.start.checked_add(after).map(tokio::time::Instant::into_std)
    }
}
