//! Zeroes and deallocates long ranges in stretches, each of which is done in pieces.

#[cfg(test)]
mod tests;

use super::piece::Piece;
use super::{MemoryDevice, atomic, chunks};
use crate::{BlockRange, Clear, Error};
use std::ops::Range;

/// Length of the stretches into which a longer range is divided. Whole atomic writes may come
/// between two stretches, and no stretch tears an atomic write.
pub(super) const STRETCH_BYTES: u64 = atomic::ATOMIC_BYTES_MAX as u64;

/// Maximum number of restarts of a stretch. After that the stretch is done in one piece; otherwise
/// other writers could make it restart without end.
pub(super) const RESTARTS_MAX: u32 = 2;

impl MemoryDevice {
    /// Frees whole pages and zeroes parts of pages. Chunks that do not exist cost nothing, however
    /// long the range is.
    pub(super) async fn deallocate(&self, range: BlockRange) -> Result<(), Error> {
        let bytes = self.geometry.get().checked_range(&self.name, range)?;
        let mut piece = Piece::default();
        let mut at = bytes.start;
        while at < bytes.end {
            let stretch = stretch(at..bytes.end);
            at = stretch.end;
            self.change(range, stretch, &mut piece, |chunk| self.clear_chunk(chunk)).await?;
            at = self.next_existing(at..bytes.end, &mut piece);
        }
        Ok(())
    }

    /// Writes zeroes to `range`.
    pub(super) async fn zero(&self, range: BlockRange) -> Result<(), Error> {
        let bytes = self.geometry.get().checked_range(&self.name, range)?;
        let mut piece = Piece::default();
        let mut at = bytes.start;
        while at < bytes.end {
            let stretch = stretch(at..bytes.end);
            at = stretch.end;
            self.change(range, stretch, &mut piece, |chunk| self.zero_chunk(chunk)).await?;
        }
        Ok(())
    }

    /// Clears the first of these ranges until one piece is done; returns the first block behind the
    /// cleared ones. Atomic writes of several chunks come before or after the piece.
    pub(super) fn clear_piece_now(
        &self,
        ranges: &[BlockRange],
        clear: Clear,
    ) -> Result<u64, Error> {
        let deallocates = clear != Clear::Zero { may_unmap: false };
        let mut piece = Piece::default();
        let mut done = 0;
        for range in ranges {
            let fence = self.share_fence_over(*range);
            let bytes = self.geometry.get().checked_range(&self.name, *range)?;
            let mut at = bytes.start;
            while at < bytes.end && !piece.is_over() {
                let stretch = stretch(at..bytes.end);
                for chunk in chunks(stretch.clone()) {
                    at = chunk.end;
                    let clear_chunk =
                        if deallocates { Self::clear_chunk } else { Self::zero_chunk };
                    piece.count(clear_chunk(self, chunk));
                    if piece.is_over() {
                        break;
                    }
                }
                if deallocates && at == stretch.end {
                    at = self.next_existing(at..bytes.end, &mut piece);
                }
            }
            drop(fence);
            done = at / u64::from(self.geometry.get().block_bytes);
            if at < bytes.end {
                break;
            }
        }
        Ok(done)
    }

    /// Calls `change`, which returns its cost, for each chunk of `stretch`, a part of `range`.
    ///
    /// If an atomic write comes between two pieces and crosses the boundary between them, only its
    /// part before that boundary would survive. The stretch then restarts, as if all of it came
    /// after the write.
    async fn change(
        &self,
        range: BlockRange,
        stretch: Range<u64>,
        piece: &mut Piece,
        change: impl Fn(Range<u64>) -> u32,
    ) -> Result<(), Error> {
        let (mut at, mut crossings, mut restarts) = (stretch.start, None, 0);
        while at < stretch.end {
            piece.yield_after_piece().await.map_err(|e| self.cancelled(e))?;
            let fence = self.share_fence(&stretch);
            self.geometry.get().checked_range(&self.name, range)?;
            let count = |at| fence.as_ref().map(|crossings| crossings.of(at));
            if at > stretch.start && count(at) != crossings {
                (at, restarts) = (stretch.start, restarts + 1);
            }
            for chunk in chunks(at..stretch.end) {
                at = chunk.end;
                piece.count(change(chunk));
                if piece.is_over() && restarts < RESTARTS_MAX {
                    break;
                }
            }
            crossings = count(at);
        }
        Ok(())
    }
}

/// Returns the first part of `bytes`, at most one stretch long.
fn stretch(bytes: Range<u64>) -> Range<u64> {
    bytes.start..bytes.end.min(bytes.start.saturating_add(STRETCH_BYTES))
}
