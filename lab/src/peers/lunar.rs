//! Our own binary, built by cargo, as a server on a free port.

use crate::system::process::{End, ServerProcess, on_core, run_checked};
use anyhow::{Context, Result, bail, ensure};
use rustix::process::Signal;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Maximum time until a server listens.
const START_MAX: Duration = Duration::from_secs(60);

/// Maximum time until a page of metrics is complete.
const METRICS_MAX: Duration = Duration::from_secs(10);

/// Maximum time until a client has logged in.
const SESSION_MAX: Duration = Duration::from_secs(60);

/// Returns the path of the `lunar` binary: `LUNAR_BIN`, or a build of profile `lab`, which is built
/// if missing.
///
/// # Errors
/// The binary cannot be built.
pub fn binary() -> Result<String> {
    static BINARY: Built = Built::new();
    built(&BINARY, "lab")
}

/// True if [`binary`] is a build without optimization, in which cargo puts `debug` into the path.
///
/// # Errors
/// The binary cannot be built.
pub fn is_debug_build() -> Result<bool> {
    let folder = Path::new(&binary()?).parent().and_then(Path::file_name).map(ToOwned::to_owned);
    Ok(folder.is_some_and(|folder| folder == "debug"))
}

/// Returns the path of the `lunar` binary that is measured: `LUNAR_BIN`, or a release build, which
/// is renewed so that it matches the source.
///
/// # Errors
/// The binary cannot be built.
pub fn release_binary() -> Result<PathBuf> {
    static BINARY: Built = Built::new();
    Ok(built(&BINARY, "release")?.into())
}

/// Path of a build, or the reason why there is none.
type Built = OnceLock<std::result::Result<String, String>>;

fn built(binary: &Built, profile: &str) -> Result<String> {
    let built = binary.get_or_init(|| build(profile).map_err(|error| format!("{error:#}")));
    built.clone().map_err(anyhow::Error::msg)
}

fn build(profile: &str) -> Result<String> {
    if let Ok(path) = std::env::var("LUNAR_BIN") {
        return Ok(path);
    }
    let mut build = Command::new(env!("CARGO"));
    // Variables that cargo sets for the programs it runs: crates whose builds read them would be
    // built anew.
    for (name, _) in std::env::vars_os() {
        let prefixes = ["CARGO_MANIFEST", "CARGO_PKG", "CARGO_BIN", "CARGO_CRATE", "CARGO_PRIMARY"];
        if prefixes.iter().any(|prefix| name.to_string_lossy().starts_with(prefix)) {
            build.env_remove(name);
        }
    }
    let output = build
        .args(["build", "--profile", profile, "--locked", "-p", "lunar-san"])
        .args(["--bin", "lunar", "--message-format", "json-render-diagnostics"])
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
        .stderr(Stdio::inherit())
        .output()
        .context("running cargo build")?;
    ensure!(output.status.success(), "lunar cannot be built, see the output above");
    for line in String::from_utf8(output.stdout)?.lines() {
        let message: serde_json::Value = serde_json::from_str(line)?;
        if let Some(path) = message["executable"].as_str() {
            return Ok(path.to_owned());
        }
    }
    bail!("cargo build named no executable")
}

/// A running `lunar serve` or `lunar target`.
pub struct Lunar {
    server: ServerProcess,
    address: String,
}

impl Lunar {
    /// Starts `lunar serve ARGUMENTS --listen 127.0.0.1:0` and waits until it listens.
    ///
    /// # Errors
    /// The server does not listen in time; the message holds its output.
    pub fn serve(arguments: &[&str]) -> Result<Self> {
        Self::serve_on("127.0.0.1:0", arguments)
    }

    /// Starts `lunar serve ARGUMENTS --listen ADDRESS` and waits until it listens.
    ///
    /// # Errors
    /// The server does not listen in time; the message holds its output.
    pub fn serve_on(address: &str, arguments: &[&str]) -> Result<Self> {
        let mut all = vec!["serve", "--listen", address];
        all.extend_from_slice(arguments);
        Self::start(&all)
    }

    /// Starts `lunar ARGUMENTS` and waits until it listens.
    ///
    /// # Errors
    /// The server does not listen in time; the message holds its output.
    pub fn start(arguments: &[&str]) -> Result<Self> {
        Self::start_by(&[], &binary()?, arguments)
    }

    /// Starts `PROGRAM serve ARGUMENTS` on a free port, on one processor core if one is named, and
    /// waits until it listens.
    ///
    /// # Errors
    /// The server does not listen in time; the message holds its output.
    pub fn serve_measured(core: Option<u16>, program: &Path, arguments: &[&str]) -> Result<Self> {
        let by = on_core(core);
        let by: Vec<&str> = by.iter().map(String::as_str).collect();
        let program = program.to_str().context("a path in UTF-8")?;
        let serve = ["serve", "--listen", "127.0.0.1:0"];
        Self::start_by(&by, program, &[&serve[..], arguments].concat())
    }

    /// Starts `BY PROGRAM ARGUMENTS` and waits until it listens. `by` is a program with its
    /// arguments that becomes the server, such as `ip netns exec NAME`, or empty.
    ///
    /// # Errors
    /// The server does not listen in time; the message holds its output.
    pub fn start_by(by: &[&str], program: &str, arguments: &[&str]) -> Result<Self> {
        let line = [by, &[program], arguments].concat();
        let (first, rest) = line.split_first().context("a program")?;
        let mut server = ServerProcess::start(first, rest)?;
        let line = server.wait_for_line("listening on ", START_MAX)?;
        let address = line.split("listening on ").nth(1).unwrap_or_default();
        let address = address.split([' ', ',']).next().unwrap_or_default().to_owned();
        Ok(Self { server, address })
    }

