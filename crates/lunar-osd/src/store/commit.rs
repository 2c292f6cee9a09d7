//! The thread of a store: plans commands, and commits them in groups.

use super::log::LogRing;
use super::plan::{CommandPlanner, PlannedChanges};
use super::{ChangeJob, JobResult, ObjectCommandResult, SharedStore, StoreJob};
use crate::StoreError;
use crate::format::{LogGroup, RowKey};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use tokio::sync::mpsc::{Receiver, error::TryRecvError};
use tokio::sync::oneshot;

/// Maximum number of jobs that are taken from the queue together.
const GROUP_JOBS_MAX: usize = 128;

/// The owner of the log.
#[derive(Debug)]
pub(super) struct Committer {
    pub(super) shared: Arc<SharedStore>,
    pub(super) log: LogRing,
    /// Blocks that were freed since the last checkpoint.
    pub(super) freed: Vec<Range<u64>>,
    /// Blocks that were freed before a checkpoint, and the readers that may still read them.
    pub(super) retired: VecDeque<(Arc<()>, Vec<Range<u64>>)>,
    /// True if the device has made all records durable.
    pub(super) is_flushed: bool,
    /// True if rows of removed objects may be left.
    pub(super) has_removed: bool,
    /// The failure that ended all changes.
    pub(super) stopped: Option<Arc<str>>,
}

/// The caller of a job and the results that it gets if the group is committed.
type WaitingCaller =
    (oneshot::Sender<JobResult<Vec<ObjectCommandResult>>>, Vec<ObjectCommandResult>);

/// Commands that were planned together, and those who wait for them.
#[derive(Default)]
struct PlannedGroup {
    changes: PlannedChanges,
    durable: bool,
    waiting: Vec<WaitingCaller>,
    /// True if the next command found no space.
    is_full: bool,
}

fn reply<T>(done: oneshot::Sender<T>, result: T) {
    // The caller may have stopped waiting.
    drop(done.send(result));
}

impl Committer {
    /// Does the work of `queue` until it is closed.
    pub(super) fn run(mut self, mut queue: Receiver<StoreJob>) {
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
            match pending.pop_front() {
                Some(StoreJob::Execute(job)) => {
                    pending.push_front(StoreJob::Execute(job));
                    self.commit_group(&mut pending);
                }
                Some(StoreJob::Flush(done)) => reply(done, self.flush()),
                Some(StoreJob::Checkpoint(done)) => reply(done, self.checkpoint()),
                Some(StoreJob::Reclaim(done)) => {
                    self.reclaim();
                    reply(done, self.check().map(|()| self.has_removed));
                }
                Some(StoreJob::Close(done)) => {
                    let result = self.checkpoint();
                    self.shared.close();
                    reply(done, result);
                    break;
                }
                None => {}
            }
        }
        self.shared.close();
    }

    /// Waits for a job; meanwhile removes rows of removed objects.
    fn next_job(&mut self, queue: &mut Receiver<StoreJob>) -> Option<StoreJob> {
        while self.has_removed {
            match queue.try_recv() {
                Ok(job) => return Some(job),
                Err(TryRecvError::Disconnected) => return None,
                Err(TryRecvError::Empty) => self.reclaim(),
            }
        }
        queue.blocking_recv()
    }

    fn commit_group(&mut self, pending: &mut VecDeque<StoreJob>) {
        let mut group = PlannedGroup::default();
        self.plan_group(pending, &mut group);
        let result = self.log_changes(group.changes, group.durable);
        for (done, results) in group.waiting {
            reply(done, result.clone().map(|()| results));
        }
        if group.is_full {
            while self.has_removed {
                self.reclaim();
            }
            // A failure stops the store, and the next command reports it.
            drop(self.checkpoint());
        } else {
            self.checkpoint_if_due();
        }
    }

    /// Plans the commands at the front of the queue, as many as fit a record.
    fn plan_group(&self, pending: &mut VecDeque<StoreJob>, group: &mut PlannedGroup) {
        let bytes_max = self.log.payload_bytes_max();
        let state = self.shared.state();
        let view = self.check().and_then(|()| self.shared.index()?.rows());
        while let Some(job) = pending.pop_front() {
            let StoreJob::Execute(mut job) = job else {
                pending.push_front(job);
                break;
            };
            let planned = view.as_ref().map_err(Clone::clone).and_then(|index| {
                let shared = &self.shared;
                let planner = CommandPlanner::new(shared, &state, &group.changes, index, bytes_max);
                planner.plan(|planner| execute(planner, &job))
            });
            match planned {
                Ok((_, changes)) if group.changes.bytes + changes.bytes > bytes_max => {
                    changes.discard(&self.shared);
                    pending.push_front(StoreJob::Execute(job));
                    break;
                }
                Ok((results, changes)) => {
                    group.changes.merge(changes);
                    group.durable |= job.durable;
                    group.waiting.push((job.done, results));
                }
                Err(StoreError::NoSpace) if !job.is_retry => {
                    job.is_retry = true;
                    group.is_full = true;
                    pending.push_front(StoreJob::Execute(job));
                    break;
                }
                Err(error) => reply(job.done, Err(error)),
            }
        }
    }

    /// Removes some rows of removed objects.
    fn reclaim(&mut self) {
        let planned = self.plan_reclaim();
        self.has_removed = match planned {
            Ok((found, changes)) => self.log_changes(changes, false).is_ok() && found,
            Err(_) => false,
        };
        self.checkpoint_if_due();
    }

    fn plan_reclaim(&self) -> Result<(bool, PlannedChanges), StoreError> {
        self.check()?;
        let (state, index) = (self.shared.state(), self.shared.index()?.rows()?);
        let (group, bytes_max) = (PlannedChanges::default(), self.log.payload_bytes_max());
        let planner = CommandPlanner::new(&self.shared, &state, &group, &index, bytes_max);
        planner.plan(CommandPlanner::reclaim)
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

    /// Writes the record of `changes`, flushes if they are to be durable, and shows them.
    fn log_changes(&mut self, changes: PlannedChanges, durable: bool) -> Result<(), StoreError> {
        if changes.rows.bytes() > 0 {
            let record = self.log.encode(&log_group(&changes));
            // Earlier checkpoints have made room for the longest record. A checkpoint here would
            // store the blocks of the group as used, before the group is in the log.
            let has_room = self.log.has_room(&record);
            let room = has_room.then_some(()).ok_or(StoreError::CommandTooLarge(record.len()));
            if let Err(error) = self.check().and(room) {
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
        for (start, (data, _)) in changes.deferred {
            state.deferred_bytes += data.len();
            state.deferred.insert(start, data);
        }
        self.has_removed |= changes.rows.iter().any(|(key, value)| {
            value.is_some() && matches!(RowKey::decode(key), Some(RowKey::Removed(_)))
        });
        state.rows.merge(changes.rows);
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
