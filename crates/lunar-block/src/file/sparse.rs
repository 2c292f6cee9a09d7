//! Deallocation, zeroing, and maps of allocated blocks.

use super::clear::{DATA_PIECE_BYTES_MAX, PieceSize};
use super::disk::Disk;
use crate::extents::Extents;
use crate::{BlockRange, Error, Extent, ExtentState, SpaceUsage};
use rustix::fs::{Advice, FallocateFlags, SeekFrom};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::num::NonZeroU64;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::time::Instant;

/// Maximum number of bytes that one prefetch reads, because other users share the cache.
const PREFETCH_BYTES_MAX: u64 = 64 << 20;

/// Length of the pieces in which zeroes are written without kernel support.
const ZEROES_BYTES: usize = 1 << 20;

/// Ranges that are still to be deallocated or zeroed, in order.
#[derive(Debug)]
pub(super) struct UnfinishedClear {
    /// Each range, with the bytes of it that are not cleared yet.
    ranges: VecDeque<(BlockRange, Range<u64>)>,
    deallocate: bool,
    size: PieceSize,
}

impl UnfinishedClear {
    /// Returns the range that is cleared next; `None` when all are cleared.
    pub(super) fn next_range(&self) -> Option<BlockRange> {
        self.ranges.front().map(|(range, _)| *range)
    }
}

/// A map of allocated blocks that is not complete.
pub(super) struct UnfinishedMap {
    range: BlockRange,
    /// The bytes that are not mapped yet.
    left: Range<u64>,
    extents: Extents,
}

impl UnfinishedMap {
    pub(super) fn is_over(&self) -> bool {
        self.left.is_empty() || self.extents.full
    }

    pub(super) fn into_extents(self) -> Vec<Extent> {
        self.extents.done
    }
}

impl Disk {
    /// Creates a clear that has not begun.
    pub(super) fn unfinished_clear(
        &self,
        ranges: &[(BlockRange, Range<u64>)],
        deallocate: bool,
    ) -> UnfinishedClear {
        let size = PieceSize::new(u64::from(self.granularity_bytes));
        UnfinishedClear { ranges: ranges.iter().cloned().collect(), deallocate, size }
    }

    /// Continues a clear to its end, or to the end of a piece after which `must_stop` returns true.
    /// At least one piece is cleared.
    pub(super) fn continue_clear(
        &self,
        clear: &mut UnfinishedClear,
        must_stop: impl Fn() -> bool,
    ) -> Result<(), Error> {
        let deallocate = clear.deallocate;
        let clear_piece = |piece: &Range<u64>| match deallocate {
            true => self.deallocate(piece),
            false => self.zero(piece),
        };
        while let Some((range, bytes)) = clear.ranges.front_mut() {
            let cleared = self.clear_sectors(bytes, &mut clear.size, clear_piece, &must_stop);
            cleared.map_err(|error| self.failed("zeroing failed", *range, error))?;
            let range_ended = bytes.is_empty();
            if range_ended {
                clear.ranges.pop_front();
            }
            if !range_ended || must_stop() {
                break;
            }
        }
        Ok(())
    }

    /// Makes `bytes` read as zeroes and deallocates their space if the disk is thin.
    fn deallocate(&self, bytes: &Range<u64>) -> io::Result<()> {
        if !self.thin {
            return self.zero(bytes);
        }
        match self.fallocate(FallocateFlags::PUNCH_HOLE, bytes) {
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => self.zero(bytes),
            done => Ok(done?),
        }
    }

    /// Makes `bytes` read as zeroes and keeps their space allocated.
    fn zero(&self, bytes: &Range<u64>) -> io::Result<()> {
        match self.fallocate(FallocateFlags::ZERO_RANGE, bytes) {
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => self.write_zeroes(bytes),
            done => Ok(done?),
        }
    }

    /// Clears the whole sectors of `bytes` piece by piece, and writes zeroes to parts of a sector,
    /// which a block device cannot clear. Stops between two pieces if `must_stop` returns true.
    /// Afterwards, `bytes` is the part that is left.
    pub(super) fn clear_sectors(
        &self,
        bytes: &mut Range<u64>,
        size: &mut PieceSize,
        clear: impl Fn(&Range<u64>) -> io::Result<()>,
        must_stop: impl Fn() -> bool,
    ) -> io::Result<()> {
        let sector = u64::from(self.sector_bytes);
        let start = bytes.start.next_multiple_of(sector);
        let end = bytes.end - bytes.end % sector;
        if start >= end {
            self.write_zeroes(bytes)?;
            bytes.start = bytes.end;
            return Ok(());
        }
        self.write_zeroes(&(bytes.start..start))?;
        bytes.start = start;
        while bytes.start < end {
            let piece = bytes.start..self.piece_end(bytes.start..end, size);
            self.clears.pause();
            let guard = self.clears.begin_piece();
            let began = Instant::now();
            clear(&piece)?;
            let took = began.elapsed();
            drop(guard);
            self.clears.count_held(took);
            size.adapt(piece.end - piece.start, took);
            bytes.start = piece.end;
            if bytes.start < end && must_stop() {
                return Ok(());
            }
        }
        self.write_zeroes(bytes)?;
        bytes.start = bytes.end;
        Ok(())
    }

    /// Returns the end of the next piece, which begins at the start of `bytes`.
    fn piece_end(&self, bytes: Range<u64>, size: &mut PieceSize) -> u64 {
        let Range { start, end } = bytes;
        // The end is aligned, so that whole units are deallocated.
        let end_of = |bytes: u64| end.min(start.saturating_add(1).next_multiple_of(bytes));
        let long = end_of(size.bytes());
        if self.sector_bytes > 1 || long - start <= DATA_PIECE_BYTES_MAX {
            return long;
        }
        // An unknown state counts as data.
        let data = self.seek_data(start..long).unwrap_or(start);
        if data >= long {
            return long;
        }
        size.limit_to_data();
        let whole = data - data % size.bytes();
        if whole > start { whole } else { end_of(size.bytes()) }
    }

