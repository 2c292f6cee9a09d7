//! Search for the end of data in a file, in pieces of bounded time.
//!
//! `SEEK_HOLE` examines all data up to the next hole within one system call: each page of a file
//! in memory, 14 to 28 ms for each gigabyte, and each extent of a fragmented file. On a kernel
//! without preemption the thread keeps its processor meanwhile. The search therefore asks for the
//! extents of a window, then for its cached pages, and seeks the hole only if one of these tells
//! that it is near.

use super::disk::{Disk, InlineRead};
use super::unsafe_extent_queries::{cached_or_evicted_pages, written_extents_end};
use rustix::fs::SeekFrom;
use rustix::io::Errno;
use std::io;
use std::ops::Range;

/// Length of the window in which cached pages are counted: about a millisecond.
const WINDOW_BYTES: u64 = 64 << 20;

/// Maximum number of pages that are examined one at a time, on kernels without a query for cached
/// pages: about a millisecond.
const PROBED_PAGES_MAX: u64 = 4096;

impl Disk {
    /// Returns the end of a part of the data that begins at the start of `bytes`, and at most their
    /// end. More data may follow. Takes about a millisecond, except on file systems that support
    /// none of the queries.
    pub(super) fn data_end(&self, bytes: Range<u64>) -> io::Result<u64> {
        if let Ok(end) = written_extents_end(&self.file, &bytes)
            && end > bytes.start
        {
            return Ok(end.min(bytes.end));
        }
        let page = rustix::param::page_size() as u64;
        let window_end = (bytes.start + WINDOW_BYTES) / WINDOW_BYTES * WINDOW_BYTES;
        let window = bytes.start..window_end.min(bytes.end);
        let pages = window.end.div_ceil(page) - window.start / page;
        match cached_or_evicted_pages(&self.file, &window) {
            Ok(known) if known >= pages => Ok(window.end),
            Err(Errno::NOSYS) if self.inline_read == InlineRead::Always => {
                self.probe_pages(bytes, page)
            }
            // A hole is near, or it is sought by extents.
            _ => self.seek_hole(bytes),
        }
    }

    /// Examines one page after another; data that is in no page counts as a hole.
    fn probe_pages(&self, bytes: Range<u64>, page: u64) -> io::Result<u64> {
        let mut end = bytes.start;
        for _ in 0..PROBED_PAGES_MAX {
            if end >= bytes.end || self.seek_data(end..bytes.end)? > end {
                break;
            }
            end = end.saturating_add(1).next_multiple_of(page);
        }
        Ok(end.min(bytes.end))
    }

    /// Returns the start of the first hole in `bytes` as the file system reports it, or their end.
    fn seek_hole(&self, bytes: Range<u64>) -> io::Result<u64> {
        match rustix::fs::seek(&self.file, SeekFrom::Hole(bytes.start)) {
            Ok(hole) => Ok(hole.min(bytes.end)),
            Err(Errno::INVAL | Errno::OPNOTSUPP) => Ok(bytes.end),
            Err(errno) => Err(errno.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::tests::{Scratch, open_disk};
    use std::os::unix::fs::FileExt;

    /// Goal: pieces of data end where the data ends, whichever query finds it, and each piece makes
    /// progress. Method: data across windows, in pages and in parts of pages.
    #[test]
    fn pieces_cover_the_data() {
        const END: u64 = 2 * WINDOW_BYTES;
        let page = rustix::param::page_size() as u64;
        let data = [
            0..page,
            3 * page..WINDOW_BYTES + 5 * page,
            WINDOW_BYTES + 9 * page + 512..WINDOW_BYTES + 400 * page,
            END - page..END,
        ];
        let memory = std::path::Path::new("/dev/shm");
        let memory = memory.is_dir().then(|| Scratch::in_directory(memory));
        for scratch in std::iter::once(Scratch::new()).chain(memory) {
            let disk = open_disk(&scratch.options(END));
            for part in &data {
                let bytes = vec![1; (part.end - part.start) as usize];
                disk.file.write_all_at(&bytes, part.start).unwrap();
            }
            let searches: [&dyn Fn(Range<u64>) -> io::Result<u64>; 2] =
                [&|bytes| disk.data_end(bytes), &|bytes| disk.probe_pages(bytes, page)];
            for (part, search) in data.iter().flat_map(|part| searches.map(|search| (part, search)))
            {
                let mut at = part.start - part.start % page;
                while at < part.end {
                    let end = search(at..END).unwrap();
                    assert!(end > at && end <= part.end, "{part:?}, {at}: {end}");
                    at = end;
                }
            }
        }
    }
}
