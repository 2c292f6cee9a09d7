//! EXTENDED COPY between two units that this session sees, piece by piece.
//!
//! A piece is read from the source as a READ would read it, and written to the destination under
//! the range lock of a WRITE. One lock is held at a time, so two crossing copies cannot wait for
//! each other. Before each piece both units check anew whether this nexus may use them: a
//! reservation also stops a running copy.

#[cfg(test)]
mod tests;
mod units;

use super::clear::Uncleared;
use super::{PlanResult, Run, Step, Stop, block_range, internal_failure, write_failed};
use crate::abort::AbortSignal;
use crate::disk_unit::DiskUnit;
use crate::memory::WorkMemory;
use crate::quota::QuotaCharge;
use crate::session::Session;
use crate::thin_space::HOLD_INTERVAL;
use crate::unit::Unit;
use bytes::Bytes;
use futures_util::future::join;
use lunar_block::{Clear, ErrorKind, Extent, ExtentState};
use lunar_scsi::copy::{
    CopyEnd, CopyFault, CopyId, CopyList, CopySegment, Move, Reported, SegmentRole,
};
use lunar_scsi::plan::{LbaRange, NexusId, Refusal};
use lunar_scsi::sense::{Sense, Status};
use std::sync::Arc;
use units::NamedUnits;

/// Size of the pieces in which data moves. A copy holds two of them: one is written while the next
/// is read. The size is a multiple of every block length.
const COPY_PIECE_BYTES: u64 = lunar_net::MOVED_PIECE_BYTES as u64;
/// Size of the pieces that are zeroed instead of read, because the source is deallocated and reads
/// as zeroes.
const ZERO_PIECE_BYTES: u64 = 16 << 20;

/// Carries out an EXTENDED COPY that was sent to `manager`.
pub(crate) async fn copy(
    session: &Arc<Session>,
    manager: &Arc<DiskUnit>,
    list: CopyList,
    abort: AbortSignal,
    quota_charge: &QuotaCharge,
    memory: &WorkMemory,
) -> PlanResult {
    let running = match Running::begin(manager, session.nexus, list.list_identifier) {
        Ok(running) => running,
        Err(Refusal::Check(sense)) => return PlanResult::Check(sense),
        Err(Refusal::ReservationConflict) => return PlanResult::Conflict,
        Err(Refusal::Busy) => return PlanResult::Busy,
    };
    let copy = RunningCopy {
        with_units: &|work| work(session.view().units()),
        attach: &|unit| session.nexuses_of(unit, |_| ()),
        nexus: session.nexus,
        running: &running,
        abort: &abort,
        quota_charge,
        memory,
    };
    match copy.all(&list).await {
        Ok(()) => {
            running.end(CopyEnd::Completed);
            PlanResult::Good(Bytes::new())
        }
        Err(Stop::Check(sense)) => {
            let sense_bytes = manager.scsi().encode_sense(&sense);
            running.end(CopyEnd::Failed(sense_bytes));
            PlanResult::Check(sense)
        }
        Err(Stop::Aborted) => PlanResult::Aborted,
        Err(Stop::Conflict) => PlanResult::Conflict,
        Err(Stop::Busy) => PlanResult::Busy,
    }
}

/// A copy that COPY STATUS reports.
struct Running<'a> {
    manager: &'a Arc<DiskUnit>,
    id: CopyId,
    has_ended: bool,
}

impl<'a> Running<'a> {
    fn begin(
        manager: &'a Arc<DiskUnit>,
        nexus: NexusId,
        list_identifier: Option<u8>,
    ) -> Result<Self, Refusal> {
        let id = manager.scsi().begin_copy(nexus, list_identifier)?;
        Ok(Self { manager, id, has_ended: false })
    }

    fn progress(&self, segments: u16, bytes: u64) {
        self.manager.scsi().copies().progress(self.id, segments, bytes);
    }

    fn end(mut self, end: CopyEnd) {
        self.has_ended = true;
        self.manager.scsi().copies().end(self.id, end);
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if !self.has_ended {
            self.manager.scsi().copies().end(self.id, CopyEnd::Aborted);
        }
    }
}

/// Function over the units that an initiator sees.
type WithUnits<'a> = dyn FnMut(&[Arc<dyn Unit>]) + 'a;

struct RunningCopy<'a> {
    /// Calls a function with the units that this initiator sees in this session; it can reach no
    /// others. A copy may take hours, and holds only the units that its list names: others may be
    /// removed, and closed, meanwhile.
    with_units: &'a (dyn Fn(&mut WithUnits<'_>) + Sync),
    /// Attaches the nexus to a unit to which it may not have sent a command yet.
    attach: &'a (dyn Fn(&Arc<dyn Unit>) + Sync),
    nexus: NexusId,
    running: &'a Running<'a>,
    abort: &'a AbortSignal,
    quota_charge: &'a QuotaCharge,
    memory: &'a WorkMemory,
}

