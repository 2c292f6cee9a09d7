//! Transfers that bypass the page cache (O_DIRECT).

use super::disk::{Disk, read_fully, write_fully};
use super::sparse::steps;
use std::io;
use std::ops::Range;

/// Length of a bounce buffer piece, a multiple of every alignment. Transfers that are not aligned
/// for direct I/O go through an aligned buffer in such pieces, so a worker thread needs this much
/// memory, however long the transfer is.
const BOUNCE_PIECE_BYTES: u64 = 1 << 20;

/// Alignment that direct I/O on a file requires.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct DirectAlignment {
    /// Alignment of the buffer's address, in bytes.
    pub(super) memory_bytes: u32,
    /// Alignment of offset and length, in bytes; a power of two.
    pub(super) offset_bytes: u32,
}

impl DirectAlignment {
    /// Returns `bytes` expanded to an aligned range.
    fn expanded(self, bytes: &Range<u64>) -> Range<u64> {
        let unit = u64::from(self.offset_bytes);
        bytes.start - bytes.start % unit..bytes.end.next_multiple_of(unit)
    }

    /// Returns true when `bytes` can be transferred directly from or to `buffer`.
    pub(super) fn is_direct(self, bytes: &Range<u64>, buffer: &[u8]) -> bool {
        self.expanded(bytes) == *bytes && self.is_aligned(buffer)
    }

    fn is_aligned(self, buffer: &[u8]) -> bool {
        buffer.as_ptr().addr().is_multiple_of(self.memory_bytes as usize)
    }
}

impl Disk {
    /// Reads directly if offset, length and buffer are aligned, and through an aligned buffer
    /// otherwise.
    pub(super) fn read_direct(
        &self,
        alignment: DirectAlignment,
        bytes: &Range<u64>,
        into: &mut [u8],
    ) -> io::Result<()> {
        let around = alignment.expanded(bytes);
        let _guard = self.ranges.lock(bytes, false);
        if around == *bytes && alignment.is_aligned(into) {
            return read_fully(&self.file, into, bytes.start);
        }
        for piece in steps(&around, BOUNCE_PIECE_BYTES) {
            let mut bounce = self.bounce().take((piece.end - piece.start) as usize);
            read_fully(&self.file, &mut bounce, piece.start)?;
            let part = overlap(&piece, bytes);
            let from = &bounce[position_in(&part, piece.start)];
            into[position_in(&part, bytes.start)].copy_from_slice(from);
        }
        Ok(())
    }

    /// Writes directly if offset, length and buffer are aligned. Otherwise writes through an
    /// aligned buffer, after reading its first and last units (read-modify-write). The whole
    /// aligned range is locked meanwhile, so that no concurrent write to these units is lost.
    pub(super) fn write_direct(
        &self,
        alignment: DirectAlignment,
        bytes: &Range<u64>,
        from: &[u8],
    ) -> io::Result<()> {
        let around = alignment.expanded(bytes);
        let _guard = self.ranges.lock(&around, true);
        self.check_still_within(bytes)?;
        if around == *bytes && alignment.is_aligned(from) {
            return write_fully(&self.file, from, bytes.start);
        }
        let unit = alignment.offset_bytes as usize;
        for piece in steps(&around, BOUNCE_PIECE_BYTES) {
            let mut bounce = self.bounce().take((piece.end - piece.start) as usize);
            let part = overlap(&piece, bytes);
            if piece.start < part.start {
                read_fully(&self.file, &mut bounce[..unit], piece.start)?;
            }
            if part.end < piece.end {
                let last = bounce.len() - unit;
                read_fully(&self.file, &mut bounce[last..], piece.end - unit as u64)?;
            }
            bounce[position_in(&part, piece.start)]
                .copy_from_slice(&from[position_in(&part, bytes.start)]);
            write_fully(&self.file, &bounce, piece.start)?;
        }
        Ok(())
    }
}

fn overlap(a: &Range<u64>, b: &Range<u64>) -> Range<u64> {
    a.start.max(b.start)..a.end.min(b.end)
}

/// Returns the position of `bytes` in a buffer that begins at `start`.
fn position_in(bytes: &Range<u64>, start: u64) -> Range<usize> {
    (bytes.start - start) as usize..(bytes.end - start) as usize
}
