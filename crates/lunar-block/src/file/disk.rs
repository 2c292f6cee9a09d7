//! The blocking side of a file: what is done inline when it is quick, and by a worker when not.

use super::backing::Backing;
use super::clear::ClearGate;
use super::direct::DirectAlignment;
use super::inline_writes::DiskWrites;
use super::ranges::{RangeGuard, RangeLock};
use crate::resize::Shape;
use crate::{BlockRange, BufferPool, Error, ErrorKind, Geometry};
use rustix::io::{Errno, ReadWriteFlags};
use std::fs::File;
use std::io::{self, IoSliceMut};
use std::ops::Range;
use std::sync::{Arc, OnceLock};

/// A longer transfer goes to a worker, so that it does not hold up the other work of the core.
pub(super) const INLINE_BYTES_MAX: usize = 1 << 20;

/// How often an inline transfer asks for its range before it leaves the waiting to a worker. Most
/// holders are through in a microsecond.
const INLINE_TRIES_MAX: u32 = 64;

/// How cached data can be read without blocking.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum InlineRead {
    /// `RWF_NOWAIT` says what is not cached.
    NoWait,
    /// The file lies in memory.
    Always,
    /// It cannot be told: workers read.
    Never,
}

/// An open file or block device.
#[derive(Debug)]
pub(super) struct Disk {
    pub(super) name: Arc<str>,
    pub(super) file: File,
    pub(super) shape: Shape,
    pub(super) read_only: bool,
    pub(super) thin: bool,
    /// Present: the page cache is passed by.
    pub(super) direct: Option<DirectAlignment>,
    pub(super) inline_read: InlineRead,
    /// Writes into the page cache need nothing but this machine.
    pub(super) inline_write: bool,
    /// Rings serve it as well as workers do, and it was opened for them.
    pub(super) by_ring: bool,
    pub(super) granularity_bytes: u32,
    /// What a block device clears is a multiple of this; 1: any range.
    pub(super) sector_bytes: u32,
    pub(super) ranges: RangeLock,
    /// For transfers that direct I/O cannot do as they come, and for zeroes.
    pub(super) bounce: OnceLock<BufferPool>,
    pub(super) writes: Arc<DiskWrites>,
    pub(super) clear_gate: ClearGate,
    pub(super) backing: Arc<Backing>,
}

impl Disk {
    /// Memory for work of its own: of the pool that it was given, or of one that no peer fills.
    pub(super) fn bounce(&self) -> &BufferPool {
        self.bounce.get_or_init(BufferPool::default)
    }

    /// Its shape at this moment.
    pub(super) fn geometry(&self) -> Geometry {
        self.shape.get()
    }

