//! The tasks of one connection: collection of their data-out, execution, and limits.

use crate::abort::AbortSignal;
use crate::awaited::AwaitedSignal;
use crate::execute::{PieceReader, READ_PIECE_BYTES};
use crate::itl_nexus::ItlNexus;
use crate::memory::{ConnectionMemory, NoMemory, WorkMemory};
use crate::options::Limits;
use crate::plan_result::{PlanResult, internal_failure};
use crate::registration_room::RegistrationRoom;
use crate::relay::ConnectionRelay;
use crate::session::Session;
use crate::session_table::SessionTable;
use crate::streams::{DataOutStream, StreamEnd, StreamLimits, TaskInputs};
use crate::task_map::{self, RecentTasks, TaskMap};
use crate::task_set::QueuedTaskPermit;
use crate::unit::{AcceptedCommand, ArrivedCommand, CommandData, RefusedCommand, Unit, Work};
use crate::view::View;
use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::stream::{FuturesUnordered, Stream};
use lunar_block::{Buffer, BufferPool, MemoryCharge};
use lunar_iscsi::connection::target::{HeaderCdb, Input, Outcome, Task, TransferFault};
use lunar_iscsi::framing::TaskId;
use lunar_net::TURN_BYTES;
use lunar_scsi::commands;
use lunar_scsi::plan::{Plan, Refusal};
use lunar_scsi::sense::{Sense, SenseKey, Status};
use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

/// Bytes beyond the transfer limit: COMPARE AND WRITE sends its few blocks twice, up to 255 of 4096
/// bytes.
const TRANSFER_SLACK: usize = 2 << 20;

mod admission;
mod begun;
mod execution;
mod outcome;
mod run_now;
mod running_charge;
mod streaming;
#[cfg(test)]
mod tests;
mod throttle;

use admission::{Admission, Admitted};
use begun::Begun;
pub use execution::{Execution, ExecutionEnd, ExecutionFuture};
use outcome::{check_condition, good, no_memory, outcome, retry_later, with_data_out};
use running_charge::RunningCharge;
use throttle::{ReadyTask, ThrottleStage, Throttled};

/// Parts of a server that tasks use for commands with effects beyond their own session.
#[derive(Debug)]
pub(crate) struct TaskServices {
    pub(crate) sessions: Arc<SessionTable>,
    pub(crate) registration_room: RegistrationRoom,
}

/// All tasks of one connection.
pub(crate) struct Tasks {
    services: Arc<TaskServices>,
    limits: Limits,
    /// Data-out, from its first byte until the task runs.
    buffers: RecentTasks<Collected>,
    waiting: RecentTasks<Planned>,
    futures: FuturesUnordered<Begun>,
    /// Tasks that others wait for or will wait for: those that hold blocks while they wait, or
    /// will, aborted and awaited ones, and those that wait for a limit.
    out_of_turn: FuturesUnordered<Begun>,
    /// Raised when one of `futures` is awaited.
    awaited: Arc<AwaitedSignal>,
    /// Tasks that have ended out of turn.
    ended: VecDeque<TaskResult>,
    /// Inputs of the machine from tasks that continue.
    inputs: TaskInputs,
    /// Limits of the tasks with streams; `None` before the first one.
    stream_limits: Option<StreamLimits>,
    relay: Option<Rc<dyn ConnectionRelay>>,
    /// True when commands were aborted that may still be among `futures`.
    has_new_aborts: bool,
    running_charge: RunningCharge,
    throttled: Throttled,
    running: TaskMap<Running>,
    /// True when a task has begun whose waker is not registered yet.
    unpolled: bool,
    /// Memory of read data, and the reads that wait for it.
    data_in: Admission,
    /// Memory of data-out, and the commands whose data is not requested yet.
    data_out: Admission,
    /// Commands whose data came without a request.
    arrived: Vec<(TaskId, Planned)>,
    /// Source of further memory for commands.
    work: WorkMemory,
}

struct Running {
    unit: Option<Arc<dyn Unit>>,
    abort: AbortSignal,
    aborted: bool,
    /// Answer of a task that failed before it could run.
    failed: Option<Outcome>,
    /// The data-out of a task that takes it as it arrives.
    stream: Option<Arc<DataOutStream>>,
}

