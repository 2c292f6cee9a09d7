//! The object store: its interface, and the state that its thread and readers share.

mod checkpoint;
mod commit;
mod log;
mod plan;
mod read;
mod recovery;

use crate::allocator::Allocator;
use crate::block_io::BlockIo;
use crate::format::{ROW_BYTES_MAX, StoreLayout};
use crate::index::{Index, RowOverlay};
use crate::{AttributeId, ObjectId, StoreError};
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

/// A change of a store.
#[derive(Clone, Debug)]
pub enum ObjectCommand {
    /// Creates a partition with this id, or with one that the store chooses.
    CreatePartition(Option<u64>),
    /// Removes an empty partition.
    RemovePartition(u64),
    /// Creates an empty object.
    Create {
        /// The partition.
        partition: u64,
        /// The id, or none if the store chooses it.
        id: Option<u64>,
    },
    /// Removes an object with its attributes.
    Remove(ObjectId),
    /// Writes bytes; the object grows if they end beyond its end.
    Write {
        /// The object.
        object: ObjectId,
        /// First byte.
        offset: u64,
        /// The bytes.
        data: Bytes,
    },
    /// Writes bytes at the end of the object.
    Append {
        /// The object.
        object: ObjectId,
        /// The bytes.
        data: Bytes,
    },
    /// Makes bytes zero; the object grows if they end beyond its end.
    Clear {
        /// The object.
        object: ObjectId,
        /// First byte.
        offset: u64,
        /// Number of bytes.
        len: u64,
    },
    /// Removes bytes; those behind them move to the front.
    Punch {
        /// The object.
        object: ObjectId,
        /// First byte.
        offset: u64,
        /// Number of bytes.
        len: u64,
    },
    /// Sets the logical length: truncates the object, or lets it grow by zeroes.
    SetLength {
        /// The object.
        object: ObjectId,
        /// The new length.
        length: u64,
    },
    /// Sets an attribute, or removes it.
    SetAttribute {
        /// The object, partition or root.
        owner: ObjectId,
        /// The attribute.
        id: AttributeId,
        /// The value, or none to remove the attribute.
        value: Option<Bytes>,
    },
}

/// The result of a command.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ObjectCommandResult {
    /// The command has no other result.
    Done,
    /// The id of the new partition.
    Partition(u64),
    /// The name of the new object.
    Object(ObjectId),
    /// The first byte of the appended bytes.
    Offset(u64),
}

type JobResult<T> = Result<T, StoreError>;

/// Work for the thread of a store.
enum StoreJob {
    Execute(ChangeJob),
    Flush(oneshot::Sender<JobResult<()>>),
    Checkpoint(oneshot::Sender<JobResult<()>>),
    Reclaim(oneshot::Sender<JobResult<bool>>),
    Close(oneshot::Sender<JobResult<()>>),
}

/// Commands that are applied as one.
struct ChangeJob {
    commands: Vec<ObjectCommand>,
    durable: bool,
    /// True after space was reclaimed for the commands.
    is_retry: bool,
    done: oneshot::Sender<JobResult<Vec<ObjectCommandResult>>>,
}

/// Changes since the last checkpoint.
#[derive(Debug, Default)]
struct CommittedState {
    rows: RowOverlay,
    /// Blobs that are only in the log, by first block; also those that were freed again, for
    /// readers.
    deferred: HashMap<u64, Bytes>,
    deferred_bytes: usize,
}

/// State that the thread shares with readers.
#[derive(Debug)]
struct SharedStore {
    io: BlockIo,
    layout: StoreLayout,
    allocator: Arc<Mutex<Allocator>>,
    /// None after the store was closed. redb waits for the device when it is dropped, so the last
    /// handle must not belong to a thread that drives futures.
    index: Mutex<Option<Arc<Index>>>,
    state: RwLock<CommittedState>,
    /// Held by readers that began since the last checkpoint.
    readers: Mutex<Arc<()>>,
}

impl SharedStore {
    fn allocator(&self) -> MutexGuard<'_, Allocator> {
        self.allocator.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn index(&self) -> JobResult<Arc<Index>> {
        let index = self.index.lock().unwrap_or_else(PoisonError::into_inner);
        index.clone().ok_or_else(stopped)
    }

