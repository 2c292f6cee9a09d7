//! The move of an extent of a virtual disk to other blocks while the disk is in use.
//!
//! The source, the blocks where the extent is before the move, has all data until the end. The
//! destination gets it in regions. A change of blocks goes to the source, and to the destination if
//! a region of it is copied already; if the destination fails or is late, the region is copied
//! again. Overlapping changes and the copy of a region have one order, in a queue. The end takes
//! its turn for the whole extent, so that no change is on its way: the destination is flushed, the
//! record is made durable, and all later transfers go to the destination. After a crash at any
//! moment, the record names blocks that have all data.

mod changes;
mod copy;
mod record;
mod regions;

use crate::virtual_disk::DiskCore;
use lunar_block::{BlockDevice, Error, IoContext};
use lunar_pool::{ChangeQueue, DeviceExtent, JoinedShape, LATE_MAX, LATENESS_WINDOW, Lateness};
use regions::UncopiedRegions;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::Instant;

pub(crate) use changes::{Change, MigratingChange};
pub use record::{MigrationRecord, RecordOutcome};

/// Default length of a region.
const REGION_BYTES: u64 = 512 << 10;

/// Default rate of the copy while hosts use the disk.
const BUSY_BYTES_PER_SECOND: u64 = 32 << 20;

/// Default time for which a change waits for the destination behind the source.
const TARGET_WAIT: Duration = Duration::from_secs(2);

/// Default pause after a failure; it doubles up to 32 times with each further one.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Default pause after the destination has held up changes for too long; it doubles up to 16 times.
/// The pause is ten times as long as they may wait before it.
const LATE_PAUSE: Duration = Duration::from_secs(10 * LATE_MAX.as_secs());

/// Share of the wait for the destination by which it may be later than the source without
/// counting as late.
const LATE_SHARE: u32 = 8;

/// Options of a migration.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct MigrationOptions {
    /// Maximum rate of the copy while hosts use the disk; `None`: as fast as the storages.
    pub busy_bytes_per_second_max: Option<NonZeroU64>,
    /// Maximum rate of the copy while they do not; `None`: as fast as the storages.
    pub bytes_per_second_max: Option<NonZeroU64>,
    /// Time for which the destination is waited for, while changes of hosts wait, too. If it is
    /// later, the migration pauses.
    pub target_wait: Duration,
    /// Pause after a failure, before the migration continues; it doubles with each further one.
    pub retry_pause: Duration,
    /// Pause after the destination has held up changes for more than half of some seconds; it
    /// doubles with each further one.
    pub late_pause: Duration,
    /// Length of a region: the range that is locked against changes while it is copied.
    pub region_bytes: u64,
}

impl Default for MigrationOptions {
    fn default() -> Self {
        Self {
            busy_bytes_per_second_max: NonZeroU64::new(BUSY_BYTES_PER_SECOND),
            bytes_per_second_max: None,
            target_wait: TARGET_WAIT,
            retry_pause: RETRY_PAUSE,
            late_pause: LATE_PAUSE,
            region_bytes: REGION_BYTES,
        }
    }
}

/// The state of a migration.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum MigrationPhase {
    /// Transfers that began before the migration are waited for.
    Starting,
    /// Data is copied.
    Copying,
    /// The last attempt failed; the next one follows. Hosts use the source alone.
    Paused,
    /// The destination is in use. Transfers to the source are waited for.
    Moved,
    /// The migration was cancelled. Transfers to the destination are waited for.
    Cancelled,
}

impl MigrationPhase {
    /// Returns the name in status and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Copying => "copying",
            Self::Paused => "paused",
            Self::Moved => "moved",
            Self::Cancelled => "cancelled",
        }
    }
}

/// The progress of a migration.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct MigrationProgress {
    /// The state.
    pub phase: MigrationPhase,
    /// Length of the extent.
    pub size_bytes: u64,
    /// Bytes that are to be copied before the destination has all data.
    pub missing_bytes: u64,
    /// Bytes that were copied, some of them maybe several times.
    pub copied_bytes: u64,
    /// Number of times that the copy began again, because a storage may have lost writes.
    pub restarts: u64,
    /// The last failure; empty if there was none.
    pub last_failure: String,
}

