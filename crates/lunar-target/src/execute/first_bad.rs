//! Search for the first block of a failed transfer that cannot be read or written: SBC-3 requires
//! it in the INFORMATION field, and initiators repair or give up the block that the field names.

use super::{Run, Stop, block_range, read_failed, write_failed};
use crate::ranges::RangeGuard;
use bytes::Bytes;
use lunar_block::ErrorKind;
use lunar_scsi::plan::LbaRange;
use std::time::{Duration, Instant};

/// Limit of tries: the halvings of the longest transfer, and a last try.
const TRIES_MAX: u32 = 34;
/// Time limit of a search: a failing disk may take seconds for each try.
const SEARCH_MAX: Duration = Duration::from_secs(5);

/// The blocks among which the first bad one lies.
struct Search {
    left: LbaRange,
    /// True when a try has shown that one of these blocks, or one before, fails.
    seen: bool,
    tries: u32,
    began: Instant,
}

impl Search {
    fn new(failed: LbaRange) -> Self {
        Self { left: failed, seen: true, tries: 0, began: Instant::now() }
    }

    /// The next range to try; `None` if the block is found, or cannot be.
    fn next(&mut self) -> Option<LbaRange> {
        if self.left.count == 0
            || self.is_found()
            || self.tries >= TRIES_MAX
            || self.began.elapsed() > SEARCH_MAX
        {
            return None;
        }
        self.tries += 1;
        Some(LbaRange { count: self.left.count.div_ceil(2), ..self.left })
    }

    fn is_found(&self) -> bool {
        self.left.count == 1 && self.seen
    }

    fn tried(&mut self, tried: LbaRange, failed: bool) {
        if failed {
            (self.left, self.seen) = (tried, true);
        } else {
            self.left.lba += tried.count;
            self.left.count -= tried.count;
            // The whole range did fail; perhaps it no longer does.
            self.seen = false;
        }
    }

    /// Adds the bad block to the error, or no block if it is not certain.
    fn told(self, mut error: lunar_block::Error) -> lunar_block::Error {
        error.range = self.is_found().then(|| block_range(self.left));
        error
    }
}

/// True when the error leaves open which of several blocks failed.
fn is_open(error: &lunar_block::Error) -> bool {
    error.kind == ErrorKind::Medium && error.range.is_some_and(|range| range.count > 1)
}

impl Run<'_> {
    /// Converts `error` of reading `range`, with the first block that cannot be read.
    pub(super) async fn read_failed_at(&self, range: LbaRange, error: lunar_block::Error) -> Stop {
        if !is_open(&error) {
            return read_failed(error).into();
        }
        let mut search = Search::new(range);
        while let Some(part) = search.next() {
            // At most half of the memory that the command held before: it needs no reservation of
            // its own.
            let buffer = self.memory.buffers.take(self.bytes(part));
            let context = self.abort.io_context(self.memory.buffers.owner());
            let read = context.scope(self.device().read(block_range(part), buffer));
            match self.abort.unless(read).await {
                Ok(read) => search.tried(part, read.is_err()),
                Err(aborted) => return aborted.into(),
            }
        }
        read_failed(search.told(error)).into()
    }

    /// Converts `error` of writing `data` to `range`, with the first block that cannot be written.
    /// The blocks that can be written are written: the same data at the same place, under the same
    /// lock.
    pub(super) async fn write_failed_at(
        &self,
        mut guard: RangeGuard,
        range: LbaRange,
        data: &Bytes,
        error: lunar_block::Error,
    ) -> Stop {
        if !is_open(&error) {
            return write_failed(error).into();
        }
        let mut search = Search::new(range);
        while let Some(part) = search.next() {
            let at = self.bytes(LbaRange { count: part.lba - range.lba, ..range });
            let piece = data.slice(at..at + self.bytes(part));
            match self.change(guard, self.write_work(part, piece, false)).await {
                Ok((locked, done)) => {
                    guard = locked;
                    search.tried(part, done.is_err());
                }
                Err(stop) => return stop,
            }
        }
        write_failed(search.told(error)).into()
    }
}
