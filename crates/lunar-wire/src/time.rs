//! Time as a value: protocol machines receive the current time as input.

use core::time::Duration;

/// A monotonic time in nanoseconds since an arbitrary start; 64 bits are enough for 584 years.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash)]
pub struct Time(u64);

impl Time {
    /// The start.
    pub const ZERO: Self = Self(0);

    /// Creates a time from nanoseconds since the start.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since the start.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Returns the time `span` later; saturates at the largest time.
    #[must_use]
    pub const fn after(self, span: Duration) -> Self {
        let nanos = span.as_nanos();
        if nanos > (u64::MAX - self.0) as u128 {
            Self(u64::MAX)
        } else {
            Self(self.0 + nanos as u64)
        }
    }

    /// The duration since `earlier`; zero if it is not earlier.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}
