//! Runs what touches every block of a unit: SANITIZE and FORMAT UNIT.
//!
//! An operation belongs to its unit, not to the command that asked for it. The order of things
//! makes it safe against a crash: that it is to be done is durable before the first block changes,
//! and that it is done is durable before the unit takes commands again. In between, the next start
//! begins it anew.

use crate::execute::internal_failure;
use crate::room::{HOLD_INTERVAL, OutOfSpace};
use crate::unit::LogicalUnit;
use bytes::Bytes;
use lunar_block::{BlockRange, BufferPool, ErrorKind, PHYSICAL_BLOCK_BYTES_MAX};
use lunar_scsi::long_operation::{LongOperation, Work};
use lunar_scsi::plan::{LbaRange, NexusId};
use lunar_scsi::sense::Sense;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// Writing goes on in pieces of this size.
const PIECE_BYTES: usize = 1 << 20;

/// Deallocating and zeroing goes on in pieces of this size: it is quick, and progress is told.
const SPARSE_PIECE_BYTES: u64 = 64 << 20;

/// An operation that may not go as fast as it can goes a moment and waits; it looks as often
/// whether it is to stop.
const MOMENTS_PER_SECOND: u64 = 20;
const MOMENT: Duration = Duration::from_millis(1_000 / MOMENTS_PER_SECOND);

/// How far in the future the end of a piece is put: no clock ends before.
const LONGEST_WAIT: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// How a unit runs its long operations.
#[derive(Debug, Default)]
pub(crate) struct Operating {
    /// Grows when an operation begins, under the lock of the SCSI state.
    generation: AtomicU64,
    /// How many run: one, and perhaps one that has failed and is not through with saving that.
    runs: AtomicUsize,
    /// It is to stop where it is.
    stopping: AtomicBool,
}

/// What a command was judged in.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Generation {
    /// Changes with whatever may change the judgement: reservations, size, write protection …
    pub(crate) revision: u64,
    /// Changes with each long operation.
    pub(crate) operations: u64,
    /// Changes with each recovery after a failed sync, before writes are taken again.
    pub(crate) recoveries: u64,
}

/// An operation that has begun. Who drops this stops nothing.
#[derive(Debug)]
pub(crate) struct Begun {
    /// It is durable that the operation is to be done.
    pub(crate) saved: oneshot::Receiver<Result<(), Sense>>,
    /// It is over; never sent when the server stops before.
    pub(crate) ended: oneshot::Receiver<Result<(), Sense>>,
}

/// Why work did not come to its end.
enum Halt {
    Stopping,
    Device(lunar_block::Error),
}

impl From<lunar_block::Error> for Halt {
    fn from(error: lunar_block::Error) -> Self {
        Self::Device(error)
    }
}

impl LogicalUnit {
    /// To be taken before a command is judged; another one later says that something has changed.
    pub(crate) fn generation(&self) -> Generation {
        Generation {
            revision: self.revision(),
            operations: self.operating.generation.load(SeqCst),
            recoveries: self.recoveries.load(SeqCst),
        }
    }

    /// Whether an operation runs now.
    pub(crate) fn operates(&self) -> bool {
        self.operating.runs.load(SeqCst) > 0
    }

    /// Operations stop where they are (or may run again); what is left to do is saved.
    pub(crate) fn stop_operation(&self, stopping: bool) {
        self.operating.stopping.store(stopping, SeqCst);
    }

    /// Begins an operation and lets it run on this core, whoever waits for it.
    ///
    /// # Errors
    /// One runs already, or the unit is not what it was when this one was planned.
    pub(crate) fn begin_operation(
        self: &Arc<Self>,
        operation: LongOperation,
        by: NexusId,
    ) -> Result<Begun, Sense> {
        {
            let mut scsi = self.scsi();
            scsi.begin_operation(operation, by)?;
            self.operating.generation.fetch_add(1, SeqCst);
        }
        let (saved, was_saved) = oneshot::channel();
        let (ended, has_ended) = oneshot::channel();
        let unit = Arc::clone(self);
        self.operating.runs.fetch_add(1, SeqCst);
        lunar_net::spawn_local(async move {
            if unit.save().await {
                let _ = saved.send(Ok(())); // the command may be aborted
                if let Some(result) = unit.operate().await {
                    let _ = ended.send(result);
                }
            } else {
                unit.scsi().withdraw_operation();
                // Should it be on the medium after all, the next start must not take it up.
                unit.save().await;
                let _ = saved.send(Err(internal_failure()));
                let _ = ended.send(Err(internal_failure()));
            }
            unit.operating.runs.fetch_sub(1, SeqCst);
        });
        Ok(Begun { saved: was_saved, ended: has_ended })
    }

