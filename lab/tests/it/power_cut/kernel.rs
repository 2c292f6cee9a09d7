//! Power cuts below the kernel's page cache and io_uring: inline writes and ring transfers, by one
//! initiator and by several that write to the same blocks.

use crate::power_cut::poison::{MEDIUM_ERROR, SYNCHRONIZE_CACHE, takes_no_writes, takes_writes};
use crate::power_cut::rig::{LOST, MODES, Mode, identity, log_in, seeds};
use crate::power_cut::rounds::{Control, RoundScene, SceneCounts};
use crate::power_cut::served::{Backing, IoCounts, ServedDisk};
use crate::power_cut::states::{EXCLUSIVE_ACCESS, REGISTER, RESERVE, is_reserved, keys, must_out};
use anyhow::{Context, Result, bail, ensure};
use lunar_lab::peers::lunar::binary;
use lunar_lab::powercut::CallKind;
use lunar_lab::system::process::run_checked;
use rustix::io::Errno;
use std::time::Duration;

const TOOL_MAX: Duration = Duration::from_secs(20);

/// Number of initiators that write to the same blocks.
const SEVERAL: u32 = 3;

/// Returns the modes of all tests and one more. Direct I/O in blocks of 512 bytes uses the pool if
/// sectors have 4096, so the last mode has blocks of that length.
fn modes() -> [Mode; 5] {
    let [a, b, c, d] = MODES;
    [a, b, c, d, Mode { block_bytes: 4096, ..d }]
}

/// Runs scenes by seed. Also fails if the server did not use the kind of I/O under test.
fn play(backing: Backing, initiators: u32) -> Result<()> {
    let (mut buffered, mut direct) = (SceneCounts::default(), SceneCounts::default());
    let seeds = seeds(5);
    for seed in seeds.clone() {
        let mode = modes()[seed as usize % modes().len()];
        let played = RoundScene { backing, mode, initiators, control: None }.run(seed)?;
        if mode.io == "direct" { &mut direct } else { &mut buffered }.add(played);
    }
    println!(
        "counted: plays={} acknowledged={} inline_bytes={} ring_requests={}",
        seeds.end,
        buffered.acknowledged + direct.acknowledged,
        buffered.io.inline_bytes,
        buffered.io.ring_requests + direct.io.ring_requests,
    );
    ensure!(is_inline(buffered.io), "buffered I/O went by the pool: {buffered:?}");
    let by_ring = direct.io.ring_requests >= 100;
    ensure!(by_ring, "direct I/O went by the pool (is io_uring permitted?): {direct:?}");
    Ok(())
}

/// True if cores wrote to the page cache and the rings read uncached data. Cores also write a few
/// bytes to wake each other.
fn is_inline(io: IoCounts) -> bool {
    io.inline_bytes >= 128 << 10 && io.ring_requests >= 4
}

/// Goal: data acknowledged through the page cache or io_uring is on a block device after a power
/// cut, every block is old or new, and reads before the cut are current.
/// Method: scenes by seed in buffered and direct modes, over a loop device; dirty pages are written
/// back at random moments, as the kernel does by itself.
#[test]
fn promised_blocks_are_on_a_block_device_of_the_kernel() -> Result<()> {
    play(Backing::Device, 1)
}

/// Goal: the promises also hold for a file on ext4.
#[test]
fn promised_blocks_are_on_ext4() -> Result<()> {
    play(Backing::Ext4, 1)
}

/// Goal: if several initiators write to the same blocks at once, each block holds a version after
/// the cut that no promised version had overwritten.
#[test]
fn promised_blocks_of_several_initiators_are_on_a_block_device_of_the_kernel() -> Result<()> {
    play(Backing::Device, SEVERAL)
}

/// Goal: the promises to several initiators also hold on ext4.
#[test]
fn promised_blocks_of_several_initiators_are_on_ext4() -> Result<()> {
    play(Backing::Ext4, SEVERAL)
}

/// Goal: the promises to several initiators also hold on the FUSE file system. The counts show the
/// pool there, so they distinguish the kinds of I/O.
#[test]
fn promised_blocks_of_several_initiators_are_on_fuse() -> Result<()> {
    for seed in seeds(4) {
        let mode = MODES[seed as usize % MODES.len()];
        let play = RoundScene { backing: Backing::Fuse, mode, initiators: SEVERAL, control: None };
        let io = play.run(seed)?.io;
        ensure!(!is_inline(io) && io.ring_requests == 0, "not by the pool: {mode:?}, {io:?}");
    }
    Ok(())
}

