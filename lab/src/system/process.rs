//! Programs under a time limit, and servers that end with their test.

use anyhow::{Context, Result, bail, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Resource, Rlimit, Signal, getrlimit, kill_process, kill_process_group,
    pidfd_open, setrlimit,
};
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Cause of a program's end.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum End {
    /// Exited by itself, or by a signal that this process did not send.
    Exited(ExitStatus),
    /// Killed with all processes it had started, because its time was over.
    TimedOut,
}

impl End {
    /// The exit status, if the program ended by itself.
    pub fn code(self) -> Option<i32> {
        match self {
            Self::Exited(status) => status.code(),
            Self::TimedOut => None,
        }
    }
}

/// Result of a program.
#[derive(Debug)]
pub struct Finished {
    /// Cause of its end.
    pub end: End,
    /// Its standard output.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
    /// Time that it ran.
    pub took: Duration,
}

impl Finished {
    /// True if it exited with status 0, in time.
    pub fn succeeded(&self) -> bool {
        matches!(self.end, End::Exited(status) if status.success())
    }

    /// Returns the number of the signal that ended it.
    pub fn signal(&self) -> Option<i32> {
        match self.end {
            End::Exited(status) => status.signal(),
            End::TimedOut => None,
        }
    }

    /// Returns both outputs, for a message.
    pub fn outputs(&self) -> String {
        format!("{:?}\n{}{}", self.end, self.stdout, self.stderr)
    }
}

/// Runs `program` to its end, at most `limit`.
///
/// # Errors
/// The program cannot be started.
pub fn run(program: &str, arguments: &[&str], limit: Duration) -> Result<Finished> {
    run_with_input(program, arguments, Vec::new(), limit)
}

/// Runs `program` like [`run`], with `input` as its standard input.
///
/// # Errors
/// The program cannot be started.
pub fn run_with_input(
    program: &str,
    arguments: &[&str],
    input: Vec<u8>,
    limit: Duration,
) -> Result<Finished> {
    let finished = run_for_bytes(program, arguments, input, limit)?;
    let (end, stdout, stderr, took) = finished;
    let stdout = String::from_utf8_lossy(&stdout).into_owned();
    Ok(Finished { end, stdout, stderr, took })
}

/// Runs `program` like [`run_with_input`], if its output is data: returns end, output, error text,
/// time.
///
/// # Errors
/// The program cannot be started.
pub fn run_for_bytes(
    program: &str,
    arguments: &[&str],
    input: Vec<u8>,
    limit: Duration,
) -> Result<(End, Vec<u8>, String, Duration)> {
    let started = Instant::now();
    let mut child = spawn(program, arguments, Stdio::piped())?;
    let mut stdin = child.stdin.take().context("a piped input")?;
    let writer = thread::spawn(move || drop(stdin.write_all(&input)));
    let stdout = collect(child.stdout.take().context("a piped output")?);
    let stderr = collect(child.stderr.take().context("a piped output")?);
    let end = wait(&mut child, limit)?;
    let took = started.elapsed();
    drop(writer.join());
    let stdout = stdout.join().unwrap_or_default();
    let stderr = String::from_utf8_lossy(&stderr.join().unwrap_or_default()).into_owned();
    Ok((end, stdout, stderr, took))
}

/// Runs `program`, which must succeed within `limit`; returns its standard output.
///
/// # Errors
/// The program cannot be started, takes too long or fails; the message holds its output.
pub fn run_checked(program: &str, arguments: &[&str], limit: Duration) -> Result<String> {
    let finished = run(program, arguments, limit)?;
    let line = format!("{program} {}", arguments.join(" "));
    ensure!(finished.succeeded(), "{line}: {}", finished.outputs());
    Ok(finished.stdout)
}

/// Returns the words before a command that run it on one processor core; none without a core.
pub fn on_core(core: Option<u16>) -> Vec<String> {
    let words = |core: u16| ["taskset", "--cpu-list", &core.to_string()].map(str::to_owned);
    core.map(words).into_iter().flatten().collect()
}

/// Returns a command that runs `program`, on one processor core if one is named.
pub fn pinned(core: Option<u16>, program: impl AsRef<OsStr>) -> Command {
    let words = on_core(core);
    let Some((first, rest)) = words.split_first() else { return Command::new(program) };
    let mut command = Command::new(first);
    command.args(rest).arg(program);
    command
}

/// True while there is a process with this number.
pub fn exists(pid: u32) -> bool {
    Path::new("/proc").join(pid.to_string()).exists()
}

