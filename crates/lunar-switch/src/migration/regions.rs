//! The regions of an extent that are not copied yet.

use lunar_block::BlockRange;
use std::collections::BTreeMap;

/// Regions whose destination does not have the data of the source.
#[derive(Debug)]
pub(super) struct UncopiedRegions {
    /// One bit for each region.
    words: Vec<u64>,
    count: u64,
    region_blocks: u64,
    block_count: u64,
    /// The regions that are being copied, each with whether it was changed since.
    copying: BTreeMap<u64, bool>,
}

const WORD_BITS: u64 = u64::BITS as u64;

impl UncopiedRegions {
    /// Creates the set of all regions of an extent.
    pub(super) fn all(block_count: u64, region_blocks: u64) -> Self {
        let (words, copying) = (Vec::new(), BTreeMap::new());
        let mut regions = Self { words, count: 0, region_blocks, block_count, copying };
        regions.words = vec![0; regions.regions().div_ceil(WORD_BITS) as usize];
        regions.insert(BlockRange::new(0, block_count));
        regions
    }

    fn regions(&self) -> u64 {
        self.block_count.div_ceil(self.region_blocks)
    }

    fn regions_of(&self, range: BlockRange) -> std::ops::Range<u64> {
        let end = (range.lba + range.count).min(self.block_count);
        range.lba / self.region_blocks..end.div_ceil(self.region_blocks)
    }

    fn has(&self, region: u64) -> bool {
        self.words[(region / WORD_BITS) as usize] >> (region % WORD_BITS) & 1 == 1
    }

    /// Adds all regions of `range`.
    pub(super) fn insert(&mut self, range: BlockRange) {
        for region in self.regions_of(range) {
            self.count += u64::from(!self.has(region));
            self.words[(region / WORD_BITS) as usize] |= 1 << (region % WORD_BITS);
        }
    }

    /// Records that a region is being copied.
    pub(super) fn begin_copy(&mut self, region: u64) {
        self.copying.insert(region, false);
    }

    /// Records that a change of `range` begins.
    pub(super) fn begin_change(&mut self, range: BlockRange) {
        if self.copying.is_empty() {
            return;
        }
        let regions = self.regions_of(range);
        self.copying.range_mut(regions).for_each(|(_, is_changed)| *is_changed = true);
    }

    /// Records that the copy of a region has ended. Removes the region if it has succeeded and no
    /// change has begun since; returns whether that is so.
    pub(super) fn end_copy(&mut self, region: u64, has_succeeded: bool) -> bool {
        let is_copied = self.copying.remove(&region) == Some(false) && has_succeeded;
        if is_copied {
            self.remove(region);
        }
        is_copied
    }

    fn remove(&mut self, region: u64) {
        self.count -= u64::from(self.has(region));
        self.words[(region / WORD_BITS) as usize] &= !(1 << (region % WORD_BITS));
    }

    /// True if the set has all regions of `range`.
    pub(super) fn has_all(&self, range: BlockRange) -> bool {
        self.regions_of(range).all(|region| self.has(region))
    }

    /// Returns the first region in the set from `region` on, and its blocks.
    pub(super) fn next(&self, region: u64) -> Option<(u64, BlockRange)> {
        let mut at = region;
        while at < self.regions() {
            let rest = self.words[(at / WORD_BITS) as usize] >> (at % WORD_BITS);
            if rest != 0 {
                let found = at + u64::from(rest.trailing_zeros());
                let lba = found * self.region_blocks;
                let count = self.region_blocks.min(self.block_count - lba);
                return Some((found, BlockRange::new(lba, count)));
            }
            at = (at / WORD_BITS + 1) * WORD_BITS;
        }
        None
    }

    /// Returns the number of blocks in the set; the last region counts as a whole one.
    pub(super) fn blocks(&self) -> u64 {
        (self.count * self.region_blocks).min(self.block_count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the set finds, counts and forgets regions, also the last one, which is shorter.
    #[test]
    fn regions_are_found_and_counted() {
        let mut regions = UncopiedRegions::all(1001, 10);
        assert_eq!((regions.count, regions.blocks()), (101, 1001));
        let mut seen = Vec::new();
        while let Some((region, range)) = regions.next(0) {
            assert!(regions.has_all(range));
            seen.push(range);
            regions.remove(region);
            regions.remove(region);
        }
        assert_eq!(seen.len(), 101);
        assert_eq!(seen.last(), Some(&BlockRange::new(1000, 1)));
        assert_eq!(regions.blocks(), 0);
        regions.insert(BlockRange::new(19, 2));
        assert_eq!(regions.next(0), Some((1, BlockRange::new(10, 10))));
        assert_eq!(regions.next(2), Some((2, BlockRange::new(20, 10))));
        assert_eq!(regions.next(3), None);
        assert!(!regions.has_all(BlockRange::new(5, 20)));
        assert!(regions.has_all(BlockRange::new(10, 20)));
    }
}
