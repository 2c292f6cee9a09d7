//! Reads from the member that is likely to answer first, and from others when it fails.

use super::Mirror;
use super::bounded::{FailedMember, MemberFailure, RunToEnd, complete_in_task, deadline, run_one};
use super::change::Targets;
use super::change_queue::{ChangeQueue, ChangeSource};
use super::member::MirrorMember;
use super::slots::MemberSlot;
use crate::format::MemberSet;
use crate::member_io::member_failed;
use bytes::Bytes;
use futures_util::future::poll_fn;
use lunar_block::{BlockRange, BoxFuture, Buffer, BufferPool, Error, ErrorKind};
use std::pin::Pin;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::Duration;
use tokio::time::{Instant, Sleep};

/// Costs that differ by less than one part in eight are equal: then the member with the fewest
/// reads is read from. Two members of one latency would otherwise keep an uneven distribution,
/// because a member with more reads has a lower latency for each of them.
const EQUAL_COST_SHARE: u64 = 8;

/// Maximum number of repairs that are in progress at a time: a member may fail all its reads.
pub(super) const REPAIRS_MAX: usize = 16;

/// The reads of members that serve one read of the mirror, each into memory of its own.
#[derive(Default)]
struct MemberReads {
    running: Vec<MemberRead>,
    tried: MemberSet,
    failed: Vec<FailedMember>,
}

struct MemberRead {
    member: Arc<MirrorMember>,
    read: BoxFuture<'static, Result<Buffer, Error>>,
    begun: Instant,
    /// Losses of the device when the read began.
    losses: u64,
}

/// The end of a member's read.
struct MemberAnswer {
    member: Arc<MirrorMember>,
    data: Result<Buffer, Error>,
    begun: Instant,
    /// True if the device had a loss since the read began.
    has_lost: bool,
}

impl MemberReads {
    fn begin(&mut self, member: Arc<MirrorMember>, range: BlockRange, into: Buffer) {
        self.tried.insert(member.slot);
        let cloned = Arc::clone(&member);
        let read = Box::pin(async move { cloned.read(range, into).await });
        let losses = member.device.losses();
        self.running.push(MemberRead { member, read, begun: Instant::now(), losses });
    }

    /// Waits for any answer; `None` if there is none within `limit`.
    async fn next(&mut self, limit: Option<Duration>) -> Option<MemberAnswer> {
        let mut timer: Option<Pin<Box<Sleep>>> = None;
        poll_fn(|context| {
            for at in 0..self.running.len() {
                if let Poll::Ready(data) = self.running[at].read.as_mut().poll(context) {
                    let MemberRead { member, begun, losses, .. } = self.running.swap_remove(at);
                    let has_lost = member.device.losses() != losses;
                    return Poll::Ready(Some(MemberAnswer { member, data, begun, has_lost }));
                }
            }
            let Some(limit) = limit else { return Poll::Pending };
            if timer.is_none() {
                timer = deadline(limit);
            }
            match &mut timer {
                Some(timer) => timer.as_mut().poll(context).map(|()| None),
                None => Poll::Pending,
            }
        })
        .await
    }
}

