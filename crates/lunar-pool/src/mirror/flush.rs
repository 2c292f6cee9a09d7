//! Flushes of the users of a mirror.

use super::Mirror;
use super::bounded::{FailedMember, LimitFrom, MemberFailure, run};
use lunar_block::{Error, ErrorKind};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

impl Mirror {
    /// Flushes for a user: all changes that had ended are durable, or the flush fails. Also fails
    /// once after a loss that no flush has reported, whichever call has noticed it.
    pub(super) async fn flush_for_user(self: Arc<Self>) -> Result<(), Error> {
        if self.is_read_only {
            return self.refuse_closed(false);
        }
        let flush = self.latch.begin();
        let flushed = self.flush_until_rewritten().await;
        if self.latch.end(flush, flushed.is_ok(), self.losses.load(SeqCst)) {
            return Ok(());
        }
        flushed?;
        let what = "acknowledged writes that were not flushed may be lost: no member has all";
        Err(Error::new(ErrorKind::Medium, &*self.name, what))
    }

    async fn flush_until_rewritten(self: &Arc<Self>) -> Result<(), Error> {
        loop {
            self.rewrite_urgent().await?;
            self.flush_members().await?;
            if self.rewrites.next_urgent().is_none() {
                return Ok(());
            }
        }
    }

    async fn flush_members(self: &Arc<Self>) -> Result<(), Error> {
        let roster = loop {
            let roster = self.roster.read().await;
            self.refuse_closed(roster.is_closed)?;
            if !roster.is_unrecorded {
                break roster;
            }
            drop(roster);
            self.record().await?;
        };
        let current = self.current();
        let interval = self.intents.begin_flush();
        let work = self.receiving().into_iter().map(|member| {
            let work = member.flush();
            (member, work)
        });
        let mut failed = run(self.options.member_wait, LimitFrom::Success, work.collect()).await;
        // The flush of a member succeeds if another flush has got the report of its loss.
        for member in current.iter().filter(|member| member.has_lost()) {
            if !failed.iter().any(|failed| Arc::ptr_eq(&failed.member, member)) {
                failed.push(FailedMember::new(member, MemberFailure::Lost));
            }
        }
        if failed.is_empty() {
            let is_same = |region| self.is_same(region);
            failed = self.intents.flushed(interval, is_same, &current).await;
        }
        if failed.is_empty() {
            return Ok(());
        }
        self.failures_pending.fetch_add(1, SeqCst);
        drop(roster);
        self.leave_out_failed(None, failed).await
    }

    /// True if all current members have a region, durable after a flush, and none may have missed a
    /// change.
    pub(super) fn is_same(&self, region: u32) -> bool {
        self.failures_pending.load(SeqCst) == 0
            && !self.is_unrecorded.load(SeqCst)
            && !self.rewrites.contains(region)
            && self.present().all(|member| !member.is_current() || member.holds(region, region))
    }
}
