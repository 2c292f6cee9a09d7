//! Many commands at a time, a power cut during them, and another start.

use crate::power_cut::commands::{
    CHANGES, CommandBuilder, CommandKind, LedgerEffect, OVERWRITES, SYNCS,
};
use crate::power_cut::mirrored;
use crate::power_cut::rig::{LOST, MODES, Mode, identity, log_in, read_all, seeds};
use crate::power_cut::served::{Backing, IoCounts, ServedDisk};
use anyhow::{Context, Result, bail, ensure};
use lunar_lab::ledger::{Content, Ledger};
use lunar_lab::peers::lunar::Lunar;
use lunar_lab::random::Random;
use lunar_lab::wire::command_queue::Queue;
use lunar_lab::wire::extended_copy::naa_designation;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

const BLOCKS: usize = 1024;
const ROUNDS: u64 = 3;
const DEPTH_MAX: u64 = 16;
const STOP_MAX: Duration = Duration::from_secs(20);

/// Number of changes that a disk which ignores syncs makes before its power cut: enough that many
/// writes are promised by then.
const CHANGES_WITHOUT_SYNC: u64 = 400;

/// A scene: a disk, its users, and the disk's behaviour.
#[derive(Clone, Copy, Debug)]
pub struct RoundScene {
    pub backing: Backing,
    pub mode: Mode,
    /// Number of initiators. A single one keeps its writes apart; the writes of several overlap.
    pub initiators: u32,
    /// A defect that makes the scene fail, which shows that it notices losses.
    pub control: Option<Control>,
}

/// A defect of a scene.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Control {
    /// The disk ignores syncs while commands run, so that it loses data.
    IgnoredSyncs,
    /// The intent log of a mirror is empty after each cut, so that its members stay different.
    EmptyIntentLog,
}

/// Counts of a scene.
#[derive(Clone, Copy, Debug, Default)]
pub struct SceneCounts {
    pub acknowledged: u64,
    /// Number of members that were replaced.
    pub replaced: u64,
    pub io: IoCounts,
}

impl SceneCounts {
    /// Adds the counts of another scene.
    pub fn add(&mut self, other: Self) {
        self.acknowledged += other.acknowledged;
        self.replaced += other.replaced;
        self.io.add(other.io);
    }
}

/// Load of a round, shared by its initiators.
struct Load<'a> {
    play: &'a RoundScene,
    lunar: &'a Lunar,
    disk: &'a ServedDisk,
    ledger: Mutex<&'a mut Ledger>,
}

impl<'a> Load<'a> {
    fn ledger(&self) -> MutexGuard<'_, &'a mut Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_shared(&self) -> bool {
        self.play.initiators > 1
    }

    /// Returns the number of blocks that are written to: fewer if writes are to overlap.
    fn hot(&self) -> u64 {
        if self.is_shared() { 150 } else { 300 }
    }

    /// Picks a command. The ledger knows little of overlapping writes until a sync, so shared
    /// blocks get more syncs, and fewer commands that write many blocks.
    fn random_kind(&self, random: &mut Random) -> CommandKind {
        let kind = random.below(20);
        let mut one_of = |kinds: &[CommandKind]| kinds[random.below(kinds.len() as u64) as usize];
        match (kind, self.is_shared()) {
            (0, _) | (1, true) => one_of(&SYNCS),
            (2, true) => one_of(&OVERWRITES),
            (1..5, false) => one_of(&CHANGES),
            (5..7, _) => CommandKind::Read,
            _ => CommandKind::Write,
        }
    }

    /// Sends one initiator's commands until the power cut; returns the number of acknowledged ones.
    fn run(&self, initiator: u32, mut random: Random) -> Result<u64> {
        let mut raw = log_in(self.lunar, initiator)?;
        let designation = naa_designation(&mut raw)?;
        let mut queue: Queue<(CommandKind, LedgerEffect)> = Queue::over(raw);
        let mut acknowledged = 0;
        let depth_max = DEPTH_MAX / u64::from(self.play.initiators);
        let depth = 1 + random.below(depth_max) as usize;
        while !self.disk.is_off() {
            while queue.depth() < depth {
                self.send(&mut queue, &designation, &mut random)?;
            }
            if random.below(30) == 0 {
                self.write_back(random.below(self.hot()))?;
            }
            let Some(((kind, effect), outcome)) = queue.wait()? else { break };
            match effect.record(&mut self.ledger(), &outcome) {
                Ok(()) => acknowledged += 1,
                Err(_) if self.disk.is_off() => break,
                Err(error) => return Err(error.context(format!("{kind:?}"))),
            }
        }
        Ok(acknowledged)
    }

    /// Writes back and drops some blocks of the kernel's page cache. May fail when the power is
    /// off.
    fn write_back(&self, first: u64) -> Result<()> {
        match self.disk.write_back(&(first..first + 32)) {
            Err(error) if !self.disk.is_off() => Err(error),
            _ => Ok(()),
        }
    }

    fn send(
        &self,
        queue: &mut Queue<(CommandKind, LedgerEffect)>,
        designation: &[u8],
        random: &mut Random,
    ) -> Result<()> {
        let kind = self.random_kind(random);
        let command = CommandBuilder {
            mode: self.play.mode,
            ledger: &mut self.ledger(),
            designation,
            hot: self.hot(),
            overlaps: self.is_shared(),
            random,
        }
        .build(kind);
        match command {
            None => Ok(()),
            Some(command) if command.read_bytes > 0 => {
                queue.send_read(&command.cdb, command.read_bytes, (kind, command.effect))
            }
            Some(command) => queue.send(&command.cdb, &command.data, (kind, command.effect)),
        }
    }
}

