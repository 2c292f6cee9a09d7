//! Processor time: of this process, and of the one that answers it.

use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;

/// What this process has had so far.
pub fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    let (seconds, nanos) = (u64::try_from(time.tv_sec), u32::try_from(time.tv_nsec));
    Duration::new(seconds.unwrap_or_default(), nanos.unwrap_or_default())
}

/// A process of this machine that listens somewhere.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Owner {
    /// Its number.
    pub pid: u32,
}

impl Owner {
    /// What it has had so far; `None`: it is gone, or not ours to see.
    pub fn processor_time(&self) -> Option<Duration> {
        None
    }
}
