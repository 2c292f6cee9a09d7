//! Disks backed by a local file or block device.

mod backing;
mod clear;
mod commit;
mod data_end;
mod direct;
mod disk;
mod inline_writes;
mod lock;
mod open;
mod ranges;
mod resize;
mod ring;
mod sparse;
#[cfg(test)]
mod tests;
mod unsafe_extent_queries;
mod unsafe_fcntl;
mod workers;

use crate::{
    BackingProbe, BlockDevice, BlockRange, BoxFuture, Buffer, BufferPool, Clear, CreatedFile,
    Error, ErrorKind, Extent, Geometry, IoContext, PoisonWatcher, Resize, SpaceUsage, Sparse,
    SyncCounts,
};
use bytes::Bytes;
use commit::{GroupCommit, SyncError, SyncPeriod};
use disk::{Disk, INLINE_BYTES_MAX, InlineRead};
use inline_writes::Syncer;
use ring::{Memory, ReadAnswer, Transfer, TransfersInFlight};
use std::io;
use std::ops::Range;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use tokio::sync::oneshot;
use workers::{
    CLOSING_WAIT_MAX, ComputingLimit, ComputingSlots, JobLimits, RunningLimits, ThreadBudget,
    Workers,
};

pub use inline_writes::FileSystems;
pub use lock::FileIdentity;
pub use open::{FileOptions, file_identity};
pub use ring::with_ring;

/// Limits of the threads of one device, besides one thread for syncs. One owner gets 16 threads:
/// the kernel sees that many of its transfers at once. If the transfers of 31 owners hang, another
/// owner still gets a thread.
const THREADS: RunningLimits = RunningLimits { owners_max: 32, shared_max: 30 };

/// Maximum number of threads of all devices together, besides the first one of each. With 1,000
/// devices the total is less than half of the 4,915 that systemd allows a service by default
/// (`DefaultTasksMax`, 15 % of a `pid_max` of 32,768).
const ALL_THREADS_MAX: usize = 1024;
static ALL_THREADS: ThreadBudget = ThreadBudget::new(ALL_THREADS_MAX);

/// Slots for CPU-bound jobs of all devices: more jobs at a time would take the processor from the
/// cores.
static COMPUTING: LazyLock<ComputingSlots> = LazyLock::new(ComputingSlots::of_machine);

/// The slot for maps of all devices, for which no transfers wait.
static MAPPING: LazyLock<ComputingSlots> = LazyLock::new(ComputingSlots::of_maps);

/// Maximum number of maps of one device that are made at a time.
const DEVICE_MAPS_MAX: usize = 1;

/// Maximum number of jobs of one device that deallocate or zero at a time. The kernel works on them
/// under a lock of the file that admits one job at a time: further threads would spin.
const DEVICE_CLEARS_MAX: usize = 1;

/// Maximum number of writes into the page cache of one file at a time, not counting short inline
/// writes. The kernel has a lock for each file that admits one write at a time: further threads
/// would spin.
const FILE_WRITES_MAX: usize = 1;

/// Minimum length of a write into the page cache that needs a permit: for shorter ones a permit
/// would cost more than the lock is held.
const LONG_WRITE_BYTES: usize = 128 << 10;

/// Maximum number of long reads of a file that workers do at a time, for files that are often
/// cached and for files that lie in memory. The kernel mostly copies, and each further thread would
/// take the processor from the cores.
const LONG_READS_MAX: usize = 4;
const LONG_MEMORY_READS_MAX: usize = 1;

/// Maximum number of ranges of a list that one job deallocates. A job that has begun cannot be
/// cancelled, and each job costs the waiting core a change to another thread and back.
const CLEAR_JOB_RANGES: usize = 64;

/// Maximum length of a read that is tried inline first. A longer read is often cached only in part,
/// and that part would be read twice.
const IMMEDIATE_BYTES_MAX: usize = 64 << 10;

