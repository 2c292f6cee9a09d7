//! Counts bytes in the page cache that are not covered by a sync yet, and starts syncs to write
//! them back.

use super::super::commit::GroupCommit;
use super::super::workers::PriorityJobs;
use super::{DiskWrites, FileSystemWrites};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Divisor of the memory: the part that unsynced inline writes may occupy, on all file systems
/// together. The kernel makes writers wait from 15 % of the memory on (`dirty_ratio`), and a
/// control group of version 1 when it is full.
pub(super) const INLINE_DIVISOR: u64 = 16;
/// Upper limit of that part on a machine with much memory, because a flush writes all of it back.
const INLINE_BYTES_MAX: u64 = 1 << 30;

/// Divisor of the memory: the part of unsynced bytes above which writes of workers wait for syncs.
/// If unsynced bytes fill a control group, the cores wait for memory.
const WORKERS_DIVISOR: u64 = 4;

/// Divisor of a file system's free space: the part that unsynced inline writes may occupy, if files
/// allocate space as they are written. ext4 makes writers wait from a half on.
const FREE_SPACE_DIVISOR: u64 = 8;
/// Minimum of the limit that results from the free space, because most writes allocate none.
const FREE_SPACE_LIMIT_BYTES_MIN: u64 = 4 << 20;

/// Divisor of the limit: inline writes resume when unsynced bytes have fallen to this part of it.
const RESUME_DIVISOR: u64 = 2;

/// Maximum number of disks of a file system that are synced at a time to write back.
const SYNCS_MAX: usize = 4;

/// Maximum time that a write of a worker waits for syncs.
const WRITE_BACK_WAIT_MAX: Duration = Duration::from_secs(if cfg!(test) { 60 } else { 1 });

/// Bytes of a file system that are not covered by a sync yet.
#[derive(Debug)]
pub(super) struct DirtyBytes {
    bytes: AtomicU64,
    /// True from when the limit is reached until the bytes fall to its [`RESUME_DIVISOR`]th part.
    full: AtomicBool,
    /// Limit that results from the free space.
    free_space_limit_bytes: AtomicU64,
    syncers: Mutex<Vec<Arc<Syncer>>>,
    changed: Condvar,
}

impl Default for DirtyBytes {
    fn default() -> Self {
        Self {
            bytes: AtomicU64::new(0),
            full: AtomicBool::new(false),
            free_space_limit_bytes: AtomicU64::new(u64::MAX),
            syncers: Mutex::default(),
            changed: Condvar::new(),
        }
    }
}

impl DirtyBytes {
    pub(super) fn is_full(&self) -> bool {
        self.full.load(Relaxed)
    }

    fn syncers(&self) -> MutexGuard<'_, Vec<Arc<Syncer>>> {
        self.syncers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Bytes of one disk that are not covered by any sync that has begun.
#[derive(Debug, Default)]
pub(super) struct DiskBytes(AtomicU64);

impl DiskBytes {
    pub(super) fn unsynced(&self) -> u64 {
        self.0.load(SeqCst)
    }

    /// Resets the count, because a sync begins that covers the bytes, or because they are lost.
    pub(super) fn take(&self) -> u64 {
        self.0.swap(0, SeqCst)
    }
}

/// Syncs a disk at the request of its file system, as a flush without a waiting request: an error
/// has the same effects as the error of a flush.
#[derive(Debug)]
pub(in crate::file) struct Syncer {
    disk: Arc<DiskWrites>,
    commit: Arc<GroupCommit>,
    jobs: PriorityJobs,
    /// Changed under the lock of all syncers.
    is_running: AtomicBool,
}

impl Syncer {
    /// Creates a syncer: the file system of `disk` can start syncs until [`close`](Self::close).
    pub(in crate::file) fn new(
        disk: Arc<DiskWrites>,
        commit: Arc<GroupCommit>,
        jobs: PriorityJobs,
    ) -> Arc<Self> {
        let this = Arc::new(Self { disk, commit, jobs, is_running: AtomicBool::new(false) });
        this.disk.dirty.syncers().push(Arc::clone(&this));
        this
    }

    /// Prevents further syncs; waits for a running one, at most `limit`.
    pub(in crate::file) fn close(self: &Arc<Self>, limit: Duration) {
        self.disk.dirty.syncers().retain(|syncer| !Arc::ptr_eq(syncer, self));
        self.wait_until_idle(limit);
        let file_system = &self.disk.file_system;
        file_system.release(self.disk.bytes.take());
    }

