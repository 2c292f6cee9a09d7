//! Reservations, SANITIZE and FORMAT UNIT across a power cut.

use crate::power_cut::rig::{
    LOST, TARGET, after_each_cut, after_the_cut, kill, log_in, read_all, seeds,
};
use anyhow::{Context, Result, ensure};
use lunar_lab::peers::lunar::Lunar;
use lunar_lab::powercut::PowerCutDisk;
use lunar_lab::system::scratch::Scratch;
use lunar_testkit::raw::RawClient;
use std::path::Path;
use std::time::{Duration, Instant};

const SIZE: &str = "1M";
pub const BLOCKS: u64 = 2048;
const READY_MAX: Duration = Duration::from_secs(30);
pub const REGISTER: u8 = 0;
pub const RESERVE: u8 = 1;
const PREEMPT_AND_ABORT: u8 = 5;
const REGISTER_AND_IGNORE: u8 = 6;
pub const EXCLUSIVE_ACCESS: u8 = 3;
const CONFLICT: u8 = 0x18;
/// Upper limit of the changes to the disk while the state is saved.
const CHANGES_MAX: u64 = 20;

pub fn serve(disk: &PowerCutDisk, more: &[&str]) -> Result<Lunar> {
    let file = disk.path("disk.img");
    Lunar::serve(&[&[file.as_str(), "--size", SIZE, "--name", TARGET], more].concat())
}

/// Sends PERSISTENT RESERVE OUT with APTPL; returns its status.
pub fn out(raw: &mut RawClient, action: u8, kind: u8, keys: [u64; 2]) -> Result<u8> {
    let mut list = [keys[0].to_be_bytes(), keys[1].to_be_bytes()].concat();
    list.extend_from_slice(&[0, 0, 0, 0, 0x01, 0, 0, 0]);
    let cdb = [0x5f, action, kind, 0, 0, 0, 0, 0, 24, 0];
    Ok(raw.execute_with(&cdb, &list)?.status)
}

pub fn must_out(raw: &mut RawClient, action: u8, kind: u8, keys: [u64; 2]) -> Result<()> {
    let status = out(raw, action, kind, keys)?;
    ensure!(status == 0, "PERSISTENT RESERVE OUT {action}: status {status:#x}");
    Ok(())
}

/// Returns the registered keys.
pub fn keys(raw: &mut RawClient) -> Result<Vec<u64>> {
    let (status, data) = raw.execute(&[0x5e, 0, 0, 0, 0, 0, 0, 2, 0, 0], 512)?;
    ensure!(status == 0, "READ KEYS: status {status:#x}");
    let keys = data.get(8..).context("the header")?.chunks_exact(8);
    Ok(keys.map(|key| key.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte))).collect())
}

/// True if another initiator gets a reservation conflict.
pub fn is_reserved(lunar: &Lunar) -> Result<bool> {
    let read = log_in(lunar, 3)?.execute(&[0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0], 4096)?;
    Ok(read.0 == CONFLICT)
}

/// Goal: a reservation with APTPL that was acknowledged holds after a power cut; a reservation that
/// was never made does not.
#[test]
fn reservations_are_kept() -> Result<()> {
    let disk = PowerCutDisk::mount("power-reserve")?;
    let lunar = serve(&disk, &[])?;
    let mut one = log_in(&lunar, 1)?;
    let mut moments = Vec::new();
    must_out(&mut one, REGISTER, 0, [0, 0xa1])?;
    moments.push((disk.volume(), 0xa1, false));
    must_out(&mut one, RESERVE, EXCLUSIVE_ACCESS, [0xa1, 0])?;
    moments.push((disk.volume(), 0xa1, true));
    must_out(&mut one, REGISTER_AND_IGNORE, 0, [0, 0xa2])?;
    moments.push((disk.volume(), 0xa2, true));
    let mut two = log_in(&lunar, 2)?;
    must_out(&mut two, REGISTER, 0, [0, 0xb1])?;
    must_out(&mut two, PREEMPT_AND_ABORT, EXCLUSIVE_ACCESS, [0xb1, 0xa2])?;
    moments.push((disk.volume(), 0xb1, true));
    disk.freeze();
    kill(lunar)?;
    for (moment, key, reserved) in moments {
        for seed in seeds(3) {
            disk.cut_from(moment.clone(), seed);
            let lunar = after_the_cut(serve(&disk, &[]), seed)?;
            let found = keys(&mut log_in(&lunar, 1)?)?;
            ensure!(found == [key], "{LOST}: {found:x?}, not {key:x}, seed {seed}");
            ensure!(is_reserved(&lunar)? == reserved, "{LOST}: the reservation, seed {seed}");
            kill(lunar)?;
        }
    }
    Ok(())
}

