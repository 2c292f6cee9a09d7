//! The thread of a store: plans commands, and commits them in groups.

use super::checkpoint::RunningCheckpoint;
use super::plan::{CommandPlanner, PlanBase, PlannedChanges};
use super::{ChangeJob, JobResult, ObjectCommandResult, SharedStore, StoreJob};
use crate::StoreError;
use crate::format::{LogGroup, RowKey};
use crate::log::LogRing;
use crate::objects::{ObjectMap, ReclaimCursor};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use tokio::sync::mpsc::{Receiver, WeakSender};
use tokio::sync::oneshot;

/// Maximum number of jobs that are taken from the queue together.
const GROUP_JOBS_MAX: usize = 128;

/// The owner of the log.
#[derive(Debug)]
pub(super) struct Committer {
    pub(super) shared: Arc<SharedStore>,
    pub(super) log: LogRing,
    /// Blocks that were freed since the last checkpoint began.
    pub(super) freed: Vec<Range<u64>>,
    /// Blocks that were freed before a checkpoint, and the readers that may still read them.
    pub(super) retired: VecDeque<(Arc<()>, Vec<Range<u64>>)>,
    /// Freed blocks whose space the device has not got back; parts may be in use again.
    pub(super) unmaps: VecDeque<Range<u64>>,
    /// The checkpoint in progress.
    pub(super) running: Option<RunningCheckpoint>,
    /// Callers that wait for a checkpoint that has not begun.
    pub(super) requested: Vec<oneshot::Sender<JobResult<()>>>,
    /// True if the device has made all records durable.
    pub(super) is_flushed: bool,
    /// True if rows of removed objects may be left.
    pub(super) has_removed: bool,
    pub(super) reclaim_cursor: ReclaimCursor,
    /// The failure that ended all changes.
    pub(super) stopped: Option<Arc<str>>,
    /// The queue of the thread, for a checkpoint that ends.
    pub(super) wake: Option<WeakSender<StoreJob>>,
}

/// The caller of a job and the results that it gets if the group is committed.
type WaitingCaller =
    (oneshot::Sender<JobResult<Vec<ObjectCommandResult>>>, Vec<ObjectCommandResult>);

/// An obstacle that can be removed before a command is planned again.
enum PlanObstacle {
    NoSpace,
    TooLarge,
}

/// Commands that were planned together, and those who wait for them.
#[derive(Default)]
struct PlannedGroup {
    changes: PlannedChanges,
    durable: bool,
    waiting: Vec<WaitingCaller>,
    /// The obstacle of the next command.
    obstacle: Option<PlanObstacle>,
}

pub(super) fn reply<T>(done: oneshot::Sender<T>, result: T) {
    // The caller may have stopped waiting.
    drop(done.send(result));
}

impl Committer {
    /// Does the work of `queue` until it is closed.
    pub(super) fn run(mut self, mut queue: Receiver<StoreJob>, wake: WeakSender<StoreJob>) {
        self.wake = Some(wake);
        let mut pending = VecDeque::new();
        loop {
            if pending.is_empty() {
                match self.next_job(&mut queue) {
                    Some(job) => pending.push_back(job),
                    None => break,
                }
            }
            while pending.len() < GROUP_JOBS_MAX {
                let Ok(job) = queue.try_recv() else { break };
                pending.push_back(job);
            }
            self.poll_checkpoint();
            if !self.run_next(&mut pending) {
                break;
            }
        }
        // Its failure is that of later commands, which nobody sends any more.
        drop(self.wait_for_checkpoint());
        self.shared.close();
    }

    /// Does the first of the jobs. Returns false after the last job of the store.
    fn run_next(&mut self, pending: &mut VecDeque<StoreJob>) -> bool {
        match pending.pop_front() {
            Some(StoreJob::Execute(job)) => {
                pending.push_front(StoreJob::Execute(job));
                self.commit_group(pending);
            }
            Some(StoreJob::CopyPartition { source, target, options, done }) => {
                reply(done, self.copy_partition(source, target, options));
            }
            Some(StoreJob::Flush(done)) => reply(done, self.flush()),
            Some(StoreJob::Checkpoint(done)) => self.request_checkpoint(done),
            Some(StoreJob::Reclaim(done)) => {
                self.reclaim();
                reply(done, self.check().map(|()| self.has_removed));
            }
            Some(StoreJob::Close(done)) => {
                let result = self.finish();
                self.shared.close();
                reply(done, result);
                return false;
            }
            Some(StoreJob::CheckpointDone) | None => {}
        }
        true
    }

    fn commit_group(&mut self, pending: &mut VecDeque<StoreJob>) {
        // A failure stops the store, and each command reports it.
        drop(self.make_room());
        let mut group = PlannedGroup::default();
        self.plan_group(pending, &mut group);
        let result = self.log_changes(group.changes, group.durable);
        for (done, results) in group.waiting {
            reply(done, result.clone().map(|()| results));
        }
        match (group.obstacle, pending.front()) {
            (Some(PlanObstacle::NoSpace), _) => self.make_space(),
            (Some(PlanObstacle::TooLarge), Some(StoreJob::Execute(job))) => {
                self.copy_shared_rows(&job.commands);
            }
            _ => {}
        }
        self.checkpoint_if_due();
        self.reclaim_if_short();
    }