    /// Waits for a running sync, at most `limit`.
    pub(super) fn wait_until_idle(&self, limit: Duration) {
        let dirty = &self.disk.dirty;
        let is_running = |_: &mut Vec<_>| self.is_running.load(Relaxed);
        drop(dirty.changed.wait_timeout_while(dirty.syncers(), limit, is_running));
    }

    fn start(self: Arc<Self>) {
        let (commit, jobs) = (Arc::clone(&self.commit), self.jobs.clone());
        commit.sync_unrequested(&jobs, Box::new(move || self.ended()));
    }

    /// Handles the end of a sync, or a sync that was skipped because an earlier one failed.
    fn ended(&self) {
        let file_system = &self.disk.file_system;
        if self.commit.is_poisoned() {
            // Nothing is written any more, and unsynced data is lost.
            file_system.release(self.disk.bytes.take());
        }
        let syncers = file_system.dirty.syncers();
        self.is_running.store(false, Relaxed);
        drop(syncers);
        file_system.dirty.changed.notify_all();
        file_system.write_back_if_full();
    }
}

impl FileSystemWrites {
    /// Counts bytes that were written into the page cache of a disk of `disk_bytes`. Even if blocks
    /// are written repeatedly, at most the whole disk waits to be written back.
    pub(super) fn count(&self, disk: &DiskBytes, bytes: u64, disk_bytes: u64) {
        let bytes = bytes.min(disk_bytes.saturating_sub(disk.unsynced()));
        if bytes == 0 {
            return;
        }
        disk.0.fetch_add(bytes, SeqCst);
        let before = self.dirty.bytes.fetch_add(bytes, SeqCst);
        if before + bytes > self.limit_bytes() {
            self.dirty.full.store(true, SeqCst);
        }
    }

    /// Removes bytes that are written back or lost from the counts.
    pub(super) fn release(&self, bytes: u64) {
        let before = self.dirty.bytes.fetch_sub(bytes, SeqCst);
        if self.dirty.is_full() && before - bytes <= self.limit_bytes() / RESUME_DIVISOR {
            self.dirty.full.store(false, SeqCst);
        }
        drop(self.dirty.syncers());
        self.dirty.changed.notify_all();
    }

    /// Sets the limit of a file system from its free space, because its files allocate space as
    /// they are written.
    pub(in crate::file) fn set_free_space(&self, free_bytes: u64) {
        let bytes = (free_bytes / FREE_SPACE_DIVISOR).max(FREE_SPACE_LIMIT_BYTES_MIN);
        self.dirty.free_space_limit_bytes.store(bytes, Relaxed);
    }

    pub(super) fn limit_bytes(&self) -> u64 {
        let part = (self.registry.memory_bytes / INLINE_DIVISOR).min(INLINE_BYTES_MAX);
        let free_space_limit = self.dirty.free_space_limit_bytes.load(Relaxed);
        self.share_of(part).min(free_space_limit)
    }

    fn share_of(&self, bytes: u64) -> u64 {
        bytes / self.registry.counted.load(Relaxed).max(1) as u64
    }

    /// Starts syncs of the disks with most bytes to be written back.
    pub(super) fn write_back_if_full(&self) {
        while self.dirty.is_full()
            && let Some(syncer) = self.next_syncer()
        {
            // The lock is not held here: if no thread is available, the sync runs on this one.
            syncer.start();
        }
    }

    fn next_syncer(&self) -> Option<Arc<Syncer>> {
        let syncers = self.dirty.syncers();
        let is_running = |syncer: &&Arc<Syncer>| syncer.is_running.load(Relaxed);
        if syncers.iter().filter(is_running).count() >= SYNCS_MAX {
            return None;
        }
        let idle = syncers.iter().filter(|syncer| !is_running(syncer));
        let dirtiest = idle.max_by_key(|syncer| syncer.disk.bytes.unsynced())?;
        if dirtiest.disk.bytes.unsynced() == 0 {
            return None;
        }
        dirtiest.is_running.store(true, Relaxed);
        Some(Arc::clone(dirtiest))
    }

    /// Waits while workers have left too much to be written back.
    pub(super) fn wait_for_syncs(&self) {
        let bytes_max = self.share_of(self.registry.memory_bytes / WORKERS_DIVISOR);
        let is_over = || self.dirty.bytes.load(SeqCst) > bytes_max;
        if !self.in_memory && is_over() {
            let syncers = self.dirty.syncers();
            let changed = &self.dirty.changed;
            drop(changed.wait_timeout_while(syncers, WRITE_BACK_WAIT_MAX, |_| is_over()));
        }
    }
}