    /// Ends the use of the index.
    fn close(&self) {
        let index = self.index.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(index);
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
async fn blocking<T: Send + 'static>(
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
        let spawned = thread.spawn(move || committer.run(queue));
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

    /// Applies `commands` as one: all of them, or none. With `durable` they are on stable storage
    /// when the future completes.
    ///
    /// # Errors
    /// Those of the first command that cannot be applied; nothing has changed then.
    pub async fn execute(
        &self,
        commands: Vec<ObjectCommand>,
        durable: bool,
    ) -> Result<Vec<ObjectCommandResult>, StoreError> {
        let job = |done| ChangeJob { commands, durable, is_retry: false, done };
        self.ask(|done| StoreJob::Execute(job(done))).await
    }

    async fn execute_one(&self, command: ObjectCommand) -> JobResult<ObjectCommandResult> {
        let results = self.execute(vec![command], !self.write_back).await?;
        results.first().copied().ok_or_else(stopped)
    }

    /// Creates a partition, and returns its id; the store chooses one if `id` is none.
    ///
    /// # Errors
    /// `IdInUse`, `InvalidId`, and those of the device.
    pub async fn create_partition(&self, id: Option<u64>) -> Result<u64, StoreError> {
        match self.execute_one(ObjectCommand::CreatePartition(id)).await? {
            ObjectCommandResult::Partition(id) => Ok(id),
            _ => Err(stopped()),
        }
    }

    /// Removes an empty partition.
    ///
    /// # Errors
    /// `NoSuchPartition`, `PartitionNotEmpty`, and those of the device.
    pub async fn remove_partition(&self, id: u64) -> Result<(), StoreError> {
        self.execute_one(ObjectCommand::RemovePartition(id)).await.map(drop)
    }

    /// Creates an empty object; the store chooses the id if `id` is none.
    ///
    /// # Errors
    /// `NoSuchPartition`, `IdInUse`, `InvalidId`, and those of the device.
    pub async fn create(&self, partition: u64, id: Option<u64>) -> Result<ObjectId, StoreError> {
        match self.execute_one(ObjectCommand::Create { partition, id }).await? {
            ObjectCommandResult::Object(id) => Ok(id),
            _ => Err(stopped()),
        }
    }

    /// Removes an object with its attributes. Its space is free after a while.
    ///
    /// # Errors
    /// `NoSuchPartition`, `NoSuchObject`, and those of the device.
    pub async fn remove(&self, object: ObjectId) -> Result<(), StoreError> {
        self.execute_one(ObjectCommand::Remove(object)).await.map(drop)
    }

    /// Writes `data` from byte `offset` on.
    ///
    /// # Errors
    /// `NoSuchPartition`, `NoSuchObject`, `OutOfRange`, `NoSpace`; `Damaged` if the other bytes of
    /// a block are damaged; those of the device.
    pub async fn write(
        &self,
        object: ObjectId,
        offset: u64,
        data: Bytes,
    ) -> Result<(), StoreError> {
        self.execute_one(ObjectCommand::Write { object, offset, data }).await.map(drop)
    }

    /// Writes `data` at the end of the object, and returns the first byte.
    ///
    /// # Errors
    /// Those of [`write`](Self::write).
    pub async fn append(&self, object: ObjectId, data: Bytes) -> Result<u64, StoreError> {
        match self.execute_one(ObjectCommand::Append { object, data }).await? {
            ObjectCommandResult::Offset(offset) => Ok(offset),
            _ => Err(stopped()),
        }
    }

    /// Makes `len` bytes zero and frees their space.
    ///
    /// # Errors
    /// Those of [`write`](Self::write), and `CommandTooLarge`.
    pub async fn clear(&self, object: ObjectId, offset: u64, len: u64) -> Result<(), StoreError> {
        self.execute_one(ObjectCommand::Clear { object, offset, len }).await.map(drop)
    }

    /// Removes `len` bytes; those behind them move to the front.
    ///
    /// # Errors
    /// `OutOfRange` if `offset` is beyond the end; those of [`clear`](Self::clear).
    pub async fn punch(&self, object: ObjectId, offset: u64, len: u64) -> Result<(), StoreError> {
        self.execute_one(ObjectCommand::Punch { object, offset, len }).await.map(drop)
    }

    /// Sets the logical length.
    ///
    /// # Errors
    /// Those of [`clear`](Self::clear).
    pub async fn set_length(&self, object: ObjectId, length: u64) -> Result<(), StoreError> {
        self.execute_one(ObjectCommand::SetLength { object, length }).await.map(drop)
    }

    /// Sets an attribute of an object, a partition or the root; none removes it.
    ///
    /// # Errors
    /// `NoSuchPartition`, `NoSuchObject`, `AttributeTooLong`, and those of the device.
    pub async fn set_attribute(
        &self,
        owner: ObjectId,
        id: AttributeId,
        value: Option<Bytes>,
    ) -> Result<(), StoreError> {
        self.execute_one(ObjectCommand::SetAttribute { owner, id, value }).await.map(drop)
    }

    /// Makes all acknowledged commands durable.
    ///
    /// # Errors
    /// Those of the device; the store has stopped then.
    pub async fn flush(&self) -> Result<(), StoreError> {
        self.ask(StoreJob::Flush).await
    }

    /// Moves all changes into the index, and frees the log.
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
    /// Those of [`checkpoint`](Self::checkpoint); the device is not in use then, either.
    pub async fn close(self) -> Result<(), StoreError> {
        self.ask(StoreJob::Close).await
    }

    /// Returns the bytes that data can still take.
    pub fn free_bytes(&self) -> u64 {
        self.shared.allocator().free_blocks() * crate::block_io::BLOCK_BYTES
    }
}
