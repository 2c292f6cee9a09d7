//! Collects extents in the order in which they are found.

use crate::{BlockRange, Extent, ExtentState};
use std::ops::Range;

/// Extents in order; neighbours of the same state are joined.
pub(crate) struct Extents {
    block_bytes: u64,
    extents_max: usize,
    pub(crate) done: Vec<Extent>,
    /// True when one more extent would exceed `extents_max`.
    pub(crate) full: bool,
}

impl Extents {
    pub(crate) fn new(block_bytes: u64, extents_max: usize) -> Self {
        Self { block_bytes, extents_max, done: Vec::new(), full: extents_max == 0 }
    }

    /// Appends the next bytes: whole blocks that follow directly on the last ones.
    pub(crate) fn push(&mut self, bytes: Range<u64>, state: ExtentState) {
        if self.full || bytes.is_empty() {
            return;
        }
        let count = (bytes.end - bytes.start) / self.block_bytes;
        if let Some(last) = self.done.last_mut().filter(|last| last.state == state) {
            last.range.count += count;
        } else if self.done.len() == self.extents_max {
            self.full = true;
        } else {
            let range = BlockRange::new(bytes.start / self.block_bytes, count);
            self.done.push(Extent { range, state });
        }
    }
}
