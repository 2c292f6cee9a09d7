//! Commands that change blocks or make them durable, and the effect of each on the ledger.

use crate::power_cut::rig::{LOST, Mode};
use anyhow::{Context, Result, ensure};
use lunar_lab::ledger::{Content, Entry, Ledger, ReadRecord, Sync};
use lunar_lab::random::Random;
use lunar_lab::wire::extended_copy;
use lunar_testkit::raw::RawOutcome;
use std::ops::Range;

const FUA: u8 = 0x08;

/// Maximum length of a write: immediate data.
const DATA_BYTES_MAX: usize = 8192;

/// Kinds of commands.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum CommandKind {
    Write,
    WriteFua,
    WriteAndVerify,
    WriteSame,
    WriteSameOfZeroes,
    WriteSameThatUnmaps,
    Unmap,
    CompareAndWrite,
    CompareAndWriteFua,
    OrWrite,
    OrWriteFua,
    ExtendedCopy,
    Synchronize10,
    Synchronize16,
    SynchronizeAtOnce,
    Read,
    ReadFua,
    /// START STOP UNIT: after it only a start succeeds.
    Stop,
}

/// Commands that change blocks.
pub const CHANGES: [CommandKind; 12] = [
    CommandKind::Write,
    CommandKind::WriteFua,
    CommandKind::WriteAndVerify,
    CommandKind::WriteSame,
    CommandKind::WriteSameOfZeroes,
    CommandKind::WriteSameThatUnmaps,
    CommandKind::Unmap,
    CommandKind::CompareAndWrite,
    CommandKind::CompareAndWriteFua,
    CommandKind::OrWrite,
    CommandKind::OrWriteFua,
    CommandKind::ExtendedCopy,
];

/// Changes that do not depend on the old content: several initiators may make them at once.
pub const OVERWRITES: [CommandKind; 6] = [
    CommandKind::Write,
    CommandKind::WriteFua,
    CommandKind::WriteSame,
    CommandKind::WriteSameOfZeroes,
    CommandKind::WriteSameThatUnmaps,
    CommandKind::Unmap,
];

/// Commands that make earlier changes durable. `SynchronizeAtOnce` has IMMED set, so its GOOD
/// promises nothing.
pub const SYNCS: [CommandKind; 4] = [
    CommandKind::Synchronize10,
    CommandKind::Synchronize16,
    CommandKind::SynchronizeAtOnce,
    CommandKind::ReadFua,
];

/// A command as it is sent, and the effect of its GOOD.
pub struct PlannedCommand {
    pub cdb: Vec<u8>,
    pub data: Vec<u8>,
    pub read_bytes: u32,
    pub effect: LedgerEffect,
}

/// Effect of GOOD on the ledger.
#[derive(Clone, Debug)]
pub enum LedgerEffect {
    Written(Entry, bool),
    Synced(Sync, Range<u64>),
    /// The data is current; with a sync, it is on the medium as well.
    Read(ReadRecord, Range<u64>, Option<Sync>),
    Nothing,
}

impl LedgerEffect {
    /// Records that the command has ended with this outcome.
    pub fn record(self, ledger: &mut Ledger, outcome: &RawOutcome) -> Result<()> {
        ensure!(outcome.status == 0, "{outcome:02x?}");
        match self {
            Self::Written(entry, promised) => ledger.acknowledge(entry, promised),
            Self::Synced(sync, blocks) => ledger.acknowledge_sync(sync, blocks),
            Self::Read(read, blocks, sync) => {
                let current = ledger.acknowledge_read(read, blocks.clone(), &outcome.data);
                current.map_err(anyhow::Error::msg).context(LOST)?;
                if let Some(sync) = sync {
                    ledger.acknowledge_sync(sync, blocks);
                }
            }
            Self::Nothing => {}
        }
        Ok(())
    }
}

/// Builds commands.
pub struct CommandBuilder<'a> {
    pub mode: Mode,
    pub ledger: &'a mut Ledger,
    pub random: &'a mut Random,
    /// Designation of the unit, for copies within it.
    pub designation: &'a [u8],
    /// Number of blocks at the beginning that writes go to, so that they collide.
    pub hot: u64,
    /// True if writes may overlap other writes in progress.
    pub overlaps: bool,
}

