//! The write-intent log: regions are marked on the members before they are written.

use super::bounded::{FailedMember, JointLimit, LimitFrom, MemberFailure, run};
use super::member::MirrorMember;
use super::membership::given_up;
use crate::format::{IntentPage, Label, PoolId, RegionSet};
use bytes::Bytes;
use lunar_block::{BlockRange, IoContext};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Records on all current members, before a change is sent, the regions that it touches, and
/// removes the marks later: when a region was not changed for a whole flush interval and all
/// members were flushed since. After a power cut, members can differ only in marked regions.
#[derive(Debug)]
pub(super) struct IntentLog {
    pool: PoolId,
    region_blocks: AtomicU64,
    state: Mutex<LogState>,
    /// The sequence number of the last page. Locked while pages are written: one at a time.
    sequence: tokio::sync::Mutex<u64>,
    /// Time for which the write of a page waits for a member behind another.
    member_wait: Duration,
}

#[derive(Debug)]
struct LogState {
    /// The regions that are marked durably on all current members.
    durable: RegionSet,
    /// Number of open changes, by region.
    open: Vec<u32>,
    /// The flush interval of the last change, by region.
    last_change: Vec<u64>,
    interval: u64,
    /// The last interval that ended with a successful flush.
    covered: u64,
}

/// The flush interval that a flush covers.
#[derive(Clone, Copy, Debug)]
pub(super) struct FlushInterval(u64);

impl IntentLog {
    pub(super) fn new(
        label: &Label,
        marked: RegionSet,
        sequence: u64,
        member_wait: Duration,
    ) -> Self {
        let regions = label.regions();
        let state = LogState {
            durable: marked,
            open: vec![0; regions as usize],
            last_change: vec![0; regions as usize],
            interval: 1,
            covered: 0,
        };
        Self {
            pool: label.pool,
            region_blocks: AtomicU64::new(label.unit_blocks),
            state: Mutex::new(state),
            sequence: tokio::sync::Mutex::new(sequence),
            member_wait,
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
        state.open_all(first, last);
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
        let late = given_up(current, self.member_wait);
        if !late.is_empty() {
            return late;
        }
        let next = {
            let state = self.state();
            if state.all_marked(first, last) {
                return Vec::new();
            }
            // One page has the regions of all open changes: the others wait for it.
            let mut next = state.durable.clone();
            let open =
                (0..state.durable.regions()).filter(|region| state.open[*region as usize] > 0);
            open.for_each(|region| next.insert(region));
            next
        };
        let failed = self.write(&mut sequence, &next, current, LimitFrom::Success).await;
        if failed.is_empty() {
            self.state().durable.unite(&next);
        }
        failed
    }

    /// Ends a change.
    pub(super) fn end(&self, range: BlockRange) {
        let (first, last) = self.span(range);
        let mut state = self.state();
        let interval = state.interval;
        for region in first as usize..=last as usize {
            state.open[region] -= 1;
            state.last_change[region] = interval;
        }
    }

    /// Records that a copy has written a region of a member, which was not flushed since.
    pub(super) fn copied(&self, region: u32) {
        let mut state = self.state();
        state.last_change[region as usize] = state.interval;
    }

    /// Begins a flush of all members.
    pub(super) fn begin_flush(&self) -> FlushInterval {
        let mut state = self.state();
        state.interval += 1;
        FlushInterval(state.interval - 1)
    }

    /// Ends a successful flush of all current members. Removes the marks of regions that were idle
    /// before it and in which `is_same` says that all members are equal. Returns the members to
    /// which the page could not be written.
    pub(super) async fn flushed(
        &self,
        interval: FlushInterval,
        is_same: impl Fn(u32) -> bool,
        current: &[Arc<MirrorMember>],
    ) -> Vec<FailedMember> {
        let mut sequence = self.sequence.lock().await;
        let next = self.unmark(interval.0, interval.0, is_same);
        match next {
            Some(next) => self.write(&mut sequence, &next, current, LimitFrom::Success).await,
            None => Vec::new(),
        }
    }

    /// Ends the last flush: also removes the marks of regions that were changed shortly before.
    pub(super) async fn settle(
        &self,
        interval: FlushInterval,
        is_same: impl Fn(u32) -> bool,
        current: &[Arc<MirrorMember>],
    ) -> Vec<FailedMember> {
        let mut sequence = self.sequence.lock().await;
        let next = self.unmark(interval.0, interval.0 + 1, is_same);
        match next {
            Some(next) => self.write(&mut sequence, &next, current, LimitFrom::Begin).await,
            None => Vec::new(),
        }
    }

    /// Removes unneeded marks. Returns the remaining ones if any was removed. From then on a change
    /// of an unmarked region waits for another page.
    fn unmark(
        &self,
        covered: u64,
        idle_before: u64,
        is_same: impl Fn(u32) -> bool,
    ) -> Option<RegionSet> {
        let mut state = self.state();
        state.covered = state.covered.max(covered);
        let idle = |region: &u32| {
            let at = *region as usize;
            state.open[at] == 0 && state.last_change[at] < idle_before && is_same(*region)
        };
        let gone: Vec<u32> = state.durable.iter().filter(idle).collect();
        gone.iter().for_each(|region| state.durable.remove(*region));
        (!gone.is_empty()).then(|| state.durable.clone())
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
        run(self.member_wait, from, work.collect()).await
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
            let marked = self.marked();
            // Both numbers count in any case: otherwise the next page would replace the newest page
            // of the other members, or of this one.
            let pages = [(); 2].map(|()| self.next_page(&mut sequence, &marked));
            (marked, pages)
        };
        for page in pages.iter().skip(pages.len().saturating_sub(count)) {
            limit.run_one(member, write_page(member, page)).await?;
        }
        Ok(marked)
    }

