//! Tasks that wait for a limit.

use super::{Begun, Collected, CommandContext, ExecutionEnd, FutureEnd, Tasks, retry_later};
use crate::abort::{AbortSignal, Aborted};
use crate::itl_nexus::ItlNexus;
use crate::options::Limits;
use crate::quota::{Cost, QueuedCommand};
use crate::session::Session;
use crate::task_map::{self, TaskMap};
use crate::unit::{Unit, Work};
use lunar_block::BufferPool;
use lunar_iscsi::connection::target::{Input, Task};
use lunar_iscsi::framing::TaskId;
use lunar_scsi::sense::Status;
use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::Arc;

const GO: ControlFlow<Option<Input>> = ControlFlow::Continue(());

/// Stage of a task on its way through limits.
pub(super) enum ThrottleStage {
    /// The task is new.
    New,
    /// The task is the first of its queue.
    First(QueuedCommand),
    /// The task has been charged, and leaves its queue when this is dropped.
    Charged(QueuedCommand),
}

/// A task whose turn has come.
pub(super) struct ReadyTask {
    task: Task,
    turn: ThrottleStage,
}

/// The tasks of a connection that wait for a limit.
#[derive(Default)]
pub(super) struct Throttled {
    tasks: TaskMap<Waiting>,
    /// Bytes of data-out in buffers of these tasks.
    bytes: usize,
    passed: VecDeque<ReadyTask>,
}

struct Waiting {
    unit: Arc<dyn Unit>,
    abort: AbortSignal,
    bytes: usize,
}

impl Throttled {
    pub(super) fn unit_of(&self, task: TaskId) -> Option<&Arc<dyn Unit>> {
        self.tasks.get(&task).map(|waiting| &waiting.unit)
    }

    pub(super) fn memory_bytes(&self) -> usize {
        task_map::memory_bytes(&self.tasks) + self.passed.capacity() * size_of::<ReadyTask>()
    }

    pub(super) fn free_spare(&mut self) {
        task_map::free_spare(&mut self.tasks);
        if self.passed.is_empty() && self.passed.capacity() > 0 {
            self.passed = VecDeque::new();
        }
    }

    /// Ends the wait of a task, which leaves its queue at the next poll.
    pub(super) fn abort(&mut self, task: TaskId) {
        if let Some(waiting) = self.remove(task) {
            waiting.abort.raise();
        }
        self.passed.retain(|passed| passed.task.id != task);
    }

    pub(super) fn queue_passed(&mut self, passed: ReadyTask) {
        if self.tasks.contains_key(&passed.task.id) {
            self.passed.push_back(passed);
        }
    }

    /// True when a task may have a buffer of this size. Tasks that wait for a limit take at most
    /// half of the connection's memory: the other half is for other units.
    pub(super) fn hold(&mut self, task: TaskId, bytes: usize, limits: &Limits) -> bool {
        let Some(waiting) = self.tasks.get_mut(&task) else { return true };
        let may = has_room(self.bytes, bytes, limits);
        if may {
            waiting.bytes += bytes;
            self.bytes += bytes;
        }
        may
    }

    /// True when no task has passed its limit and not been started yet.
    #[inline]
    pub(super) fn is_idle(&self) -> bool {
        self.passed.is_empty()
    }

    fn insert(&mut self, task: TaskId, waiting: Waiting) {
        self.bytes += waiting.bytes;
        self.tasks.insert(task, waiting);
    }

    fn remove(&mut self, task: TaskId) -> Option<Waiting> {
        let waiting = self.tasks.remove(&task)?;
        self.bytes -= waiting.bytes;
        Some(waiting)
    }
}

fn has_room(busy: usize, bytes: usize, limits: &Limits) -> bool {
    busy == 0 || busy + bytes <= limits.data_out_bytes / 2
}

impl Tasks {
    /// Queues a task behind those that it must not pass, before it is checked: the effects of
    /// checking would come too early. Returns `None` if there are none.
    pub(super) fn queue_unchecked(
        &mut self,
        session: &Arc<Session>,
        nexus: Option<&ItlNexus>,
        task: &Task,
    ) -> Option<Option<Input>> {
        let nexus = nexus?;
        if !session.quota.is_limited_at(&nexus.quota) {
            return None; // the usual case
        }
        let queue = session.quota.known_queue(&nexus.quota);
        let queue = queue.filter(|queue| queue.holds(task.attribute))?;
        let queued = queue.enter(task.attribute, 0);
        // Resets find its session through the attached nexus.
        session.make_known(nexus);
        Some(self.throttle(session, &nexus.unit, task, queued, None))
    }

