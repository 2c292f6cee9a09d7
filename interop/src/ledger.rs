//! What may be found on a disk after it was cut off: a book of what was written and promised.
//!
//! Each write has content of its own, and no block has two writes under way at once. So what is
//! found in a block tells which write it came from, and the book tells whether that one may be
//! there: the last that was promised, or any later one, acknowledged or not.

use crate::scratch::Random;
use std::collections::BTreeMap;
use std::ops::Range;

/// Sectors are found old or new; a longer block can be torn between them.
pub const SECTOR_BYTES: usize = 512;

/// What a write puts into a block.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Content {
    /// Nothing but zeroes.
    Zeroes,
    /// The bytes of this write, which are others in each block.
    Stamp(u64),
    /// The bytes of this write, the same in each block.
    Same(u64),
}

impl Content {
    /// The bytes of a block.
    pub fn bytes(self, lba: u64, block_bytes: usize) -> Vec<u8> {
        let sectors = 0..(block_bytes / SECTOR_BYTES) as u64;
        match self {
            Self::Zeroes => vec![0; block_bytes],
            Self::Stamp(stamp) => sectors.flat_map(|part| sector(stamp, lba, part)).collect(),
            Self::Same(stamp) => sectors.flat_map(|part| sector(stamp, u64::MAX, part)).collect(),
        }
    }
}

/// Its number, where it belongs, and bytes that follow from those.
fn sector(stamp: u64, lba: u64, part: u64) -> Vec<u8> {
    let key = Random(stamp ^ lba.rotate_left(24) ^ part.rotate_left(48)).next_u64();
    let mut sector = Vec::with_capacity(SECTOR_BYTES);
    for word in [stamp, lba] {
        sector.extend_from_slice(&word.to_be_bytes());
    }
    for number in 2..SECTOR_BYTES as u64 / 8 {
        sector.extend_from_slice(&key.wrapping_add(number).to_be_bytes());
    }
    sector
}

/// A write to some blocks, as the book knows it.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Entry(u64);

#[derive(Clone, Copy, Debug)]
struct Version {
    entry: Entry,
    content: Content,
    /// When it was acknowledged.
    acknowledged: Option<u64>,
}

#[derive(Clone, Debug)]
struct Block {
    /// Was promised to stay.
    promised: Content,
    /// What was written since, in order.
    since: Vec<Version>,
}

/// A sync that was asked for.
#[derive(Clone, Copy, Debug)]
pub struct Sync(u64);

/// The book.
#[derive(Clone, Debug)]
pub struct Ledger {
    block_bytes: usize,
    blocks: Vec<Block>,
    under_way: BTreeMap<Entry, Vec<u64>>,
    now: u64,
}

impl Ledger {
    /// Of a disk of zeroes.
    pub fn new(blocks: usize, block_bytes: usize) -> Self {
        let empty = Block { promised: Content::Zeroes, since: Vec::new() };
        let blocks = vec![empty; blocks];
        Self { block_bytes, blocks, under_way: BTreeMap::new(), now: 0 }
    }

    /// Bytes of a block.
    pub fn block_bytes(&self) -> usize {
        self.block_bytes
    }

    /// How many blocks.
    pub fn blocks(&self) -> u64 {
        self.blocks.len() as u64
    }

    /// A number for a new content.
    pub fn stamp(&mut self) -> u64 {
        self.now += 1;
        self.now
    }

    /// Whether a write to this block is under way.
    pub fn is_busy(&self, lba: u64) -> bool {
        self.under_way.values().any(|blocks| blocks.contains(&lba))
    }

    /// What a read of the block gives, when nothing is under way there.
    pub fn content(&self, lba: u64) -> Content {
        let block = &self.blocks[lba as usize];
        block.since.last().map_or(block.promised, |version| version.content)
    }

    /// A write that is sent now.
    pub fn begin(&mut self, blocks: impl IntoIterator<Item = u64>, content: Content) -> Entry {
        let entry = Entry(self.stamp());
        let blocks: Vec<u64> = blocks.into_iter().collect();
        for lba in &blocks {
            let version = Version { entry, content, acknowledged: None };
            self.blocks[*lba as usize].since.push(version);
        }
        self.under_way.insert(entry, blocks);
        entry
    }

    /// It was acknowledged; with `promised`, it is to be found from now on.
    pub fn acknowledge(&mut self, entry: Entry, promised: bool) {
        let now = self.stamp();
        for lba in self.under_way.remove(&entry).unwrap_or_default() {
            let block = &mut self.blocks[lba as usize];
            let Some(at) = block.since.iter().position(|version| version.entry == entry) else {
                continue;
            };
            block.since[at].acknowledged = Some(now);
            if promised {
                block.promise(at);
            }
        }
    }

    /// A sync is sent now.
    pub fn begin_sync(&mut self) -> Sync {
        Sync(self.stamp())
    }

    /// It was acknowledged: what was acknowledged in these blocks before it was sent is promised.
    pub fn acknowledge_sync(&mut self, sync: Sync, blocks: Range<u64>) {
        for block in &mut self.blocks[blocks.start as usize..blocks.end as usize] {
            let before = |version: &Version| version.acknowledged.is_some_and(|at| at < sync.0);
            if let Some(at) = block.since.iter().rposition(before) {
                block.promise(at);
            }
        }
    }

