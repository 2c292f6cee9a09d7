//! Commands that have begun and wait, and those of them that go on out of turn.
//!
//! A connection polls its commands in its owner's turns. Two kinds go on at once, since other
//! commands wait for their end: commands that hold blocks exclusively, and aborted commands.
//! LOGICAL UNIT RESET and PREEMPT AND ABORT are answered when the affected tasks are quiet: a host
//! that is to be shut out of a unit must not delay that by a heavy load.

use super::{Ended, Tasks, outcome};
use crate::tasks::Ran;
use futures_util::future::LocalBoxFuture;
use futures_util::stream::Stream;
use lunar_iscsi::connection::target::{Input, Outcome};
use lunar_iscsi::framing::TaskId;
use lunar_net::MovingTurn;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

/// A command that has begun. Its work can be taken out, to be polled elsewhere.
pub(super) struct Begun {
    task: TaskId,
    work: Option<LocalBoxFuture<'static, Ended>>,
    /// Waker of the last poll.
    waker: Option<Waker>,
}

impl Begun {
    pub(super) fn new(task: TaskId, work: LocalBoxFuture<'static, Ended>) -> Self {
        Self { task, work: Some(work), waker: None }
    }

    /// Takes the work out. The remaining shell ends with the next poll.
    fn take(&mut self) -> Option<Self> {
        let work = self.work.take()?;
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
        Some(Self::new(self.task, work))
    }
}

impl Future for Begun {
    type Output = Ended;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Ended> {
        let Some(work) = &mut self.work else { return Poll::Ready(Ended::Gone) };
        let polled = work.as_mut().poll(context);
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
    /// ended.
    pub(crate) fn poll_out_of_turn(&mut self, context: &mut Context<'_>) -> bool {
        self.take_aborted();
        if self.out_of_turn.is_empty() {
            return false; // without reading the clock
        }
        let before = self.ended.len();
        let mut moving = MovingTurn::begin();
        while !self.out_of_turn.is_empty() {
            if !moving.begin_next() {
                context.waker().wake_by_ref();
                break;
            }
            match Pin::new(&mut self.out_of_turn).poll_next(context) {
                Poll::Ready(Some(Ended::Ran(ran))) => self.ended.push_back(ran),
                _ => break,
            }
        }
        self.ended.len() > before
    }

    /// Moves commands that were aborted since the last call to the commands out of turn.
    fn take_aborted(&mut self) {
        if !std::mem::take(&mut self.has_new_aborts) {
            return;
        }
        let is_aborted =
            |begun: &Begun| self.running.get(&begun.task).is_some_and(|running| running.aborted);
        for mut begun in Pin::new(&mut self.futures).iter_pin_mut() {
            if is_aborted(&begun)
                && let Some(aborted) = begun.take()
            {
                self.out_of_turn.push(aborted);
            }
        }
    }

    /// The next aborted command that has ended out of turn.
    pub(crate) fn next_aborted(&mut self) -> Option<Input> {
        let is_aborted =
            |ran: &Ran| self.running.get(&ran.task).is_some_and(|running| running.aborted);
        let at = self.ended.iter().position(is_aborted)?;
        let ran = self.ended.remove(at)?;
        self.finish(ran)
    }

    #[cfg(test)]
    pub(crate) fn any_running(&self) -> Option<TaskId> {
        self.running.keys().next().copied()
    }

    /// Result of a command that has run.
    pub(super) fn finish(&mut self, ran: Ran) -> Option<Input> {
        let task = ran.task;
        let running = self.running.remove(&task)?;
        if let Some(outcome) = running.failed {
            return Some(Input::Failed { task, outcome });
        }
        let outcome = if running.aborted { Outcome::default() } else { outcome(ran) };
        Some(Input::Done { task, outcome })
    }
}