/// Raises the number of files that this process, and those it starts, may have open to its maximum;
/// returns the number.
pub fn raise_open_files() -> usize {
    let limit = getrlimit(Resource::Nofile);
    // The limit stays unchanged if the system refuses.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    usize::try_from(limit).unwrap_or(usize::MAX)
}

/// Starts a program in a process group of its own; the kernel kills it when this process ends.
fn spawn(program: &str, arguments: &[&str], stdin: Stdio) -> Result<Child> {
    Command::new("setpriv")
        .args(["--pdeathsig", "KILL", "--", program])
        .args(arguments)
        .stdin(stdin)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
        .with_context(|| format!("cannot start {program}; see scripts/setup for required packages"))
}

fn collect(mut from: impl Read + Send + 'static) -> JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        // An error ends the output as end of file does: earlier output is kept.
        drop(from.read_to_end(&mut bytes));
        bytes
    })
}

/// Waits for `child`; kills its whole group when `limit` is over.
fn wait(child: &mut Child, limit: Duration) -> Result<End> {
    let until = Instant::now() + limit;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(End::Exited(status));
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            let _ = kill_process_group(Pid::from_child(child), Signal::KILL);
            child.wait()?;
            return Ok(End::TimedOut);
        }
        let end = pidfd_open(Pid::from_child(child), PidfdFlags::empty())?;
        match poll(&mut [PollFd::new(&end, PollFlags::IN)], Some(&Timespec::try_from(left)?)) {
            Err(Errno::INTR) => {}
            polled => drop(polled?),
        }
    }
}

/// Lines from both outputs of a server, in order of arrival.
#[derive(Default)]
struct Lines {
    lines: Mutex<Vec<String>>,
    more: Condvar,
}

impl Lines {
    fn follow(self: &Arc<Self>, from: impl Read + Send + 'static) {
        let lines = Arc::clone(self);
        thread::spawn(move || {
            for line in BufReader::new(from).lines().map_while(|line| line.ok()) {
                lines.lines.lock().unwrap_or_else(PoisonError::into_inner).push(line);
                lines.more.notify_all();
            }
        });
    }

    fn text(&self) -> String {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner).join("\n")
    }
}

/// A server in the background. Dropping it kills it and all processes it has started.
pub struct ServerProcess {
    name: String,
    child: Child,
    lines: Arc<Lines>,
}

impl ServerProcess {
    /// Starts `program` and returns at once.
    ///
    /// # Errors
    /// The program cannot be started.
    pub fn start(program: &str, arguments: &[&str]) -> Result<Self> {
        let mut child = spawn(program, arguments, Stdio::null())?;
        let lines = Arc::new(Lines::default());
        lines.follow(child.stdout.take().context("a piped output")?);
        lines.follow(child.stderr.take().context("a piped output")?);
        Ok(Self { name: program.to_owned(), child, lines })
    }

    /// Waits for a line that contains `part`, and returns the first.
    ///
    /// # Errors
    /// The server ended or `limit` passed before; the message holds its output.
    pub fn wait_for_line(&mut self, part: &str, limit: Duration) -> Result<String> {
        let (until, mut seen) = (Instant::now() + limit, 0);
        loop {
            let ended = self.child.try_wait()?.is_some();
            let lines = self.lines.lines.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(line) = lines[seen..].iter().find(|line| line.contains(part)) {
                return Ok(line.clone());
            }
            seen = lines.len();
            let left = until.saturating_duration_since(Instant::now());
            if ended || left.is_zero() {
                let all = lines.join("\n");
                bail!("{} did not print \"{part}\" within {limit:?}:\n{all}", self.name);
            }
            drop(self.lines.more.wait_timeout(lines, left.min(Duration::from_millis(100))));
        }
    }

