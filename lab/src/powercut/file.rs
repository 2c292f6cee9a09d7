//! A file: its durable content, its current content, and the changes between them.

use super::image::{Change, Image};
use crate::random::Random;
use std::ops::Range;

/// A file whose writes reach the disk when it is synced, and possibly at a power cut.
#[derive(Clone, Debug, Default)]
pub(super) struct File {
    /// Durable content.
    durable: Image,
    /// Content that reads return.
    current: Image,
    /// Changes that are not synced, each with the number of its call.
    pending: Vec<(u64, Change)>,
}

/// Part of the unsynced changes that reaches the disk.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum WrittenPart {
    /// Nothing.
    Lost,
    /// All of it.
    Kept,
    /// Each sector, each entry with this chance in eight.
    Torn(u64),
}

/// Random decisions at a power cut.
pub(super) struct CutRandom {
    pub(super) random: Random,
    fixed: Option<WrittenPart>,
}

impl CutRandom {
    /// Derives the decisions from a seed: 0 loses all unsynced changes, 1 keeps them, others are
    /// random.
    pub(super) fn new(seed: u64) -> Self {
        let fixed = match seed {
            0 => Some(WrittenPart::Lost),
            1 => Some(WrittenPart::Kept),
            _ => None,
        };
        Self { random: Random::new(seed), fixed }
    }

    /// Decides for one more file, or for the names.
    pub(super) fn fate(&mut self) -> WrittenPart {
        self.fixed.unwrap_or_else(|| match self.random.below(5) {
            0 | 1 => WrittenPart::Lost,
            2 => WrittenPart::Kept,
            _ => WrittenPart::Torn(1 + self.random.below(7)),
        })
    }
}

impl File {
    pub(super) fn image(&self) -> &Image {
        &self.current
    }

    pub(super) fn write(&mut self, call: u64, offset: u64, data: &[u8]) {
        let changes = self.current.write(offset, data);
        self.change(call, changes);
    }

    pub(super) fn clear(&mut self, call: u64, range: Range<u64>) {
        let changes = self.current.clear(range);
        self.change(call, changes);
    }

    pub(super) fn set_len(&mut self, call: u64, len: u64) {
        if len != self.current.len() {
            self.change(call, vec![Change::Length(len)]);
        }
    }

    fn change(&mut self, call: u64, changes: Vec<Change>) {
        for change in changes {
            self.current.apply(&change);
            self.pending.push((call, change));
        }
    }

    /// Makes the changes of calls before this one durable.
    pub(super) fn sync(&mut self, before: u64) {
        let through = self.pending.partition_point(|(call, _)| *call < before);
        for (_, change) in self.pending.drain(..through) {
            self.durable.apply(&change);
        }
    }

    /// Ends a sync with an error: a part of the changes is on the disk, and the rest never will be,
    /// though it can still be read. Linux marks pages clean that could not be written, and reports
    /// that once.
    pub(super) fn fail_sync(&mut self, sector_units: u64, random: &mut Random) {
        let pending = std::mem::take(&mut self.pending);
        self.reach(pending, WrittenPart::Torn(4), sector_units, random);
    }

    /// Turns the power off and on again.
    pub(super) fn cut(&mut self, sector_units: u64, chance: &mut CutRandom) {
        let pending = std::mem::take(&mut self.pending);
        let fate = chance.fate();
        self.reach(pending, fate, sector_units, &mut chance.random);
        self.durable.trim();
        self.current = self.durable.clone();
    }

    /// Makes sectors durable in any order: of a sector that was written more than once, each
    /// version may be the one that is found.
    fn reach(
        &mut self,
        pending: Vec<(u64, Change)>,
        fate: WrittenPart,
        sector_units: u64,
        random: &mut Random,
    ) {
        for (_, change) in pending {
            self.durable.apply_torn(&change, sector_units, || match fate {
                WrittenPart::Lost => false,
                WrittenPart::Kept => true,
                WrittenPart::Torn(eighths) => random.below(8) < eighths,
            });
        }
    }
}
