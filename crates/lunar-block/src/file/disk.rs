//! Blocking operations on a file: done inline if they are quick, by a worker otherwise.

use super::backing::Backing;
use super::clear::ClearCoordinator;
use super::direct::DirectAlignment;
use super::inline_writes::DiskWrites;
use super::ranges::{ByteRangeGuard, RangeLock};
use crate::resize::ResizableGeometry;
use crate::{BlockRange, BufferPool, Error, ErrorKind, Geometry};
use rustix::io::{Errno, ReadWriteFlags};
use std::fs::File;
use std::io::{self, IoSliceMut};
use std::ops::Range;
use std::sync::{Arc, OnceLock};

/// Maximum length of an inline transfer; longer ones go to a worker, so that they do not delay
/// other work of the core.
pub(super) const INLINE_BYTES_MAX: usize = 1 << 20;

/// Number of times that an inline transfer tries to lock its range before it leaves the wait to a
/// worker. Most holders release their range within a microsecond.
const INLINE_TRIES_MAX: u32 = 64;

/// The method of reading cached data without blocking.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum InlineRead {
    /// `RWF_NOWAIT` reports data that is not cached.
    NoWait,
    /// The file lies in memory, so reads never block.
    Always,
    /// Cached data cannot be recognized: workers read.
    Never,
}

/// An open file or block device.
#[derive(Debug)]
pub(super) struct Disk {
    pub(super) name: Arc<str>,
    pub(super) file: File,
    pub(super) geometry: ResizableGeometry,
    pub(super) read_only: bool,
    pub(super) thin: bool,
    /// Alignment of direct I/O; if present, the page cache is bypassed.
    pub(super) direct: Option<DirectAlignment>,
    pub(super) inline_read: InlineRead,
    /// True when writes into the page cache depend on this machine only.
    pub(super) inline_write: bool,
    /// True when rings serve the file as well as workers do, and it was opened with rings allowed.
    pub(super) by_ring: bool,
    pub(super) granularity_bytes: u32,
    /// Unit of clears on a block device; 1 for any range.
    pub(super) sector_bytes: u32,
    pub(super) ranges: RangeLock,
    /// Pool for transfers that are not aligned for direct I/O, and for zeroes.
    pub(super) bounce: OnceLock<BufferPool>,
    pub(super) writes: Arc<DiskWrites>,
    pub(super) clears: ClearCoordinator,
    pub(super) backing: Arc<Backing>,
}

impl Disk {
    /// Returns the pool for the disk's own work: the pool that was set, or one of its own.
    pub(super) fn bounce(&self) -> &BufferPool {
        self.bounce.get_or_init(BufferPool::default)
    }

    /// Returns the current geometry.
    pub(super) fn geometry(&self) -> Geometry {
        self.geometry.get()
    }

    /// Reads the cached part of `bytes` into `into` without blocking; returns the length of that
    /// part, in whole blocks.
    pub(super) fn read_cached(&self, bytes: &Range<u64>, into: &mut [u8]) -> io::Result<usize> {
        if self.direct.is_some()
            || self.inline_read == InlineRead::Never
            || into.len() > INLINE_BYTES_MAX
        {
            return Ok(0);
        }
        let inline = self.reads_take_lock().then(|| self.clears.try_inline());
        if matches!(inline, Some(None)) {
            return Ok(0);
        }
        let Some(_guard) = self.try_range(bytes, false) else { return Ok(0) };
        if self.inline_read == InlineRead::Always {
            read_fully(&self.file, into, bytes.start)?;
            return Ok(into.len());
        }
        let done = read_nowait(&self.file, into, bytes.start)?;
        Ok(done - done % self.geometry().block_bytes as usize)
    }

    /// Returns true when reads take the lock that clears hold, and wait for it even with
    /// `RWF_NOWAIT`: so do reads of block devices through the page cache since Linux 6.15.
    fn reads_take_lock(&self) -> bool {
        self.sector_bytes > 1 && self.direct.is_none()
    }

