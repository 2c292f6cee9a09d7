//! Debian's iscsi-perf: reads only, prints rates.

use super::Turn;
use crate::bench::cores::CLIENT_CORE;
use crate::bench::target::results::Sample;
use crate::process::pinned;
use anyhow::{Context, Result, ensure};
use lunar_load::{AccessPattern, ListeningProcess};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Block size that iscsi-perf counts in: all contestants serve blocks of this size.
const BLOCK_BYTES: u32 = 512;
/// Interval at which its processor time is read; the last reading before it ends counts.
const LOOK: Duration = Duration::from_millis(20);
/// Time that it may take beyond its measured time.
const OVERTIME: Duration = Duration::from_secs(30);

/// Runs one turn: iscsi-perf has no warm-up and runs for whole seconds, so the second value is 1.
///
/// # Errors
/// The program fails, or prints text that cannot be parsed.
pub fn turn(turn: &Turn<'_>) -> Result<(Sample, f64)> {
    let seconds = turn.times.measured.as_secs_f64().ceil().max(1.0);
    let core = (!turn.cell.is_shared).then_some(CLIENT_CORE);
    let mut command = in_lines(pinned(core, "iscsi-perf"));
    command.args(["-t", &seconds.to_string()]);
    command.args(["-m", &turn.cell.depth.to_string()]);
    command.args(["-b", &(turn.cell.io_bytes / BLOCK_BYTES).to_string()]);
    if turn.cell.pattern == AccessPattern::RandomRead {
        command.arg("-r");
    }
    let child = command
        .arg(&turn.portal.url)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("starting iscsi-perf: apt-get install libiscsi-bin")?;
    let (child, busy) = watch(child, Duration::from_secs_f64(seconds) + OVERTIME)?;
    let output = child.wait_with_output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "iscsi-perf: {}: {said}", output.status);
    let iops = average(&String::from_utf8_lossy(&output.stdout)).with_context(|| {
        format!(
            "the output of iscsi-perf contains no average: {}",
            String::from_utf8_lossy(&output.stdout)
        )
    })?;
    let sample = Sample {
        iops,
        bytes_per_second: iops * f64::from(turn.cell.io_bytes),
        client_busy: busy,
        ..Sample::default()
    };
    // The processor time of the target covers whole seconds.
    Ok((sample, seconds / turn.times.measured.as_secs_f64()))
}

/// Runs the program in its own process group and without a terminal, so that it cannot prompt.
fn in_lines(mut command: Command) -> Command {
    command.stdin(Stdio::null());
    command
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
        std::thread::sleep(LOOK);
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
