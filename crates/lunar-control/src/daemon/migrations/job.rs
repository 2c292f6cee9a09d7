//! The move of one extent, on a thread of its own.

use super::Daemon;
use crate::Failure;
use crate::config::moved_extents::cannot_store;
use crate::config::virtual_lun::ExtentConfig;
use lunar_switch::{Migration, MigrationEnd, MigrationProgress, MigrationRecord, RecordOutcome};
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, SystemTime};

/// Pause before the next attempt to open the storage of a move that was running when the server
/// stopped.
const OPEN_PAUSE: Duration = Duration::from_secs(2);

/// The move of an extent of a virtual LUN.
#[derive(Debug)]
pub struct MigrationJob {
    /// Name of the virtual LUN.
    pub(super) lun: String,
    /// The iSCSI name of the target.
    pub target: String,
    /// The LUN's number.
    pub id: u16,
    /// Position of the extent in the LUN.
    pub extent: usize,
    /// Location of the extent before the move.
    pub from: ExtentConfig,
    /// Location of the extent after the move.
    pub to: ExtentConfig,
    /// Maximum rate of the copy while hosts use the LUN, if it is not the configured one.
    pub bytes_per_second: Option<u64>,
    /// Time at which the move began.
    pub begun: SystemTime,
    pub(super) control: JobControl,
}

/// The state of a move.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum MigrationJobState {
    /// The LUN or the storage is not open yet, for this reason.
    Waiting(String),
    /// The move runs, or its last transfers end.
    Running(MigrationProgress),
    /// The extent is at its new location.
    Moved(MigrationProgress),
    /// The move was cancelled.
    Cancelled,
}

/// The part of a job that its thread changes.
#[derive(Debug, Default)]
pub(super) struct JobControl {
    state: Mutex<ControlState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct ControlState {
    migration: Option<Arc<Migration>>,
    /// Reason why the LUN or the storage is not open yet.
    waits: String,
    is_cancelled: bool,
    /// True if the server stops; the record of the move is kept.
    is_stopping: bool,
    end: Option<MigrationEnd>,
}

impl MigrationJob {
    /// The state.
    pub fn state(&self) -> MigrationJobState {
        let state = self.control();
        let progress = state.migration.as_ref().map(|migration| migration.progress());
        match (state.end, progress) {
            (Some(MigrationEnd::Moved), Some(progress)) => MigrationJobState::Moved(progress),
            (Some(_), _) => MigrationJobState::Cancelled,
            (None, Some(progress)) => MigrationJobState::Running(progress),
            (None, None) => MigrationJobState::Waiting(state.waits.clone()),
        }
    }

    pub(super) fn has_ended(&self) -> bool {
        self.control().end.is_some()
    }

    /// The command that cancels the move.
    pub(super) fn cancel_command(&self) -> String {
        format!("lunar switch migrate {} {} --cancel", self.target, self.id)
    }

    /// Cancels the move. Returns false if it is too late.
    pub(super) fn cancel(&self) -> bool {
        let mut state = self.control();
        let is_cancelled = state.migration.as_ref().is_none_or(|migration| migration.cancel());
        state.is_cancelled |= is_cancelled;
        drop(state);
        self.control.changed.notify_all();
        is_cancelled
    }

    /// Ends the move because the server stops.
    pub(super) fn stop(&self) {
        self.control().is_stopping = true;
        self.cancel();
    }

    fn control(&self) -> MutexGuard<'_, ControlState> {
        self.control.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits before another attempt to open. Returns false if the move is to end.
    fn pause(&self, failure: &Failure) -> bool {
        let mut state = self.control();
        state.waits = failure.what.clone();
        let paused =
            self.control.changed.wait_timeout_while(state, OPEN_PAUSE, |state| !state.is_cancelled);
        !paused.unwrap_or_else(PoisonError::into_inner).0.is_cancelled
    }
}

/// The record of a job.
struct JobRecord {
    daemon: Weak<Daemon>,
    job: Arc<MigrationJob>,
}

impl MigrationRecord for JobRecord {
    fn commit(&self) -> RecordOutcome {
        let committed = self.daemon.upgrade().and_then(|one| one.commit_migration(&self.job));
        match committed {
            None => RecordOutcome::Busy,
            Some(Ok(())) => RecordOutcome::Committed,
            Some(Err(error)) => RecordOutcome::Failed(error),
        }
    }

    fn revert(&self) -> io::Result<()> {
        let daemon = self.daemon.upgrade().ok_or(io::ErrorKind::NotFound)?;
        daemon.migrations.restore_record()
    }
}

/// Starts the thread of a job. Without `opened`, the thread waits until the LUN and the storage are
/// open.
pub(super) fn start(
    daemon: &Arc<Daemon>,
    job: &Arc<MigrationJob>,
    opened: Option<Migration>,
) -> Result<(), Failure> {
    let opened = opened.map(Arc::new);
    job.control().migration = opened;
    let (weak, of_thread) = (Arc::downgrade(daemon), Arc::clone(job));
    let thread = std::thread::Builder::new().name("migrate".to_owned());
    let started = thread.spawn(move || run(weak, of_thread));
    started.map(drop).map_err(|why| {
        job.control().end = Some(MigrationEnd::Cancelled);
        Failure::new(format!("cannot start a thread: {why}"))
    })
}

fn run(daemon: Weak<Daemon>, job: Arc<MigrationJob>) {
    let end = match open(&daemon, &job) {
        Some(migration) => move_extent(&daemon, &job, &migration),
        None => MigrationEnd::Cancelled,
    };
    let (from, to) = (&job.from, &job.to);
    if end == MigrationEnd::Moved {
        tracing::info!(target = job.target, lun = job.id, "{from} was moved to {to}");
    } else if !job.control().is_stopping
        && let Some(daemon) = daemon.upgrade()
        && let Err(error) = daemon.migrations.record(|moved| moved.cancel(&job.lun))
    {
        tracing::error!("the next start begins the move of {from} again: {}", cannot_store(&error));
    }
    job.control().end = Some(end);
}

/// Waits until the LUN and the storage are open.
fn open(daemon: &Weak<Daemon>, job: &Arc<MigrationJob>) -> Option<Arc<Migration>> {
    loop {
        if let Some(migration) = &job.control().migration {
            return Some(Arc::clone(migration));
        }
        let opened = {
            let daemon = daemon.upgrade()?;
            let entries = daemon.begin_change().ok()?;
            daemon.open_migration(&entries, job)
        };
        match opened {
            Ok(migration) => {
                let mut state = job.control();
                if state.is_cancelled {
                    return None;
                }
                state.migration = Some(Arc::new(migration));
            }
            Err(failure) if !job.pause(&failure) => return None,
            Err(_) => {}
        }
    }
}

fn move_extent(
    daemon: &Weak<Daemon>,
    job: &Arc<MigrationJob>,
    migration: &Migration,
) -> MigrationEnd {
    let record = JobRecord { daemon: Weak::clone(daemon), job: Arc::clone(job) };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    let ended = runtime
        .map_err(|error| Failure::new(format!("cannot start a runtime: {error}")))
        .and_then(|runtime| Ok(runtime.block_on(migration.run(&record))?));
    ended.unwrap_or_else(|failure| {
        tracing::error!("{} cannot be moved to {}: {failure}", job.from, job.to);
        MigrationEnd::Cancelled
    })
}
