//! Checks of backing files that are deleted, renamed, replaced or truncated while they are served.
//!
//! One thread of a server starts a round of checks every [`CHECK_INTERVAL`]. Other threads make the
//! checks, so a file system that does not respond blocks only them. Cores take no part.

use crate::lock::lock;
use lunar_block::{BackingPath, BackingProbe, BackingState, BlockDevice, SpaceUsage};
use std::collections::VecDeque;
use std::io;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

/// Interval between two checks of each backing file.
const CHECK_INTERVAL: Duration = Duration::from_secs(2);
/// Duration after which a check in progress is reported.
const CHECK_TIME_MAX: Duration = Duration::from_secs(30);
/// Limit of threads that check files. Further threads run only while others are blocked by file
/// systems that do not respond.
const CHECK_THREADS_MAX: usize = 8;

/// A fault of a backing file.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum BackingFault {
    /// No name leads to the file any more: its data is gone when the disk is closed.
    Deleted {
        /// Path through which the file can be copied as long as it is open.
        open_path: PathBuf,
        /// Path that the file had.
        path: PathBuf,
    },
    /// The file has another name, and its own path leads nowhere or to another file: the next start
    /// will not find it.
    Renamed {
        /// Path that the file had.
        path: PathBuf,
        /// Path that the file has now, if known.
        new_path: Option<PathBuf>,
        /// True when another file has the old path now.
        is_replaced: bool,
    },
    /// The file was shorter than the disk, and may still be: the data beyond its end is lost.
    Truncated {
        /// The smallest size of the file that was seen, in bytes.
        file_bytes: u64,
        /// The size of the disk in bytes.
        disk_bytes: u64,
    },
    /// The file system no longer knows the file.
    Lost {
        /// The error of the file system.
        error: String,
    },
    /// The file system does not respond.
    NoAnswer {
        /// Seconds without a response.
        seconds: u64,
    },
}

impl BackingFault {
    /// Event and consequence, for the log.
    fn line(&self) -> String {
        match self {
            Self::Deleted { .. } => "the backing file was deleted: its data will be lost when the \
                                     server closes it; `lunar ctl status` shows the command that \
                                     saves it"
                .to_owned(),
            Self::Renamed { new_path, .. } => {
                let new_path = new_path.as_ref().map(|path| format!(" to {}", path.display()));
                format!(
                    "the backing file was renamed{}: it is still served, but the next start will \
                     not find it",
                    new_path.unwrap_or_default()
                )
            }
            Self::Truncated { file_bytes, disk_bytes } => format!(
                "the backing file was truncated by another program to {file_bytes} of \
                 {disk_bytes} bytes: the data beyond is lost"
            ),
            Self::Lost { error } => {
                format!("the backing file is lost: its file system reports it as stale ({error})")
            }
            Self::NoAnswer { seconds } => format!(
                "the backing file cannot be checked: its file system has not responded for \
                 {seconds} s"
            ),
        }
    }

    fn is_like(&self, other: &Self) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other)
    }
}

/// State of the backing file of a unit.
#[derive(Debug)]
pub(crate) struct BackingHealth {
    device: String,
    probe: Option<Arc<dyn BackingProbe>>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Faults found by the last finished check.
    faults: Vec<BackingFault>,
    /// The smallest size in bytes below that of the disk since the last recovery. A write to the
    /// last block makes the file as long as before, with a hole in place of the data.
    truncated_to: Option<u64>,
    /// True when the log already reports that the file is longer than the disk.
    is_longer: bool,
    /// True when a check is in progress or waits for a thread.
    is_due: bool,
    check_began: Option<Instant>,
    /// Number of recoveries by an operator. The result of a check that began before a recovery is
    /// void.
    recoveries: u64,
    /// True when the log already reports that the file system does not respond.
    is_late: bool,
    /// Space of the disk, as measured last; `None` if unknown.
    space: Option<SpaceUsage>,
}

