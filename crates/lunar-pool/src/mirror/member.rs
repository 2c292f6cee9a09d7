//! A member of a mirror: its device, its state, and what it misses.

use super::bounded::{MemberWork, complete_in_task};
use super::lateness::Lateness;
use super::window::MemberWindow;
use crate::format::RegionSet;
use crate::member_device::MemberDevice;
use crate::member_io::in_own_context;
use crate::status::{MemberState, PoolMember};
use bytes::Bytes;
use futures_util::poll;
use lunar_block::{BlockDevice, BlockRange, Buffer, Error};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

/// Weight of a new latency: one part in 2³.
const LATENCY_SHIFT: u32 = 3;

/// The cost of an unused member decays by one part in 2¹⁰, so that the member is tried again.
const FORGET_SHIFT: u32 = 10;

/// Divisor of a member's time limit: by a quarter of the limit, plus the time for its pending work,
/// the member may lag behind another one before it counts as late.
const GRACE_SHARE: u32 = 4;

/// Longest pause before another attempt to recover a member; the pauses double up to this.
const RECOVERY_PAUSE_MAX: Duration = Duration::from_secs(60);

/// Time after which a current member counts as recovered: the next pause is short again.
const RECOVERED_AFTER: Duration = Duration::from_secs(60);

/// A member of a mirror whose device is present. Its state changes only under the membership lock.
#[derive(Debug)]
pub(super) struct MirrorMember {
    pub(super) slot: u16,
    pub(super) device: MemberDevice,
    /// Time limit for the member, measured from the answer of another member.
    wait: Duration,
    data_start: u64,
    state: AtomicU8,
    outstanding_reads: AtomicU64,
    /// Mean latency of reads.
    latency_nanos: AtomicU64,
    /// Mean of the latency of each read divided by the number of reads that were outstanding with
    /// it. The latency itself grows with the load, so the load would count twice in the cost.
    share_nanos: AtomicU64,
    /// The losses of the device that the mirror has handled.
    losses_known: AtomicU64,
    /// Number of changes that were sent to the device and are not known to have ended.
    open_changes: AtomicUsize,
    /// Number of open changes that no operation waits for any more.
    detached_changes: AtomicUsize,
    /// Notified when the last open change, or the last detached one, has ended, if
    /// [`drain_waiters`](Self::drain_waiters) is not 0.
    drained: Notify,
    /// Number of tasks that wait for `drained`.
    drain_waiters: AtomicUsize,
    /// Number of changes that have ended, and of those that a flush covers.
    changes: AtomicU64,
    changes_flushed: AtomicU64,
    window: MemberWindow,
    /// Number of bytes that were changed since the last flush.
    unflushed_bytes: AtomicU64,
    lateness: Lateness,
    /// True while the member misses regions.
    is_partial: AtomicBool,
    pub(super) is_recovering: AtomicBool,
    /// True when another device gets the slot: the member is not recovered any more.
    pub(super) retired: watch::Sender<bool>,
    facts: Mutex<MemberFacts>,
}

/// State of a member that one lock protects: the regions to copy, and the history of failures.
#[derive(Debug)]
struct MemberFacts {
    /// Regions in which the member differs from the pool.
    missing: RegionSet,
    /// Number of additions to the missing regions.
    additions: u64,
    /// Regions that were missing when the running copy began, if the member is not current: until
    /// the copy is durable, all of them count as missing after a failure.
    copying: Option<RegionSet>,
    /// Number of copies that have begun; a later copy ends an earlier one.
    copies: u64,
    /// The time since which the member is not current.
    left_out_since: Option<Instant>,
    /// The time since which the member is current.
    current_since: Option<Instant>,
    /// The last pause before a recovery. A member that fails soon after each copy has longer and
    /// longer pauses, like one that fails before the end of each copy.
    recovery_pause: Option<Duration>,
    last_failure: String,
}

