//! Random operations on a disk, compared with the same operations on a vector.

use super::{OPERATIONS, Subject, are_zeroes};
use crate::{BlockRange, Extent, ExtentState, Sparse, random};

/// The expected contents of a disk.
pub(super) struct Model {
    bytes: Vec<u8>,
    block_bytes: usize,
}

impl Model {
    pub(super) fn new(bytes: Vec<u8>, block_bytes: usize) -> Self {
        Self { bytes, block_bytes }
    }

    fn span(&self, range: BlockRange) -> std::ops::Range<usize> {
        let start = range.lba as usize * self.block_bytes;
        start..start + range.count as usize * self.block_bytes
    }

    pub(super) fn bytes(&self, range: BlockRange) -> &[u8] {
        &self.bytes[self.span(range)]
    }

    pub(super) fn write(&mut self, range: BlockRange, from: &[u8]) {
        let span = self.span(range);
        self.bytes[span].copy_from_slice(from);
    }

    fn zero(&mut self, range: BlockRange) {
        let span = self.span(range);
        self.bytes[span].fill(0);
    }

    /// Compares the contents and panics with the first block that differs.
    pub(super) fn compare(&self, actual: &[u8], when: &str) {
        assert_eq!(actual.len(), self.bytes.len(), "{when}");
        let pairs = actual.chunks(self.block_bytes).zip(self.bytes.chunks(self.block_bytes));
        for (lba, (actual, want)) in pairs.enumerate() {
            assert!(
                actual == want,
                "{when}: block {lba} is {:?}, expected {:?}",
                &actual[..8],
                &want[..8]
            );
        }
    }
}

impl Subject {
    /// Checks that the disk matches the model after random operations in random order.
    pub(super) async fn random_operations(&self, model: &mut Model) {
        let mut random = self.seed;
        for step in 0..OPERATIONS {
            let range = self.random_range(&mut random, 0, self.blocks());
            let draw = random::next(&mut random);
            let durable = draw & 0xF00 == 0;
            match (draw % 8, self.device.sparse()) {
                (0 | 1, _) => self.write(model, range, durable, draw).await,
                (2, Some(sparse)) => {
                    let [first, rest] = halves(range);
                    sparse.unmap_all(vec![rest, first], durable).await.unwrap();
                    model.zero(range);
                }
                (3, Some(sparse)) => {
                    sparse.write_zeroes(range, draw & 0x1000 == 0, durable).await.unwrap();
                    model.zero(range);
                }
                (4, Some(sparse)) => check_status(sparse, model, range, draw).await,
                (5, _) => self.device.prefetch(range),
                (6, _) if durable => self.device.flush().await.unwrap(),
                _ => {
                    let actual = self.read(range).await;
                    assert!(actual == model.bytes(range), "step {step}: {range:?} differs");
                }
            }
        }
        model.compare(&self.read_all().await, "after random operations");
    }

    /// Draws a range within the `count` blocks from `first` on; short ranges are more frequent.
    pub(super) fn random_range(&self, random: &mut u64, first: u64, count: u64) -> BlockRange {
        let lba = random::next(random) % count;
        let count_max = count - lba;
        let count_max =
            if random::next(random).is_multiple_of(8) { count_max } else { count_max.min(40) };
        BlockRange::new(first + lba, 1 + random::next(random) % count_max)
    }
}

/// Checks that extents follow each other from the beginning of the range and cover it unless there
/// are too many of them, and that unmapped blocks read as zeroes.
async fn check_status(sparse: &dyn Sparse, model: &Model, range: BlockRange, draw: u64) {
    let extents_max = if draw & 0x10000 == 0 { 2 } else { 1000 };
    let extents = sparse.status(range, extents_max).await.unwrap();
    assert!((1..=extents_max).contains(&extents.len()), "{range:?}: {extents:?}");
    let mut next = range.lba;
    let mut before: Option<Extent> = None;
    for extent in &extents {
        assert_eq!(extent.range.lba, next, "{range:?}: {extents:?}");
        assert_ne!(extent.range.count, 0, "{range:?}: {extents:?}");
        assert_ne!(before.map(|b| b.state), Some(extent.state), "joined: {extents:?}");
        next += extent.range.count;
        before = Some(*extent);
        if extent.state == ExtentState::Unmapped {
            assert!(are_zeroes(model.bytes(extent.range)), "{extent:?} holds data");
        }
    }
    let end = range.lba + range.count;
    assert!(next == end || (next < end && extents.len() == extents_max), "{range:?}: {extents:?}");
}

/// Splits a range into two halves, one of which may be empty.
fn halves(range: BlockRange) -> [BlockRange; 2] {
    let count = range.count / 2;
    [BlockRange { count, ..range }, BlockRange::new(range.lba + count, range.count - count)]
}
