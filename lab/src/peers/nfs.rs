//! An NFS server: Debian's nfs-ganesha in its own network namespace and with its own `/run`, so
//! that nothing else on this machine is affected.
//!
//! The client, qemu's `nfs://`, uses version 3 and finds the server by the port mapper at port 111,
//! which nfs-ganesha also requires; in the namespace that port is free.

use anyhow::{Context, Result, bail, ensure};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep, timeout};

const START_MAX: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(100);
/// Line in the log when the server is ready.
const READY: &str = "NFS SERVER INITIALIZED";
/// Required programs, and the Debian packages that contain them.
const NEEDED: &[(&str, &str)] = &[
    ("ganesha.nfsd", "nfs-ganesha nfs-ganesha-vfs"),
    ("rpcbind", "rpcbind"),
    ("unshare", "util-linux"),
    ("nsenter", "util-linux"),
    ("setpriv", "util-linux"),
    ("ip", "iproute2"),
];
/// Shell script that starts the server; `$1` is the exported folder. All processes end with the one
/// that runs it.
const SCRIPT: &str = r#"set -e
PATH=$PATH:/usr/sbin:/sbin
mount -t tmpfs tmpfs /run
mkdir /run/export
mount --bind "$1" /run/export
ip link set lo up
rpcbind
cd /run/export
exec ganesha.nfsd -F -f /run/export/ganesha.conf -L /run/export/ganesha.log -p /run/ganesha.pid"#;
const CONFIGURATION: &str = "\
NFS_CORE_PARAM { Protocols = 3; Enable_NLM = false; Enable_RQUOTA = false; Enable_UDP = false; }
NFSV4 { Graceless = true; RecoveryBackend = fs; RecoveryRoot = /run; }
EXPORT {
  Export_Id = 1; Path = /run/export; Pseudo = /export; Protocols = 3; Transports = TCP;
  Access_Type = RW; Squash = No_Root_Squash; SecType = sys;
  FSAL { Name = VFS; }
}
";

/// A server of one folder, killed when dropped.
#[derive(Debug)]
pub struct NfsServer {
    child: Child,
    pid: u32,
}

impl NfsServer {
    /// Checks that a server can be started here.
    ///
    /// # Errors
    /// This process is not root, or a program is missing.
    pub fn check() -> Result<()> {
        ensure!(
            rustix::process::geteuid().is_root(),
            "only root can start nfs-ganesha (run this as root, or use a directory in a mounted \
             NFS: --nfs-directory)"
        );
        for (program, package) in NEEDED {
            let is_there = is_installed(program);
            ensure!(is_there, "{program} is not installed (apt-get install {package})");
        }
        Ok(())
    }

    /// Exports `folder`, which also holds the server's own files.
    ///
    /// # Errors
    /// See [`check`](Self::check); or the server does not start.
    pub async fn start(folder: &Path) -> Result<Self> {
        Self::check()?;
        let failed = || format!("cannot write to {}", folder.display());
        std::fs::write(folder.join("ganesha.conf"), CONFIGURATION).with_context(failed)?;
        let child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "--"])
            .args(["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--"])
            .args(["sh", "-c", SCRIPT, "sh"])
            .arg(folder)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .context("cannot start nfs-ganesha")?;
        let pid = child.id().context("nfs-ganesha ended immediately")?;
        let mut server = Self { child, pid };
        server.wait_until_ready(&folder.join("ganesha.log")).await?;
        Ok(server)
    }

    /// Returns the URL of a file in the folder, for clients in the server's network namespace.
    pub fn url(&self, name: &str) -> String {
        format!("nfs://127.0.0.1/run/export/{name}")
    }

    /// Returns the number of a process in the server's network namespace.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Stops the server, after its clients have ended.
    pub async fn stop(mut self) {
        drop(self.child.kill().await);
    }

    async fn wait_until_ready(&mut self, log: &Path) -> Result<()> {
        let until = Instant::now() + START_MAX;
        loop {
            let printed = std::fs::read(log).unwrap_or_default();
            let printed = String::from_utf8_lossy(&printed).into_owned();
            if printed.contains(READY) {
                return Ok(());
            }
            let ended = !matches!(self.child.try_wait(), Ok(None));
            if ended || Instant::now() >= until {
                let mut text = last_lines(&printed);
                if let (true, Some(stderr)) = (ended, self.child.stderr.take()) {
                    let mut stderr = stderr.take(4096);
                    let _ = timeout(POLL, stderr.read_to_string(&mut text)).await;
                }
                bail!("nfs-ganesha did not start: {}", text.trim());
            }
            sleep(POLL).await;
        }
    }
}

fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(3)..].join(" · ")
}

/// Whether a program is in `PATH` or in the directories for servers.
fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let more = ["/usr/sbin", "/sbin"].map(PathBuf::from);
    std::env::split_paths(&path).chain(more).any(|folder| folder.join(program).is_file())
}
