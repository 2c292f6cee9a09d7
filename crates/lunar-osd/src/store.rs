//! The object store: its interface, and the state that its thread and readers share.

mod background;
mod checkpoint;
mod commands;
mod commit;
mod methods;
mod partition_copy;
mod plan;
mod read;
pub(crate) mod recovery;

pub use commands::{ChangeOptions, ObjectCommand, ObjectCommandResult, PartitionCopyTarget};

use crate::allocator::Allocator;
use crate::block_io::BlockIo;
use crate::format::{AccessedRow, ROW_BYTES_MAX, StoreLayout};
use crate::index::{Index, RowOverlay};
use crate::{ObjectId, StoreError};
use bytes::Bytes;
use lunar_block::BlockDevice;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use tokio::sync::{mpsc, oneshot};

/// Maximum length of the value of an attribute.
pub const ATTRIBUTE_BYTES_MAX: usize = 64 << 10;
const _: () = assert!(ATTRIBUTE_BYTES_MAX <= ROW_BYTES_MAX);

/// Number of jobs that wait for the thread of a store.
const QUEUED_JOBS_MAX: usize = 1024;

/// Choices for a new store.
#[derive(Clone, Copy, Debug, Default)]
pub struct FormatOptions {
    /// Length of the log; by default a sixteenth of the device, from 1 to 64 MiB.
    pub log_bytes: Option<u64>,
}

/// Choices for the use of a store.
#[derive(Clone, Copy, Debug)]
pub struct StoreOptions {
    /// True when commands are acknowledged before they are durable. A command is whole or absent
    /// after a power cut then, until a [`flush`](ObjectStore::flush).
    pub write_back: bool,
    /// Maximum length of the cached part of the index.
    pub cache_bytes: usize,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self { write_back: false, cache_bytes: 64 << 20 }
    }
}

type JobResult<T> = Result<T, StoreError>;

/// Work for the thread of a store.
enum StoreJob {
    Execute(ChangeJob),
    CopyPartition {
        source: u64,
        target: PartitionCopyTarget,
        options: ChangeOptions,
        done: oneshot::Sender<JobResult<u64>>,
    },
    Flush(oneshot::Sender<JobResult<()>>),
    Checkpoint(oneshot::Sender<JobResult<()>>),
    /// A checkpoint has ended.
    CheckpointDone,
    Reclaim(oneshot::Sender<JobResult<bool>>),
    Close(oneshot::Sender<JobResult<()>>),
}

/// Commands that are applied as one.
struct ChangeJob {
    commands: Vec<ObjectCommand>,
    options: ChangeOptions,
    /// True after space was reclaimed, or rows were copied, for the commands.
    is_retry: bool,
    done: oneshot::Sender<JobResult<Vec<ObjectCommandResult>>>,
}

/// Changed rows, and the data of blobs that are only in the log.
#[derive(Debug, Default)]
struct ChangedRows {
    rows: RowOverlay,
    /// Blobs by first block; also those that were freed again, for readers.
    deferred: HashMap<u64, Bytes>,
    deferred_bytes: usize,
}

impl ChangedRows {
    /// Returns the memory for the changes, about.
    fn bytes(&self) -> usize {
        self.rows.bytes().max(self.deferred_bytes)
    }
}

/// Changes that the index does not have.
#[derive(Debug, Default)]
struct CommittedState {
    /// Changes since the last checkpoint began.
    active: ChangedRows,
    /// Changes that a checkpoint is moving into the index.
    frozen: Option<Arc<ChangedRows>>,
}

impl CommittedState {
    /// Returns the changes, the latest first.
    fn overlays(&self) -> Vec<&RowOverlay> {
        let frozen = self.frozen.iter().map(|frozen| &frozen.rows);
        std::iter::once(&self.active.rows).chain(frozen).collect()
    }

    /// Returns a blob that is in memory.
    fn deferred(&self, start: u64) -> Option<&Bytes> {
        let frozen = || self.frozen.as_ref().and_then(|frozen| frozen.deferred.get(&start));
        self.active.deferred.get(&start).or_else(frozen)
    }
}

/// Times of access that are not in the index yet, by serial number.
type AccessTimes = HashMap<u64, (ObjectId, AccessedRow)>;

/// State that the thread shares with readers.
#[derive(Debug)]
pub(crate) struct SharedStore {
    io: BlockIo,
    layout: StoreLayout,
    allocator: Arc<Mutex<Allocator>>,
    /// None after the store was closed. redb waits for the device when it is dropped, so the last
    /// handle must not belong to a thread that drives futures.
    index: Mutex<Option<Arc<Index>>>,
    state: RwLock<CommittedState>,
    /// Held by readers that began since the last checkpoint.
    readers: Mutex<Arc<()>>,
    accessed: Mutex<AccessTimes>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl SharedStore {
    pub(crate) fn allocator(&self) -> MutexGuard<'_, Allocator> {
        lock(&self.allocator)
    }

    pub(crate) fn index(&self) -> JobResult<Arc<Index>> {
        lock(&self.index).clone().ok_or_else(stopped)
    }

    /// Ends the use of the index.
    pub(crate) fn close(&self) {
        let index = lock(&self.index).take();
        drop(index);
    }

    pub(crate) fn layout(&self) -> StoreLayout {
        self.layout
    }

