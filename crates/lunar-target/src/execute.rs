//! Execution of SCSI plans on the device of a unit.

mod atomic;
mod clear;
mod copy;
mod entry;
mod first_bad;
mod immediate;
mod pieces;
mod relayed;
mod verify;

pub(crate) use copy::copy;
pub(crate) use entry::CheckedCommand;
pub(crate) use immediate::try_now;
pub use pieces::PieceReader;
pub(crate) use pieces::{READ_PIECE_BYTES, ReadMemory};
pub(crate) use relayed::run_relayed;

use crate::abort::{AbortSignal, Aborted};
use crate::detached_writes::MediumChange;
use crate::disk_unit::{DiskUnit, prefetch_bytes_max};
use crate::long_operation::Generation;
use crate::memory::{NoMemory, WorkMemory};
use crate::plan_result::{PlanResult, internal_failure};
use crate::quota::{Cost, QuotaCharge};
use crate::ranges::{ClaimedBlocks, RangeGuard, TooManyWaiting};
use crate::session::Session;
use crate::thin_space::HeldWriteGuard;
use bytes::Bytes;
use entry::Entry;
use hold::LockMode;
use lunar_block::{BlockDevice, BlockRange, Buffer, Clear, ErrorKind, ExtentState};
use lunar_scsi::plan::{LbaRange, NexusId, Pattern, Plan, Refusal};
use lunar_scsi::sense::{Sense, SenseKey};
use lunar_scsi::unit::lba_status_reply;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// Size of the pieces in which a command moves data that it does not send on.
const PIECE_BYTES: usize = lunar_net::MOVED_PIECE_BYTES;
/// Time between two log lines about failing devices.
const COMPLAINT_INTERVAL: Duration = Duration::from_secs(1);

/// WRITE ERROR.
const WRITE_ERROR: u16 = 0x0c00;

/// Reason why a plan stopped.
enum Stop {
    Check(Sense),
    /// RESERVATION CONFLICT.
    Conflict,
    /// BUSY: there are too many commands of this kind.
    Busy,
    Aborted,
}

impl From<Sense> for Stop {
    fn from(sense: Sense) -> Self {
        Self::Check(sense)
    }
}

impl From<NoMemory> for Stop {
    fn from(why: NoMemory) -> Self {
        match why {
            NoMemory::Aborted => Self::Aborted,
            NoMemory::TimedOut => Self::Busy,
        }
    }
}

impl From<Refusal> for Stop {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Check(sense) => Self::Check(sense),
            Refusal::ReservationConflict => Self::Conflict,
            Refusal::Busy => Self::Busy,
        }
    }
}

impl From<TooManyWaiting> for Stop {
    fn from(_: TooManyWaiting) -> Self {
        Self::Busy
    }
}

impl From<Aborted> for Stop {
    fn from(_: Aborted) -> Self {
        Self::Aborted
    }
}

impl From<Stop> for PlanResult {
    fn from(stop: Stop) -> Self {
        match stop {
            Stop::Check(sense) => Self::Check(sense),
            Stop::Conflict => Self::Conflict,
            Stop::Busy => Self::Busy,
            Stop::Aborted => Self::Aborted,
        }
    }
}

type Step<T> = Result<T, Stop>;

/// Context in which a plan runs.
pub(crate) struct PlanContext<'a> {
    pub(crate) session: &'a Session,
    pub(crate) checked: &'a CheckedCommand,
    /// All data-out of the command.
    pub(crate) data: Bytes,
    pub(crate) read_memory: ReadMemory,
    pub(crate) abort: AbortSignal,
    pub(crate) quota_charge: QuotaCharge,
    /// Source of further memory.
    pub(crate) memory: WorkMemory,
}

/// Runs `plan`. Plans that concern the nexus rather than the device (parameter lists, aborts,
/// copies, reservations) are left to the caller.
///
/// An aborted plan ends as soon as possible: waits and reads are dropped, changes of the medium are
/// finished or detached ([`crate::detached_writes`]), and nothing new begins.
///
/// A command of a session is checked again when it begins.
pub(crate) async fn execute_charged(
    unit: Arc<DiskUnit>,
    plan: Plan,
    work: PlanContext<'_>,
) -> PlanResult {
    if let Plan::Reply(reply) = plan {
        return PlanResult::Good(work.memory.reply(reply));
    }
    let (run, data, read_memory) = Run::new(&unit, &plan, work);
    run.ending(&plan, data, read_memory).await
}