/// A segment that was accepted.
struct Job<'a> {
    number: u16,
    source: &'a Run<'a>,
    destination: &'a Run<'a>,
    moved: Move,
}

/// Direction in which a segment is copied.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Order {
    /// Source and destination are the same blocks: nothing is to be copied.
    Nothing,
    Ascending,
    /// The destination covers the end of the source: the copy starts at the end, so that nothing is
    /// overwritten before it was read.
    Descending,
}

/// A part of a segment, at `offset` bytes.
struct Piece {
    offset: u64,
    bytes: u64,
    /// Data of the piece; `None` for zeroes, deallocated at the source.
    data: Option<Bytes>,
}

impl RunningCopy<'_> {
    /// Copies all segments. All possible refusals come before the first write.
    async fn all(&self, list: &CopyList) -> Step<()> {
        let mut named = NamedUnits::new(list);
        let mut moves = Vec::with_capacity(list.segments.len());
        for (number, segment) in (0..).zip(&list.segments) {
            self.look_up_segment(list, number, &mut named).await?;
            moves.push(plan_move(list, number, segment, &named)?);
        }
        let runs = named.runs(self);
        let run = |cscd: u16| runs.get(usize::from(cscd))?.as_ref();
        let job = |((number, segment), moved): ((u16, &CopySegment), Move)| {
            let source = run(segment.source)?;
            let destination = run(segment.destination)?;
            Some(Job { number, source, destination, moved })
        };
        let jobs: Vec<_> = (0..).zip(&list.segments).zip(moves).filter_map(job).collect();
        let done = self.jobs(&jobs).await;
        if matches!(done, Err(Stop::Aborted)) {
            return done;
        }
        // Also done when a segment failed: data reported as written must be durable.
        let durable = self.make_durable(&jobs).await;
        done.and(durable)
    }

    async fn jobs(&self, jobs: &[Job<'_>]) -> Step<()> {
        let mut bytes = 0;
        for job in jobs {
            self.running.progress(job.number, bytes);
            self.segment(job, bytes).await?;
            bytes += job.moved.bytes;
            self.running.progress(job.number + 1, bytes);
        }
        Ok(())
    }

    /// Checks whether this nexus may use a unit now.
    fn check(&self, number: u16, unit: &DiskUnit, party: SegmentRole) -> Result<(), Sense> {
        let checked = unit.scsi().check_copy(self.nexus, party);
        checked.map_err(|refusal| {
            let reported = match refusal {
                Refusal::Check(sense) => Reported::check(party, &sense),
                Refusal::ReservationConflict => {
                    Reported::status(party, Status::RESERVATION_CONFLICT)
                }
                Refusal::Busy => Reported::status(party, Status::BUSY),
            };
            stopped(number, reported)
        })
    }

    async fn segment(&self, job: &Job<'_>, before: u64) -> Step<()> {
        let order = job.order();
        let mut written = 0;
        let done = match order {
            Order::Nothing => Ok(()),
            _ => self.pieces(job, order, before, &mut written).await,
        };
        done.map_err(|stop| match stop {
            Stop::Check(sense) => Stop::Check(with_residual(sense, job, order, written)),
            other => other,
        })
    }

    async fn pieces(
        &self,
        job: &Job<'_>,
        order: Order,
        before: u64,
        written: &mut u64,
    ) -> Step<()> {
        let mut reader = Reader { job, order, done: 0, hole_until: 0, data_until: 0 };
        let mut ahead = reader.next().await?;
        while let Some(piece) = ahead {
            let bytes = piece.bytes;
            // Both futures always end: a change that has begun on the medium is finished.
            let (next, written_piece) = join(reader.next(), self.write_piece(job, piece)).await;
            written_piece?;
            *written += bytes;
            self.running.progress(job.number, before + *written);
            ahead = next?;
            // Small pieces end no turn: a device that never waits must not delay other connections.
            tokio::task::yield_now().await;
        }
        Ok(())
    }

    /// Writes a piece. If the destination is to hold writes that find no room, the piece is tried
    /// again and again; no lock is held meanwhile, and a copy that was shut out does not continue.
    async fn write_piece(&self, job: &Job<'_>, piece: Piece) -> Step<()> {
        let to = job.destination;
        let data_bytes = piece.data.as_ref().map_or(0, |_| piece.bytes);
        to.charge(1, part(job.moved.destination, to.block_bytes, piece.offset, data_bytes)).await?;
        let range = part(job.moved.destination, to.block_bytes, piece.offset, piece.bytes);
        let mut uncleared = Uncleared::new(range);
        loop {
            // In another turn than the read of the next piece, if that was read at once.
            self.abort.wait_to_move().await?;
            let done = self.write_piece_now(job, &piece, range, &uncleared).await?;
            if to.must_hold(&done) {
                lunar_net::count_moved(piece.bytes as usize);
                self.abort.unless(tokio::time::sleep(HOLD_INTERVAL)).await?;
                continue;
            }
            to.end_hold();
            if let Err(error) = done {
                let stop = write_failed(error);
                return Err(reported(stop, job.number, SegmentRole::Destination));
            }
            if piece.data.is_none() {
                uncleared.piece_ended()?;
                if !uncleared.is_empty() {
                    to.pause().await?;
                    continue;
                }
            }
            lunar_net::count_moved(piece.bytes as usize);
            return Ok(());
        }
    }

    /// Writes a piece and returns the device's result, if both units may still be used. Zeroes are
    /// written as far as the device does it without a pause.
    async fn write_piece_now(
        &self,
        job: &Job<'_>,
        piece: &Piece,
        range: LbaRange,
        uncleared: &Uncleared,
    ) -> Step<Result<(), lunar_block::Error>> {
        let to = job.destination;
        let overtaken = |party| move |stop| reported(stop, job.number, party);
        let locked = match &piece.data {
            Some(_) => to.lock(range, false).await.map(|guard| (guard, None)),
            None => to.lock_to_clear(uncleared.blocks().clone()).await,
        };
        let (guard, _permit) = locked.map_err(overtaken(SegmentRole::Destination))?;
        let owner = to.memory.buffers.owner();
        let _writing = self.abort.unless(to.unit.copies.share(owner, self.abort)).await?;
        self.check(job.number, job.source.unit, SegmentRole::Source)?;
        self.check(job.number, to.unit, SegmentRole::Destination)?;
        job.source.check_generation().map_err(overtaken(SegmentRole::Source))?;
        let work = match &piece.data {
            Some(data) => to.write_work(range, data.clone(), false),
            None => {
                let may_unmap = to.unit.scsi().options().unmap_granularity_blocks.is_some();
                to.clear_work(uncleared, Clear::Zero { may_unmap }, false)
            }
        };
        let (guard, done) = to.change(guard.of_copy(), work).await?;
        if to.must_hold(&done) {
            to.begin_hold(range.into()).map_err(overtaken(SegmentRole::Destination))?;
        }
        match (done, &piece.data) {
            (Err(error), Some(data)) if error.kind != ErrorKind::NoSpace => {
                let stop = to.write_failed_at(guard, range, data, error).await;
                Err(reported(stop, job.number, SegmentRole::Destination))
            }
            (done, _) => Ok(done),
        }
    }

    /// Flushes the destinations: GOOD of a unit without a write cache means that the data is on
    /// stable storage.
    async fn make_durable(&self, jobs: &[Job<'_>]) -> Step<()> {
        for (at, job) in jobs.iter().enumerate() {
            let unit = job.destination.unit;
            let later = &jobs[at + 1..];
            if later.iter().any(|job| Arc::ptr_eq(job.destination.unit, unit))
                || unit.scsi().write_cache_enabled()
            {
                continue;
            }
            let flushed = job.destination.flush().await;
            flushed.map_err(|stop| reported(stop, job.number, SegmentRole::Destination))?;
        }
        Ok(())
    }
}

/// The move of a segment between the units that it names.
fn plan_move(
    list: &CopyList,
    number: u16,
    segment: &CopySegment,
    named: &NamedUnits,
) -> Step<Move> {
    let options = |cscd| Some(&named.get(cscd)?.options);
    let (from, to) = (options(segment.source), options(segment.destination));
    let checked = match (from, to) {
        (Some(from), Some(to)) => list.plan_move(number.into(), from, to),
        _ => None,
    };
    Ok(checked.ok_or_else(internal_failure)??)
}

impl Job<'_> {
    fn order(&self) -> Order {
        let Move { source, destination, bytes } = self.moved;
        let same = Arc::ptr_eq(self.source.unit, self.destination.unit);
        if bytes == 0 || (same && source.lba == destination.lba) {
            Order::Nothing
        } else if same && destination.lba > source.lba {
            Order::Descending
        } else {
            Order::Ascending
        }
    }
}

