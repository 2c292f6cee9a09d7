//! Processor cores that a thread may use.

use anyhow::{Context, Result, anyhow};
use rustix::thread::{CpuSet, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};
use std::time::{Duration, Instant};

/// Core of targets and of the thread that answers probes.
pub const TARGET_CORE: u16 = 0;
/// Core of clients and of the thread that sends probes.
pub const CLIENT_CORE: u16 = 1;

/// Time that a thread spins to measure its share of a core: several scheduler time slices.
const SPIN: Duration = Duration::from_millis(20);

/// Keeps this thread, and the threads that it starts from now on, on one core.
///
/// # Errors
/// There is no such core, or this process may not use it.
pub fn pin(core: u16) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(usize::from(core));
    sched_setaffinity(None, &set).with_context(|| {
        format!(
            "core {core} cannot be used: the benchmark requires two cores, one for the target and \
             one for the client"
        )
    })
}

/// Measures the share of its core that this thread gets while it spins: 1 is all of it.
pub fn share() -> f64 {
    let spent = || {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
    };
    let (begun, before) = (Instant::now(), spent());
    while begun.elapsed() < SPIN {
        std::hint::spin_loop();
    }
    ((spent() - before) / begun.elapsed().as_secs_f64()).min(1.0)
}

/// Runs a closure on a thread of its own, whose cores it may choose.
///
/// # Errors
/// The error of the closure.
pub fn on_a_thread<T: Send>(run: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().spawn_scoped(scope, run)?;
        thread.join().map_err(|_| anyhow!("a thread panicked"))?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a share is a part of a core, and more than zero.
    #[test]
    fn shares() {
        let share = share();
        assert!(share > 0.0 && share <= 1.0, "{share}");
    }
}