impl MirrorMember {
    /// Creates a member. `wait` is its time limit, measured from the answer of another member.
    pub(super) fn new(
        slot: u16,
        device: MemberDevice,
        is_current: bool,
        regions: u32,
        wait: Duration,
    ) -> Self {
        let state = if is_current { MemberState::Current } else { MemberState::Stale };
        let missing = if is_current { RegionSet::new(regions) } else { RegionSet::full(regions) };
        let facts = MemberFacts {
            missing,
            additions: 0,
            copying: None,
            copies: 0,
            left_out_since: (!is_current).then(Instant::now),
            current_since: is_current.then(Instant::now),
            recovery_pause: None,
            last_failure: String::new(),
        };
        device.set_needed(is_current);
        Self {
            slot,
            wait,
            data_start: device.layout().data_start(),
            losses_known: AtomicU64::new(device.losses()),
            device,
            state: AtomicU8::new(state as u8),
            outstanding_reads: AtomicU64::new(0),
            latency_nanos: AtomicU64::new(0),
            share_nanos: AtomicU64::new(0),
            open_changes: AtomicUsize::new(0),
            detached_changes: AtomicUsize::new(0),
            drained: Notify::new(),
            drain_waiters: AtomicUsize::new(0),
            changes: AtomicU64::new(0),
            changes_flushed: AtomicU64::new(0),
            window: MemberWindow::default(),
            unflushed_bytes: AtomicU64::new(0),
            lateness: Lateness::new(),
            is_partial: AtomicBool::new(!is_current),
            is_recovering: AtomicBool::new(false),
            retired: watch::Sender::new(false),
            facts: Mutex::new(facts),
        }
    }

    fn facts(&self) -> MutexGuard<'_, MemberFacts> {
        self.facts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_current(&self) -> bool {
        self.state.load(SeqCst) == MemberState::Current as u8
    }

    pub(super) fn is_syncing(&self) -> bool {
        self.state.load(SeqCst) == MemberState::Syncing as u8
    }

    pub(super) fn is_retired(&self) -> bool {
        *self.retired.borrow()
    }

    /// True if changes are sent to the member.
    pub(super) fn receives_changes(&self) -> bool {
        self.is_current() || self.is_syncing()
    }

    /// True if the member has all data.
    pub(super) fn is_complete(&self) -> bool {
        self.is_current() && self.holds_all() && !self.has_lost() && !self.is_unsettled()
    }

    /// Makes the member current: a copy to it is durable, and recorded on the labels.
    pub(super) fn become_current(&self) {
        let mut facts = self.facts();
        facts.copying = None;
        facts.left_out_since = None;
        facts.current_since.get_or_insert_with(Instant::now);
        drop(facts);
        self.device.set_needed(true);
        self.state.store(MemberState::Current as u8, SeqCst);
    }

    /// Leaves the member out. `marked` are the regions in which it may differ from the others.
    pub(super) fn become_stale(&self, marked: &RegionSet) {
        self.add_missing(marked);
        let mut facts = self.facts();
        facts.left_out_since.get_or_insert_with(Instant::now);
        if facts.current_since.take().is_some_and(|since| since.elapsed() >= RECOVERED_AFTER) {
            facts.recovery_pause = None;
        }
        if let Some(copying) = facts.copying.take() {
            facts.missing.insert_all(&copying);
            self.is_partial.store(true, SeqCst);
        }
        drop(facts);
        self.lateness.reset();
        self.state.store(MemberState::Stale as u8, SeqCst);
        self.device.set_needed(false);
    }

    /// Begins a copy of all missing regions to the stale member, which gets all changes from now
    /// on.
    pub(super) fn begin_copy(&self) {
        let mut facts = self.facts();
        facts.copies += 1;
        facts.copying = Some(facts.missing.clone());
        drop(facts);
        self.state.store(MemberState::Syncing as u8, SeqCst);
    }

    /// Returns the time since which the member is left out; `None` if it gets all changes.
    pub(super) fn left_out_since(&self) -> Option<Instant> {
        self.facts().left_out_since.filter(|_| !self.receives_changes())
    }

    /// Returns the pause before the next attempt to recover the member, if it has failed before.
    pub(super) fn next_recovery_pause(&self, first: Duration) -> Option<Duration> {
        let mut facts = self.facts();
        if facts.last_failure.is_empty() && facts.recovery_pause.is_none() {
            return None;
        }
        let next = facts.recovery_pause.map_or(first, |last| (2 * last).min(RECOVERY_PAUSE_MAX));
        facts.recovery_pause = Some(next);
        Some(next)
    }

    pub(super) fn copies(&self) -> u64 {
        self.facts().copies
    }

    /// Adds regions that have to be copied.
    pub(super) fn add_missing(&self, regions: &RegionSet) {
        let mut facts = self.facts();
        facts.missing.insert_all(regions);
        facts.additions += 1;
        self.is_partial.store(!facts.missing.is_empty(), SeqCst);
    }

