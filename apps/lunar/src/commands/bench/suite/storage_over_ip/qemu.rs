//! `qemu-io` as a client: the same program for a file, `iscsi://` and `nfs://`.

use super::lane::{Pass, Task};
use crate::output::Failure;
use std::process::Stdio;
use std::time::{Duration, Instant};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::timeout;

/// It may take so long for one pass over a file.
const PASS_MAX: Duration = Duration::from_secs(1800);
/// And so long to begin with one.
const TRIAL_MAX: Duration = Duration::from_secs(20);
/// What one command may be answered with.
const ANSWER_BYTES_MAX: usize = 64 << 10;
/// It may take so long to end when it has nothing left to do.
const END_MAX: Duration = Duration::from_secs(10);
/// It asks for a command; a blank follows.
const PROMPT: &[u8] = b"qemu-io>";
const PROMPT_LAST: u8 = b'>';
const INSTALL: &str = "apt-get install qemu-utils qemu-block-extra";

/// What it opens, and where.
#[derive(Clone, Debug)]
pub(super) struct Qemu {
    url: String,
    /// In the network of this process, if it is another one.
    network_of: Option<u32>,
}

/// One that runs, and is killed when dropped.
#[derive(Debug)]
struct Running {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    name: String,
}

impl Qemu {
    /// In our own network.
    pub(super) fn here(url: String) -> Self {
        Self { url, network_of: None }
    }

    /// In the network of that process.
    pub(super) fn in_network_of(pid: u32, url: String) -> Self {
        Self { url, network_of: Some(pid) }
    }

    /// Whether it can open it and read.
    pub(super) async fn try_it(&self) -> Result<(), Failure> {
        let task = Task { record_bytes: 4096, writes: false, byte: 0, places: vec![0] };
        match timeout(TRIAL_MAX, self.run(&task)).await {
            Ok(tried) => tried.map(drop),
            Err(_) => Err(Failure::new(format!("{} does not answer", self.url))),
        }
    }

    /// Every record of `task`, one after the other.
    pub(super) async fn pass(&self, task: &Task) -> Result<Pass, Failure> {
        let passed = timeout(PASS_MAX, self.run(task)).await;
        passed.map_err(|_| Failure::new(format!("qemu-io took more than {PASS_MAX:?}")))?
    }

    async fn run(&self, task: &Task) -> Result<Pass, Failure> {
        let mut running = self.start()?;
        let mut pass = Pass::default();
        // What it says before it is asked.
        running.answer().await?;
        for place in &task.places {
            let said = running.ask(&command(task, *place)).await?;
            let took = parse(&said, task.record_bytes);
            pass.add(took.ok_or_else(|| Failure::new(format!("{}: {said}", running.name)))?);
        }
        if task.writes {
            let begun = Instant::now();
            let said = running.ask("flush").await?;
            pass.time += begun.elapsed();
            if !said.is_empty() {
                return Err(Failure::new(format!("{}: flush: {said}", running.name)));
            }
        }
        running.end().await?;
        Ok(pass)
    }

    fn start(&self) -> Result<Running, Failure> {
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
        let mut child = child.map_err(|error| {
            Failure::new(format!("cannot start qemu-io: {error}")).hint(INSTALL)
        })?;
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        let (Some(stdin), Some(stdout)) = (stdin, stdout) else {
            return Err(Failure::new("qemu-io has no pipes"));
        };
        let name = format!("qemu-io on {}", self.url);
        Ok(Running { child, stdin, stdout: BufReader::new(stdout), name })
    }
}

impl Running {
    /// What it answers to a command. One at a time: it reads all lines that are there and then
    /// waits for more input before it looks at the second one.
    async fn ask(&mut self, command: &str) -> Result<String, Failure> {
        // Where it is gone, its answer is missing too.
        let _ = self.stdin.write_all(format!("{command}\n").as_bytes()).await;
        self.answer().await
    }

    /// What it says until it asks for a command.
    async fn answer(&mut self) -> Result<String, Failure> {
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

    async fn end(mut self) -> Result<(), Failure> {
        drop(self.stdin);
        match timeout(END_MAX, self.child.wait()).await {
            Ok(Ok(status)) if status.success() => Ok(()),
            _ => Err(Failure::new(format!("{} failed at its end", self.name))),
        }
    }

    /// Why it has ended.
    async fn failed(&mut self) -> Failure {
        let mut text = String::new();
        if let Some(stderr) = self.child.stderr.take() {
            let mut stderr = stderr.take(ANSWER_BYTES_MAX as u64);
            let _ = timeout(END_MAX, stderr.read_to_string(&mut text)).await;
        }
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        let failure = Failure::new(format!("{}: {text}", self.name));
        match text.contains("Unknown protocol") {
            true => failure.hint(INSTALL),
            false => failure,
        }
    }
}

/// `-C` has it tell times that a program can read.
fn command(task: &Task, place: u64) -> String {
    match task.writes {
        true => format!("write -C -P {} {place} {}", task.byte, task.record_bytes),
        false => format!("read -C {place} {}", task.record_bytes),
    }
}

/// `262144,1,0:00:00.00,365318286.400,1393.579`: bytes, requests, time, and those of a second.
/// The last figure tells the time more exactly than the third.
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

    /// Goal: times are taken from what it prints, and nothing else passes for one.
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
