//! The members of an open mirror, and the changes of their states, in memory and on the labels.

use super::Mirror;
use super::bounded::{
    FailedMember, LimitFrom, MemberFailure, complete_in_task, run, start_for_all,
};
use super::member::{MirrorMember, contains};
use super::slots::MemberSlot;
use crate::create::random_id;
use crate::format::Label;
use futures_util::future::select_all;
use lunar_block::{BufferPool, Error, ErrorKind, IoContext};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, PoisonError};
use std::time::Duration;
use tokio::sync::RwLockWriteGuard;

/// The part of the membership that its lock guards. Changes of blocks hold the lock shared from the
/// choice of the members to their last answer; changes of states hold it alone, also while labels
/// are written.
#[derive(Debug)]
pub(super) struct Roster {
    /// The label without a slot.
    pub(super) label: Label,
    /// True while the label of the last change of states is not durable: nothing is acknowledged
    /// before it is.
    pub(super) is_unrecorded: bool,
    /// True when the pool is closed.
    pub(super) is_closed: bool,
}

/// The membership lock, held alone.
pub(super) type RosterGuard<'a> = RwLockWriteGuard<'a, Roster>;

impl Mirror {
    /// Returns the members whose devices are present.
    pub(super) fn present(&self) -> impl Iterator<Item = Arc<MirrorMember>> + use<> {
        self.slots.present()
    }

    /// Returns the current members, in the order of their slots.
    pub(super) fn current(&self) -> Vec<Arc<MirrorMember>> {
        self.present().filter(|member| member.is_current()).collect()
    }

    /// Returns the members to which changes are sent.
    pub(super) fn receiving(&self) -> Vec<Arc<MirrorMember>> {
        self.present().filter(|member| member.receives_changes()).collect()
    }

    /// Leaves failed members out, and those that may have lost acknowledged writes. Returns when
    /// the labels of the others record this, durably. The last member stays in any case: a loss of
    /// it is a loss of the pool.
    ///
    /// Returns true if a current member is left that did not fail. Others may have been left out
    /// since these failed, so only now it is known which members have a change.
    pub(super) async fn leave_out(
        self: &Arc<Self>,
        failed: &[Arc<MirrorMember>],
    ) -> Result<bool, Error> {
        let (mirror, failed) = (Arc::clone(self), failed.to_vec());
        self.run_for_all(async move {
            let mut roster = mirror.roster.write().await;
            let left = mirror.leave_out_alone(&mut roster, &failed).await;
            drop(roster);
            mirror.recover_stale();
            left
        })
        .await?
    }

    /// Returns a current member that has held up the others for too long, if another one that has
    /// not can do without it.
    pub(super) fn slow_member(all: &[MemberSlot]) -> Option<Arc<MirrorMember>> {
        let is_slow = |one: &&Arc<MirrorMember>| one.is_current() && one.is_too_late();
        let slow = all.iter().filter_map(MemberSlot::member).find(is_slow)?;
        let is_enough = |one: &Arc<MirrorMember>| one.is_complete() && !one.is_too_late();
        all.iter().filter_map(MemberSlot::member).any(is_enough).then(|| Arc::clone(slow))
    }

    /// Leaves out the members that have held up the others for too long.
    pub(super) async fn leave_out_slow(self: &Arc<Self>) -> Result<(), Error> {
        let mirror = Arc::clone(self);
        self.run_for_all(async move {
            let mut roster = mirror.roster.write().await;
            let mut left = Ok(true);
            while let (Ok(_), Some(slow)) = (&left, Self::slow_member(&mirror.slots.all())) {
                slow.fail(MemberFailure::Slow);
                left = mirror.leave_out_alone(&mut roster, &[slow]).await;
            }
            drop(roster);
            mirror.recover_stale();
            left.map(drop)
        })
        .await?
    }

