//! Splits a disk into data and holes.

use super::super::transfer::ByteSpan;
use lunar_block::{BlockDevice, BlockRange, Error, Extent, ExtentState};
use std::collections::VecDeque;

/// Maximum size of a transfer of data; a multiple of every block length.
const DATA_BYTES_MAX: u64 = 1 << 20;
/// Maximum size of a hole.
const HOLE_BYTES_MAX: u64 = 64 << 20;
/// Maximum number of extents in one query.
const EXTENTS_MAX: usize = 1024;

/// A range of bytes that is either data or a hole.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct SpanRun {
    /// The range.
    pub span: ByteSpan,
    /// Whether the range reads as zeroes.
    pub hole: bool,
}

/// Iterates over a part of a disk in pieces.
pub struct Walk<'d> {
    device: &'d dyn BlockDevice,
    /// Alignment that fits the blocks of both disks.
    align_bytes: u64,
    /// The part without queried extents.
    rest: ByteSpan,
    known: VecDeque<SpanRun>,
}

impl<'d> Walk<'d> {
    /// Starts at the beginning of `part`, which begins and ends at multiples of `align_bytes`.
    pub fn over(device: &'d dyn BlockDevice, part: ByteSpan, align_bytes: u64) -> Self {
        Self { device, align_bytes, rest: part, known: VecDeque::new() }
    }

    /// The next piece; `None` at the end.
    ///
    /// # Errors
    /// Returns errors of the device.
    pub async fn next(&mut self) -> Result<Option<SpanRun>, Error> {
        if self.known.is_empty() && self.rest.start < self.rest.end {
            self.ask().await?;
        }
        let Some(run) = self.known.front_mut() else { return Ok(None) };
        let bytes_max = if run.hole { HOLE_BYTES_MAX } else { DATA_BYTES_MAX };
        let border = (run.span.start / bytes_max + 1) * bytes_max;
        if border >= run.span.end {
            return Ok(self.known.pop_front());
        }
        let piece = SpanRun { span: ByteSpan { end: border, ..run.span }, ..*run };
        run.span.start = border;
        Ok(Some(piece))
    }

    async fn ask(&mut self) -> Result<(), Error> {
        let Some(sparse) = self.device.sparse() else {
            self.known.push_back(SpanRun { span: self.rest, hole: false });
            self.rest.start = self.rest.end;
            return Ok(());
        };
        let block_bytes = u64::from(self.device.geometry().block_bytes);
        let extents = sparse.status(self.rest.blocks(block_bytes), EXTENTS_MAX).await?;
        let runs = aligned(self.rest, &extents, block_bytes, self.align_bytes);
        self.rest.start = runs.back().map_or(self.rest.end, |run| run.span.end);
        self.known = runs;
        Ok(())
    }
}

/// Converts `extents` at the beginning of `rest` to consecutive runs; holes that are not aligned
/// are shrunk.
fn aligned(
    rest: ByteSpan,
    extents: &[Extent],
    block_bytes: u64,
    align_bytes: u64,
) -> VecDeque<SpanRun> {
    let mut runs = VecDeque::new();
    let mut at = rest.start;
    let data = |runs: &mut VecDeque<SpanRun>, start: u64, end: u64| {
        if start < end {
            runs.push_back(SpanRun { span: ByteSpan { start, end }, hole: false });
        }
    };
    let mut told_end = at;
    for extent in extents {
        let BlockRange { lba, count } = extent.range;
        told_end = lba.saturating_add(count).saturating_mul(block_bytes).min(rest.end);
        if extent.state != ExtentState::Unmapped {
            continue;
        }
        // The start is limited to the current position and the end of `rest`, whatever the device
        // reports; the end of `rest` is aligned, so the rounded start does not exceed it.
        let start = lba.saturating_mul(block_bytes).max(at).min(rest.end);
        let start = start.next_multiple_of(align_bytes);
        let end = told_end / align_bytes * align_bytes;
        if start < end {
            data(&mut runs, at, start);
            runs.push_back(SpanRun { span: ByteSpan { start, end }, hole: true });
            at = end;
        }
    }
    // If a device reports no extents, the whole range counts as data.
    let told_end = if told_end <= rest.start { rest.end } else { told_end };
    data(&mut runs, at, told_end.next_multiple_of(align_bytes).min(rest.end));
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extent(lba: u64, count: u64, state: ExtentState) -> Extent {
        Extent { range: BlockRange::new(lba, count), state }
    }

    /// Goal: runs are consecutive and aligned to the blocks of both disks; no data lies in a hole.
    #[test]
    fn holes_shrink_to_whole_blocks() {
        use ExtentState::{Mapped, Unmapped};
        let rest = ByteSpan { start: 0, end: 64 << 10 };
        let extents = [
            extent(0, 9, Mapped),    // to 4608
            extent(9, 23, Unmapped), // to 16384: a hole from 8192 on
            extent(32, 1, Mapped),   // to 16896
            extent(33, 8, Unmapped), // to 20992: no whole block of 4096
            extent(41, 7, Mapped),   // to 24576
            extent(48, 40, Unmapped),
        ];
        let runs: Vec<_> = aligned(rest, &extents, 512, 4096).into_iter().collect();
        let run = |start, end, hole| SpanRun { span: ByteSpan { start, end }, hole };
        let wanted = [
            run(0, 8192, false),
            run(8192, 16384, true),
            run(16384, 24576, false),
            run(24576, 45056, true),
        ];
        assert_eq!(runs, wanted);
        let whole = |extents: &[Extent]| aligned(rest, extents, 512, 4096);
        assert_eq!(whole(&[]), [run(0, 64 << 10, false)], "ranges reported as zeroes hold no data");
        assert_eq!(whole(&[extent(0, u64::MAX, Unmapped)]), [run(0, 64 << 10, true)]);
        assert_eq!(whole(&[extent(u64::MAX, 9, Unmapped)]), [run(0, 64 << 10, false)]);
    }
}
