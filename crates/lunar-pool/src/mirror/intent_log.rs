//! The write-intent log: regions are marked on the members before they are written.

use super::bounded::{FailedMember, JointLimit, LimitFrom, MemberFailure, run};
use super::member::MirrorMember;
use super::membership::with_detached_changes;
use super::options::MirrorOptions;
use crate::format::{IntentPage, Label, PoolId, RegionSet};
use bytes::Bytes;
use lunar_block::{BlockRange, IoContext};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// Maximum number of settled marks that are kept in a large pool. A crash makes the next opening
/// copy these regions: at most one part in 32 of the pool, which has at least 16,208 regions then.
const KEPT_MARKS: u64 = 512;

/// Maximum length of the regions with settled marks in a small pool: copying them takes a minute at
/// most disks.
const KEPT_BYTES: u64 = 4 << 30;

/// Records on all current members, before a change is sent, the regions that it touches. After a
/// power cut, members can differ only in marked regions.
///
/// A mark is settled when all members were flushed since the last change of its region: then they
/// do not differ there. It stays on the members for some time, so that another change of the region
/// needs no page, and is removed by the next page that is written for other changes, or later by a
/// page of its own. No flush waits for a page.
#[derive(Debug)]
pub(super) struct IntentLog {
    pool: PoolId,
    region_blocks: AtomicU64,
    state: Mutex<LogState>,
    /// The sequence number of the last page. Locked while pages are written: one at a time.
    sequence: tokio::sync::Mutex<u64>,
    /// Time for which the write of a page waits for a member behind another.
    member_wait: Duration,
    /// Time for which a mark stays after the last change of its region.
    mark_time: Duration,
    block_bytes: u32,
}

#[derive(Debug)]
struct LogState {
    /// The regions that are marked durably on all current members.
    durable: RegionSet,
    /// The durable marks of regions in which the members do not differ.
    settled: RegionSet,
    /// Number of open changes, by region.
    open: Vec<u32>,
    /// By region.
    last_change: Vec<LastChange>,
    interval: u64,
    /// The last interval that ended with a successful flush.
    covered: u64,
    /// True while a task removes settled marks.
    is_removing: bool,
}

/// The last change of a region.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
struct LastChange {
    /// The time of its end; `None` if there was none since the opening.
    ended: Option<Instant>,
    /// The flush interval of the last change or copy.
    interval: u64,
}

/// The flush interval that a flush covers.
#[derive(Clone, Copy, Debug)]
pub(super) struct FlushInterval(u64);

impl IntentLog {
    pub(super) fn new(
        label: &Label,
        marked: RegionSet,
        sequence: u64,
        options: &MirrorOptions,
    ) -> Self {
        let regions = label.regions();
        let state = LogState {
            durable: marked,
            settled: RegionSet::new(regions),
            open: vec![0; regions as usize],
            last_change: vec![LastChange::default(); regions as usize],
            interval: 1,
            covered: 0,
            is_removing: false,
        };
        Self {
            pool: label.pool,
            region_blocks: AtomicU64::new(label.unit_blocks),
            state: Mutex::new(state),
            sequence: tokio::sync::Mutex::new(sequence),
            member_wait: options.member_wait,
            mark_time: options.mark_time,
            block_bytes: label.block_bytes,
        }
    }

    pub(super) fn pool(&self) -> PoolId {
        self.pool
    }

    pub(super) fn region_blocks(&self) -> u64 {
        self.region_blocks.load(SeqCst)
    }

    /// Returns the first and the last region of `range`, which is within the pool and not empty.
    #[inline]
    pub(super) fn span(&self, range: BlockRange) -> (u32, u32) {
        let last = range.lba + range.count.max(1) - 1;
        let region_blocks = self.region_blocks();
        ((range.lba / region_blocks) as u32, (last / region_blocks) as u32)
    }

    fn state(&self) -> MutexGuard<'_, LogState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a change; [`end`](Self::end) follows in any case. Returns true if its regions are
    /// marked on all current members; otherwise [`mark`](Self::mark) comes before the change.
    pub(super) fn begin(&self, range: BlockRange) -> bool {
        let (first, last) = self.span(range);
        let mut state = self.state();
        state.count_open(first, last);
        state.all_marked(first, last)
    }

    /// Marks the regions of a change that has begun on the current members. Returns the members
    /// that could not be marked; the change is not sent then.
    pub(super) async fn mark(
        &self,
        range: BlockRange,
        current: &[Arc<MirrorMember>],
    ) -> Vec<FailedMember> {
        let (first, last) = self.span(range);
        let mut sequence = self.sequence.lock().await;
        let late = with_detached_changes(current.iter(), self.member_wait);
        if !late.is_empty() {
            return late;
        }
        let next = {
            let mut state = self.state();
            if state.all_marked(first, last) {
                return Vec::new();
            }
            state.remove_old(self.kept());
            // This page contains the regions of all open changes, so the other changes wait for it.
            let mut next = state.durable.clone();
            let open =
                (0..state.durable.regions()).filter(|region| state.open[*region as usize] > 0);
            open.for_each(|region| next.insert(region));
            next
        };
        let failed = self.write(&mut sequence, &next, current, LimitFrom::Success).await;
        if failed.is_empty() {
            self.state().durable.insert_all(&next);
        }
        failed
    }