impl BackingHealth {
    pub(crate) fn of(device: &dyn BlockDevice) -> Arc<Self> {
        // Later checks report errors of the file system.
        let space = device.sparse().and_then(|sparse| sparse.space_usage().ok().flatten());
        let (device, probe) = (device.name().to_owned(), device.backing());
        Arc::new(Self { device, probe, state: Mutex::new(State { space, ..State::default() }) })
    }

    /// The space of the disk, as measured last; `None` if unknown.
    pub(crate) fn space(&self) -> Option<SpaceUsage> {
        self.state().space
    }

    /// Current faults, the worst first.
    pub(crate) fn faults(&self) -> Vec<BackingFault> {
        let state = self.state();
        let waited = state.check_began.map_or(Duration::ZERO, |began| began.elapsed());
        let mut faults = state.faults.clone();
        if waited > CHECK_TIME_MAX {
            faults.push(BackingFault::NoAnswer { seconds: waited.as_secs() });
        }
        faults
    }

    /// True when the file was shorter than the disk at some time since the last recovery.
    pub(crate) fn was_truncated(&self) -> bool {
        self.state().truncated_to.is_some()
    }

    /// Called when the file has the size of the disk again, and an operator accepts the loss.
    pub(crate) fn recovered(&self) {
        let mut state = self.state();
        state.truncated_to = None;
        state.recoveries += 1;
        state.faults.retain(|fault| !matches!(fault, BackingFault::Truncated { .. }));
    }

    /// Claims the next check. Returns `false` if there is no file to check or the last check has
    /// not ended.
    fn claim_check(&self) -> bool {
        self.probe.is_some() && !std::mem::replace(&mut self.state().is_due, true)
    }

    /// Checks the file. May block.
    fn check(&self) {
        let Some(probe) = &self.probe else { return };
        let recoveries = {
            let mut state = self.state();
            state.check_began = Some(Instant::now());
            state.recoveries
        };
        let found = probe.read_state();
        // Only a renamed file needs its new path, since the query may block as well.
        let new_path = match &found {
            Ok(found) if !found.is_deleted && found.path != BackingPath::Same => probe.new_path(),
            _ => None,
        };
        let space = probe.space_usage().ok().flatten();
        let mut state = self.state();
        state.space = space;
        state.check_began = None;
        state.is_due = false;
        if state.recoveries == recoveries {
            let faults = state.faults_of(found, probe.as_ref(), new_path);
            self.store_faults(&mut state, faults);
        }
    }

    /// Stores the faults that a check has found, and logs the new ones.
    fn store_faults(&self, state: &mut State, faults: Vec<BackingFault>) {
        let device = &self.device;
        for fault in &faults {
            if !state.faults.iter().any(|known| known.is_like(fault)) {
                tracing::error!(device, "{}", fault.line());
            }
        }
        if faults.is_empty() && !state.faults.is_empty() {
            tracing::warn!(device, "the fault of the backing file has ended");
        }
        if std::mem::take(&mut state.is_late) {
            tracing::warn!(device, "the file system of the backing file responds again");
        }
        state.faults = faults;
    }

