//! Runs the real binary as users do.
#![allow(dead_code)] // every test file uses its own part
#![allow(clippy::unwrap_used)] // a test may unwrap

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Output, Stdio};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Timeout for everything in these tests, even on a busy machine.
pub const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// A directory of a test, removed with its contents.
pub struct Scratch(PathBuf);

impl Scratch {
    pub fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("lunar-test-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Writes a file that only its owner may read; returns its path as text.
    pub fn file(&self, name: &str, content: &[u8]) -> String {
        use std::os::unix::fs::PermissionsExt;
        let path = self.0.join(name);
        std::fs::write(&path, content).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        path.to_str().unwrap().to_owned()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A `lunar` command with these arguments, without environment variables that affect it.
pub fn lunar(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lunar"));
    command.args(arguments).env_remove("RUST_LOG");
    for variable in ["LUNAR_CHAP_SECRET", "LUNAR_API", "LUNAR_API_TOKEN_FILE", "LUNAR_API_CA_FILE"]
    {
        command.env_remove(variable);
    }
    command.env_remove("RUNTIME_DIRECTORY").env_remove("XDG_RUNTIME_DIR");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Runs `lunar` to its end.
pub fn run(arguments: &[&str]) -> Output {
    finish(lunar(arguments), b"")
}

/// Runs `lunar` to its end with this input; fails the test if that takes too long.
pub fn run_with_input(arguments: &[&str], input: &[u8]) -> Output {
    finish(lunar(arguments), input)
}

/// Runs a long measurement to its end; fails the test if that takes longer than `limit`.
pub fn run_within(arguments: &[&str], limit: Duration) -> Output {
    finish_within(lunar(arguments), b"", limit)
}

/// Runs a prepared command to its end with this input.
pub fn finish(command: Command, input: &[u8]) -> Output {
    finish_within(command, input, TEST_TIMEOUT)
}

fn finish_within(mut command: Command, input: &[u8], limit: Duration) -> Output {
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_vec();
    std::thread::spawn(move || {
        // The process may end without reading all input.
        let _ = stdin.write_all(&input);
    });
    let (done, output) = mpsc::channel();
    let pid = child.id();
    std::thread::spawn(move || {
        let _ = done.send(child.wait_with_output());
    });
    match output.recv_timeout(limit) {
        Ok(output) => output.unwrap(),
        Err(_) => {
            signal(pid, "KILL");
            panic!("{command:?} did not end within {limit:?}");
        }
    }
}

/// The JSON document on stdout.
pub fn json(output: &Output) -> Value {
    let text = String::from_utf8_lossy(&output.stdout);
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error} in {text:?}"))
}

/// Address for a server that is restarted at the same address, or whose address is chosen in
/// advance: clients connect from 127.0.0.1, so none of them can take the port meanwhile.
pub const ELSEWHERE: &str = "127.0.0.2:0";

/// Stdout and stderr of a run.
pub fn printed(output: &Output) -> String {
    let (out, err) = (&output.stdout, &output.stderr);
    format!("{}{}", String::from_utf8_lossy(out), String::from_utf8_lossy(err))
}

/// Checks the exit status; prints the output if it differs.
#[track_caller]
pub fn assert_exit(output: &Output, status: i32) {
    assert_eq!(output.status.code(), Some(status), "{}", printed(output));
}

/// Converts a process ID.
pub fn process(pid: u32) -> Pid {
    Pid::from_raw(pid.try_into().unwrap()).unwrap()
}

/// Sends a signal by name, with a system call: running `kill(1)` may take seconds on a busy
/// machine.
#[track_caller]
pub fn signal(pid: u32, name: &str) {
    let signal = match name {
        "CONT" => Signal::CONT,
        "HUP" => Signal::HUP,
        "INT" => Signal::INT,
        "KILL" => Signal::KILL,
        "STOP" => Signal::STOP,
        "TERM" => Signal::TERM,
        _ => panic!("a signal called {name}"),
    };
    kill_process(process(pid), signal).unwrap_or_else(|error| panic!("SIG{name}: {error}"));
}

/// Sends a GET request to this HTTP URL; returns the response with its head.
pub fn get(url: &str) -> String {
    let (address, path) = url.strip_prefix("http://").unwrap().split_once('/').unwrap();
    let mut tcp = TcpStream::connect(address).unwrap();
    tcp.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
    write!(tcp, "GET /{path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    tcp.read_to_string(&mut answer).unwrap();
    answer
}

/// Collects the stderr of a process as it arrives: an unread pipe fills up, and then the process
/// blocks.
struct StderrCollector {
    printed: Arc<Mutex<Vec<u8>>>,
    reader: JoinHandle<()>,
}

impl StderrCollector {
    fn of(mut stderr: ChildStderr) -> Self {
        let printed = Arc::<Mutex<Vec<u8>>>::default();
        let all = Arc::clone(&printed);
        let reader = std::thread::spawn(move || {
            let mut piece = vec![0; 64 << 10];
            while let Ok(bytes @ 1..) = stderr.read(&mut piece) {
                all.lock().unwrap().extend_from_slice(&piece[..bytes]);
            }
        });
        Self { printed, reader }
    }

    fn so_far(&self) -> String {
        String::from_utf8_lossy(&self.printed.lock().unwrap()).into_owned()
    }

    /// Waits until the pipe is closed; returns everything.
    fn end(self) -> Vec<u8> {
        self.reader.join().unwrap();
        std::mem::take(&mut *self.printed.lock().unwrap())
    }
}

/// A server in the background, killed when dropped.
pub struct Server {
    child: Option<Child>,
    /// Reader of stderr, if that is a pipe.
    heard: Option<StderrCollector>,
    /// The report on stdout, in JSON.
    pub report: Value,
}

impl Server {
    /// Starts `lunar serve --json --listen 127.0.0.1:0` with more arguments; returns once it
    /// listens.
    pub fn start(arguments: &[&str]) -> Self {
        Self::start_command(lunar(&[&["serve", "--listen", "127.0.0.1:0"], arguments].concat()))
    }

    /// Starts a prepared command that serves.
    pub fn start_command(mut command: Command) -> Self {
        let mut child = command.arg("--json").spawn().unwrap();
        let stdout = child.stdout.take().unwrap();
        let heard = child.stderr.take().map(StderrCollector::of);
        let (first_line, line) = mpsc::channel();
        std::thread::spawn(move || {
            let mut line = String::new();
            let _ = BufReader::new(stdout).read_line(&mut line);
            let _ = first_line.send(line);
        });
        let line = line.recv_timeout(TEST_TIMEOUT).unwrap_or_default();
        let report: Value = serde_json::from_str(&line).unwrap_or_default();
        if report.get("targets").is_none() {
            let _ = child.kill();
            let output = ended(child, heard);
            panic!("{command:?} does not serve: {line}{}", printed(&output));
        }
        Self { child: Some(child), heard, report }
    }

    pub fn pid(&self) -> u32 {
        self.child.as_ref().unwrap().id()
    }

    /// `iscsi://127.0.0.1:PORT`.
    pub fn portal(&self) -> String {
        self.report["portals"][0]["url"].as_str().unwrap().to_owned()
    }

    /// The URL of a LUN of the first target.
    pub fn lun(&self, id: u16) -> String {
        let name = self.report["targets"][0]["name"].as_str().unwrap();
        format!("{}/{name}/{id}", self.portal())
    }

    /// Whether the server has printed these words to stderr.
    #[track_caller]
    pub fn has_said(&self, words: &str) -> bool {
        self.heard.as_ref().unwrap().so_far().contains(words)
    }

    /// Waits until the server has printed these words to stderr.
    #[track_caller]
    pub fn until_said(&self, words: &str) {
        let begin = Instant::now();
        while !self.has_said(words) {
            assert!(begin.elapsed() < TEST_TIMEOUT, "the output lacks `{words}`");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Sends SIGTERM and waits; returns the remaining output and the duration.
    pub fn stop(self) -> (Output, Duration) {
        self.stop_by("TERM")
    }

    /// Same as [`stop`](Self::stop), with another signal.
    pub fn stop_by(self, name: &str) -> (Output, Duration) {
        let start = Instant::now();
        signal(self.pid(), name);
        (self.end(), start.elapsed())
    }

    /// Waits for the server to end, after it was signalled; returns the remaining output.
    pub fn end(mut self) -> Output {
        let (child, heard) = (self.child.take().unwrap(), self.heard.take());
        let pid = child.id();
        let (done, output) = mpsc::channel();
        std::thread::spawn(move || {
            let _ = done.send(ended(child, heard));
        });
        output.recv_timeout(TEST_TIMEOUT).unwrap_or_else(|_| {
            signal(pid, "KILL");
            panic!("the server did not end within {TEST_TIMEOUT:?}");
        })
    }
}

/// Waits for a process to end; returns its output.
fn ended(child: Child, heard: Option<StderrCollector>) -> Output {
    let mut output = child.wait_with_output().unwrap();
    output.stderr = heard.map(StderrCollector::end).unwrap_or_default();
    output
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Pseudo-random bytes, the same for the same seed (splitmix64).
pub fn pattern(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = state;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bytes.extend_from_slice(&(word ^ (word >> 31)).to_be_bytes());
    }
    bytes.truncate(length);
    bytes
}
