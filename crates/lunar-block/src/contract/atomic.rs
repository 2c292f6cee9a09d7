//! Atomic writes: all or nothing, with concurrent readers and writers.

use super::concurrent::STEPS;
use super::{Subject, are_equal, expect};
use crate::{AtomicLimits, BlockRange, ErrorKind, random};

/// Number of times that atomic writes run concurrently with one write or deallocation of the same
/// blocks.
const CONCURRENT_ROUNDS: u64 = 12;

impl Subject {
    /// Checks that writes beyond the limits are refused, and that allowed ones are written whole in
    /// the view of readers and other writers.
    pub(super) async fn atomic_writes(&self) {
        let Some(atomic) = self.device.atomic() else { return };
        let limits = atomic.limits();
        let unit_blocks = u64::from(limits.unit_bytes) / self.block_bytes() as u64;
        assert!(unit_blocks.is_power_of_two(), "{limits:?}");
        assert_eq!(limits.bytes_max % limits.unit_bytes, 0, "{limits:?}");
        atomic.write_atomic(BlockRange::new(0, 0), bytes::Bytes::new(), true).await.unwrap();
        let Some(range) = self.longest(limits, unit_blocks) else { return };
        self.atomic_refusals(limits, range, unit_blocks).await;
        self.readers_see_all_or_nothing(range).await;
        for round in 0..CONCURRENT_ROUNDS {
            self.write_concurrently(range, round).await;
        }
    }

    /// Returns the longest possible atomic write that does not begin at block 0, if there is room
    /// for it.
    fn longest(&self, limits: AtomicLimits, unit_blocks: u64) -> Option<BlockRange> {
        let longest = u64::from(limits.bytes_max) / self.block_bytes() as u64;
        let room = self.blocks().saturating_sub(unit_blocks);
        let count = longest.min(room - room % unit_blocks);
        (count > 0).then_some(BlockRange::new(unit_blocks, count))
    }

    async fn atomic_refusals(&self, limits: AtomicLimits, range: BlockRange, unit_blocks: u64) {
        let before = self.read_all().await;
        let long = u64::from(limits.bytes_max / limits.unit_bytes + 1) * unit_blocks;
        let mut wrong = vec![
            (BlockRange::new(self.blocks(), unit_blocks), ErrorKind::OutOfRange),
            (BlockRange::new(u64::MAX, unit_blocks), ErrorKind::OutOfRange),
        ];
        if long <= self.blocks() {
            wrong.push((BlockRange::new(0, long), ErrorKind::Unaligned));
        }
        if unit_blocks > 1 {
            wrong.push((BlockRange::new(range.lba - 1, unit_blocks), ErrorKind::Unaligned));
            wrong.push((BlockRange::new(range.lba, unit_blocks - 1), ErrorKind::Unaligned));
        }
        for (range, kind) in wrong {
            let data = self.random_data(range.count as usize * self.block_bytes(), self.seed);
            expect(self.write_atomic(range, data).await, kind, range);
        }
        let short = self.random_data(self.block_bytes() - 1, self.seed);
        expect(self.write_atomic(range, short).await, ErrorKind::Unaligned, range);
        assert!(self.read_all().await == before, "a refused atomic write has changed something");
    }

    async fn write_atomic(
        &self,
        range: BlockRange,
        data: bytes::Bytes,
    ) -> Result<(), crate::Error> {
        let none = || crate::Error::new(ErrorKind::Medium, self.device.name(), "not atomic");
        self.device.atomic().ok_or_else(none)?.write_atomic(range, data, false).await
    }

    /// Checks that all bytes of `range` are equal.
    async fn check_one_writer(&self, range: BlockRange) {
        let bytes = self.read(range).await;
        let torn = || bytes.iter().position(|byte| *byte != bytes[0]);
        assert!(are_equal(&bytes), "an atomic write of {range:?} is torn at byte {:?}", torn());
    }

    fn one_value(&self, range: BlockRange, value: u8) -> bytes::Bytes {
        let mut data = self.pool.take(range.count as usize * self.block_bytes());
        data.fill(value);
        data.freeze()
    }

    async fn readers_see_all_or_nothing(&self, range: BlockRange) {
        self.write_atomic(range, self.one_value(range, 0)).await.unwrap();
        self.on_threads(move |subject, task| async move {
            let mut random = subject.seed ^ (task + 2000);
            for step in 0..STEPS {
                if random::next(&mut random).is_multiple_of(2) {
                    let data = subject.one_value(range, (task * STEPS + step) as u8);
                    subject.write_atomic(range, data).await.unwrap();
                } else {
                    subject.check_one_writer(range).await;
                }
            }
        })
        .await;
        self.check_one_writer(range).await;
    }

    /// Runs atomic writes and one other change of the same blocks concurrently, and checks that one
    /// of them came last as a whole.
    async fn write_concurrently(&self, range: BlockRange, round: u64) {
        self.on_threads(move |subject, task| async move {
            match (task, subject.device.sparse()) {
                (0, Some(sparse)) if round.is_multiple_of(3) => {
                    sparse.unmap(range, false).await.unwrap();
                }
                (0, Some(sparse)) if round % 3 == 1 => {
                    sparse.write_zeroes(range, false, false).await.unwrap();
                }
                (0, _) => {
                    let data = subject.one_value(range, 0xff);
                    subject.device.write(range, data, false).await.unwrap();
                }
                _ => {
                    let data = subject.one_value(range, task as u8);
                    subject.write_atomic(range, data).await.unwrap();
                }
            }
        })
        .await;
        self.check_one_writer(range).await;
    }
}