    fn write_zeroes(&self, bytes: &Range<u64>) -> io::Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        let zeroes =
            self.bounce().take_zeroed(ZEROES_BYTES.min((bytes.end - bytes.start) as usize));
        for piece in steps(bytes, ZEROES_BYTES as u64) {
            self.write(&piece, &zeroes[..(piece.end - piece.start) as usize])?;
        }
        Ok(())
    }

    /// Calls fallocate(2), which for block devices discards or writes zeroes.
    fn fallocate(&self, flags: FallocateFlags, bytes: &Range<u64>) -> Result<(), Errno> {
        let _guard = self.ranges.lock(bytes, true);
        let flags = flags | FallocateFlags::KEEP_SIZE;
        loop {
            match rustix::fs::fallocate(&self.file, flags, bytes.start, bytes.end - bytes.start) {
                Err(Errno::INTR) => {}
                done => return done,
            }
        }
    }

    /// Creates a map of `bytes` with no more than `extents_max` extents. If the file system cannot
    /// report the state of blocks, all are mapped.
    pub(super) fn unfinished_map(
        &self,
        range: BlockRange,
        bytes: Range<u64>,
        extents_max: usize,
    ) -> UnfinishedMap {
        let extents = Extents::new(self.geometry().block_bytes.into(), extents_max);
        UnfinishedMap { range, left: bytes, extents }
    }

    /// Continues a map to its end, or to the end of a piece after which `must_stop` returns true.
    /// At least one piece is added.
    pub(super) fn continue_map(
        &self,
        map: &mut UnfinishedMap,
        must_stop: impl Fn() -> bool,
    ) -> Result<(), Error> {
        let block = u64::from(self.geometry().block_bytes);
        while !map.is_over() {
            let (data, end) = self.next_data(map.left.clone()).map_err(|error| {
                self.failed("the map of the file cannot be read", map.range, error)
            })?;
            // A block that contains any data counts as data.
            let data = data - data % block;
            let end = end.next_multiple_of(block).min(map.left.end);
            map.extents.push(map.left.start..data, ExtentState::Unmapped);
            map.extents.push(data..end, ExtentState::Mapped);
            map.left.start = end;
            if must_stop() {
                break;
            }
        }
        Ok(())
    }

    /// Returns the start and end of the first data in `bytes`, or of the first part of this data.
    /// Both are the end of `bytes` if there is no data.
    fn next_data(&self, bytes: Range<u64>) -> io::Result<(u64, u64)> {
        let data = if self.thin { self.seek_data(bytes.clone())? } else { bytes.start };
        if !self.thin || data >= bytes.end {
            return Ok((data, bytes.end));
        }
        Ok((data, self.data_end(data..bytes.end)?))
    }

    /// Returns the start of the first data in `bytes` as the file system reports it, or their end.
    /// An unknown state counts as data. This takes little time, unlike the search for its end.
    pub(super) fn seek_data(&self, bytes: Range<u64>) -> io::Result<u64> {
        match rustix::fs::seek(&self.file, SeekFrom::Data(bytes.start)) {
            Ok(data) => Ok(data.min(bytes.end)),
            Err(Errno::NXIO) => Ok(bytes.end),
            Err(Errno::INVAL | Errno::OPNOTSUPP) => Ok(bytes.start),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Returns the space usage of a thin file: its own blocks, and the df(1) figures of its file
    /// system. Returns `None` for block devices, and for files whose space is allocated anyway.
    pub(super) fn space_usage(&self) -> io::Result<Option<SpaceUsage>> {
        let is_thin_file = self.thin && self.sector_bytes == 1;
        is_thin_file.then(|| space_usage(&self.file)).transpose()
    }

    /// Makes the kernel drop cached data that is written back, so that later reads come from the
    /// medium.
    pub(super) fn drop_cache(&self) -> io::Result<()> {
        Ok(rustix::fs::fadvise(&self.file, 0, None, Advice::DontNeed)?)
    }

    /// Makes the kernel read the beginning of `bytes` into its cache.
    pub(super) fn prefetch(&self, bytes: &Range<u64>) {
        let len = (bytes.end - bytes.start).min(PREFETCH_BYTES_MAX);
        let Some(len) = NonZeroU64::new(len) else { return };
        // This is a hint: a failure changes no result.
        let _ = rustix::fs::fadvise(&self.file, bytes.start, Some(len), Advice::WillNeed);
    }
}

/// Returns the blocks of a file, and the df(1) figures of its file system.
pub(super) fn space_usage(file: &File) -> io::Result<SpaceUsage> {
    const STAT_BLOCK_BYTES: u64 = 512; // stat(2): st_blocks
    let system = rustix::fs::fstatvfs(file)?;
    let bytes = |fragments: u64| fragments.saturating_mul(system.f_frsize);
    let taken = system.f_blocks.saturating_sub(system.f_bfree);
    Ok(SpaceUsage {
        used_bytes: file.metadata()?.blocks().saturating_mul(STAT_BLOCK_BYTES),
        available_bytes: bytes(system.f_bavail),
        total_bytes: bytes(taken.saturating_add(system.f_bavail)),
    })
}

/// Splits `bytes` into pieces of `step` bytes.
pub(super) fn steps(bytes: &Range<u64>, step: u64) -> impl Iterator<Item = Range<u64>> {
    let end = bytes.end;
    let mut at = bytes.start;
    std::iter::from_fn(move || {
        let start = at;
        at = end.min(start + step);
        (start < end).then_some(start..at)
    })
}