/// [`execute_charged`] without quota accounting.
#[cfg(test)]
pub(crate) async fn execute(
    unit: Arc<DiskUnit>,
    generation: Generation,
    plan: Plan,
    data: Bytes,
    abort: AbortSignal,
) -> PlanResult {
    let block_bytes = u64::from(unit.block_bytes());
    let quota_charge = QuotaCharge::default();
    let memory = WorkMemory {
        buffers: lunar_block::BufferPool::default(),
        wait_max: Duration::from_secs(1),
    };
    let (nexus, entry, held) = (NexusId(1), None, Mutex::default());
    let run = Run {
        unit: &unit,
        generation,
        block_bytes,
        nexus,
        abort,
        quota_charge,
        memory,
        entry,
        held,
    };
    run.ending(&plan, data, ReadMemory::None).await
}

struct Run<'a> {
    unit: &'a Arc<DiskUnit>,
    generation: Generation,
    block_bytes: u64,
    nexus: NexusId,
    abort: AbortSignal,
    quota_charge: QuotaCharge,
    memory: WorkMemory,
    /// `None` for a copy, which checks each of its pieces itself.
    entry: Option<Entry<'a>>,
    /// Entry of the command among the writes that wait for room.
    held: Mutex<Option<HeldWriteGuard>>,
}

impl<'a> Run<'a> {
    /// The run of a plan of a session's command, with its data-out and the memory for its data-in.
    fn new(
        unit: &'a Arc<DiskUnit>,
        plan: &'a Plan,
        work: PlanContext<'a>,
    ) -> (Self, Bytes, ReadMemory) {
        let PlanContext { session, checked, data, read_memory, abort, quota_charge, memory } = work;
        let run = Self {
            unit,
            generation: checked.generation,
            block_bytes: u64::from(unit.block_bytes()),
            nexus: session.nexus,
            abort,
            quota_charge,
            memory,
            entry: Some(Entry::new(session, checked, plan)),
            held: Mutex::default(),
        };
        (run, data, read_memory)
    }
}