    /// Adds the regions of a change that is not sent to the member.
    pub(super) fn add_missing_change(&self, first: u32, last: u32) {
        let mut facts = self.facts();
        (first..=last).for_each(|region| facts.missing.insert(region));
        facts.additions += 1;
        self.is_partial.store(true, SeqCst);
    }

    /// Accepts the content of the member in some regions.
    pub(super) fn accept_content(&self, regions: &RegionSet) {
        let mut facts = self.facts();
        facts.missing.subtract(regions);
        self.is_partial.store(!facts.missing.is_empty(), SeqCst);
    }

    /// Continues with another number of regions. The member is current and misses none.
    pub(super) fn grow(&self, regions: u32) {
        let mut facts = self.facts();
        debug_assert!(facts.missing.is_empty() && facts.copying.is_none());
        facts.missing = RegionSet::new(regions);
        facts.additions += 1;
    }

    /// Returns the number of additions to the missing regions.
    pub(super) fn additions(&self) -> u64 {
        self.facts().additions
    }

    /// Records that a region was copied, unless regions were added since.
    pub(super) fn copied(&self, region: u32, additions: u64) {
        let mut facts = self.facts();
        if facts.additions == additions {
            facts.missing.remove(region);
            self.is_partial.store(!facts.missing.is_empty(), SeqCst);
        }
    }

    pub(super) fn missing(&self) -> RegionSet {
        self.facts().missing.clone()
    }

    pub(super) fn next_missing(&self, from: u32) -> Option<u32> {
        if self.is_partial.load(SeqCst) { self.facts().missing.next(from) } else { None }
    }

    /// True if the member has all of these regions.
    pub(super) fn holds(&self, first: u32, last: u32) -> bool {
        self.next_missing(first).is_none_or(|region| region > last)
    }

    pub(super) fn holds_all(&self) -> bool {
        !self.is_partial.load(SeqCst)
    }

    /// Returns the number of losses that the mirror has not handled.
    pub(super) fn new_losses(&self) -> u64 {
        self.device.losses().saturating_sub(self.losses_known.load(SeqCst))
    }

    /// True if acknowledged writes may be lost that other members may have.
    pub(super) fn has_lost(&self) -> bool {
        self.new_losses() > 0
    }

    /// Accepts the content of the member after losses. Returns their number.
    pub(super) fn accept_losses(&self) -> u64 {
        let now = self.device.losses();
        now - self.losses_known.swap(now, SeqCst)
    }

    pub(super) fn fail(&self, why: impl fmt::Display) {
        self.facts().last_failure = why.to_string();
    }

    pub(super) fn last_failure(&self) -> String {
        self.facts().last_failure.clone()
    }

    pub(super) fn on_device(&self, range: BlockRange) -> BlockRange {
        BlockRange::new(self.data_start + range.lba, range.count)
    }

    /// Reads blocks of the pool, and measures the latency. A failed read never lowers it: otherwise
    /// a member that fails at once would get most reads.
    pub(super) async fn read(&self, range: BlockRange, into: Buffer) -> Result<Buffer, Error> {
        let outstanding = OutstandingRead::begin(self);
        let begun = Instant::now();
        let read = in_own_context(self.device.device().read(self.on_device(range), into)).await;
        let (elapsed, measured) = (begun.elapsed(), self.latency_nanos.load(SeqCst));
        if read.is_ok() || elapsed.as_nanos() > u128::from(measured) {
            self.measured(elapsed, outstanding.count);
        }
        read
    }

    pub(super) fn try_read_now(&self, range: BlockRange, into: &mut [u8]) -> bool {
        self.device.device().try_read_now(self.on_device(range), into)
    }

    pub(super) fn write(
        self: &Arc<Self>,
        range: BlockRange,
        from: Bytes,
        durable: bool,
    ) -> MemberWork {
        let device = self.device.device();
        if !self.window.is_limited() && device.try_write_now(self.on_device(range), &from, durable)
        {
            self.count_change(range.count * u64::from(self.device.layout().block_bytes));
            return Box::pin(std::future::ready(Ok(())));
        }
        self.change(range, move |device, range| device.write(range, from, durable))
    }

