//! Decides for all disks of a file system which writes into the page cache may run on a core.
//!
//! A write into the page cache blocks when the kernel makes the writer wait for the disk: in the
//! journal of the file system, for room, or for memory. All files of a file system share its
//! journal and its disk, so they share one [`FileSystemWrites`] ([decision 100][]):
//!
//! * One inline write of a file system runs at a time, on all cores together. A write that blocks
//!   therefore blocks one core, never two.
//! * After a slow inline write, workers write for a while, longer each time. After a slow write of
//!   a worker they write until several writes in a row were quick.
//! * Bytes that are not covered by a sync yet are counted. Beyond a limit workers write, and the
//!   files with most of these bytes are synced.
//!
//! [decision 100]: ../../../../docs/decisions/100-writes-that-may-block.md

mod dirty;
mod oldest;
#[cfg(test)]
mod tests;
mod unsafe_rusage;

pub(super) use dirty::Syncer;
use dirty::{DirtyBytes, DiskBytes};
use oldest::Oldest;
use std::ops::Deref;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

/// Time after which a write counts as slow, because the kernel made it wait. A long write may take
/// more time, by [`SLOW_WRITE_NANOS_PER_BYTE`].
const SLOW_WRITE: Duration = Duration::from_millis(5);

/// Time in which the slowest machines copy a byte.
const SLOW_WRITE_NANOS_PER_BYTE: u64 = 4;

/// Time of a sync after which writes go to workers until it ends: if the disk hangs, the writes
/// would hang as well.
const SLOW_SYNC: Duration = Duration::from_millis(200);

/// Maximum time for which workers write after the first slow inline write; otherwise they write for
/// as long as that write took. The system may only have given the core to another thread for some
/// milliseconds. Later writes are checked for real waits ([`ThreadWaits`]).
const FIRST_ESCAPE_MAX: Duration = Duration::from_secs(1);

/// Time for which workers write after the second slow inline write in a row; it doubles with each
/// further one …
const SECOND_ESCAPE: Duration = Duration::from_secs(1);
/// … up to this time.
const ESCAPE_MAX: Duration = Duration::from_secs(60);

/// Time after the last escape in which a slow inline write counts as a further one in a row. Inline
/// writes are watched for that time, which costs a system call each.
const STRIKES_KEPT: Duration = Duration::from_secs(60);

/// For the first slow write this time is the escape multiplied by this factor, and …
const FIRST_STRIKE_KEPT_FACTOR: u32 = 100;
/// … at least this.
const FIRST_STRIKE_KEPT_MIN: Duration = Duration::from_secs(1);

/// Number of quick writes of workers in a row after which inline writes resume.
const QUICK_WRITES_MIN: u32 = 8;

/// Number of times that a core tries to get the turn for its inline write. The write of another
/// core usually ends within one or two microseconds.
const TURN_TRIES_MAX: u32 = 128;

/// Time that the turn has been held after which a core no longer waits for it.
const TURN_HELD_MAX: Duration = Duration::from_micros(100);

/// The file systems of all disks of a process that are opened with the same value of this type.
/// Clones share their state.
#[derive(Clone, Debug)]
pub struct FileSystems(Arc<Registry>);

#[derive(Debug)]
struct Registry {
    memory_bytes: u64,
    clock: Arc<Clock>,
    known: Mutex<Vec<(u64, Weak<FileSystemWrites>)>>,
    /// Number of file systems whose bytes are counted; they share the memory.
    counted: AtomicUsize,
}

impl Default for FileSystems {
    /// Creates the value for disks of a process with at least 1 GiB of memory.
    fn default() -> Self {
        Self::new(1 << 30)
    }
}

impl FileSystems {
    /// Creates the value for a process that may use `memory_bytes`, page cache included: the memory
    /// of the machine, or the limit of its control group.
    pub fn new(memory_bytes: u64) -> Self {
        Self::with_clock(memory_bytes, Clock::System(Instant::now()))
    }

    fn with_clock(memory_bytes: u64, clock: Clock) -> Self {
        Self(Arc::new(Registry {
            memory_bytes,
            clock: Arc::new(clock),
            known: Mutex::default(),
            counted: AtomicUsize::new(0),
        }))
    }

    /// Returns the state of one disk on the file system or block device `device`.
    pub(super) fn disk(&self, device: u64, in_memory: bool) -> Arc<DiskWrites> {
        let mut known = self.0.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|(_, writes)| writes.strong_count() > 0);
        let found = known.iter().find(|(known, _)| *known == device);
        let file_system = found.and_then(|(_, writes)| writes.upgrade()).unwrap_or_else(|| {
            let made = Arc::new(FileSystemWrites::new(&self.0, in_memory));
            known.push((device, Arc::downgrade(&made)));
            made
        });
        Arc::new(DiskWrites { file_system, bytes: DiskBytes::default() })
    }
}

