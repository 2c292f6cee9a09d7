//! LIO, the target of the Linux kernel, in a QEMU guest (lab/kernel): its start, console and end.

pub mod kernel_log;

use self::kernel_log::{KernelReport, reports};
use crate::system::ports::free_port;
use crate::system::process::{End, ServerProcess};
use crate::system::scratch::Scratch;
use anyhow::{Context, Result, bail, ensure};
use std::fs::File;
use std::net::TcpStream;
use std::path::PathBuf;
use std::time::Duration;

/// Time after which the guest is killed.
const GUEST_SECONDS_MAX: u64 = 1800;
/// Maximum number of polls of the console until LIO has started, or a line is there. A count and
/// not a time, since the processes may be stopped for a while.
const POLLS_MAX: usize = 30_000;
const POLL: Duration = Duration::from_millis(20);
const STOP_MAX: Duration = Duration::from_secs(60);
/// Maximum number of console lines in a message.
const CONSOLE_LINES_MAX: usize = 20;
/// Console lines of every login: keys of ours that LIO does not support, which it answers with
/// NotUnderstood (RFC 7143 §6.2).
const USUAL_LINES: &[&str] =
    &["Unable to locate key \"TaskReporting\"", "Unable to locate key \"iSCSIProtocolLevel\""];

/// Length of each of its disks in bytes.
pub const DISK_BYTES: usize = 16 << 20;
/// CHAP user of the initiator.
pub const USER: &str = "kernel";
/// Its secret.
pub const SECRET: &str = "first-kernel-secret";
/// CHAP user of the target.
pub const MUTUAL_USER: &str = "lio";
/// Its secret.
pub const MUTUAL_SECRET: &str = "second-kernel-secret";
/// Line with which the guest's script simulates a fault of the kernel.
pub const PRETENDED_FAULT: &str = "refcount_t: a report to be seen";
const TARGETS: &str = "iqn.2026-11.org.lunarsan.test:lio";

/// The authentication that a target of the guest demands.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Authentication {
    /// None.
    Open,
    /// CHAP.
    Chap,
    /// CHAP in both directions.
    Mutual,
}

impl Authentication {
    /// Returns the name of the target with LIO's default DefaultTime2Wait.
    pub fn target(self) -> String {
        let name = match self {
            Self::Open => "open",
            Self::Chap => "chap",
            Self::Mutual => "mutual",
        };
        format!("{TARGETS}-{name}")
    }

    /// Returns the name of the target with DefaultTime2Wait 5, for several connections that are
    /// lost: see docs/peers.md.
    pub fn late_target(self) -> String {
        format!("{}-late", self.target())
    }
}

/// A running guest with LIO. Dropping it kills it.
pub struct Guest {
    server: ServerProcess,
    port: u16,
    report_port: u16,
    end_port: u16,
    console: PathBuf,
    disk: String,
}

impl Guest {
    /// Boots the guest. `folder` holds the files that `lab/kernel/fetch` has made; the guest's disk
    /// is in `scratch`.
    ///
    /// # Errors
    /// The targets are not ready in time; the message holds the console.
    pub fn start(folder: &str, scratch: &Scratch) -> Result<Self> {
        Self::start_with(folder, scratch, DISK_BYTES as u64)
    }

    /// Boots the guest with a disk of this length.
    ///
    /// # Errors
    /// See [`Guest::start`].
    pub fn start_with(folder: &str, scratch: &Scratch, disk_bytes: u64) -> Result<Self> {
        let disk = scratch.path("disk.img");
        File::create(&disk)?.set_len(disk_bytes)?;
        let (port, end_port, report_port) = (free_port()?, free_port()?, free_port()?);
        let console = PathBuf::from(folder).join("lio.log");
        // Removes the console of an earlier run, which would be taken for this one's.
        File::create(&console).with_context(|| console.display().to_string())?;
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/kernel/guest");
        let arguments = [
            &format!("GUEST_FORWARDS={port}:3260 {end_port}:3261 {report_port}:3262"),
            &format!("GUEST_DISK={disk}"),
            &format!("GUEST_SECONDS_MAX={GUEST_SECONDS_MAX}"),
            script,
            folder,
            "lio",
            &format!("target={TARGETS}"),
            &format!("user={USER}"),
            &format!("secret={SECRET}"),
            &format!("mutual_user={MUTUAL_USER}"),
            &format!("mutual_secret={MUTUAL_SECRET}"),
        ];
        let server = ServerProcess::start("env", &arguments)?;
        let mut guest = Self { server, port, report_port, end_port, console, disk };
        guest.wait_until_ready()?;
        Ok(guest)
    }

    fn wait_until_ready(&mut self) -> Result<()> {
        for _ in 0..POLLS_MAX {
            if self.console().contains("GUEST: ready") {
                return Ok(());
            }
            if !self.server.is_running()? {
                break;
            }
            std::thread::sleep(POLL);
        }
        bail!("LIO has not started: {}\n{}", self.server.log(), self.console())
    }

    /// Returns the address `127.0.0.1:PORT`, which leads to its portal.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Returns the path of the file that is LUN 0 of each target. The guest does not cache it:
    /// writes of one side are visible to the other.
    pub fn disk(&self) -> &str {
        &self.disk
    }

    /// Returns the version of its kernel.
    pub fn version(&self) -> String {
        let console = self.console();
        let line = console.lines().find_map(|line| line.trim_end().strip_prefix("GUEST: LIO of "));
        line.unwrap_or("unknown").to_owned()
    }

    fn console(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.console).unwrap_or_default()).into_owned()
    }

    /// Returns the number of lines on its console.
    pub fn console_lines(&self) -> usize {
        self.console().lines().count()
    }

    /// Returns the last lines of its console after the first `skip`, without those of every login.
    pub fn console_after(&self, skip: usize) -> String {
        let console = self.console();
        let is_usual = |line: &&str| USUAL_LINES.iter().any(|usual| line.contains(usual));
        let lines: Vec<_> = console.lines().skip(skip).filter(|line| !is_usual(line)).collect();
        lines[lines.len().saturating_sub(CONSOLE_LINES_MAX)..].join("\n")
    }

    /// Returns the reports of its kernel since the start.
    pub fn reports(&self) -> Vec<KernelReport> {
        reports(&self.console())
    }

    /// Makes the guest's kernel print [`PRETENDED_FAULT`], and waits for the report.
    ///
    /// # Errors
    /// The report is not on the console in time.
    pub fn provoke_report(&mut self) -> Result<()> {
        let before = self.reports().len();
        drop(TcpStream::connect(("127.0.0.1", self.report_port))?);
        for _ in 0..POLLS_MAX {
            if self.reports().len() > before {
                return Ok(());
            }
            ensure!(self.server.is_running()?, "the guest has ended: {}", self.server.log());
            std::thread::sleep(POLL);
        }
        bail!("the kernel's report is not on the console: {}", self.console_after(0))
    }

    /// Returns whether the guest runs; its kernel may have crashed.
    ///
    /// # Errors
    /// The system does not return the status.
    pub fn is_running(&mut self) -> Result<bool> {
        self.server.is_running()
    }

    /// Powers the guest off.
    ///
    /// # Errors
    /// The guest does not end.
    pub fn stop(&mut self) -> Result<()> {
        drop(TcpStream::connect(("127.0.0.1", self.end_port))?);
        let end = self.server.wait(STOP_MAX)?;
        let passed = matches!(end, End::Exited(status) if status.success());
        ensure!(passed, "{end:?}: {}", self.server.log());
        Ok(())
    }
}
