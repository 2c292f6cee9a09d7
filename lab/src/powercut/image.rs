//! The bytes of a file, sector by sector.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// What a disk writes whole or not at all.
pub const SECTOR_BYTES: u64 = 512;

/// The bytes of a sector. Shared by the images and changes it is part of.
pub(super) type Sector = Arc<[u8; SECTOR_BYTES as usize]>;

/// A file's length and its sectors; one that is not there reads as zeroes and takes no room.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(super) struct Image {
    len: u64,
    sectors: BTreeMap<u64, Sector>,
}

/// What a system call did to an image, as the sectors it left: part of it may reach the disk.
#[derive(Clone, Debug)]
pub(super) enum Change {
    /// These sectors, from a first one on.
    Sectors(u64, Vec<Sector>),
    /// These are holes now.
    Hole(Range<u64>),
    /// The file has this length.
    Length(u64),
}

impl Image {
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// The bytes of `range` before the end of the file.
    pub(super) fn read(&self, range: Range<u64>) -> Vec<u8> {
        let end = range.end.min(self.len);
        let mut bytes = vec![0; end.saturating_sub(range.start) as usize];
        for (number, sector) in self.sectors.range(sectors_around(range.start..end)) {
            let at = number * SECTOR_BYTES;
            let from = range.start.max(at);
            let to = end.min(at + SECTOR_BYTES);
            let into = &mut bytes[(from - range.start) as usize..(to - range.start) as usize];
            into.copy_from_slice(&sector[(from - at) as usize..(to - at) as usize]);
        }
        bytes
    }

    /// What writing `data` at `offset` changes.
    pub(super) fn write(&self, offset: u64, data: &[u8]) -> Vec<Change> {
        if data.is_empty() {
            return Vec::new();
        }
        let end = offset + data.len() as u64;
        let sectors = sectors_around(offset..end).map(|number| {
            let at = number * SECTOR_BYTES;
            let mut sector = self.sectors.get(&number).map_or([0; _], |sector| **sector);
            let (from, to) = (offset.max(at), end.min(at + SECTOR_BYTES));
            sector[(from - at) as usize..(to - at) as usize]
                .copy_from_slice(&data[(from - offset) as usize..(to - offset) as usize]);
            Arc::new(sector)
        });
        let mut changes = vec![Change::Sectors(offset / SECTOR_BYTES, sectors.collect())];
        if end > self.len {
            changes.push(Change::Length(end));
        }
        changes
    }

    /// What making `range` read as zeroes changes; the length stays.
    pub(super) fn clear(&self, range: Range<u64>) -> Vec<Change> {
        let first = range.start.next_multiple_of(SECTOR_BYTES);
        let last = range.end - range.end % SECTOR_BYTES;
        if first > last {
            return self.write_zeroes(range);
        }
        let mut changes = self.write_zeroes(range.start..first);
        changes.push(Change::Hole(first / SECTOR_BYTES..last / SECTOR_BYTES));
        changes.extend(self.write_zeroes(last..range.end));
        changes
    }

    fn write_zeroes(&self, range: Range<u64>) -> Vec<Change> {
        // The rest of a sector behind the end is of no account.
        let end = range.end.min(self.len);
        self.write(range.start, &vec![0; end.saturating_sub(range.start) as usize])
    }

    /// Makes a change, as a whole.
    pub(super) fn apply(&mut self, change: &Change) {
        match change {
            Change::Sectors(first, sectors) => {
                for (number, sector) in (*first..).zip(sectors) {
                    self.set(number, sector);
                }
            }
            Change::Hole(range) => self.dig(range.clone()),
            Change::Length(len) => {
                let shorter = *len < self.len;
                self.len = *len;
                if shorter {
                    self.trim();
                }
            }
        }
    }

    /// Makes a change in part: `reaches` decides for each aligned run of `run` sectors.
    pub(super) fn apply_torn(
        &mut self,
        change: &Change,
        run: u64,
        mut reaches: impl FnMut() -> bool,
    ) {
        let mut last = None;
        let mut reaches_of = |number: u64| match last {
            Some((of, reached)) if of == number / run => reached,
            _ => last.insert((number / run, reaches())).1,
        };
        match change {
            Change::Sectors(first, sectors) => {
                for (number, sector) in (*first..).zip(sectors) {
                    if reaches_of(number) {
                        self.set(number, sector);
                    }
                }
            }
            Change::Hole(range) => {
                let there: Vec<u64> = self.sectors.range(range.clone()).map(|(n, _)| *n).collect();
                for number in there {
                    if reaches_of(number) {
                        self.sectors.remove(&number);
                    }
                }
            }
            Change::Length(_) if reaches() => self.apply(change),
            Change::Length(_) => {}
        }
    }