    /// Continues with the regions of a mirror that has grown: each has the marks of those that it
    /// is made of. Those of the new blocks are marked, because the blocks were written and are not
    /// flushed; the pages have the marks when they were written next. Called behind the membership
    /// lock, held alone: no change is open.
    pub(super) async fn grow(&self, label: &Label, new: BlockRange) {
        let _sequence = self.sequence.lock().await;
        let regions = label.regions();
        let factor = (label.unit_blocks / self.region_blocks()) as u32;
        let mut state = self.state();
        debug_assert!(state.open.iter().all(|open| *open == 0));
        let mut durable = RegionSet::new(regions);
        state.durable.iter().for_each(|region| durable.insert(region / factor));
        let mut last_change = vec![0; regions as usize];
        for (region, interval) in state.last_change.iter().enumerate() {
            let at = &mut last_change[region / factor as usize];
            *at = (*at).max(*interval);
        }
        state.open = vec![0; regions as usize];
        (state.durable, state.last_change) = (durable, last_change);
        self.region_blocks.store(label.unit_blocks, SeqCst);
        let (first, last) = self.span(new);
        let interval = state.interval;
        for region in first..=last {
            state.durable.insert(region);
            state.last_change[region as usize] = interval;
        }
    }

    /// Returns the marked regions.
    pub(super) fn marked(&self) -> RegionSet {
        self.state().durable.clone()
    }

    /// Returns the regions that were changed since the last successful flush, or are being changed.
    pub(super) fn unflushed(&self) -> RegionSet {
        let state = self.state();
        let mut regions = RegionSet::new(state.durable.regions());
        for region in state.durable.iter() {
            let at = region as usize;
            if state.open[at] > 0 || state.last_change[at] > state.covered {
                regions.insert(region);
            }
        }
        regions
    }
}

impl LogState {
    fn all_marked(&self, first: u32, last: u32) -> bool {
        (first..=last).all(|region| self.durable.contains(region))
    }

    fn open_all(&mut self, first: u32, last: u32) {
        for region in first as usize..=last as usize {
            self.open[region] += 1;
            self.last_change[region] = self.interval;
        }
    }
}

struct EncodedPage {
    sequence: u64,
    bytes: Bytes,
}

fn write_page(member: &Arc<MirrorMember>, page: &EncodedPage) -> super::bounded::MemberWork {
    let (sequence, bytes, of) = (page.sequence, page.bytes.clone(), Arc::clone(member));
    let write = async move { of.device.write_intent(sequence, bytes).await };
    // Changes of all users wait for it.
    member.tracked(IoContext::server_scope(write))
}

#[cfg(test)]
mod tests;