    /// Returns true when writes copy into the page cache of a file, under a lock that admits one
    /// write. Other disks take several writes at a time.
    pub(super) fn writes_compute(&self) -> bool {
        self.inline_write && self.direct.is_none() && self.sector_bytes == 1
    }

    /// Returns true when a read by a ring would wait, and make the core wait.
    pub(super) fn ring_would_wait(&self) -> bool {
        self.reads_take_lock() && self.clears.is_piece_in_progress()
    }

    /// Creates the guard of a worker's transfer, to be held from queueing until it ends or is
    /// dropped.
    pub(super) fn transfer(self: &Arc<Self>) -> TransferGuard {
        self.clears.begin_transfer();
        TransferGuard(Arc::clone(self))
    }

    /// Reads `bytes` into `into`, which has the same length; blocks.
    pub(super) fn read(&self, bytes: &Range<u64>, into: &mut [u8]) -> io::Result<()> {
        match self.direct {
            Some(alignment) => self.read_direct(alignment, bytes, into),
            None => {
                let _guard = self.ranges.lock(bytes, false);
                read_fully(&self.file, into, bytes.start)
            }
        }
    }

    /// Writes into the page cache if the write is not expected to block; otherwise writes nothing
    /// and returns `false`.
    pub(super) fn write_inline(&self, bytes: &Range<u64>, from: &[u8]) -> io::Result<bool> {
        self.write_inline_by(bytes, from, write_fully)
    }

    /// Calls another system call than [`write_inline`](Self::write_inline).
    pub(super) fn write_inline_by(
        &self,
        bytes: &Range<u64>,
        from: &[u8],
        write: impl FnOnce(&File, &[u8], u64) -> io::Result<()>,
    ) -> io::Result<bool> {
        if !self.inline_write || self.direct.is_some() || from.len() > INLINE_BYTES_MAX {
            return Ok(false);
        }
        let Some(_guard) = self.try_range(bytes, true) else { return Ok(false) };
        let Some(_inline_guard) = self.clears.try_inline() else { return Ok(false) };
        self.check_still_within(bytes)?;
        let disk_bytes = self.geometry().size_bytes();
        let Some(_inline) = self.writes.try_inline(from.len(), disk_bytes) else {
            return Ok(false);
        };
        write(&self.file, from, bytes.start)?;
        Ok(true)
    }

    /// Writes `from`, which has the length of `bytes`; blocks.
    pub(super) fn write(&self, bytes: &Range<u64>, from: &[u8]) -> io::Result<()> {
        self.write_by(bytes, from, write_fully)
    }

    /// Like [`write`](Self::write), with another function for the write into the page cache.
    pub(super) fn write_by(
        &self,
        bytes: &Range<u64>,
        from: &[u8],
        write: impl FnOnce(&File, &[u8], u64) -> io::Result<()>,
    ) -> io::Result<()> {
        match self.direct {
            Some(alignment) => self.write_direct(alignment, bytes, from),
            None => {
                self.writes.wait_for_write_back();
                let _guard = self.ranges.lock(bytes, true);
                self.check_still_within(bytes)?;
                // An inline write would wait for the lock of the file, which this write holds.
                let _clear_guard = self.writes_compute().then(|| self.clears.begin_worker_write());
                let _write = self.writes.begin(from.len(), self.geometry().size_bytes());
                write(&self.file, from, bytes.start)
            }
        }
    }

    /// Syncs written data; blocks.
    pub(super) fn sync(&self) -> io::Result<()> {
        let guard = self.writes.begin_sync();
        let synced = rustix::fs::fdatasync(&self.file);
        drop(guard);
        self.update_free_space_limit();
        Ok(synced?)
    }

    /// Updates the limit of unsynced bytes from the free space of the file system, if writes
    /// allocate space.
    pub(super) fn update_free_space_limit(&self) {
        if self.thin
            && self.inline_write
            && !self.writes.in_memory()
            && self.sector_bytes == 1
            && let Ok(statistics) = rustix::fs::fstatvfs(&self.file)
        {
            self.writes.set_free_space(statistics.f_bavail.saturating_mul(statistics.f_frsize));
        }
    }