    /// Charges a task, unless it has to wait, or is refused.
    pub(super) fn charge(
        &mut self,
        session: &Arc<Session>,
        task: &Task,
        nexus: &ItlNexus,
        work: &Work,
        turn: &mut ThrottleStage,
    ) -> ControlFlow<Option<Input>> {
        let ItlNexus { unit, quota, .. } = nexus;
        if matches!(turn, ThrottleStage::New) && !session.quota.is_limited_at(quota) {
            return GO; // the usual case: no limits
        }
        let Some(cost) = unit.cost(&task.cdb, work) else { return GO };
        match std::mem::replace(turn, ThrottleStage::New) {
            ThrottleStage::Charged(queued) => {
                *turn = ThrottleStage::Charged(queued);
                GO
            }
            ThrottleStage::First(queued) => {
                ControlFlow::Break(self.wait(unit, task, queued, Some(cost)))
            }
            ThrottleStage::New => {
                let Ok(queue) = session.quota.queue(quota) else {
                    let busy = self.refuse_throttled(task.id, Status::BUSY);
                    return ControlFlow::Break(Some(busy));
                };
                let passed = match queue.is_empty().then(|| queue.try_pass(cost)) {
                    Some(Ok(())) => return GO,
                    Some(Err(passed)) => passed,
                    None => 0,
                };
                let queued = queue.enter(task.attribute, passed);
                ControlFlow::Break(self.throttle(session, unit, task, queued, Some(cost)))
            }
        }
    }

    /// Queues a new task, if there is room for it.
    fn throttle(
        &mut self,
        session: &Arc<Session>,
        unit: &Arc<dyn Unit>,
        task: &Task,
        queued: QueuedCommand,
        cost: Option<Cost>,
    ) -> Option<Input> {
        let bytes = self.held_bytes(task.id);
        let many = session.quota.waiting() > waiting_max(session, &self.limits);
        if many || !has_room(self.throttled.bytes, bytes, &self.limits) {
            return Some(self.refuse_throttled(task.id, Status::TASK_SET_FULL));
        }
        self.wait(unit, task, queued, cost)
    }

    /// Refuses a task without room; the initiator may send it again.
    fn refuse_throttled(&mut self, task: TaskId, status: Status) -> Input {
        drop(self.take_buffer(task));
        Input::Done { task, outcome: retry_later(status) }
    }

    fn wait(
        &mut self,
        unit: &Arc<dyn Unit>,
        task: &Task,
        mut queued: QueuedCommand,
        cost: Option<Cost>,
    ) -> Option<Input> {
        let (abort, id, task) = (AbortSignal::default(), task.id, task.clone());
        let (unit, bytes) = (Arc::clone(unit), self.held_bytes(task.id));
        self.throttled.insert(task.id, Waiting { unit, abort: abort.clone(), bytes });
        let waits = async move {
            let turn = match cost {
                None => abort.unless(queued.first()).await.map(|()| ThrottleStage::First(queued)),
                Some(cost) => {
                    abort.unless(queued.pass(cost)).await.map(|()| ThrottleStage::Charged(queued))
                }
            };
            ExecutionEnd(match turn {
                Ok(turn) => FutureEnd::ReadyTask(ReadyTask { task, turn }),
                Err(Aborted) => FutureEnd::Gone,
            })
        };
        // When its turn at the limit has come, the commands of other owners wait for it.
        self.out_of_turn.push(Begun::new(id, Box::pin(waits)));
        self.unpolled = true;
        None
    }

    /// Starts the tasks whose turn has come, as if they had just arrived.
    pub(super) fn start_passed(&mut self, session: &Arc<Session>) -> Vec<Input> {
        let mut done = Vec::new();
        while let Some(ReadyTask { task, turn }) = self.throttled.passed.pop_front() {
            self.throttled.remove(task.id);
            let view = session.view();
            let command_context = CommandContext { session, view: &view };
            let nexus = view.nexus(task.lun).map(|nexus| &**nexus);
            let answer = self.check_command(&command_context, nexus, &task, None, turn);
            done.extend(std::iter::from_fn(|| self.inputs.pop()));
            done.extend(answer);
        }
        done
    }

    fn held_bytes(&self, task: TaskId) -> usize {
        match self.buffers.get(task) {
            Some(Collected::Buffer(buffer)) => BufferPool::charged_bytes(buffer.len()),
            _ => 0,
        }
    }
}

/// Number of commands of a session that may wait for limits. If the session sees several units,
/// room is left in its command window, so that the others can still be reached.
fn waiting_max(session: &Session, limits: &Limits) -> usize {
    match session.view().units().len() {
        ..=1 => usize::MAX,
        _ => (limits.window_commands as usize / 4 * 3).max(1),
    }
}