enum Collected {
    Buffer(Buffer),
    /// There was no room for the data: the task will get TASK SET FULL.
    Refused,
}

/// A task with a plan.
struct Planned {
    unit: Option<Arc<dyn Unit>>,
    cdb: HeaderCdb,
    work: Work,
    /// Bytes that the CDB requests, for the residual.
    wants_bytes: u32,
    /// Bytes that are collected and used: fewer, if the initiator announced fewer.
    collect_bytes: usize,
    /// Length of the first buffer for its data-in.
    data_in_buffer_bytes: Option<usize>,
    /// True if its data-in is read in pieces of that length.
    reads_in_pieces: bool,
    /// True if its data moves while it runs.
    streams: bool,
    /// Bytes that a read would move if the initiator had room for all of them, for the residual.
    data_in_bytes: u32,
    order: Option<QueuedTaskPermit>,
    /// True if the unit tries to run the command at once.
    tries_now: bool,
    /// True if others may wait for this command while it waits.
    goes_out_of_turn: bool,
    /// True if no later response may pass its response.
    fenced: bool,
    /// Charge for an answer of the plan, which may wait for long.
    _reply_charge: Option<MemoryCharge>,
}

impl Planned {
    /// Runs the task if no waiting is needed: most cached writes end here, and deferred reads.
    fn try_now(&self, data: &mut CommandData) -> bool {
        let (Some(unit), Some(order)) = (&self.unit, &self.order) else { return false };
        self.tries_now && order.is_granted() && unit.try_run(&self.work, data)
    }
}

/// End of a future of a task.
enum FutureEnd {
    TaskResult(TaskResult),
    /// The task waited for a limit, and its turn has come.
    ReadyTask(ReadyTask),
    /// The task was awaited and is no more: it continues in its owner's turns.
    InTurn(Begun),
    /// The task was aborted while it waited, or continues elsewhere.
    Gone,
}

struct TaskResult {
    task: TaskId,
    result: PlanResult,
    wants_bytes: u32,
    data_in_bytes: u32,
    fenced: bool,
}

impl Tasks {
    pub(crate) fn new(
        services: Arc<TaskServices>,
        limits: &Limits,
        memory: &ConnectionMemory,
    ) -> Self {
        let wait_max = Duration::from_secs(limits.memory_wait_seconds.into());
        let (data_in, data_out) = (memory.data_in.clone(), memory.data_out.clone());
        let work = WorkMemory { buffers: data_in.clone(), wait_max };
        Self {
            services,
            limits: limits.clone(),
            buffers: RecentTasks::default(),
            waiting: RecentTasks::default(),
            futures: FuturesUnordered::new(),
            out_of_turn: FuturesUnordered::new(),
            awaited: Arc::default(),
            ended: VecDeque::new(),
            inputs: TaskInputs::default(),
            stream_limits: None,
            relay: None,
            has_new_aborts: false,
            running_charge: RunningCharge::new(memory.commands_charge(), memory.control.clone()),
            throttled: Throttled::default(),
            running: TaskMap::default(),
            unpolled: false,
            data_in: Admission::new(data_in, limits.data_in_bytes, wait_max),
            data_out: Admission::new(data_out, limits.data_out_bytes, wait_max),
            arrived: Vec::new(),
            work,
        }
    }

    /// Sets the relay of the connection, for the commands that begin from now on.
    pub(crate) fn set_relay(&mut self, relay: Option<Rc<dyn ConnectionRelay>>) {
        self.relay = relay;
    }

    /// True when no task runs that could still have an effect.
    pub(crate) fn are_quiet(&self) -> bool {
        self.running.is_empty()
    }

    /// Memory of the commands, without their data and without running ones, including spare
    /// capacity.
    pub(crate) fn memory_bytes(&self) -> usize {
        task_map::memory_bytes(&self.running)
            + self.waiting.memory_bytes()
            + self.buffers.memory_bytes()
            + self.arrived.capacity() * size_of::<(TaskId, Planned)>()
            + self.data_in.memory_bytes()
            + self.data_out.memory_bytes()
            + self.throttled.memory_bytes()
            + self.ended.capacity() * size_of::<TaskResult>()
            + self.inputs.memory_bytes()
    }

    /// Charges the running commands, and returns their memory.
    pub(crate) fn charge_running(&mut self) -> usize {
        self.running_charge.charge_running(self.begun())
    }