/// A local file or block device.
///
/// * Cached data is read inline (`preadv2` with `RWF_NOWAIT`), other data by the ring of the core
///   ([`with_ring`]) or, if there is none, by a bounded pool of threads. Writes go into the page
///   cache inline, one at a time per file system. They go to the pool for a while after a slow
///   write, while a sync takes long, while much data waits to be written back, while a piece of the
///   file is cleared, and always if the file system may wait for another machine or process. With
///   `direct`, all transfers bypass the page cache, by the ring or the pool.
/// * Durable writes and flushes share syncs (group commit). After a failed sync the device is
///   poisoned until it is recovered or opened again: writes and flushes fail with `Poisoned`, reads
///   continue.
/// * The file is locked exclusively, in a way that QEMU respects. The lock lasts until the device
///   and the transfers begun on it have ended; dropping the device waits for them, for a second at
///   most. A read-only device shares the lock with other readers.
/// * Neither a write nor a read of a block is torn by another transfer.
#[derive(Debug)]
pub struct FileDevice {
    disk: Arc<Disk>,
    commit: Arc<GroupCommit>,
    /// Syncs the file when much data of its file system waits to be written back.
    syncer: Arc<Syncer>,
    workers: Workers,
    map_slots: ComputingSlots,
    /// Limit of this device; [`MAPPING`] is the limit of all devices.
    maps: ComputingLimit,
    clears: ComputingLimit,
    writes: ComputingLimit,
    long_reads: ComputingLimit,
    /// Transfers that are with rings.
    in_flight: Arc<TransfersInFlight>,
    /// The file, if it was created for this device.
    created: Mutex<Option<CreatedFile>>,
}

impl FileDevice {
    /// Opens a file or block device, or creates the file.
    ///
    /// # Errors
    /// `Open`, with the problem and its remedy: the file does not exist and no size is given, it is
    /// neither a file nor a block device, no permission, in use (by which process, if that can be
    /// seen), an impossible geometry ([`Geometry::new`]), or direct I/O not possible.
    pub fn open(options: FileOptions) -> Result<Arc<Self>, Error> {
        Self::open_in(options, &FileSystems::default())
    }

    /// Opens one of several devices, as [`open`](Self::open). Devices on one file system take each
    /// other's writes into account if they are opened with the same `file_systems`.
    ///
    /// # Errors
    /// The errors of [`open`](Self::open).
    pub fn open_in(options: FileOptions, file_systems: &FileSystems) -> Result<Arc<Self>, Error> {
        let (disk, sync_failed, created) = open::open(&options, file_systems)?;
        let disk = Arc::new(disk);
        let synced = Arc::clone(&disk);
        let opened = Self::with_sync(disk, move || {
            synced.sync().inspect_err(|error| {
                let device = &synced.name;
                tracing::error!(
                    %device,
                    %error,
                    "sync failed: the disk refuses writes from now on"
                );
            })
        });
        *opened.created() = created;
        if sync_failed {
            opened.poison();
        }
        Ok(opened)
    }

    fn with_sync(
        disk: Arc<Disk>,
        sync: impl Fn() -> io::Result<()> + Send + Sync + 'static,
    ) -> Arc<Self> {
        Self::with_slots(disk, COMPUTING.clone(), MAPPING.clone(), sync)
    }

    fn with_slots(
        disk: Arc<Disk>,
        slots: ComputingSlots,
        map_slots: ComputingSlots,
        sync: impl Fn() -> io::Result<()> + Send + Sync + 'static,
    ) -> Arc<Self> {
        let long_reads_max = match disk.inline_read {
            InlineRead::Always => LONG_MEMORY_READS_MAX,
            InlineRead::NoWait | InlineRead::Never => LONG_READS_MAX,
        };
        let commit = GroupCommit::new(sync);
        let workers = Workers::new("lunar-file", THREADS, &ALL_THREADS, slots);
        let writes = Arc::clone(&disk.writes);
        Arc::new(Self {
            syncer: Syncer::new(writes, Arc::clone(&commit), workers.priority_jobs()),
            disk,
            commit,
            workers,
            maps: ComputingLimit::new(DEVICE_MAPS_MAX),
            map_slots,
            clears: ComputingLimit::new(DEVICE_CLEARS_MAX),
            writes: ComputingLimit::new(FILE_WRITES_MAX),
            long_reads: ComputingLimit::new(long_reads_max),
            in_flight: Arc::default(),
            created: Mutex::default(),
        })
    }