    /// Returns its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal.
    ///
    /// # Errors
    /// The process has ended.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        Ok(kill_process(Pid::from_child(&self.child), signal)?)
    }

    /// Waits for the server's end; kills it after `limit`.
    ///
    /// # Errors
    /// The system does not return the status.
    pub fn wait(&mut self, limit: Duration) -> Result<End> {
        wait(&mut self.child, limit)
    }

    /// True while the server has not ended.
    ///
    /// # Errors
    /// The system does not return the status.
    pub fn is_running(&mut self) -> Result<bool> {
        Ok(self.child.try_wait()?.is_none())
    }

    /// Returns its output so far.
    pub fn log(&self) -> String {
        self.lines.text()
    }

    /// Returns its resident memory in bytes (VmRSS).
    ///
    /// # Errors
    /// The process has ended.
    pub fn resident_bytes(&self) -> Result<u64> {
        status_bytes(self.id(), "VmRSS:")
    }

    /// Returns its resident memory in bytes without the mappings of files: its program and
    /// libraries, whose relocated pages the kernel counts as anonymous (`RssAnon`).
    ///
    /// # Errors
    /// The process has ended.
    pub fn private_bytes(&self) -> Result<u64> {
        let mappings = std::fs::read_to_string(format!("/proc/{}/smaps", self.id()))?;
        let (mut anonymous_kib, mut is_of_file) = (0, false);
        for line in mappings.lines() {
            match line.split_whitespace().collect::<Vec<_>>()[..] {
                ["Anonymous:", kib, _] if !is_of_file => anonymous_kib += kib.parse::<u64>()?,
                // proc(5): address, permissions, offset, device, inode, and perhaps a path.
                [_, _, _, _, inode, ..] if !line.contains("kB") => is_of_file = inode != "0",
                _ => {}
            }
        }
        Ok((anonymous_kib << 10) + status_bytes(self.id(), "RssShmem:")?)
    }

    /// Returns the number of bytes that its threads of this name wrote by write(2), pwrite(2) and
    /// the like; send(2) and io_uring are not counted. The name `core` stands for `core-0`,
    /// `core-1` …
    ///
    /// # Errors
    /// Fails if the process has ended.
    pub fn bytes_written_by(&self, thread: &str) -> Result<u64> {
        ensure!(Path::new("/proc/self/io").exists(), "the kernel has no CONFIG_TASK_IO_ACCOUNTING");
        let mut bytes = 0;
        for task in std::fs::read_dir(format!("/proc/{}/task", self.child.id()))? {
            let of = |name| std::fs::read_to_string(task.as_ref().ok()?.path().join(name)).ok();
            // A thread may end meanwhile.
            let (Some(name), Some(io)) = (of("comm"), of("io")) else { continue };
            let written = io.lines().find_map(|line| line.strip_prefix("wchar: "));
            if name.trim_end().split('-').next() == Some(thread) {
                bytes += written.context("no wchar")?.parse::<u64>()?;
            }
        }
        Ok(bytes)
    }

    /// Returns the number of requests that its io_urings have accepted.
    ///
    /// # Errors
    /// Fails if the process has ended.
    pub fn ring_requests(&self) -> Result<u64> {
        let folder = format!("/proc/{}/fdinfo", self.child.id());
        let mut requests = 0;
        for file in std::fs::read_dir(folder)? {
            // A file may be closed meanwhile.
            let text = std::fs::read_to_string(file?.path()).unwrap_or_default();
            let taken = text.lines().find_map(|line| line.strip_prefix("SqHead:"));
            requests += taken.map_or(Ok(0), |taken| taken.trim().parse::<u64>())?;
        }
        Ok(requests)
    }

    /// Returns the number of its open file descriptors.
    ///
    /// # Errors
    /// The process has ended.
    pub fn open_files(&self) -> Result<usize> {
        Ok(std::fs::read_dir(format!("/proc/{}/fd", self.child.id()))?.count())
    }
}

/// Returns a size of a process' memory: `VmRSS:`, the resident part, or `VmHWM:`, its peak.
/// proc_pid_status(5).
///
/// # Errors
/// The process has ended.
pub fn status_bytes(pid: u32, field: &str) -> Result<u64> {
    let path = format!("/proc/{pid}/status");
    let status = std::fs::read_to_string(&path).context(path)?;
    let line = status.lines().find_map(|line| line.strip_prefix(field));
    let kilobytes = line.and_then(|line| line.split_whitespace().next());
    let kilobytes = kilobytes.with_context(|| format!("no {field} it has ended"))?;
    Ok(kilobytes.parse::<u64>()? * 1024)
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
            drop(self.child.wait());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a program that never ends is killed with its children and reported as such.
    #[test]
    fn time_limits_hold() -> Result<()> {
        let script = "echo before; sleep 100 & sleep 100";
        let finished = run("sh", &["-c", script], Duration::from_secs(3))?;
        assert_eq!(finished.end, End::TimedOut);
        assert_eq!(finished.stdout, "before\n");
        assert!(finished.took < Duration::from_secs(13));
        Ok(())
    }

    /// Goal: exit status, signal, outputs and input are passed correctly.
    #[test]
    fn ends_of_processes_are_reported() -> Result<()> {
        let limit = Duration::from_secs(60);
        let finished = run("sh", &["-c", "kill -SEGV $$"], limit)?;
        assert_eq!(finished.signal(), Some(11));
        assert!(run_checked("false", &[], limit).is_err());
        let echoed = run_with_input("cat", &[], b"in and out".to_vec(), limit)?;
        assert!(echoed.succeeded());
        assert_eq!(echoed.stdout, "in and out");
        Ok(())
    }
}