    /// Frees memory that many commands needed once and that is unused now.
    pub(crate) fn free_spare_memory(&mut self) {
        task_map::free_spare(&mut self.running);
        self.waiting.free_spare();
        self.buffers.free_spare();
        self.data_in.free_spare();
        self.data_out.free_spare();
        self.throttled.free_spare();
        self.ended.shrink_to_fit();
        self.inputs.free_spare();
    }

    /// Number of commands that have begun and wait.
    fn begun(&self) -> usize {
        self.futures.len() + self.out_of_turn.len() + self.ended.len()
    }

    /// True when a task runs that [`poll_finished`](Self::poll_finished) has not polled: the
    /// connection must poll again before it sleeps.
    pub(crate) fn is_unpolled(&self) -> bool {
        self.unpolled
    }

    /// Takes a buffer for the data-out of `task`, whose first data is arriving. Data without room
    /// is discarded.
    pub(crate) fn reserve(&mut self, task: TaskId, bytes: u32) {
        if self.buffers.get(task).is_some() {
            return;
        }
        let bytes = self.data_out_bytes(bytes);
        let may_hold = self.throttled.hold(task, BufferPool::charged_bytes(bytes), &self.limits);
        let buffer = may_hold.then(|| self.data_out.try_take_first(bytes)).flatten();
        self.buffers.insert(task, buffer.map_or(Collected::Refused, Collected::Buffer));
        if let Some(planned) = self.data_out.remove(task) {
            // The task waited until its data could be requested, and some of it has come
            // unsolicited.
            self.arrived.push((task, planned));
            self.unpolled = true;
        }
    }

    /// Length of the buffer for announced data-out. Data announced beyond any command that would
    /// run is not kept: the plan refuses it.
    fn data_out_bytes(&self, announced: u32) -> usize {
        (announced as usize).min(self.limits.transfer_bytes as usize + TRANSFER_SLACK)
    }

    /// The bytes `at..end` of a task's buffer, as far as they exist.
    pub(crate) fn room(&mut self, task: TaskId, at: usize, end: usize) -> &mut [u8] {
        match self.buffers.get_mut(task) {
            Some(Collected::Buffer(buffer)) => {
                let end = end.min(buffer.len());
                buffer.get_mut(at.min(end)..end).unwrap_or_default()
            }
            _ => &mut [],
        }
    }

    fn take_buffer(&mut self, task: TaskId) -> Option<Collected> {
        if self.buffers.is_empty() {
            return None; // the usual case for reads
        }
        self.buffers.remove(task)
    }

    /// Plans a task of the unit behind `nexus`, if there is one: it then requests data, runs, is
    /// done, or waits for a limit. `permit` is its permit if it has entered its task set already.
    pub(crate) fn start(
        &mut self,
        command_context: &CommandContext<'_>,
        nexus: Option<&ItlNexus>,
        task: &Task,
        permit: Option<QueuedTaskPermit>,
    ) -> Option<Input> {
        match self.queue_unchecked(command_context.session, nexus, task) {
            Some(waits) => waits,
            None => self.check_command(command_context, nexus, task, permit, ThrottleStage::New),
        }
    }

    /// Checks a task, and runs it if no waiting is needed: most reads, and writes whose data came
    /// with them, end here.
    fn check_command(
        &mut self,
        command_context: &CommandContext<'_>,
        nexus: Option<&ItlNexus>,
        task: &Task,
        permit: Option<QueuedTaskPermit>,
        mut turn: ThrottleStage,
    ) -> Option<Input> {
        // Borrowed, because moving it costs as much as checking.
        let checked = check(command_context, nexus, task, self.relay.as_ref());
        let mut tried = None;
        if let (Some(nexus), Ok(accepted)) = (nexus, &checked) {
            let charged =
                self.charge(command_context.session, task, nexus, &accepted.work, &mut turn);
            if let ControlFlow::Break(waits) = charged {
                return waits;
            }
            if accepted.tries_now {
                match self.run_now(nexus, accepted, task, permit.as_ref()) {
                    ControlFlow::Break(data_in) => {
                        return Some(ended_at_once(task, accepted, data_in));
                    }
                    ControlFlow::Continue(data) => tried = data,
                }
            }
        }
        self.plan_accepted(command_context, nexus, task, (permit, turn), checked, tried)
    }

