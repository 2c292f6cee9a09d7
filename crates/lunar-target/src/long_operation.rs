//! Operations that touch every block of a unit: SANITIZE and FORMAT UNIT.
//!
//! An operation belongs to its unit, not to the command that requested it. Its order of steps
//! protects against crashes: the request is durable before the first block changes, and the
//! completion is durable before the unit takes commands again. After a crash in between, the next
//! start begins the operation anew.
//!
//! An operation runs in turns of the owner that requested it, even if the owner has no session any
//! more, and its I/O is charged to that owner. Resumed operations belong to one owner, the server.
//! The number of operations of an owner that run at a time is limited (see `operation_slots`).

use crate::disk_unit::DiskUnit;
use crate::operation_slots::{OperationSlot, OperationSlots};
use crate::plan_result::internal_failure;
use crate::thin_space::{HOLD_INTERVAL, OutOfSpace};
use lunar_block::{BlockRange, Buffer, BufferPool, ErrorKind, IoContext, PHYSICAL_BLOCK_BYTES_MAX};
use lunar_net::OwnerId;
use lunar_scsi::long_operation::{LongOperation, OperationWork};
use lunar_scsi::plan::{LbaRange, NexusId};
use lunar_scsi::sense::Sense;
use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// Size of the pieces in which data is written.
const PIECE_BYTES: usize = lunar_net::MOVED_PIECE_BYTES;

/// Size of the pieces that are deallocated or zeroed: fast enough to report progress.
const SPARSE_PIECE_BYTES: u64 = 64 << 20;

/// Number of times a second that a rate-limited operation pauses, and that an operation checks
/// whether it is to stop.
const CHECKS_PER_SECOND: u64 = 20;
const CHECK_INTERVAL: Duration = Duration::from_millis(1_000 / CHECKS_PER_SECOND);

/// Maximum time until the end of a piece, so that no clock overflows.
const LONGEST_WAIT: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// State of the long operations of a unit.
#[derive(Debug, Default)]
pub(crate) struct LongOperations {
    /// Incremented when an operation begins, under the lock of the SCSI state.
    generation: AtomicU64,
    /// Number of running operations: one, and perhaps one more that has failed and has not finished
    /// saving its failure.
    runs: AtomicUsize,
    /// True when the operation is to stop where it is.
    stopping: AtomicBool,
    /// The slots of the server, once the unit is served.
    slots: OnceLock<Arc<OperationSlots>>,
}

/// Versions of the unit's state for which a command was checked.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Generation {
    /// Changes with all state on which the check depends: reservations, size, write protection …
    pub(crate) revision: u64,
    /// Changes with each long operation.
    pub(crate) operations: u64,
    /// Changes with each recovery after a failed sync, before writes are accepted again.
    pub(crate) recoveries: u64,
}

/// An operation that has begun. Dropping this does not stop it.
#[derive(Debug)]
pub(crate) struct StartedOperation {
    /// Result of saving the request.
    pub(crate) saved: oneshot::Receiver<Result<(), Sense>>,
    /// Result of the operation; never sent if the server stops before its end.
    pub(crate) ended: oneshot::Receiver<Result<(), Sense>>,
}

/// The owner for whom an operation works.
#[derive(Clone, Debug)]
pub(crate) struct OperationOwner {
    /// Owner in whose turns the core works.
    pub(crate) time: OwnerId,
    /// Account of the owner for whom the disk works; `None` for the server.
    pub(crate) buffers: Option<BufferPool>,
}

impl OperationOwner {
    /// The owner of all operations that no session of this run of the server has requested.
    pub(crate) const SERVER: Self = Self { time: OwnerId(0), buffers: None };
}

/// Reason why an operation did not reach its end.
enum StopReason {
    Stopping,
    Device(lunar_block::Error),
}

impl From<lunar_block::Error> for StopReason {
    fn from(error: lunar_block::Error) -> Self {
        Self::Device(error)
    }
}

impl DiskUnit {
    /// Returns the current generation. Call this before a command is checked; if the generation is
    /// different later, the state has changed.
    pub(crate) fn generation(&self) -> Generation {
        Generation {
            revision: self.revision(),
            operations: self.long_operations.generation.load(SeqCst),
            recoveries: self.recoveries.load(SeqCst),
        }
    }

