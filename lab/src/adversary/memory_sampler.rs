//! Sampled peak memory of the server during an attack, and pauses of the adversary itself.

use super::memory_group::MemoryGroup;
use super::server::MEMORY_BYTES_MAX;
use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Time from one sample to the next.
const INTERVAL: Duration = Duration::from_millis(10);

/// Peak memory so far.
#[derive(Debug, Default)]
pub struct MemorySampler {
    peak_bytes: AtomicU64,
    /// The longest time between two samples, in milliseconds.
    pause_ms: AtomicU64,
    /// True when the server passed its limit and was killed for it, if no control group does that.
    has_ended_server: AtomicBool,
}

impl MemorySampler {
    /// Returns the highest memory use that was sampled.
    pub fn peak_bytes(&self) -> u64 {
        self.peak_bytes.load(Ordering::Relaxed)
    }

    /// Returns the longest time between two samples, in which the adversary itself did not run.
    pub fn pause(&self) -> Duration {
        Duration::from_millis(self.pause_ms.load(Ordering::Relaxed))
    }

    /// True when [`run`](Self::run) has killed the server.
    pub fn has_ended_server(&self) -> bool {
        self.has_ended_server.load(Ordering::Relaxed)
    }

    /// Samples the process and its group, until `stop` is set or the process has ended.
    pub fn run(&self, pid: u32, group: Option<Arc<MemoryGroup>>, stop: &AtomicBool) {
        let mut last = Instant::now();
        while !stop.load(Ordering::Relaxed) {
            let pause = u64::try_from(last.elapsed().as_millis()).unwrap_or(u64::MAX);
            self.pause_ms.fetch_max(pause, Ordering::Relaxed);
            last = Instant::now();
            // The kernel keeps the peak of the process itself; the remaining memory is sampled.
            let Ok(resident) = peak_resident_bytes(pid) else { return };
            let used = group.as_ref().and_then(|group| group.used_bytes().ok()).unwrap_or(0);
            self.peak_bytes.fetch_max(resident.max(used), Ordering::Relaxed);
            if group.is_none() && resident > MEMORY_BYTES_MAX {
                let number = i32::try_from(pid).ok().and_then(Pid::from_raw);
                let killed = number.is_some_and(|pid| kill_process(pid, Signal::KILL).is_ok());
                self.has_ended_server.fetch_or(killed, Ordering::Relaxed);
                return;
            }
            std::thread::sleep(INTERVAL);
        }
    }
}

/// Reads VmHWM, the peak of a process's resident memory. proc_pid_status(5).
fn peak_resident_bytes(pid: u32) -> Result<u64> {
    let path = format!("/proc/{pid}/status");
    let status = std::fs::read_to_string(&path).context(path)?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kilobytes = line.and_then(|line| line.split_whitespace().next());
    Ok(kilobytes.context("the server has ended: /proc has no VmHWM")?.parse::<u64>()? * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: without a control group a process that passes the limit is killed, and the reported
    /// peak is its real one.
    /// Method: a program that takes 1 GiB and waits.
    #[test]
    fn without_a_group_the_limit_holds_too() -> Result<()> {
        let take = "import time; taken = bytearray(b'x') * (1 << 30); time.sleep(600)";
        let mut child = std::process::Command::new("python3").args(["-c", take]).spawn()?;
        let sampler = MemorySampler::default();
        sampler.run(child.id(), None, &AtomicBool::new(false));
        let status = child.wait()?;
        assert!(sampler.has_ended_server() && !status.success());
        assert!(sampler.peak_bytes() > MEMORY_BYTES_MAX);
        Ok(())
    }
}
