//! Loop devices over a file of a power-cut disk, and ext4 on them.
//!
//! The kernel's page cache and io_uring work on a loop device as on any disk; on a FUSE file they
//! do not. A loop device passes flushes on as fsync of its backing file.

use crate::system::process::{run, run_checked};
use crate::system::scratch::Scratch;
use anyhow::{Context, Result, bail, ensure};
use rustix::fs::Advice;
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const TOOL_MAX: Duration = Duration::from_secs(30);

/// Time limit for releases: the kernel closes files held by an io_uring a moment after the end of
/// their process.
const RELEASE_MAX: Duration = Duration::from_secs(30);

const POLL: Duration = Duration::from_millis(2);

/// Message with the requirements, for when a loop device cannot be attached.
const HELP: &str = "the power-cut tests require loop devices and root: modprobe loop, or start \
                    the container with --privileged (for losetup and mkfs.ext4 see scripts/setup \
                    test)";

/// An attached loop device. The kernel detaches it when nothing uses it any more: this value, a
/// mounted file system, or a program that has it open. The device is therefore also released when
/// this process is killed.
pub struct LoopDevice {
    path: String,
    backing: String,
    file: Option<File>,
}

impl LoopDevice {
    /// Attaches a file, with sectors of `sector_bytes`.
    ///
    /// # Errors
    /// Fails if there are no loop devices, or if we are not root.
    pub fn attach(backing: &str, sector_bytes: u64) -> Result<Self> {
        ensure!(Path::new("/dev/loop-control").exists(), "/dev/loop-control is missing; {HELP}");
        let sector = format!("--sector-size={sector_bytes}");
        let attached = run_checked("losetup", &["--find", "--show", &sector, backing], TOOL_MAX);
        let path = attached.context(HELP)?.trim().to_owned();
        let opened = File::open(&path).with_context(|| path.clone());
        // Marks the device for detaching at its last close; this process has it open.
        let detached = run_checked("losetup", &["--detach", &path], TOOL_MAX);
        let device = Self { path, backing: backing.to_owned(), file: Some(opened?) };
        detached?;
        ensure!(device.is_attached(), "{} was detached immediately", device.path);
        Ok(device)
    }

    /// Returns `/dev/loopN`.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Writes back and drops a part of its page cache ([`write_back`]).
    ///
    /// # Errors
    /// Fails with the error of posix_fadvise(2).
    pub fn write_back(&self, bytes: &Range<u64>) -> Result<()> {
        self.file.as_ref().map_or(Ok(()), |file| write_back(file, bytes))
    }

    /// Waits until nothing uses the device any more, so that it is detached.
    ///
    /// # Errors
    /// Fails if something still uses it after 30 seconds.
    pub fn detach(mut self) -> Result<()> {
        self.release()
    }

    fn release(&mut self) -> Result<()> {
        self.file = None;
        let until = Instant::now() + RELEASE_MAX;
        while self.is_attached() {
            ensure!(Instant::now() < until, "{} is still in use", self.path);
            std::thread::sleep(POLL);
        }
        Ok(())
    }

    fn is_attached(&self) -> bool {
        let device = Path::new(&self.path).file_name().unwrap_or_default();
        backing_of(&Path::new("/sys/block").join(device)) == Some(self.backing.clone())
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        if let Err(error) = self.release() {
            eprintln!("{error:#}");
        }
    }
}

/// Returns the backing file of a loop device, given its folder below `/sys/block`.
fn backing_of(device: &Path) -> Option<String> {
    let text = std::fs::read_to_string(device.join("loop/backing_file")).ok()?;
    Some(text.trim_end().to_owned())
}