    /// Ends a change.
    pub(super) fn end(&self, range: BlockRange) {
        let (first, last) = self.span(range);
        let ended = Some(Instant::now());
        let mut state = self.state();
        let interval = state.interval;
        for region in first as usize..=last as usize {
            state.open[region] -= 1;
            state.last_change[region] = LastChange { ended, interval };
        }
    }

    /// Records that a copy has written a region of a member, which was not flushed since.
    pub(super) fn copied(&self, region: u32) {
        let mut state = self.state();
        state.last_change[region as usize].interval = state.interval;
    }

    /// Begins a flush of all members.
    pub(super) fn begin_flush(&self) -> FlushInterval {
        let mut state = self.state();
        state.interval += 1;
        FlushInterval(state.interval - 1)
    }

    /// Ends a successful flush of all current members. Settles the marks of regions that were not
    /// changed since it began, and in which `is_same` says that all members are equal. Returns true
    /// if a task is to be started that calls [`remove_old`](Self::remove_old) from time to time.
    pub(super) fn flushed(&self, interval: FlushInterval, is_same: impl Fn(u32) -> bool) -> bool {
        let mut state = self.state();
        state.covered = state.covered.max(interval.0);
        state.settle_marks(is_same);
        !state.settled.is_empty() && !std::mem::replace(&mut state.is_removing, true)
    }

    /// Ends the last flush, and removes all marks that it settles. Returns the members to which the
    /// page could not be written.
    pub(super) async fn end_last_flush(
        &self,
        interval: FlushInterval,
        is_same: impl Fn(u32) -> bool,
        current: &[Arc<MirrorMember>],
    ) -> Vec<FailedMember> {
        self.flushed(interval, is_same);
        let none = KeptMarks { since: None, count_max: 0 };
        self.remove(none, current, LimitFrom::Begin).await
    }

    /// Removes old settled marks, with a page of its own. Returns the members to which it could not
    /// be written.
    pub(super) async fn remove_old(&self, current: &[Arc<MirrorMember>]) -> Vec<FailedMember> {
        self.remove(self.kept(), current, LimitFrom::Success).await
    }

    async fn remove(
        &self,
        kept: KeptMarks,
        current: &[Arc<MirrorMember>],
        from: LimitFrom,
    ) -> Vec<FailedMember> {
        let mut sequence = self.sequence.lock().await;
        let next = {
            let mut state = self.state();
            state.remove_old(kept).then(|| state.durable.clone())
        };
        match next {
            Some(next) => self.write(&mut sequence, &next, current, from).await,
            None => Vec::new(),
        }
    }

    /// True if no mark is settled: then the task that removes them ends.
    pub(super) fn end_removing_if_none_settled(&self) -> bool {
        let mut state = self.state();
        state.is_removing = !state.settled.is_empty();
        !state.is_removing
    }

    /// The settled marks that stay now.
    fn kept(&self) -> KeptMarks {
        let region_bytes = self.region_blocks() * u64::from(self.block_bytes);
        KeptMarks {
            since: Instant::now().checked_sub(self.mark_time),
            count_max: KEPT_MARKS.max(KEPT_BYTES / region_bytes) as usize,
        }
    }

    /// Writes the next page. Each page is flushed before the next is begun: otherwise a power cut
    /// could leave an older one.
    async fn write(
        &self,
        sequence: &mut u64,
        marked: &RegionSet,
        current: &[Arc<MirrorMember>],
        from: LimitFrom,
    ) -> Vec<FailedMember> {
        let page = self.next_page(sequence, marked);
        let work = current.iter().map(|member| (Arc::clone(member), write_page(member, &page)));
        run(self.member_wait, from, work).await
    }

    fn next_page(&self, sequence: &mut u64, marked: &RegionSet) -> EncodedPage {
        *sequence += 1;
        let page = IntentPage { pool: self.pool, sequence: *sequence, marked: marked.clone() };
        EncodedPage { sequence: *sequence, bytes: Bytes::copy_from_slice(&page.encode()) }
    }

    /// Writes the marks to both pages of a member.
    pub(super) async fn copy_to(&self, member: &Arc<MirrorMember>) -> Result<(), MemberFailure> {
        self.write_pages(member, 2, JointLimit::begin(2 * self.member_wait)).await.map(drop)
    }

    /// Writes the marks to one or both pages of a member. Returns these marks. Pages of other
    /// members do not wait for it.
    pub(super) async fn write_pages(
        &self,
        member: &Arc<MirrorMember>,
        count: usize,
        limit: JointLimit,
    ) -> Result<RegionSet, MemberFailure> {
        let (marked, pages) = {
            let mut sequence = self.sequence.lock().await;
            let marked = self.on_members();
            // Both sequence numbers are used, even if only one page is written: otherwise the next
            // page would replace the newest page of the other members or of this member.
            let pages = [(); 2].map(|()| self.next_page(&mut sequence, &marked));
            (marked, pages)
        };
        for page in pages.iter().skip(pages.len().saturating_sub(count)) {
            limit.run_one(member, write_page(member, page)).await?;
        }
        Ok(marked)
    }