    /// Plans the commands at the front of the queue, as many as fit a record.
    fn plan_group(&self, pending: &mut VecDeque<StoreJob>, group: &mut PlannedGroup) {
        let (shared, bytes_max) = (&*self.shared, self.log.payload_bytes_max());
        let state = shared.state();
        let view = self.check().and_then(|()| shared.index()?.rows());
        while let Some(job) = pending.pop_front() {
            let StoreJob::Execute(mut job) = job else {
                pending.push_front(job);
                break;
            };
            let planned = view.as_ref().map_err(Clone::clone).and_then(|index| {
                let base = PlanBase { shared, state: &state, index, bytes_max };
                let planner = CommandPlanner::new(&base, &group.changes, job.options.time);
                planner.plan(|planner| execute(planner, &job))
            });
            match planned {
                Ok((_, changes)) if group.changes.bytes + changes.bytes > bytes_max => {
                    changes.discard(shared);
                    pending.push_front(StoreJob::Execute(job));
                    break;
                }
                Ok((results, changes)) => {
                    group.changes.merge(changes);
                    group.durable |= job.options.durable;
                    group.waiting.push((job.done, results));
                }
                Err(StoreError::NoSpace | StoreError::CommandTooLarge(_)) if !job.is_retry => {
                    let is_full = matches!(planned, Err(StoreError::NoSpace));
                    group.obstacle = Some(match is_full {
                        true => PlanObstacle::NoSpace,
                        false => PlanObstacle::TooLarge,
                    });
                    job.is_retry = true;
                    pending.push_front(StoreJob::Execute(job));
                    break;
                }
                Err(error) => reply(job.done, Err(error)),
            }
        }
    }

    /// Commits changes of rows as a group of their own.
    pub(super) fn apply<T>(
        &mut self,
        time: Option<u64>,
        durable: bool,
        work: impl FnOnce(&mut ObjectMap<'_>) -> Result<T, StoreError>,
    ) -> JobResult<T> {
        self.make_room()?;
        let shared = Arc::clone(&self.shared);
        let (state, index) = (shared.state(), shared.index()?.rows()?);
        let bytes_max = self.log.payload_bytes_max();
        let base = PlanBase { shared: &shared, state: &state, index: &index, bytes_max };
        let group = PlannedChanges::default();
        let planner = CommandPlanner::new(&base, &group, time);
        let (result, changes) = planner.plan(|planner| work(&mut planner.map))?;
        drop(index);
        drop(state);
        self.log_changes(changes, durable)?;
        self.checkpoint_if_due();
        Ok(result)
    }

    /// Refuses changes after a failure.
    pub(super) fn check(&self) -> Result<(), StoreError> {
        match &self.stopped {
            Some(why) => Err(StoreError::Stopped(Arc::clone(why))),
            None => Ok(()),
        }
    }

    /// Ends all changes if `result` is a failure: nobody knows what of them is on the device.
    pub(super) fn stop_after<T>(&mut self, result: JobResult<T>) -> JobResult<T> {
        if let Err(error) = &result {
            self.stopped = Some(error.to_string().into());
        }
        result
    }

    /// Writes the record of `changes`, flushes if they are to be durable, and shows them. There is
    /// room for the longest record: [`make_room`](Self::make_room).
    fn log_changes(&mut self, changes: PlannedChanges, durable: bool) -> Result<(), StoreError> {
        if changes.rows.bytes() > 0 {
            let record = self.log.encode(&log_group(&changes));
            if let Err(error) = self.check() {
                changes.discard(&self.shared);
                return Err(error);
            }
            self.is_flushed = false;
            let appended = self.log.append(record);
            self.stop_after(appended)?;
        }
        if durable {
            self.flush()?;
        }
        let mut state = self.shared.state_mut();
        let active = &mut state.active;
        for (start, (data, _)) in changes.deferred {
            active.deferred_bytes += data.len();
            active.deferred.insert(start, data);
        }
        self.has_removed |= changes.rows.iter().any(|(key, value)| {
            value.is_some() && matches!(RowKey::decode(key), Some(RowKey::Removed(..)))
        });
        active.rows.merge(changes.rows);
        drop(state);
        let area = self.shared.layout.data();
        let is_inside = |run: &Range<u64>| area.start <= run.start && run.end <= area.end;
        self.freed.extend(changes.freed.into_iter().filter(is_inside));
        Ok(())
    }

    pub(super) fn flush(&mut self) -> Result<(), StoreError> {
        self.check()?;
        if !self.is_flushed {
            let flushed = self.shared.io.flush_blocking();
            self.stop_after(flushed)?;
            self.is_flushed = true;
        }
        Ok(())
    }
}

fn execute(
    planner: &mut CommandPlanner<'_>,
    job: &ChangeJob,
) -> Result<Vec<ObjectCommandResult>, StoreError> {
    job.commands.iter().map(|command| planner.execute(command)).collect()
}

/// Returns the contents of the record of `changes`.
fn log_group(changes: &PlannedChanges) -> LogGroup {
    let rows = changes.rows.iter().map(|(key, value)| (key.clone(), value.clone())).collect();
    // A blob that a later command of the group has freed needs no data.
    let is_used = |start: u64| changes.rows.contains(&RowKey::Blob(start).encode());
    let used = changes.deferred.iter().filter(|(start, _)| is_used(**start));
    let data = used.map(|(start, (data, used))| (*start, data.slice(..*used))).collect();
    LogGroup { rows, data }
}
