//! Byte ranges of a disk, independent of its blocks, shared by `read` and `write`.

use crate::output::{self, Failure};
use lunar_block::{BlockDevice, BlockRange};

/// Maximum number of bytes per request; a multiple of every block length.
const PIECE_BYTES_MAX: u64 = 1 << 20;

/// A range of bytes from `start` up to `end`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ByteSpan {
    /// First byte.
    pub start: u64,
    /// The byte after the last.
    pub end: u64,
}

impl ByteSpan {
    /// Splits the range into pieces at the boundaries of mebibytes.
    pub fn pieces(self) -> impl Iterator<Item = ByteSpan> {
        let mut start = self.start;
        std::iter::from_fn(move || {
            let boundary = (start / PIECE_BYTES_MAX + 1) * PIECE_BYTES_MAX;
            let piece = ByteSpan { start, end: boundary.min(self.end) };
            start = piece.end;
            (piece.start < piece.end).then_some(piece)
        })
    }

    /// The blocks that the range touches.
    pub fn blocks(self, block_bytes: u64) -> BlockRange {
        let first = self.start / block_bytes;
        BlockRange::new(first, self.end.div_ceil(block_bytes) - first)
    }

    /// Whether the range begins and ends at block boundaries.
    pub fn is_aligned(self, block_bytes: u64) -> bool {
        self.start.is_multiple_of(block_bytes) && self.end.is_multiple_of(block_bytes)
    }
}

/// The range of `length` bytes at `offset`; without a length, up to the end of the disk.
///
/// # Errors
/// Fails if the disk is too small.
pub fn span(
    device: &dyn BlockDevice,
    offset: u64,
    length: Option<u64>,
) -> Result<ByteSpan, Failure> {
    let size = device.geometry().size_bytes();
    let end = match length {
        Some(length) => offset.checked_add(length),
        None => Some(size.max(offset)),
    };
    match end {
        Some(end) if end <= size => Ok(ByteSpan { start: offset, end }),
        _ => Err(Failure::new(format!(
            "--offset and --length exceed the size of {}, {}",
            device.name(),
            output::size(size)
        ))
        .hint("choose a smaller --offset or --length")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_block::MemoryDevice;

    #[test]
    fn pieces_end_at_boundaries_and_cover_the_span() {
        let device = MemoryDevice::new(4 << 20, 512, 4096).unwrap();
        let whole = span(&device, 1000, Some((2 << 20) + 7)).unwrap();
        let pieces: Vec<_> = whole.pieces().collect();
        assert_eq!(pieces[0], ByteSpan { start: 1000, end: 1 << 20 });
        assert_eq!(pieces[1], ByteSpan { start: 1 << 20, end: 2 << 20 });
        assert_eq!(pieces[2], ByteSpan { start: 2 << 20, end: (2 << 20) + 1007 });
        assert_eq!(pieces.len(), 3);
        assert_eq!(pieces[2].blocks(512), BlockRange::new(4096, 2));
        assert_eq!(span(&device, 4 << 20, None).unwrap().pieces().count(), 0);
        for (offset, length) in [(5 << 20, None), (0, Some(5 << 20)), (u64::MAX, Some(2))] {
            assert!(span(&device, offset, length).is_err());
        }
    }
}