    /// True when an operation runs.
    pub(crate) fn has_running_operation(&self) -> bool {
        self.long_operations.runs.load(SeqCst) > 0
    }

    /// Sets the slots that operations of all units of a server share.
    pub(crate) fn share_operation_slots(&self, slots: &Arc<OperationSlots>) {
        let _ = self.long_operations.slots.set(Arc::clone(slots)); // those of its first server stay
    }

    /// Stops operations where they are (or allows them again); the remaining work is saved.
    pub(crate) fn stop_operation(&self, stopping: bool) {
        self.long_operations.stopping.store(stopping, SeqCst);
    }

    /// Begins an operation and runs it on this core in turns of `owner`, even if no command waits
    /// for it.
    ///
    /// # Errors
    /// An operation runs already, or the unit has changed since this one was planned.
    pub(crate) fn begin_operation(
        self: &Arc<Self>,
        operation: LongOperation,
        by: NexusId,
        owner: OperationOwner,
    ) -> Result<StartedOperation, Sense> {
        {
            let mut scsi = self.scsi();
            scsi.begin_operation(operation, by)?;
            self.long_operations.generation.fetch_add(1, SeqCst);
        }
        let (saved, was_saved) = oneshot::channel();
        let (ended, has_ended) = oneshot::channel();
        let unit = Arc::clone(self);
        self.long_operations.runs.fetch_add(1, SeqCst);
        let time_owner = owner.time;
        let run = async move {
            if unit.save().await {
                let _ = saved.send(Ok(())); // the command may be aborted
                if let Some(result) = unit.operate(&owner).await {
                    let _ = ended.send(result);
                }
            } else {
                unit.scsi().withdraw_operation();
                // If the operation is on the medium after all, the next start must not resume it.
                unit.save().await;
                let _ = saved.send(Err(internal_failure()));
                let _ = ended.send(Err(internal_failure()));
            }
            unit.long_operations.runs.fetch_sub(1, SeqCst);
        };
        lunar_net::spawn_local(lunar_net::in_turns_of(time_owner, run));
        Ok(StartedOperation { saved: was_saved, ended: has_ended })
    }

    /// Resumes an operation that an earlier run of the server did not finish. On a read-only disk
    /// it does not fail: it is left to a later start on a writable disk, and no block can be read.
    pub(crate) async fn resume_operation(self: Arc<Self>) {
        if self.device().is_read_only() {
            let device = self.device().name();
            tracing::warn!(
                device,
                "cannot resume an interrupted SANITIZE or FORMAT: the disk is read-only"
            );
            return;
        }
        self.long_operations.runs.fetch_add(1, SeqCst);
        tracing::info!(device = self.device().name(), "resuming an interrupted SANITIZE or FORMAT");
        let owner = OperationOwner::SERVER;
        let _ = lunar_net::in_turns_of(owner.time, self.operate(&owner)).await; // already logged
        self.long_operations.runs.fetch_sub(1, SeqCst);
    }

    /// Runs the operation of the unit's state. Returns `None` if the server stops before its end.
    async fn operate(self: &Arc<Self>, owner: &OperationOwner) -> Option<Result<(), Sense>> {
        let LongOperation { kind, work, .. } = self.scsi().operation().cloned()?;
        let blocks = self.device().geometry().block_count;
        // Earlier writes finish first.
        let exclusive = self.ranges.lock(LbaRange { lba: 0, count: blocks }, true).await;
        let before = self.generation().recoveries;
        let mut result = self.work(&work, owner).await;
        if result.is_ok() && self.generation().recoveries != before {
            let what = "a sync failed during the operation: some blocks may have their old \
                        contents";
            let device = self.device().name();
            result = Err(lunar_block::Error::new(ErrorKind::Poisoned, device, what).into());
        }
        drop(exclusive);
        match result {
            Ok(()) => {
                self.scsi().set_operation_done();
                if self.save().await {
                    self.scsi().end_operation();
                    return Some(Ok(()));
                }
            }
            Err(StopReason::Stopping) => return None,
            Err(StopReason::Device(error)) => {
                self.late_errors.write(|suppressed| {
                    tracing::error!(
                        %error, suppressed, "{kind:?} failed: the blocks remain inaccessible"
                    );
                });
            }
        }
        self.scsi().fail_operation();
        // If the failure is not saved, the next start tries once more, which is just as good.
        self.save().await;
        Some(Err(kind.failed()))
    }

