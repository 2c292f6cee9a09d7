//! `qemu-io` as a client: the same program for a file, `iscsi://` and `nfs://`.

use super::lane::{Pass, Task};
use anyhow::{Context, Result, anyhow, bail, ensure};
use std::process::Stdio;
use std::time::{Duration, Instant};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::timeout;

/// Maximum time of one pass over a file.
const PASS_MAX: Duration = Duration::from_secs(1800);
/// Maximum time of a trial.
const TRIAL_MAX: Duration = Duration::from_secs(20);
/// Maximum size of the answer to one command.
const ANSWER_BYTES_MAX: usize = 64 << 10;
/// Maximum time until an idle qemu-io ends.
const END_MAX: Duration = Duration::from_secs(10);
/// Prompt of qemu-io; a blank follows.
const PROMPT: &[u8] = b"qemu-io>";
const PROMPT_LAST: u8 = b'>';
const INSTALL: &str = "apt-get install qemu-utils qemu-block-extra";

/// URL for qemu-io, and the network namespace to run it in.
#[derive(Clone, Debug)]
pub(super) struct Qemu {
    url: String,
    /// Process whose network namespace is used, if it is another one.
    network_of: Option<u32>,
}

/// A running qemu-io, killed when dropped.
#[derive(Debug)]
struct Running {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    name: String,
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
        let task = Task { record_bytes: 4096, writes: false, byte: 0, places: vec![0] };
        match timeout(TRIAL_MAX, self.run(&task)).await {
            Ok(tried) => tried.map(drop),
            Err(_) => bail!("{} does not respond", self.url),
        }
    }

    /// Accesses every record of `task`, one at a time.
    pub(super) async fn pass(&self, task: &Task) -> Result<Pass> {
        let passed = timeout(PASS_MAX, self.run(task)).await;
        passed.with_context(|| format!("qemu-io took more than {PASS_MAX:?}"))?
    }

    async fn run(&self, task: &Task) -> Result<Pass> {
        let mut running = self.start()?;
        let mut pass = Pass::default();
        // Output before the first prompt.
        running.answer().await?;
        for place in &task.places {
            let said = running.ask(&command(task, *place)).await?;
            let took = parse(&said, task.record_bytes);
            pass.add(took.with_context(|| format!("{}: {said}", running.name))?);
        }
        if task.writes {
            let begun = Instant::now();
            let said = running.ask("flush").await?;
            pass.time += begun.elapsed();
            ensure!(said.is_empty(), "{}: flush: {said}", running.name);
        }
        running.end().await?;
        Ok(pass)
    }

    fn start(&self) -> Result<Running> {
        let mut command = match self.network_of {
            None => Command::new("qemu-io"),
            Some(pid) => {
                let mut command = Command::new("nsenter");
                command.arg(format!("--net=/proc/{pid}/ns/net")).args(["--", "qemu-io"]);
                command
            }
        };
        command
            .args(["-f", "raw", "-t", "writeback", &self.url])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        let child = command.spawn();
        let mut child = child.with_context(|| format!("cannot start qemu-io ({INSTALL})"))?;
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        let (Some(stdin), Some(stdout)) = (stdin, stdout) else {
            bail!("qemu-io has no pipes");
        };
        let name = format!("qemu-io on {}", self.url);
        Ok(Running { child, stdin, stdout: BufReader::new(stdout), name })
    }
}

impl Running {
    /// Sends a command and returns the answer. Commands are sent one at a time: qemu-io reads all
    /// available lines, and then waits for more input before it executes the second one.
    async fn ask(&mut self, command: &str) -> Result<String> {
        // If qemu-io has ended, reading the answer fails as well.
        let _ = self.stdin.write_all(format!("{command}\n").as_bytes()).await;
        self.answer().await
    }

    /// Reads the output up to the prompt.
    async fn answer(&mut self) -> Result<String> {
        let mut said = Vec::new();
        while !said.ends_with(PROMPT) {
            let read = self.stdout.read_until(PROMPT_LAST, &mut said).await;
            if !matches!(read, Ok(1..)) || said.len() > ANSWER_BYTES_MAX {
                return Err(self.failed().await);
            }
        }
        said.truncate(said.len() - PROMPT.len());
        Ok(String::from_utf8_lossy(&said).trim().to_owned())
    }

    async fn end(mut self) -> Result<()> {
        drop(self.stdin);
        match timeout(END_MAX, self.child.wait()).await {
            Ok(Ok(status)) if status.success() => Ok(()),
            _ => bail!("{} failed at exit", self.name),
        }
    }

    /// The reason why qemu-io ended.
    async fn failed(&mut self) -> anyhow::Error {
        let mut text = String::new();
        if let Some(stderr) = self.child.stderr.take() {
            let mut stderr = stderr.take(ANSWER_BYTES_MAX as u64);
            let _ = timeout(END_MAX, stderr.read_to_string(&mut text)).await;
        }
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        let name = &self.name;
        match text.contains("Unknown protocol") {
            true => anyhow!("{name}: {text} ({INSTALL})"),
            false => anyhow!("{name}: {text}"),
        }
    }
}

/// Formats a command; `-C` selects machine-readable times.
fn command(task: &Task, place: u64) -> String {
    match task.writes {
        true => format!("write -C -P {} {place} {}", task.byte, task.record_bytes),
        false => format!("read -C {place} {}", task.record_bytes),
    }
}

/// Parses `262144,1,0:00:00.00,365318286.400,1393.579`: bytes, requests, time, bytes per second,
/// requests per second. The time derived from the last figure is more exact than the third.
fn parse(said: &str, record_bytes: u64) -> Option<Duration> {
    let mut fields = said.split(',');
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
