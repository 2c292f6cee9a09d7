//! The real binary on a disk that hangs, fails and has no space: initiators receive the errors,
//! other disks continue, and the exit status and log report the failure.

use anyhow::{Result, ensure};
use lunar_lab::peers::lunar::{Lunar, binary};
use lunar_lab::powercut::{CallKind, PowerCutDisk};
use lunar_lab::system::process::{End, run_checked};
use lunar_lab::system::scratch::Scratch;
use lunar_testkit::raw::{RawAnswer, RawClient, RawOutcome, RawPdu, opcode};
use rustix::io::Errno;
use rustix::process::Signal;
use std::time::Duration;

const TARGET: &str = "iqn.2026-11.org.lunarsan.test:failing";
/// Time limit longer than any step, even on a busy machine.
const TEST_TIMEOUT: Duration = Duration::from_secs(30);

fn serve(disk: &PowerCutDisk, options: &[&str]) -> Result<Lunar> {
    let path = disk.path("disk.img");
    Lunar::serve(&[&[path.as_str(), "--size", "4M", "--name", TARGET], options].concat())
}

fn log_in(lunar: &Lunar, number: u32) -> Result<RawClient> {
    let mut raw = RawClient::log_in_as(lunar.address(), TARGET, number)?;
    raw.execute(&[0; 6], 0)?;
    Ok(raw)
}

fn cdb_10(operation: u8, lba: u8, blocks: u8) -> [u8; 10] {
    [operation, 0, 0, 0, 0, lba, 0, 0, blocks, 0]
}

/// Returns INFORMATION of fixed sense data, if it is valid.
fn information(outcome: &RawOutcome) -> Option<u32> {
    let sense = &outcome.sense;
    let bytes = [sense[3], sense[4], sense[5], sense[6]];
    (sense[0] & 0x80 != 0).then_some(u32::from_be_bytes(bytes))
}

fn end(lunar: &mut Lunar) -> Result<(bool, String)> {
    let end = lunar.server().wait(TEST_TIMEOUT)?;
    let good = matches!(end, End::Exited(status) if status.success());
    Ok((good, lunar.server().log()))
}

/// Goal: while the system does not return from a write, the write can be aborted, its session can
/// end and be opened again, and another disk can be used; a later command for the block waits and
/// then sees the block written.
#[test]
fn a_disk_that_hangs() -> Result<()> {
    let disk = PowerCutDisk::mount("fail-hang")?;
    let scratch = Scratch::new("fail-hang-other")?;
    let other = scratch.path("other.img");
    for io in ["buffered", "direct"] {
        let mut lunar = serve(&disk, &["--io", io, &other])?;
        let mut raw = log_in(&lunar, 1)?;
        let held = disk.hold(CallKind::Write);
        let write = raw.command(0xa1, &cdb_10(0x2a, 0, 8), 4096).with_data(vec![7; 4096]);
        raw.send(&write)?;
        held.wait_for(1, TEST_TIMEOUT)?;
        let tag = raw.new_tag();
        let abort = RawPdu::new(0x40 | opcode::TASK_MANAGEMENT, 0x81)
            .put_u32(16, tag)
            .put_u32(20, write.u32_at(16))
            .put_u32(24, raw.cmd_sn)
            .put_u32(28, raw.exp_stat_sn);
        raw.send(&abort)?;
        let answer = raw.expect(0x22)?;
        ensure!(answer.header[2] == 0, "{io}: not aborted: {answer:02x?}");
        let mut again = log_in(&lunar, 1)?;
        ensure!(again.read_block(64)? == [0; 512], "{io}: other blocks");
        again.lun[1] = 1;
        again.execute(&[0; 6], 0)?;
        again.write_blocks(0, &[3; 512])?;
        again.lun[1] = 0;
        let read = again.command(0xc1, &cdb_10(0x28, 0, 8), 4096);
        again.send(&read)?;
        ensure!(again.answer(Duration::from_millis(200))? == RawAnswer::TimedOut, "{io}: it waits");
        drop(held);
        let (status, data, _) = again.outcome()?;
        ensure!((status, data) == (0, vec![7; 4096]), "{io}: it was written");
        again.write_blocks(0, &[0; 4096])?;
        drop((raw, again));
        ensure!(lunar.server().is_running()?);
        lunar.stop(TEST_TIMEOUT)?;
    }
    Ok(())
}

/// Goal: errors of the disk reach the initiator: MEDIUM ERROR with the first bad block, space
/// allocation failure for ENOSPC and EDQUOT.
#[test]
fn a_disk_that_fails() -> Result<()> {
    let disk = PowerCutDisk::mount("fail-errors")?;
    let lunar = serve(&disk, &["--io", "direct"])?;
    let mut raw = log_in(&lunar, 1)?;
    for errno in [Errno::NOSPC, Errno::DQUOT] {
        disk.fail_once(CallKind::Write, errno);
        let outcome = raw.execute_with(&cdb_10(0x2a, 0, 8), &[1; 4096])?;
        ensure!((outcome.status, outcome.sense_codes()) == (2, (7, 0x2707)), "{outcome:02x?}");
        raw.write_blocks(0, &[1; 4096])?;
    }
    disk.make_bad("disk.img", 40 * 512..41 * 512)?;
    disk.make_bad("disk.img", 96 * 512..97 * 512)?;
    let outcome = raw.run(&cdb_10(0x28, 3, 120), 120 * 512)?;
    ensure!((outcome.status, outcome.sense_codes()) == (2, (3, 0x1100)), "{outcome:02x?}");
    ensure!(information(&outcome) == Some(40), "{outcome:02x?}");
    ensure!(raw.read_blocks(3, 37)?.len() == 37 * 512, "before it");
    drop(raw);
    lunar.stop(TEST_TIMEOUT)?;
    Ok(())
}

