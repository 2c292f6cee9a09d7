//! Single commands: when one is acknowledged, its promised data is on the disk.

use crate::power_cut::commands::{CHANGES, CommandBuilder, CommandKind, SYNCS};
use crate::power_cut::rig::{LOST, MODES, Mode, log_in};
use anyhow::{Context, Result, bail, ensure};
use lunar_lab::ledger::Ledger;
use lunar_lab::peers::lunar::Lunar;
use lunar_lab::powercut::PowerCutDisk;
use lunar_lab::random::Random;
use lunar_lab::wire::command_queue::Queue;
use lunar_lab::wire::extended_copy::naa_designation;
use std::time::{Duration, Instant};

const BLOCKS: usize = 160;
const HOT: u64 = 128;

/// Number of futures that are checked for each moment.
const FUTURES: u64 = 4;

struct Scene {
    mode: Mode,
    /// Server, which ends before the disk does.
    _lunar: Lunar,
    disk: PowerCutDisk,
    ledger: Ledger,
    random: Random,
    designation: Vec<u8>,
    queue: Queue<()>,
}

impl Scene {
    fn new(mode: Mode) -> Result<Self> {
        let disk = PowerCutDisk::mount("power-blocks")?;
        let lunar = mode.serve(&disk, BLOCKS)?;
        let mut raw = log_in(&lunar, 1)?;
        let designation = naa_designation(&mut raw)?;
        let ledger = Ledger::new(BLOCKS, mode.block_bytes);
        let (random, queue) = (Random::new(17), Queue::over(raw));
        Ok(Self { mode, _lunar: lunar, disk, ledger, random, designation, queue })
    }

    /// Runs one command from its beginning to its end, and checks the disk.
    fn act(&mut self, kind: CommandKind) -> Result<()> {
        const TRIES: u32 = 1_000;
        let command = (0..TRIES).find_map(|_| {
            let mut builder = CommandBuilder {
                mode: self.mode,
                ledger: &mut self.ledger,
                random: &mut self.random,
                designation: &self.designation,
                hot: HOT,
                overlaps: false,
            };
            builder.build(kind)
        });
        let command = command.with_context(|| format!("no blocks for {kind:?}"))?;
        if command.read_bytes > 0 {
            self.queue.send_read(&command.cdb, command.read_bytes, ())?;
        } else {
            self.queue.send(&command.cdb, &command.data, ())?;
        }
        let Some((_, outcome)) = self.queue.wait()? else { bail!("the connection ended") };
        command.effect.record(&mut self.ledger, &outcome).with_context(|| format!("{kind:?}"))?;
        for seed in 0..FUTURES {
            let found = self.disk.after_cut(seed, "disk.img")?;
            let checked = self.ledger.check(&found).map_err(anyhow::Error::msg);
            checked.with_context(|| format!("{LOST}: {kind:?} {:?}, seed {seed}", self.mode))?;
        }
        Ok(())
    }
}

/// Goal: GOOD keeps the promise of the cache mode, for each command that writes and each that
/// syncs.
/// Method: one at a time, each change before each sync; after each response the possible futures of
/// a power cut at this moment are checked.
fn each_command(mode: Mode) -> Result<()> {
    let mut scene = Scene::new(mode)?;
    for sync in SYNCS {
        for change in CHANGES {
            scene.act(change)?;
            scene.act(sync)?;
        }
    }
    scene.act(CommandKind::Write)?;
    scene.act(CommandKind::Stop)
}

#[test]
fn acknowledged_is_on_the_disk_that_writes_through() -> Result<()> {
    each_command(MODES[0])
}

#[test]
fn acknowledged_is_on_the_disk_that_writes_through_directly() -> Result<()> {
    each_command(MODES[1])
}

#[test]
fn acknowledged_is_on_the_disk_that_writes_back() -> Result<()> {
    each_command(MODES[2])
}

#[test]
fn acknowledged_is_on_the_disk_that_writes_back_directly() -> Result<()> {
    each_command(MODES[3])
}

/// Goal: SYNCHRONIZE CACHE with IMMED is answered at once and still executed.
#[test]
fn a_sync_that_is_answered_at_once_is_done() -> Result<()> {
    const DONE_MAX: Duration = Duration::from_secs(60);
    let mut scene = Scene::new(MODES[2])?;
    scene.act(CommandKind::Write)?;
    let written = scene.ledger.begin_sync();
    scene.act(CommandKind::SynchronizeAtOnce)?;
    scene.ledger.acknowledge_sync(written, 0..BLOCKS as u64);
    let began = Instant::now();
    while let Err(missing) = scene.ledger.check(&scene.disk.after_cut(0, "disk.img")?) {
        ensure!(began.elapsed() < DONE_MAX, "{LOST}: nothing was synced: {missing}");
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}