    fn state(&self) -> RwLockReadGuard<'_, CommittedState> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn state_mut(&self) -> RwLockWriteGuard<'_, CommittedState> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A store of objects on a device.
///
/// Commands are applied in the order of their calls, each as a whole. A read sees all commands that
/// were acknowledged before it, and none in part. [`close`](Self::close) ends the use of the
/// device; a store that is dropped without it may still be using the device for a while.
#[derive(Debug)]
pub struct ObjectStore {
    shared: Arc<SharedStore>,
    jobs: mpsc::Sender<StoreJob>,
    write_back: bool,
}

fn stopped() -> StoreError {
    StoreError::Stopped("its thread has ended".into())
}

/// Runs work that waits for the device.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> JobResult<T> + Send + 'static,
) -> JobResult<T> {
    let failed = |_| StoreError::Index("it has failed an internal check".into());
    tokio::task::spawn_blocking(work).await.map_err(failed)?
}

impl ObjectStore {
    /// Makes an empty store of `device`, whose contents are lost.
    ///
    /// # Errors
    /// `NotAStore` if the device is too small, or the log too long; `Device`, `Index`.
    pub async fn format(
        device: Arc<dyn BlockDevice>,
        options: FormatOptions,
    ) -> Result<(), StoreError> {
        let io = BlockIo::new(device);
        blocking(move || recovery::format(&io, options)).await
    }

    /// Opens the store on `device`, and replays its log.
    ///
    /// # Errors
    /// `NotAStore`, `Damaged`, `Device`, `Index`.
    pub async fn open(
        device: Arc<dyn BlockDevice>,
        options: StoreOptions,
    ) -> Result<Self, StoreError> {
        let io = BlockIo::new(device);
        let (shared, committer) = blocking(move || recovery::open(io, options.cache_bytes)).await?;
        let (jobs, queue) = mpsc::channel(QUEUED_JOBS_MAX);
        let thread = std::thread::Builder::new().name("object store".into());
        let wake = jobs.downgrade();
        let spawned = thread.spawn(move || committer.run(queue, wake));
        spawned.map_err(|error| StoreError::index(&error))?;
        Ok(Self { shared, jobs, write_back: options.write_back })
    }

    async fn ask<T>(
        &self,
        job: impl FnOnce(oneshot::Sender<JobResult<T>>) -> StoreJob,
    ) -> JobResult<T> {
        let (done, result) = oneshot::channel();
        self.jobs.send(job(done)).await.map_err(|_| stopped())?;
        result.await.map_err(|_| stopped())?
    }

    /// Applies `commands` as one: all of them, or none.
    ///
    /// # Errors
    /// The errors of the first command that cannot be applied. In that case nothing has changed.
    pub async fn execute(
        &self,
        commands: Vec<ObjectCommand>,
        options: ChangeOptions,
    ) -> Result<Vec<ObjectCommandResult>, StoreError> {
        let job = |done| ChangeJob { commands, options, is_retry: false, done };
        self.ask(|done| StoreJob::Execute(job(done))).await
    }

    /// Copies a partition as it is, and returns the id of the copy. Objects share their data with
    /// the copies, so the cost depends on the number of objects and not on their length. Other
    /// commands wait meanwhile.
    ///
    /// After a power cut before the end there is no copy, and an existing target is unchanged.
    ///
    /// # Errors
    /// `NoSuchPartition`, `IdInUse`, `InvalidId`, `NoSpace`; `QuotaExceeded` for the number of
    /// partitions; `WrongObjectKind` for a target that is the source, and those of the device.
    pub async fn copy_partition(
        &self,
        source: u64,
        target: PartitionCopyTarget,
        options: ChangeOptions,
    ) -> Result<u64, StoreError> {
        self.ask(|done| StoreJob::CopyPartition { source, target, options, done }).await
    }

    /// Makes all acknowledged commands durable.
    ///
    /// # Errors
    /// `CacheLost` if the device has lost writes, and those of the device. The store has stopped
    /// then: all later changes and flushes fail, of whichever caller.
    pub async fn flush(&self) -> Result<(), StoreError> {
        self.ask(StoreJob::Flush).await
    }

    /// Moves all changes into the index, and frees the log. Commands continue meanwhile.
    ///
    /// # Errors
    /// `Device`, `Index`; the store has stopped then.
    pub async fn checkpoint(&self) -> Result<(), StoreError> {
        self.ask(StoreJob::Checkpoint).await
    }

    /// Removes some of what removed objects have left. Returns false if nothing is left. The store
    /// does this by itself while it has no other work.
    ///
    /// # Errors
    /// `Device`, `Index`; the store has stopped then.
    pub async fn reclaim(&self) -> Result<bool, StoreError> {
        self.ask(StoreJob::Reclaim).await
    }

    /// Makes all changes durable and ends the use of the device. Later commands fail.
    ///
    /// # Errors
    /// The errors of [`checkpoint`](Self::checkpoint). The device is no longer in use in any case.
    pub async fn close(self) -> Result<(), StoreError> {
        self.ask(StoreJob::Close).await
    }

    /// Returns the bytes that data can still take.
    pub fn free_bytes(&self) -> u64 {
        self.shared.allocator().free_blocks() * crate::block_io::BLOCK_BYTES
    }
}
