//! Record of the writes to a disk and their promises, which decides whether the content found after
//! a power cut is admissible.
//!
//! Each write has content of its own, so the content of a block identifies the write it came from.
//! Several initiators may write to one block at once; the disk then applies their writes in any
//! order that agrees with time: a write sent after another was acknowledged comes after it.
//!
//! A version of a block is admissible unless it *precedes* a promised version.
//!
//! * Version A precedes version B if A was acknowledged before B was sent, or if a read returned B
//!   while no write to the block was under way and A was one of its versions.
//! * A version is promised if it was acknowledged as durable (write-through, FUA), or if it was
//!   acknowledged before a sync was sent that was acknowledged as well.
//!
//! The ledger drops a version when it stops being admissible. `tests.rs` compares the rule with a
//! search through all orders of the operations.

use crate::random::Random;
use std::collections::BTreeMap;
use std::ops::Range;

/// Length of a sector, which is found old or new; a longer block can be torn between sectors.
pub const SECTOR_BYTES: usize = 512;

/// Content that a write puts into a block.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Content {
    /// Zeroes only.
    Zeroes,
    /// The bytes of this write, which differ in each block.
    Stamp(u64),
    /// The bytes of this write, the same in each block.
    Same(u64),
}

impl Content {
    /// Identifies the content of a whole block; `None` if the block is torn, or belongs elsewhere.
    pub fn of(found: &[u8], lba: u64) -> Option<Self> {
        let word = |at| Some(u64::from_be_bytes(*found.get(at..)?.first_chunk()?));
        let (stamp, at) = (word(0)?, word(8)?);
        let content = match (stamp, at) {
            (0, 0) => Self::Zeroes,
            (_, u64::MAX) => Self::Same(stamp),
            _ => Self::Stamp(stamp),
        };
        (content.bytes(lba, found.len()) == found).then_some(content)
    }

    /// Returns the bytes of a block.
    pub fn bytes(self, lba: u64, block_bytes: usize) -> Vec<u8> {
        let sectors = 0..(block_bytes / SECTOR_BYTES) as u64;
        match self {
            Self::Zeroes => vec![0; block_bytes],
            Self::Stamp(stamp) => sectors.flat_map(|part| sector(stamp, lba, part)).collect(),
            Self::Same(stamp) => sectors.flat_map(|part| sector(stamp, u64::MAX, part)).collect(),
        }
    }
}

/// Builds a sector: the number of its write, its position, and bytes that are derived from both.
fn sector(stamp: u64, lba: u64, part: u64) -> Vec<u8> {
    let key = Random::new(stamp ^ lba.rotate_left(24) ^ part.rotate_left(48)).next_u64();
    let mut sector = Vec::with_capacity(SECTOR_BYTES);
    for word in [stamp, lba] {
        sector.extend_from_slice(&word.to_be_bytes());
    }
    for number in 2..SECTOR_BYTES as u64 / 8 {
        sector.extend_from_slice(&key.wrapping_add(number).to_be_bytes());
    }
    sector
}

/// Number of a write to some blocks.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Entry(u64);

/// One block's content after a write. Times count the ledger's events.
#[derive(Clone, Copy, Debug)]
struct Version {
    entry: Entry,
    content: Content,
    /// Time before which acknowledged versions precede this one: when the write was sent, or when a
    /// read showed that it took effect last.
    begun: u64,
    /// Time of the write's acknowledgement: it took effect before.
    done: Option<u64>,
    promised: bool,
}

impl Version {
    /// True if this version took effect before the other in every possible order.
    fn precedes(&self, other: &Self) -> bool {
        self.entry != other.entry && self.done.is_some_and(|done| done < other.begun)
    }
}

/// The admissible versions of a block; at least one of them is promised.
#[derive(Clone, Debug)]
struct Block {
    versions: Vec<Version>,
}

/// Time at which a sync was sent.
#[derive(Clone, Copy, Debug)]
pub struct Sync(u64);

/// Time at which a read was sent.
#[derive(Clone, Copy, Debug)]
pub struct ReadRecord(u64);

/// The record of one disk.
#[derive(Clone, Debug)]
pub struct Ledger {
    block_bytes: usize,
    blocks: Vec<Block>,
    under_way: BTreeMap<Entry, Vec<u64>>,
    now: u64,
}

