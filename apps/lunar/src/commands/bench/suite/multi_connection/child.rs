//! This program again, as a process of its own: a target, or a bench in another network.

use crate::output::Failure;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child as Process, Command, Stdio};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::{Duration, Instant};

/// How long a target may take until it listens.
const START_MAX: Duration = Duration::from_secs(20);
/// How often a wait looks again.
const POLL: Duration = Duration::from_millis(20);
/// Before the address that a target listens on.
const LISTENING: &str = "listening on ";
/// The name of the targets that are made here: one for each run of the suite, so that it can be
/// told whose they are.
fn target_name() -> String {
    format!("iqn.2026-11.org.lunarsan:bench-{}", std::process::id())
}

/// A process that ends when this is dropped.
#[derive(Debug)]
pub(super) struct Child {
    process: Process,
    lines: Receiver<String>,
}

impl Child {
    /// This program with these arguments, run by the program and the arguments before it, if any.
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
        // Also where this process is killed, and drops nothing.
        command.args(["--end-with-parent", &std::process::id().to_string()]).args(arguments);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut process = command.spawn().map_err(failed)?;
        let (tell, lines) = channel();
        if let Some(stdout) = process.stdout.take() {
            std::thread::spawn(move || {
                let lines = BufReader::new(stdout.take(OUTPUT_BYTES_MAX)).lines();
                // Whoever does not listen any more has ended it.
                lines.map_while(Result::ok).try_for_each(|line| tell.send(line))
            });
        }
        Ok(Self { process, lines })
    }

    /// Its lines until it ends, or until one for which `enough` says so.
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
        // At once: what it serves is memory, and nobody will ask for it again.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Bytes of one that are read; a bench tells less.
const OUTPUT_BYTES_MAX: u64 = 16 << 20;

/// A target of our own, with a disk in memory.
#[derive(Debug)]
pub(super) struct OwnTarget {
    /// For its life.
    _child: Child,
    /// Where it listens.
    pub(super) port: u16,
}

impl OwnTarget {
    /// A disk of this size, on loopback.
    pub(super) async fn start(size_bytes: u64) -> Result<Self, Failure> {
        Self::start_on(&[], "127.0.0.1:0", &[], size_bytes).await
    }

    /// The same, run by something else, at this address, with more arguments.
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

    /// Its disk, at this address.
    pub(super) fn url(&self, host: &str) -> String {
        format!("iscsi://{host}:{}/{}/0", self.port, target_name())
    }
}

/// What `lunar bench --json` tells with these arguments, run by something else.
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
