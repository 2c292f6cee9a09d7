//! Decides for all disks of a file system which writes into the page cache may run on a core.
//!
//! A write into the page cache blocks when the kernel makes the writer wait for the disk: in the
//! journal of the file system, for free space, or for memory. All files of a file system share its
//! journal and its disk, so they share one [`FileSystemWrites`] ([decision 100][]):
//!
//! * One inline write of a file system runs at a time, on all cores together. A write that blocks
//!   therefore blocks one core, never two.
//! * After a slow inline write, inline writes pause, longer each time, and workers write instead.
//!   After a slow write of a worker they pause until several writes in a row were quick.
//! * Bytes that are not covered by a sync yet are counted. Beyond a limit workers write, and the
//!   files with most of these bytes are synced.
//!
//! [decision 100]: ../../../../docs/decisions/100-writes-that-may-block.md

mod calls_in_progress;
mod dirty;
#[cfg(test)]
mod tests;
mod unsafe_rusage;

use calls_in_progress::CallsInProgress;
pub(super) use dirty::Syncer;
use dirty::{DirtyBytes, DiskBytes};
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

/// Maximum pause of inline writes after the first slow one; otherwise the pause is as long as that
/// write. The cause may only be that the system gave the core to another thread for some
/// milliseconds. Later writes are checked for real waits ([`ThreadWaits`]).
const FIRST_PAUSE_MAX: Duration = Duration::from_secs(1);

/// Pause of inline writes after the second slow one in a row; each further one doubles it.
const SECOND_PAUSE: Duration = Duration::from_secs(1);
/// Maximum pause of inline writes.
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// Time after the last pause in which a slow inline write counts as a further one in a row. Inline
/// writes are watched for that time, which costs a system call each.
const STREAK_KEPT: Duration = Duration::from_secs(60);

/// Factor between the length of the first pause and the time for which the streak is kept after the
/// pause.
const FIRST_STREAK_KEPT_FACTOR: u32 = 100;
/// Minimum time for which the streak is kept after the first pause.
const FIRST_STREAK_KEPT_MIN: Duration = Duration::from_secs(1);

/// Number of quick writes of workers in a row after which inline writes resume.
const QUICK_WRITES_MIN: u32 = 8;

/// Number of times that a core tries to lock the file system for its inline write. The write of
/// another core usually ends within one or two microseconds.
const LOCK_TRIES_MAX: u32 = 128;

/// Time after which a core no longer waits for the inline write of another core.
const LOCK_HELD_MAX: Duration = Duration::from_micros(100);

/// Registry of file systems: disks opened with the same registry share the limits of the file
/// system in which they lie. Clones share their state.
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
    /// Creates a registry for a process with at least 1 GiB of memory.
    fn default() -> Self {
        Self::new(1 << 30)
    }
}

impl FileSystems {
    /// Creates a registry for a process that may use `memory_bytes`, page cache included: the
    /// memory of the machine, or the limit of its control group.
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
    /// True if the files lie in memory: a write never waits for a disk, and needs no write-back.
    in_memory: bool,
    /// Lock of inline writes: the start of the one that runs now, or 0 if none runs.
    inline_since_nanos: AtomicU64,
    slow_until_nanos: AtomicU64,
    /// Time until which inline writes are checked for waits.
    watched_until_nanos: AtomicU64,
    /// Number of quick writes of workers that are missing before inline writes resume.
    quick_writes_missing: AtomicU32,
    streak: Mutex<SlowWriteStreak>,
    /// Syncs in progress.
    syncs: CallsInProgress,
    /// Writes of workers in progress.
    worker_writes: CallsInProgress,
    dirty: DirtyBytes,
}

/// Number of slow inline writes in a row.
#[derive(Debug, Default)]
struct SlowWriteStreak {
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
            streak: Mutex::default(),
            syncs: CallsInProgress::default(),
            worker_writes: CallsInProgress::default(),
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