/// Reads a segment piece by piece, and finds the parts that need not be read.
struct Reader<'a, 'b> {
    job: &'b Job<'a>,
    order: Order,
    done: u64,
    /// Offset before which the source is known to be deallocated (`hole_until`) or data
    /// (`data_until`).
    hole_until: u64,
    data_until: u64,
}

impl Reader<'_, '_> {
    async fn next(&mut self) -> Step<Option<Piece>> {
        let left = self.job.moved.bytes - self.done;
        if left == 0 {
            return Ok(None);
        }
        if self.order == Order::Descending {
            let bytes = left.min(COPY_PIECE_BYTES);
            self.done += bytes;
            return self.read(left - bytes, bytes).await.map(Some);
        }
        let offset = self.done;
        self.find_extent(offset).await?;
        if self.hole_until > offset {
            let bytes = (self.hole_until - offset).min(ZERO_PIECE_BYTES);
            self.done += bytes;
            return Ok(Some(Piece { offset, bytes, data: None }));
        }
        let bytes = (self.data_until - offset).min(COPY_PIECE_BYTES);
        self.done += bytes;
        self.read(offset, bytes).await.map(Some)
    }

    async fn read(&self, offset: u64, bytes: u64) -> Step<Piece> {
        let from = self.job.source;
        let range = part(self.job.moved.source, from.block_bytes, offset, bytes);
        from.charge(1, range).await?;
        from.abort.wait_to_move().await?;
        let data = from.read_blocks(range).await;
        let data = data.map_err(|stop| reported(stop, self.job.number, SegmentRole::Source))?;
        lunar_net::count_moved(data.len());
        Ok(Piece { offset, bytes, data: Some(data.freeze()) })
    }

