//! `qemu-storage-daemon` as an initiator: a LUN of a target as a file, by FUSE.

use crate::system::process::ServerProcess;
use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use std::fs::File;
use std::time::{Duration, Instant};

/// Maximum time until the LUN is mounted.
const START_MAX: Duration = Duration::from_secs(60);
/// Maximum time until an idle daemon ends.
const END_MAX: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(20);

/// A mounted LUN, unmounted when dropped.
pub struct FuseExport {
    daemon: ServerProcess,
    file: String,
}

impl FuseExport {
    /// Attaches a LUN of `target` at `portal`, and exports it as `file`, which is created. `by` is
    /// a program with its arguments that becomes the daemon, or empty. Users of the file bypass the
    /// page cache only with `O_DIRECT`.
    ///
    /// # Errors
    /// The daemon does not start, or the LUN does not appear in time.
    pub fn start(
        by: &[&str],
        (portal, target, lun): (&str, &str, u32),
        file: &str,
    ) -> Result<Self> {
        File::create(file).with_context(|| file.to_owned())?;
        let device = format!(
            "driver=iscsi,node-name=lun,transport=tcp,portal={portal},target={target},lun={lun},\
             initiator-name=iqn.2026-11.org.lunarsan:qemu,cache.direct=on"
        );
        let export = format!("type=fuse,id=file,node-name=lun,mountpoint={file},writable=on");
        let line = ["qemu-storage-daemon", "--blockdev", &device, "--export", &export];
        let line = [by, &line].concat();
        let daemon = ServerProcess::start(line[0], &line[1..])?;
        let mut export = Self { daemon, file: file.to_owned() };
        let until = Instant::now() + START_MAX;
        while !export.is_mounted()? {
            let is_waiting = Instant::now() < until && export.daemon.is_running()?;
            ensure!(is_waiting, "qemu-storage-daemon has no {file}: {}", export.daemon.log());
            std::thread::sleep(POLL);
        }
        Ok(export)
    }

    fn is_mounted(&self) -> Result<bool> {
        let mounts = std::fs::read_to_string("/proc/self/mounts")?;
        Ok(mounts.lines().any(|line| line.split(' ').nth(1) == Some(&self.file)))
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &str {
        &self.file
    }

    /// Returns the number of its process.
    pub fn pid(&self) -> u32 {
        self.daemon.id()
    }
}

impl Drop for FuseExport {
    fn drop(&mut self) {
        // A killed daemon would leave its mount behind.
        let _ = self.daemon.signal(Signal::TERM);
        let _ = self.daemon.wait(END_MAX);
        if self.is_mounted().unwrap_or(false) {
            let _ = crate::system::process::run("umount", &["--lazy", &self.file], END_MAX);
        }
    }
}