    /// Enters an accepted task into its task set, then begins it, or requests its data.
    #[inline(never)]
    fn plan_accepted(
        &mut self,
        command_context: &CommandContext<'_>,
        nexus: Option<&ItlNexus>,
        task: &Task,
        (permit, turn): (Option<QueuedTaskPermit>, ThrottleStage),
        checked: Result<AcceptedCommand, RefusedCommand>,
        tried: Option<CommandData>,
    ) -> Option<Input> {
        let unit = nexus.map(|nexus| &nexus.unit);
        let mut accepted = match checked {
            Ok(accepted) => accepted,
            Err(RefusedCommand { refusal, data_out_bytes }) => {
                return Some(with_data_out(self.refuse(task.id, unit, refusal), data_out_bytes));
            }
        };
        let Ok(reply_charge) = self.charge_reply(&mut accepted.work) else {
            drop(self.take_buffer(task.id));
            return Some(Input::Done { task: task.id, outcome: retry_later(Status::BUSY) });
        };
        if accepted.reports_luns {
            command_context.session.luns_were_reported(command_context.view);
        }
        let order =
            nexus.map(|nexus| permit.unwrap_or_else(|| nexus.task_set.enter(task.attribute)));
        drop(turn); // the next in the queue may go
        let planned = Planned {
            unit: unit.cloned(),
            cdb: task.cdb.clone(),
            wants_bytes: accepted.wants_bytes(),
            work: accepted.work,
            collect_bytes: accepted.collect_bytes,
            data_in_buffer_bytes: accepted.data_in_buffer_bytes,
            reads_in_pieces: accepted.reads_in_pieces,
            streams: accepted.streams,
            data_in_bytes: accepted.data_in_bytes,
            order,
            tries_now: accepted.tries_now,
            goes_out_of_turn: accepted.goes_out_of_turn,
            fenced: accepted.fenced,
            _reply_charge: reply_charge,
        };
        match tried {
            Some(data) => {
                drop(self.take_buffer(task.id));
                self.begin(command_context.session, task.id, planned, data)
            }
            None => self.go_on(command_context.session, task, planned),
        }
    }

    /// Continues a planned task: it requests data, waits for memory, or runs.
    fn go_on(&mut self, session: &Arc<Session>, task: &Task, planned: Planned) -> Option<Input> {
        if planned.streams {
            return self.begin_streams(session, task, planned);
        }
        if planned.collect_bytes > 0 {
            return self.collect(task.id, planned, self.data_out_bytes(task.expected_bytes));
        }
        drop(self.take_buffer(task.id));
        self.start_reading(session, task.id, planned)
    }

    /// Charges the answer of a command that has one already: it may be kept for long before it is
    /// sent. An answer that was cut to the allocation length gives the rest of its memory back.
    fn charge_reply(&self, work: &mut Work) -> Result<Option<MemoryCharge>, NoMemory> {
        match work {
            Work::Reply(reply) => {
                reply.shrink_to_fit();
                self.work.charge_reply(reply.capacity())
            }
            Work::Plan(_) | Work::Job(_) => Ok(None),
        }
    }

    /// Requests the data-out of a task as soon as there is room for it.
    fn collect(&mut self, task: TaskId, planned: Planned, buffer_bytes: usize) -> Option<Input> {
        match self.buffers.get(task) {
            Some(Collected::Buffer(_)) => {}
            Some(Collected::Refused) => {
                drop(self.take_buffer(task));
                return Some(Input::Done { task, outcome: retry_later(Status::TASK_SET_FULL) });
            }
            None => match self.data_out.try_take(buffer_bytes) {
                Some(buffer) => self.buffers.insert(task, Collected::Buffer(buffer)),
                None => {
                    self.data_out.wait(task, planned, buffer_bytes);
                    self.unpolled = true;
                    return None;
                }
            },
        }
        let bytes = planned.collect_bytes as u32;
        self.waiting.insert(task, planned);
        Some(Input::Wants { task, offset_bytes: 0, bytes })
    }