    /// Finds how far the source from `offset` on is all data, or all a hole that the destination
    /// can also make. If the device cannot determine it, the range counts as data.
    async fn find_extent(&mut self, offset: u64) -> Step<()> {
        if self.hole_until > offset || self.data_until > offset {
            return Ok(());
        }
        let Job { source: from, destination: to, moved, .. } = *self.job;
        let end = moved.bytes;
        self.data_until = end;
        let (Some(sparse), true) = (from.device().sparse(), to.device().sparse().is_some()) else {
            return Ok(());
        };
        let range = part(moved.source, from.block_bytes, offset, end - offset);
        from.abort.unless(from.unit.ranges.wait_until_readable(range)).await?;
        let context = from.abort.io_context(from.memory.buffers.owner());
        let status = context.scope(sparse.status(block_range(range), 1));
        let found = from.abort.unless(status).await?;
        let Some(Extent { range, state }) = found.ok().and_then(|found| found.first().copied())
        else {
            return Ok(());
        };
        // Rounds to whole blocks of both units: a hole is made shorter, data longer.
        let step = from.block_bytes.max(to.block_bytes);
        let until = offset + range.count * from.block_bytes;
        match state {
            ExtentState::Unmapped if until / step * step > offset => {
                self.hole_until = (until / step * step).min(end);
            }
            ExtentState::Unmapped => self.data_until = (offset + step).min(end),
            ExtentState::Mapped => self.data_until = until.next_multiple_of(step).min(end),
        }
        Ok(())
    }
}

/// The whole blocks of `bytes` bytes at `offset` of a range.
fn part(range: LbaRange, block_bytes: u64, offset: u64, bytes: u64) -> LbaRange {
    LbaRange { lba: range.lba + offset / block_bytes, count: bytes / block_bytes }
}

/// Sense for a unit that the session does not have or the initiator may not see: the two cases look
/// the same.
fn unreachable_unit(segment: u16) -> Sense {
    let fault = CopyFault { segment, reported: None };
    Sense::COPY_TARGET_DEVICE_NOT_REACHABLE.with_copy(fault)
}

fn stopped(segment: u16, reported: Reported) -> Sense {
    let reported = Some(reported);
    Sense::THIRD_PARTY_DEVICE_FAILURE.with_copy(CopyFault { segment, reported })
}

/// Converts a failure of a unit to a failure of the copy.
fn reported(stop: Stop, segment: u16, party: SegmentRole) -> Stop {
    match stop {
        Stop::Check(sense) => Stop::Check(stopped(segment, Reported::check(party, &sense))),
        Stop::Conflict => {
            let conflict = Reported::status(party, Status::RESERVATION_CONFLICT);
            Stop::Check(stopped(segment, conflict))
        }
        Stop::Busy => Stop::Check(stopped(segment, Reported::status(party, Status::BUSY))),
        Stop::Aborted => Stop::Aborted,
    }
}

/// Adds the number of blocks of the destination that were not written, if some were written: SPC-3
/// §6.3.3 counts "only the contiguous successfully completed transfers starting at relative byte
/// zero".
fn with_residual(sense: Sense, job: &Job<'_>, order: Order, written: u64) -> Sense {
    if written == 0 {
        return sense;
    }
    let contiguous = if order == Order::Descending { 0 } else { written };
    sense.with_information((job.moved.bytes - contiguous) / job.destination.block_bytes)
}