    /// Leaves out, in a task, a member that has held up the others for too long.
    pub(super) fn leave_out_slow_later(self: &Arc<Self>) {
        if Self::slow_member(&self.slots.all()).is_none() {
            return;
        }
        let mirror = Arc::clone(self);
        complete_in_task(async move {
            if let Err(error) = mirror.leave_out_slow().await {
                tracing::warn!("{}: {error}", mirror.name);
            }
        });
    }

    /// Does work for which several users wait, as [`start_for_all`] describes.
    pub(super) async fn run_for_all<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, Error> {
        match start_for_all(&self.runtime, work) {
            Ok(done) => Ok(done),
            Err(task) => task.await.map_err(|error| self.tasks_ended(error)),
        }
    }

    /// Leaves a member out if it may have lost acknowledged writes. Returns true if data that was
    /// read from it must not be used.
    pub(super) async fn leave_out_if_lossy(
        self: &Arc<Self>,
        member: &Arc<MirrorMember>,
    ) -> Result<bool, Error> {
        if !self.is_read_only && member.has_lost() {
            self.leave_out(&[]).await?;
            return Ok(true);
        }
        Ok(!member.is_current())
    }

    pub(super) async fn leave_out_alone(
        &self,
        roster: &mut RosterGuard<'_>,
        failed: &[Arc<MirrorMember>],
    ) -> Result<bool, Error> {
        self.refuse_closed(roster.is_closed)?;
        for member in failed.iter().filter(|member| member.is_syncing()) {
            self.log_left_out(member);
            member.become_stale(&self.intents.marked());
        }
        let before = self.current();
        let left: Vec<_> = before.iter().filter(|one| !contains(failed, one)).cloned().collect();
        for lossy in left.iter().filter(|member| member.has_lost()) {
            lossy.fail(MemberFailure::Lost);
        }
        let is_good = |one: &&Arc<MirrorMember>| !one.has_lost() && !one.is_unsettled();
        let mut good: Vec<_> = left.iter().filter(is_good).cloned().collect();
        let mut is_loss_counted = false;
        if good.is_empty() && !before.is_empty() {
            // A member that has failed only now is better than one with detached changes:
            // the change that it failed is not acknowledged.
            let is_better = left.iter().any(|member| !member.is_unsettled());
            let among = if is_better { &left } else { &before };
            let kept = keep_settled(among).await;
            is_loss_counted = kept.has_lost();
            if is_loss_counted {
                self.latch_loss(&kept, among);
            }
            good = vec![kept];
        }
        // Another change may have found the failure first, and may have failed to record it.
        if good.len() < before.len() || roster.is_unrecorded {
            self.set_current(roster, good, is_loss_counted).await?;
        }
        Ok(!left.is_empty() && self.current().iter().any(|one| !contains(failed, one)))
    }

    /// Handles the case that no member has all acknowledged writes. The content of one member is
    /// accepted; the loss is counted, and flushes of the users fail until one has reported it.
    fn latch_loss(&self, kept: &Arc<MirrorMember>, among: &[Arc<MirrorMember>]) {
        let others = among.iter().filter(|one| !Arc::ptr_eq(one, kept));
        let others: u64 = others.map(|one| one.new_losses().saturating_sub(1)).sum();
        self.losses.fetch_add((self.keep_as_it_is(kept) + others).max(1), SeqCst);
        tracing::warn!(
            "{}: no member has all acknowledged writes; the content of {} is used; the next flush \
             fails",
            self.name,
            kept.device.name()
        );
    }

    /// Accepts the content of a member as that of the pool. A member that is being copied to may
    /// have data that was lost here since, and is copied to again. Returns the number of losses.
    fn keep_as_it_is(&self, kept: &Arc<MirrorMember>) -> u64 {
        let regions = self.intents.unflushed();
        self.rewrites.add_urgent(&regions);
        for member in self.present().filter(|member| member.is_syncing()) {
            member.add_missing(&regions);
        }
        kept.accept_losses()
    }

