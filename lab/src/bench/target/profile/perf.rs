//! Runs perf, which samples a process and prints the stacks.

use crate::bench::flame;
use crate::system::files::TemporaryFolder;
use crate::system::process::pinned;
use anyhow::{Context, Result, bail, ensure};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

/// Samples a second of each core: a prime, so that no periodic work keeps step with it.
const SAMPLES: &str = "997";
/// Method of unwinding. The binary has no frame pointers, so the tables for unwinding are used, on
/// a copy of the stack. 8 KiB are too little: the driver of a connection alone uses more.
const STACKS: &str = "dwarf,16384";

/// Checks that perf is installed.
///
/// # Errors
/// perf is not installed.
pub fn check_installed() -> Result<()> {
    let output = Command::new("perf").arg("--version").stdin(Stdio::null()).output();
    let is_installed = output.is_ok_and(|output| output.status.success());
    ensure!(is_installed, "perf is not installed: apt-get install linux-perf");
    Ok(())
}

/// Samples a process for this time; returns the output of `perf script`.
///
/// # Errors
/// The system refuses (`/proc/sys/kernel/perf_event_paranoid`), or there is no room.
pub fn script(pid: u32, core: Option<u16>, time: Duration) -> Result<String> {
    let folder = TemporaryFolder::new("perf")?;
    let data = folder.path("data");
    // Disables the cache of binaries that perf would keep in the home folder.
    let mut record = perf(core, &["record", "--quiet", "--no-buildid-cache", "-F", SAMPLES]);
    record.args(["-g", "--call-graph", STACKS, "-p", &pid.to_string(), "-o"]).arg(&data);
    record.args(["--", "sleep", &time.as_secs_f64().to_string()]);
    stdout_if_ok(record.output().context("perf record")?, "perf record")?;
    let mut script = perf(core, &["script", "--no-inline", "-F", flame::FIELDS, "-i"]);
    let output = script.arg(&data).output().context("perf script")?;
    Ok(String::from_utf8_lossy(&stdout_if_ok(output, "perf script")?).into_owned())
}

fn perf(core: Option<u16>, arguments: &[&str]) -> Command {
    let mut command = pinned(core, "perf");
    // perf would otherwise query a server for the names of functions, and read settings of its own.
    command.args(arguments).env_remove("DEBUGINFOD_URLS").env("PERF_CONFIG", "/dev/null");
    command.stdin(Stdio::null());
    command
}

fn stdout_if_ok(output: Output, what: &str) -> Result<Vec<u8>> {
    if !output.status.success() {
        bail!("{what}: {}", reason(&String::from_utf8_lossy(&output.stderr)));
    }
    Ok(output.stdout)
}

/// Returns the first line that contains a reason.
fn reason(printed: &str) -> &str {
    let says = |line: &&str| !line.is_empty() && *line != "Error:";
    printed.lines().map(str::trim).find(says).unwrap_or("no error message")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: of perf's error output, the line with the reason is kept.
    #[test]
    fn refusals_are_reported() {
        let printed = "Error:\nAccess to performance monitoring and observability operations is \
                    limited.\nConsider adjusting /proc/sys/kernel/perf_event_paranoid\n";
        let why = "Access to performance monitoring and observability operations is limited.";
        assert_eq!(reason(printed), why);
        assert_eq!(reason("\n"), "no error message");
    }
}