    fn created(&self) -> MutexGuard<'_, Option<CreatedFile>> {
        self.created.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the identity of the file or device, which does not depend on its path.
    ///
    /// # Errors
    /// `Open` when the system does not report it.
    pub fn identity(&self) -> Result<FileIdentity, Error> {
        let metadata = self.disk.file.metadata();
        metadata.map(|metadata| FileIdentity::of(&metadata)).map_err(|error| {
            Error::new(ErrorKind::Open, self.name(), "its metadata cannot be read").because(error)
        })
    }

    /// Runs a blocking transfer on a worker.
    async fn blocking<T: Send + 'static>(
        &self,
        range: BlockRange,
        limits: JobLimits<'_>,
        job: impl FnOnce(&Disk) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let disk = Arc::clone(&self.disk);
        let done = self.workers.run_within(limits, move || job(&disk)).await;
        done.unwrap_or_else(|lost| Err(self.lost(range).because(lost)))
    }

    fn lost(&self, range: BlockRange) -> Error {
        Error::new(ErrorKind::Medium, self.name(), "the transfer was lost").at(range)
    }

    /// Begins a read by the ring of this thread; returns the buffer if that is not possible now.
    fn begin_read(
        &self,
        bytes: &Range<u64>,
        into: Buffer,
        from: usize,
    ) -> Result<oneshot::Receiver<ReadAnswer>, Buffer> {
        let end = from + (bytes.end - bytes.start) as usize;
        let fits = match self.disk.direct {
            Some(alignment) => alignment.is_direct(bytes, &into[from..end]),
            // The ring copies data from the page cache on this thread.
            None => end - from <= INLINE_BYTES_MAX,
        };
        let Some(free_slot) = self.free_slot(fits) else { return Err(into) };
        let Some(hold) = self.disk.try_hold(bytes, false) else { return Err(into) };
        let (answer, answered) = oneshot::channel();
        let memory = Memory::Read { buffer: into, from, answer };
        free_slot.put(Transfer::new(hold, bytes, memory, &self.in_flight));
        Ok(answered)
    }

    /// Begins a write by the ring of this thread, with direct I/O only: into the page cache, a ring
    /// writes with kernel threads. Returns `None` if that is not possible now.
    fn begin_write(
        &self,
        bytes: &Range<u64>,
        from: &Bytes,
    ) -> Option<oneshot::Receiver<io::Result<()>>> {
        let fits = self.disk.direct.is_some_and(|alignment| alignment.is_direct(bytes, from));
        let free_slot = self.free_slot(fits)?;
        let hold = self.disk.try_hold(bytes, true)?;
        // A worker reports the error.
        self.disk.check_still_within(bytes).ok()?;
        let (answer, answered) = oneshot::channel();
        let memory = Memory::Write { bytes: from.clone(), answer };
        free_slot.put(Transfer::new(hold, bytes, memory, &self.in_flight));
        Some(answered)
    }

    fn free_slot(&self, fits: bool) -> Option<ring::FreeSlot> {
        let by_ring = self.disk.by_ring && !self.disk.ring_would_wait();
        if fits && by_ring { ring::free_slot() } else { None }
    }

    /// Makes the checks of every change; returns the period in which the change is to be committed.
    fn check_writable(&self) -> Result<SyncPeriod, Error> {
        let period = self.commit.period();
        if self.disk.read_only {
            return Err(Error::new(ErrorKind::ReadOnly, self.name(), "it is read-only"));
        }
        if self.commit.is_poisoned() {
            return Err(self.poisoned());
        }
        Ok(period)
    }

    fn poisoned(&self) -> Error {
        let what = "a sync has failed: data written since the last successful sync may be lost; \
                    check the device, then recover it or reopen it";
        Error::new(ErrorKind::Poisoned, self.name(), what)
    }

    async fn commit(&self, period: SyncPeriod) -> Result<(), Error> {
        // The data is written already, and a sync changes no data.
        if let Some(context) = IoContext::current() {
            context.allow_cancel();
        }
        match self.commit.commit(period, &self.workers).await {
            Ok(()) => Ok(()),
            Err(SyncError::Poisoned) => Err(self.poisoned()),
            Err(SyncError::Failed(error)) => {
                let failed = Error::new(ErrorKind::Medium, self.name(), "the sync failed");
                Err(failed.because(error))
            }
        }
    }

    async fn read_bytes(
        &self,
        range: BlockRange,
        bytes: Range<u64>,
        mut into: Buffer,
    ) -> Result<Buffer, Error> {
        let len = (bytes.end - bytes.start) as usize;
        let failed = |error| self.disk.failed("reading failed", range, error);
        let done = self.disk.read_cached(&bytes, &mut into[..len]).map_err(failed)?;
        if done == len {
            return Ok(into);
        }
        let rest = bytes.start + done as u64..bytes.end;
        let mut into = match self.begin_read(&rest, into, done) {
            Ok(answer) => {
                let (result, into) = answer.await.map_err(|e| self.lost(range).because(e))?;
                return result.map(|()| into).map_err(failed);
            }
            Err(into) => into,
        };
        let transfer = self.disk.transfer();
        let is_long = len > INLINE_BYTES_MAX && self.disk.direct.is_none();
        let limits = JobLimits {
            permits: is_long.then_some(&self.long_reads),
            slots: is_long.then_some(self.workers.slots()),
            is_continued: false,
        };
        let read = move |disk: &Disk| {
            let _transfer = transfer;
            let result = disk.read(&rest, &mut into[done..len]);
            result.map_err(|error| disk.failed("reading failed", range, error))?;
            Ok(into)
        };
        self.blocking(range, limits, read).await
    }

    async fn write_bytes(
        &self,
        range: BlockRange,
        bytes: Range<u64>,
        from: Bytes,
    ) -> Result<(), Error> {
        let failed = |error| self.disk.failed("writing failed", range, error);
        let permits = self.disk.writes_compute().then_some(&self.writes);
        let is_long = from.len() >= LONG_WRITE_BYTES && permits.is_some();
        let permit = is_long.then(|| self.writes.try_permit());
        let is_permitted = !matches!(permit, Some(None));
        if is_permitted && self.disk.write_inline(&bytes, &from).map_err(failed)? {
            return Ok(());
        }
        drop(permit);
        if let Some(answer) = self.begin_write(&bytes, &from) {
            let result = answer.await.map_err(|e| self.lost(range).because(e))?;
            return result.map_err(failed);
        }
        let transfer = self.disk.transfer();
        let write = move |disk: &Disk| {
            let _transfer = transfer;
            let result = disk.write(&bytes, &from);
            result.map_err(|error| disk.failed("writing failed", range, error))
        };
        let slots = is_long.then_some(self.workers.slots());
        self.blocking(range, JobLimits { permits, slots, is_continued: false }, write).await
    }

    /// Deallocates or zeroes ranges. A job that has to leave its slot to others stops after a
    /// piece, and the next job continues.
    async fn clear(
        &self,
        ranges: &[BlockRange],
        deallocate: bool,
        durable: bool,
    ) -> Result<(), Error> {
        let geometry = self.disk.geometry();
        let checked =
            |range: &BlockRange| Ok((*range, geometry.checked_range(self.name(), *range)?));
        let mut parts: Vec<_> = ranges.iter().map(checked).collect::<Result<_, Error>>()?;
        let period = self.check_writable()?;
        parts.retain(|(_, bytes)| !bytes.is_empty());
        let slots = self.workers.slots();
        let permits = Some(&self.clears);
        let limits = JobLimits { permits, slots: Some(slots), is_continued: false };
        for ranges in parts.chunks(CLEAR_JOB_RANGES) {
            let mut clear = self.disk.unfinished_clear(ranges, deallocate);
            while let Some(next) = clear.next_range() {
                let slots = slots.clone();
                let job = move |disk: &Disk| {
                    let slice = slots.time_slice();
                    disk.continue_clear(&mut clear, || slice.is_over())?;
                    Ok(clear)
                };
                clear = self.blocking(next, limits, job).await?;
            }
        }
        if durable { self.commit(period).await } else { Ok(()) }
    }
}

