//! Flushes of the users of a mirror.

use super::Mirror;
use super::bounded::{FailedMember, LimitFrom, MemberFailure, run, start_for_all};
use super::membership::with_detached_changes;
use lunar_block::{Error, ErrorKind};
use std::fmt;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;
use tokio::sync::watch;

/// Flushes that users share: one runs at a time, in a task, so that it does not depend on the users
/// who wait for it. Flushes that arrive meanwhile share the next one, which begins after all of
/// them: users cannot make a member flush more often than it can.
#[derive(Debug, Default)]
pub(super) struct SharedFlushes(Mutex<FlushQueue>);

#[derive(Debug, Default)]
struct FlushQueue {
    /// True while a task runs the flushes.
    is_running: bool,
    /// Sends the result of the next flush to the users who wait for it.
    next: Option<watch::Sender<Option<FlushResult>>>,
}

type FlushResult = Result<(), Arc<Error>>;

impl SharedFlushes {
    /// Joins the next flush. Returns true if a task is to be started that runs it.
    fn join(&self) -> (watch::Receiver<Option<FlushResult>>, bool) {
        let mut queue = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let next = queue.next.get_or_insert_with(|| watch::Sender::new(None)).subscribe();
        (next, !std::mem::replace(&mut queue.is_running, true))
    }

    /// Takes the next flush, if anybody waits for it. Without one the task ends.
    fn take(&self) -> Option<watch::Sender<Option<FlushResult>>> {
        let mut queue = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let next = queue.next.take();
        queue.is_running = next.is_some();
        next
    }
}

/// The cause of an error of a flush that several users get.
#[derive(Debug)]
struct SharedCause(Arc<Error>);

impl fmt::Display for SharedCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.source.as_ref().map_or(Ok(()), |source| source.fmt(f))
    }
}

impl std::error::Error for SharedCause {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source.as_ref().and_then(|source| source.source())
    }
}

/// Returns an error for one of the users who share a flush.
fn copy_of(error: Arc<Error>) -> Error {
    let copy = Error::new(error.kind, Arc::clone(&error.device), error.what.clone());
    let copy = Error { range: error.range, ..copy };
    if error.source.is_some() { copy.because(SharedCause(error)) } else { copy }
}

/// Shortest time between two pages that are written to remove marks only.
const REMOVAL_PAUSE_MIN: Duration = Duration::from_millis(1);

/// Removes settled marks that no other page has removed, until none is left.
async fn remove_marks(weak: Weak<Mirror>) {
    loop {
        let Some(mirror) = weak.upgrade() else { return };
        let mut closed = mirror.closed.subscribe();
        let pause = mirror.options.mark_time.max(REMOVAL_PAUSE_MIN);
        drop(mirror);
        tokio::select! {
            _ = closed.wait_for(|closed| *closed) => return,
            () = tokio::time::sleep(pause) => {}
        }
        let Some(mirror) = weak.upgrade() else { return };
        if let Err(error) = mirror.remove_old_marks().await {
            tracing::warn!("{}: marks could not be removed: {error}", mirror.name);
        }
        if mirror.intents.end_removing_if_none_settled() {
            return;
        }
    }
}

impl Mirror {
    /// Flushes for a user: all changes that had ended are durable, or the flush fails. Also fails
    /// once after a loss that no flush has reported, whichever call has noticed it.
    pub(super) async fn flush_for_user(self: Arc<Self>) -> Result<(), Error> {
        if self.is_read_only {
            return self.refuse_closed(false);
        }
        let flush = self.latch.begin();
        let flushed = self.flush_shared().await;
        if self.latch.end(flush, flushed.is_ok(), self.losses.load(SeqCst)) {
            return Ok(());
        }
        flushed?;
        let what = "acknowledged writes that were not flushed may be lost: no member has all";
        Err(Error::new(ErrorKind::Medium, &*self.name, what))
    }

    /// Waits for a flush that begins from now on.
    async fn flush_shared(self: &Arc<Self>) -> Result<(), Error> {
        let (mut next, must_run) = self.flushes.join();
        if must_run {
            // The user does not wait for the task, because the task also runs the flushes of later
            // users.
            drop(start_for_all(&self.runtime, Arc::clone(self).run_flushes()));
        }
        let result = next.wait_for(Option::is_some).await;
        let result = result.map_err(|error| self.tasks_ended(error))?;
        result.clone().unwrap_or(Ok(())).map_err(copy_of)
    }

    /// Runs flushes until nobody waits for one.
    async fn run_flushes(self: Arc<Self>) {
        while let Some(next) = self.flushes.take() {
            let flushed = self.flush_until_rewritten().await.map_err(Arc::new);
            next.send_replace(Some(flushed));
        }
    }

    async fn flush_until_rewritten(self: &Arc<Self>) -> Result<(), Error> {
        loop {
            self.rewrite_urgent().await?;
            while !self.flush_members().await? {}
            if self.rewrites.next_urgent().is_none() {
                return Ok(());
            }
        }
    }

    /// Flushes the members. Returns false if no member is left that has done so.
    async fn flush_members(self: &Arc<Self>) -> Result<bool, Error> {
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
        let mut failed = run(self.options.member_wait, LimitFrom::Success, work).await;
        // The flush of a member succeeds if another flush has got the report of its loss.
        for member in current.iter().filter(|member| member.has_lost()) {
            if !failed.iter().any(|failed| Arc::ptr_eq(&failed.member, member)) {
                failed.push(FailedMember::new(member, MemberFailure::Lost));
            }
        }
        if failed.is_empty() {
            if self.intents.flushed(interval, |region| self.is_same(region)) {
                self.runtime.spawn(remove_marks(Arc::downgrade(self)));
            }
            return Ok(true);
        }
        self.failures_pending.fetch_add(1, SeqCst);
        drop(roster);
        self.leave_out_failed(None, failed).await
    }

    /// Removes old settled marks, unless the states of the members are to be recorded first.
    async fn remove_old_marks(self: &Arc<Self>) -> Result<(), Error> {
        let roster = self.roster.read().await;
        self.refuse_closed(roster.is_closed)?;
        let current = self.current();
        if roster.is_unrecorded
            || !with_detached_changes(current.iter(), self.options.member_wait).is_empty()
        {
            return Ok(());
        }
        let failed = self.intents.remove_old(&current).await;
        if failed.is_empty() {
            return Ok(());
        }
        self.failures_pending.fetch_add(1, SeqCst);
        drop(roster);
        self.leave_out_failed(None, failed).await.map(drop)
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