    /// Counts a change that has ended.
    fn count_change(&self, bytes: u64) {
        self.unflushed_bytes.fetch_add(bytes, SeqCst);
        self.changes.fetch_add(1, SeqCst);
    }

    /// Starts a change of blocks of the pool.
    pub(super) fn change(
        self: &Arc<Self>,
        range: BlockRange,
        change: impl for<'a> FnOnce(
            &'a dyn BlockDevice,
            BlockRange,
        ) -> lunar_block::BoxFuture<'a, Result<(), Error>>
        + Send
        + 'static,
    ) -> MemberWork {
        let member = Arc::clone(self);
        let bytes = range.count * u64::from(self.device.layout().block_bytes);
        self.tracked(async move {
            let mut permit = member.window.enter(bytes).await;
            let range = member.on_device(range);
            let mut changed = change(&**member.device.device(), range);
            let changed = match poll!(&mut changed) {
                Poll::Ready(changed) => changed,
                Poll::Pending => {
                    permit.record_sent();
                    changed.await
                }
            };
            member.count_change(bytes);
            changed
        })
    }

    /// Flushes the device.
    pub(super) fn flush(self: &Arc<Self>) -> MemberWork {
        let member = Arc::clone(self);
        self.tracked(async move {
            let covered = member.changes.load(SeqCst);
            let _flush = member.window.flushing(member.unflushed_bytes.swap(0, SeqCst));
            member.device.flush().await?;
            member.changes_flushed.fetch_max(covered, SeqCst);
            Ok(())
        })
    }

    /// Checks whether the device has lost a change that had ended before; if it has,
    /// [`new_losses`](Self::new_losses) counts the loss afterwards. Flushes the device unless all
    /// changes are durable.
    pub(super) fn check_losses(self: &Arc<Self>) -> MemberWork {
        if self.changes.load(SeqCst) == self.changes_flushed.load(SeqCst) {
            return Box::pin(std::future::ready(Ok(())));
        }
        self.flush()
    }

    /// Returns the time by which the member may lag behind another one before it counts as late: a
    /// share of its limit, and more for data on a slow connection or while changes wait in its
    /// window.
    pub(super) fn grace(&self) -> Duration {
        self.least_grace().saturating_add(self.window.expected_wait()).min(self.wait)
    }

    /// Returns [`grace`](Self::grace) of a member without pending work.
    pub(super) fn least_grace(&self) -> Duration {
        self.wait / GRACE_SHARE
    }

    /// Records that a change has held up others, which had ended at `since`.
    pub(super) fn change_was_late(&self, since: Instant) {
        self.lateness.note(since, Instant::now());
        self.window.record_late(since);
    }

    /// Records that a read has held up its user since `due`.
    pub(super) fn read_was_late(&self, due: Instant) {
        self.lateness.note(due, Instant::now());
    }

    /// True if the member has held up others for too long.
    pub(super) fn is_too_late(&self) -> bool {
        self.lateness.is_excessive()
    }

    /// Counts work as a change until it is known to have ended. Work that is dropped before its end
    /// stays counted, because its end cannot be observed.
    pub(super) fn tracked(
        self: &Arc<Self>,
        work: impl Future<Output = Result<(), Error>> + Send + 'static,
    ) -> MemberWork {
        let member = Arc::clone(self);
        Box::pin(in_own_context(async move {
            member.open_changes.fetch_add(1, SeqCst);
            let ended = work.await;
            member.count_ended(&member.open_changes);
            ended
        }))
    }

    /// Completes a change in a task, after its limit: it may reach the device at any time until it
    /// has ended.
    pub(super) fn detach(self: &Arc<Self>, work: MemberWork) {
        self.detached_changes.fetch_add(1, SeqCst);
        let member = Arc::clone(self);
        complete_in_task(async move {
            drop(work.await);
            member.count_ended(&member.detached_changes);
        });
    }

    /// True if a detached change has not ended.
    pub(super) fn is_unsettled(&self) -> bool {
        self.detached_changes.load(SeqCst) > 0
    }

    pub(super) fn has_open_changes(&self) -> bool {
        self.open_changes.load(SeqCst) > 0
    }

    /// Waits until no change of the device is open.
    pub(super) async fn wait_until_drained(&self) {
        self.wait_for_none(&self.open_changes).await;
    }

    /// Waits until all detached changes have ended.
    pub(super) async fn wait_until_settled(&self) {
        self.wait_for_none(&self.detached_changes).await;
    }

    fn count_ended(&self, count: &AtomicUsize) {
        if count.fetch_sub(1, SeqCst) == 1 && self.drain_waiters.load(SeqCst) > 0 {
            self.drained.notify_waiters();
        }
    }

    async fn wait_for_none(&self, count: &AtomicUsize) {
        let _waiter = DrainWaiter::count(&self.drain_waiters);
        loop {
            let drained = self.drained.notified();
            tokio::pin!(drained);
            drained.as_mut().enable();
            if count.load(SeqCst) == 0 {
                return;
            }
            drained.await;
        }
    }

    /// Records the latency of a read that was one of `outstanding` when it began. One of two
    /// concurrent measurements may be lost.
    fn measured(&self, elapsed: Duration, outstanding: u64) {
        let nanos = u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX);
        add_to_mean(&self.latency_nanos, nanos);
        add_to_mean(&self.share_nanos, nanos / outstanding.max(1));
    }

    /// Returns the expected latency of one more read in nanoseconds; 0 if none was measured.
    pub(super) fn cost(&self) -> u64 {
        let outstanding = self.outstanding_reads.load(SeqCst) + 1;
        outstanding.saturating_mul(self.share_nanos.load(SeqCst))
    }

    /// Returns the mean latency of reads; 0 if none was measured.
    pub(super) fn latency_nanos(&self) -> u64 {
        self.latency_nanos.load(SeqCst)
    }

    pub(super) fn outstanding_reads(&self) -> u64 {
        self.outstanding_reads.load(SeqCst)
    }

    /// Lets the cost of an unused member decay.
    pub(super) fn decay_cost(&self) {
        let now = self.share_nanos.load(SeqCst);
        // At least 1, or the value would never fall below 2¹⁰.
        self.share_nanos.store(now.saturating_sub((now >> FORGET_SHIFT).max(1)), SeqCst);
    }

    pub(super) fn status(&self, region_bytes: u64) -> PoolMember {
        let facts = self.facts();
        let state = match self.state.load(SeqCst) {
            state if state == MemberState::Stale as u8 => MemberState::Stale,
            state if state == MemberState::Syncing as u8 => MemberState::Syncing,
            _ if facts.missing.is_empty() => MemberState::Current,
            _ => MemberState::Syncing,
        };
        PoolMember {
            slot: self.slot,
            device: self.device.name().to_owned(),
            state,
            missing_bytes: u64::from(facts.missing.len()) * region_bytes,
            outstanding_reads: self.outstanding_reads.load(SeqCst),
            latency_nanos: self.latency_nanos.load(SeqCst),
            last_failure: facts.last_failure.clone(),
        }
    }
}

