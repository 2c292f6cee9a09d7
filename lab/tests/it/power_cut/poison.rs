//! A disk that accepts no writes after a failed sync, before and after the end of its server.

use crate::power_cut::rig::{LOST, Machine, after_the_cut, kill, log_in, seeds};
use anyhow::{Context, Result, ensure};
use lunar_lab::peers::lunar::Lunar;
use lunar_lab::powercut::CallKind;
use lunar_testkit::raw::RawClient;
use rustix::io::Errno;
use std::time::Duration;

const TOOL_MAX: Duration = Duration::from_secs(20);
pub const SYNCHRONIZE_CACHE: [u8; 10] = [0x35, 0, 0, 0, 0, 0, 0, 0, 0, 0];
pub const MEDIUM_ERROR: (u8, u16) = (3, 0x0c00);

/// Writes a configuration of a write-back disk, with more lines for its LUN; returns its path.
fn configuration(machine: &Machine, more: &str) -> Result<String> {
    let path = machine.disk.path("disk.img");
    machine.configuration(&format!(
        "[[target.lun]]\nid = 0\ndevice = \"{path}\"\nsize = \"1MiB\"\n\
         cache = \"write-back\"\n{more}"
    ))
}

fn start(machine: &Machine) -> Result<Lunar> {
    Lunar::start(&["target", "--config", &configuration(machine, "")?])
}

/// Starts a server, whose disk stopped accepting writes because a sync failed once.
fn poisoned(machine: &Machine) -> Result<Lunar> {
    let lunar = start(machine)?;
    let mut raw = log_in(&lunar, 1)?;
    raw.write_blocks(7, &[0x77; 512])?;
    machine.disk.fail_once(CallKind::Sync, Errno::IO);
    let failed = raw.run(&SYNCHRONIZE_CACHE, 0)?;
    ensure!(failed.sense_codes() == MEDIUM_ERROR, "the sync fails: {failed:02x?}");
    Ok(lunar)
}

pub fn takes_no_writes(raw: &mut RawClient, block_bytes: usize) -> Result<()> {
    let written = raw.execute_with(&[0x2a, 0, 0, 0, 0, 8, 0, 0, 1, 0], &vec![2; block_bytes])?;
    let synced = raw.run(&SYNCHRONIZE_CACHE, 0)?;
    let codes = [written.sense_codes(), synced.sense_codes()];
    ensure!(codes == [MEDIUM_ERROR; 2], "{LOST}: that it takes no writes: {codes:04x?}");
    Ok(())
}

pub fn takes_writes(raw: &mut RawClient, block_bytes: usize) -> Result<()> {
    raw.execute(&[0; 6], 0)?;
    raw.write_blocks(8, &vec![3; block_bytes])?;
    let synced = raw.run(&SYNCHRONIZE_CACHE, 0)?;
    ensure!(synced.status == 0, "{LOST}: that it was recovered: {synced:02x?}");
    Ok(())
}

/// Goal: neither SIGKILL nor a power cut makes a disk accept writes again after a failed sync;
/// after an operator's recovery it accepts them, and a power cut does not undo the recovery.
#[test]
fn a_poisoned_disk_refuses_writes_after_a_restart() -> Result<()> {
    let machine = Machine::new("power-poison")?;
    let lunar = poisoned(&machine)?;
    let moment = machine.disk.volume();
    machine.disk.freeze();
    kill(lunar)?;
    for seed in seeds(3) {
        machine.disk.cut_from(moment.clone(), seed);
        let lunar = after_the_cut(start(&machine), seed)?;
        let mut raw = log_in(&lunar, 1)?;
        takes_no_writes(&mut raw, 512).with_context(|| format!("seed {seed}"))?;
        let status = machine.run_lunar(&["ctl", "status"])?;
        ensure!(status.contains("lunar ctl recover 0 --accept-loss"), "{status}");
        machine.run_lunar(&["ctl", "recover", "0", "--accept-loss"])?;
        takes_writes(&mut raw, 512)?;
        let recovered = machine.disk.volume();
        machine.disk.freeze();
        kill(lunar)?;
        machine.disk.cut_from(recovered, 0);
        let lunar = after_the_cut(start(&machine), 0)?;
        let written =
            log_in(&lunar, 1)?.execute_with(&[0x2a, 0, 0, 0, 0, 8, 0, 0, 1, 0], &[4; 512])?;
        ensure!(written.status == 0, "{LOST}: that it was recovered: {written:02x?}");
        kill(lunar)?;
    }
    Ok(())
}

/// Goal: a writeback that failed while no server ran blocks the writes of the next one: only the
/// sync at its start receives the error.
#[test]
fn a_sync_that_fails_at_the_start_is_not_passed_over() -> Result<()> {
    let machine = Machine::new("power-poison-start")?;
    let lunar = start(&machine)?;
    log_in(&lunar, 1)?.write_blocks(7, &[0x77; 512])?;
    kill(lunar)?;
    machine.disk.fail_once(CallKind::Sync, Errno::IO);
    let lunar = start(&machine)?;
    takes_no_writes(&mut log_in(&lunar, 1)?, 512)?;
    machine.run_lunar(&["ctl", "recover", "0", "--accept-loss"])?;
    takes_writes(&mut log_in(&lunar, 1)?, 512)?;
    lunar.stop(TOOL_MAX)?;
    Ok(())
}

/// Goal: a change of its settings, or removing and adding the unit, does not make the disk accept
/// writes either.
#[test]
fn a_poisoned_disk_refuses_writes_after_a_change() -> Result<()> {
    let machine = Machine::new("power-poison-apply")?;
    let lunar = poisoned(&machine)?;
    let file = configuration(&machine, "removable = true\n")?;
    machine.run_lunar(&["apply", &file])?;
    takes_no_writes(&mut log_in(&lunar, 1)?, 512)?;
    machine.run_lunar(&["ctl", "remove-lun", "0"])?;
    let device = machine.disk.path("disk.img");
    machine.run_lunar(&["ctl", "add-lun", &device, "--id", "0", "--cache", "write-back"])?;
    takes_no_writes(&mut log_in(&lunar, 1)?, 512)?;
    machine.run_lunar(&["ctl", "recover", "0", "--accept-loss"])?;
    takes_writes(&mut log_in(&lunar, 1)?, 512)?;
    lunar.stop(TOOL_MAX)?;
    Ok(())
}
