//! The target: `lunar serve` in another process.

use super::files::Disk;
use crate::output::Failure;
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::time::timeout;

const TARGET: &str = "iqn.2026-11.org.lunarsan.bench:storage-over-ip";
const START_MAX: Duration = Duration::from_secs(30);

/// A target, killed when dropped.
#[derive(Debug)]
pub(super) struct Served {
    child: Child,
    /// URL of the disk: `iscsi://127.0.0.1:PORT/TARGET/0`.
    pub(super) url: String,
}

impl Served {
    /// Serves `disk` write-back on a free port of loopback, with the I/O mode `io` (`--io`).
    pub(super) async fn start(disk: &Disk, io: &str) -> Result<Self, Failure> {
        let failed = |why: String| Failure::new(format!("the target did not start: {why}"));
        let own = std::env::current_exe().map_err(|error| failed(error.to_string()))?;
        let mut child = Command::new(own)
            .args(["--end-with-parent", &std::process::id().to_string(), "serve"])
            .arg(&disk.path)
            .args(["--listen", "127.0.0.1:0", "--name", TARGET])
            .args(["--cache", "write-back", "--io", io])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| failed(error.to_string()))?;
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let (Some(stdout), Some(mut stderr)) = (stdout, stderr) else {
            return Err(failed("it has no pipes".to_owned()));
        };
        let mut lines = BufReader::new(stdout).lines();
        let listening = async {
            while let Ok(Some(line)) = lines.next_line().await {
                if let Some(address) = line.strip_prefix("listening on ") {
                    return Some(address.trim().to_owned());
                }
            }
            None
        };
        let Ok(Some(address)) = timeout(START_MAX, listening).await else {
            drop(child.start_kill());
            let mut said = String::new();
            let _ = timeout(START_MAX, stderr.read_to_string(&mut said)).await;
            return Err(failed(said.trim().to_owned()));
        };
        // Further output is read so that the pipes do not fill.
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        tokio::spawn(async move {
            let mut piece = [0; 4096];
            while stderr.read(&mut piece).await.is_ok_and(|bytes| bytes > 0) {}
        });
        Ok(Self { child, url: format!("iscsi://{address}/{TARGET}/0") })
    }

    /// Stops the target, after its clients have logged out.
    pub(super) async fn stop(mut self) {
        drop(self.child.kill().await);
    }
}
