//! Bytes written into the page cache that no sync covers yet, and the syncs that write them back.

use super::super::commit::GroupCommit;
use super::super::workers::FirstJobs;
use super::{DiskWrites, FileSystemWrites};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The part of the memory that inline writes may leave to be written back, on all file systems
/// together. The kernel has writers wait from 15 % of the memory on (`dirty_ratio`), and a control
/// group of version 1 from when it is full.
pub(super) const INLINE_PART: u64 = 16;
/// Of a large memory as well no more than this: a flush writes all of it back.
const INLINE_BYTES_MAX: u64 = 1 << 30;

/// The part of the memory from which on writes of workers wait for syncs. Where a control group is
/// full of such bytes, the cores wait for memory.
const WORKERS_PART: u64 = 4;

/// The part of a file system's free room that inline writes may leave to be written back, where
/// files take room as they are written. ext4 has writers wait from a half on.
const ROOM_PART: u64 = 8;
/// The limit is at least this, however little room is left: most writes take none.
const ROOM_BYTES_MIN: u64 = 4 << 20;

/// Inline writes come back when so much of the limit is left.
const RESUME_PART: u64 = 2;

/// Disks of a file system that are synced at a time to write back.
const SYNCS_MAX: usize = 4;

/// A write of a worker waits for syncs no longer than this.
const ROOM_WAIT_MAX: Duration = Duration::from_secs(if cfg!(test) { 60 } else { 1 });

/// Bytes of a file system that no sync covers yet.
#[derive(Debug)]
pub(super) struct DirtyBytes {
    bytes: AtomicU64,
    /// The limit was reached, and a good part of it is not free yet.
    full: AtomicBool,
    /// Limit by the free room.
    room_bytes: AtomicU64,
    syncers: Mutex<Vec<Arc<Syncer>>>,
    changed: Condvar,
}

impl Default for DirtyBytes {
    fn default() -> Self {
        Self {
            bytes: AtomicU64::new(0),
            full: AtomicBool::new(false),
            room_bytes: AtomicU64::new(u64::MAX),
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

/// Bytes of one disk that no sync covers which has begun.
#[derive(Debug, Default)]
pub(super) struct DiskBytes(AtomicU64);

impl DiskBytes {
    pub(super) fn unsynced(&self) -> u64 {
        self.0.load(SeqCst)
    }

    /// A sync begins that covers them, or they are lost.
    pub(super) fn take(&self) -> u64 {
        self.0.swap(0, SeqCst)
    }
}

/// Syncs a disk when its file system asks for it, as a flush that nobody waits for: an error
/// reaches all whom the error of a flush reaches.
#[derive(Debug)]
pub(in crate::file) struct Syncer {
    disk: Arc<DiskWrites>,
    commit: Arc<GroupCommit>,
    jobs: FirstJobs,
    /// Changed under the lock of all syncers.
    is_running: AtomicBool,
}

impl Syncer {
    /// Until [`close`](Self::close), the file system of `disk` may have it synced.
    pub(in crate::file) fn new(
        disk: Arc<DiskWrites>,
        commit: Arc<GroupCommit>,
        jobs: FirstJobs,
    ) -> Arc<Self> {
        let this = Arc::new(Self { disk, commit, jobs, is_running: AtomicBool::new(false) });
        this.disk.dirty.syncers().push(Arc::clone(&this));
        this
    }

    /// No sync is begun any more; waits for one that runs, no longer than `limit`.
    pub(in crate::file) fn close(self: &Arc<Self>, limit: Duration) {
        self.disk.dirty.syncers().retain(|syncer| !Arc::ptr_eq(syncer, self));
        self.wait_until_idle(limit);
        let file_system = &self.disk.file_system;
        file_system.release(self.disk.bytes.take());
    }

    /// Waits for a sync that runs, no longer than `limit`.
    pub(super) fn wait_until_idle(&self, limit: Duration) {
        let dirty = &self.disk.dirty;
        let is_running = |_: &mut Vec<_>| self.is_running.load(Relaxed);
        drop(dirty.changed.wait_timeout_while(dirty.syncers(), limit, is_running));
    }

    fn start(self: Arc<Self>) {
        let (commit, jobs) = (Arc::clone(&self.commit), self.jobs.clone());
        commit.sync_unasked(&jobs, Box::new(move || self.ended()));
    }

    /// The sync has ended, or there was none, as one has failed before.
    fn ended(&self) {
        let file_system = &self.disk.file_system;
        if self.commit.is_poisoned() {
            // Nothing is written, and what was is lost.
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
    /// Counts bytes of a disk of `disk_bytes` that were written into the page cache. Whatever is
    /// written again, no more than the whole disk is to be written back.
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

    /// These bytes are written back, or lost.
    pub(super) fn release(&self, bytes: u64) {
        let before = self.dirty.bytes.fetch_sub(bytes, SeqCst);
        if self.dirty.is_full() && before - bytes <= self.limit_bytes() / RESUME_PART {
            self.dirty.full.store(false, SeqCst);
        }
        drop(self.dirty.syncers());
        self.dirty.changed.notify_all();
    }

    /// Of a file system with so much free room, files on it take room as they are written.
    pub(in crate::file) fn set_room(&self, free_bytes: u64) {
        let bytes = (free_bytes / ROOM_PART).max(ROOM_BYTES_MIN);
        self.dirty.room_bytes.store(bytes, Relaxed);
    }

    pub(super) fn limit_bytes(&self) -> u64 {
        let part = (self.registry.memory_bytes / INLINE_PART).min(INLINE_BYTES_MAX);
        let room = self.dirty.room_bytes.load(Relaxed);
        self.share_of(part).min(room)
    }

    fn share_of(&self, bytes: u64) -> u64 {
        bytes / self.registry.counted.load(Relaxed).max(1) as u64
    }

    /// Has the disks synced that hold most of what is to be written back.
    pub(super) fn write_back_if_full(&self) {
        while self.dirty.is_full()
            && let Some(syncer) = self.next_syncer()
        {
            // Not under the lock: where no thread can be had, the sync is done here.
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
        let most = idle.max_by_key(|syncer| syncer.disk.bytes.unsynced())?;
        if most.disk.bytes.unsynced() == 0 {
            return None;
        }
        most.is_running.store(true, Relaxed);
        Some(Arc::clone(most))
    }

    /// Waits while writes of workers leave too much to be written back.
    pub(super) fn wait_for_syncs(&self) {
        let bytes_max = self.share_of(self.registry.memory_bytes / WORKERS_PART);
        let is_over = || self.dirty.bytes.load(SeqCst) > bytes_max;
        if !self.in_memory && is_over() {
            let syncers = self.dirty.syncers();
            let changed = &self.dirty.changed;
            drop(changed.wait_timeout_while(syncers, ROOM_WAIT_MAX, |_| is_over()));
        }
    }
}