    /// Logs that a check takes too long.
    fn report_if_late(&self) {
        let mut state = self.state();
        let late = state.check_began.is_some_and(|began| began.elapsed() > CHECK_TIME_MAX);
        if late && !std::mem::replace(&mut state.is_late, true) {
            let fault = BackingFault::NoAnswer { seconds: CHECK_TIME_MAX.as_secs() };
            tracing::error!(device = &self.device, "{}", fault.line());
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

impl State {
    fn faults_of(
        &mut self,
        found: io::Result<BackingState>,
        probe: &dyn BackingProbe,
        new_path: Option<PathBuf>,
    ) -> Vec<BackingFault> {
        let found = match found {
            Ok(found) => found,
            Err(error) => return vec![BackingFault::Lost { error: error.to_string() }],
        };
        let (file_bytes, disk_bytes) = (found.file_bytes, found.disk_bytes);
        let mut faults = Vec::new();
        if found.is_deleted {
            let (open_path, path) = (probe.open_path(), probe.path());
            faults.push(BackingFault::Deleted { open_path, path });
        }
        if file_bytes < disk_bytes {
            let smallest = self.truncated_to.map_or(file_bytes, |least| least.min(file_bytes));
            self.truncated_to = Some(smallest);
        }
        if let Some(file_bytes) = self.truncated_to {
            faults.push(BackingFault::Truncated { file_bytes, disk_bytes });
        }
        if !found.is_deleted && found.path != BackingPath::Same {
            let is_replaced = found.path == BackingPath::Other;
            faults.push(BackingFault::Renamed { path: probe.path(), new_path, is_replaced });
        }
        let is_longer = file_bytes > disk_bytes;
        if is_longer && !std::mem::replace(&mut self.is_longer, is_longer) {
            let device = probe.path().display().to_string();
            tracing::warn!(
                device,
                file_bytes,
                disk_bytes,
                "the backing file has grown: the disk keeps its size until `lunar ctl resize`"
            );
        }
        self.is_longer = is_longer;
        faults
    }
}

/// Checks the backing files of a server periodically until dropped.
#[derive(Debug)]
pub(crate) struct BackingWatcher {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl BackingWatcher {
    /// Checks the files that `served` returns, until that returns `None`.
    pub(crate) fn start(
        served: impl Fn() -> Option<Vec<Arc<BackingHealth>>> + Send + 'static,
    ) -> io::Result<Self> {
        let (stop, stopped) = channel();
        let thread = Builder::new().name("backing-watch".to_owned());
        let thread = thread.spawn(move || watch(served, &stopped))?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for BackingWatcher {
    fn drop(&mut self) {
        drop(self.stop.take());
        // The watching thread itself calls no file system, so the join does not block for long.
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the thread that watches backing files panicked");
        }
    }
}

fn watch(served: impl Fn() -> Option<Vec<Arc<BackingHealth>>>, stopped: &Receiver<()>) {
    let checks = Arc::new(CheckQueue::default());
    while stopped.recv_timeout(CHECK_INTERVAL) == Err(RecvTimeoutError::Timeout) {
        let Some(backings) = served() else { return };
        checks.begin_round(&backings);
    }
}

/// Queue of pending checks.
#[derive(Debug, Default)]
struct CheckQueue {
    queue: Mutex<Queue>,
}

#[derive(Debug, Default)]
struct Queue {
    due: VecDeque<Arc<BackingHealth>>,
    running_threads: usize,
    /// True when the log already reports that all threads are blocked.
    is_stuck: bool,
}

impl CheckQueue {
    /// Queues checks of all files whose last check has ended.
    fn begin_round(self: &Arc<Self>, backings: &[Arc<BackingHealth>]) {
        backings.iter().for_each(|backing| backing.report_if_late());
        let mut queue = lock(&self.queue);
        queue.due.extend(backings.iter().filter(|backing| backing.claim_check()).cloned());
        if queue.due.is_empty() {
            return;
        }
        if queue.running_threads == CHECK_THREADS_MAX {
            if !std::mem::replace(&mut queue.is_stuck, true) {
                tracing::error!(
                    "backing files are not checked: {CHECK_THREADS_MAX} checks wait for file \
                     systems that do not respond"
                );
            }
            return;
        }
        let checks = Arc::clone(self);
        match Builder::new().name("backing-check".to_owned()).spawn(move || checks.run()) {
            Ok(_) => queue.running_threads += 1,
            // The pending checks stay in the queue.
            Err(error) => tracing::error!(
                %error,
                "backing files are not checked: cannot start a thread"
            ),
        }
    }

    /// Checks one file after the other until the queue is empty.
    fn run(&self) {
        loop {
            let mut queue = lock(&self.queue);
            let Some(backing) = queue.due.pop_front() else {
                queue.running_threads -= 1;
                queue.is_stuck = false;
                return;
            };
            drop(queue);
            backing.check();
        }
    }
}

#[cfg(test)]
mod tests;
