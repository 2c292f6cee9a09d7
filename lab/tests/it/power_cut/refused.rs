//! Changes that were answered with an error because they could not be saved are not made by the
//! next start.

use crate::power_cut::rig::{LOST, after_each_cut, log_in, read_all};
use crate::power_cut::states::{BLOCKS, REGISTER, keys, must_out, out, ready, serve};
use anyhow::{Result, ensure};
use lunar_lab::peers::lunar::Lunar;
use lunar_lab::powercut::{CallKind, PowerCutDisk};
use lunar_testkit::raw::RawClient;
use rustix::io::Errno;

/// Makes `command` fail at its last sync, that of the new state's name: it is unknown whether the
/// name is on the disk. Then cuts the power, and calls `check` on the next start.
fn refused(
    name: &str,
    mut prepare: impl FnMut(&PowerCutDisk, &mut RawClient) -> Result<()>,
    command: impl Fn(&mut RawClient) -> Result<u8>,
    check: impl Fn(&Lunar, u64) -> Result<()>,
) -> Result<()> {
    let disk = PowerCutDisk::mount(name)?;
    let lunar = serve(&disk, &[])?;
    let mut raw = log_in(&lunar, 1)?;
    prepare(&disk, &mut raw)?;
    disk.fail_once(CallKind::SyncDirectory, Errno::IO);
    let status = command(&mut raw)?;
    ensure!(status == 2, "the sync of a directory failed, and the status is {status:#x}");
    after_each_cut(&disk, lunar, 4, || serve(&disk, &[]), check)
}

/// Goal: reservations are those that were acknowledged last.
#[test]
fn a_refused_registration_is_not_made() -> Result<()> {
    refused(
        "power-refused",
        |_, raw| must_out(raw, REGISTER, 0, [0, 0xa1]),
        |raw| out(raw, REGISTER, 0, [0xa1, 0xa2]),
        |lunar, seed| {
            let found = keys(&mut log_in(lunar, 1)?)?;
            ensure!(found == [0xa1], "{LOST}: the key a1: {found:x?}, seed {seed}");
            Ok(())
        },
    )
}

/// Goal: a SANITIZE that was refused erases nothing, neither now nor after the next start.
#[test]
fn a_refused_erasure_is_not_done() -> Result<()> {
    refused(
        "power-sanitize",
        |_, raw| (0..2048).step_by(16).try_for_each(|lba| raw.write_blocks(lba, &[0x5a; 8192])),
        |raw| Ok(raw.execute_with(&[0x48, 0x02, 0, 0, 0, 0, 0, 0, 0, 0], &[])?.status),
        |lunar, seed| {
            let found = read_all(&mut ready(lunar)?, BLOCKS, 512)?;
            let gone = found.iter().position(|byte| *byte != 0x5a);
            ensure!(gone.is_none(), "{LOST}: byte {gone:?} is erased, seed {seed}");
            Ok(())
        },
    )
}

/// Goal: an EXIT FAILURE MODE that was refused leaves the blocks inaccessible: they may hold data
/// that was to be erased.
#[test]
fn a_refused_exit_keeps_the_failure() -> Result<()> {
    refused(
        "power-exit",
        |disk, raw| {
            disk.set_room(64 << 10);
            let cdb = [0x48, 0x21, 0, 0, 0, 0, 0, 0, 5, 0];
            let outcome = raw.execute_with(&cdb, &[1, 0, 0, 1, 0xa5])?;
            ensure!(outcome.status == 2, "it had room: {outcome:02x?}");
            disk.set_room(64 << 20);
            Ok(())
        },
        |raw| Ok(raw.execute(&[0x48, 0x1f, 0, 0, 0, 0, 0, 0, 0, 0], 0)?.0),
        |lunar, seed| {
            let shown = log_in(lunar, 1)?.execute(&[0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0], 512)?.0 == 0;
            ensure!(!shown, "{LOST}: the failure, so that old blocks can be read, seed {seed}");
            Ok(())
        },
    )
}
