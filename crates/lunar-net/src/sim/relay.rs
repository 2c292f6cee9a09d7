//! [`TestRelay`]: passes the commands of a host on to storage targets, in one group of sockets.

use super::initiator_socket::Requester;
use super::target_socket::TaskExecutor;
use crate::{InFlightBytes, InFlightMeter};
use bytes::Bytes;
use lunar_iscsi::connection::initiator::{
    Command, CommandResult, Input as InitiatorInput, Management, RequestFailure, Residual,
    StreamingCommand,
};
use lunar_iscsi::connection::target::{Input as TargetInput, Outcome, Task, TransferFault};
use lunar_iscsi::framing::TaskId;
use lunar_iscsi::pdu::{LogoutReason, ManagementFunction, TaskAttribute};
use lunar_wire::{Lun, LunForm};
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// Limits of the bytes in flight of each direction: requested or arrived, and not taken by the
/// socket that they are passed on to.
#[derive(Clone, Copy, Debug)]
pub struct RelayLimits {
    /// Of a task.
    pub task_bytes_max: usize,
    /// Of a storage target's connection; it should be enough for several tasks. The host's
    /// connection has as much for each storage target, so a slow one stops no other.
    pub connection_bytes_max: usize,
    /// Longest range of data-out that is requested from the host at once.
    pub range_bytes_max: usize,
    /// Longest data segment of a storage target: MaxRecvDataSegmentLength of the relay.
    pub segment_bytes_max: usize,
}

impl Default for RelayLimits {
    fn default() -> Self {
        Self {
            task_bytes_max: 1 << 20,
            connection_bytes_max: 4 << 20,
            range_bytes_max: 256 << 10,
            segment_bytes_max: 256 << 10,
        }
    }
}

/// State that the handlers of a host's socket and of its storage targets' sockets share. LUN 1 lies
/// on LUN 1 of the first storage target, LUN 2 on LUN 1 of the second one, and so on.
#[derive(Clone, Debug)]
pub struct TestRelay(Rc<RefCell<RelayState>>);

/// The executor of the host's [`TargetSocket`](super::TargetSocket).
#[derive(Debug)]
pub struct RelayedHost(TestRelay);

/// The requester of a storage target's [`InitiatorSocket`](super::InitiatorSocket).
#[derive(Debug)]
pub struct RelayedStorage {
    relay: TestRelay,
    index: usize,
}

#[derive(Debug)]
struct RelayState {
    limits: RelayLimits,
    /// Added to the ids of the host's tasks: ids of a storage target's connection are not reused.
    id_base: u64,
    keeps_storage: bool,
    tasks: BTreeMap<TaskId, RelayedTask>,
    to_host: InputQueue<TargetInput>,
    storage: Vec<StorageState>,
    is_host_gone: bool,
    functions: u64,
}

#[derive(Debug)]
struct StorageState {
    inputs: InputQueue<InitiatorInput>,
    data_out: Arc<InFlightMeter>,
    data_in: Arc<InFlightMeter>,
    is_lost: bool,
}

/// Inputs of a machine, and the waker of its socket's driver.
#[derive(Debug)]
struct InputQueue<T> {
    inputs: VecDeque<T>,
    waker: Option<Waker>,
}

impl<T> Default for InputQueue<T> {
    fn default() -> Self {
        Self { inputs: VecDeque::new(), waker: None }
    }
}

impl<T> InputQueue<T> {
    fn push(&mut self, input: T) {
        self.inputs.push_back(input);
        self.wake();
    }

    fn wake(&mut self) {
        self.waker.take().into_iter().for_each(Waker::wake);
    }

