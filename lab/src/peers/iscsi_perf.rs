//! Debian's `iscsi-perf` (of libiscsi): a load generator that only reads and prints rates.

use crate::system::process::pinned;
use anyhow::{Context, Result, ensure};
use lunar_load::ListeningProcess;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// Block size that iscsi-perf counts in: all contestants serve blocks of this size.
const BLOCK_BYTES: u32 = 512;
/// Interval at which its processor time is read; the last reading before it ends counts.
const CPU_TIME_INTERVAL: Duration = Duration::from_millis(20);
/// Time that it may take beyond its measured time.
const OVERTIME: Duration = Duration::from_secs(30);

/// Work of iscsi-perf, which has no warm-up.
pub struct PerfRequest<'a> {
    /// URL of the LUN.
    pub url: &'a str,
    /// True for random offsets.
    pub is_random: bool,
    /// Bytes of a request, a multiple of 512.
    pub io_bytes: u32,
    /// Requests in flight at once.
    pub depth: u16,
    /// Time of the measurement.
    pub seconds: u32,
}

/// Measurements of iscsi-perf.
pub struct PerfResult {
    /// Requests a second.
    pub iops: f64,
    /// Share of a core that it used; `None`: it ended too soon.
    pub busy: Option<f64>,
}

/// Runs iscsi-perf, on one processor core if one is named.
///
/// # Errors
/// The program fails, or prints text that cannot be parsed.
pub fn run(core: Option<u16>, request: &PerfRequest<'_>) -> Result<PerfResult> {
    let mut command = pinned(core, "iscsi-perf");
    command.args(["-t", &request.seconds.to_string()]);
    command.args(["-m", &request.depth.to_string()]);
    command.args(["-b", &(request.io_bytes / BLOCK_BYTES).to_string()]);
    if request.is_random {
        command.arg("-r");
    }
    // Without a terminal, so that it cannot prompt.
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.arg(request.url).spawn();
    let child = child.context("starting iscsi-perf: apt-get install libiscsi-bin")?;
    let (child, busy) = watch(child, Duration::from_secs(request.seconds.into()) + OVERTIME)?;
    let output = child.wait_with_output()?;
    let printed = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "iscsi-perf: {}: {printed}", output.status);
    let stdout = String::from_utf8_lossy(&output.stdout);
    let iops = average(&stdout)
        .with_context(|| format!("the output of iscsi-perf contains no average: {stdout}"))?;
    Ok(PerfResult { iops, busy })
}

/// Waits until the program has ended; returns its processor use.
fn watch(mut child: Child, most: Duration) -> Result<(Child, Option<f64>)> {
    let (begun, owner) = (Instant::now(), ListeningProcess { pid: child.id() });
    let mut busy = None;
    while child.try_wait()?.is_none() {
        if let Some(spent) = owner.processor_time() {
            busy = Some(spent.as_secs_f64() / begun.elapsed().as_secs_f64());
        }
        if begun.elapsed() > most {
            child.kill()?;
        }
        std::thread::sleep(CPU_TIME_INTERVAL);
    }
    Ok((child, busy))
}

/// Parses the last average that it printed: `iops average 55220 (215 MB/s)`, after carriage
/// returns.
fn average(text: &str) -> Option<f64> {
    let (_, last) = text.rsplit_once("iops average ")?;
    last.split_whitespace().next()?.parse().ok().filter(|iops| *iops > 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the last average in the output of iscsi-perf is used, and other text yields none.
    #[test]
    fn the_last_average_counts() {
        let text = "will run for 2 seconds.\n\n\r00:00:01 - lba 115626, iops current 70264 (274 \
                    MB/s), iops average 70264 (274 MB/s), in_flight 32, busy 0         \
                    \riops average 55220 (215 MB/s)         \n\nfinished.\n";
        assert_eq!(average(text), Some(55220.0));
        assert_eq!(average("finished."), None);
        assert_eq!(average("iops average 0 (0 MB/s)"), None);
    }
}
