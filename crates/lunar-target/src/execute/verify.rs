//! VERIFY and WRITE AND VERIFY.
//!
//! Both compare in pieces, between which other work of the core has its turn: 8 MiB in one piece
//! would take milliseconds.
//!
//! VERIFY locks no range, as READ locks none: it may last for seconds, since its pieces wait for
//! turns, and a command that needs the range exclusively would wait that long, with all other
//! commands behind. An atomic write may therefore come between two pieces. It must not be seen in
//! part: blocks compared before it and blocks compared after it need not have matched at any time.
//! If an atomic write may have come between two pieces, the next read begins early enough to
//! contain every atomic write across the border between the pieces.
//!
//! COMPARE AND WRITE and ORWRITE promise that nothing comes between their read and their write, not
//! that their blocks change all at once: VERIFY may find some of them changed, as READ may.

use super::{PIECE_BYTES, Run, Step, first_difference, miscompare};
use bytes::Bytes;
use lunar_block::Buffer;
use lunar_scsi::plan::{Compare, LbaRange};

impl Run<'_> {
    pub(super) async fn write_and_verify(
        &self,
        range: LbaRange,
        compare: Compare,
        data: Bytes,
    ) -> Step<()> {
        let buffer = self.take_buffer(self.compared_bytes(range)).await?;
        let guard = self.write_blocks(range, data.clone(), true).await?;
        if compare == Compare::Medium {
            drop(guard);
            return self.compare(range, compare, &data, buffer, 0).await;
        }
        // The range stays locked against commands that need it exclusively. The command continues
        // out of turn.
        self.compare(range, compare, &data, buffer, 0).await
    }

    pub(super) async fn verify(&self, range: LbaRange, compare: Compare, data: &[u8]) -> Step<()> {
        if range.count == 0 {
            self.check_generation()?;
            return self.enter();
        }
        let atomic_bytes = match self.device().atomic() {
            Some(atomic) if compare != Compare::Medium => atomic.limits().bytes_max.into(),
            _ => 0,
        };
        let buffer = self.take_buffer(self.compared_bytes(range)).await?;
        self.compare(range, compare, data, buffer, atomic_bytes / self.block_bytes).await
    }

    /// Number of bytes that [`compare`](Self::compare) reads at a time.
    fn compared_bytes(&self, range: LbaRange) -> usize {
        let piece_blocks = (PIECE_BYTES as u64 / self.block_bytes).max(1);
        self.bytes(LbaRange { count: range.count.min(piece_blocks), ..range })
    }

    /// Reads `range` in pieces, the first one into `buffer`, and compares them. Atomic writes of up
    /// to `atomic_blocks` may come between two pieces.
    async fn compare(
        &self,
        range: LbaRange,
        compare: Compare,
        data: &[u8],
        mut buffer: Buffer,
        atomic_blocks: u64,
    ) -> Step<()> {
        let piece_blocks = self.compared_bytes(range) as u64 / self.block_bytes;
        let mut done = 0;
        // Mark from before the last piece was read.
        let mut last_mark = None;
        while done < range.count {
            let count = piece_blocks.min(range.count - done);
            let mut again_blocks = 0;
            loop {
                self.abort.wait_to_move().await?;
                let mark = self.unit.ranges.exclusive_mark();
                if mark.is_none() || mark != last_mark {
                    again_blocks = atomic_blocks.min(done);
                }
                let first = done - again_blocks;
                let piece = LbaRange { lba: range.lba + first, count: count + again_blocks };
                if buffer.len() < self.bytes(piece) {
                    drop(buffer);
                    buffer = self.take_buffer(self.bytes(piece)).await?;
                }
                buffer.truncate(self.bytes(piece));
                buffer = self.read_blocks_into(piece, buffer).await?;
                lunar_net::count_moved(buffer.len());
                let at = (first * self.block_bytes) as usize;
                if let Some(offset) = self.difference(compare, at, &buffer, data) {
                    return Err(miscompare(offset as u64).into());
                }
                let has_seen_whole = again_blocks == atomic_blocks.min(done);
                if has_seen_whole || self.unit.ranges.exclusive_mark() == last_mark {
                    last_mark = mark;
                    break;
                }
            }
            done += count;
        }
        Ok(())
    }

    /// Offset at which `read`, which begins `at` bytes behind the start of the command, first
    /// differs from the command's data.
    fn difference(&self, compare: Compare, at: usize, read: &[u8], data: &[u8]) -> Option<usize> {
        let block = self.block_bytes as usize;
        let offset = match compare {
            Compare::Medium => None,
            Compare::Bytes => {
                first_difference(read, data.get(at..at + read.len()).unwrap_or_default())
            }
            Compare::OneBlock => read.chunks(block).enumerate().find_map(|(index, chunk)| {
                first_difference(chunk, data).map(|offset| index * block + offset)
            }),
        };
        offset.map(|offset| at + offset)
    }
}