impl Run<'_> {
    async fn ending(&self, plan: &Plan, data: Bytes, read_memory: ReadMemory) -> PlanResult {
        self.plan(plan, data, read_memory).await.unwrap_or_else(PlanResult::from)
    }

    /// Runs the plan. Commands that wait for blocks begin when they hold them ([`Self::lock`],
    /// [`Self::read_blocks`]), all others here.
    ///
    /// Rare futures that need much memory are boxed: each waiting command takes as much memory as
    /// the largest future that is not boxed.
    async fn plan(&self, plan: &Plan, data: Bytes, read_memory: ReadMemory) -> Step<PlanResult> {
        match *plan {
            Plan::Reply(ref reply) => {
                return Ok(PlanResult::Good(self.memory.reply(reply.clone())));
            }
            Plan::Read { range, from_medium } => {
                return self.read(range, from_medium, read_memory).await;
            }
            Plan::Write { range, durable } => self.write(range, data, durable).await?,
            Plan::WriteAtomic { range, durable } => self.write_atomic(range, data, durable).await?,
            Plan::WriteAndVerify { range, compare } => {
                Box::pin(self.write_and_verify(range, compare, data)).await?;
            }
            Plan::Verify { range, compare } => {
                Box::pin(self.verify(range, compare, &data)).await?;
            }
            Plan::CompareAndWrite { range, durable } => {
                Box::pin(self.compare_and_write(range, data, durable)).await?;
            }
            Plan::OrWrite { range, durable } => {
                Box::pin(self.or_write(range, &data, durable)).await?;
            }
            Plan::WriteSame { range, pattern, may_unmap, durable } => {
                let data = if pattern == Pattern::Zeroes { Bytes::new() } else { data };
                Box::pin(self.write_same(range, &data, may_unmap, durable)).await?;
            }
            Plan::Unmap { ref ranges, durable } => self.unmap(ranges, durable).await?,
            Plan::Prefetch { range } => {
                self.enter()?;
                let context = self.abort.io_context(self.memory.buffers.owner());
                let range = block_range(self.prefetched(range));
                context.scope_sync(|| self.device().prefetch(range));
                // CONDITION MET would promise that the whole range stays cached; GOOD does not.
            }
            Plan::Flush { immediate } => {
                self.enter()?;
                self.synchronize(immediate).await?;
            }
            Plan::MapStatus { range, extents_max, allocation_bytes } => {
                return self.map_status(range, extents_max, allocation_bytes).await;
            }
            Plan::SelfTest { ref reads } => Box::pin(self.self_test(reads)).await?,
            Plan::LongOperation { ref operation, by, immediate } => {
                self.enter()?;
                self.long_operation(operation.clone(), by, immediate).await?;
            }
            Plan::ExitFailureMode => {
                self.enter()?;
                self.exit_failure_mode().await?;
            }
            Plan::Parameters { .. }
            | Plan::AbortTasksOf { .. }
            | Plan::Copy { .. }
            | Plan::SaveState => return Err(internal_failure().into()),
        }
        self.check_recoveries()?;
        Ok(PlanResult::Good(Bytes::new()))
    }

    fn device(&self) -> &dyn BlockDevice {
        self.unit.device().as_ref()
    }

    fn bytes(&self, range: LbaRange) -> usize {
        usize::try_from(range.count * self.block_bytes).unwrap_or(usize::MAX)
    }

    /// Takes memory for the command, as soon as some is free. The caller must hold no lock that
    /// other commands may wait for.
    async fn take_buffer(&self, bytes: usize) -> Step<Buffer> {
        Ok(self.memory.take(bytes, &self.abort).await?)
    }

    async fn read_blocks(&self, range: LbaRange) -> Step<Buffer> {
        let buffer = self.take_buffer(self.bytes(range)).await?;
        self.read_blocks_into(range, buffer).await
    }

    /// Reads `range` into a buffer of its length.
    async fn read_blocks_into(&self, range: LbaRange, buffer: Buffer) -> Step<Buffer> {
        self.abort.unless(self.unit.ranges.wait_until_readable(range)).await?;
        self.enter()?;
        let context = self.abort.io_context(self.memory.buffers.owner());
        let read = context.scope(self.device().read(block_range(range), buffer));
        let mut buffer = match self.abort.unless(read).await? {
            Ok(buffer) => buffer,
            Err(error) => return Err(Box::pin(self.read_failed_at(range, error)).await),
        };
        buffer.truncate(self.bytes(range));
        // Unfinished states of a long operation may not be read.
        self.check_generation()?;
        Ok(buffer)
    }

    /// Charges the quota for the next move of data. Should be awaited without a lock if possible.
    async fn charge(&self, commands: u64, range: LbaRange) -> Step<()> {
        let cost = Cost { commands, bytes: range.count.saturating_mul(self.block_bytes) };
        Ok(self.quota_charge.charge(self.unit.quota(), cost, &self.abort).await?)
    }

    /// The part of `range`, which may be the rest of the disk, that is prefetched.
    fn prefetched(&self, range: LbaRange) -> LbaRange {
        if !self.quota_charge.is_limited(self.unit.quota()) {
            return range;
        }
        let blocks = prefetch_bytes_max(self.unit) / self.block_bytes;
        LbaRange { count: range.count.min(blocks), ..range }
    }

    /// Writes with `range` locked shared; returns the lock.
    async fn write_blocks(&self, range: LbaRange, data: Bytes, durable: bool) -> Step<RangeGuard> {
        let work = || self.write_work(range, data.clone(), durable);
        let (guard, done) = self.try_with_space(range.into(), LockMode::Shared, work).await?;
        lunar_net::count_copied(data.len());
        match done {
            Ok(()) => Ok(guard),
            Err(error) => Err(Box::pin(self.write_failed_at(guard, range, &data, error)).await),
        }
    }

    fn write_work(&self, range: LbaRange, data: Bytes, durable: bool) -> MediumChange {
        let device = Arc::clone(self.unit.device());
        Box::pin(async move { device.write(block_range(range), data, durable).await })
    }

    /// Locks `range`, shared with other writers or exclusively, as soon as it is free.
    async fn lock(&self, range: impl Into<ClaimedBlocks>, exclusive: bool) -> Step<RangeGuard> {
        let (owner, blocks) = (self.memory.buffers.owner(), range.into());
        let guard = loop {
            let lock = self.unit.ranges.lock_for(owner, &self.abort, blocks.clone(), exclusive);
            let guard = self.abort.unless(lock).await??;
            if !self.is_behind_held(&blocks) {
                break guard;
            }
            drop(guard);
            Box::pin(self.wait_behind_held(blocks.clone())).await?;
        };
        self.check_locked()?;
        Ok(guard)
    }

    /// Checks that a command which has locked its blocks may continue.
    fn check_locked(&self) -> Step<()> {
        self.check_generation()?;
        self.enter()
    }

    /// Checks that no long operation has begun since the command was checked. Writing commands
    /// check it while they hold their range: an operation waits until it holds all ranges.
    fn check_generation(&self) -> Step<()> {
        if self.unit.generation().operations == self.generation.operations {
            return Ok(());
        }
        Err(self.unit.scsi().overtaken_by_operation().into())
    }

    /// Checks that the disk has not been recovered since the command was checked.
    fn check_recoveries(&self) -> Step<()> {
        if self.unit.was_recovered_since(self.generation) {
            return Err(sense(SenseKey::MEDIUM_ERROR, WRITE_ERROR, None).into());
        }
        Ok(())
    }

    async fn read(
        &self,
        range: LbaRange,
        from_medium: bool,
        memory: ReadMemory,
    ) -> Step<PlanResult> {
        self.flush_before_read(from_medium).await?;
        self.read_range(range, memory).await
    }

    /// Makes written data durable, if a read has to come `from_medium`.
    async fn flush_before_read(&self, from_medium: bool) -> Step<()> {
        if self.unit.flushes_before_read(from_medium) {
            self.flush().await?;
        }
        Ok(())
    }

    /// Writes `data`. The command holds its range while the disk may delay it behind other writes:
    /// the number of such commands is limited by the memory for their data.
    async fn write(&self, range: LbaRange, data: Bytes, durable: bool) -> Step<()> {
        self.write_blocks(range, data, durable).await.map(drop)
    }

    async fn compare_and_write(&self, range: LbaRange, data: Bytes, durable: bool) -> Step<()> {
        if self.device().compare_and_write().is_some() {
            return self.compare_and_write_at_device(range, data, durable).await;
        }
        let half = self.bytes(range);
        let new = data.slice(half..);
        loop {
            let buffer = self.take_buffer(half).await?;
            let guard = self.lock(range, true).await?;
            let old = self.read_blocks_into(range, buffer).await?;
            lunar_net::count_moved(old.len());
            if let Some(offset) = first_difference(&old, data.get(..half).unwrap_or_default()) {
                return Err(miscompare(offset as u64).into());
            }
            let replaced = self.replace(guard, range, old.freeze(), new.clone(), durable).await?;
            if replaced.is_some() {
                return Ok(());
            }
        }
    }

    /// COMPARE AND WRITE of a device with other users, which compares itself.
    async fn compare_and_write_at_device(
        &self,
        range: LbaRange,
        data: Bytes,
        durable: bool,
    ) -> Step<()> {
        let difference = Arc::<OnceLock<u64>>::default();
        let work = || -> MediumChange {
            let (device, found) = (Arc::clone(self.unit.device()), Arc::clone(&difference));
            let data = data.clone();
            Box::pin(async move {
                let Some(compares) = device.compare_and_write() else { return Ok(()) };
                let compared = compares.compare_and_write(block_range(range), data, durable);
                if let Some(offset) = compared.await? {
                    let _ = found.set(offset); // set once
                }
                Ok(())
            })
        };
        self.with_space(range.into(), LockMode::Exclusive, work).await?;
        match difference.get() {
            Some(offset) => Err(miscompare(*offset).into()),
            None => Ok(()),
        }
    }

    async fn or_write(&self, range: LbaRange, data: &[u8], durable: bool) -> Step<()> {
        loop {
            let buffer = self.take_buffer(self.bytes(range)).await?;
            // If writes may be held for room, the old data is kept to be restored.
            let kept = if self.may_hold_writes() {
                Some(self.take_buffer(self.bytes(range)).await?)
            } else {
                None
            };
            let guard = self.lock(range, true).await?;
            let mut new = self.read_blocks_into(range, buffer).await?;
            lunar_net::count_moved(new.len());
            let old = kept.map_or_else(Bytes::new, |mut kept| {
                kept.copy_from_slice(&new);
                kept.freeze()
            });
            set_bits(&mut new, data);
            if self.replace(guard, range, old, new.freeze(), durable).await?.is_some() {
                return Ok(());
            }
        }
    }

    /// Writes `pattern` to every block of `range`. `pattern` is one block, or empty for zeroes.
    async fn write_same(
        &self,
        range: LbaRange,
        pattern: &[u8],
        may_unmap: bool,
        durable: bool,
    ) -> Step<()> {
        let zeroes = pattern.iter().all(|byte| *byte == 0);
        if zeroes && self.device().sparse().is_some() {
            return self.clear(range, Clear::Zero { may_unmap }, durable).await;
        }
        let block = self.block_bytes as usize;
        let blocks = (PIECE_BYTES / block).max(1).min(range.count.min(1 << 20) as usize);
        let mut buffer = self.take_buffer(blocks * block).await?;
        if pattern.is_empty() {
            buffer.fill(0);
        } else {
            buffer.chunks_mut(block).for_each(|chunk| chunk.copy_from_slice(pattern));
        }
        let pattern = buffer.freeze();
        let mut done = 0;
        while done < range.count {
            let count = (blocks as u64).min(range.count - done);
            let data = pattern.slice(..count as usize * block);
            let part = LbaRange { lba: range.lba + done, count };
            self.charge(0, part).await?;
            self.abort.wait_to_move().await?;
            // Each piece is a write of its own, and waits for its turn before it locks its range.
            drop(self.write_blocks(part, data, false).await?);
            lunar_net::count_moved(self.bytes(part));
            done += count;
        }
        if durable { self.flush().await } else { Ok(()) }
    }

    /// Deallocates the ranges. The list is locked as one claim: it waits for all of them or holds
    /// them all.
    async fn unmap(&self, ranges: &[LbaRange], durable: bool) -> Step<()> {
        if self.device().sparse().is_none() {
            return Err(internal_failure().into()); // the table refuses UNMAP on such units
        }
        if ranges.is_empty() {
            return Ok(());
        }
        self.clear(ClaimedBlocks::of(ranges), Clear::Unmap, durable).await
    }

    /// SYNCHRONIZE CACHE. Without IMMED, it fails once for each nexus after a loss of acknowledged
    /// writes ([`crate::cache_losses`]).
    async fn synchronize(&self, immediate: bool) -> Step<()> {
        if immediate {
            self.unit.flush_later();
            return Ok(());
        }
        let flushed = self.flush().await;
        if matches!(flushed, Err(Stop::Aborted)) {
            return flushed; // nothing is reported
        }
        let is_loss = match (&self.entry, self.device().cache_losses()) {
            (Some(entry), Some(losses)) => self.unit.cache_losses.take(entry.nexus(), losses),
            _ => false,
        };
        flushed?;
        if is_loss { Err(sense(SenseKey::MEDIUM_ERROR, WRITE_ERROR, None).into()) } else { Ok(()) }
    }

    async fn flush(&self) -> Step<()> {
        let context = self.abort.io_context(self.memory.buffers.owner());
        let flush = context.scope(self.device().flush());
        self.abort.unless(flush).await?.map_err(write_failed)?;
        self.check_recoveries()
    }

    async fn map_status(
        &self,
        range: LbaRange,
        extents_max: usize,
        allocation_bytes: u32,
    ) -> Step<PlanResult> {
        // The device keeps the extents while it looks for further ones.
        let work_bytes = extents_max.saturating_mul(EXTENT_WORK_BYTES);
        let _charge = self.memory.charge(work_bytes, &self.abort).await?;
        self.abort.unless(self.unit.ranges.wait_until_readable(range)).await?;
        self.enter()?;
        let extents = match self.device().sparse() {
            Some(sparse) => {
                let context = self.abort.io_context(self.memory.buffers.owner());
                let status = context.scope(sparse.status(block_range(range), extents_max));
                self.abort.unless(status).await?.map_err(read_failed)?
            }
            None => {
                vec![lunar_block::Extent { range: block_range(range), state: ExtentState::Mapped }]
            }
        };
        let extents: Vec<_> = extents
            .into_iter()
            .map(|extent| {
                let range = LbaRange { lba: extent.range.lba, count: extent.range.count };
                (range, extent.state == ExtentState::Mapped)
            })
            .collect();
        Ok(PlanResult::Good(self.memory.reply(lba_status_reply(&extents, allocation_bytes))))
    }
}

