//! A command that runs: its turn in its task set, its data, and what it may use of the target.

use super::{FutureEnd, Planned, TaskResult, TaskServices};
use crate::abort::{AbortSignal, Aborted};
use crate::memory::{NoMemory, WorkMemory};
use crate::plan_result::{PlanResult, internal_failure};
use crate::quota::QuotaCharge;
use crate::session::Session;
use crate::task_set::QueuedTaskPermit;
use crate::unit::{CommandData, Work};
use futures_util::future::LocalBoxFuture;
use lunar_block::{Buffer, MemoryCharge};
use lunar_iscsi::connection::target::HeaderCdb;
use lunar_iscsi::framing::TaskId;
use lunar_scsi::plan::NexusId;
use std::fmt;
use std::sync::Arc;

/// A command that runs, until its end.
pub type ExecutionFuture = LocalBoxFuture<'static, ExecutionEnd>;

/// End of a command that has run: [`Execution::end`] creates it.
pub struct ExecutionEnd(pub(super) FutureEnd);

impl fmt::Debug for ExecutionEnd {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("ExecutionEnd")
    }
}

/// A checked command that runs at its unit.
///
/// Its future calls [`begin`](Self::begin) first, and [`end`](Self::end) last. When the command is
/// aborted it has no further effect: its waits end with [`Aborted`], and so does the command
/// ([`PlanResult::Aborted`]).
pub struct Execution {
    pub(crate) services: Arc<TaskServices>,
    pub(crate) session: Arc<Session>,
    pub(crate) memory: WorkMemory,
    pub(crate) abort: AbortSignal,
    pub(crate) cdb: HeaderCdb,
    /// Quota account of the command, with its permit in the task set; empty before it begins.
    pub(crate) quota_charge: QuotaCharge,
    task: TaskId,
    order: Option<QueuedTaskPermit>,
    data: CommandData,
    wants_bytes: u32,
    data_in_bytes: u32,
    fenced: bool,
    _reply_charge: Option<MemoryCharge>,
}

impl fmt::Debug for Execution {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Execution").field("task", &self.task).finish_non_exhaustive()
    }
}

impl Execution {
    /// The execution of a planned task with its data, and its work.
    pub(super) fn new(
        (services, session): (Arc<TaskServices>, Arc<Session>),
        memory: WorkMemory,
        abort: AbortSignal,
        task: TaskId,
        planned: Planned,
        data: CommandData,
    ) -> (Self, Work) {
        let Planned { cdb, work, wants_bytes, data_in_bytes, order, fenced, .. } = planned;
        let execution = Self {
            services,
            session,
            memory,
            abort,
            cdb,
            quota_charge: QuotaCharge::default(),
            task,
            order,
            data,
            wants_bytes,
            data_in_bytes,
            fenced,
            _reply_charge: planned._reply_charge,
        };
        (execution, work)
    }

    /// Waits for the turn of the command in its task set; returns its data. It may have an effect
    /// from then on. To be called once.
    ///
    /// # Errors
    /// The command was aborted.
    pub async fn begin(&mut self) -> Result<CommandData, Aborted> {
        let permit = match self.order.take() {
            Some(order) => Some(self.abort.unless(order.granted()).await?),
            None => None,
        };
        self.quota_charge = QuotaCharge::of(&self.session, permit);
        Ok(std::mem::take(&mut self.data))
    }

    /// True if the data moves while the command runs.
    pub(crate) fn streams(&self) -> bool {
        matches!(self.data, CommandData::Streams(_))
    }

    /// The nexus that has sent the command.
    pub fn nexus(&self) -> NexusId {
        self.session.nexus
    }

    /// Waits for `work`, which is dropped if the command is aborted.
    ///
    /// # Errors
    /// The command was aborted.
    pub async fn unless_aborted<T>(&self, work: impl Future<Output = T>) -> Result<T, Aborted> {
        self.abort.unless(work).await
    }

    /// Takes a buffer of `bytes` from the memory of the command's owner, as soon as there is room
    /// for it. The caller must hold nothing that other commands may wait for.
    ///
    /// # Errors
    /// The result with which the command is to end.
    pub async fn take_buffer(&self, bytes: usize) -> Result<Buffer, PlanResult> {
        self.memory.take(bytes, &self.abort).await.map_err(|why| match why {
            NoMemory::Aborted => PlanResult::Aborted,
            NoMemory::TimedOut => PlanResult::Busy,
        })
    }

    /// Ends the command.
    pub fn end(self, result: PlanResult) -> ExecutionEnd {
        let Self { task, wants_bytes, data_in_bytes, fenced, .. } = self;
        let ran = TaskResult { task, result, wants_bytes, data_in_bytes, fenced };
        ExecutionEnd(FutureEnd::TaskResult(ran))
    }

    /// Answers GOOD with `reply` when the command's turn has come.
    pub(super) fn answer(mut self, reply: Vec<u8>) -> ExecutionFuture {
        Box::pin(async move {
            let result = match self.begin().await {
                Ok(_) => PlanResult::Good(self.memory.reply(reply)),
                Err(Aborted) => PlanResult::Aborted,
            };
            self.end(result)
        })
    }

    /// Ends the command with an internal failure.
    pub(crate) fn fail(self) -> ExecutionFuture {
        Box::pin(async move { self.end(PlanResult::Check(internal_failure())) })
    }
}
