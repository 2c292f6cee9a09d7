//! Transfers past the page cache (O_DIRECT).

use super::disk::{Disk, read_fully, write_fully};
use std::io;
use std::ops::Range;

/// What direct I/O on a file wants to be a multiple of what.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct DirectAlignment {
    /// Address of the buffer, in bytes.
    pub(super) memory_bytes: u32,
    /// Offset and length, in bytes; a power of two.
    pub(super) offset_bytes: u32,
}

impl DirectAlignment {
    /// `bytes`, grown to what can be transferred.
    fn around(self, bytes: &Range<u64>) -> Range<u64> {
        let unit = u64::from(self.offset_bytes);
        bytes.start - bytes.start % unit..bytes.end.next_multiple_of(unit)
    }

    /// Whether `bytes` can go as they are from or to `buffer`.
    pub(super) fn takes(self, bytes: &Range<u64>, buffer: &[u8]) -> bool {
        self.around(bytes) == *bytes && self.fits(buffer)
    }

    fn fits(self, buffer: &[u8]) -> bool {
        buffer.as_ptr().addr().is_multiple_of(self.memory_bytes as usize)
    }
}

impl Disk {
    /// Reads as it is where offset, length and buffer allow, else by way of a larger, aligned
    /// buffer.
    pub(super) fn read_direct(
        &self,
        alignment: DirectAlignment,
        bytes: &Range<u64>,
        into: &mut [u8],
    ) -> io::Result<()> {
        let around = alignment.around(bytes);
        let _guard = self.ranges.lock(bytes, false);
        if around == *bytes && alignment.fits(into) {
            return read_fully(&self.file, into, bytes.start);
        }
        let mut bounce = self.bounce.take((around.end - around.start) as usize);
        read_fully(&self.file, &mut bounce, around.start)?;
        let skip = (bytes.start - around.start) as usize;
        into.copy_from_slice(&bounce[skip..][..into.len()]);
        Ok(())
    }

    /// Writes as it is where offset, length and buffer allow; else by way of an aligned buffer,
    /// whose borders are read before. Those are held meanwhile, lest a neighbour's write between is
    /// lost.
    pub(super) fn write_direct(
        &self,
        alignment: DirectAlignment,
        bytes: &Range<u64>,
        from: &[u8],
    ) -> io::Result<()> {
        let around = alignment.around(bytes);
        let _guard = self.ranges.lock(&around, true);
        self.still_there(bytes)?;
        if around == *bytes && alignment.fits(from) {
            return write_fully(&self.file, from, bytes.start);
        }
        let unit = alignment.offset_bytes as usize;
        let mut bounce = self.bounce.take((around.end - around.start) as usize);
        if around.start < bytes.start {
            read_fully(&self.file, &mut bounce[..unit], around.start)?;
        }
        if bytes.end < around.end {
            let last = bounce.len() - unit;
            read_fully(&self.file, &mut bounce[last..], around.end - unit as u64)?;
        }
        let skip = (bytes.start - around.start) as usize;
        bounce[skip..][..from.len()].copy_from_slice(from);
        write_fully(&self.file, &bounce, around.start)
    }
}