/// Goal: these scenes detect a loss, in each mode.
/// Method: the disk acknowledges syncs without an effect; the scene has to fail because some data
/// was not kept.
#[test]
fn a_disk_that_ignores_syncs_is_detected() -> Result<()> {
    for backing in [Backing::Device, Backing::Ext4] {
        for (mode, initiators) in MODES.into_iter().zip([1, SEVERAL, SEVERAL, 1]) {
            let play =
                RoundScene { backing, mode, initiators, control: Some(Control::IgnoredSyncs) };
            match play.run(1) {
                Err(error) if format!("{error:#}").contains(LOST) => {}
                Err(error) => return Err(error),
                Ok(played) => bail!("{play:?} lost nothing on a disk without syncs: {played:?}"),
            }
        }
    }
    Ok(())
}

/// Goal: a new disk on ext4 keeps its identity, its reservations and a new size over a power cut.
#[test]
fn a_new_file_on_ext4_keeps_its_size_and_reservations() -> Result<()> {
    const BLOCKS: usize = 256;
    const SIZE: u32 = 4 << 20;
    let mode = MODES[2];
    let mut disk = ServedDisk::new(Backing::Ext4, mode, BLOCKS)?;
    let lunar = disk.serve()?;
    let mut raw = log_in(&lunar, 1)?;
    let known_by = identity(&mut raw)?;
    must_out(&mut raw, REGISTER, 0, [0, 0xa1])?;
    must_out(&mut raw, RESERVE, EXCLUSIVE_ACCESS, [0xa1, 0])?;
    let api = lunar.api().context("no API")?;
    run_checked(&binary()?, &["ctl", "resize", "0", &SIZE.to_string(), "--api", &api], TOOL_MAX)?;
    let moment = disk.lose_power(lunar)?;
    for seed in seeds(3) {
        let lunar = disk.restart(moment.clone(), seed)?;
        let mut raw = log_in(&lunar, 1)?;
        let found = (identity(&mut raw)? == known_by, keys(&mut raw)?, is_reserved(&lunar)?);
        ensure!(found == (true, vec![0xa1], true), "{LOST}: {found:x?}, seed {seed}");
        let capacity = raw.execute(&[0x25, 0, 0, 0, 0, 0, 0, 0, 0, 0], 8)?.1;
        let last = (SIZE / mode.block_bytes as u32 - 1).to_be_bytes();
        ensure!(capacity[..4] == last, "{LOST}: the size, seed {seed}: {capacity:02x?}");
        disk.lose_power(lunar)?;
    }
    Ok(())
}

/// Goal: a block device whose sync has failed accepts no writes until it is recovered, also after a
/// power cut. The kernel reports such a failure once: a second sync would succeed.
#[test]
fn a_block_device_whose_sync_failed_refuses_writes_after_a_cut() -> Result<()> {
    let mut disk = ServedDisk::new(Backing::Device, MODES[2], 256)?;
    let lunar = disk.serve()?;
    let mut raw = log_in(&lunar, 1)?;
    raw.write_blocks(7, &[0x77; 4096])?;
    disk.power.fail_once(CallKind::Sync, Errno::IO);
    let failed = raw.run(&SYNCHRONIZE_CACHE, 0)?;
    ensure!(failed.sense_codes() == MEDIUM_ERROR, "the sync fails: {failed:02x?}");
    let moment = disk.lose_power(lunar)?;
    for seed in seeds(3) {
        let lunar = disk.restart(moment.clone(), seed)?;
        let mut raw = log_in(&lunar, 1)?;
        takes_no_writes(&mut raw, 4096).with_context(|| format!("seed {seed}"))?;
        let api = lunar.api().context("no API")?;
        let recover = ["ctl", "recover", "0", "--accept-loss", "--api", &api];
        run_checked(&binary()?, &recover, TOOL_MAX)?;
        takes_writes(&mut raw, 4096)?;
        disk.lose_power(lunar)?;
    }
    Ok(())
}