    /// Waits for a slot of `owner`.
    async fn slot(&self, owner: &OperationOwner) -> Result<OperationSlot, StopReason> {
        let slots = self.long_operations.slots.get_or_init(Arc::default);
        self.unless_stopping(slots.take(owner.time)).await
    }

    async fn work(&self, work: &OperationWork, owner: &OperationOwner) -> Result<(), StopReason> {
        let mut slot = self.slot(owner).await?;
        let geometry = self.device().geometry();
        let all = geometry.block_count.saturating_mul(work.passes().into());
        let mut pace = Pace::new(self.options().maintenance_bytes_per_second);
        let mut before = 0;
        for pass in 0..work.passes() {
            let mut piece = Piece::of(self, work, pass);
            piece.blocks = piece.blocks.min(pace.piece_bytes() / u64::from(geometry.block_bytes));
            let mut lba = 0;
            while lba < geometry.block_count {
                if self.long_operations.stopping.load(SeqCst) {
                    return Err(StopReason::Stopping);
                }
                let count = piece.blocks.min(geometry.block_count - lba);
                match self.write_piece_for(owner, &piece, BlockRange::new(lba, count)).await {
                    Err(StopReason::Device(error)) if self.waits_for_room(&error) => {
                        drop(slot); // operations at disks with free space continue
                        tokio::time::sleep(HOLD_INTERVAL).await;
                        slot = self.slot(owner).await?;
                        continue;
                    }
                    written => written?,
                }
                lba += count;
                self.scsi().set_operation_progress(before + lba, all);
                tokio::task::yield_now().await;
                pace.wait(count * u64::from(geometry.block_bytes), &self.long_operations.stopping)
                    .await;
            }
            before += geometry.block_count;
            // Each pass reaches the medium, not only the last one.
            self.device().flush().await?;
        }
        Ok(())
    }

    /// True when the operation is to wait for room. Overwriting a thin disk needs room; if writes
    /// wait for it, so does an operation.
    fn waits_for_room(&self, error: &lunar_block::Error) -> bool {
        error.kind == ErrorKind::NoSpace && self.options().out_of_space == OutOfSpace::Hold
    }

    /// Waits for `event`, or until operations are to stop.
    async fn unless_stopping<T>(&self, event: impl Future<Output = T>) -> Result<T, StopReason> {
        let mut event = pin!(event);
        while !self.long_operations.stopping.load(SeqCst) {
            if let Ok(value) = tokio::time::timeout(CHECK_INTERVAL, event.as_mut()).await {
                return Ok(value);
            }
        }
        Err(StopReason::Stopping)
    }

    /// Does a piece of the work for `owner`.
    async fn write_piece_for(
        &self,
        owner: &OperationOwner,
        piece: &Piece,
        range: BlockRange,
    ) -> Result<(), StopReason> {
        let buffers = owner.buffers.as_ref();
        let data = match piece.content {
            // Memory is taken for each piece: an operation that waits for its turn holds none.
            PieceContent::Data(_) => {
                let buffers = buffers.unwrap_or(&self.options().buffers);
                let bytes = range.count as usize * piece.block_bytes;
                Some(self.unless_stopping(buffers.take_when_free(bytes)).await?)
            }
            PieceContent::Deallocate | PieceContent::Zero => None,
        };
        let written = self.write_piece(piece, range, data);
        match buffers.map(BufferPool::owner) {
            Some(owner) => IoContext::new(owner).scope(written).await?,
            None => written.await?,
        }
        Ok(())
    }

    async fn write_piece(
        &self,
        piece: &Piece,
        range: BlockRange,
        buffer: Option<Buffer>,
    ) -> Result<(), lunar_block::Error> {
        let sparse = self.device().sparse();
        match (&piece.content, sparse, buffer) {
            (PieceContent::Deallocate, Some(sparse), _) => sparse.unmap(range, false).await,
            (PieceContent::Zero, Some(sparse), _) => sparse.write_zeroes(range, false, false).await,
            (PieceContent::Data(block), _, Some(mut data)) => {
                data.chunks_exact_mut(block.len()).for_each(|part| part.copy_from_slice(block));
                lunar_net::count_moved(2 * data.len()); // filled, and written
                self.device().write(range, data.freeze(), false).await
            }
            // Pieces are made for the device that they go to.
            (PieceContent::Deallocate | PieceContent::Zero, None, _)
            | (PieceContent::Data(_), _, None) => {
                let what = "the device no longer supports deallocation";
                Err(lunar_block::Error::new(ErrorKind::Medium, self.device().name(), what))
            }
        }
    }