/// A source of nanoseconds since some fixed moment.
#[derive(Debug)]
enum Clock {
    System(Instant),
    #[cfg(test)]
    Manual {
        nanos: AtomicU64,
        waits: AtomicU64,
    },
}

/// Number of times that this thread has waited in the kernel. Preemption by another thread does not
/// count as a wait.
type ThreadWaits = u64;

impl Clock {
    fn nanos(&self) -> u64 {
        match self {
            Self::System(start) => start.elapsed().as_nanos() as u64,
            #[cfg(test)]
            Self::Manual { nanos, .. } => nanos.load(Relaxed),
        }
    }

    fn thread_waits(&self) -> ThreadWaits {
        match self {
            Self::System(_) => unsafe_rusage::thread_waits(),
            #[cfg(test)]
            Self::Manual { waits, .. } => waits.load(Relaxed),
        }
    }
}

/// State that the disks of one file system share.
#[derive(Debug)]
pub(super) struct FileSystemWrites {
    registry: Arc<Registry>,
    clock: Arc<Clock>,
    /// True when the files lie in memory: a write waits for no disk, and leaves nothing to write
    /// back.
    in_memory: bool,
    /// Start of the inline write that runs now, or 0 if none runs.
    inline_since_nanos: AtomicU64,
    slow_until_nanos: AtomicU64,
    /// Time until which inline writes are checked for waits.
    watched_until_nanos: AtomicU64,
    /// Number of quick writes of workers that are missing before inline writes resume.
    quick_writes_missing: AtomicU32,
    strikes: Mutex<Strikes>,
    /// Syncs and writes of workers that are with the kernel.
    syncs: Oldest,
    worker_writes: Oldest,
    dirty: DirtyBytes,
}

/// Slow inline writes in a row.
#[derive(Debug, Default)]
struct Strikes {
    count: u32,
}

impl FileSystemWrites {
    fn new(registry: &Arc<Registry>, in_memory: bool) -> Self {
        if !in_memory {
            registry.counted.fetch_add(1, Relaxed);
        }
        Self {
            registry: Arc::clone(registry),
            clock: Arc::clone(&registry.clock),
            in_memory,
            inline_since_nanos: AtomicU64::new(0),
            slow_until_nanos: AtomicU64::new(0),
            watched_until_nanos: AtomicU64::new(0),
            quick_writes_missing: AtomicU32::new(0),
            strikes: Mutex::default(),
            syncs: Oldest::default(),
            worker_writes: Oldest::default(),
            dirty: DirtyBytes::default(),
        }
    }

    /// Returns true when the kernel may make a write wait, as far as is known now.
    fn may_block(&self, now: u64) -> bool {
        self.dirty.is_full()
            || self.quick_writes_missing.load(Relaxed) > 0
            || now < self.slow_until_nanos.load(Relaxed)
            || self.syncs.is_older(now, SLOW_SYNC)
            || self.worker_writes.is_older(now, SLOW_WRITE)
    }

    /// Takes the turn of the one inline write, from `now` on.
    fn try_turn(&self, now: u64) -> bool {
        for _ in 0..TURN_TRIES_MAX {
            match self.inline_since_nanos.compare_exchange(0, now, Acquire, Relaxed) {
                Ok(_) => return true,
                Err(since) if now.saturating_sub(since) > TURN_HELD_MAX.as_nanos() as u64 => break,
                Err(_) => std::hint::spin_loop(),
            }
        }
        false
    }

    /// Records a slow inline write that has ended after `took` nanoseconds.
    fn strike(&self, now: u64, took: u64) {
        let mut strikes = self.strikes.lock().unwrap_or_else(PoisonError::into_inner);
        if now > self.watched_until_nanos.load(Relaxed) {
            strikes.count = 0;
        }
        let (escape, kept) = match strikes.count.checked_sub(1) {
            None => {
                let escape = Duration::from_nanos(took).min(FIRST_ESCAPE_MAX);
                let kept = escape * FIRST_STRIKE_KEPT_FACTOR;
                (escape, kept.clamp(FIRST_STRIKE_KEPT_MIN, STRIKES_KEPT))
            }
            Some(doubled) => {
                self.quick_writes_missing.store(QUICK_WRITES_MIN, Relaxed);
                let escape = SECOND_ESCAPE.saturating_mul(1 << doubled.min(16));
                (escape.min(ESCAPE_MAX), STRIKES_KEPT)
            }
        };
        strikes.count = strikes.count.saturating_add(1);
        let escape_end = now.saturating_add(escape.as_nanos() as u64);
        self.slow_until_nanos.fetch_max(escape_end, Relaxed);
        let watched_until = escape_end.saturating_add(kept.as_nanos() as u64);
        self.watched_until_nanos.store(watched_until, Relaxed);
    }
}

impl Drop for FileSystemWrites {
    fn drop(&mut self) {
        if !self.in_memory {
            self.registry.counted.fetch_sub(1, Relaxed);
        }
    }
}

