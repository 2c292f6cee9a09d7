//! Measurements by `qemu-io`: the same program for a file, `iscsi://` and `nfs://`.

use super::access::{Task, TaskResult};
use crate::peers::qemu_io::QemuIo;
use anyhow::{Context, Result, bail, ensure};
use std::time::{Duration, Instant};
use tokio::time::timeout;

/// Maximum time of one pass over a file.
const PASS_MAX: Duration = Duration::from_secs(1800);
/// Maximum time of a trial.
const TRIAL_MAX: Duration = Duration::from_secs(20);
/// Cache mode of the local file.
const CACHE: &str = "writeback";

/// URL for qemu-io, and the network namespace to run it in.
#[derive(Clone, Debug)]
pub(super) struct Qemu {
    url: String,
    /// Process whose network namespace is used, if it is another one.
    network_of: Option<u32>,
}

impl Qemu {
    /// A client in this process' network namespace.
    pub(super) fn here(url: String) -> Self {
        Self { url, network_of: None }
    }

    /// A client in the network namespace of process `pid`.
    pub(super) fn in_network_of(pid: u32, url: String) -> Self {
        Self { url, network_of: Some(pid) }
    }

    /// Checks that qemu-io can open the URL and read.
    pub(super) async fn try_it(&self) -> Result<()> {
        let task = Task { record_bytes: 4096, writes: false, byte: 0, offsets: vec![0] };
        match timeout(TRIAL_MAX, self.run(&task)).await {
            Ok(tried) => tried.map(drop),
            Err(_) => bail!("{} does not respond", self.url),
        }
    }

    /// Accesses every record of `task`, one at a time.
    pub(super) async fn pass(&self, task: &Task) -> Result<TaskResult> {
        let passed = timeout(PASS_MAX, self.run(task)).await;
        passed.with_context(|| format!("qemu-io took more than {PASS_MAX:?}"))?
    }

    async fn run(&self, task: &Task) -> Result<TaskResult> {
        let mut running = QemuIo::open(&self.url, CACHE, self.network_of).await?;
        let mut pass = TaskResult::default();
        for offset in &task.offsets {
            let printed = running.ask(&command(task, *offset)).await?;
            let took = parse(&printed, task.record_bytes);
            pass.add(took.with_context(|| format!("{}: {printed}", running.name()))?);
        }
        if task.writes {
            let begun = Instant::now();
            let printed = running.ask("flush").await?;
            pass.time += begun.elapsed();
            ensure!(printed.is_empty(), "{}: flush: {printed}", running.name());
        }
        running.end().await?;
        Ok(pass)
    }
}

/// Formats a command; `-C` selects machine-readable times.
fn command(task: &Task, offset: u64) -> String {
    match task.writes {
        true => format!("write -C -P {} {offset} {}", task.byte, task.record_bytes),
        false => format!("read -C {offset} {}", task.record_bytes),
    }
}

/// Parses `262144,1,0:00:00.00,365318286.400,1393.579`: bytes, requests, time, bytes per second,
/// requests per second. The time derived from the last figure is more exact than the third.
fn parse(printed: &str, record_bytes: u64) -> Option<Duration> {
    let mut fields = printed.split(',');
    let (bytes, requests) = (fields.next()?.parse::<u64>().ok()?, fields.next()?);
    let per_second: f64 = fields.nth(2)?.parse().ok()?;
    let is_whole = bytes == record_bytes && requests == "1" && per_second > 0.0;
    is_whole.then(|| Duration::try_from_secs_f64(1.0 / per_second).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: times are parsed from the output, and other text is rejected.
    #[test]
    fn answers() {
        let line = "262144,1,0:00:00.00,365318286.400,1250.000";
        assert_eq!(parse(line, 262_144), Some(Duration::from_micros(800)));
        assert_eq!(parse(line, 4096), None);
        for wrong in ["", "read failed: Input/output error", "262144,1,0:00:00.00,1.0,0"] {
            assert_eq!(parse(wrong, 262_144), None, "{wrong}");
        }
    }
}
