//! The bytes of a file, sector by sector.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// Length of a sector: a disk writes it whole or not at all.
pub const SECTOR_BYTES: u64 = 512;

/// The bytes of a sector. Shared by the images and changes it is part of.
pub(super) type Sector = Arc<[u8; SECTOR_BYTES as usize]>;

/// A file's length and its sectors; a missing sector reads as zeroes and takes no space.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(super) struct Image {
    len: u64,
    sectors: BTreeMap<u64, Sector>,
}

/// Change of an image by a system call, as whole sectors: a part of it may reach the disk.
#[derive(Clone, Debug)]
pub(super) enum Change {
    /// New content of sectors, with the number of the first one.
    Sectors(u64, Vec<Sector>),
    /// Sectors that are holes now.
    Hole(Range<u64>),
    /// New length of the file.
    Length(u64),
}

impl Image {
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// Reads the bytes of `range` before the end of the file.
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

    /// Returns the changes of a write of `data` at `offset`.
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

    /// Returns the changes that make `range` read as zeroes; the length stays.
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
        // The rest of a sector behind the end does not matter.
        let end = range.end.min(self.len);
        self.write(range.start, &vec![0; end.saturating_sub(range.start) as usize])
    }

    /// Applies a whole change.
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

    /// Applies a part of a change: `reaches` decides for each aligned run of `run` sectors.
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

    /// Drops the data behind the end, so that a longer file reads as zeroes there.
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

    /// Returns the first data at or after `offset`; `None`: there is none.
    pub(super) fn next_data(&self, offset: u64) -> Option<u64> {
        let (number, _) = self.sectors.range(offset / SECTOR_BYTES..).next()?;
        let at = offset.max(number * SECTOR_BYTES);
        (at < self.len).then_some(at)
    }

    /// Returns the first hole at or after `offset`; the end of the file counts as one.
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

    /// Returns the additional space for a write of `range`.
    pub(super) fn additional_bytes(&self, range: Range<u64>) -> u64 {
        let sectors = sectors_around(range);
        let there = self.sectors.range(sectors.clone()).count() as u64;
        (sectors.end - sectors.start - there) * SECTOR_BYTES
    }

    /// Returns the space that it takes on the disk.
    pub(super) fn room_bytes(&self) -> u64 {
        self.sectors.len() as u64 * SECTOR_BYTES
    }
}

/// Returns the sectors that overlap `bytes`.
fn sectors_around(bytes: Range<u64>) -> Range<u64> {
    bytes.start / SECTOR_BYTES..bytes.end.div_ceil(SECTOR_BYTES).max(bytes.start / SECTOR_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    /// Goal: the image behaves as a file.
    /// Method: the same random calls on the image and on plain bytes.
    #[test]
    fn the_image_equals_a_byte_array() {
        for seed in 0..50 {
            let mut random = Random::new(seed);
            let (mut image, mut plain) = (Image::default(), Vec::new());
            for _ in 0..60 {
                let (offset, len) = (random.below(5_000), random.below(3_000));
                let changes = match random.below(4) {
                    0 | 1 => {
                        let data = crate::random::pattern(random.next_u64(), len as usize);
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

    /// Checks that holes read as zeroes, and that the map ends at the end of the file.
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