impl RoundScene {
    /// Runs the scene: commands, a power cut after a random number of changes of the disk, SIGKILL,
    /// another start, and a check of all blocks; three times.
    pub fn run(&self, seed: u64) -> Result<SceneCounts> {
        self.rounds(seed).with_context(|| format!("seed {seed}, {self:?}"))
    }

    fn rounds(&self, seed: u64) -> Result<SceneCounts> {
        let mut random = Random::new(seed);
        let mut disk = ServedDisk::new(self.backing, self.mode, BLOCKS)?;
        let mut ledger = Ledger::new(BLOCKS, self.mode.block_bytes);
        let mut lunar = disk.serve()?;
        let known_by = identity(&mut log_in(&lunar, 1)?)?;
        let mut played = SceneCounts::default();
        for round in 0..ROUNDS {
            if self.backing == Backing::MirrorOfDisks {
                // The disk that loses its power first must not be the only one that has all data.
                mirrored::until_healthy(&disk.api())?;
            }
            let loaded = self.load(&lunar, &disk, &mut ledger, &mut random)?;
            played.add(loaded);
            played.io.add(disk.io_counts(&mut lunar)?);
            let moment = disk.lose_power(lunar)?;
            // The worst case is tried once in each play.
            let cut = if round == 0 { 0 } else { random.next_u64() };
            if self.control == Some(Control::EmptyIntentLog) {
                disk.power_on(moment, cut);
                mirrored::empty_intent_log(&disk.members())?;
                lunar = disk.serve()?;
            } else {
                lunar = disk.restart(moment, cut)?;
            }
            let mut raw = log_in(&lunar, 1)?;
            let same = identity(&mut raw)? == known_by;
            ensure!(same, "{LOST}: the disk is another one after a cut with seed {cut}");
            let found = read_all(&mut raw, BLOCKS as u64, self.mode.block_bytes);
            let found = found.with_context(|| format!("{LOST}: round {round}, cut {cut}"))?;
            let settled = ledger.accept(&found).map_err(anyhow::Error::msg);
            let torn = settled.with_context(|| format!("{LOST}: round {round}, cut {cut}"))?;
            ensure!(torn.is_empty() || self.mode.block_bytes > 512, "{LOST}: torn: {torn:?}");
            repair(&lunar, self.mode, &mut ledger, &torn)?;
        }
        played.io.add(disk.io_counts(&mut lunar)?);
        if self.backing.is_mirror() {
            let members = mirrored::healthy_members(&disk.api())?;
            lunar.stop(STOP_MAX)?;
            mirrored::check_equal(&members).context(LOST)?;
        }
        Ok(played)
    }

    /// Runs the commands of all initiators until the power cut. Meanwhile a member is replaced, if
    /// the scene does this.
    fn load(
        &self,
        lunar: &Lunar,
        disk: &ServedDisk,
        ledger: &mut Ledger,
        random: &mut Random,
    ) -> Result<SceneCounts> {
        let is_lying = self.control == Some(Control::IgnoredSyncs);
        if is_lying {
            disk.ignore_syncs();
        }
        let changes = if is_lying { CHANGES_WITHOUT_SYNC } else { random.below(400) };
        disk.lose_power_after(changes, random);
        let load = Load { play: self, lunar, disk, ledger: Mutex::new(ledger) };
        let slot = random.below(2);
        std::thread::scope(|scope| {
            let replacing = (self.backing == Backing::ReplacedMirror).then(|| {
                scope.spawn(move || mirrored::replace(&disk.api(), slot, &disk.replacement()))
            });
            let initiators = (1..=self.initiators).map(|number| {
                let (load, random) = (&load, Random::new(random.next_u64()));
                scope.spawn(move || load.run(number, random))
            });
            let initiators: Vec<_> = initiators.collect();
            let ended = initiators.into_iter().map(|initiator| match initiator.join() {
                Ok(acknowledged) => acknowledged,
                Err(_) => bail!("an initiator panicked"),
            });
            let acknowledged: Result<u64> = ended.collect::<Vec<_>>().into_iter().sum();
            let is_replaced = match replacing.map(|replacing| replacing.join()) {
                Some(Ok(is_replaced)) => is_replaced?,
                Some(Err(_)) => bail!("the replacement panicked"),
                None => false,
            };
            let (acknowledged, replaced) = (acknowledged?, u64::from(is_replaced));
            Ok(SceneCounts { acknowledged, replaced, io: IoCounts::default() })
        })
    }
}

/// Goal: after a power cut during any commands, acknowledged data is there after the next start,
/// every block is old or new, and the disk has the same identity for initiators.
#[test]
fn a_cut_between_commands_loses_no_durable_data() -> Result<()> {
    for seed in seeds(6) {
        let mode = MODES[seed as usize % MODES.len()];
        RoundScene { backing: Backing::Fuse, mode, initiators: 1, control: None }.run(seed)?;
    }
    Ok(())
}

/// Writes torn blocks again, so that each has a known content.
fn repair(lunar: &Lunar, mode: Mode, ledger: &mut Ledger, torn: &[u64]) -> Result<()> {
    let mut raw = log_in(lunar, 1)?;
    for lba in torn {
        let content = Content::Stamp(ledger.stamp());
        let entry = ledger.begin([*lba], content);
        let mut cdb = vec![0x8a, 0];
        cdb.extend(lba.to_be_bytes());
        cdb.extend([0, 0, 0, 1, 0, 0]);
        let outcome = raw.execute_with(&cdb, &content.bytes(*lba, mode.block_bytes))?;
        ensure!(outcome.status == 0, "{outcome:02x?}");
        ledger.acknowledge(entry, mode.writes_through());
    }
    Ok(())
}