    /// Takes the buffer for the data-in of a task that needs one, or waits for it, then runs the
    /// task. The data-out of a bidirectional task is complete by then, and stays in its buffer.
    fn start_reading(
        &mut self,
        session: &Arc<Session>,
        task: TaskId,
        planned: Planned,
    ) -> Option<Input> {
        let Some(bytes) = planned.data_in_buffer_bytes else {
            return self.launch(session, task, planned, CommandData::None);
        };
        match self.data_in.try_take(bytes) {
            Some(data_in) => self.launch_reading(session, task, planned, data_in),
            None => {
                self.data_in.wait(task, planned, bytes);
                self.unpolled = true;
                None
            }
        }
    }

    /// Runs a task whose buffer for data-in has been taken.
    fn launch_reading(
        &mut self,
        session: &Arc<Session>,
        task: TaskId,
        planned: Planned,
        data_in: Buffer,
    ) -> Option<Input> {
        let data = match planned.collect_bytes {
            // Into the second buffer, if there is room for one, it reads while the first is sent.
            0 if planned.reads_in_pieces => {
                let second = self.data_in.try_take(READ_PIECE_BYTES);
                CommandData::Pieces(PieceReader::new(task, &self.inputs, data_in, second))
            }
            0 => CommandData::In(data_in),
            bytes => {
                let Some(Collected::Buffer(mut data_out)) = self.take_buffer(task) else {
                    let unit = planned.unit.as_ref();
                    return Some(self.refuse(task, unit, internal_failure().into()));
                };
                data_out.truncate(bytes);
                CommandData::Both { data_out, data_in }
            }
        };
        self.launch(session, task, planned, data)
    }

    /// The next input of the machine from tasks that continue, such as a piece of data.
    #[inline]
    pub(crate) fn next_input(&self) -> Option<Input> {
        self.inputs.pop()
    }

    /// True when tasks may wait that [`start_deferred`](Self::start_deferred) continues.
    #[inline]
    pub(crate) fn have_deferred(&self) -> bool {
        !(self.throttled.is_idle()
            && self.arrived.is_empty()
            && self.data_out.is_idle()
            && self.data_in.is_idle())
    }

    /// Continues tasks that had to wait, as far as there is room now and in this turn: if some of
    /// them are done at once, the others are left for the next turn.
    #[cold]
    pub(crate) fn start_deferred(
        &mut self,
        session: &Arc<Session>,
        context: &mut Context<'_>,
    ) -> Vec<Input> {
        let mut done = self.start_passed(session);
        for (task, planned) in std::mem::take(&mut self.arrived) {
            done.extend(self.collect(task, planned, 0));
        }
        while let Some(admitted) = self.data_out.poll_next(context) {
            done.extend(match admitted {
                Admitted::Buffer(task, planned, buffer) => {
                    self.buffers.insert(task, Collected::Buffer(buffer));
                    self.collect(task, planned, 0)
                }
                Admitted::TimedOut(task, planned, why) => Some(no_memory(task, &planned, why)),
            });
        }
        let mut read_bytes_done = done.iter().map(data_in_bytes).sum::<usize>();
        while read_bytes_done < TURN_BYTES
            && let Some(admitted) = self.data_in.poll_next(context)
        {
            let ended = match admitted {
                Admitted::Buffer(task, planned, buffer) => {
                    self.launch_reading(session, task, planned, buffer)
                }
                Admitted::TimedOut(task, planned, why) => {
                    drop(self.take_buffer(task));
                    Some(no_memory(task, &planned, why))
                }
            };
            let inputs = done.len();
            done.extend(std::iter::from_fn(|| self.inputs.pop()));
            done.extend(ended);
            read_bytes_done += done[inputs..].iter().map(data_in_bytes).sum::<usize>();
        }
        done
    }

    /// Runs a task whose data-out is complete.
    pub(crate) fn run(&mut self, session: &Arc<Session>, task: TaskId) -> Option<Input> {
        let planned = self.waiting.remove(task)?;
        if planned.data_in_buffer_bytes.is_some() {
            return self.start_reading(session, task, planned);
        }
        let Some(Collected::Buffer(mut buffer)) = self.take_buffer(task) else {
            return Some(self.refuse(task, planned.unit.as_ref(), internal_failure().into()));
        };
        buffer.truncate(planned.collect_bytes);
        self.launch(session, task, planned, CommandData::Out(buffer))
    }

