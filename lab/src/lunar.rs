//! Our own binary, built by cargo, as a server on a free port.

use crate::process::{End, ServerProcess, must};
use anyhow::{Context, Result, bail, ensure};
use rustix::process::Signal;
use std::process::Command;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Longest time until a server listens.
const START_MAX: Duration = Duration::from_secs(60);

/// Longest time until a client has logged in.
const SESSION_MAX: Duration = Duration::from_secs(60);

/// Returns the path of the `lunar` binary: `LUNAR_BIN`, or a build of profile `lab`, which is built
/// if missing.
///
/// # Errors
/// The binary cannot be built.
pub fn binary() -> Result<String> {
    static BINARY: OnceLock<std::result::Result<String, String>> = OnceLock::new();
    let built = BINARY.get_or_init(|| build().map_err(|error| format!("{error:#}")));
    built.clone().map_err(anyhow::Error::msg)
}

fn build() -> Result<String> {
    if let Ok(path) = std::env::var("LUNAR_BIN") {
        return Ok(path);
    }
    let output = Command::new(env!("CARGO"))
        .args(["build", "--profile", "lab", "--locked", "-p", "lunar-san"])
        .args(["--bin", "lunar", "--message-format", "json-render-diagnostics"])
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
        .output()
        .context("running cargo build")?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
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
        Self::listening(ServerProcess::start(&binary()?, arguments)?)
    }

    /// Starts `lunar ARGUMENTS` after a shell has run `before` (`ulimit -n 64 &&`) in the process
    /// that becomes the server.
    ///
    /// # Errors
    /// `before` fails, or the server does not listen in time.
    pub fn start_after(before: &str, arguments: &[&str]) -> Result<Self> {
        let (script, binary) = (format!("{before} exec \"$0\" \"$@\""), binary()?);
        let shell = ["-c", &script, &binary];
        Self::listening(ServerProcess::start("sh", &[&shell[..], arguments].concat())?)
    }

    fn listening(mut server: ServerProcess) -> Result<Self> {
        let line = server.wait_for_line("listening on ", START_MAX)?;
        let address = line.split("listening on ").nth(1).unwrap_or_default();
        let address = address.split([' ', ',']).next().unwrap_or_default().to_owned();
        Ok(Self { server, address })
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
            ensure!(Instant::now() < until, "it listens on {found:?} only:\n{log}");
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
        let api = self.api().context("it has no API")?;
        let until = Instant::now() + SESSION_MAX;
        loop {
            let told = must(&binary()?, &["ctl", "--api", &api, "sessions", "--json"], START_MAX)?;
            let told: serde_json::Value = serde_json::from_str(&told)?;
            if let Some(tsih) = told["sessions"][0]["tsih"].as_u64() {
                return Ok(tsih.to_string());
            }
            ensure!(Instant::now() < until, "no session: {told}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Returns the URL `http://127.0.0.1:PORT/metrics`, as printed.
    pub fn metrics(&self) -> Option<String> {
        let log = self.server.log();
        log.lines().find_map(|line| Some(line.strip_prefix("metrics ")?.trim().to_owned()))
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
        ensure!(stopped, "SIGTERM ended in {end:?}:\n{}", self.server.log());
        Ok(started.elapsed())
    }
}