impl CommandBuilder<'_> {
    /// Builds a command of this kind, which is sent at once; `None`: no blocks are free for it.
    pub fn build(&mut self, kind: CommandKind) -> Option<PlannedCommand> {
        match kind {
            CommandKind::Write => self.plain(0x8a, 0, false),
            CommandKind::WriteFua => self.plain(0x8a, FUA, true),
            CommandKind::WriteAndVerify => self.plain(0x8e, 0x02, true),
            CommandKind::WriteSame => self.same(),
            CommandKind::WriteSameOfZeroes => self.zeroes(0x01),
            CommandKind::WriteSameThatUnmaps => self.zeroes(0x08 | 0x01),
            CommandKind::Unmap => self.unmap(),
            CommandKind::CompareAndWrite => self.compare_and_write(0, false),
            CommandKind::CompareAndWriteFua => self.compare_and_write(FUA, true),
            CommandKind::OrWrite => self.or_write(0, false),
            CommandKind::OrWriteFua => self.or_write(FUA, true),
            CommandKind::ExtendedCopy => self.copy(),
            CommandKind::Synchronize10 => Some(self.synchronize(0x35, 0)),
            CommandKind::Synchronize16 => Some(self.synchronize(0x91, 0)),
            CommandKind::SynchronizeAtOnce => Some(self.synchronize(0x91, 0x02)),
            CommandKind::Read => Some(self.read(0)),
            CommandKind::ReadFua => Some(self.read(FUA)),
            CommandKind::Stop => {
                let sync = self.ledger.begin_sync();
                let effect = LedgerEffect::Synced(sync, 0..self.ledger.blocks());
                let cdb = vec![0x1b, 0, 0, 0, 0, 0];
                Some(PlannedCommand { cdb, data: Vec::new(), read_bytes: 0, effect })
            }
        }
    }

    /// Picks some blocks: idle ones, unless writes may overlap.
    fn pick_blocks(&mut self, blocks_max: u64) -> Option<Range<u64>> {
        let count = 1 + self.random.below(blocks_max);
        let first = self.random.below(self.hot - count);
        let blocks = first..first + count;
        let busy = || blocks.clone().any(|lba| self.ledger.is_busy(lba));
        (self.overlaps || !busy()).then_some(blocks)
    }

    fn blocks_max(&self) -> u64 {
        (DATA_BYTES_MAX / self.mode.block_bytes) as u64
    }

    fn bytes(&self, blocks: Range<u64>, content: Content) -> Vec<u8> {
        blocks.flat_map(|lba| content.bytes(lba, self.mode.block_bytes)).collect()
    }

    /// Begins the changes of the command in the ledger, and builds the command.
    fn entered(
        &mut self,
        cdb: Vec<u8>,
        data: Vec<u8>,
        blocks: Range<u64>,
        content: Content,
        durable: bool,
    ) -> PlannedCommand {
        let entry = self.ledger.begin(blocks, content);
        let effect = LedgerEffect::Written(entry, durable || self.mode.writes_through());
        PlannedCommand { cdb, data, read_bytes: 0, effect }
    }

    fn plain(&mut self, operation: u8, flags: u8, durable: bool) -> Option<PlannedCommand> {
        let blocks = self.pick_blocks(self.blocks_max())?;
        let content = Content::Stamp(self.ledger.stamp());
        let data = self.bytes(blocks.clone(), content);
        let cdb = cdb_16(operation, flags, &blocks);
        Some(self.entered(cdb, data, blocks, content, durable))
    }

    fn same(&mut self) -> Option<PlannedCommand> {
        let blocks = self.pick_blocks(64)?;
        let content = Content::Same(self.ledger.stamp());
        let data = content.bytes(0, self.mode.block_bytes);
        let cdb = cdb_16(0x93, 0, &blocks);
        Some(self.entered(cdb, data, blocks, content, false))
    }

    fn zeroes(&mut self, flags: u8) -> Option<PlannedCommand> {
        let blocks = self.pick_blocks(64)?;
        let cdb = cdb_16(0x93, flags, &blocks);
        Some(self.entered(cdb, Vec::new(), blocks, Content::Zeroes, false))
    }

    fn unmap(&mut self) -> Option<PlannedCommand> {
        let blocks = self.pick_blocks(64)?;
        let mut list = vec![0, 22, 0, 16, 0, 0, 0, 0];
        list.extend(blocks.start.to_be_bytes());
        list.extend((blocks.end - blocks.start).to_be_bytes()[4..].iter());
        list.extend([0; 4]);
        let cdb = vec![0x42, 0, 0, 0, 0, 0, 0, 0, list.len() as u8, 0];
        Some(self.entered(cdb, list, blocks, Content::Zeroes, false))
    }

    fn compare_and_write(&mut self, flags: u8, durable: bool) -> Option<PlannedCommand> {
        let blocks = self.pick_blocks(1)?;
        let content = Content::Stamp(self.ledger.stamp());
        let mut data = self.bytes(blocks.clone(), self.ledger.content(blocks.start));
        data.extend(self.bytes(blocks.clone(), content));
        let mut cdb = cdb_16(0x89, flags, &blocks);
        cdb.copy_within(13..14, 13); // its count is byte 13 alone, the last one of a longer count
        Some(self.entered(cdb, data, blocks, content, durable))
    }

    /// Builds an ORWRITE of zeroes, so that its result is known.
    fn or_write(&mut self, flags: u8, durable: bool) -> Option<PlannedCommand> {
        let blocks = self.pick_blocks(self.blocks_max())?;
        if blocks.clone().any(|lba| self.ledger.content(lba) != Content::Zeroes) {
            return self.zeroes(0x01);
        }
        let content = Content::Stamp(self.ledger.stamp());
        let data = self.bytes(blocks.clone(), content);
        let cdb = cdb_16(0x8b, flags, &blocks);
        Some(self.entered(cdb, data, blocks, content, durable))
    }

    /// Builds a copy from a block with known content to other blocks.
    fn copy(&mut self) -> Option<PlannedCommand> {
        let to = self.pick_blocks(1)?;
        let from = self.random.below(self.hot);
        let content = self.ledger.content(from);
        let moves = from != to.start && !matches!(content, Content::Stamp(_));
        if self.ledger.is_busy(from) || !moves {
            return None;
        }
        let cscd = extended_copy::cscd(self.designation, self.mode.block_bytes as u16);
        let segment = extended_copy::segment([0, 0], 1, from, to.start);
        // Two copies under way must not have the same identifier.
        let list_identifier = self.ledger.stamp() as u8;
        let (cdb, list) = extended_copy::command(list_identifier, &cscd, &segment).ok()?;
        let command = self.entered(cdb.to_vec(), list, to, content, false);
        if let LedgerEffect::Written(entry, _) = command.effect {
            self.ledger.hold(entry, from);
        }
        Some(command)
    }

    fn synchronize(&mut self, operation: u8, flags: u8) -> PlannedCommand {
        let first = self.random.below(self.hot);
        // A count of 0 means all blocks from the first on.
        let count = self.random.below(self.hot - first);
        let blocks = first..if count == 0 { self.ledger.blocks() } else { first + count };
        let asked = first..first + count;
        let cdb = if operation == 0x35 {
            cdb_10(operation, &asked)
        } else {
            cdb_16(operation, flags, &asked)
        };
        let effect = if flags == 0 {
            LedgerEffect::Synced(self.ledger.begin_sync(), blocks)
        } else {
            LedgerEffect::Nothing
        };
        PlannedCommand { cdb, data: Vec::new(), read_bytes: 0, effect }
    }

    /// Builds a read; with FUA, its data is on the medium.
    fn read(&mut self, flags: u8) -> PlannedCommand {
        let first = self.random.below(self.hot - self.blocks_max());
        let blocks = first..first + self.blocks_max();
        let sync = (flags == FUA).then(|| self.ledger.begin_sync());
        let effect = LedgerEffect::Read(self.ledger.begin_read(), blocks.clone(), sync);
        let cdb = cdb_16(0x88, flags, &blocks);
        PlannedCommand { cdb, data: Vec::new(), read_bytes: DATA_BYTES_MAX as u32, effect }
    }
}

/// Builds a CDB of sixteen bytes.
fn cdb_16(operation: u8, flags: u8, blocks: &Range<u64>) -> Vec<u8> {
    let mut cdb = vec![operation, flags];
    cdb.extend(blocks.start.to_be_bytes());
    cdb.extend(&(blocks.end - blocks.start).to_be_bytes()[4..]);
    cdb.extend([0, 0]);
    cdb
}

/// Builds a CDB of ten bytes.
fn cdb_10(operation: u8, blocks: &Range<u64>) -> Vec<u8> {
    let mut cdb = vec![operation, 0];
    cdb.extend(&blocks.start.to_be_bytes()[4..]);
    cdb.push(0);
    cdb.extend(&(blocks.end - blocks.start).to_be_bytes()[6..]);
    cdb.push(0);
    cdb
}
