//! Which processor cores a thread may use.

use anyhow::{Context, Result};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Where targets run, and what answers probes.
pub const TARGET_CORE: u16 = 0;
/// Where clients run, and what asks in probes.
pub const CLIENT_CORE: u16 = 1;

/// Keeps this thread, and those that it starts from now on, on one core.
///
/// # Errors
/// There is no such core, or this process may not use it.
pub fn pin(core: u16) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(usize::from(core));
    sched_setaffinity(None, &set).with_context(|| {
        format!(
            "core {core} cannot be used: two cores are wanted, one for a target, one for a client"
        )
    })
}

/// How many cores this thread may use.
///
/// # Errors
/// The system does not tell.
pub fn allowed() -> Result<usize> {
    Ok(sched_getaffinity(None)?.count() as usize)
}