    /// Reads what is cached of `bytes` into `into`, without blocking; returns the length of the
    /// part that was, in whole blocks.
    pub(super) fn read_cached(&self, bytes: &Range<u64>, into: &mut [u8]) -> io::Result<usize> {
        if self.direct.is_some()
            || self.inline_read == InlineRead::Never
            || into.len() > INLINE_BYTES_MAX
        {
            return Ok(0);
        }
        let gate = self.reads_take_lock().then(|| self.clear_gate.try_inline());
        if matches!(gate, Some(None)) {
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

    /// Reads take the lock that clears hold, and wait for it, `RWF_NOWAIT` or not: block devices
    /// have it so for reads by way of the page cache since Linux 6.15.
    fn reads_take_lock(&self) -> bool {
        self.sector_bytes > 1 && self.direct.is_none()
    }

    /// Writes copy into the page cache of a file, under a lock that lets one through. Other disks
    /// take several writes at a time.
    pub(super) fn writes_compute(&self) -> bool {
        self.inline_write && self.direct.is_none() && self.sector_bytes == 1
    }

    /// A read by a ring would wait, and the core with it.
    pub(super) fn ring_would_wait(&self) -> bool {
        self.reads_take_lock() && self.clear_gate.is_closed()
    }

    /// A transfer of a worker, from when it is queued until it has ended or is dropped.
    pub(super) fn transfer(self: &Arc<Self>) -> TransferGuard {
        self.clear_gate.begin();
        TransferGuard(Arc::clone(self))
    }

    /// Reads `bytes` into `into`, which is as long; blocks.
    pub(super) fn read(&self, bytes: &Range<u64>, into: &mut [u8]) -> io::Result<()> {
        match self.direct {
            Some(alignment) => self.read_direct(alignment, bytes, into),
            None => {
                let _guard = self.ranges.lock(bytes, false);
                read_fully(&self.file, into, bytes.start)
            }
        }
    }

    /// Writes into the page cache if that will not block, as far as can be told; `false`: nothing
    /// was written.
    pub(super) fn write_inline(&self, bytes: &Range<u64>, from: &[u8]) -> io::Result<bool> {
        self.write_inline_by(bytes, from, write_fully)
    }

    /// The same with another system call.
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
        let Some(_gate) = self.clear_gate.try_inline() else { return Ok(false) };
        self.still_there(bytes)?;
        let disk_bytes = self.geometry().size_bytes();
        let Some(_inline) = self.writes.try_inline(from.len(), disk_bytes) else {
            return Ok(false);
        };
        write(&self.file, from, bytes.start)?;
        Ok(true)
    }

    /// Writes `from`, as long as `bytes`; blocks.
    pub(super) fn write(&self, bytes: &Range<u64>, from: &[u8]) -> io::Result<()> {
        self.write_by(bytes, from, write_fully)
    }

    /// The same with another system call for the page cache.
    pub(super) fn write_by(
        &self,
        bytes: &Range<u64>,
        from: &[u8],
        write: impl FnOnce(&File, &[u8], u64) -> io::Result<()>,
    ) -> io::Result<()> {
        match self.direct {
            Some(alignment) => self.write_direct(alignment, bytes, from),
            None => {
                self.writes.wait_for_room();
                let _guard = self.ranges.lock(bytes, true);
                self.still_there(bytes)?;
                // An inline write would wait for the lock of the file, which this one holds.
                let _gate = self.writes_compute().then(|| self.clear_gate.worker_write());
                let _write = self.writes.begin(from.len(), self.geometry().size_bytes());
                write(&self.file, from, bytes.start)
            }
        }
    }

    /// Syncs what was written; blocks.
    pub(super) fn sync(&self) -> io::Result<()> {
        let syncing = self.writes.syncing();
        let synced = rustix::fs::fdatasync(&self.file);
        drop(syncing);
        self.look_for_room();
        Ok(synced?)
    }

    /// Has the room of the file system looked at, if writes take some.
    pub(super) fn look_for_room(&self) {
        if self.thin
            && self.inline_write
            && !self.writes.in_memory()
            && self.sector_bytes == 1
            && let Ok(room) = rustix::fs::fstatvfs(&self.file)
        {
            self.writes.set_room(room.f_bavail.saturating_mul(room.f_frsize));
        }
    }

    fn try_range(&self, bytes: &Range<u64>, exclusive: bool) -> Option<RangeGuard<'_>> {
        for _ in 0..INLINE_TRIES_MAX {
            if let Some(guard) = self.ranges.try_lock(bytes, exclusive) {
                return Some(guard);
            }
            std::hint::spin_loop();
        }
        None
    }

    /// Holds `bytes` for a transfer that outlives its future, if nobody is in the way. Nothing is
    /// tried again here: a ring holds a range for as long as the disk takes.
    pub(super) fn try_hold(
        self: &Arc<Self>,
        bytes: &Range<u64>,
        exclusive: bool,
    ) -> Option<HeldRange> {
        let id = self.ranges.try_lock(bytes, exclusive)?.into_id();
        self.clear_gate.begin();
        Some(HeldRange { disk: Arc::clone(self), id })
    }

    /// An error of the system, as one of this disk.
    pub(super) fn failed(&self, what: &str, range: BlockRange, error: io::Error) -> Error {
        let kind = match self.geometry().byte_range(range) {
            Some(_) => kind_of(&error),
            None => ErrorKind::OutOfRange, // the disk became shorter meanwhile
        };
        Error::new(kind, Arc::clone(&self.name), what).at(range).because(error)
    }
}

/// A range of a disk that is held, and the disk with it.
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
        self.disk.clear_gate.end();
    }
}

/// A transfer that may wait for the lock of the file; clears give way to it.
pub(super) struct TransferGuard(Arc<Disk>);

impl Drop for TransferGuard {
    fn drop(&mut self) {
        self.0.clear_gate.end();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        super::lock::unlock(&self.file);
    }
}

/// The kind a failed system call means.
pub(super) fn kind_of(error: &io::Error) -> ErrorKind {
    match Errno::from_io_error(error) {
        Some(Errno::NOSPC | Errno::DQUOT | Errno::FBIG) => ErrorKind::NoSpace,
        Some(Errno::ROFS) => ErrorKind::ReadOnly,
        _ => ErrorKind::Medium,
    }
}

/// Fills `into` from `offset` on, however many calls that takes. Not by `FileExt`: the C library
/// makes each of its calls a point where the thread may be cancelled, a fiftieth of a small read.
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

/// The file ends before the disk does.
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

/// Reads what is in the page cache from `offset` on, up to the first page that is not.
pub(super) fn read_nowait(file: &File, into: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut done = 0;
    while done < into.len() {
        let mut part = [IoSliceMut::new(&mut into[done..])];
        let at = offset + done as u64;
        match rustix::io::preadv2(file, &mut part, at, ReadWriteFlags::NOWAIT) {
            // The end of the file is for the blocking read to report.
            Ok(0) | Err(Errno::AGAIN) => break,
            Ok(count) => done += count,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(done)
}