    /// Makes `chosen` the current members and all other present ones stale, and records this on the
    /// labels. Members whose labels cannot be written are left out, too, except the last one: it
    /// stays current, and nothing is acknowledged until its label is durable. A device reports a
    /// loss to one flush, which may be that of its label: then the label is written again.
    /// `is_loss_counted` tells whether the losses of the last member are counted already.
    pub(super) async fn set_current(
        &self,
        roster: &mut RosterGuard<'_>,
        chosen: Vec<Arc<MirrorMember>>,
        is_loss_counted: bool,
    ) -> Result<(), Error> {
        let mut next = chosen;
        let mut is_repeated = false;
        loop {
            for member in self.present() {
                if member.is_current() && !contains(&next, &member) {
                    self.log_left_out(&member);
                    member.become_stale(&self.intents.marked());
                }
            }
            let failed = self.write_labels(roster, &next).await?;
            if failed.is_empty() {
                break;
            }
            note_failures(&failed);
            let is_good = |one: &&Arc<MirrorMember>| {
                !failed.iter().any(|failed| Arc::ptr_eq(&failed.member, one))
            };
            let good: Vec<_> = next.iter().filter(is_good).cloned().collect();
            if good.is_empty() {
                let kept = keep_one(&next);
                if kept.has_lost() && !std::mem::replace(&mut is_repeated, true) {
                    kept.wait_until_settled().await;
                    match is_loss_counted {
                        true => drop(self.keep_as_it_is(&kept)),
                        false => self.latch_loss(&kept, &next),
                    }
                    next = vec![kept];
                    continue;
                }
                for member in next.iter().filter(|member| !Arc::ptr_eq(member, &kept)) {
                    member.become_stale(&self.intents.marked());
                }
                kept.become_current();
                return Err(self.all_failed(None, failed));
            }
            next = good;
        }
        next.iter().for_each(|member| member.become_current());
        self.promote(&next);
        Ok(())
    }

    /// Writes the label of the next generation. Returns the members that failed.
    async fn write_labels(
        &self,
        roster: &mut RosterGuard<'_>,
        next: &[Arc<MirrorMember>],
    ) -> Result<Vec<FailedMember>, Error> {
        roster.is_unrecorded = true;
        self.is_unrecorded.store(true, SeqCst);
        let id = random_id().map_err(|error| {
            Error::new(ErrorKind::Medium, &*self.name, "there are no random numbers").because(error)
        })?;
        let slots = next.iter().map(|member| member.slot).collect();
        roster.label = roster.label.next(slots, id);
        self.generation.store(roster.label.generation, SeqCst);
        let work = next.iter().map(|member| {
            let (label, cloned) = (roster.label.at(member.slot), Arc::clone(member));
            let buffers = self.buffers();
            let work = async move { cloned.device.write_label(&label, &buffers).await };
            (Arc::clone(member), member.tracked(IoContext::server_scope(work)))
        });
        let failed = run(self.options.member_wait, LimitFrom::Success, work).await;
        if failed.is_empty() {
            roster.is_unrecorded = false;
            self.is_unrecorded.store(false, SeqCst);
            self.durable_label.send_replace(roster.label.clone());
        }
        Ok(failed)
    }

    /// Records the states of the members, if the last attempt has failed.
    pub(super) async fn record(self: &Arc<Self>) -> Result<(), Error> {
        let mirror = Arc::clone(self);
        self.run_for_all(async move {
            let recorded = mirror.recorded().await.map(drop);
            mirror.recover_stale();
            recorded
        })
        .await?
    }