fn is_slow(took_nanos: u64, bytes: usize) -> bool {
    let copying = SLOW_WRITE_NANOS_PER_BYTE.saturating_mul(bytes as u64);
    took_nanos > copying.saturating_add(SLOW_WRITE.as_nanos() as u64)
}

/// Writes of one disk into the page cache.
#[derive(Debug)]
pub(super) struct DiskWrites {
    file_system: Arc<FileSystemWrites>,
    bytes: DiskBytes,
}

impl Deref for DiskWrites {
    type Target = FileSystemWrites;

    fn deref(&self) -> &FileSystemWrites {
        &self.file_system
    }
}

impl DiskWrites {
    /// Returns true when the files lie in memory: no write waits for a disk, and none is observed.
    pub(super) fn in_memory(&self) -> bool {
        self.file_system.in_memory
    }

    /// Returns a guard for a write of `bytes` on a core, to a disk of `disk_bytes`. Returns `None`
    /// if the write may block there, and `Some(None)` for files in memory.
    pub(super) fn try_inline(
        &self,
        bytes: usize,
        disk_bytes: u64,
    ) -> Option<Option<InlineWrite<'_>>> {
        if self.in_memory() {
            return Some(None);
        }
        // 0 means that no inline write runs.
        let begun = self.clock.nanos().max(1);
        if self.may_block(begun) || !self.try_turn(begun) {
            return None;
        }
        let is_watched = begun <= self.watched_until_nanos.load(Relaxed);
        let waits = is_watched.then(|| self.clock.thread_waits());
        Some(Some(InlineWrite { disk: self, bytes, disk_bytes, begun, waits }))
    }

    /// Called before a write of a worker, without locks: starts the write-back if it is due, and
    /// waits a moment if too much data waits to be written back.
    pub(super) fn wait_for_room(&self) {
        self.write_back_if_full();
        self.wait_for_syncs();
    }

    /// Returns a guard for a write of `bytes` by a worker, to a disk of `disk_bytes`; `None` for
    /// files in memory.
    pub(super) fn begin(&self, bytes: usize, disk_bytes: u64) -> Option<WorkerWrite<'_>> {
        if self.in_memory() {
            return None;
        }
        let (begun, waits) = (self.clock.nanos(), self.clock.thread_waits());
        let id = self.worker_writes.begin(begun);
        Some(WorkerWrite { disk: self, bytes, disk_bytes, begun, waits, id })
    }

    /// Returns a guard for a sync; one sync of a disk runs at a time. Returns `None` for files in
    /// memory.
    pub(super) fn syncing(&self) -> Option<Syncing<'_>> {
        if self.in_memory() {
            return None;
        }
        let covered = self.bytes.take();
        Some(Syncing { disk: self, covered, id: self.syncs.begin(self.clock.nanos()) })
    }
}

/// A write on a core, which ends when this is dropped.
pub(super) struct InlineWrite<'a> {
    disk: &'a DiskWrites,
    bytes: usize,
    disk_bytes: u64,
    begun: u64,
    /// The number of waits of the thread before the write, if waits are checked.
    waits: Option<ThreadWaits>,
}

impl Drop for InlineWrite<'_> {
    fn drop(&mut self) {
        let disk = self.disk;
        let ended = disk.clock.nanos();
        let took = ended.saturating_sub(self.begun);
        if is_slow(took, self.bytes) && self.waits != Some(disk.clock.thread_waits()) {
            disk.strike(ended, took);
        }
        disk.file_system.count(&disk.bytes, self.bytes as u64, self.disk_bytes);
        disk.inline_since_nanos.store(0, Release);
    }
}

/// A write by a worker, which ends when this is dropped.
pub(super) struct WorkerWrite<'a> {
    disk: &'a DiskWrites,
    bytes: usize,
    disk_bytes: u64,
    begun: u64,
    waits: ThreadWaits,
    id: u64,
}

impl Drop for WorkerWrite<'_> {
    fn drop(&mut self) {
        let disk = self.disk;
        disk.worker_writes.end(self.id);
        let missing = &disk.quick_writes_missing;
        let took = disk.clock.nanos().saturating_sub(self.begun);
        if is_slow(took, self.bytes) && disk.clock.thread_waits() != self.waits {
            missing.store(QUICK_WRITES_MIN, Relaxed);
        } else if missing.load(Relaxed) > 0 {
            // Two writes that end at once may both find the last missing one.
            let _ = missing.fetch_update(Relaxed, Relaxed, |missing| missing.checked_sub(1));
        }
        disk.file_system.count(&disk.bytes, self.bytes as u64, self.disk_bytes);
    }
}

/// A sync, which runs while this lives. After it, successful or not, the kernel has nothing more to
/// write of the bytes that it covers.
pub(super) struct Syncing<'a> {
    disk: &'a DiskWrites,
    covered: u64,
    id: u64,
}

impl Drop for Syncing<'_> {
    fn drop(&mut self) {
        self.disk.syncs.end(self.id);
        self.disk.file_system.release(self.covered);
    }
}