    /// Forgets what lies behind the end, so that a longer file reads as zeroes there.
    pub(super) fn trim(&mut self) {
        self.dig(self.len.div_ceil(SECTOR_BYTES)..u64::MAX);
        let (last, rest) = (self.len / SECTOR_BYTES, self.len % SECTOR_BYTES);
        if let Some(sector) = self.sectors.get_mut(&last) {
            Arc::make_mut(sector)[rest as usize..].fill(0);
        }
    }

    fn set(&mut self, number: u64, sector: &Sector) {
        self.sectors.insert(number, Arc::clone(sector));
    }

    fn dig(&mut self, sectors: Range<u64>) {
        let mut behind = self.sectors.split_off(&sectors.start);
        let mut kept = behind.split_off(&sectors.end);
        self.sectors.append(&mut kept);
    }

    /// Where data begins at or after `offset`; `None`: there is none.
    pub(super) fn next_data(&self, offset: u64) -> Option<u64> {
        let (number, _) = self.sectors.range(offset / SECTOR_BYTES..).next()?;
        let at = offset.max(number * SECTOR_BYTES);
        (at < self.len).then_some(at)
    }

    /// Where a hole begins at or after `offset`; the end of the file counts as one.
    pub(super) fn next_hole(&self, offset: u64) -> Option<u64> {
        if offset >= self.len {
            return None;
        }
        let mut number = offset / SECTOR_BYTES;
        while self.sectors.contains_key(&number) {
            number += 1;
        }
        Some(offset.max(number * SECTOR_BYTES).min(self.len))
    }

    /// Bytes that it would take besides if `range` were written.
    pub(super) fn new_room_bytes(&self, range: Range<u64>) -> u64 {
        let sectors = sectors_around(range);
        let there = self.sectors.range(sectors.clone()).count() as u64;
        (sectors.end - sectors.start - there) * SECTOR_BYTES
    }

    /// Bytes that it takes on the disk.
    pub(super) fn room_bytes(&self) -> u64 {
        self.sectors.len() as u64 * SECTOR_BYTES
    }
}

/// The sectors that `bytes` touch.
fn sectors_around(bytes: Range<u64>) -> Range<u64> {
    bytes.start / SECTOR_BYTES..bytes.end.div_ceil(SECTOR_BYTES).max(bytes.start / SECTOR_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Random;

    /// Goal: the image is a file. Method: the same random calls on it and on plain bytes.
    #[test]
    fn it_is_like_plain_bytes() {
        for seed in 0..50 {
            let mut random = Random(seed);
            let (mut image, mut plain) = (Image::default(), Vec::new());
            for _ in 0..60 {
                let (offset, len) = (random.below(5_000), random.below(3_000));
                let changes = match random.below(4) {
                    0 | 1 => {
                        let data = crate::scratch::pattern(random.next_u64(), len as usize);
                        let end = (offset + len) as usize;
                        if len > 0 {
                            plain.resize(end.max(plain.len()), 0);
                            plain[offset as usize..end].copy_from_slice(&data);
                        }
                        image.write(offset, &data)
                    }
                    2 => {
                        let end = plain.len().min((offset + len) as usize);
                        plain.get_mut(offset as usize..end).unwrap_or_default().fill(0);
                        image.clear(offset..offset + len)
                    }
                    _ => {
                        plain.resize(offset as usize, 0);
                        vec![Change::Length(offset)]
                    }
                };
                changes.iter().for_each(|change| image.apply(change));
                assert_eq!(image.read(0..10_000), plain, "seed {seed}");
                check_map(&image, &plain);
            }
        }
    }

    /// What is called a hole reads as zeroes, and the map comes to its end.
    fn check_map(image: &Image, plain: &[u8]) {
        let mut at = 0;
        while let Some(data) = image.next_data(at) {
            assert!(plain[at as usize..data as usize].iter().all(|byte| *byte == 0));
            at = image.next_hole(data).unwrap();
            assert!(at > data);
        }
        assert!(plain[at as usize..].iter().all(|byte| *byte == 0));
    }
}