    /// Locks the file system for an inline write that starts at `now`; `false` if another one
    /// holds the lock for too long.
    fn try_lock(&self, now: u64) -> bool {
        for _ in 0..LOCK_TRIES_MAX {
            match self.inline_since_nanos.compare_exchange(0, now, Acquire, Relaxed) {
                Ok(_) => return true,
                Err(since) if now.saturating_sub(since) > LOCK_HELD_MAX.as_nanos() as u64 => break,
                Err(_) => std::hint::spin_loop(),
            }
        }
        false
    }

    /// Records a slow inline write that has ended after `took` nanoseconds.
    fn record_slow_write(&self, now: u64, took: u64) {
        let mut streak = self.streak.lock().unwrap_or_else(PoisonError::into_inner);
        if now > self.watched_until_nanos.load(Relaxed) {
            streak.count = 0;
        }
        let (pause, kept) = match streak.count.checked_sub(1) {
            None => {
                let pause = Duration::from_nanos(took).min(FIRST_PAUSE_MAX);
                let kept = pause * FIRST_STREAK_KEPT_FACTOR;
                (pause, kept.clamp(FIRST_STREAK_KEPT_MIN, STREAK_KEPT))
            }
            Some(doubled) => {
                self.quick_writes_missing.store(QUICK_WRITES_MIN, Relaxed);
                let pause = SECOND_PAUSE.saturating_mul(1 << doubled.min(16));
                (pause.min(PAUSE_MAX), STREAK_KEPT)
            }
        };
        streak.count = streak.count.saturating_add(1);
        let pause_end = now.saturating_add(pause.as_nanos() as u64);
        self.slow_until_nanos.fetch_max(pause_end, Relaxed);
        let watched_until = pause_end.saturating_add(kept.as_nanos() as u64);
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
    /// Returns true if the files lie in memory: writes never wait for a disk and are not counted.
    pub(super) fn in_memory(&self) -> bool {
        self.file_system.in_memory
    }

    /// Begins a write of `bytes` on a core, to a disk of `disk_bytes`. Returns `None` if the write
    /// might block the core, otherwise a guard, which files in memory do not need.
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
        if self.may_block(begun) || !self.try_lock(begun) {
            return None;
        }
        let is_watched = begun <= self.watched_until_nanos.load(Relaxed);
        let waits = is_watched.then(|| self.clock.thread_waits());
        Some(Some(InlineWrite { disk: self, bytes, disk_bytes, begun, waits }))
    }

    /// Starts the write-back if it is due, and waits for it, up to a limit, while too much data is
    /// to be written back. Workers call this before a write, without locks.
    pub(super) fn wait_for_write_back(&self) {
        self.write_back_if_full();
        self.wait_for_syncs();
    }

    /// Begins a write of `bytes` by a worker, to a disk of `disk_bytes`. Returns its guard, or
    /// `None` for files in memory.
    pub(super) fn begin(&self, bytes: usize, disk_bytes: u64) -> Option<WorkerWrite<'_>> {
        if self.in_memory() {
            return None;
        }
        let (begun, waits) = (self.clock.nanos(), self.clock.thread_waits());
        let id = self.worker_writes.begin(begun);
        Some(WorkerWrite { disk: self, bytes, disk_bytes, begun, waits, id })
    }

    /// Begins a sync, of which a disk has one at a time. Returns its guard, or `None` for files in
    /// memory.
    pub(super) fn begin_sync(&self) -> Option<SyncGuard<'_>> {
        if self.in_memory() {
            return None;
        }
        let covered_bytes = self.bytes.take();
        Some(SyncGuard { disk: self, covered_bytes, id: self.syncs.begin(self.clock.nanos()) })
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
            disk.record_slow_write(ended, took);
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

/// Guard of a running sync. After the sync, successful or not, the kernel does not write the bytes
/// that it covers any more.
pub(super) struct SyncGuard<'a> {
    disk: &'a DiskWrites,
    covered_bytes: u64,
    id: u64,
}

impl Drop for SyncGuard<'_> {
    fn drop(&mut self) {
        self.disk.syncs.end(self.id);
        self.disk.file_system.release(self.covered_bytes);
    }
}