/// Memory that GET LBA STATUS takes for an extent: up to twice its size in the list of the device,
/// which grows by doubling, and its size in the converted list.
const EXTENT_WORK_BYTES: usize =
    2 * size_of::<lunar_block::Extent>() + size_of::<(LbaRange, bool)>();

fn block_range(range: LbaRange) -> BlockRange {
    BlockRange::new(range.lba, range.count)
}

/// Offset at which two slices first differ; a missing byte differs.
fn first_difference(a: &[u8], b: &[u8]) -> Option<usize> {
    /// Length that is compared at once, which takes a fraction of the time of single bytes.
    const CHUNK_BYTES: usize = 512;
    if a == b {
        return None;
    }
    let chunks = a.chunks(CHUNK_BYTES).zip(b.chunks(CHUNK_BYTES));
    let same = chunks.take_while(|(a, b)| a == b).map(|(chunk, _)| chunk.len()).sum();
    let (a, b) = (a.get(same..)?, b.get(same..)?);
    Some(same + a.iter().zip(b).take_while(|(a, b)| a == b).count())
}

fn sense(key: SenseKey, code: u16, information: Option<u64>) -> Sense {
    Sense { information, ..Sense::new(key, code) }
}

/// Sets the bits of `set` in `bytes`, which are as long. Words are faster than bytes in builds that
/// are not optimized.
fn set_bits(bytes: &mut [u8], set: &[u8]) {
    let (words, rest) = bytes.as_chunks_mut::<16>();
    let (set_words, set_rest) = set.as_chunks::<16>();
    for (word, set) in words.iter_mut().zip(set_words) {
        *word = (u128::from_be_bytes(*word) | u128::from_be_bytes(*set)).to_be_bytes();
    }
    rest.iter_mut().zip(set_rest).for_each(|(byte, set)| *byte |= set);
}