    /// Runs a task as far as no waiting is needed.
    fn launch(
        &mut self,
        session: &Arc<Session>,
        task: TaskId,
        planned: Planned,
        mut data: CommandData,
    ) -> Option<Input> {
        if !planned.try_now(&mut data) {
            return self.begin(session, task, planned, data);
        }
        let Planned { wants_bytes, data_in_bytes, fenced, .. } = planned;
        let outcome = Outcome { data_in_bytes, ..good(data.into_reply(), wants_bytes, fenced) };
        Some(Input::Done { task, outcome })
    }

    /// Runs a task that may have to wait.
    fn begin(
        &mut self,
        session: &Arc<Session>,
        task: TaskId,
        planned: Planned,
        data: CommandData,
    ) -> Option<Input> {
        let abort = AbortSignal::new(&self.awaited);
        self.begin_with(session, task, planned, data, abort)
    }

    /// Runs a task with this signal that may have to wait.
    #[inline(always)]
    fn begin_with(
        &mut self,
        session: &Arc<Session>,
        task: TaskId,
        planned: Planned,
        data: CommandData,
        abort: AbortSignal,
    ) -> Option<Input> {
        lunar_net::mark_costly();
        let unit = planned.unit.clone();
        if !self.running_charge.may_begin(self.begun()) {
            return Some(self.refuse(task, unit.as_ref(), Refusal::Busy));
        }
        let goes_out_of_turn = planned.goes_out_of_turn;
        let host = (Arc::clone(&self.services), Arc::clone(session));
        let mut future = run(host, self.work.clone(), abort.clone(), task, planned, data);
        debug_assert!(size_of_val(&*future) < running_charge::COMMAND_BYTES);
        if let Some(ExecutionEnd(FutureEnd::TaskResult(ran))) = (&mut future).now_or_never() {
            return Some(Input::Done { task, outcome: outcome(ran, unit.as_ref()) });
        }
        self.running
            .insert(task, Running { unit, abort, aborted: false, failed: None, stream: None });
        let begun = Begun::new(task, future);
        if goes_out_of_turn { &mut self.out_of_turn } else { &mut self.futures }.push(begun);
        self.unpolled = true;
        None
    }

    /// The unit of a task that was started and is not over.
    pub(crate) fn unit_of(&self, task: TaskId) -> Option<&Arc<dyn Unit>> {
        let deferred = || self.data_in.find(task).or_else(|| self.data_out.find(task));
        let arrived = || self.arrived.iter().find(|(id, _)| *id == task).map(|(_, its)| its);
        match self.running.get(&task) {
            Some(running) => running.unit.as_ref(),
            None => match self.waiting.get(task).or_else(deferred).or_else(arrived) {
                Some(planned) => planned.unit.as_ref(),
                None => self.throttled.unit_of(task),
            },
        }
    }

    /// Ends a task that failed before it could run, as [`abort`](Self::abort) does.
    pub(crate) fn fail(
        &mut self,
        task: TaskId,
        unit: Option<&Arc<dyn Unit>>,
        fault: TransferFault,
    ) -> Option<Input> {
        let (key, code) = fault.sense();
        if let Some(stream) = self.stream_of(task) {
            stream.end(StreamEnd::TransferFailed); // counts before the abort
        }
        let outcome = check_condition(unit, &Sense::new(SenseKey(key), code));
        if self.abort(task).is_some() {
            return Some(Input::Failed { task, outcome });
        }
        if let Some(running) = self.running.get_mut(&task) {
            running.failed = Some(outcome);
        }
        None
    }

    /// Aborts a task: at once if it does not run or only waits or reads; otherwise when it ends by
    /// itself, or is detached a moment later ([`crate::detached_writes`]).
    pub(crate) fn abort(&mut self, task: TaskId) -> Option<Input> {
        drop(self.take_buffer(task));
        self.waiting.remove(task);
        self.data_in.remove(task);
        self.data_out.remove(task);
        self.arrived.retain(|(arrived, _)| *arrived != task);
        self.throttled.abort(task);
        if let Some(running) = self.running.get_mut(&task) {
            running.aborted = true;
            if let Some(stream) = &running.stream {
                stream.end(StreamEnd::Aborted);
            }
            running.abort.raise();
            self.has_new_aborts = true;
            return None;
        }
        Some(Input::Done { task, outcome: Outcome::default() })
    }

