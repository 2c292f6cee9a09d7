//! Free blocks of the device.

use crate::block_io::BLOCK_BYTES;
use std::collections::BTreeSet;
use std::ops::Range;

/// Number of blocks whose bits are one page of the bitmap.
pub(crate) const PAGE_BLOCKS: u64 = BLOCK_BYTES * 8;

const PAGE_WORDS: usize = (PAGE_BLOCKS / 64) as usize;

/// A bitmap of used blocks.
///
/// Freed blocks stay used until the next checkpoint: records of the log before it may refer to
/// them. A reserve at the end takes metadata only, when no other blocks are left, so that objects
/// can be removed from a full store.
#[derive(Debug)]
pub(crate) struct Allocator {
    /// A bit for each block; set if the block is used.
    words: Vec<u64>,
    block_count: u64,
    /// Blocks that only metadata may take.
    reserve: Range<u64>,
    /// Number of free blocks outside the reserve.
    free: u64,
    /// Number of free blocks in the reserve.
    free_reserve: u64,
    /// The search starts here.
    next: u64,
    /// Pages that changed since the last checkpoint.
    dirty: BTreeSet<u64>,
    /// The page that changed last, if it is one of them.
    last_dirty: Option<u64>,
}

impl Allocator {
    /// Creates a bitmap of free blocks.
    pub(crate) fn new(block_count: u64, reserve: Range<u64>) -> Self {
        let words = vec![0; block_count.div_ceil(64) as usize];
        let free_reserve = reserve.end - reserve.start;
        let free = block_count - free_reserve;
        let dirty = BTreeSet::new();
        Self { words, block_count, reserve, free, free_reserve, next: 0, dirty, last_dirty: None }
    }

    /// Returns the number of free blocks, apart from the reserve.
    pub(crate) fn free_blocks(&self) -> u64 {
        self.free
    }

    /// Returns the number of free blocks with those of the reserve.
    pub(crate) fn all_free_blocks(&self) -> u64 {
        self.free + self.free_reserve
    }

    /// Returns the number of free blocks of the reserve, and of all blocks if a run of `count` is
    /// free outside it.
    pub(crate) fn metadata_blocks(&self, count: u64) -> u64 {
        let run = self.longest_run(count);
        let has_run = run.end - run.start == count;
        if has_run { self.free + self.free_reserve } else { self.free_reserve }
    }

    fn is_used(&self, block: u64) -> bool {
        self.words[(block / 64) as usize] >> (block % 64) & 1 == 1
    }

    fn set(&mut self, block: u64, used: bool) {
        let bit = 1 << (block % 64);
        let word = &mut self.words[(block / 64) as usize];
        let free =
            if self.reserve.contains(&block) { &mut self.free_reserve } else { &mut self.free };
        match used {
            true => (*word, *free) = (*word | bit, *free - 1),
            false => (*word, *free) = (*word & !bit, *free + 1),
        }
        let page = block / PAGE_BLOCKS;
        if self.last_dirty.replace(page) != Some(page) {
            self.dirty.insert(page);
        }
    }

    /// Takes up to `count` consecutive blocks for data, as many as are found together.
    pub(crate) fn allocate(&mut self, count: u64) -> Option<Range<u64>> {
        let run = self.longest_run(count.min(self.free));
        self.take(run)
    }

    /// Takes `count` consecutive blocks for metadata, from the reserve if there are no others.
    pub(crate) fn allocate_metadata(&mut self, count: u64) -> Option<Range<u64>> {
        let is_long = |run: &Range<u64>| run.end - run.start == count;
        let run = Some(self.longest_run(count)).filter(is_long);
        let run = run.or_else(|| Some(self.find(self.reserve.clone(), count)).filter(is_long))?;
        self.take(run)
    }

    fn take(&mut self, run: Range<u64>) -> Option<Range<u64>> {
        if run.is_empty() {
            return None;
        }
        if !self.reserve.contains(&run.start) {
            self.next = run.end % self.reserve.start.max(1);
        }
        run.clone().for_each(|block| self.set(block, true));
        Some(run)
    }