/// Starts to write back the dirty pages of these bytes, as the kernel does by itself after some
/// seconds, and drops the clean ones. Nothing is synced: the disk may still lose the written data.
///
/// # Errors
/// Fails with the error of posix_fadvise(2).
pub fn write_back(file: &File, bytes: &Range<u64>) -> Result<()> {
    let len = std::num::NonZeroU64::new(bytes.end - bytes.start);
    Ok(rustix::fs::fadvise(file, bytes.start, len, Advice::DontNeed)?)
}

/// Makes an ext4 file system on a device and syncs it.
///
/// # Errors
/// Fails if mkfs.ext4 does; the message holds its output.
pub fn make_ext4(device: &LoopDevice) -> Result<()> {
    let complete = "lazy_itable_init=0,lazy_journal_init=0,nodiscard";
    let how = ["-q", "-F", "-b", "4096", "-E", complete, device.path()];
    run_checked("mkfs.ext4", &how, TOOL_MAX).context(HELP)?;
    Ok(())
}

/// A mounted ext4 file system. Dropping the value unmounts it.
pub struct Ext4 {
    mount: Scratch,
    mounted: bool,
}

impl Ext4 {
    /// Mounts a device; the kernel replays the journal.
    ///
    /// # Errors
    /// Fails if mount(8) does; the message holds its output.
    pub fn mount(device: &LoopDevice) -> Result<Self> {
        let mount = Scratch::new("power-ext4")?;
        let how = ["-t", "ext4", device.path(), &mount.path("")];
        run_checked("mount", &how, TOOL_MAX)?;
        Ok(Self { mount, mounted: true })
    }

    /// Returns the path of a file on it, as text for a command line.
    pub fn path(&self, name: &str) -> String {
        self.mount.path(name)
    }

    /// Unmounts the file system as soon as nothing uses it.
    ///
    /// # Errors
    /// Fails if something still uses it after 30 seconds; it is unmounted lazily then.
    pub fn unmount(mut self) -> Result<()> {
        self.release()
    }

    fn release(&mut self) -> Result<()> {
        let until = Instant::now() + RELEASE_MAX;
        while std::mem::take(&mut self.mounted) {
            let path = self.mount.path("");
            let done = run("umount", &[&path], TOOL_MAX)?;
            if done.succeeded() {
                break;
            }
            if Instant::now() >= until {
                unmount_lazily(&path);
                bail!("{path} is still in use: {}", done.outputs());
            }
            self.mounted = true;
            std::thread::sleep(POLL);
        }
        Ok(())
    }
}

impl Drop for Ext4 {
    fn drop(&mut self) {
        if let Err(error) = self.release() {
            eprintln!("{error:#}");
        }
    }
}

pub(super) fn unmount_lazily(path: &str) {
    let done = run("umount", &["--lazy", path], TOOL_MAX);
    if !done.is_ok_and(|done| done.succeeded()) {
        eprintln!("cannot unmount {path}");
    }
}

/// Unmounts and detaches the loop devices of tests that were killed. Their backing files lie in the
/// scratch folder of a process that has ended; no other device is touched.
pub(super) fn clear_up() {
    for device in std::fs::read_dir("/sys/block").into_iter().flatten().flatten() {
        let Some(backing) = backing_of(&device.path()) else { continue };
        let folder = PathBuf::from(backing).parent().map(Path::to_path_buf).unwrap_or_default();
        if !Scratch::is_left_over(&folder) {
            continue;
        }
        let path = Path::new("/dev").join(device.file_name()).display().to_string();
        for folder in mounts_of(&path) {
            unmount_lazily(&folder);
            drop(std::fs::remove_dir(folder));
        }
        // A device without users is detached already.
        drop(run("losetup", &["--detach", &path], TOOL_MAX));
    }
}

/// Returns the folders where a device, or a file system of this name, is mounted.
pub(super) fn mounts_of(source: &str) -> Vec<String> {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let fields = mounts.lines().map(|line| line.split(' '));
    let of_source = fields.filter_map(|mut of| (of.next() == Some(source)).then(|| of.next()));
    of_source.flatten().map(str::to_owned).collect()
}
