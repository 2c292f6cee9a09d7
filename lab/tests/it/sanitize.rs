//! SANITIZE and a server that is killed in the middle of it.

use anyhow::{Result, ensure};
use lunar_lab::peers::lunar::Lunar;
use lunar_lab::system::scratch::Scratch;
use lunar_testkit::raw::RawClient;
use rustix::process::Signal;
use std::time::{Duration, Instant};

const TARGET: &str = "iqn.2026-11.org.lunarsan.test:sanitize";
const SIZE: &str = "64M";
const LAST_LBA: u32 = (64 << 20) / 512 - 1;
/// Number of passes: at the first rate half a minute, long enough for a kill in the middle; at the
/// second some seconds, long enough to observe the beginning.
const PASSES: u8 = 6;
const RATES: [&str; 2] = ["100Mbit", "400Mbit"];
const TEST_TIMEOUT: Duration = Duration::from_secs(100);
const REQUEST_SENSE: [u8; 6] = [0x03, 0, 0, 0, 18, 0];
const TEST_UNIT_READY: [u8; 6] = [0; 6];

/// Returns key, code and qualifier, and progress if there is one, from REQUEST SENSE.
fn sense(raw: &mut RawClient) -> Result<(u8, [u8; 2], u16)> {
    loop {
        let (status, data) = raw.execute(&REQUEST_SENSE, 18)?;
        ensure!(status == 0 && data.len() == 18, "REQUEST SENSE: {status:#x}, {data:02x?}");
        // REQUEST SENSE also reports unit attentions, which this function skips.
        if data[2] & 0x0f != 6 {
            let progress = u16::from_be_bytes([data[16], data[17]]);
            return Ok((data[2] & 0x0f, [data[12], data[13]], progress));
        }
    }
}

/// Goal: kill -9 in the middle of a SANITIZE leaves no block that can be read: the next start
/// continues it, and no old data remains when the unit is ready again.
#[test]
fn a_sanitize_continues_after_a_kill() -> Result<()> {
    let scratch = Scratch::new("sanitize-kill")?;
    let disk = scratch.path("disk.img");
    let serve = |rate: &str| {
        Lunar::serve(&[&disk, "--size", SIZE, "--name", TARGET, "--maintenance-rate", rate])
    };
    let mut lunar = serve(RATES[0])?;
    let mut raw = RawClient::log_in(lunar.address(), TARGET)?;
    let lbas = [0, 1, 7_777, LAST_LBA / 2, LAST_LBA];
    for lba in lbas {
        raw.write_blocks(lba, &[0x5a; 512])?;
    }
    let list = [0x80 | PASSES, 0, 0, 3, 0xc0, 0xff, 0xee];
    let cdb = [0x48, 0x81, 0, 0, 0, 0, 0, 0, list.len() as u8, 0];
    let outcome = raw.execute_with(&cdb, &list)?;
    ensure!(outcome.status == 0, "SANITIZE OVERWRITE with IMMED: {outcome:02x?}");
    let began = Instant::now();
    loop {
        let (key, code, progress) = sense(&mut raw)?;
        ensure!((key, code) == (2, [0x04, 0x1b]), "the operation continues: {key:x} {code:02x?}");
        if progress > 0x0800 {
            break;
        }
        ensure!(began.elapsed() < TEST_TIMEOUT, "no progress: {progress}");
    }
    lunar.server().signal(Signal::KILL)?;
    lunar.server().wait(TEST_TIMEOUT)?;
    drop(lunar);
    let lunar = serve(RATES[1])?;
    let mut raw = RawClient::log_in(lunar.address(), TARGET)?;
    let (key, code, progress) = sense(&mut raw)?;
    ensure!((key, code) == (2, [0x04, 0x1b]), "taken up again: {key:x} {code:02x?}");
    ensure!(progress < 0x8000, "from the beginning: {progress}");
    ensure!(raw.read_block(0).is_err(), "a block was shown");
    let began = Instant::now();
    while raw.execute(&TEST_UNIT_READY, 0)?.0 != 0 {
        ensure!(began.elapsed() < TEST_TIMEOUT, "not ready again");
        std::thread::sleep(Duration::from_millis(50));
    }
    let pattern: Vec<u8> = [0xc0, 0xff, 0xee].into_iter().cycle().take(512).collect();
    for lba in lbas {
        ensure!(raw.read_block(lba)? == pattern, "block {lba}");
    }
    // Ready also after a stop in good order: no operation is pending.
    lunar.stop(TEST_TIMEOUT)?;
    let lunar = serve(RATES[1])?;
    let mut raw = RawClient::log_in(lunar.address(), TARGET)?;
    ensure!(raw.read_block(0)? == pattern, "after another start");
    Ok(())
}

/// Fault: a start with `--read-only` in between failed the operation for good. A read-only server
/// may not write, so it shows no blocks and leaves the operation to the next writable start.
#[test]
fn a_read_only_start_leaves_the_operation_to_the_next() -> Result<()> {
    let scratch = Scratch::new("sanitize-read-only")?;
    let disk = scratch.path("disk.img");
    let serve = |more: &[&str]| Lunar::serve(&[&[disk.as_str(), "--name", TARGET], more].concat());
    let mut lunar = serve(&["--size", "8M", "--maintenance-rate", "1Mbit"])?;
    let mut raw = RawClient::log_in(lunar.address(), TARGET)?;
    raw.write_blocks(9_999, &[0x5a; 512])?;
    let outcome = raw.execute_with(&[0x48, 0x81, 0, 0, 0, 0, 0, 0, 5, 0], &[1, 0, 0, 1, 0xa5])?;
    ensure!(outcome.status == 0, "SANITIZE OVERWRITE with IMMED: {outcome:02x?}");
    lunar.server().signal(Signal::KILL)?;
    lunar.server().wait(TEST_TIMEOUT)?;
    drop(lunar);
    let lunar = serve(&["--read-only"])?;
    let mut raw = RawClient::log_in(lunar.address(), TARGET)?;
    let (key, code, _) = sense(&mut raw)?;
    ensure!((key, code) == (2, [0x04, 0x1b]), "the operation is not complete: {key:x} {code:02x?}");
    ensure!(raw.read_block(9_999).is_err(), "a block was shown");
    lunar.stop(Duration::from_secs(60))?;
    let lunar = serve(&[])?;
    let mut raw = RawClient::log_in(lunar.address(), TARGET)?;
    let began = Instant::now();
    while raw.execute(&TEST_UNIT_READY, 0)?.0 != 0 {
        ensure!(began.elapsed() < TEST_TIMEOUT, "not ready again: {:x?}", sense(&mut raw)?);
        std::thread::sleep(Duration::from_millis(50));
    }
    ensure!(raw.read_block(9_999)? == [0xa5; 512], "overwritten");
    Ok(())
}