    /// Returns the first run of `count` blocks from the last position on, or else the longest run.
    fn longest_run(&self, count: u64) -> Range<u64> {
        if count == 0 {
            return 0..0;
        }
        let first = self.find(self.next..self.reserve.start, count);
        if first.end - first.start == count {
            return first;
        }
        let other = self.find(0..self.reserve.start, count);
        if other.end - other.start > first.end - first.start { other } else { first }
    }

    /// Finds the first free run of `count` blocks in `range`, or else the longest one.
    fn find(&self, range: Range<u64>, count: u64) -> Range<u64> {
        let mut longest = 0..0;
        let (mut start, mut block) = (range.start, range.start);
        while block < range.end {
            if block.is_multiple_of(64) && self.words[(block / 64) as usize] == u64::MAX {
                block += 64;
                start = block;
                continue;
            }
            if self.is_used(block) {
                start = block + 1;
            } else if block + 1 - start > longest.end - longest.start {
                longest = start..block + 1;
                if block + 1 - start == count {
                    break;
                }
            }
            block += 1;
        }
        longest
    }

    /// Marks `range` as used. Returns false, without effect, if a part is used or does not exist.
    pub(crate) fn claim(&mut self, range: Range<u64>) -> bool {
        let exists = range.start < range.end && range.end <= self.block_count;
        if !exists || range.clone().any(|block| self.is_used(block)) {
            return false;
        }
        range.for_each(|block| self.set(block, true));
        true
    }

    /// Marks `range` as free. Returns false, without effect, if a part is free or does not exist.
    pub(crate) fn release(&mut self, range: Range<u64>) -> bool {
        let exists = range.start < range.end && range.end <= self.block_count;
        if !exists || !range.clone().all(|block| self.is_used(block)) {
            return false;
        }
        range.for_each(|block| self.set(block, false));
        true
    }

    /// Returns the used runs.
    pub(crate) fn used_runs(&self) -> Vec<Range<u64>> {
        self.differences(&Self::new(self.block_count, 0..0))
    }

    /// Marks all of `range` as used, also what is used already; a part beyond the end is ignored.
    pub(crate) fn reserve(&mut self, range: Range<u64>) {
        for block in range.start..range.end.min(self.block_count) {
            if !self.is_used(block) {
                self.set(block, true);
            }
        }
    }

    /// Marks the used blocks of `range` as free.
    pub(crate) fn free(&mut self, range: Range<u64>) {
        for block in range.start..range.end.min(self.block_count) {
            if self.is_used(block) {
                self.set(block, false);
            }
        }
    }

    /// Returns the free parts of `range`.
    pub(crate) fn free_runs(&self, range: Range<u64>) -> Vec<Range<u64>> {
        let mut runs: Vec<Range<u64>> = Vec::new();
        for block in range.start..range.end.min(self.block_count) {
            match runs.last_mut() {
                _ if self.is_used(block) => {}
                Some(run) if run.end == block => run.end += 1,
                _ => runs.push(block..block + 1),
            }
        }
        runs
    }

    /// Returns the runs of blocks that are free in one of two bitmaps only.
    pub(crate) fn differences(&self, other: &Self) -> Vec<Range<u64>> {
        let mut runs: Vec<Range<u64>> = Vec::new();
        let end = self.block_count.min(other.block_count);
        let words = self.words.iter().zip(&other.words);
        let unequal = (0_u64..).zip(words).filter(|(_, (a, b))| a != b);
        let blocks = unequal.flat_map(|(at, _)| at * 64..(at + 1) * 64);
        for block in blocks.take_while(|block| *block < end) {
            match runs.last_mut() {
                _ if self.is_used(block) == other.is_used(block) => {}
                Some(run) if run.end == block => run.end += 1,
                _ => runs.push(block..block + 1),
            }
        }
        runs
    }

    /// Returns the pages that changed since the last call, as they are when `freed` is free.
    pub(crate) fn take_dirty_pages(&mut self, freed: &[Range<u64>]) -> Vec<(u64, Vec<u8>)> {
        let touched = freed.iter().flat_map(|run| [run.start, run.end - 1]);
        let mut pages = std::mem::take(&mut self.dirty);
        self.last_dirty = None;
        pages.extend(touched.map(|block| block / PAGE_BLOCKS));
        let mut freed = freed.to_vec();
        freed.sort_by_key(|run| run.start);
        pages.into_iter().map(|page| (page, self.page(page, &freed))).collect()
    }

