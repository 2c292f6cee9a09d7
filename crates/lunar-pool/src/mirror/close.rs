//! Closes a mirror.

use super::Mirror;
use super::bounded::{FailedMember, LimitFrom, MemberFailure, run};
use super::member::MirrorMember;
use super::membership::note_failures;
use crate::create::random_id;
use lunar_block::{Error, ErrorKind};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

/// Time for which open changes are waited for.
const CLOSE_WAIT: Duration = Duration::from_secs(10);

impl Mirror {
    /// Refuses all later operations, and ends copies.
    pub(super) fn begin_closing(&self) {
        self.closing.store(true, SeqCst);
        self.closed.send_replace(true);
    }

    pub(super) async fn close(self: Arc<Self>) -> Result<(), Error> {
        self.begin_closing();
        let mut troubles = Vec::new();
        match tokio::time::timeout(CLOSE_WAIT, self.roster.write()).await {
            Err(_) => troubles.push("operations did not end in time".to_owned()),
            Ok(roster) if roster.is_closed => return Ok(()),
            Ok(mut roster) => {
                roster.is_closed = true;
                if roster.is_unrecorded || self.failures_pending.load(SeqCst) > 0 {
                    troubles.push("a member missed a change and could not be left out".into());
                } else if !self.is_read_only {
                    let failed = self.flush_and_remove_marks().await;
                    troubles.extend(failed.iter().map(|failed| {
                        format!(
                            "the last flush failed: {}: {}",
                            failed.member.device.name(),
                            failed.failure
                        )
                    }));
                    if !failed.is_empty() && self.leave_out_closing(&mut roster, &failed).await {
                        troubles.push("it is left out, the others have all of it".into());
                    }
                }
            }
        }
        if self.latch.is_unreported(self.loss_count()) {
            troubles.push("acknowledged writes may be lost, and no flush has reported it".into());
        }
        if troubles.is_empty() {
            return Ok(());
        }
        let marked = self.intents.on_members().len();
        troubles.push(format!("the next opening copies {marked} marked regions"));
        Err(Error::new(ErrorKind::Medium, &*self.name, troubles.join("; ")))
    }

    /// Makes all changes durable, and removes all marks except those of regions to be copied.
    /// Returns the members that failed; then the marks stay.
    async fn flush_and_remove_marks(&self) -> Vec<FailedMember> {
        // Changes that were not flushed are marked.
        if self.intents.on_members().is_empty() {
            return Vec::new();
        }
        let current = self.current();
        let interval = self.intents.begin_flush();
        let work = current.iter().map(|member| (Arc::clone(member), member.flush()));
        let mut failed = run(self.options.member_wait, LimitFrom::Success, work).await;
        for member in current.iter().filter(|member| member.has_lost()) {
            if !failed.iter().any(|failed| Arc::ptr_eq(&failed.member, member)) {
                failed.push(FailedMember::new(member, MemberFailure::Lost));
            }
        }
        if failed.is_empty() {
            let is_same = |region| self.is_same(region);
            failed = self.intents.end_last_flush(interval, is_same, &current).await;
        }
        failed
    }

    /// Records on the labels of the others that members are not current. A member that failed the
    /// last flush may have lost writes that the others have: the next opening could copy from it.
    async fn leave_out_closing(
        &self,
        roster: &mut super::membership::RosterGuard<'_>,
        failed: &[FailedMember],
    ) -> bool {
        note_failures(failed);
        let has_failed = |member: &Arc<MirrorMember>| {
            failed.iter().any(|failed| Arc::ptr_eq(&failed.member, member))
        };
        let mut rest = self.current();
        rest.retain(|member| !has_failed(member));
        let Ok(id) = random_id() else { return false };
        if rest.is_empty() {
            return false;
        }
        let slots = rest.iter().map(|member| member.slot).collect();
        roster.label = roster.label.next(slots, id);
        let work = rest.iter().map(|member| {
            let (label, cloned) = (roster.label.at(member.slot), Arc::clone(member));
            let buffers = self.buffers();
            let work = async move { cloned.device.write_label(&label, &buffers).await };
            (Arc::clone(member), member.tracked(work))
        });
        run(self.options.member_wait, LimitFrom::Begin, work).await.is_empty()
    }
}