    /// Whether these bytes, from block 0 on, may be found after a cut; and if not, what is wrong.
    ///
    /// # Errors
    /// The first block that is neither as promised nor as a later write made it, in a sentence.
    pub fn check(&self, disk: &[u8]) -> Result<(), String> {
        if disk.len() != self.blocks.len() * self.block_bytes {
            return Err(format!("the disk has {} bytes", disk.len()));
        }
        for (lba, found) in disk.chunks(self.block_bytes).enumerate() {
            self.check_block(lba as u64, found)?;
        }
        Ok(())
    }

    fn check_block(&self, lba: u64, found: &[u8]) -> Result<(), String> {
        let Block { promised, since } = &self.blocks[lba as usize];
        let mut may_be = vec![promised.bytes(lba, self.block_bytes)];
        if may_be[0] == found {
            return Ok(());
        }
        may_be.extend(since.iter().map(|v| v.content.bytes(lba, self.block_bytes)));
        for (part, sector) in found.chunks(SECTOR_BYTES).enumerate() {
            let at = part * SECTOR_BYTES..(part + 1) * SECTOR_BYTES;
            if !may_be.iter().any(|bytes| bytes[at.clone()] == *sector) {
                return Err(format!(
                    "block {lba}, sector {part} of it: promised was {promised:?}, since then \
                     {since:?}; found was {:02x?}…",
                    &sector[..24]
                ));
            }
        }
        Ok(())
    }

    /// After a cut: what is found now is what counts. Whole blocks are looked up; a torn one has to
    /// be written anew.
    ///
    /// # Errors
    /// As [`Self::check`].
    pub fn settle(&mut self, disk: &[u8]) -> Result<Vec<u64>, String> {
        self.check(disk)?;
        self.under_way.clear();
        let mut torn = Vec::new();
        for (lba, found) in disk.chunks(self.block_bytes).enumerate() {
            let block = &mut self.blocks[lba];
            let contents = block.since.iter().map(|version| version.content);
            let mut contents = contents.chain([block.promised]);
            let is = |content: &Content| content.bytes(lba as u64, self.block_bytes) == found;
            match contents.find(is) {
                Some(content) => *block = Block { promised: content, since: Vec::new() },
                None => torn.push(lba as u64),
            }
        }
        Ok(torn)
    }
}

impl Block {
    /// The version at this place is to be found, or a later one.
    fn promise(&mut self, at: usize) {
        self.promised = self.since[at].content;
        self.since.drain(..=at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk(ledger: &Ledger, contents: &[Content]) -> Vec<u8> {
        let blocks = (0..).zip(contents);
        blocks.flat_map(|(lba, content)| content.bytes(lba, ledger.block_bytes())).collect()
    }

    /// Goal: before a promise old and new are right, after it only the new; torn never, where a
    /// block is a sector.
    #[test]
    fn old_or_new_until_promised() {
        use Content::{Stamp, Zeroes};
        let mut ledger = Ledger::new(2, 512);
        let first = ledger.begin([0], Stamp(1));
        assert!(ledger.is_busy(0) && !ledger.is_busy(1));
        ledger.check(&disk(&ledger, &[Zeroes, Zeroes])).unwrap();
        ledger.check(&disk(&ledger, &[Stamp(1), Zeroes])).unwrap();
        ledger.check(&disk(&ledger, &[Zeroes, Stamp(1)])).unwrap_err();
        let mut torn = disk(&ledger, &[Stamp(1), Zeroes]);
        torn[500] = 0;
        ledger.check(&torn).unwrap_err();
        ledger.acknowledge(first, false);
        ledger.check(&disk(&ledger, &[Zeroes, Zeroes])).unwrap();
        let sync = ledger.begin_sync();
        let second = ledger.begin([0, 1], Stamp(2));
        ledger.acknowledge(second, false);
        ledger.acknowledge_sync(sync, 0..1);
        ledger.check(&disk(&ledger, &[Zeroes, Zeroes])).unwrap_err();
        ledger.check(&disk(&ledger, &[Stamp(1), Zeroes])).unwrap();
        ledger.check(&disk(&ledger, &[Stamp(1), Stamp(2)])).unwrap();
        let third = ledger.begin([1], Zeroes);
        ledger.acknowledge(third, true);
        ledger.check(&disk(&ledger, &[Stamp(2), Stamp(2)])).unwrap_err();
        let found = disk(&ledger, &[Stamp(1), Zeroes]);
        assert_eq!(ledger.settle(&found), Ok(vec![]));
        ledger.check(&disk(&ledger, &[Stamp(2), Zeroes])).unwrap_err();
    }

    /// Goal: a block of several sectors may be torn between them, of what may be there.
    #[test]
    fn long_blocks_are_torn_between_sectors_only() {
        use Content::{Same, Stamp};
        let mut ledger = Ledger::new(1, 4096);
        let first = ledger.begin([0], Stamp(7));
        ledger.acknowledge(first, true);
        ledger.begin([0], Same(8));
        let mut found = disk(&ledger, &[Stamp(7)]);
        found[1024..2048].copy_from_slice(&disk(&ledger, &[Same(8)])[1024..2048]);
        assert_eq!(ledger.settle(&found), Ok(vec![0]));
        found.copy_within(512..1024, 0);
        ledger.check(&found).unwrap_err();
    }
}
