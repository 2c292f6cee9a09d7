//! Work on several members at once, with a bound for those that are later than another.

use super::lateness::{LATE_MAX, LATENESS_WINDOW};
use super::member::MirrorMember;
use futures_util::FutureExt;
use futures_util::future::poll_fn;
use lunar_block::{BoxFuture, Error, ErrorKind, IoContext};
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
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
    /// The member answers, but has held up the others for too long.
    Slow,
    /// Acknowledged writes may be lost.
    Lost,
}

impl fmt::Display for MemberFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Device(error) => error.fmt(f),
            Self::Late(limit) => write!(f, "no answer within {} ms", limit.as_millis()),
            Self::Slow => write!(
                f,
                "it held up the others for more than {} of {} s",
                LATE_MAX.as_secs(),
                LATENESS_WINDOW.as_secs()
            ),
            Self::Lost => f.write_str("it may have lost acknowledged writes"),
        }
    }
}

impl MemberFailure {
    /// True if the member did not answer in time, and nothing else is known of its work.
    pub(super) fn is_late(&self) -> bool {
        matches!(self, Self::Late(_))
    }

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
    /// The beginning of the work of a copy, for which changes wait: a member that is not current
    /// has its shorter limit.
    Copy,
    /// The success of a current member. While no current member has succeeded, all are waited for.
    Success,
}

/// Does work on members side by side. Members that have not ended at the limit have failed; their
/// work continues in a task. Returns the members that failed.
///
/// A member that is not current is needed by nobody, so it has a shorter limit if changes wait for
/// it: [`MirrorMember::grace`]. A current member that is later than this behind another one has
/// held up the others, which its [`Lateness`](super::lateness::Lateness) counts.
pub(super) async fn run(
    limit: Duration,
    from: LimitFrom,
    work: impl IntoIterator<Item = (Arc<MirrorMember>, MemberWork)>,
) -> Vec<FailedMember> {
    let task = |(member, work)| MemberTask { member, work, grace: None };
    let tasks = work.into_iter().map(task).collect();
    let mut running =
        Running { tasks, failed: Vec::new(), limit, from, waits_since: None, timer: None };
    poll_fn(|context| running.poll(context)).await;
    running.failed
}

struct Running {
    tasks: Vec<MemberTask>,
    failed: Vec<FailedMember>,
    limit: Duration,
    from: LimitFrom,
    /// The moment from which limits count, once it is known.
    waits_since: Option<Instant>,
    timer: Option<(Instant, Pin<Box<Sleep>>)>,
}

struct MemberTask {
    member: Arc<MirrorMember>,
    work: MemberWork,
    /// Time by which the member may be later than another, with the work that it had when this
    /// work began.
    grace: Option<Duration>,
}

impl Running {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        self.poll_tasks(context);
        while let Some(due) = self.next_due() {
            let timer = match &mut self.timer {
                Some((at, timer)) if *at == due => timer,
                other => &mut other.insert((due, Box::pin(tokio::time::sleep_until(due)))).1,
            };
            ready!(timer.as_mut().poll(context));
            self.detach_late(due);
        }
        if self.tasks.is_empty() { Poll::Ready(()) } else { Poll::Pending }
    }

    fn poll_tasks(&mut self, context: &mut Context<'_>) {
        let (mut at, mut is_begin) = (0, self.from != LimitFrom::Success);
        while let Some(task) = self.tasks.get_mut(at) {
            let Poll::Ready(done) = task.work.as_mut().poll(context) else {
                let member = &task.member;
                task.grace.get_or_insert_with(|| member.grace());
                at += 1;
                continue;
            };
            let MemberTask { member, grace, .. } = self.tasks.swap_remove(at);
            match done {
                Ok(()) if member.is_current() => {
                    is_begin = true;
                    self.note_lateness(&member, grace);
                }
                Ok(()) => {}
                Err(error) => {
                    self.failed.push(FailedMember::new(&member, MemberFailure::Device(error)));
                }
            }
        }
        if is_begin && !self.tasks.is_empty() {
            self.waits_since.get_or_insert_with(Instant::now);
        }
    }

    fn note_lateness(&self, member: &MirrorMember, grace: Option<Duration>) {
        let (Some(since), Some(grace), LimitFrom::Success) = (self.waits_since, grace, self.from)
        else {
            return;
        };
        if since.elapsed() > grace {
            member.change_was_late(since);
        }
    }

    fn limit_of(&self, task: &MemberTask) -> Duration {
        match task.grace {
            Some(grace) if self.from != LimitFrom::Begin && !task.member.is_current() => grace,
            _ => self.limit,
        }
    }

    /// Returns the next moment at which a member has failed; `None` if there is none.
    fn next_due(&self) -> Option<Instant> {
        let since = self.waits_since?;
        self.tasks.iter().filter_map(|task| since.checked_add(self.limit_of(task))).min()
    }

    /// Detaches the work of members whose limit ends at `due`.
    fn detach_late(&mut self, due: Instant) {
        let Some(since) = self.waits_since else { return };
        let is_due = |limit| since.checked_add(limit).is_some_and(|at| at <= due);
        for task in std::mem::take(&mut self.tasks) {
            let limit = self.limit_of(&task);
            if !is_due(limit) {
                self.tasks.push(task);
                continue;
            }
            self.failed.push(FailedMember::new(&task.member, MemberFailure::Late(limit)));
            task.member.detach(task.work);
        }
    }
}

/// A limit for several operations of a member together.
#[derive(Clone, Copy, Debug)]
pub(super) struct JointLimit {
    begun: Instant,
    limit: Duration,
}

impl JointLimit {
    pub(super) fn begin(limit: Duration) -> Self {
        Self { begun: Instant::now(), limit }
    }

    pub(super) fn left(self) -> Duration {
        self.limit.saturating_sub(self.begun.elapsed())
    }

    /// Does work on a member within the rest of the limit.
    pub(super) async fn run_one(
        self,
        member: &Arc<MirrorMember>,
        work: MemberWork,
    ) -> Result<(), MemberFailure> {
        run_one(self.left(), member, work).await.map_err(|failure| match failure {
            MemberFailure::Late(_) => self.exceeded(),
            other => other,
        })
    }

    /// The failure of a member whose operations took longer together.
    pub(super) fn exceeded(self) -> MemberFailure {
        MemberFailure::Late(self.limit)
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
    run_one_from(limit, LimitFrom::Begin, member, work).await
}

pub(super) async fn run_one_from(
    limit: Duration,
    from: LimitFrom,
    member: &Arc<MirrorMember>,
    work: MemberWork,
) -> Result<(), MemberFailure> {
    let failed = run(limit, from, [(Arc::clone(member), work)]).await;
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

/// An operation that always runs to its end: if it is dropped after it has begun, it is completed
/// in a task. Copies would differ after half an operation.
pub struct RunToEnd<T: Send + 'static> {
    work: Option<BoxFuture<'static, T>>,
    has_begun: bool,
}

impl<T: Send + 'static> RunToEnd<T> {
    /// Creates the operation, which begins when it is polled first.
    pub fn new(work: impl Future<Output = T> + Send + 'static) -> Self {
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