    /// Acquires the membership lock alone. The states of the members are recorded.
    pub(super) async fn recorded(&self) -> Result<RosterGuard<'_>, Error> {
        let mut roster = self.roster.write().await;
        self.refuse_closed(roster.is_closed)?;
        if roster.is_unrecorded {
            let current = self.current();
            self.set_current(&mut roster, current, false).await?;
        }
        Ok(roster)
    }

    /// Handles the loss of the source of a copy. In regions that no current member has, the content
    /// of the first one counts, and copies of such regions are repeated. Regions that any current
    /// member has are copied from there, so that no read changes.
    fn promote(&self, current: &[Arc<MirrorMember>]) {
        let Some(first) = current.first() else { return };
        let mut lost = first.missing();
        current.iter().for_each(|member| lost.intersect(&member.missing()));
        if lost.is_empty() {
            return;
        }
        first.accept_content(&lost);
        self.rewrites.add(&lost);
        for member in self.present() {
            if !Arc::ptr_eq(&member, first) && member.receives_changes() {
                member.add_missing(&lost);
            }
        }
    }

    /// Returns the number of times that no member had all acknowledged writes. A loss of all
    /// members counts as soon as their devices count it, before the mirror handles it.
    pub(super) fn loss_count(&self) -> u64 {
        loop {
            let known = self.losses.load(SeqCst);
            let (mut all, mut sum) = (false, 1);
            for (index, member) in self.present().filter(|one| one.is_current()).enumerate() {
                let new = member.new_losses();
                all = (index == 0 || all) && new > 0;
                sum += new.saturating_sub(1);
            }
            if known == self.losses.load(SeqCst) {
                return if all { known + sum } else { known };
            }
        }
    }

    fn log_left_out(&self, member: &MirrorMember) {
        tracing::warn!(
            "{}: member {} is left out: {}; the others continue, and its data is stale",
            self.name,
            member.device.name(),
            member.last_failure()
        );
    }

    pub(super) fn refuse_closed(&self, is_closed: bool) -> Result<(), Error> {
        if is_closed || self.closing.load(SeqCst) {
            return Err(Error::new(ErrorKind::Open, &*self.name, "the pool is closed"));
        }
        Ok(())
    }

    pub(super) fn tasks_ended(
        &self,
        error: impl std::error::Error + Send + Sync + 'static,
    ) -> Error {
        Error::new(ErrorKind::Open, &*self.name, "the tasks of the pool have ended").because(error)
    }

    pub(super) fn buffers(&self) -> BufferPool {
        self.buffers.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Chooses among failed members: one without detached changes, that has lost nothing, and
/// that has every region, if possible.
fn keep_one(members: &[Arc<MirrorMember>]) -> Arc<MirrorMember> {
    let order = |member: &&Arc<MirrorMember>| {
        (member.is_unsettled(), member.has_lost(), !member.holds_all())
    };
    // Among equals, the first.
    Arc::clone(members.iter().min_by_key(order).unwrap_or(&members[0]))
}

/// Chooses among failed members as [`keep_one`], and waits until no change of the member is
/// detached: it could reach the member after newer ones. If all have some, the first one
/// whose changes have ended is chosen. There is no time limit, because no member can be used
/// before.
async fn keep_settled(members: &[Arc<MirrorMember>]) -> Arc<MirrorMember> {
    let kept = keep_one(members);
    let rank = |member: &Arc<MirrorMember>| (member.has_lost(), !member.holds_all());
    let equal = members.iter().filter(|one| kept.is_unsettled() && rank(one) == rank(&kept));
    let settled = equal.map(|member| {
        Box::pin(async move {
            member.wait_until_settled().await;
            Arc::clone(member)
        })
    });
    let settled: Vec<_> = settled.collect();
    if settled.is_empty() { kept } else { select_all(settled).await.0 }
}

/// Returns the members with detached changes, if another one has none: they are about to
/// be left out, and nobody waits for them again.
pub(super) fn with_detached_changes<'a>(
    members: impl Iterator<Item = &'a Arc<MirrorMember>> + Clone,
    limit: Duration,
) -> Vec<FailedMember> {
    if members.clone().all(|member| member.is_unsettled()) {
        return Vec::new();
    }
    let late = members.filter(|member| member.is_unsettled());
    late.map(|one| FailedMember::new(one, MemberFailure::Late(limit))).collect()
}

/// Records the failures of members for their status.
pub(super) fn note_failures(failed: &[FailedMember]) {
    failed.iter().for_each(|failed| failed.member.fail(&failed.failure));
}