    fn poll(&mut self, context: &Context<'_>) -> Poll<T> {
        match self.inputs.pop_front() {
            Some(input) => Poll::Ready(input),
            None => {
                self.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

/// A command that is passed on.
#[derive(Debug)]
struct RelayedTask {
    storage: usize,
    expected_out_bytes: u32,
    expected_in_bytes: u32,
    data_out: Arc<InFlightMeter>,
    data_in: Arc<InFlightMeter>,
    /// Ranges that the storage target asked for and that were not requested: start and end.
    wanted: VecDeque<(u32, u32)>,
    /// Data-out that was requested and has not arrived.
    requested: Option<InFlightBytes>,
    /// The segment of data-in that is arriving.
    arriving: Option<InFlightBytes>,
    /// Set when the host's machine has ended the task, with the fault of its transfer.
    end: Option<Option<TransferFault>>,
}

impl TestRelay {
    /// Creates a relay of a host without storage targets. `number` is different for each relay that
    /// uses a storage target's connection after another. With `keeps_storage`, these connections
    /// are handed back when the host's has ended; otherwise they are logged out.
    pub fn new(limits: RelayLimits, number: u16, keeps_storage: bool) -> Self {
        Self(Rc::new(RefCell::new(RelayState {
            limits,
            id_base: u64::from(number) << 32,
            keeps_storage,
            tasks: BTreeMap::new(),
            to_host: InputQueue::default(),
            storage: Vec::new(),
            is_host_gone: false,
            functions: 0,
        })))
    }

    /// Returns the executor of the host's connection.
    pub fn host(&self) -> RelayedHost {
        RelayedHost(self.clone())
    }

    /// Adds a storage target; returns the requester of its connection.
    pub fn add_storage(&self) -> RelayedStorage {
        let mut state = self.0.borrow_mut();
        let meter = || InFlightMeter::for_connection(state.limits.connection_bytes_max);
        let inputs = InputQueue::default();
        let added = StorageState { inputs, data_out: meter(), data_in: meter(), is_lost: false };
        state.storage.push(added);
        RelayedStorage { relay: self.clone(), index: state.storage.len() - 1 }
    }

    /// Number of tasks that have not ended.
    pub fn tasks(&self) -> usize {
        self.0.borrow().tasks.len()
    }

    /// The bytes in flight of a storage target's connection: data-out and data-in.
    pub fn in_flight(&self, storage: usize) -> [Arc<InFlightMeter>; 2] {
        let storage = &self.0.borrow().storage[storage];
        [Arc::clone(&storage.data_out), Arc::clone(&storage.data_in)]
    }

    /// The most that was in flight for one of the tasks that have not ended.
    pub fn most_bytes_of_a_task(&self) -> usize {
        let state = self.0.borrow();
        let meters = state.tasks.values().flat_map(|task| [&task.data_out, &task.data_in]);
        meters.map(|meter| meter.peak_bytes()).max().unwrap_or_default()
    }

    /// True while nothing is received from a storage target because its data cannot be passed on.
    pub fn is_held(&self, storage: usize) -> bool {
        !self.0.borrow().may_receive(storage)
    }
}

impl RelayedStorage {
    /// Index of the storage target in its relay.
    pub fn index(&self) -> usize {
        self.index
    }
}

impl RelayState {
    fn start(&mut self, task: &Task) {
        let storage = match task.lun.form() {
            LunForm::Unit(number) => usize::from(number).wrapping_sub(1),
            _ => usize::MAX,
        };
        let Some(to) = self.storage.get_mut(storage).filter(|storage| !storage.is_lost) else {
            return self.to_host.push(TargetInput::Done { task: task.id, outcome: lost() });
        };
        let meter = |counts| InFlightMeter::for_task(self.limits.task_bytes_max, counts);
        let relayed = RelayedTask {
            storage,
            expected_out_bytes: task.expected_data_out_bytes(),
            expected_in_bytes: task.expected_data_in_bytes(),
            data_out: meter(&to.data_out),
            data_in: meter(&to.data_in),
            wanted: VecDeque::new(),
            requested: None,
            arriving: None,
            end: None,
        };
        let command = Command {
            id: TaskId(task.id.0 + self.id_base),
            lun: Lun::new(1),
            cdb: (&*task.cdb).into(),
            attribute: TaskAttribute::SIMPLE,
            priority: 0,
            data_out: Bytes::new(),
            data_in_bytes_max: relayed.expected_in_bytes,
            immediate: false,
        };
        let data_out_bytes = relayed.expected_out_bytes;
        let command = StreamingCommand { command, data_out_bytes, prefix_digest: None };
        to.inputs.push(InitiatorInput::Stream(Box::new(command)));
        self.tasks.insert(task.id, relayed);
    }

    /// Requests data-out from the host, as far as its limits allow.
    fn request(&mut self, id: TaskId) {
        let Some(task) = self.tasks.get_mut(&id).filter(|task| task.end.is_none()) else { return };
        while let Some((start, end)) = task.wanted.front_mut() {
            let bytes = ((*end - *start) as usize).min(self.limits.range_bytes_max);
            let Some(added) = task.data_out.try_add(bytes) else { return };
            match &mut task.requested {
                Some(requested) => requested.merge(added),
                requested => *requested = Some(added),
            }
            let (offset_bytes, bytes) = (*start, bytes as u32);
            self.to_host.push(TargetInput::Wants { task: id, offset_bytes, bytes });
            *start += bytes;
            if start == end {
                task.wanted.pop_front();
            }
        }
    }

    /// Requests what has become possible; if something has to wait, the driver of `context` is
    /// woken when bytes leave.
    fn request_all(&mut self, context: &Context<'_>) {
        let waiting = |task: &RelayedTask| !task.wanted.is_empty() && task.end.is_none();
        let ids: Vec<_> =
            self.tasks.iter().filter(|(_, task)| waiting(task)).map(|(id, _)| *id).collect();
        for id in ids {
            if let Some(task) = self.tasks.get(&id) {
                self.storage[task.storage].data_out.wait(context);
            }
            self.request(id);
        }
    }

    /// A further segment must fit the limits of any task. Data of tasks that have ended is dropped.
    fn may_receive(&self, storage: usize) -> bool {
        let segment = self.limits.segment_bytes_max;
        let reads = |task: &&RelayedTask| {
            task.storage == storage && task.expected_in_bytes > 0 && task.end.is_none()
        };
        let is_arriving = |task: &RelayedTask| task.arriving.is_some();
        let fits = |task: &RelayedTask| task.data_in.room_bytes() >= segment;
        let mut reads = self.tasks.values().filter(reads);
        reads.clone().any(is_arriving) || reads.all(fits)
    }

    fn end(&mut self, id: TaskId, fault: Option<TransferFault>) {
        let Some(task) = self.tasks.get_mut(&id) else {
            return self.to_host.push(ended(id, fault));
        };
        (task.end, task.requested) = (Some(fault), None);
        self.functions += 1;
        let management = Management {
            id: TaskId(self.id_base + (1 << 31) + self.functions),
            function: ManagementFunction::ABORT_TASK,
            lun: Lun::new(1),
            referenced: Some(TaskId(id.0 + self.id_base)),
        };
        let storage = &mut self.storage[task.storage];
        storage.inputs.push(InitiatorInput::Manage(management));
    }

    fn completed(&mut self, id: TaskId, result: Result<CommandResult, RequestFailure>) {
        let Some(task) = self.tasks.remove(&id) else { return };
        let input = match (task.end, result) {
            (Some(fault), _) => ended(id, fault),
            (None, Ok(result)) => TargetInput::Done { task: id, outcome: outcome(&task, result) },
            (None, Err(_)) => TargetInput::Done { task: id, outcome: lost() },
        };
        self.to_host.push(input);
        self.end_storage(task.storage);
    }

    /// Once the host is gone and no task is left, logs a storage target out, unless it is kept.
    fn end_storage(&mut self, index: usize) {
        if !self.is_done_with(index) || self.storage[index].is_lost {
            return;
        }
        let logout = InitiatorInput::Logout { reason: LogoutReason::CLOSE_SESSION, cid: None };
        let storage = &mut self.storage[index];
        if self.keeps_storage {
            storage.inputs.wake();
        } else {
            storage.inputs.push(logout);
        }
    }

    fn is_done_with(&self, storage: usize) -> bool {
        self.is_host_gone && self.tasks.values().all(|task| task.storage != storage)
    }
}

impl TaskExecutor for RelayedHost {
    fn start(&mut self, task: &Task) {
        self.0.0.borrow_mut().start(task);
    }
    fn begin_segment(&mut self, task: TaskId, _bytes: u32) -> bool {
        self.0.0.borrow().tasks.get(&task).is_some_and(|task| task.end.is_none())
    }
    fn data_out(&mut self, task: TaskId, offset_bytes: u32, data: Vec<u8>) {
        let state = &mut *self.0.0.borrow_mut();
        let Some(relayed) = state.tasks.get_mut(&task) else { return };
        let Some(requested) = &mut relayed.requested else { return };
        let data = requested.split(data.len()).attach(data);
        let id = TaskId(task.0 + state.id_base);
        state.storage[relayed.storage].inputs.push(InitiatorInput::DataOut {
            id,
            offset_bytes,
            data,
            digest: None,
        });
    }
    fn end(&mut self, task: TaskId, fault: Option<TransferFault>) {
        self.0.0.borrow_mut().end(task, fault);
    }
    fn poll_input(&mut self, context: &mut Context<'_>) -> Poll<TargetInput> {
        let mut state = self.0.0.borrow_mut();
        state.request_all(context);
        state.to_host.poll(context)
    }
    fn closed(&mut self) {
        let state = &mut *self.0.0.borrow_mut();
        state.is_host_gone = true;
        (0..state.storage.len()).for_each(|index| state.end_storage(index));
    }
}

impl Requester for RelayedStorage {
    fn poll_input(&mut self, context: &mut Context<'_>) -> Poll<InitiatorInput> {
        let mut state = self.relay.0.borrow_mut();
        if !state.may_receive(self.index) {
            state.storage[self.index].data_in.wait(context);
        }
        state.storage[self.index].inputs.poll(context)
    }
    fn wants(&mut self, id: TaskId, offset_bytes: u32, bytes: u32) {
        let state = &mut *self.relay.0.borrow_mut();
        let id = TaskId(id.0 - state.id_base);
        let Some(task) = state.tasks.get_mut(&id) else { return };
        task.wanted.push_back((offset_bytes, offset_bytes + bytes));
        // The host's driver requests it, and waits if there is no room.
        state.to_host.wake();
    }
    fn begin_segment(&mut self, id: TaskId, bytes: u32) -> bool {
        let state = &mut *self.relay.0.borrow_mut();
        let id = TaskId(id.0 - state.id_base);
        let Some(task) = state.tasks.get_mut(&id) else { return false };
        let take = || task.data_in.try_add(bytes as usize).expect("bytes within the limits");
        task.arriving = task.end.is_none().then(take);
        task.arriving.is_some()
    }
    fn data_in(&mut self, id: TaskId, offset_bytes: u32, data: Vec<u8>) {
        let state = &mut *self.relay.0.borrow_mut();
        let task = TaskId(id.0 - state.id_base);
        let relayed = state.tasks.get_mut(&task).filter(|task| task.end.is_none());
        let Some(arriving) = relayed.and_then(|task| task.arriving.take()) else { return };
        let data = arriving.attach(data);
        state.to_host.push(TargetInput::DataIn { task, offset_bytes, data, digest: None });
    }
    fn completed(&mut self, id: TaskId, result: Result<CommandResult, RequestFailure>) {
        let state = &mut *self.relay.0.borrow_mut();
        state.completed(TaskId(id.0.wrapping_sub(state.id_base)), result);
    }
    fn may_receive(&self) -> bool {
        self.relay.0.borrow().may_receive(self.index)
    }
    fn is_detaching(&self) -> bool {
        let state = self.relay.0.borrow();
        state.keeps_storage && state.is_done_with(self.index)
    }
    fn closed(&mut self) {
        let state = &mut *self.relay.0.borrow_mut();
        let storage = &mut state.storage[self.index];
        storage.is_lost = true;
        storage.inputs.inputs.clear();
        let its = |(id, task): (&TaskId, &RelayedTask)| (task.storage == self.index).then_some(*id);
        let unsent: Vec<_> = state.tasks.iter().filter_map(its).collect();
        unsent.into_iter().for_each(|id| state.completed(id, Err(RequestFailure::Lost)));
    }
}

/// CHECK CONDITION with ABORTED COMMAND: the storage target is gone, or did not execute the
/// command.
fn lost() -> Outcome {
    sense(0x0b, 0x0000)
}

/// The end of a task that the host's machine has ended.
fn ended(task: TaskId, fault: Option<TransferFault>) -> TargetInput {
    match fault {
        None => TargetInput::Done { task, outcome: Outcome::default() },
        Some(fault) => {
            let (key, code) = fault.sense();
            TargetInput::Failed { task, outcome: sense(key, code) }
        }
    }
}

fn sense(key: u8, code: u16) -> Outcome {
    let mut sense = [0; 18];
    let [code, qualifier] = code.to_be_bytes();
    (sense[0], sense[2], sense[7], sense[12], sense[13]) = (0x70, key, 10, code, qualifier);
    Outcome { status: 2, sense: Bytes::copy_from_slice(&sense), ..Outcome::default() }
}

/// The outcome for the host, with the residual of the storage target.
fn outcome(task: &RelayedTask, result: CommandResult) -> Outcome {
    let moved = |expected_bytes: u32, residual| match residual {
        Residual::None => expected_bytes,
        Residual::Underflow(bytes) => expected_bytes.saturating_sub(bytes),
        Residual::Overflow(bytes) => expected_bytes.saturating_add(bytes),
    };
    let writes = task.expected_out_bytes > 0;
    let in_residual = if writes { result.read_residual } else { result.residual };
    Outcome {
        status: result.status,
        status_qualifier: result.status_qualifier,
        sense: result.sense,
        data_in_bytes: moved(task.expected_in_bytes, in_residual),
        data_out_bytes: moved(task.expected_out_bytes, result.residual),
        ..Outcome::default()
    }
}