impl Drop for FileDevice {
    /// Waits for transfers with rings, as for transfers with workers.
    fn drop(&mut self) {
        self.in_flight.drain(CLOSING_WAIT_MAX);
        self.syncer.close(CLOSING_WAIT_MAX);
    }
}

impl BlockDevice for FileDevice {
    fn name(&self) -> &str {
        &self.disk.name
    }

    fn take_created(&self) -> Option<CreatedFile> {
        self.created().take()
    }

    fn geometry(&self) -> Geometry {
        self.disk.geometry()
    }

    fn read(&self, range: BlockRange, into: Buffer) -> BoxFuture<'_, Result<Buffer, Error>> {
        Box::pin(async move {
            let bytes = self.disk.geometry().checked(self.name(), range, into.len(), false)?;
            if bytes.is_empty() { Ok(into) } else { self.read_bytes(range, bytes, into).await }
        })
    }

    fn try_read_now(&self, range: BlockRange, into: &mut [u8]) -> bool {
        let bytes = self.disk.geometry().checked(self.name(), range, into.len(), false);
        let Ok(bytes) = bytes else { return false };
        let len = (bytes.end - bytes.start) as usize;
        let read = |into| self.disk.read_cached(&bytes, into).is_ok_and(|done| done == len);
        len <= IMMEDIATE_BYTES_MAX && read(&mut into[..len])
    }

    fn write(
        &self,
        range: BlockRange,
        from: Bytes,
        durable: bool,
    ) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            let bytes = self.disk.geometry().checked(self.name(), range, from.len(), true)?;
            let period = self.check_writable()?;
            if !bytes.is_empty() {
                self.write_bytes(range, bytes, from).await?;
            }
            if durable { self.commit(period).await } else { Ok(()) }
        })
    }

    fn try_write_now(&self, range: BlockRange, from: &[u8], durable: bool) -> bool {
        if durable || self.check_writable().is_err() {
            return false;
        }
        let bytes = self.disk.geometry().checked(self.name(), range, from.len(), true);
        let write = |bytes| self.disk.write_inline(&bytes, from).unwrap_or(false);
        bytes.is_ok_and(|bytes| bytes.is_empty() || write(bytes))
    }

    fn flush(&self) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            let period = self.commit.period();
            if self.disk.read_only { Ok(()) } else { self.commit(period).await }
        })
    }

    fn set_buffers(&self, buffers: &BufferPool) {
        let _ = self.disk.bounce.set(buffers.clone()); // the first call wins
    }

    fn prefetch(&self, range: BlockRange) {
        let Some(bytes) = self.disk.geometry().byte_range(range) else { return };
        if self.disk.direct.is_none() && !bytes.is_empty() {
            let disk = Arc::clone(&self.disk);
            self.workers.run_hint(move || disk.prefetch(&bytes));
        }
    }

    fn sparse(&self) -> Option<&dyn Sparse> {
        Some(self)
    }

    fn resize(&self) -> Option<&dyn Resize> {
        Some(self)
    }

    fn is_read_only(&self) -> bool {
        self.disk.read_only
    }

    fn io_tier(&self) -> String {
        match (self.disk.direct, self.disk.inline_read, self.disk.inline_write) {
            (Some(_), ..) if self.disk.by_ring => "direct, io_uring",
            (Some(_), ..) => "direct, pool",
            (None, ..) if self.disk.by_ring => "inline + io_uring",
            (None, InlineRead::Never, true) => "inline writes, pool",
            (None, InlineRead::Never, false) => "pool",
            (None, _, true) => "inline + pool",
            (None, _, false) => "inline reads, pool",
        }
        .into()
    }

    fn recover(&self) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            if !self.commit.is_poisoned() {
                return self.flush().await;
            }
            let (disk, commit) = (Arc::clone(&self.disk), Arc::clone(&self.commit));
            let tried = self.workers.run(move || commit.recover(|| disk.drop_cache()));
            let tried = tried.await.unwrap_or_else(|lost| Err(io::Error::other(lost)));
            tried.map_err(|error| {
                let failed =
                    Error::new(ErrorKind::Medium, self.name(), "the disk cannot be synced yet");
                failed.because(error)
            })
        })
    }

    fn watch_poison(&self, watcher: Arc<dyn PoisonWatcher>) {
        self.commit.watch(watcher);
    }

    fn poison(&self) {
        if let Err(error) = self.disk.drop_cache() {
            let device = self.name();
            tracing::warn!(
                device,
                %error,
                "cannot drop the page cache: reads may return data that is not on the medium"
            );
        }
        self.commit.start_poisoned();
    }

    fn backing(&self) -> Option<Arc<dyn BackingProbe>> {
        Some(Arc::clone(&self.disk.backing) as Arc<dyn BackingProbe>)
    }

    fn sync_counts(&self) -> Option<SyncCounts> {
        Some(self.commit.counts())
    }
}