    /// Starts `lunar ARGUMENTS` after a shell has run `before` (`ulimit -n 64 &&`) in the process
    /// that becomes the server.
    ///
    /// # Errors
    /// `before` fails, or the server does not listen in time.
    pub fn start_after(before: &str, arguments: &[&str]) -> Result<Self> {
        let script = format!("{before} exec \"$0\" \"$@\"");
        Self::start_by(&["sh", "-c", &script], &binary()?, arguments)
    }

    /// Returns its address, `127.0.0.1:PORT`.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Returns the addresses of all its portals, in the order of `--listen`.
    ///
    /// # Errors
    /// The server does not listen on that many in time.
    pub fn addresses(&self, count: usize) -> Result<Vec<String>> {
        let until = Instant::now() + START_MAX;
        loop {
            let log = self.server.log();
            let lines = log.lines().filter_map(|line| line.strip_prefix("listening on "));
            let found: Vec<String> = lines.map(str::to_owned).collect();
            if found.len() >= count {
                return Ok(found);
            }
            ensure!(Instant::now() < until, "the server listens only on {found:?}:\n{log}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Returns the lines for clients that it has printed.
    pub fn client_lines(&self) -> Vec<String> {
        let log = self.server.log();
        let lines = log.lines().skip_while(|line| !line.starts_with("clients "));
        let lines = lines.take_while(|line| !line.starts_with("listening on "));
        lines.filter_map(|line| line.get(8..).map(str::to_owned)).collect()
    }

    /// Returns the URL `iscsi://127.0.0.1:PORT`.
    pub fn portal_url(&self) -> String {
        format!("iscsi://{}", self.address)
    }

    /// Returns the URL `iscsi://127.0.0.1:PORT/TARGET/LUN`.
    pub fn url(&self, target: &str, lun: u32) -> String {
        format!("iscsi://{}/{target}/{lun}", self.address)
    }

    /// Returns the address of its API, as printed.
    pub fn api(&self) -> Option<String> {
        let log = self.server.log();
        log.lines().find_map(|line| Some(line.strip_prefix("api ")?.trim().to_owned()))
    }

    /// Returns the handle of one of its sessions, once there is one.
    ///
    /// # Errors
    /// The server has no API, or no session in time.
    pub fn session(&self) -> Result<String> {
        let api = self.api().context("the server has no API")?;
        let until = Instant::now() + SESSION_MAX;
        loop {
            let output =
                run_checked(&binary()?, &["ctl", "--api", &api, "sessions", "--json"], START_MAX)?;
            let document: serde_json::Value = serde_json::from_str(&output)?;
            if let Some(tsih) = document["sessions"][0]["tsih"].as_u64() {
                return Ok(tsih.to_string());
            }
            ensure!(Instant::now() < until, "no session was established: {document}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Returns the URL `http://127.0.0.1:PORT/metrics`, as printed.
    pub fn metrics(&self) -> Option<String> {
        let log = self.server.log();
        log.lines().find_map(|line| Some(line.strip_prefix("metrics ")?.trim().to_owned()))
    }

    /// Returns the number of commands that a switch has relayed to the end so far.
    ///
    /// # Errors
    /// The server does not show its metrics.
    pub fn relayed_commands(&self) -> Result<u64> {
        let page = metrics_page(&self.metrics().context("the server has no metrics")?)?;
        let counts = page.lines().filter_map(|line| {
            let count = line.strip_prefix("lunar_relayed_commands_total")?;
            let (labels, count) = count.rsplit_once(' ')?;
            labels.contains("result=\"relayed\"").then(|| count.parse::<u64>().ok())?
        });
        Ok(counts.sum())
    }

    /// Returns the number of its process.
    pub fn pid(&self) -> u32 {
        self.server.id()
    }

    /// Returns the process.
    pub fn server(&mut self) -> &mut ServerProcess {
        &mut self.server
    }

    /// Sends SIGTERM; returns the time until the end with status 0.
    ///
    /// # Errors
    /// The server does not end within `limit`, or with another status.
    pub fn stop(mut self, limit: Duration) -> Result<Duration> {
        let started = Instant::now();
        self.server.signal(Signal::TERM)?;
        let end = self.server.wait(limit)?;
        let stopped = matches!(end, End::Exited(status) if status.success());
        ensure!(
            stopped,
            "the server did not stop cleanly after SIGTERM: {end:?}:\n{}",
            self.server.log()
        );
        Ok(started.elapsed())
    }
}

/// Reads a page of metrics.
fn metrics_page(url: &str) -> Result<String> {
    let authority = url.strip_prefix("http://").and_then(|rest| rest.split_once('/'));
    let (address, path) = authority.with_context(|| url.to_owned())?;
    let mut tcp = TcpStream::connect(address)?;
    tcp.set_read_timeout(Some(METRICS_MAX))?;
    write!(tcp, "GET /{path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")?;
    let mut text = String::new();
    tcp.read_to_string(&mut text)?;
    Ok(text)
}