/// Adds a time to a moving mean.
fn add_to_mean(mean: &AtomicU64, nanos: u64) {
    let nanos = i64::try_from(nanos).unwrap_or(i64::MAX).max(1);
    let before = mean.load(SeqCst) as i64;
    let now = match before {
        0 => nanos,
        _ => (before + ((nanos - before) >> LATENCY_SHIFT)).max(1),
    };
    mean.store(now as u64, SeqCst);
}

/// A waiter for the end of changes, counted until it is dropped.
struct DrainWaiter<'a>(&'a AtomicUsize);

impl<'a> DrainWaiter<'a> {
    fn count(waiters: &'a AtomicUsize) -> Self {
        waiters.fetch_add(1, SeqCst);
        Self(waiters)
    }
}

impl Drop for DrainWaiter<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

/// A read that counts as outstanding until it is dropped.
struct OutstandingRead<'a> {
    member: &'a MirrorMember,
    /// Number of outstanding reads when it began, with itself.
    count: u64,
}

impl<'a> OutstandingRead<'a> {
    fn begin(member: &'a MirrorMember) -> Self {
        Self { member, count: member.outstanding_reads.fetch_add(1, SeqCst) + 1 }
    }
}

impl Drop for OutstandingRead<'_> {
    fn drop(&mut self) {
        self.member.outstanding_reads.fetch_sub(1, SeqCst);
    }
}