/// Goal: the server waits for the final sync, however long it takes, and logs every second what it
/// waits for; a second signal ends it at once, with an error.
#[test]
fn a_final_sync_that_takes_long() -> Result<()> {
    for is_signalled_twice in [false, true] {
        let disk = PowerCutDisk::mount("fail-long-sync")?;
        let mut lunar = serve(&disk, &["--cache", "write-back"])?;
        let mut raw = log_in(&lunar, 1)?;
        raw.write_blocks(0, &[1; 4096])?;
        let held = disk.hold(CallKind::Sync);
        lunar.server().signal(Signal::TERM)?;
        let line = lunar.server().wait_for_line("syncing: 0 of 1 done after", TEST_TIMEOUT)?;
        ensure!(line.contains("disk.img"), "{line}");
        ensure!(lunar.server().is_running()?);
        if is_signalled_twice {
            lunar.server().signal(Signal::TERM)?;
            lunar.server().wait_for_line("SHUTDOWN ABORTED", TEST_TIMEOUT)?;
        }
        drop(held);
        let (good, log) = end(&mut lunar)?;
        ensure!(good != is_signalled_twice, "{log}");
        ensure!(log.contains("acknowledged writes may be lost") == is_signalled_twice, "{log}");
    }
    Ok(())
}

/// Goal: after a failed sync nothing is written any more, and the server ends with an error,
/// whether the final sync failed or one long before.
#[test]
fn a_sync_that_fails() -> Result<()> {
    for before in [true, false] {
        let disk = PowerCutDisk::mount("fail-sync")?;
        let mut lunar = serve(&disk, &["--cache", "write-back"])?;
        let mut raw = log_in(&lunar, 1)?;
        raw.write_blocks(0, &[1; 4096])?;
        disk.fail_once(CallKind::Sync, Errno::IO);
        if before {
            for cdb in [cdb_10(0x35, 0, 0), cdb_10(0x35, 0, 0)] {
                let outcome = raw.run(&cdb, 0)?;
                ensure!(outcome.sense_codes() == (3, 0x0c00), "{outcome:02x?}");
            }
            let outcome = raw.execute_with(&cdb_10(0x2a, 0, 8), &[2; 4096])?;
            ensure!(outcome.sense_codes() == (3, 0x0c00), "{outcome:02x?}");
            ensure!(raw.read_block(0)? == [1; 512], "reads go on");
        }
        lunar.server().signal(Signal::TERM)?;
        let (good, log) = end(&mut lunar)?;
        ensure!(!good && log.contains("the final sync failed"), "{log}");
    }
    Ok(())
}

/// Goal: an operator sees that a sync has failed, and how to recover; after the recovery the disk
/// accepts writes again, and the server ends without an error.
#[test]
fn a_failed_sync_is_reported_and_recovered() -> Result<()> {
    let disk = PowerCutDisk::mount("fail-recover")?;
    let api = format!("unix:{}", disk.path("api.sock"));
    let lunar = serve(&disk, &["--cache", "write-back", "--api", &api])?;
    let ctl = |arguments: &[&str]| {
        run_checked(&binary()?, &[&["ctl", "--api", &api], arguments].concat(), TEST_TIMEOUT)
    };
    ensure!(ctl(&["status"])?.contains("health      good"));
    let mut raw = log_in(&lunar, 1)?;
    raw.write_blocks(0, &[1; 4096])?;
    disk.fail_once(CallKind::Sync, Errno::IO);
    ensure!(raw.run(&cdb_10(0x35, 0, 0), 0)?.sense_codes() == (3, 0x0c00));
    let output = ctl(&["status"])?;
    for words in ["degraded", "refuses writes", "lunar ctl recover 0 --accept-loss"] {
        ensure!(output.contains(words), "{output}");
    }
    for list in ["luns", "targets"] {
        let output = ctl(&[list])?;
        ensure!(output.contains("REFUSES WRITES"), "{output}");
    }
    ctl(&["recover", "0", "--accept-loss"])?;
    ensure!(ctl(&["status"])?.contains("health      good"));
    ensure!(!ctl(&["luns"])?.contains("REFUSES WRITES"));
    // The first response reports that the medium may have changed.
    raw.execute(&[0; 6], 0)?;
    raw.write_blocks(0, &[2; 4096])?;
    drop(raw);
    lunar.stop(TEST_TIMEOUT)?;
    Ok(())
}
