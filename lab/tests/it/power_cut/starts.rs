//! A disk that is served for the first time, with a power cut before, during and after the start.

use crate::power_cut::rig::{LOST, TARGET, after_the_cut, identity, kill, log_in, seeds};
use anyhow::{Context, Result, bail, ensure};
use lunar_lab::peers::lunar::Lunar;
use lunar_lab::powercut::PowerCutDisk;
use lunar_lab::system::process::run_checked;
use lunar_lab::system::scratch::Scratch;
use lunar_testkit::raw::RawClient;
use std::fs::File;
use std::time::Duration;

const SIZE: &str = "1M";
const BLOCKS: u32 = 2048;
/// Upper limit of the changes that a start makes to the disk.
const CHANGES_MAX: u64 = 60;
const TOOL_MAX: Duration = Duration::from_secs(20);

/// Location of the state.
#[derive(Clone, Copy, Debug)]
enum State {
    BesideTheFile,
    /// Below directories that do not exist yet; the file is in another one.
    Below(&'static str),
}

const STATES: [State; 2] = [State::BesideTheFile, State::Below("var/lib/lunar")];

/// Directory of a file whose state lies elsewhere: no sync of the state makes its name durable.
const APART: &str = "disks";

/// Mounts an empty disk with that directory only.
fn empty(name: &str) -> Result<PowerCutDisk> {
    let disk = PowerCutDisk::mount(name)?;
    std::fs::create_dir(disk.path(APART))?;
    File::open(disk.folder())?.sync_all()?;
    Ok(disk)
}

fn serve(disk: &PowerCutDisk, state: State, more: &[&str]) -> Result<Lunar> {
    let names = ["--name", TARGET];
    match state {
        State::BesideTheFile => {
            Lunar::serve(&[&[disk.path("disk.img").as_str()], &names[..], more].concat())
        }
        State::Below(below) => {
            let (file, below) = (disk.path(&format!("{APART}/disk.img")), disk.path(below));
            Lunar::serve(&[&[file.as_str(), "--state", &below], &names[..], more].concat())
        }
    }
}

/// Checks that the disk exists with its size, and returns its identity.
fn known_by(lunar: &Lunar) -> Result<Vec<u8>> {
    let mut raw = log_in(lunar, 1)?;
    let capacity = raw.execute(&[0x25, 0, 0, 0, 0, 0, 0, 0, 0, 0], 8)?.1;
    ensure!(capacity[..4] == (BLOCKS - 1).to_be_bytes(), "READ CAPACITY: {capacity:02x?}");
    identity(&mut raw)
}

/// Cuts the power with some seeds, one after the other from the same moment, and starts again
/// without a size, so that a lost disk is not created again.
fn cut_and_check(disk: &PowerCutDisk, state: State, same: &[u8]) -> Result<()> {
    let moment = disk.volume();
    for seed in seeds(3) {
        disk.cut_from(moment.clone(), seed);
        let lunar = after_the_cut(serve(disk, state, &[]), seed)?;
        let found = after_the_cut(known_by(&lunar), seed)?;
        ensure!(found == same, "{LOST}: the disk is another one after a cut with seed {seed}");
        kill(lunar)?;
    }
    Ok(())
}

/// Goal: a disk that was served once, without a write, exists after a power cut and has the same
/// identity for initiators.
#[test]
fn a_new_disk_is_kept_when_it_is_served() -> Result<()> {
    for state in STATES {
        let disk = empty("power-new")?;
        let lunar = serve(&disk, state, &["--size", SIZE])?;
        let same = known_by(&lunar)?;
        disk.freeze();
        kill(lunar)?;
        cut_and_check(&disk, state, &same).with_context(|| format!("{state:?}"))?;
    }
    Ok(())
}

/// Goal: a power cut at any moment of the first start leaves nothing that makes a second one fail.
#[test]
fn a_first_start_that_is_cut_short_does_not_hinder_the_next() -> Result<()> {
    let state = State::Below("var/lib/lunar");
    for changes in 0..CHANGES_MAX {
        let disk = empty("power-start")?;
        disk.freeze_after(changes);
        let started = serve(&disk, state, &["--size", SIZE]);
        if started.is_ok() {
            return Ok(());
        }
        let moment = disk.volume();
        for seed in 0..3 {
            disk.cut_from(moment.clone(), seed);
            let lunar = after_the_cut(serve(&disk, state, &["--size", SIZE]), seed);
            let lunar = lunar.with_context(|| format!("in the start after {changes} changes"))?;
            after_the_cut(known_by(&lunar), seed)?;
            kill(lunar)?;
        }
    }
    bail!("a start makes more than {CHANGES_MAX} changes")
}

/// Goal: a start does not take existing files for durable: the process that made them may have been
/// killed before its sync.
/// Method: the first start ends at each of its changes, as by SIGKILL: its changes stay, unsynced.
/// A second one serves; then the power is cut.
#[test]
fn files_of_a_killed_start_are_made_durable_by_the_next() -> Result<()> {
    for state in STATES {
        for changes in 0..CHANGES_MAX {
            let disk = empty("power-twice")?;
            disk.freeze_after(changes);
            let whole = serve(&disk, state, &["--size", SIZE]).is_ok();
            // Without a cut: the process is gone, and all its changes are visible.
            disk.heal();
            let lunar = serve(&disk, state, &["--size", SIZE])?;
            let same = known_by(&lunar)?;
            disk.freeze();
            kill(lunar)?;
            let moment = disk.volume();
            disk.cut_from(moment, 0);
            let context = || format!("{state:?}, the first start ended after {changes} changes");
            let lunar = after_the_cut(serve(&disk, state, &[]), 0).with_context(context)?;
            let found = after_the_cut(known_by(&lunar), 0).with_context(context)?;
            ensure!(found == same, "{LOST}: another disk: {}", context());
            kill(lunar)?;
            if whole {
                break;
            }
            ensure!(changes + 1 < CHANGES_MAX, "a start makes more than {CHANGES_MAX} changes");
        }
    }
    Ok(())
}

/// Starts a server of a write-back disk, and writes one block without a sync.
fn written_back(disk: &PowerCutDisk) -> Result<Lunar> {
    let options = ["--size", SIZE, "--cache", "write-back"];
    let lunar = serve(disk, State::BesideTheFile, &options)?;
    log_in(&lunar, 1)?.write_blocks(7, &[0x77; 512])?;
    Ok(lunar)
}

fn check_block(raw: &mut RawClient, seed: u64) -> Result<()> {
    let found = raw.read_block(7)?;
    ensure!(found == [0x77; 512], "{LOST}: the block is gone, seed {seed}");
    Ok(())
}

/// Goal: after SIGTERM of a server with a write-back disk, exit status 0 means that all data is on
/// the disk.
#[test]
fn an_orderly_end_syncs() -> Result<()> {
    let disk = PowerCutDisk::mount("power-end")?;
    written_back(&disk)?.stop(TOOL_MAX)?;
    let moment = disk.volume();
    for seed in seeds(3) {
        disk.cut_from(moment.clone(), seed);
        let lunar = after_the_cut(serve(&disk, State::BesideTheFile, &[]), seed)?;
        check_block(&mut log_in(&lunar, 1)?, seed)?;
        kill(lunar)?;
    }
    Ok(())
}

/// Goal: `lunar write` that exits with 0 has made its data durable, also on a write-back LUN, and
/// in a file of its own machine.
#[test]
fn lunar_write_syncs() -> Result<()> {
    let disk = PowerCutDisk::mount("power-tool")?;
    let lunar = written_back(&disk)?;
    let binary = lunar_lab::peers::lunar::binary()?;
    let url = lunar.url(TARGET, 0);
    for (device, name) in [(url, "disk.img"), (disk.path("plain.img"), "plain.img")] {
        if name == "plain.img" {
            std::fs::write(disk.path(name), vec![0; 1 << 20])?;
        }
        let input = vec![0x3c; 4096];
        let arguments = ["write", &device, "--offset", "64K"];
        let done =
            lunar_lab::system::process::run_with_input(&binary, &arguments, input, TOOL_MAX)?;
        ensure!(done.succeeded(), "{}", done.outputs());
        for seed in 0..3 {
            let found = after_the_cut(disk.after_cut(seed, name), seed)?;
            let kept = found.get(64 << 10..).is_some_and(|rest| rest.starts_with(&[0x3c; 4096]));
            ensure!(kept, "{LOST}: data of lunar write in {name}, seed {seed}");
        }
    }
    run_checked(&binary, &["info", &lunar.url(TARGET, 0)], TOOL_MAX)?;
    Ok(())
}

/// Goal: data that `lunar copy` reports as copied is there after a cut: on a write-back LUN, and in
/// a file that it made, name and size included.
#[test]
fn lunar_copy_syncs() -> Result<()> {
    const SOURCE_BYTES: usize = 1 << 20;
    let disk = PowerCutDisk::mount("power-copy")?;
    let scratch = Scratch::new("power-copy-source")?;
    let lunar = written_back(&disk)?;
    let binary = lunar_lab::peers::lunar::binary()?;
    let mut all = vec![0; SOURCE_BYTES];
    all[300_000..700_000].fill(0x5c);
    let source = scratch.path("source.img");
    std::fs::write(&source, &all)?;
    for (device, name) in [(lunar.url(TARGET, 0), "disk.img"), (disk.path("new.img"), "new.img")] {
        run_checked(&binary, &["copy", &source, &device], TOOL_MAX)?;
        for seed in 0..3 {
            let found = after_the_cut(disk.after_cut(seed, name), seed)?;
            let kept = found.get(..SOURCE_BYTES).is_some_and(|there| there == all);
            ensure!(kept, "{LOST}: data of lunar copy in {name}, seed {seed}");
        }
    }
    Ok(())
}