/// Goal: a change of the reservations during a power cut is made as a whole or not at all; and the
/// state that a start shows after a kill is there after a power cut.
#[test]
fn a_change_of_reservations_is_atomic() -> Result<()> {
    for changes in 0..CHANGES_MAX {
        let disk = PowerCutDisk::mount("power-change")?;
        let lunar = serve(&disk, &[])?;
        let mut one = log_in(&lunar, 1)?;
        must_out(&mut one, REGISTER, 0, [0, 0xa1])?;
        disk.freeze_after(changes);
        let made = out(&mut one, REGISTER, 0, [0xa1, 0xa2])? == 0;
        disk.freeze();
        kill(lunar)?;
        let moment = disk.volume();
        let context = || format!("after {changes} changes");
        for seed in 0..3 {
            disk.cut_from(moment.clone(), seed);
            let lunar = after_the_cut(serve(&disk, &[]), seed).with_context(context)?;
            let found = keys(&mut log_in(&lunar, 1)?)?;
            let right = found == [0xa2] || (!made && found == [0xa1]);
            ensure!(right, "{LOST}: {found:x?}, seed {seed}, {}", context());
            kill(lunar)?;
        }
        if made {
            return Ok(());
        }
        // Killed without a cut, checked, and cut then.
        disk.resume_from(moment);
        let lunar = serve(&disk, &[])?;
        let shown = keys(&mut log_in(&lunar, 1)?)?;
        disk.freeze();
        kill(lunar)?;
        disk.cut(0);
        let lunar = after_the_cut(serve(&disk, &[]), 0).with_context(context)?;
        let found = keys(&mut log_in(&lunar, 1)?)?;
        ensure!(found == shown, "{LOST}: {found:x?}, not {shown:x?}, {}", context());
        kill(lunar)?;
    }
    anyhow::bail!("a change of the state makes more than {CHANGES_MAX} changes of the disk")
}

/// Removes the state directory, runs `then`, registers, and checks that the registration is kept.
fn registers_after_removal(name: &str, then: impl Fn(&PowerCutDisk) -> Result<()>) -> Result<()> {
    let disk = PowerCutDisk::mount(name)?;
    let lunar = serve(&disk, &[])?;
    let mut one = log_in(&lunar, 1)?;
    let state = disk.path("disk.img.lunar");
    // If the server creates a file meanwhile, the folder is not empty at the first try.
    while let Err(error) = std::fs::remove_dir_all(&state) {
        ensure!(error.kind() == std::io::ErrorKind::DirectoryNotEmpty, "{state}: {error}");
    }
    then(&disk)?;
    must_out(&mut one, REGISTER, 0, [0, 0xa1])?;
    for seed in seeds(3) {
        after_the_cut(disk.after_cut(seed, "disk.img.lunar/scsi-state"), seed)?;
    }
    Ok(())
}

/// Goal: if the state of a served disk was removed, a reservation that is acknowledged afterwards
/// is still kept.
#[test]
fn a_removed_state_directory_is_created_again() -> Result<()> {
    registers_after_removal("power-removed", |_| Ok(()))
}

