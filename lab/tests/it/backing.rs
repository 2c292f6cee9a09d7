//! Server reports about backing files on hanging file systems, and about block devices.

use anyhow::{Result, ensure};
use lunar_lab::peers::lunar::{Lunar, binary};
use lunar_lab::powercut::{CallKind, LoopDevice, PowerCutDisk};
use lunar_lab::system::process::run_checked;
use lunar_lab::system::scratch::Scratch;
use rustix::process::Signal;
use std::fs::File;
use std::time::{Duration, Instant};

const TEST_TIMEOUT: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(50);
/// A time longer than the pause between two checks.
const TWO_ROUNDS: Duration = Duration::from_millis(4500);

fn status(api: &str) -> Result<String> {
    run_checked(&binary()?, &["ctl", "--api", api, "status"], TEST_TIMEOUT)
}

fn wait_for_status(api: &str, words: &str) -> Result<()> {
    let until = Instant::now() + TEST_TIMEOUT;
    loop {
        let text = status(api)?;
        if text.contains(words) {
            return Ok(());
        }
        ensure!(Instant::now() < until, "not reported: {words}\n{text}");
        std::thread::sleep(POLL);
    }
}

/// Goal: a file system that hangs during a check of a backing file prevents neither the checks of
/// another file, nor the use of its own disk, nor the stop of the server.
#[test]
fn a_hanging_file_system_blocks_no_other_check_and_no_stop() -> Result<()> {
    let disk = PowerCutDisk::mount("backing-hang")?;
    let scratch = Scratch::new("backing-hang")?;
    let (path, other) = (disk.path("disk.img"), scratch.path("other.img"));
    let api = format!("unix:{}", scratch.path("api.sock"));
    let mut lunar = Lunar::serve(&[&path, &other, "--size", "1M", "--api", &api])?;
    let held = disk.hold(CallKind::Look);
    held.wait_for(1, TEST_TIMEOUT)?;
    ensure!(status(&api)?.contains("health      good"));
    std::fs::remove_file(&other)?;
    wait_for_status(&api, "other.img was deleted")?;
    drop(held);
    let held = disk.hold(CallKind::Look);
    held.wait_for(1, TEST_TIMEOUT)?;
    lunar.server().signal(Signal::TERM)?;
    lunar.server().wait_for_line("lunar: stopped", TEST_TIMEOUT)?;
    drop(held);
    lunar.server().wait(TEST_TIMEOUT)?;
    Ok(())
}

/// Goal: a block device raises no false alarm, also when its node is gone; a device that became
/// smaller than the disk is reported.
#[test]
fn a_block_device_raises_no_false_alarm() -> Result<()> {
    let scratch = Scratch::new("backing-device")?;
    let image = scratch.path("image");
    let file = File::create(&image)?;
    file.set_len(4 << 20)?;
    let device = LoopDevice::attach(&image, 512)?;
    // A separate node, which can be removed without harm to other users.
    let node = scratch.path("node");
    std::os::unix::fs::symlink(device.path(), &node)?;
    let (api, state) = (format!("unix:{}", scratch.path("api.sock")), scratch.path("state"));
    let lunar = Lunar::serve(&[&node, "--state", &state, "--api", &api])?;
    std::fs::remove_file(&node)?;
    std::thread::sleep(TWO_ROUNDS);
    ensure!(status(&api)?.contains("health      good"), "{}", status(&api)?);
    file.set_len(2 << 20)?;
    run_checked("losetup", &["--set-capacity", device.path()], TEST_TIMEOUT)?;
    wait_for_status(&api, "truncated by another program, to 2097152 of 4194304 bytes")?;
    drop(lunar);
    device.detach()
}
