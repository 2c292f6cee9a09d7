//! Loop devices and mounts of test runs that were killed.

use anyhow::{Context, Result, ensure};
use lunar_lab::powercut::PowerCutDisk;
use lunar_lab::system::process::{ServerProcess, run_checked};
use std::path::{Path, PathBuf};
use std::time::Duration;

const TOOL_MAX: Duration = Duration::from_secs(30);

/// A folder that is removed at the end of the test.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

/// Lists the loop devices over this file.
fn attached(file: &str) -> Result<String> {
    run_checked("losetup", &["--associated", file], TOOL_MAX)
}

/// Goal: a test run removes the loop devices and mounts of an earlier one that was killed, and
/// leaves those of one that still runs.
/// Method: a device and a mount in the scratch folder of another process, before and after its end.
#[test]
fn loop_devices_and_mounts_of_a_killed_run_are_removed() -> Result<()> {
    let other = ServerProcess::start("sleep", &["600"])?;
    let name = format!("lunar-power-left-{}-0", other.id());
    let folder = Folder(std::env::temp_dir().join(name));
    let mount = folder.0.join("mount");
    std::fs::create_dir_all(&mount)?;
    let (file, mount) = (folder.0.join("device.img"), mount.display().to_string());
    std::fs::File::create(&file)?.set_len(16 << 20)?;
    let file = file.display().to_string();
    let device = run_checked("losetup", &["--find", "--show", &file], TOOL_MAX)?;
    run_checked("mkfs.ext4", &["-q", device.trim()], TOOL_MAX)?;
    run_checked("mount", &["-t", "ext4", device.trim(), &mount], TOOL_MAX)?;
    let is_mounted = || -> Result<bool> {
        let mounts = std::fs::read_to_string("/proc/self/mounts").context("the mounts")?;
        Ok(mounts.contains(&mount))
    };
    drop(PowerCutDisk::mount("power-left-alone")?);
    let there = is_mounted()? && !attached(&file)?.is_empty();
    drop(other);
    drop(PowerCutDisk::mount("power-clears-up")?);
    ensure!(there, "a device in use was removed");
    ensure!(!is_mounted()?, "{mount} is still mounted");
    ensure!(attached(&file)?.is_empty(), "{} is still attached", device.trim());
    ensure!(Path::new(&file).exists(), "the backing file was removed");
    Ok(())
}