    /// Goes on with the operation that a former run of the server did not end. Where nothing may be
    /// written it has not failed: it is left to a start that may, and no block is shown.
    pub(crate) async fn resume_operation(self: Arc<Self>) {
        if self.device().is_read_only() {
            let device = self.device().name();
            tracing::warn!(device, "an unfinished SANITIZE or FORMAT waits: the disk is read-only");
            return;
        }
        self.operating.runs.fetch_add(1, SeqCst);
        tracing::info!(device = self.device().name(), "an unfinished SANITIZE or FORMAT goes on");
        let _ = self.operate().await; // the log has it
        self.operating.runs.fetch_sub(1, SeqCst);
    }

    /// Does the operation the unit is in; `None`: the server stops, it is not over.
    async fn operate(self: &Arc<Self>) -> Option<Result<(), Sense>> {
        let LongOperation { kind, work, .. } = self.scsi().operation().cloned()?;
        let blocks = self.device().geometry().block_count;
        // Writes that were begun before come to their end first.
        let alone = self.ranges.lock(LbaRange { lba: 0, count: blocks }, true).await;
        let before = self.generation().recoveries;
        let mut result = self.work(&work).await;
        if result.is_ok() && self.generation().recoveries != before {
            let what = "a sync has failed meanwhile: some blocks may be as they were";
            let device = self.device().name();
            result = Err(lunar_block::Error::new(ErrorKind::Poisoned, device, what).into());
        }
        drop(alone);
        match result {
            Ok(()) => {
                self.scsi().set_operation_done();
                if self.save().await {
                    self.scsi().end_operation();
                    return Some(Ok(()));
                }
            }
            Err(Halt::Stopping) => return None,
            Err(Halt::Device(error)) => {
                self.late_errors.write(|untold| {
                    tracing::error!(
                        %error, untold, "{kind:?} has failed: the blocks stay out of reach"
                    );
                });
            }
        }
        self.scsi().fail_operation();
        // Not saved, the next start tries once more: as good.
        self.save().await;
        Some(Err(kind.failed()))
    }

    async fn work(&self, work: &Work) -> Result<(), Halt> {
        let geometry = self.device().geometry();
        let all = geometry.block_count.saturating_mul(work.passes().into());
        let mut pace = Pace::new(self.options().maintenance_bytes_per_second);
        let mut before = 0;
        for pass in 0..work.passes() {
            let mut piece = Piece::of(self, work, pass);
            piece.blocks = piece.blocks.min(pace.piece_bytes() / u64::from(geometry.block_bytes));
            let mut lba = 0;
            while lba < geometry.block_count {
                if self.operating.stopping.load(SeqCst) {
                    return Err(Halt::Stopping);
                }
                let count = piece.blocks.min(geometry.block_count - lba);
                match self.put_piece(&piece, BlockRange::new(lba, count)).await {
                    Err(error) if self.waits_for_room(&error) => {
                        tokio::time::sleep(HOLD_INTERVAL).await;
                        continue;
                    }
                    put => put?,
                }
                lba += count;
                self.scsi().set_operation_progress(before + lba, all);
                tokio::task::yield_now().await;
                pace.keep(count * u64::from(geometry.block_bytes), &self.operating.stopping).await;
            }
            before += geometry.block_count;
            // Each pass reaches the medium, not only the last one.
            self.device().flush().await?;
        }
        Ok(())
    }

    /// Overwriting a thin disk takes room; where writes wait for it, so does an operation.
    fn waits_for_room(&self, error: &lunar_block::Error) -> bool {
        error.kind == ErrorKind::NoSpace && self.options().out_of_space == OutOfSpace::Hold
    }