/// The end of a migration.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum MigrationEnd {
    /// The extent is at the destination, and nobody uses the source.
    Moved,
    /// The extent is at the source, and nobody uses the destination.
    Cancelled,
}

/// A migration of an extent.
#[derive(Debug)]
pub struct Migration {
    core: Arc<DiskCore>,
    state: Arc<MigrationState>,
}

/// The part of a migration that changes of the disk use.
#[derive(Debug)]
pub(crate) struct MigrationState {
    /// Position of the extent in the disk.
    extent_index: usize,
    from: DeviceExtent,
    to: DeviceExtent,
    options: MigrationOptions,
    /// Changes of the extent, and copies of its regions.
    queue: Arc<ChangeQueue>,
    /// Set before the first change.
    runtime: OnceLock<Handle>,
    /// Number of transfers of hosts.
    foreground: AtomicU64,
    shared: Mutex<SharedProgress>,
    /// Times for which changes waited for the destination alone.
    lateness: Lateness,
    changed: Notify,
}

#[derive(Debug)]
struct SharedProgress {
    phase: MigrationPhase,
    uncopied: UncopiedRegions,
    /// False: nothing is written to the destination.
    is_usable: bool,
    /// True if the destination has held up changes for too long since the last attempt.
    is_too_late: bool,
    /// True while the record may name either one: both must have each change.
    is_uncertain: bool,
    is_cancelled: bool,
    /// True while the destination is recorded.
    is_committing: bool,
    /// Number of operations of the destination that have not ended.
    outstanding: usize,
    copied_bytes: u64,
    restarts: u64,
    last_failure: String,
}

/// An operation of the destination that has not ended.
struct OutstandingOperation(Arc<MigrationState>);

impl Drop for OutstandingOperation {
    fn drop(&mut self) {
        self.0.shared().outstanding -= 1;
        self.0.changed.notify_waiters();
    }
}

impl Migration {
    pub(crate) fn new(
        core: Arc<DiskCore>,
        extent_index: usize,
        (from, to): (DeviceExtent, DeviceExtent),
        options: MigrationOptions,
    ) -> Self {
        let block_bytes = u64::from(from.device.geometry().block_bytes);
        let uncopied =
            UncopiedRegions::all(from.blocks.count, (options.region_bytes / block_bytes).max(1));
        let shared = SharedProgress {
            phase: MigrationPhase::Starting,
            uncopied,
            is_usable: true,
            is_too_late: false,
            is_uncertain: false,
            is_cancelled: false,
            is_committing: false,
            outstanding: 0,
            copied_bytes: 0,
            restarts: 0,
            last_failure: String::new(),
        };
        let state = MigrationState {
            extent_index,
            from,
            to,
            options,
            queue: Arc::default(),
            runtime: OnceLock::new(),
            foreground: AtomicU64::new(0),
            shared: Mutex::new(shared),
            lateness: Lateness::new(),
            changed: Notify::new(),
        };
        Self { core, state: Arc::new(state) }
    }

    /// Cancels the migration, unless its end has begun. [`run`](Self::run) then returns
    /// [`MigrationEnd::Cancelled`] when nobody uses the destination any more. Returns false if it
    /// is too late.
    pub fn cancel(&self) -> bool {
        let mut shared = self.state.shared();
        if shared.phase == MigrationPhase::Moved || shared.is_committing {
            return false;
        }
        shared.is_cancelled = true;
        drop(shared);
        self.state.changed.notify_waiters();
        true
    }

    /// Returns the progress.
    pub fn progress(&self) -> MigrationProgress {
        let block_bytes = u64::from(self.state.from.device.geometry().block_bytes);
        let shared = self.state.shared();
        MigrationProgress {
            phase: shared.phase,
            size_bytes: self.state.from.blocks.count * block_bytes,
            missing_bytes: shared.uncopied.blocks() * block_bytes,
            copied_bytes: shared.copied_bytes,
            restarts: shared.restarts,
            last_failure: shared.last_failure.clone(),
        }
    }
}