    /// Adapts the log to the regions of a mirror that has grown. A new region is marked if one of
    /// the old regions that it consists of is marked. The regions of the new blocks are marked,
    /// because these blocks were written and are not flushed; the next pages contain these marks.
    /// Called with exclusive membership lock, so that no change is open.
    pub(super) async fn grow(&self, label: &Label, new: BlockRange) {
        let _sequence = self.sequence.lock().await;
        let regions = label.regions();
        let factor = (label.unit_blocks / self.region_blocks()) as u32;
        let mut state = self.state();
        debug_assert!(state.open.iter().all(|open| *open == 0));
        let mut durable = RegionSet::new(regions);
        state.durable.iter().for_each(|region| durable.insert(region / factor));
        let mut last_change = vec![LastChange::default(); regions as usize];
        for (region, last) in state.last_change.iter().enumerate() {
            let at = &mut last_change[region / factor as usize];
            at.ended = at.ended.max(last.ended);
            at.interval = at.interval.max(last.interval);
        }
        state.open = vec![0; regions as usize];
        state.settled = RegionSet::new(regions);
        (state.durable, state.last_change) = (durable, last_change);
        self.region_blocks.store(label.unit_blocks, SeqCst);
        let (first, last) = self.span(new);
        let interval = state.interval;
        for region in first..=last {
            state.durable.insert(region);
            state.last_change[region as usize].interval = interval;
        }
    }

    /// Returns the regions that are marked on the members, also those with settled marks.
    pub(super) fn on_members(&self) -> RegionSet {
        self.state().durable.clone()
    }

    /// Returns the regions in which members may differ: those with marks that are not settled.
    pub(super) fn marked(&self) -> RegionSet {
        self.state().marked()
    }

    /// Returns the regions that were changed since the last successful flush, or are being changed.
    pub(super) fn unflushed(&self) -> RegionSet {
        let state = self.state();
        let mut regions = RegionSet::new(state.durable.regions());
        let marked = state.marked();
        let unflushed = marked.iter().filter(|region| !state.is_flushed(*region));
        unflushed.for_each(|region| regions.insert(region));
        regions
    }
}

/// The settled marks that are not removed.
#[derive(Clone, Copy, Debug)]
struct KeptMarks {
    /// Time after which a changed region keeps its mark; `None`: all regions do.
    since: Option<Instant>,
    /// The latest of these, at most this number.
    count_max: usize,
}

impl LogState {
    fn all_marked(&self, first: u32, last: u32) -> bool {
        (first..=last).all(|region| self.durable.contains(region))
    }

    fn marked(&self) -> RegionSet {
        let mut marked = self.durable.clone();
        marked.subtract(&self.settled);
        marked
    }

    fn count_open(&mut self, first: u32, last: u32) {
        for region in first..=last {
            self.open[region as usize] += 1;
            self.settled.remove(region);
        }
    }

    /// True if all members were flushed since the last change of a region.
    fn is_flushed(&self, region: u32) -> bool {
        let at = region as usize;
        self.open[at] == 0 && self.last_change[at].interval <= self.covered
    }

    /// Settles the marks of flushed regions in which `is_same` says that all members are equal.
    fn settle_marks(&mut self, is_same: impl Fn(u32) -> bool) {
        let is_settled = |region: &u32| self.is_flushed(*region) && is_same(*region);
        let settled: Vec<u32> = self.marked().iter().filter(is_settled).collect();
        settled.into_iter().for_each(|region| self.settled.insert(region));
    }

    /// Removes settled marks. Returns true if there was any. From then on a change of such a region
    /// waits for another page.
    fn remove_old(&mut self, kept: KeptMarks) -> bool {
        let settled = self.settled.iter().map(|region| (self.last_change[region as usize], region));
        let is_kept =
            |(last, _): &(LastChange, u32)| kept.since.is_none() || last.ended > kept.since;
        let (mut young, mut gone): (Vec<_>, Vec<_>) = settled.partition(is_kept);
        let excess = young.len().saturating_sub(kept.count_max);
        if let Some(last) = excess.checked_sub(1) {
            young.select_nth_unstable(last);
            gone.extend(&young[..excess]);
        }
        for (_, region) in &gone {
            self.settled.remove(*region);
            self.durable.remove(*region);
        }
        !gone.is_empty()
    }
}

struct EncodedPage {
    sequence: u64,
    bytes: Bytes,
}

fn write_page(member: &Arc<MirrorMember>, page: &EncodedPage) -> super::bounded::MemberWork {
    let (sequence, bytes, cloned) = (page.sequence, page.bytes.clone(), Arc::clone(member));
    let write = async move { cloned.device.write_intent(sequence, bytes).await };
    // Changes of all users wait for it.
    member.tracked(IoContext::server_scope(write))
}

#[cfg(test)]
mod tests;