    async fn put_piece(&self, piece: &Piece, range: BlockRange) -> Result<(), lunar_block::Error> {
        let sparse = self.device().sparse();
        match (&piece.what, sparse) {
            (What::Deallocate, Some(sparse)) => sparse.unmap(range, false).await,
            (What::Zero, Some(sparse)) => sparse.write_zeroes(range, false, false).await,
            (What::Data(data), _) => {
                let bytes = range.count as usize * piece.block_bytes;
                self.device().write(range, data.slice(..bytes), false).await
            }
            // Pieces are made for the device they go to.
            (What::Deallocate | What::Zero, None) => {
                let what = "it can no longer deallocate";
                Err(lunar_block::Error::new(ErrorKind::Medium, self.device().name(), what))
            }
        }
    }

    /// Whether the state could be saved.
    async fn save(self: &Arc<Self>) -> bool {
        let saved = self.save_state().await;
        if let Err(error) = &saved {
            self.save_errors.write(|untold| {
                tracing::error!(%error, untold, "state of a SANITIZE or FORMAT not saved");
            });
        }
        saved.is_ok()
    }
}

/// Keeps an operation from going faster than it may.
struct Pace {
    bytes_per_second: Option<u64>,
    began: Instant,
    done_bytes: u64,
}

impl Pace {
    /// A rate of 0 is the slowest there is.
    fn new(bytes_per_second: Option<u64>) -> Self {
        let bytes_per_second = bytes_per_second.map(|rate| rate.max(1));
        Self { bytes_per_second, began: Instant::now(), done_bytes: 0 }
    }

    /// About as much as passes in a moment, so that whole physical blocks and whole runs that can
    /// be deallocated are in it.
    fn piece_bytes(&self) -> u64 {
        let step = u64::from(PHYSICAL_BLOCK_BYTES_MAX);
        let moment = |rate: u64| (rate / MOMENTS_PER_SECOND / step).max(1) * step;
        self.bytes_per_second.map_or(u64::MAX, moment)
    }

    /// Waits until `bytes` more may have been done, or the operation is to stop.
    async fn keep(&mut self, bytes: u64, stopping: &AtomicBool) {
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
            tokio::time::sleep(left.min(MOMENT)).await;
        }
    }
}

fn part_of_second(part: u64, of: u64) -> Duration {
    Duration::from_secs_f64(part as f64 / of as f64)
}

/// What is done to so many blocks at a time, the last ones excepted.
struct Piece {
    what: What,
    blocks: u64,
    block_bytes: usize,
}

enum What {
    Deallocate,
    Zero,
    Data(Bytes),
}

impl Piece {
    fn of(unit: &LogicalUnit, work: &Work, pass: u8) -> Self {
        let block_bytes = unit.block_bytes() as usize;
        let sparse = unit.device().sparse();
        let data =
            |pattern, inverted| Self::data(&unit.options().buffers, pattern, inverted, block_bytes);
        let quick = |what| Self {
            what,
            blocks: (SPARSE_PIECE_BYTES / block_bytes as u64).max(1),
            block_bytes,
        };
        match work {
            Work::Deallocate if sparse.is_some() => quick(What::Deallocate),
            Work::Zero if sparse.is_some() => quick(What::Zero),
            Work::Deallocate | Work::Zero => data(&[0], false),
            Work::Overwrite { pattern, passes, invert } => {
                // Counted from the end: the last pass leaves the pattern as it is.
                let odd = (passes - 1).saturating_sub(pass) % 2 == 1;
                data(pattern, *invert && odd)
            }
        }
    }

    /// Each block begins with the first byte of the pattern.
    fn data(buffers: &BufferPool, pattern: &[u8], inverted: bool, block_bytes: usize) -> Self {
        let blocks = (PIECE_BYTES / block_bytes).max(1);
        let mut buffer = buffers.take_zeroed(blocks * block_bytes);
        for block in buffer.chunks_mut(block_bytes) {
            for (byte, of_pattern) in block.iter_mut().zip(pattern.iter().cycle()) {
                *byte = if inverted { !of_pattern } else { *of_pattern };
            }
        }
        Self { what: What::Data(buffer.freeze()), blocks: blocks as u64, block_bytes }
    }
}

#[cfg(test)]
mod tests;