impl Ledger {
    /// Creates the ledger of a disk of zeroes.
    pub fn new(blocks: usize, block_bytes: usize) -> Self {
        let blocks = vec![Block::promised(Entry(0), Content::Zeroes, 0); blocks];
        Self { block_bytes, blocks, under_way: BTreeMap::new(), now: 0 }
    }

    /// Returns the length of a block in bytes.
    pub fn block_bytes(&self) -> usize {
        self.block_bytes
    }

    /// Returns the number of blocks.
    pub fn blocks(&self) -> u64 {
        self.blocks.len() as u64
    }

    /// Returns a number for a new content.
    pub fn stamp(&mut self) -> u64 {
        self.now += 1;
        self.now
    }

    /// True while a write to this block is under way, or a command that holds it ([`Self::hold`]).
    pub fn is_busy(&self, lba: u64) -> bool {
        self.under_way.values().any(|blocks| blocks.contains(&lba))
    }

    /// Returns the content that a read of the block returns, provided that no write to it is under
    /// way and that no two writes to it overlapped.
    pub fn content(&self, lba: u64) -> Content {
        let last = self.blocks[lba as usize].versions.last();
        last.map_or(Content::Zeroes, |version| version.content)
    }

    /// Records that a write is sent.
    pub fn begin(&mut self, blocks: impl IntoIterator<Item = u64>, content: Content) -> Entry {
        let begun = self.stamp();
        let entry = Entry(begun);
        let blocks: Vec<u64> = blocks.into_iter().collect();
        for lba in &blocks {
            let version = Version { entry, content, begun, done: None, promised: false };
            self.blocks[*lba as usize].versions.push(version);
        }
        self.under_way.insert(entry, blocks);
        entry
    }

    /// Marks a block busy until this write is acknowledged, because the write reads it.
    pub fn hold(&mut self, entry: Entry, lba: u64) {
        self.under_way.entry(entry).or_default().push(lba);
    }

    /// Records that a write was acknowledged; `promised` if that promises its content.
    pub fn acknowledge(&mut self, entry: Entry, promised: bool) {
        let now = self.stamp();
        for lba in self.under_way.remove(&entry).unwrap_or_default() {
            let block = &mut self.blocks[lba as usize];
            for version in block.versions.iter_mut().filter(|version| version.entry == entry) {
                version.done = Some(now);
                version.promised |= promised;
            }
            block.drop_overwritten();
        }
    }

    /// Records that a sync is sent.
    pub fn begin_sync(&mut self) -> Sync {
        Sync(self.stamp())
    }

    /// Records that a sync of these blocks was acknowledged: it promises the writes that were
    /// acknowledged before it was sent.
    pub fn acknowledge_sync(&mut self, sync: Sync, blocks: Range<u64>) {
        for block in &mut self.blocks[blocks.start as usize..blocks.end as usize] {
            for version in &mut block.versions {
                version.promised |= version.done.is_some_and(|done| done < sync.0);
            }
            block.drop_overwritten();
        }
    }

    /// Records that a read is sent.
    pub fn begin_read(&mut self) -> ReadRecord {
        ReadRecord(self.stamp())
    }

    /// Records the bytes that a read returned. If no write was under way during the read, they show
    /// which version came last.
    ///
    /// # Errors
    /// Names the first block that is torn between writes, or whose content a later write had
    /// overwritten before the read was sent.
    pub fn acknowledge_read(
        &mut self,
        read: ReadRecord,
        blocks: Range<u64>,
        found: &[u8],
    ) -> Result<(), String> {
        if found.len() as u64 != (blocks.end - blocks.start) * self.block_bytes as u64 {
            return Err(format!("a read of {blocks:?} returned {} bytes", found.len()));
        }
        let now = self.stamp();
        for (lba, found) in blocks.zip(found.chunks(self.block_bytes)) {
            let Some(content) = Content::of(found, lba) else {
                return Err(format!(
                    "block {lba}: a read returned a torn block, {:02x?}…",
                    &found[..24]
                ));
            };
            let block = &mut self.blocks[lba as usize];
            let done = |version: &Version| version.done.is_some_and(|done| done < read.0);
            if block.versions.iter().all(done) {
                block.observe(content, now).map_err(|why| format!("block {lba}: {why}"))?;
            }
        }
        Ok(())
    }