impl MigrationState {
    /// Returns the position of the extent in the disk.
    pub(crate) fn extent_index(&self) -> usize {
        self.extent_index
    }

    /// Returns the order of the changes of the extent.
    pub(crate) fn queue(&self) -> &Arc<ChangeQueue> {
        &self.queue
    }

    /// True if the extent is at the source in `shape`.
    pub(crate) fn is_of(&self, shape: &JoinedShape) -> bool {
        shape.extents().get(self.extent_index).is_some_and(|extent| {
            std::ptr::addr_eq(Arc::as_ptr(&extent.device), Arc::as_ptr(&self.from.device))
                && extent.blocks == self.from.blocks
        })
    }

    /// Makes changes of the destination durable if the record may name it.
    pub(crate) async fn flush_if_uncertain(self: &Arc<Self>) -> Result<(), Error> {
        if !self.shared().is_uncertain {
            return Ok(());
        }
        self.to.device.flush().await
    }

    /// Records a transfer of a host: the copy makes room for it.
    pub(crate) fn count_transfer(&self) {
        self.foreground.fetch_add(1, SeqCst);
    }

    fn shared(&self) -> MutexGuard<'_, SharedProgress> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stops the use of the destination until the next attempt.
    fn suspend(&self, failure: String) {
        let mut shared = self.shared();
        if shared.is_usable {
            tracing::warn!(
                "the move of blocks of {} to {} pauses: {failure}",
                self.from.device.name(),
                self.to.device.name()
            );
        }
        shared.is_usable = false;
        shared.phase = MigrationPhase::Paused;
        shared.last_failure = failure;
        drop(shared);
        self.changed.notify_waiters();
    }

    /// Counts the time since which a change has waited for the destination alone. Returns the
    /// failure if the destination has held up changes for too long.
    fn note_lateness(&self, since: Instant) -> Option<String> {
        let now = Instant::now();
        if now - since <= self.options.target_wait / LATE_SHARE {
            return None;
        }
        self.lateness.note(since, now);
        let mut shared = self.shared();
        // Changes fail without the destination while the record may name it.
        if shared.is_uncertain || !self.lateness.is_excessive() {
            return None;
        }
        shared.is_too_late = true;
        let (late, window) = (LATE_MAX.as_secs(), LATENESS_WINDOW.as_secs());
        let name = self.to.device.name();
        Some(format!("{name} has held up changes for more than {late} of {window} s"))
    }

    /// Starts an operation of the destination, in a task: it ends also if nobody waits for it.
    fn start_on_target<F>(
        self: &Arc<Self>,
        operation: impl FnOnce(Arc<dyn BlockDevice>) -> F,
    ) -> Option<JoinHandle<Result<(), Error>>>
    where
        F: Future<Output = Result<(), Error>> + Send + 'static,
    {
        let runtime = self.runtime.get()?;
        self.shared().outstanding += 1;
        let outstanding = OutstandingOperation(Arc::clone(self));
        let operation = operation(Arc::clone(&self.to.device));
        Some(runtime.spawn(IoContext::server_scope(async move {
            let done = operation.await;
            drop(outstanding);
            done
        })))
    }

    /// Waits for an operation of the destination.
    async fn target_done(
        &self,
        operation: Option<JoinHandle<Result<(), Error>>>,
        wait: Duration,
    ) -> Result<(), String> {
        let Some(operation) = operation else { return Err("the copy has ended".to_owned()) };
        match tokio::time::timeout(wait, operation).await {
            Ok(Ok(done)) => done.map_err(|error| error.to_string()),
            Ok(Err(_)) => Err("the copy has ended".to_owned()),
            Err(_) => {
                let name = self.to.device.name();
                Err(format!("{name} has not answered for {} s", wait.as_secs_f64()))
            }
        }
    }
}
