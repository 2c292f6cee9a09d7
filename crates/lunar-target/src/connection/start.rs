//! The start of a connection's commands, and the end of those that run at once: x//! them over and
//! takes them back by calls, without a queue between.

use super::Connection;
use crate::session::{ConnectionEvent, KnownView, Session};
use crate::statistics::Commands;
use crate::task_map::TaskMap;
use crate::task_set::QueuedTaskPermit;
use crate::tasks::{CommandContext, Tasks};
use lunar_iscsi::connection::target::{Input, Outcome, Task};
use lunar_iscsi::framing::TaskId;
use lunar_iscsi::session::target::{ToConnection, ToSession};
use lunar_wire::Time;
use std::collections::VecDeque;
use std::sync::Arc;
use tokio::sync::mpsc::UnboundedReceiver;

/// Parts of a connection with which its commands start.
struct Starter<'a> {
    session: &'a Option<(Arc<Session>, u16)>,
    view: &'a mut Option<KnownView>,
    commands: &'a mut Commands,
    permits: &'a mut TaskMap<QueuedTaskPermit>,
    tasks: &'a mut Tasks,
}

impl Starter<'_> {
    /// Starts a task; returns the answer for the machine.
    #[inline]
    fn start(self, now: Time, task: &Task) -> Option<Input> {
        let (session, _) = self.session.as_ref()?;
        let view = session.cached_view(self.view);
        let nexus = view.nexus(task.lun).map(|nexus| &**nexus);
        self.commands.start(now, task, nexus.map(|nexus| &*nexus.unit));
        let command_context = CommandContext { session, view };
        let permit = if self.permits.is_empty() { None } else { self.permits.remove(&task.id) };
        self.tasks.start(&command_context, nexus, task, permit)
    }
}

impl Connection {
    /// Gives the machine an input from the socket. A command that it starts is run at once, as far
    /// as no waiting is needed.
    #[inline(always)]
    pub(super) fn receive_input(&mut self, now: Time, input: Input) {
        let Self {
            machine, session, view, commands, permits, tasks, pending_events, events, ..
        } = self;
        let ask = |message: &ToSession| ask(session, pending_events, events, message);
        let Some(task) = machine.handle_with_session(now, input, ask) else { return };
        let answer = Starter { session, view, commands, permits, tasks }.start(now, task);
        self.feed_answer(now, answer);
    }

    /// Starts a task that was delivered later than it arrived.
    pub(super) fn start(&mut self, now: Time, task: &Task) {
        let Self { session, view, commands, permits, tasks, .. } = self;
        let answer = Starter { session, view, commands, permits, tasks }.start(now, task);
        self.feed_answer(now, answer);
    }

    /// Gives the machine the answer to the start of a task at once, which saves a turn of its own,
    /// unless data goes before it.
    #[inline]
    fn feed_answer(&mut self, now: Time, answer: Option<Input>) {
        if self.queue_task_inputs().0 > 0 {
            return self.pending_inputs.extend(answer);
        }
        match answer {
            Some(Input::Done { task, outcome }) => self.end(now, task, outcome),
            Some(answer) => self.feed(now, answer),
            None => {}
        }
    }

    /// Ends a task in the machine, which gets the new window before it makes the response.
    #[inline]
    fn end(&mut self, now: Time, task: TaskId, outcome: Outcome) {
        self.commands.done(task, &outcome);
        if !self.managed.is_empty() {
            self.managed.remove(&task);
        }
        let Self { machine, session, pending_events, events, .. } = self;
        let ask = |message: &ToSession| ask(session, pending_events, events, message);
        machine.handle_with_session(now, Input::Done { task, outcome }, ask);
    }
}

/// Passes a message to the session, if no earlier message of the session waits.
#[inline]
fn ask(
    session: &Option<(Arc<Session>, u16)>,
    pending_events: &VecDeque<ConnectionEvent>,
    events: &UnboundedReceiver<ConnectionEvent>,
    message: &ToSession,
) -> Option<ToConnection> {
    let (session, cid) = session.as_ref().filter(|_| pending_events.is_empty())?;
    session.try_handle_message(*cid, message, events)
}
