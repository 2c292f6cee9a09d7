//! Which writes into the page cache may be made on a core, decided for all disks of a file system.
//!
//! A write into the page cache blocks where the kernel has the writer wait for the disk: in the
//! journal of the file system, for room, for memory. All files of a file system share its journal
//! and its disk, so they share one [`FileSystemWrites`] ([decision 100][]):
//!
//! * One inline write of a file system runs at a time, on all cores together. A write that blocks
//!   takes one core along, never two.
//! * After a slow inline write, workers write for a while, longer each time. After a slow write of
//!   a worker they go on until several in a row were quick.
//! * Bytes that no sync covers yet are counted. Beyond a limit workers write, and the files that
//!   hold most of these bytes are synced.
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

/// A write that takes longer is slow: the kernel has it wait. A long write may take more, by
/// [`SLOW_WRITE_NANOS_PER_BYTE`].
const SLOW_WRITE: Duration = Duration::from_millis(5);

/// Time that the slowest machines need to copy a byte.
const SLOW_WRITE_NANOS_PER_BYTE: u64 = 4;

/// While a sync takes longer than this, writes go to workers: where the disk hangs they would as
/// well.
const SLOW_SYNC: Duration = Duration::from_millis(200);

/// After the first slow inline write, workers write for as long as it took, but for no longer than
/// this. The system may only have given the core to somebody else for some milliseconds. Whether a
/// later write really waited is looked at ([`ThreadWaits`]).
const FIRST_ESCAPE_MAX: Duration = Duration::from_secs(1);

/// After the second one in a row workers write for so long, and after each further one twice as
/// long as before …
const SECOND_ESCAPE: Duration = Duration::from_secs(1);
/// … up to this.
const ESCAPE_MAX: Duration = Duration::from_secs(60);

/// A slow inline write that comes so long after the last escape is the first one again; until then
/// inline writes are looked at, which costs a system call each.
const STRIKES_KEPT: Duration = Duration::from_secs(60);

/// After the first one it is this many times as long as the escape, and …
const FIRST_STRIKE_KEPT_FACTOR: u32 = 100;
/// … at least this.
const FIRST_STRIKE_KEPT_MIN: Duration = Duration::from_secs(1);

/// Writes of workers in a row that have to be quick before inline writes come back.
const QUICK_WRITES_MIN: u32 = 8;

/// A core asks so often for the turn of its inline write. The write of another core is through in
/// a microsecond or two, as a rule.
const TURN_TRIES_MAX: u32 = 128;

/// A core does not wait for the turn if it is held for longer than this.
const TURN_HELD_MAX: Duration = Duration::from_micros(100);

/// The file systems of all disks of a process that are opened with one value of this type. Clones
/// share.
#[derive(Clone, Debug)]
pub struct FileSystems(Arc<Registry>);

#[derive(Debug)]
struct Registry {
    memory_bytes: u64,
    clock: Arc<Clock>,
    known: Mutex<Vec<(u64, Weak<FileSystemWrites>)>>,
    /// File systems whose bytes are counted: they share the memory.
    counted: AtomicUsize,
}

impl Default for FileSystems {
    /// For disks of a process with at least 1 GiB of memory.
    fn default() -> Self {
        Self::new(1 << 30)
    }
}

impl FileSystems {
    /// For a process that may use this memory, page cache included: what the machine has, or the
    /// limit of its control group.
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

    /// The part of one disk on the file system `device`, or block device.
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

/// Nanoseconds since some moment.
#[derive(Debug)]
enum Clock {
    System(Instant),
    #[cfg(test)]
    Manual {
        nanos: AtomicU64,
        waits: AtomicU64,
    },
}

/// Number of times that this thread has waited in the kernel. A thread that only has to leave the
/// processor to another one does not wait.
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
    /// Its files are memory: a write waits for no disk, and leaves nothing to write back.
    in_memory: bool,
    /// When the inline write began that runs now, 0 if none does.
    inline_since_nanos: AtomicU64,
    slow_until_nanos: AtomicU64,
    /// Until then it is looked at whether inline writes wait.
    watched_until_nanos: AtomicU64,
    /// Writes of workers that have to be quick before inline writes come back.
    quick_writes_missing: AtomicU32,
    strikes: Mutex<Strikes>,
    /// Syncs, and writes of workers, that are with the kernel.
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

    /// Whether the kernel may have a write wait, as far as is known at this moment.
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

    /// An inline write has ended that took so long, and was slow.
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
    /// Its files are memory: no write waits for a disk, and nothing is observed.
    pub(super) fn in_memory(&self) -> bool {
        self.file_system.in_memory
    }

    /// Held during a write of `bytes` on a core, to a disk of `disk_bytes`. `None`: it may block
    /// there. `Some(None)`: in memory.
    pub(super) fn try_inline(
        &self,
        bytes: usize,
        disk_bytes: u64,
    ) -> Option<Option<InlineWrite<'_>>> {
        if self.in_memory() {
            return Some(None);
        }
        // 0 says that no inline write runs.
        let begun = self.clock.nanos().max(1);
        if self.may_block(begun) || !self.try_turn(begun) {
            return None;
        }
        let is_watched = begun <= self.watched_until_nanos.load(Relaxed);
        let waits = is_watched.then(|| self.clock.thread_waits());
        Some(Some(InlineWrite { disk: self, bytes, disk_bytes, begun, waits }))
    }

    /// Before a write of a worker, without locks: begins to write back if that is due, and waits a
    /// moment where too much is to be written back.
    pub(super) fn wait_for_room(&self) {
        self.write_back_if_full();
        self.wait_for_syncs();
    }

    /// Held during a write of `bytes` by a worker, to a disk of `disk_bytes`. `None`: in memory.
    pub(super) fn begin(&self, bytes: usize, disk_bytes: u64) -> Option<WorkerWrite<'_>> {
        if self.in_memory() {
            return None;
        }
        let (begun, waits) = (self.clock.nanos(), self.clock.thread_waits());
        let id = self.worker_writes.begin(begun);
        Some(WorkerWrite { disk: self, bytes, disk_bytes, begun, waits, id })
    }

    /// Held during a sync. One runs at a time. `None`: in memory.
    pub(super) fn syncing(&self) -> Option<Syncing<'_>> {
        if self.in_memory() {
            return None;
        }
        let covered = self.bytes.take();
        Some(Syncing { disk: self, covered, id: self.syncs.begin(self.clock.nanos()) })
    }
}

/// A write on a core; ends when it is dropped.
pub(super) struct InlineWrite<'a> {
    disk: &'a DiskWrites,
    bytes: usize,
    disk_bytes: u64,
    begun: u64,
    /// Waits of the thread before it, if they are looked at.
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

/// A write by a worker; ends when it is dropped.
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
            // Two that end at once may both find the last one.
            let _ = missing.fetch_update(Relaxed, Relaxed, |missing| missing.checked_sub(1));
        }
        disk.file_system.count(&disk.bytes, self.bytes as u64, self.disk_bytes);
    }
}

/// A sync runs while this lives. Whether it goes well or not, the kernel has nothing more to write
/// of what it covers.
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