    fn page(&self, page: u64, freed: &[Range<u64>]) -> Vec<u8> {
        let start = page as usize * PAGE_WORDS;
        let mut words = vec![0; PAGE_WORDS];
        let have = &self.words[start..self.words.len().min(start + PAGE_WORDS)];
        words[..have.len()].copy_from_slice(have);
        let (low, high) = (page * PAGE_BLOCKS, (page + 1) * PAGE_BLOCKS);
        let first = freed.partition_point(|run| run.end <= low);
        for run in freed[first..].iter().take_while(|run| run.start < high) {
            for block in run.start.max(low)..run.end.min(high) {
                words[((block - low) / 64) as usize] &= !(1 << (block % 64));
            }
        }
        words.iter().flat_map(|word| word.to_be_bytes()).collect()
    }

    /// Takes over a page as a checkpoint has stored it. Returns false if the page cannot be one.
    pub(crate) fn load_page(&mut self, page: u64, bytes: &[u8]) -> bool {
        let first = page.saturating_mul(PAGE_BLOCKS);
        if bytes.len() as u64 != BLOCK_BYTES || first >= self.block_count {
            return false;
        }
        for (at, byte) in bytes.iter().enumerate().filter(|(_, byte)| **byte != 0) {
            // Words are big-endian, so the byte at the end of a word has its first blocks.
            let low = first + (at as u64 / 8) * 64 + (7 - at as u64 % 8) * 8;
            for bit in (0..8).filter(|bit| byte >> bit & 1 == 1) {
                self.reserve(low + bit..low + bit + 1);
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_found_across_words_and_after_a_wrap() {
        let mut allocator = Allocator::new(3 * 64 + 5, 0..0);
        allocator.reserve = 197..197;
        assert!(allocator.claim(0..60));
        assert_eq!(allocator.allocate(10), Some(60..70));
        assert_eq!(allocator.allocate(1000), Some(70..197));
        assert_eq!(allocator.allocate(1), None);
        allocator.free(3..9);
        assert_eq!(allocator.free_runs(0..197).pop(), Some(3..9));
        assert_eq!(allocator.allocate(100), Some(3..9));
        assert!(!allocator.claim(8..9));
        assert!(!allocator.claim(190..198));
    }

    #[test]
    fn data_leaves_the_reserve_to_metadata() {
        let mut allocator = Allocator::new(320, 310..320);
        assert_eq!(allocator.allocate_metadata(10), Some(0..10));
        assert_eq!(allocator.allocate(320), Some(10..310));
        assert_eq!(allocator.allocate(1), None);
        assert_eq!(allocator.allocate_metadata(11), None);
        assert_eq!(allocator.allocate_metadata(8), Some(310..318));
        assert_eq!(allocator.metadata_blocks(4), 2);
        allocator.free(0..4);
        assert_eq!(allocator.metadata_blocks(4), 6);
        assert_eq!(allocator.metadata_blocks(5), 2);
        assert_eq!(allocator.allocate_metadata(4), Some(0..4));
        assert_eq!(allocator.allocate_metadata(2), Some(318..320));
    }

    #[test]
    fn pages_return_as_they_were_stored() {
        let mut allocator = Allocator::new(PAGE_BLOCKS + 100, 50..60);
        allocator.claim(5..77);
        allocator.claim(PAGE_BLOCKS - 1..PAGE_BLOCKS + 1);
        let freed = 6..8;
        let pages = allocator.take_dirty_pages(std::slice::from_ref(&freed));
        allocator.free(freed);
        let mut loaded = Allocator::new(PAGE_BLOCKS + 100, 50..60);
        for (page, bytes) in &pages {
            assert!(loaded.load_page(*page, bytes));
        }
        assert_eq!(loaded.words, allocator.words);
        assert_eq!(loaded.free, allocator.free);
        assert_eq!(loaded.free_reserve, allocator.free_reserve);
        // The pages were taken, and since then one was changed.
        assert_eq!(allocator.take_dirty_pages(&[]).len(), 1);
        assert!(!loaded.load_page(2, &pages[0].1));
    }
}
