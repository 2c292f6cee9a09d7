//! Debian's tgt on a free port; it ends with its owner.

use crate::bench::server::mortal;
use anyhow::{Context, Result, ensure};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

const START_MAX: Duration = Duration::from_secs(10);
/// Environment variable that names the control socket, for tgtd and for tgtadm.
const CONTROL_VARIABLE: &str = "TGT_IPC_SOCKET";
const TARGET: &str = "iqn.2026-11.org.lunarsan.bench:tgt";

/// A `tgtd` with one target. It ignores SIGTERM while a target is defined, so it is killed.
pub struct Tgt {
    child: Child,
    /// Folder with its control socket.
    control: PathBuf,
    address: String,
}

/// Mode in which a file is served. tgtadm(8): `--bsoflags`.
#[derive(Clone, Copy, Debug, Default)]
pub struct TgtBacking {
    /// `O_SYNC`: a write has returned when it is durable.
    pub is_sync: bool,
    /// `O_DIRECT`.
    pub is_direct: bool,
}

impl TgtBacking {
    /// Returns the options of `tgtadm`.
    pub fn options(self) -> &'static [&'static str] {
        match (self.is_sync, self.is_direct) {
            (false, false) => &[],
            (true, false) => &["--bsoflags", "sync"],
            (false, true) => &["--bsoflags", "direct"],
            (true, true) => &["--bsoflags", "sync:direct"],
        }
    }

    /// Returns the options of the backing store with asynchronous I/O, past the page cache.
    pub fn aio() -> &'static [&'static str] {
        &["--bstype", "aio"]
    }
}

impl Tgt {
    /// Serves `file` as LUN 1, on one processor core if one is named.
    ///
    /// # Errors
    /// tgt is not installed, does not start or refuses the target.
    pub fn start(core: Option<u16>, file: &Path) -> Result<Self> {
        Self::start_with(core, file, TgtBacking::default().options())
    }

    /// Serves `file` with options of `tgtadm` for the backing store.
    ///
    /// # Errors
    /// tgt is not installed, does not start or refuses the target.
    pub fn start_with(core: Option<u16>, file: &Path, options: &[&str]) -> Result<Self> {
        let number = own_number();
        let control = control_folder(number)?;
        // The port is outside of the range that the system gives to clients, which could take it
        // before tgt does.
        let address = format!("127.0.0.1:{}", 20_000 + number % 12_000);
        let child = mortal(core, Path::new("tgtd"))
            .args(["-f", "--iscsi", &format!("portal={address}")])
            .env(CONTROL_VARIABLE, control.join("control"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("starting tgtd: apt-get install tgt, and run this as root")?;
        let tgt = Self { child, control, address };
        tgt.wait_until_ready()?;
        let file = file.to_str().context("a path in UTF-8")?;
        tgt.admin(&["new", "--mode", "target", "--tid", "1", "-T", TARGET])?;
        let unit = ["new", "--mode", "logicalunit", "--tid", "1", "--lun", "1", "-b", file];
        tgt.admin(&[&unit[..], options].concat())?;
        tgt.admin(&["bind", "--mode", "target", "--tid", "1", "-I", "ALL"])?;
        Ok(tgt)
    }

    /// Returns the URL `iscsi://127.0.0.1:PORT/TARGET/1`.
    pub fn url(&self) -> String {
        format!("iscsi://{}/{TARGET}/1", self.address)
    }

    /// Returns the number of its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    fn admin(&self, arguments: &[&str]) -> Result<()> {
        let output = Command::new("tgtadm")
            .args(["--lld", "iscsi", "--op"])
            .args(arguments)
            .env(CONTROL_VARIABLE, self.control.join("control"))
            .output()
            .context("running tgtadm")?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "tgtadm {}: {said}", arguments.join(" "));
        Ok(())
    }

    fn wait_until_ready(&self) -> Result<()> {
        let until = Instant::now() + START_MAX;
        while let Err(error) = self.admin(&["show", "--mode", "target"]) {
            ensure!(Instant::now() < until, "tgtd does not start: {error:#}");
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }
}

/// Makes the folder of a control socket. A control port is a socket named by number, and any number
/// may be in use by another user's tgtd, which would receive the commands for ours.
fn control_folder(number: u32) -> Result<PathBuf> {
    let name = format!("lunar-bench-tgt-{}-{number}", std::process::id());
    let folder = std::env::temp_dir().join(name);
    std::fs::create_dir(&folder).with_context(|| folder.display().to_string())?;
    Ok(folder)
}

/// Returns a number unique to this process and call.
fn own_number() -> u32 {
    static STARTED: AtomicU32 = AtomicU32::new(0);
    (std::process::id() % 3_000) * 10 + STARTED.fetch_add(1, Relaxed) % 10
}

impl Drop for Tgt {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
        drop(std::fs::remove_dir_all(&self.control));
    }
}