/// Finds a member in a list.
pub(super) fn contains(members: &[Arc<MirrorMember>], member: &Arc<MirrorMember>) -> bool {
    members.iter().any(|other| Arc::ptr_eq(other, member))
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_block::MemoryDevice;

    const WAIT: Duration = Duration::from_secs(2);

    fn member(is_current: bool) -> Arc<MirrorMember> {
        let memory = Arc::new(MemoryDevice::new(2 << 20, 512, 512).unwrap());
        Arc::new(MirrorMember::new(0, MemberDevice::new(memory), is_current, 10, WAIT))
    }

    fn set(regions: &[u32]) -> RegionSet {
        let mut set = RegionSet::new(10);
        regions.iter().for_each(|region| set.insert(*region));
        set
    }

    /// Goal: a copy that fails before its end counts for nothing, and regions that are added during
    /// a copy of one region stay missing.
    #[test]
    fn missing_regions() {
        let member = member(true);
        member.become_stale(&set(&[1, 2]));
        member.add_missing_change(4, 5);
        member.begin_copy();
        let additions = member.additions();
        member.copied(1, additions);
        assert_eq!(member.missing(), set(&[2, 4, 5]));
        member.add_missing(&set(&[2]));
        member.copied(2, additions);
        assert_eq!(member.missing(), set(&[2, 4, 5]), "it was added after the copy began");
        member.become_stale(&set(&[9]));
        assert_eq!(member.missing(), set(&[1, 2, 4, 5, 9]));
        assert!(!member.holds(0, 1) && member.holds(6, 8));
    }

    /// Goal: a change that was dropped before its end is never taken for ended.
    #[tokio::test]
    async fn dropped_changes_stay_open() {
        let member = member(true);
        member.write(BlockRange::new(0, 1), Bytes::from(vec![1; 512]), false).await.unwrap();
        member.wait_until_drained().await;
        let mut hanging = member.tracked(std::future::pending());
        assert!(futures_util::poll!(&mut hanging).is_pending());
        drop(hanging);
        let mut drained = std::pin::pin!(member.wait_until_drained());
        assert!(futures_util::poll!(&mut drained).is_pending());
    }

    /// Goal: a member may be later with much data than with little, up to the limit.
    #[tokio::test]
    async fn grace_grows_with_the_data() {
        let member = member(true);
        assert_eq!(member.grace(), Duration::from_millis(500));
        let flushes = [4, 100].map(|mebibytes| member.window.flushing(mebibytes << 20));
        assert_eq!(member.grace(), WAIT);
        let [four, hundred] = flushes;
        drop(hundred);
        assert_eq!(member.grace(), Duration::from_secs(1));
        drop(four);
        member.write(BlockRange::new(0, 1), Bytes::from(vec![1; 512]), false).await.unwrap();
        let mut flush = member.flush();
        assert_eq!(member.grace(), Duration::from_millis(500));
        assert_eq!(member.unflushed_bytes.load(SeqCst), 512);
        assert!(futures_util::poll!(&mut flush).is_ready());
        assert_eq!(member.unflushed_bytes.load(SeqCst), 0);
    }

    /// Fault: the pause of a member that failed after each copy was always the first one.
    #[tokio::test(start_paused = true)]
    async fn pauses_double_until_the_member_has_recovered() {
        let member = member(false);
        let first = Duration::from_secs(1);
        assert_eq!(member.next_recovery_pause(first), None, "it has not failed");
        let mut pauses = Vec::new();
        for round in 0..9 {
            member.become_current();
            member.become_current();
            let is_good = round == 8;
            tokio::time::sleep(Duration::from_secs(if is_good { 60 } else { 59 })).await;
            member.fail("test");
            member.become_stale(&set(&[]));
            pauses.push(member.next_recovery_pause(first).unwrap().as_secs());
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60, 1]);
    }

    /// Goal: the cost follows load and latency, the load counts once, and an unused member is tried
    /// again.
    #[test]
    fn costs() {
        let member = member(true);
        assert_eq!(member.cost(), 0);
        member.measured(Duration::from_micros(800), 1);
        member.measured(Duration::from_micros(0), 1);
        assert_eq!(member.cost(), 700_000);
        let outstanding = OutstandingRead::begin(&member);
        assert_eq!(member.cost(), 1_400_000);
        drop(outstanding);
        member.measured(Duration::from_micros(5600), 8);
        assert_eq!(member.cost(), 700_000, "one eighth of the latency of eight reads");
        (0..100_000).for_each(|_| member.decay_cost());
        assert_eq!(member.cost(), 0);
    }
}