    /// True when commands run, or have ended and were not yet taken.
    pub(crate) fn have_begun(&mut self) -> bool {
        self.unpolled = false;
        !(self.futures.is_empty() && self.ended.is_empty())
    }

    /// The next running task that has ended.
    pub(crate) fn poll_finished(&mut self, context: &mut Context<'_>) -> Option<Input> {
        self.unpolled = false;
        let ran = loop {
            if let Some(ran) = self.ended.pop_front() {
                break ran;
            }
            if self.futures.is_empty() {
                return None;
            }
            match Pin::new(&mut self.futures).poll_next(context) {
                Poll::Ready(Some(FutureEnd::TaskResult(ran))) => break ran,
                Poll::Ready(Some(ended)) => self.take_in(ended),
                Poll::Ready(None) | Poll::Pending => return None,
            }
        };
        self.finish(ran)
    }

    fn refuse(&mut self, task: TaskId, unit: Option<&Arc<dyn Unit>>, refusal: Refusal) -> Input {
        drop(self.take_buffer(task));
        let outcome = match refusal {
            Refusal::Check(sense) => check_condition(unit, &sense),
            Refusal::ReservationConflict => {
                Outcome { status: Status::RESERVATION_CONFLICT.0, ..Outcome::default() }
            }
            Refusal::Busy => retry_later(Status::BUSY),
        };
        Input::Done { task, outcome }
    }
}

/// The end of a task that has run as it was accepted.
#[inline]
fn ended_at_once(task: &Task, accepted: &AcceptedCommand, data_in: Bytes) -> Input {
    let outcome = good(data_in, accepted.wants_bytes(), accepted.fenced);
    let outcome = Outcome { data_in_bytes: accepted.data_in_bytes, ..outcome };
    Input::Done { task: task.id, outcome }
}

/// Number of data bytes that a task sends.
pub(crate) fn data_in_bytes(input: &Input) -> usize {
    match input {
        Input::DataIn { data, .. } => data.len(),
        Input::Done { outcome, .. } => outcome.data_in.len(),
        _ => 0,
    }
}

/// Checks a task of the unit of `nexus`, or of a LUN without a unit.
#[inline]
fn check(
    command_context: &CommandContext<'_>,
    nexus: Option<&ItlNexus>,
    task: &Task,
    relay: Option<&Rc<dyn ConnectionRelay>>,
) -> Result<AcceptedCommand, RefusedCommand> {
    let CommandContext { session, view } = *command_context;
    let Some(nexus) = nexus else { return check_without_unit(session, view, task) };
    nexus.unit.check(&ArrivedCommand {
        cdb: &task.cdb,
        expected_data_out_bytes: task.expected_data_out_bytes(),
        expected_data_in_bytes: task.expected_data_in_bytes(),
        session,
        view,
        nexus,
        relay,
    })
}

/// Checks a task of a LUN without a unit.
#[cold]
fn check_without_unit(
    session: &Session,
    view: &View,
    task: &Task,
) -> Result<AcceptedCommand, RefusedCommand> {
    let context = session.context(view);
    let planned = lunar_scsi::unit::absent_unit_plan(task.lun, &context, &task.cdb)?;
    let Plan::Reply(reply) = planned else { return Err(internal_failure().into()) };
    let row = commands::row(&task.cdb);
    Ok(AcceptedCommand {
        fenced: row.is_some_and(|command| command.fenced),
        reports_luns: row.is_some_and(|command| command.reports_luns),
        ..AcceptedCommand::new(Work::Reply(reply))
    })
}

/// The session that sent a command, and its view.
pub(crate) struct CommandContext<'a> {
    pub(crate) session: &'a Arc<Session>,
    pub(crate) view: &'a View,
}

/// Runs a task, which has begun when the future is polled.
fn run(
    host: (Arc<TaskServices>, Arc<Session>),
    memory: WorkMemory,
    abort: AbortSignal,
    task: TaskId,
    mut planned: Planned,
    data: CommandData,
) -> ExecutionFuture {
    let unit = planned.unit.take();
    let (execution, work) = Execution::new(host, memory, abort, task, planned, data);
    match (work, unit) {
        (Work::Reply(reply), _) => execution.answer(reply),
        (Work::Plan(plan), Some(unit)) => unit.run(plan, execution),
        (Work::Plan(_), None) => execution.fail(),
        (Work::Job(job), _) => job.run(execution),
    }
}
