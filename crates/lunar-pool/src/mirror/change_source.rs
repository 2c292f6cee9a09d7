//! The member that is read while changes of the blocks are in progress.

use super::Mirror;
use super::change_queue::ChangeSource;
use super::member::MirrorMember;
use super::slots::MemberSlot;
use lunar_block::BlockRange;
use std::sync::{Arc, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// Another member becomes the source when its mean latency is less than one part in this of that of
/// the source. Reads of blocks whose changes have different sources wait, so exchanges are rare.
const LATENCY_FACTOR: u64 = 2;

/// Shortest time between two exchanges of the source.
const EXCHANGE_PAUSE: Duration = Duration::from_millis(100);

impl Mirror {
    /// Returns the member that `source` names; `None` if there is none. The first current member
    /// takes the slot of one that is not current any more.
    pub(super) fn member_of(
        &self,
        source: ChangeSource,
        range: BlockRange,
    ) -> Option<Arc<MirrorMember>> {
        let ChangeSource::Only(slot) = source else { return None };
        let (first, last) = self.intents.span(range);
        let fits = |one: &&Arc<MirrorMember>| one.is_current() && one.holds(first, last);
        let all = self.slots.all();
        let named = all.get(usize::from(slot)).and_then(MemberSlot::member).filter(fits);
        named.or_else(|| all.iter().filter_map(MemberSlot::member).find(fits)).cloned()
    }

    /// Exchanges the source of later changes if another member answers much sooner: a member that
    /// is slow would hold up all reads of blocks that are written often.
    pub(super) fn review_source(&self) {
        let all = self.slots.all();
        let fits = |one: &&Arc<MirrorMember>| one.is_current() && one.holds_all();
        let fitting = all.iter().filter_map(MemberSlot::member).filter(fits);
        let Some(best) = fitting.min_by_key(|one| one.latency_nanos()) else { return };
        let source = all.get(usize::from(self.queue.source())).and_then(MemberSlot::member);
        let is_good = |source: &Arc<MirrorMember>| {
            source.latency_nanos() <= best.latency_nanos().saturating_mul(LATENCY_FACTOR)
        };
        if source.filter(fits).is_some_and(is_good) {
            return;
        }
        let mut exchanged = self.source_exchanged.lock().unwrap_or_else(PoisonError::into_inner);
        if exchanged.is_none_or(|at| at.elapsed() >= EXCHANGE_PAUSE) {
            *exchanged = Some(Instant::now());
            self.queue.set_source(best.slot);
        }
    }

    /// Counts the time of a read behind the time that another member takes, if the member is late:
    /// the read was held up. A member that does this too often is left out.
    pub(super) fn note_late_read(self: &Arc<Self>, member: &Arc<MirrorMember>, begun: Instant) {
        if self.is_read_only || begun.elapsed() <= member.least_grace() {
            return; // nearly all reads
        }
        let grace = member.grace();
        let all = self.slots.all();
        let others = all.iter().filter_map(MemberSlot::member);
        let others = others.filter(|one| !Arc::ptr_eq(one, member) && one.is_complete());
        let Some(sooner) = others.map(|one| one.latency_nanos()).min() else { return };
        let due = begun.checked_add(Duration::from_nanos(sooner));
        if let Some(due) = due
            && due.elapsed() > grace
        {
            member.read_was_late(due);
            self.leave_out_slow_later();
        }
    }
}
