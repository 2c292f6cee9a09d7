//! Commands that have begun and wait, and those of them that continue out of turn.
//!
//! A connection polls its commands in its owner's turns. Some kinds continue at once, since
//! commands of other owners wait for them:
//!
//! - commands that hold blocks exclusively;
//! - aborted commands. LOGICAL UNIT RESET and PREEMPT AND ABORT are answered when the affected
//!   tasks are quiet: a host that is to be shut out of a unit must not delay that by a heavy load;
//! - [awaited](crate::awaited) commands, until nobody waits for them any more;
//! - commands that wait for a limit, until they have passed it. They then begin in a turn.

use super::{ExecutionEnd, ExecutionFuture, FutureEnd, Running, TaskResult, Tasks, outcome};
use crate::abort::AbortSignal;
use crate::streams::StreamEnd;
use futures_util::stream::Stream;
use lunar_iscsi::connection::target::{Input, Outcome};
use lunar_iscsi::framing::TaskId;
use lunar_net::MoveBudget;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

/// A command that has begun. Its work can be taken out, to be polled elsewhere.
pub(super) struct Begun {
    task: TaskId,
    work: Option<ExecutionFuture>,
    /// Waker of the last poll.
    waker: Option<Waker>,
    /// The signal of a command that continues out of turn as long as it is awaited.
    awaited: Option<AbortSignal>,
}

impl Begun {
    pub(super) fn new(task: TaskId, work: ExecutionFuture) -> Self {
        Self { task, work: Some(work), waker: None, awaited: None }
    }

    /// Takes the work out. The remaining shell ends with the next poll.
    fn take(&mut self) -> Option<Self> {
        let work = self.work.take()?;
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
        Some(Self::new(self.task, work))
    }

    /// True for a command that was awaited and is no more; an aborted one stays out of turn.
    fn belongs_in_turn(&self) -> bool {
        let awaited = self.awaited.as_ref();
        awaited.is_some_and(|command| !command.is_awaited() && command.check().is_ok())
    }
}

impl Future for Begun {
    type Output = FutureEnd;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<FutureEnd> {
        let Some(work) = &mut self.work else { return Poll::Ready(FutureEnd::Gone) };
        let polled = work.as_mut().poll(context).map(|ExecutionEnd(end)| end);
        if polled.is_pending()
            && self.belongs_in_turn()
            && let Some(work) = self.work.take()
        {
            return Poll::Ready(FutureEnd::InTurn(Self::new(self.task, work)));
        }
        if polled.is_pending()
            && !self.waker.as_ref().is_some_and(|waker| waker.will_wake(context.waker()))
        {
            self.waker = Some(context.waker().clone());
        }
        polled
    }
}

impl Tasks {
    /// Polls commands that others wait for, in one piece of a turn. Returns `true` if one has
    /// ended, or has got so far that it continues in a turn.
    #[inline]
    pub(crate) fn poll_out_of_turn(&mut self, context: &mut Context<'_>) -> bool {
        self.take_aborted();
        // Without reading the clock in the common case.
        !self.out_of_turn.is_empty() && self.poll_awaited(context)
    }

    #[cold]
    fn poll_awaited(&mut self, context: &mut Context<'_>) -> bool {
        let mut any = false;
        let mut moving = MoveBudget::begin();
        while !self.out_of_turn.is_empty() {
            if !moving.begin_next() {
                context.waker().wake_by_ref();
                break;
            }
            let Poll::Ready(Some(ended)) = Pin::new(&mut self.out_of_turn).poll_next(context)
            else {
                break;
            };
            self.take_in(ended);
            any = true;
        }
        any
    }

    /// Takes in a task whose future has ended, or that continues in a turn.
    pub(super) fn take_in(&mut self, ended: FutureEnd) {
        match ended {
            FutureEnd::TaskResult(ran) => self.ended.push_back(ran),
            FutureEnd::ReadyTask(passed) => self.throttled.queue_passed(passed),
            FutureEnd::InTurn(begun) => {
                self.futures.push(begun);
                self.unpolled = true;
            }
            FutureEnd::Gone => {}
        }
    }

    /// Moves commands that were aborted since the last call to the commands out of turn.
    fn take_aborted(&mut self) {
        if std::mem::take(&mut self.has_new_aborts) {
            self.move_out_of_turn(|running| running.aborted);
        }
    }

    /// Moves awaited commands to the commands out of turn. If there are none, the waker is woken
    /// when there is one. To be called while the owner has no turn.
    pub(crate) fn take_awaited(&mut self, context: &Context<'_>) {
        if self.awaited.poll(context) {
            self.move_out_of_turn(|running| running.abort.is_awaited());
        }
    }

    fn move_out_of_turn(&mut self, moves: impl Fn(&Running) -> bool) {
        for mut begun in Pin::new(&mut self.futures).iter_pin_mut() {
            if let Some(running) = self.running.get(&begun.task)
                && moves(running)
                && let Some(work) = begun.take()
            {
                let awaited = (!running.aborted).then(|| running.abort.clone());
                self.out_of_turn.push(Begun { awaited, ..work });
            }
        }
    }

    /// The next aborted command that has ended out of turn.
    pub(crate) fn next_aborted(&mut self) -> Option<Input> {
        let is_aborted =
            |ran: &TaskResult| self.running.get(&ran.task).is_some_and(|running| running.aborted);
        let at = self.ended.iter().position(is_aborted)?;
        let ran = self.ended.remove(at)?;
        self.finish(ran)
    }

    #[cfg(test)]
    pub(crate) fn any_running(&self) -> Option<TaskId> {
        self.running.keys().next().copied()
    }

    /// Number of commands that have ended out of turn.
    #[cfg(test)]
    pub(crate) fn ended(&self) -> usize {
        self.ended.len()
    }

    /// Result of a command that has run.
    pub(super) fn finish(&mut self, ran: TaskResult) -> Option<Input> {
        let task = ran.task;
        let running = self.running.remove(&task)?;
        if let Some(stream) = &running.stream {
            stream.end(StreamEnd::Aborted);
            drop(self.take_buffer(task));
        }
        if let Some(outcome) = running.failed {
            return Some(Input::Failed { task, outcome });
        }
        let outcome = match running.aborted {
            true => Outcome::default(),
            false => outcome(ran, running.unit.as_ref()),
        };
        Some(Input::Done { task, outcome })
    }
}