impl Mirror {
    /// Reads blocks from any member that has them.
    ///
    /// While a change of the blocks is in progress, all reads of them use the same member: a read
    /// that has returned new data is not followed by one that returns old data of another member.
    pub(super) fn read_blocks(
        self: &Arc<Self>,
        range: BlockRange,
        into: Buffer,
    ) -> BoxFuture<'_, Result<Buffer, Error>> {
        Box::pin(self.read_any(range, into))
    }

    async fn read_any(self: &Arc<Self>, range: BlockRange, into: Buffer) -> Result<Buffer, Error> {
        self.foreground.fetch_add(1, SeqCst);
        if !self.is_read_only && self.is_lacking(range) {
            let read = RunToEnd::new(Arc::clone(self).read_and_propagate(range, into));
            if let Some(data) = read.await? {
                return Ok(data);
            }
            return Err(self.unreadable(range, Vec::new()));
        }
        let (pool, len) = (into.pool(), into.len());
        let mut buffer = Some(into);
        let mut reads = MemberReads::default();
        loop {
            self.refuse_closed(false)?;
            let source = self.queue.source_of(range);
            let is_changing = source != ChangeSource::Any;
            let member = match is_changing {
                true => {
                    self.review_source();
                    self.member_of(source, range).filter(|one| !reads.tried.contains(one.slot))
                }
                false => self.choose(range, reads.tried),
            };
            let is_more = member.is_some();
            match member {
                Some(member) => {
                    let into = buffer.take().unwrap_or_else(|| pool.take(len));
                    reads.begin(member, range, into);
                }
                None if is_changing => {
                    // The other members may have older data until the change has ended.
                    self.queue.wait_for_overlapping(range).await;
                    continue;
                }
                None if reads.running.is_empty() => {
                    return match self.halves(range).filter(|_| reads.failed.is_empty()) {
                        Some(halves) => self.read_halves(halves, pool.take(len)).await,
                        None => Err(self.unreadable(range, reads.failed)),
                    };
                }
                None => {}
            }
            // The last member has no time limit.
            let limit = is_more.then_some(self.options.member_wait);
            let Some(answer) = reads.next(limit).await else { continue };
            if let Some(data) = self.handle_answer(range, answer, &mut reads).await? {
                return Ok(data);
            }
        }
    }

    /// Reads blocks that not all current members have, and writes them to the others before they
    /// are returned. After a crash members may differ in these blocks; the read decides which
    /// version counts, also if its source is lost after it.
    ///
    /// Returns `None` if no member could be read.
    async fn read_and_propagate(
        self: Arc<Self>,
        range: BlockRange,
        into: Buffer,
    ) -> Result<Option<Buffer>, Error> {
        let (pool, len) = (into.pool(), into.len());
        let bytes = range.count as usize * self.geometry().block_bytes as usize;
        let turn = ChangeQueue::enter(&self.queue, range).await;
        let mut buffer = Some(into);
        let mut tried = MemberSet::default();
        let mut failed = Vec::new();
        loop {
            let Some(source) = self.choose(range, tried) else { break };
            tried.insert(source.slot);
            let losses = source.device.losses();
            let into = buffer.take().unwrap_or_else(|| pool.take(len));
            let read = tokio::time::timeout(self.options.member_wait, source.read(range, into));
            let is_last = self.choose(range, tried).is_none();
            let data = match read.await {
                Ok(Ok(data)) => data,
                Ok(Err(error)) => {
                    failed.push(FailedMember::new(&source, MemberFailure::Device(error)));
                    continue;
                }
                Err(_) if is_last => {
                    // The last member that has the blocks has no time limit.
                    tried.0 &= !(1 << source.slot);
                    continue;
                }
                Err(_) => {
                    let failure = MemberFailure::Late(self.options.member_wait);
                    failed.push(FailedMember::new(&source, failure));
                    continue;
                }
            };
            if source.device.losses() != losses || source.has_lost() {
                self.leave_out_if_lossy(&source).await?;
                tried.0 &= !(1 << source.slot);
                continue;
            }
            let from = Bytes::copy_from_slice(&data[..bytes]);
            let start = |member: &Arc<MirrorMember>| member.write(range, from.clone(), false);
            self.change_in_turn(&turn, range, Targets::Lacking, start).await?;
            let reads = MemberReads { failed, ..MemberReads::default() };
            drop(turn);
            self.repair_after_read(range, Instant::now(), reads);
            return Ok(Some(data));
        }
        drop(turn);
        match (self.halves(range).filter(|_| failed.is_empty()), failed.is_empty()) {
            (Some(halves), _) => self.read_halves(halves, pool.take(len)).await.map(Some),
            (None, true) => Ok(None),
            (None, false) => Err(self.unreadable(range, failed)),
        }
    }

    /// Handles the answer of a member. Returns the data if it may be used.
    async fn handle_answer(
        self: &Arc<Self>,
        range: BlockRange,
        answer: MemberAnswer,
        reads: &mut MemberReads,
    ) -> Result<Option<Buffer>, Error> {
        let MemberAnswer { member, data, begun, has_lost } = answer;
        let data = match data {
            Ok(data) => data,
            Err(error) => {
                reads.failed.push(FailedMember::new(&member, MemberFailure::Device(error)));
                return Ok(None);
            }
        };
        if has_lost || (member.has_lost() && !self.is_read_only) {
            self.leave_out_if_lossy(&member).await?;
            // The member may be the best of all that have lost writes, or was resynced since.
            reads.tried.0 &= !(1 << member.slot);
            return Ok(None);
        }
        self.note_late_read(&member, begun);
        let source = self.queue.source_of(range);
        let is_source =
            || self.member_of(source, range).is_some_and(|source| Arc::ptr_eq(&source, &member));
        if source != ChangeSource::Any && !is_source() {
            reads.tried = MemberSet::default();
            return Ok(None);
        }
        self.repair_after_read(range, begun, std::mem::take(reads));
        Ok(Some(data))
    }

    /// Repairs blocks that members could not read, and leaves out members that did not answer, in a
    /// task: the caller has its data.
    fn repair_after_read(
        self: &Arc<Self>,
        range: BlockRange,
        begun: Instant,
        mut reads: MemberReads,
    ) {
        if self.is_read_only || (reads.failed.is_empty() && reads.running.is_empty()) {
            return;
        }
        let (mirror, limit) = (Arc::clone(self), self.options.member_wait);
        // If the answer took as long as the others were waited for, they have the same time again.
        let grace = if begun.elapsed() < limit { Duration::ZERO } else { limit };
        complete_in_task(async move {
            let until = Instant::now() + grace;
            let left = || until.saturating_duration_since(Instant::now());
            while !reads.running.is_empty() {
                let Some(answer) = reads.next(Some(left())).await else { break };
                if let Err(error) = answer.data {
                    let failure = MemberFailure::Device(error);
                    reads.failed.push(FailedMember::new(&answer.member, failure));
                }
            }
            for late in reads.running {
                if late.begun.elapsed() >= limit {
                    let failure = MemberFailure::Late(limit);
                    reads.failed.push(FailedMember::new(&late.member, failure));
                }
            }
            for failed in reads.failed {
                mirror.repair_or_leave_out(failed, range).await;
            }
        });
    }

    /// Rewrites blocks that could not be read, which often makes them good again; leaves the member
    /// out if that fails, too. The failure is shown in the member's status.
    async fn repair_or_leave_out(self: &Arc<Self>, failed: FailedMember, range: BlockRange) {
        let FailedMember { member, failure } = failed;
        member.fail(&failure);
        let repaired = match failure {
            MemberFailure::Device(error) if error.kind == ErrorKind::Medium => {
                self.try_repair(member, range).await
            }
            // A busy member has refused the command, so the command had no effect.
            MemberFailure::Device(error) if error.kind == ErrorKind::Busy => Ok(()),
            _ => self.leave_out(&[member]).await.map(drop),
        };
        if let Err(error) = repaired {
            tracing::warn!("{}: {error}", self.name);
        }
    }

    /// Repairs blocks of a member, unless [`REPAIRS_MAX`] repairs are in progress: then the next
    /// read or scrub of these blocks finds the error again.
    async fn try_repair(
        self: &Arc<Self>,
        member: Arc<MirrorMember>,
        range: BlockRange,
    ) -> Result<(), Error> {
        let Ok(_permit) = self.repair_permits.try_acquire() else { return Ok(()) };
        let bytes = range.count as usize * self.geometry().block_bytes as usize;
        // Before the turn of the change: changes that wait for it may hold the memory.
        let into = Mutex::new(Some(self.buffers().take_when_free(bytes).await));
        self.change_with(range, Targets::One(member), |member| {
            let into = into.lock().unwrap_or_else(PoisonError::into_inner).take();
            let into = into.unwrap_or_else(|| self.buffers().take(bytes));
            let (mirror, cloned) = (Arc::clone(self), Arc::clone(member));
            Box::pin(async move { mirror.repair(&cloned, range, into).await })
        })
        .await
    }

    /// Rewrites blocks of a member from another one, in the turn of a change.
    async fn repair(
        &self,
        member: &Arc<MirrorMember>,
        range: BlockRange,
        into: Buffer,
    ) -> Result<(), Error> {
        let bytes = into.len();
        let Some(source) = self.choose(range, [member.slot].into_iter().collect()) else {
            return Ok(());
        };
        let Some(data) = self.read_checked(&source, range, into).await else {
            // Neither member is better than the other: later reads of these blocks fail.
            return Ok(());
        };
        member.write(range, data.freeze(), false).await?;
        // The data is free, so that this takes its memory.
        member.read(range, self.buffers().take(bytes)).await?;
        self.repairs.fetch_add(1, SeqCst);
        tracing::warn!(
            "{}: blocks {}+{} of member {} were repaired from {}",
            self.name,
            range.lba,
            range.count,
            member.device.name(),
            source.device.name()
        );
        Ok(())
    }

    /// Reads blocks to be copied to another member; `None` if the source failed or has a loss.
    pub(super) async fn read_checked(
        &self,
        source: &Arc<MirrorMember>,
        range: BlockRange,
        into: Buffer,
    ) -> Option<Buffer> {
        let limit = self.options.member_wait;
        let data = match tokio::time::timeout(limit, source.read(range, into)).await {
            Ok(Ok(data)) => data,
            Ok(Err(error)) => {
                source.fail(&error);
                return None;
            }
            Err(_) => {
                source.fail(MemberFailure::Late(limit));
                return None;
            }
        };
        // Most devices report a loss only by a flush. Data that the source has lost must not
        // replace the only good copy.
        if let Err(failure) = run_one(limit, source, source.check_losses()).await {
            source.fail(failure);
            return None;
        }
        if source.has_lost() {
            source.fail(MemberFailure::Lost);
            return None;
        }
        Some(data)
    }

    /// Returns the member with the least outstanding work, weighted by its latency, that has these
    /// blocks and is not in `tried`.
    pub(super) fn choose(&self, range: BlockRange, tried: MemberSet) -> Option<Arc<MirrorMember>> {
        let (first, last) = self.intents.span(range);
        let all = self.slots.all();
        let fits = |member: &&Arc<MirrorMember>| {
            member.is_current() && !tried.contains(member.slot) && member.holds(first, last)
        };
        // Each cost is read once: reads that end alongside this one change it.
        let costs: Vec<(&Arc<MirrorMember>, u64)> = (all.iter().filter_map(MemberSlot::member))
            .filter(fits)
            .map(|member| (member, member.cost()))
            .collect();
        let cost_min = costs.iter().map(|(_, cost)| *cost).min()?;
        let equal = cost_min.saturating_add(cost_min / EQUAL_COST_SHARE);
        let among = costs.iter().filter(|(_, cost)| *cost <= equal);
        let (best, _) = among.min_by_key(|(member, cost)| (member.outstanding_reads(), *cost))?;
        let others = costs.iter().filter(|(member, _)| !Arc::ptr_eq(member, best));
        others.for_each(|(member, _)| member.decay_cost());
        Some(Arc::clone(best))
    }

    /// Reads if no waiting is needed.
    pub(super) fn read_now(&self, range: BlockRange, into: &mut [u8]) -> bool {
        let is_slow = self.refuse_closed(false).is_err()
            || self.queue.source_of(range) != ChangeSource::Any
            || self.is_lacking(range);
        if is_slow {
            return false;
        }
        let Some(member) = self.choose(range, MemberSet::default()) else { return false };
        if !member.try_read_now(range, into) {
            return false;
        }
        self.foreground.fetch_add(1, SeqCst);
        let is_lossy = member.has_lost() && !self.is_read_only;
        // The slow path decides which member's data counts.
        !is_lossy && self.queue.source_of(range) == ChangeSource::Any
    }

    /// Splits a range of several regions, which different members may have.
    fn halves(&self, range: BlockRange) -> Option<[BlockRange; 2]> {
        let (first, last) = self.intents.span(range);
        let middle = u64::from(first + (last - first).div_ceil(2)) * self.intents.region_blocks();
        let halves = [
            BlockRange::new(range.lba, middle.checked_sub(range.lba)?),
            BlockRange::new(middle, range.count - (middle - range.lba)),
        ];
        (first < last).then_some(halves)
    }

    async fn read_halves(
        self: &Arc<Self>,
        halves: [BlockRange; 2],
        mut into: Buffer,
    ) -> Result<Buffer, Error> {
        let block = self.geometry().block_bytes as usize;
        let buffers: BufferPool = into.pool();
        let mut at = 0;
        for half in halves {
            let bytes = half.count as usize * block;
            let read = self.read_blocks(half, buffers.take(bytes)).await?;
            into[at..at + bytes].copy_from_slice(&read[..bytes]);
            at += bytes;
        }
        Ok(into)
    }

    fn unreadable(&self, range: BlockRange, failed: Vec<FailedMember>) -> Error {
        for failed in failed {
            if let MemberFailure::Device(error) = failed.failure {
                return member_failed(&self.name, Some(range), error);
            }
        }
        let what = "no current member has these blocks";
        Error::new(ErrorKind::Medium, &*self.name, what).at(range)
    }
}