    /// Saves the state; returns true on success.
    async fn save(self: &Arc<Self>) -> bool {
        let saved = self.save_state().await;
        if let Err(error) = &saved {
            self.save_errors.write(|suppressed| {
                tracing::error!(
                    %error,
                    suppressed,
                    "cannot save the state of a SANITIZE or FORMAT"
                );
            });
        }
        saved.is_ok()
    }
}

/// Rate limiter of an operation.
struct Pace {
    bytes_per_second: Option<u64>,
    began: Instant,
    done_bytes: u64,
}

impl Pace {
    /// Creates a limiter; a rate of 0 counts as 1.
    fn new(bytes_per_second: Option<u64>) -> Self {
        let bytes_per_second = bytes_per_second.map(|rate| rate.max(1));
        Self { bytes_per_second, began: Instant::now(), done_bytes: 0 }
    }

    /// Returns about the number of bytes for a [`CHECK_INTERVAL`], as a multiple of whole physical
    /// blocks and of whole runs that can be deallocated.
    fn piece_bytes(&self) -> u64 {
        let step = u64::from(PHYSICAL_BLOCK_BYTES_MAX);
        let bytes_per_check = |rate: u64| (rate / CHECKS_PER_SECOND / step).max(1) * step;
        self.bytes_per_second.map_or(u64::MAX, bytes_per_check)
    }

    /// Adds `bytes`, and waits until the rate allows them, or the operation is to stop.
    async fn wait(&mut self, bytes: u64, stopping: &AtomicBool) {
        let Some(rate) = self.bytes_per_second else { return };
        self.done_bytes = self.done_bytes.saturating_add(bytes);
        let seconds = (self.done_bytes / rate).min(LONGEST_WAIT.as_secs());
        let part = self.done_bytes % rate;
        let due = self.began + Duration::from_secs(seconds) + part_of_second(part, rate);
        while !stopping.load(SeqCst) {
            let left = due.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            tokio::time::sleep(left.min(CHECK_INTERVAL)).await;
        }
    }
}

fn part_of_second(part: u64, whole: u64) -> Duration {
    Duration::from_secs_f64(part as f64 / whole as f64)
}

/// Work on a number of blocks at a time; the last piece may be shorter.
struct Piece {
    content: PieceContent,
    blocks: u64,
    block_bytes: usize,
}

enum PieceContent {
    Deallocate,
    Zero,
    /// The content of each block.
    Data(Box<[u8]>),
}

impl Piece {
    fn of(unit: &DiskUnit, work: &OperationWork, pass: u8) -> Self {
        let block_bytes = unit.block_bytes() as usize;
        let sparse = unit.device().sparse();
        let data = |pattern, inverted| Self::data(pattern, inverted, block_bytes);
        let sparse_piece = |content| Self {
            content,
            blocks: (SPARSE_PIECE_BYTES / block_bytes as u64).max(1),
            block_bytes,
        };
        match work {
            OperationWork::Deallocate if sparse.is_some() => sparse_piece(PieceContent::Deallocate),
            OperationWork::Zero if sparse.is_some() => sparse_piece(PieceContent::Zero),
            OperationWork::Deallocate | OperationWork::Zero => data(&[0], false),
            OperationWork::Overwrite { pattern, passes, invert } => {
                // Counted from the end: the last pass writes the pattern unchanged.
                let odd = (passes - 1).saturating_sub(pass) % 2 == 1;
                data(pattern, *invert && odd)
            }
        }
    }

    /// Data of which each block begins with the first byte of the pattern.
    fn data(pattern: &[u8], inverted: bool, block_bytes: usize) -> Self {
        let bytes = pattern.iter().cycle().take(block_bytes);
        let block = bytes.map(|byte| if inverted { !byte } else { *byte }).collect();
        let blocks = (PIECE_BYTES / block_bytes).max(1) as u64;
        Self { content: PieceContent::Data(block), blocks, block_bytes }
    }
}

#[cfg(test)]
mod tests;
