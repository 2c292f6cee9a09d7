//! Work on several members at once, with a bound for those that are later than another.

use super::member::MirrorMember;
use futures_util::FutureExt;
use futures_util::future::poll_fn;
use lunar_block::{BoxFuture, Error, ErrorKind, IoContext};
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio::time::{Instant, Sleep};

/// Work on one member, which can be completed in a task of its own.
pub(super) type MemberWork = BoxFuture<'static, Result<(), Error>>;

/// A member that did not do its work.
#[derive(Debug)]
pub(super) struct FailedMember {
    pub(super) member: Arc<MirrorMember>,
    pub(super) failure: MemberFailure,
}

/// The failure of a member.
#[derive(Debug)]
pub(super) enum MemberFailure {
    /// An error of the device.
    Device(Error),
    /// The member did not answer in time; its work continues.
    Late(Duration),
    /// Acknowledged writes may be lost.
    Lost,
}

impl fmt::Display for MemberFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Device(error) => error.fmt(f),
            Self::Late(limit) => write!(f, "no answer within {} ms", limit.as_millis()),
            Self::Lost => f.write_str("it may have lost acknowledged writes"),
        }
    }
}

impl MemberFailure {
    /// True if the member has refused a command that had no effect.
    pub(super) fn is_busy(&self) -> bool {
        matches!(self, Self::Device(error) if error.kind == ErrorKind::Busy)
    }
}

impl FailedMember {
    pub(super) fn new(member: &Arc<MirrorMember>, failure: MemberFailure) -> Self {
        Self { member: Arc::clone(member), failure }
    }
}

/// The moment from which the limit counts.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum LimitFrom {
    /// The beginning of the work.
    Begin,
    /// The success of a current member. While no current member has succeeded, all are waited for.
    Success,
}

/// Does work on members side by side. Members that have not ended at the limit have failed; their
/// work continues in a task. Returns the members that failed.
pub(super) async fn run(
    limit: Duration,
    from: LimitFrom,
    work: Vec<(Arc<MirrorMember>, MemberWork)>,
) -> Vec<FailedMember> {
    let mut running = Running { work, failed: Vec::new(), deadline: None };
    poll_fn(|context| running.poll(context, limit, from)).await;
    let Running { work, mut failed, .. } = running;
    for (member, work) in work {
        failed.push(FailedMember::new(&member, MemberFailure::Late(limit)));
        member.give_up(work);
    }
    failed
}

struct Running {
    work: Vec<(Arc<MirrorMember>, MemberWork)>,
    failed: Vec<FailedMember>,
    deadline: Option<Pin<Box<Sleep>>>,
}

impl Running {
    fn poll(&mut self, context: &mut Context<'_>, limit: Duration, from: LimitFrom) -> Poll<()> {
        let mut at = 0;
        let mut enough = from == LimitFrom::Begin;
        while let Some((member, work)) = self.work.get_mut(at) {
            let Poll::Ready(done) = work.as_mut().poll(context) else {
                at += 1;
                continue;
            };
            match done {
                Ok(()) => enough |= member.is_current(),
                Err(error) => {
                    let failed = FailedMember::new(member, MemberFailure::Device(error));
                    self.failed.push(failed);
                }
            }
            drop(self.work.swap_remove(at));
        }
        if self.work.is_empty() {
            return Poll::Ready(());
        }
        if enough && self.deadline.is_none() {
            self.deadline = deadline(limit);
        }
        match &mut self.deadline {
            Some(deadline) => deadline.as_mut().poll(context),
            None => Poll::Pending,
        }
    }
}

/// Returns a timer; `None` if there is no such moment.
pub(super) fn deadline(limit: Duration) -> Option<Pin<Box<Sleep>>> {
    Instant::now().checked_add(limit).map(|at| Box::pin(tokio::time::sleep_until(at)))
}

/// Does work on one member within a limit.
pub(super) async fn run_one(
    limit: Duration,
    member: &Arc<MirrorMember>,
    work: MemberWork,
) -> Result<(), MemberFailure> {
    let failed = run(limit, LimitFrom::Begin, vec![(Arc::clone(member), work)]).await;
    failed.into_iter().next().map_or(Ok(()), |failed| Err(failed.failure))
}

/// Completes work in a task of the current runtime. Without one the work is dropped.
pub(super) fn complete_in_task<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) {
    if let Ok(runtime) = Handle::try_current() {
        runtime.spawn(async move { drop(work.await) });
    }
}

/// Starts work for which several users wait, on behalf of the server. Returns its result if it ends
/// at once, else the task that does it: it does not depend on its first user, who may not poll it.
pub(super) fn start_for_all<T: Send + 'static>(
    runtime: &Handle,
    work: impl Future<Output = T> + Send + 'static,
) -> Result<T, JoinHandle<T>> {
    let mut work = Box::pin(IoContext::server_scope(work));
    let _runtime = runtime.enter(); // for timers
    (&mut work).now_or_never().ok_or_else(|| runtime.spawn(work))
}

/// An operation of the pool that always runs to its end: if it is dropped after it has begun, it is
/// completed in a task. Members would differ after half an operation.
pub(crate) struct RunToEnd<T: Send + 'static> {
    work: Option<BoxFuture<'static, T>>,
    has_begun: bool,
}

impl<T: Send + 'static> RunToEnd<T> {
    pub(crate) fn new(work: impl Future<Output = T> + Send + 'static) -> Self {
        Self { work: Some(Box::pin(work)), has_begun: false }
    }
}

impl<T: Send + 'static> Future for RunToEnd<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        self.has_begun = true;
        let Some(work) = &mut self.work else { return Poll::Pending };
        let done = work.as_mut().poll(context);
        if done.is_ready() {
            self.work = None;
        }
        done
    }
}

impl<T: Send + 'static> Drop for RunToEnd<T> {
    fn drop(&mut self) {
        if let Some(work) = self.work.take().filter(|_| self.has_begun) {
            complete_in_task(work);
        }
    }
}
