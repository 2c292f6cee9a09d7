//! Starts this program as another process: a target, or a bench in another network namespace.

use crate::output::Failure;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child as Process, Command, Stdio};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::{Duration, Instant};

/// Maximum time until a target listens.
const START_MAX: Duration = Duration::from_secs(20);
/// Polling interval.
const POLL: Duration = Duration::from_millis(20);
/// Text before the address that a target listens on.
const LISTENING: &str = "listening on ";
/// Name of the targets of this run of the suite: it contains the process ID, so that the owner can
/// be identified.
fn target_name() -> String {
    format!("iqn.2026-11.org.lunarsan:bench-{}", std::process::id())
}

/// A child process that is killed when this is dropped.
#[derive(Debug)]
pub(super) struct Child {
    process: Process,
    lines: Receiver<String>,
}

impl Child {
    /// Starts this program with these arguments, by way of the program and arguments in `before`,
    /// if any.
    fn start(before: &[&str], arguments: &[&str]) -> Result<Self, Failure> {
        let failed = |error| Failure::new(format!("cannot start another process: {error}"));
        let this = std::env::current_exe().map_err(failed)?;
        let mut command = match before {
            [] => Command::new(&this),
            [program, rest @ ..] => {
                let mut command = Command::new(program);
                command.args(rest).arg(&this);
                command
            }
        };
        // The option also ends the child if this process is killed and drops nothing.
        command.args(["--end-with-parent", &std::process::id().to_string()]).args(arguments);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut process = command.spawn().map_err(failed)?;
        let (tell, lines) = channel();
        if let Some(stdout) = process.stdout.take() {
            std::thread::spawn(move || {
                let lines = BufReader::new(stdout.take(OUTPUT_BYTES_MAX)).lines();
                // A dropped receiver has ended the process already.
                lines.map_while(Result::ok).try_for_each(|line| tell.send(line))
            });
        }
        Ok(Self { process, lines })
    }

    /// Reads lines until the process ends, or until `enough` returns true for a line.
    async fn lines(
        &mut self,
        end: Option<Instant>,
        enough: impl Fn(&str) -> bool,
    ) -> Result<Vec<String>, Failure> {
        let mut told = Vec::new();
        loop {
            match self.lines.try_recv() {
                Ok(line) => {
                    let is_enough = enough(&line);
                    told.push(line);
                    if is_enough {
                        return Ok(told);
                    }
                }
                Err(TryRecvError::Disconnected) => return Ok(told),
                Err(TryRecvError::Empty) if end.is_some_and(|end| Instant::now() >= end) => {
                    return Err(Failure::new("another process of this suite does not answer"));
                }
                Err(TryRecvError::Empty) => tokio::time::sleep(POLL).await,
            }
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // The target is killed at once: it serves memory that is not used again.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Maximum output that is read; a bench prints less.
const OUTPUT_BYTES_MAX: u64 = 16 << 20;

/// A target of the suite, with a disk in memory.
#[derive(Debug)]
pub(super) struct OwnTarget {
    /// Keeps the process alive.
    _child: Child,
    /// Port that the target listens on.
    pub(super) port: u16,
}

impl OwnTarget {
    /// Starts a target with a disk of this size on loopback.
    pub(super) async fn start(size_bytes: u64) -> Result<Self, Failure> {
        Self::start_on(&[], "127.0.0.1:0", &[], size_bytes).await
    }

    /// Starts a target at this address by way of the program in `before`, with more arguments.
    pub(super) async fn start_on(
        before: &[&str],
        listen: &str,
        more: &[&str],
        size_bytes: u64,
    ) -> Result<Self, Failure> {
        let (device, name) = (format!("mem:{size_bytes}"), target_name());
        let arguments = ["serve", &device, "--name", &name, "--listen", listen];
        let mut child = Child::start(before, &[&arguments[..], more].concat())?;
        let end = Instant::now() + START_MAX;
        let told = child.lines(Some(end), |line| line.starts_with(LISTENING)).await?;
        let address = told.iter().find_map(|line| line.strip_prefix(LISTENING));
        let port = address.and_then(|address| address.rsplit(':').next()?.trim().parse().ok());
        let port = port.ok_or_else(|| {
            Failure::new("a target for this suite did not start, see above")
                .hint("or name a target that runs: lunar bench --suite multi-connection URL")
        })?;
        Ok(Self { _child: child, port })
    }

    /// URL of the disk at this address.
    pub(super) fn url(&self, host: &str) -> String {
        format!("iscsi://{host}:{}/{}/0", self.port, target_name())
    }
}

/// Runs `lunar bench --json` by way of the program in `before`, and returns the document.
pub(super) async fn bench(
    before: &[&str],
    arguments: &[&str],
) -> Result<serde_json::Value, Failure> {
    let mut child = Child::start(before, &[&["bench", "--json"], arguments].concat())?;
    let told = child.lines(None, |_| false).await?.join("\n");
    let document: serde_json::Value = serde_json::from_str(&told)
        .map_err(|error| Failure::new(format!("a bench of this suite failed: {error}: {told}")))?;
    match document.get("error").and_then(serde_json::Value::as_str) {
        Some(error) => Err(Failure::new(format!("a bench of this suite failed: {error}"))),
        None => Ok(document),
    }
}
