//! VERIFY and WRITE AND VERIFY.
//!
//! VERIFY locks no range, as READ locks none: it may last for seconds, since its pieces wait for
//! turns, and a command that needs the range exclusively would wait that long, with all other
//! commands behind.

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
        let reads_pieces = compare == Compare::Medium;
        let bytes = if reads_pieces { self.compared_bytes(range) } else { self.bytes(range) };
        let buffer = self.take(bytes).await?;
        let guard = self.put(range, data.clone(), true).await?;
        if reads_pieces {
            drop(guard);
            return self.compare(range, compare, &data, buffer).await.map(drop);
        }
        // In one piece, which waits for no turn: the range is locked.
        let current = self.get_into(range, buffer).await?;
        drop(guard);
        matches(self.difference(compare, 0, &current, &data))
    }

    /// Verifies `range` in pieces. If an atomic write may have come between two of them, so that
    /// the compared data was never on the medium at one time, the whole range is compared once
    /// more, read as one.
    pub(super) async fn verify(&self, range: LbaRange, compare: Compare, data: &[u8]) -> Step<()> {
        if range.count == 0 {
            self.check_generation()?;
            return self.enter();
        }
        let pieces_bytes = self.compared_bytes(range);
        let is_one_piece = pieces_bytes == self.bytes(range);
        let before = self.unit.ranges.exclusive_mark();
        if compare == Compare::Medium || is_one_piece || before.is_some() {
            let buffer = self.take(pieces_bytes).await?;
            let difference = self.compare(range, compare, data, buffer).await?;
            if compare == Compare::Medium
                || is_one_piece
                || self.unit.ranges.exclusive_mark() == before
            {
                return matches(difference);
            }
        }
        self.verify_as_one(range, compare, data).await
    }

    /// Reads all of `range` at once. That takes long, so it waits first for as many turns as
    /// reading in pieces would take.
    async fn verify_as_one(&self, range: LbaRange, compare: Compare, data: &[u8]) -> Step<()> {
        let buffer = self.take(self.bytes(range)).await?;
        for piece in buffer.chunks(PIECE_BYTES) {
            self.abort.may_move().await?;
            lunar_net::count_moved(piece.len());
        }
        let current = self.get_into(range, buffer).await?;
        matches(self.difference(compare, 0, &current, data))
    }

    /// Number of bytes that [`compare`](Self::compare) reads at a time.
    fn compared_bytes(&self, range: LbaRange) -> usize {
        let piece_blocks = (PIECE_BYTES as u64 / self.block_bytes).max(1);
        self.bytes(LbaRange { count: range.count.min(piece_blocks), ..range })
    }

    /// Reads `range` in pieces of the buffer's length; returns the offset of the first byte that
    /// differs.
    async fn compare(
        &self,
        range: LbaRange,
        compare: Compare,
        data: &[u8],
        mut buffer: Buffer,
    ) -> Step<Option<usize>> {
        let piece_blocks = buffer.len() as u64 / self.block_bytes;
        let mut done = 0;
        while done < range.count {
            let count = piece_blocks.min(range.count - done);
            let piece = LbaRange { lba: range.lba + done, count };
            buffer.truncate(self.bytes(piece));
            self.abort.may_move().await?;
            buffer = self.get_into(piece, buffer).await?;
            lunar_net::count_moved(buffer.len());
            let at = (done * self.block_bytes) as usize;
            if let Some(offset) = self.difference(compare, at, &buffer, data) {
                return Ok(Some(offset));
            }
            done += count;
        }
        Ok(None)
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

fn matches(difference: Option<usize>) -> Step<()> {
    difference.map_or(Ok(()), |offset| Err(miscompare(offset as u64).into()))
}