/// Goal: the reservation is also kept if the directory exists again but was not made durable, as
/// when the API's socket creates it.
#[test]
fn a_restored_state_directory_is_made_durable() -> Result<()> {
    registers_after_removal("power-came-back", |disk| {
        let began = Instant::now();
        while !Path::new(&disk.path("disk.img.lunar/api.sock")).exists() {
            ensure!(began.elapsed() < READY_MAX, "the socket is not made anew");
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    })
}

/// Goal: the identity of a disk is also kept in a directory that another program has made, with a
/// file in it, and not made durable.
#[test]
fn an_identity_in_a_directory_of_others_is_kept() -> Result<()> {
    let disk = PowerCutDisk::mount("power-of-others")?;
    std::fs::File::create(disk.path("disk.img"))?.set_len(BLOCKS * 512)?;
    let unit = format!("state/{}", disk.path("disk.img").replace('/', "%2F"));
    std::fs::create_dir_all(disk.path(&unit))?;
    std::fs::write(disk.path(&format!("{unit}/note")), "")?;
    let lunar = serve(&disk, &["--state", &disk.path("state")])?;
    log_in(&lunar, 1)?;
    for seed in seeds(3) {
        after_the_cut(disk.after_cut(seed, &format!("{unit}/uuid")), seed)?;
    }
    Ok(())
}

/// Goal: SANITIZE with EXIT FAILURE MODE that is acknowledged holds after a power cut: the unit is
/// usable.
/// Method: an operation that fails for lack of space, with AUSE.
#[test]
fn exit_failure_mode_survives_a_power_cut() -> Result<()> {
    let disk = PowerCutDisk::mount("power-failed")?;
    let lunar = serve(&disk, &[])?;
    let mut raw = log_in(&lunar, 1)?;
    disk.set_room(64 << 10);
    let outcome = raw.execute_with(&[0x48, 0x21, 0, 0, 0, 0, 0, 0, 5, 0], &[1, 0, 0, 1, 0xa5])?;
    ensure!(outcome.status == 2, "it had room: {outcome:02x?}");
    disk.set_room(64 << 20);
    let left = raw.execute(&[0x48, 0x1f, 0, 0, 0, 0, 0, 0, 0, 0], 0)?.0;
    ensure!(left == 0 && raw.read_block(5).is_ok(), "EXIT FAILURE MODE: status {left:#x}");
    after_each_cut(
        &disk,
        lunar,
        3,
        || serve(&disk, &[]),
        |lunar, seed| after_the_cut(log_in(lunar, 1)?.read_block(5), seed).map(drop),
    )
}

/// Goal: a unit whose UUID is in a configuration, so that none is saved for it, also keeps its
/// reservations over a power cut.
/// Method: a state directory below directories that do not exist.
#[test]
fn a_unit_with_a_uuid_keeps_its_state() -> Result<()> {
    let disk = PowerCutDisk::mount("power-uuid")?;
    let (file, state) = (disk.path("disk.img"), disk.path("var/lib/lunar"));
    let configuration = format!(
        "state = \"{state}\"\n[listen]\nportals = [\"127.0.0.1:0\"]\n\
         [[target]]\nname = \"{TARGET}\"\n[[target.lun]]\nid = 0\n\
         uuid = \"0b0f3c1e-7d55-4f0e-9b1d-2f6c5c1f9a10\"\ndevice = \"{file}\"\nsize = \"1MiB\"\n"
    );
    let scratch = Scratch::new("power-uuid-config")?;
    let path = scratch.secret("lunar.toml", &configuration)?;
    let start = || Lunar::start(&["target", "--config", &path]);
    let lunar = start()?;
    must_out(&mut log_in(&lunar, 1)?, REGISTER, 0, [0, 0xa1])?;
    after_each_cut(&disk, lunar, 3, start, |lunar, seed| {
        let found = keys(&mut log_in(lunar, 1)?)?;
        ensure!(found == [0xa1], "{LOST}: {found:x?}, seed {seed}");
        Ok(())
    })
}

/// Returns the commands that erase a disk: the CDB, its list, and the content of every block after.
fn erasures() -> [(&'static str, [u8; 10], Vec<u8>, u8); 3] {
    let sanitize = |action: u8, list: u8| [0x48, action, 0, 0, 0, 0, 0, 0, list, 0];
    [
        ("OVERWRITE", sanitize(0x01, 5), vec![1, 0, 0, 1, 0xa5], 0xa5),
        ("BLOCK ERASE", sanitize(0x02, 0), vec![], 0),
        // FORMAT UNIT has six bytes; the rest is not sent.
        ("FORMAT UNIT", [0x04, 0, 0, 0, 0, 0, 0, 0, 0, 0], vec![], 0),
    ]
}

/// Goal: after GOOD no block has its old content after any power cut: neither when the operation is
/// over nor when it has only begun (IMMED), since the next start completes it.
#[test]
fn erased_data_stays_erased() -> Result<()> {
    for (name, cdb, list, byte) in erasures() {
        for immediate in [false, true] {
            if immediate && name == "FORMAT UNIT" {
                continue; // its IMMED is in a list of its own
            }
            let mut cdb = cdb;
            cdb[1] |= if immediate { 0x80 } else { 0 };
            erase(&cdb, &list, byte).with_context(|| format!("{name}, IMMED: {immediate}"))?;
        }
    }
    Ok(())
}

/// Opens a session, after an operation that the last run did not complete is over.
pub fn ready(lunar: &Lunar) -> Result<RawClient> {
    let mut raw = log_in(lunar, 1)?;
    let began = Instant::now();
    while raw.execute(&[0; 6], 0)?.0 != 0 {
        ensure!(began.elapsed() < READY_MAX, "not ready again");
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(raw)
}

/// Goal: data written after the disk was erased is not erased by the next start: the end of the
/// operation was durable before the first command.
#[test]
fn data_written_after_an_erasure_is_durable() -> Result<()> {
    let disk = PowerCutDisk::mount("power-erased")?;
    let lunar = serve(&disk, &[])?;
    let mut raw = log_in(&lunar, 1)?;
    let outcome = raw.execute_with(&[0x48, 0x02, 0, 0, 0, 0, 0, 0, 0, 0], &[])?;
    ensure!(outcome.status == 0, "BLOCK ERASE: {outcome:02x?}");
    raw.write_blocks(7, &[0x77; 512])?;
    after_each_cut(
        &disk,
        lunar,
        3,
        || serve(&disk, &[]),
        |lunar, seed| {
            let found = after_the_cut(ready(lunar)?.read_block(7), seed)?;
            ensure!(found == [0x77; 512], "{LOST}: a block is erased once more, seed {seed}");
            Ok(())
        },
    )
}

fn erase(cdb: &[u8], list: &[u8], byte: u8) -> Result<()> {
    let disk = PowerCutDisk::mount("power-erase")?;
    let lunar = serve(&disk, &["--cache", "write-back"])?;
    let mut raw = log_in(&lunar, 1)?;
    for lba in (0..2048).step_by(16) {
        raw.write_blocks(lba, &[0x5a; 8192])?;
    }
    let synced = raw.execute(&[0x35, 0, 0, 0, 0, 0, 0, 0, 0, 0], 0)?;
    ensure!(synced.0 == 0, "SYNCHRONIZE CACHE");
    let outcome = raw.execute_with(cdb, list)?;
    ensure!(outcome.status == 0, "{outcome:02x?}");
    after_each_cut(
        &disk,
        lunar,
        3,
        || serve(&disk, &[]),
        |lunar, seed| {
            let mut raw = ready(lunar)?;
            let found = read_all(&mut raw, BLOCKS, 512)?;
            let left = found.iter().position(|found| *found != byte);
            ensure!(left.is_none(), "{LOST}: byte {left:?} is not erased, seed {seed}");
            Ok(())
        },
    )
}
