//! Search for the first block of a failed transfer that cannot be read or written: SBC-3 requires
//! it in the INFORMATION field, and initiators repair or abandon the block that the field names.

use super::{Run, Stop, block_range, read_failed, write_failed};
use crate::ranges::RangeGuard;
use bytes::Bytes;
use lunar_block::ErrorKind;
use lunar_scsi::plan::LbaRange;
use std::time::{Duration, Instant};

/// Maximum number of tries: one per halving of the longest transfer, and one more.
const TRIES_MAX: u32 = 34;
/// Maximum time of a search: a failing disk may take seconds for each try.
const SEARCH_TIME_MAX: Duration = Duration::from_secs(5);

/// A binary search for the first bad block.
struct Search {
    /// Blocks among which the first bad one lies.
    candidates: LbaRange,
    /// True when a try has shown that one of the candidates, or a block before, fails.
    is_confirmed: bool,
    tries: u32,
    began: Instant,
}

impl Search {
    fn new(failed: LbaRange) -> Self {
        Self { candidates: failed, is_confirmed: true, tries: 0, began: Instant::now() }
    }

    /// Returns the next range to try; `None` if the block is found, or the search ends without one.
    fn next(&mut self) -> Option<LbaRange> {
        if self.candidates.count == 0
            || self.is_found()
            || self.tries >= TRIES_MAX
            || self.began.elapsed() > SEARCH_TIME_MAX
        {
            return None;
        }
        self.tries += 1;
        Some(LbaRange { count: self.candidates.count.div_ceil(2), ..self.candidates })
    }

    fn is_found(&self) -> bool {
        self.candidates.count == 1 && self.is_confirmed
    }

    /// Records the result of trying `range`.
    fn record(&mut self, range: LbaRange, failed: bool) {
        if failed {
            (self.candidates, self.is_confirmed) = (range, true);
        } else {
            self.candidates.lba += range.count;
            self.candidates.count -= range.count;
            // The whole range did fail; perhaps it no longer does.
            self.is_confirmed = false;
        }
    }

    /// Sets the range of `error` to the bad block, or to `None` if it is not certain.
    fn with_block(self, mut error: lunar_block::Error) -> lunar_block::Error {
        error.range = self.is_found().then(|| block_range(self.candidates));
        error
    }
}

/// True when the error names several blocks, and any of them may be the bad one.
fn is_ambiguous(error: &lunar_block::Error) -> bool {
    error.kind == ErrorKind::Medium && error.range.is_some_and(|range| range.count > 1)
}

impl Run<'_> {
    /// Converts `error` of reading `range`, with the first block that cannot be read.
    pub(super) async fn read_failed_at(&self, range: LbaRange, error: lunar_block::Error) -> Stop {
        if !is_ambiguous(&error) {
            return read_failed(error);
        }
        let mut search = Search::new(range);
        while let Some(part) = search.next() {
            // At most half of the memory that the command's data had before: it needs no
            // reservation of its own.
            let buffer = self.memory.buffers.take(self.bytes(part));
            let context = self.abort.io_context(self.memory.buffers.owner());
            let read = context.scope(self.device().read(block_range(part), buffer));
            match self.abort.unless(read).await {
                Ok(read) => search.record(part, read.is_err()),
                Err(aborted) => return aborted.into(),
            }
        }
        read_failed(search.with_block(error))
    }

    /// Converts `error` of writing `data` to `range`, with the first block that cannot be written.
    /// The search writes all blocks that can be written: the same data to the same blocks, under
    /// the same lock.
    pub(super) async fn write_failed_at(
        &self,
        mut guard: RangeGuard,
        range: LbaRange,
        data: &Bytes,
        error: lunar_block::Error,
    ) -> Stop {
        if !is_ambiguous(&error) {
            return write_failed(error);
        }
        let mut search = Search::new(range);
        while let Some(part) = search.next() {
            let at = self.bytes(LbaRange { count: part.lba - range.lba, ..range });
            let piece = data.slice(at..at + self.bytes(part));
            match self.change(guard, self.write_work(part, piece, false)).await {
                Ok((locked, done)) => {
                    guard = locked;
                    search.record(part, done.is_err());
                }
                Err(stop) => return stop,
            }
        }
        write_failed(search.with_block(error))
    }
}