/// MISCOMPARE DURING VERIFY OPERATION with the offset of the first byte that differs, SBC-3 §5.2.
fn miscompare(offset: u64) -> Sense {
    sense(SenseKey::MISCOMPARE, 0x1d00, Some(offset))
}

fn read_failed(error: lunar_block::Error) -> Stop {
    // UNRECOVERED READ ERROR
    device_failed(&error, 0x1100)
}

fn write_failed(error: lunar_block::Error) -> Stop {
    device_failed(&error, WRITE_ERROR)
}

fn device_failed(error: &lunar_block::Error, medium_code: u16) -> Stop {
    complain(error);
    let lba = error.range.map(|range| range.lba);
    // SBC-3 requires the block that failed here: of several blocks it is not known which one
    // failed.
    let bad = error.range.filter(|range| range.count == 1).map(|range| range.lba);
    let failed = match error.kind {
        // LOGICAL BLOCK ADDRESS OUT OF RANGE
        ErrorKind::OutOfRange => sense(SenseKey::ILLEGAL_REQUEST, 0x2100, lba),
        // WRITE PROTECTED
        ErrorKind::ReadOnly => sense(SenseKey::DATA_PROTECT, 0x2700, None),
        // SPACE ALLOCATION FAILED WRITE PROTECT
        ErrorKind::NoSpace => sense(SenseKey::DATA_PROTECT, 0x2707, lba),
        // LOGICAL UNIT COMMUNICATION FAILURE
        ErrorKind::Disconnected => sense(SenseKey::HARDWARE_ERROR, 0x0800, None),
        ErrorKind::Busy => return Stop::Busy,
        // LOGICAL UNIT NOT READY, MANUAL INTERVENTION REQUIRED
        ErrorKind::Fenced => sense(SenseKey::NOT_READY, 0x0403, None),
        _ => sense(SenseKey::MEDIUM_ERROR, medium_code, bad),
    };
    failed.into()
}

/// Logs the error of the device; at most one line a second, since on a broken disk every command
/// fails.
fn complain(error: &lunar_block::Error) {
    static LAST: Mutex<Option<Instant>> = Mutex::new(None);
    if matches!(error.kind, ErrorKind::OutOfRange | ErrorKind::ReadOnly) {
        return; // the initiator's doing
    }
    let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
    if last.is_some_and(|last| last.elapsed() < COMPLAINT_INTERVAL) {
        return;
    }
    *last = Some(Instant::now());
    let why = error.source.as_ref().map(|source| format!(": {source}")).unwrap_or_default();
    tracing::error!("{error}{why} (reported to the initiator; at most one such line per second)");
}

mod diagnostic;
mod hold;
mod long_operation;
#[cfg(test)]
mod tests;