    /// Checks that these bytes, from block 0 on, may be found after a cut.
    ///
    /// # Errors
    /// Describes the first block that has neither its promised content nor that of a later write.
    pub fn check(&self, disk: &[u8]) -> Result<(), String> {
        if disk.len() != self.blocks.len() * self.block_bytes {
            return Err(format!("the disk has {} bytes", disk.len()));
        }
        for (lba, found) in disk.chunks(self.block_bytes).enumerate() {
            self.check_block(lba as u64, found)?;
        }
        Ok(())
    }

    /// Checks that a block holds one version, or is torn between sectors: the promised version that
    /// took effect last, with sectors of versions over it that were not promised.
    fn check_block(&self, lba: u64, found: &[u8]) -> Result<(), String> {
        let versions = &self.blocks[lba as usize].versions;
        let bytes = |version: &Version| version.content.bytes(lba, self.block_bytes);
        if versions.iter().any(|version| bytes(version) == found) {
            return Ok(());
        }
        let (promised, others): (Vec<_>, Vec<_>) = versions.iter().partition(|v| v.promised);
        let others: Vec<_> = others.into_iter().map(bytes).collect();
        let is_of = |base: &[u8], at: Range<usize>| {
            let mut all = others.iter().map(Vec::as_slice).chain([base]);
            all.any(|bytes| bytes[at.clone()] == found[at.clone()])
        };
        let sectors = || (0..found.len()).step_by(SECTOR_BYTES).map(|at| at..at + SECTOR_BYTES);
        if promised.into_iter().map(bytes).any(|base| sectors().all(|at| is_of(&base, at))) {
            return Ok(());
        }
        let heads: Vec<_> = sectors().map(|at| format!("{:02x?}", &found[at][..16])).collect();
        Err(format!("block {lba}: one of {versions:?}; its sectors begin with {heads:?}"))
    }

    /// Takes the content found after a cut as the new state of the disk. Returns the torn blocks,
    /// which have to be written again.
    ///
    /// # Errors
    /// See [`Self::check`].
    pub fn accept(&mut self, disk: &[u8]) -> Result<Vec<u64>, String> {
        self.check(disk)?;
        let now = self.stamp();
        self.under_way.clear();
        let mut torn = Vec::new();
        for (lba, found) in disk.chunks(self.block_bytes).enumerate() {
            match Content::of(found, lba as u64) {
                Some(content) => self.blocks[lba] = Block::promised(Entry(now), content, now),
                None => {
                    torn.push(lba as u64);
                    self.blocks[lba].end_all(now);
                }
            }
        }
        Ok(torn)
    }
}

impl Block {
    /// Creates a block with one version, which is promised.
    fn promised(entry: Entry, content: Content, now: u64) -> Self {
        let version = Version { entry, content, begun: now, done: Some(now), promised: true };
        Self { versions: vec![version] }
    }

    /// Drops the versions that are no longer admissible.
    fn drop_overwritten(&mut self) {
        let promised: Vec<_> = self.versions.iter().copied().filter(|v| v.promised).collect();
        self.versions.retain(|version| !promised.iter().any(|later| version.precedes(later)));
    }

    /// Records that a read returned this content while no write was under way: it is the version
    /// that took effect last. If several versions have this content, nothing is recorded.
    fn observe(&mut self, content: Content, now: u64) -> Result<(), String> {
        let is_last = |version: &Version| {
            version.content == content && !self.versions.iter().any(|v| version.precedes(v))
        };
        let mut last = self.versions.iter().filter(|version| is_last(version));
        let (first, more) = (last.next(), last.next().is_some());
        let Some(entry) = first.map(|version| version.entry) else {
            return Err(format!(
                "a read returned {content:?}, not the last of {:?}",
                self.versions
            ));
        };
        if !more {
            let seen = self.versions.iter_mut().filter(|version| version.entry == entry);
            seen.for_each(|version| version.begun = now);
            self.drop_overwritten();
        }
        Ok(())
    }

    /// Ends all writes: each has taken effect by now, or never will.
    fn end_all(&mut self, now: u64) {
        for version in &mut self.versions {
            version.done.get_or_insert(now);
        }
    }
}

#[cfg(test)]
mod tests;