impl Sparse for FileDevice {
    fn unmap(&self, range: BlockRange, durable: bool) -> BoxFuture<'_, Result<(), Error>> {
        self.unmap_all(vec![range], durable)
    }

    fn unmap_all(
        &self,
        ranges: Vec<BlockRange>,
        durable: bool,
    ) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(async move { self.clear(&ranges, true, durable).await })
    }

    fn write_zeroes(
        &self,
        range: BlockRange,
        may_unmap: bool,
        durable: bool,
    ) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(async move { self.clear(&[range], may_unmap, durable).await })
    }

    /// Clears as many ranges as one job of a worker clears.
    fn clear_piece(
        &self,
        mut ranges: Vec<BlockRange>,
        clear: Clear,
        durable: bool,
    ) -> BoxFuture<'_, Result<u64, Error>> {
        Box::pin(async move {
            let durable = durable && ranges.len() <= CLEAR_JOB_RANGES;
            ranges.truncate(CLEAR_JOB_RANGES);
            let end = ranges.last().map_or(0, |range| range.lba.saturating_add(range.count));
            let deallocates = clear != Clear::Zero { may_unmap: false };
            self.clear(&ranges, deallocates, durable).await?;
            Ok(end)
        })
    }

    fn status(
        &self,
        range: BlockRange,
        extents_max: usize,
    ) -> BoxFuture<'_, Result<Vec<Extent>, Error>> {
        Box::pin(async move {
            let bytes = self.disk.geometry().checked_range(self.name(), range)?;
            let mut map = self.disk.unfinished_map(range, bytes, extents_max);
            let (permits, slots) = (Some(&self.maps), Some(&self.map_slots));
            let mut limits = JobLimits { permits, slots, is_continued: false };
            while !map.is_over() {
                let slots = self.map_slots.clone();
                let job = move |disk: &Disk| {
                    let slice = slots.time_slice();
                    disk.continue_map(&mut map, || slice.is_over())?;
                    Ok(map)
                };
                map = self.blocking(range, limits, job).await?;
                limits.is_continued = true;
            }
            Ok(map.into_extents())
        })
    }

    fn granularity_bytes(&self) -> u32 {
        self.disk.granularity_bytes
    }

    fn space_usage(&self) -> Result<Option<SpaceUsage>, Error> {
        self.disk.space_usage().map_err(|error| {
            let what = "the free space of its file system cannot be determined";
            Error::new(ErrorKind::Medium, self.name(), what).because(error)
        })
    }
}