    fn try_range(&self, bytes: &Range<u64>, exclusive: bool) -> Option<ByteRangeGuard<'_>> {
        for _ in 0..INLINE_TRIES_MAX {
            if let Some(guard) = self.ranges.try_lock(bytes, exclusive) {
                return Some(guard);
            }
            std::hint::spin_loop();
        }
        None
    }

    /// Holds `bytes` for a transfer that outlives its future, if no other transfer is in the way.
    /// There is no retry, because a ring holds a range for as long as the disk takes.
    pub(super) fn try_hold(
        self: &Arc<Self>,
        bytes: &Range<u64>,
        exclusive: bool,
    ) -> Option<HeldRange> {
        let id = self.ranges.try_lock(bytes, exclusive)?.into_id();
        self.clears.begin_transfer();
        Some(HeldRange { disk: Arc::clone(self), id })
    }

    /// Converts an error of the system into an error of this disk.
    pub(super) fn failed(&self, what: &str, range: BlockRange, error: io::Error) -> Error {
        let kind = match self.geometry().byte_range(range) {
            Some(_) => kind_of(&error),
            None => ErrorKind::OutOfRange, // the disk became shorter meanwhile
        };
        Error::new(kind, Arc::clone(&self.name), what).at(range).because(error)
    }
}

/// A held range of a disk, together with the disk.
#[derive(Debug)]
pub(super) struct HeldRange {
    disk: Arc<Disk>,
    id: u64,
}

impl HeldRange {
    pub(super) fn disk(&self) -> &Arc<Disk> {
        &self.disk
    }
}

impl Drop for HeldRange {
    fn drop(&mut self) {
        self.disk.ranges.release(self.id);
        self.disk.clears.end_transfer();
    }
}

/// Guard of a transfer that may wait for the lock of the file; clears pause for it.
pub(super) struct TransferGuard(Arc<Disk>);

impl Drop for TransferGuard {
    fn drop(&mut self) {
        self.0.clears.end_transfer();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        super::lock::unlock(&self.file);
    }
}

/// Returns the kind of error for a failed system call.
pub(super) fn kind_of(error: &io::Error) -> ErrorKind {
    match Errno::from_io_error(error) {
        Some(Errno::NOSPC | Errno::DQUOT | Errno::FBIG) => ErrorKind::NoSpace,
        Some(Errno::ROFS) => ErrorKind::ReadOnly,
        _ => ErrorKind::Medium,
    }
}

/// Fills `into` from `offset` on, with as many calls as necessary. `FileExt` is not used because
/// the C library makes each of its calls a cancellation point, which costs a fiftieth of a small
/// read.
pub(super) fn read_fully(file: &File, into: &mut [u8], offset: u64) -> io::Result<()> {
    let mut done = 0;
    while done < into.len() {
        match rustix::io::pread(file, &mut into[done..], offset + done as u64) {
            Ok(0) => return Err(shorter(io::ErrorKind::UnexpectedEof)),
            Ok(count) => done += count,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

/// Returns the error for a file that ends before the disk does.
pub(super) fn shorter(kind: io::ErrorKind) -> io::Error {
    io::Error::new(kind, "the file is shorter than when it was opened")
}

/// Writes all of `from` from `offset` on.
pub(super) fn write_fully(file: &File, mut from: &[u8], mut offset: u64) -> io::Result<()> {
    while !from.is_empty() {
        match rustix::io::pwrite(file, from, offset) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => {
                from = &from[count..];
                offset += count as u64;
            }
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

/// Reads from `offset` on up to the first page that is not in the page cache.
pub(super) fn read_nowait(file: &File, into: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut done = 0;
    while done < into.len() {
        let mut part = [IoSliceMut::new(&mut into[done..])];
        let at = offset + done as u64;
        match rustix::io::preadv2(file, &mut part, at, ReadWriteFlags::NOWAIT) {
            // The blocking read reports the end of the file.
            Ok(0) | Err(Errno::AGAIN) => break,
            Ok(count) => done += count,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(done)
}
