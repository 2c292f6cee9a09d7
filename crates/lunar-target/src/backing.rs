//! Backing files that are deleted, renamed, replaced or truncated while they are served.
//!
//! One thread of a server starts a round of looks every [`LOOK_INTERVAL`]; the looks are made by
//! another thread, which a file system that does not answer holds up alone. Cores take no part.

use crate::server::Shared;
use lunar_block::{BackingPath, BackingProbe, BackingState, BlockDevice};
use std::collections::VecDeque;
use std::io;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

/// How often each backing file is looked at.
const LOOK_INTERVAL: Duration = Duration::from_secs(2);
/// A look that takes longer is reported.
const LOOK_TIME_MAX: Duration = Duration::from_secs(30);
/// Threads that look. Each but one is held up by a file system that does not answer.
const LOOKERS_MAX: usize = 8;

/// What is wrong with a backing file.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum BackingFault {
    /// No name leads to it any more: its data is gone when the disk is closed.
    Deleted {
        /// Path by which it can be copied as long as it is open.
        open_path: PathBuf,
        /// Path that it had.
        path: PathBuf,
    },
    /// It has another name, and its own leads nowhere or to another file: the next start will not
    /// find it.
    Renamed {
        /// Path that it had.
        path: PathBuf,
        /// Path that it has now, if that is known.
        new_path: Option<PathBuf>,
        /// Another file has its path now.
        is_replaced: bool,
    },
    /// It was shorter than the disk, and may be so still: what lay beyond is lost.
    Truncated {
        /// The smallest size that it was seen to have, in bytes.
        file_bytes: u64,
        /// The size of the disk in bytes.
        disk_bytes: u64,
    },
    /// Its file system does not know it any more.
    Lost {
        /// What the file system says.
        error: String,
    },
    /// Its file system does not answer.
    NoAnswer {
        /// For how long.
        seconds: u64,
    },
}

impl BackingFault {
    /// Event and consequence, for the log.
    fn line(&self) -> String {
        match self {
            Self::Deleted { .. } => "the backing file was deleted: its data is lost when it is \
                                     served no more; `lunar ctl status` names the command that \
                                     saves it"
                .to_owned(),
            Self::Renamed { new_path, .. } => {
                let new_path = new_path.as_ref().map(|path| format!(" to {}", path.display()));
                format!(
                    "the backing file was renamed{}: it is served on, but the next start will \
                     not find it",
                    new_path.unwrap_or_default()
                )
            }
            Self::Truncated { file_bytes, disk_bytes } => format!(
                "the backing file was truncated by another program to {file_bytes} of \
                 {disk_bytes} bytes: what lay beyond is lost"
            ),
            Self::Lost { error } => {
                format!("the backing file is lost: its file system does not know it ({error})")
            }
            Self::NoAnswer { seconds } => format!(
                "the backing file is not watched: its file system has not answered for {seconds} s"
            ),
        }
    }

    fn is_like(&self, other: &Self) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other)
    }
}

/// What is known of the backing file of a unit.
#[derive(Debug)]
pub(crate) struct Backing {
    device: String,
    probe: Option<Arc<dyn BackingProbe>>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Found by the last look that ended.
    faults: Vec<BackingFault>,
    /// The smallest size in bytes, of those below that of the disk, since the last recovery. A
    /// write to the last block makes the file as long as before, with a hole in the place of the
    /// data.
    truncated_to: Option<u64>,
    /// The log says that the file is longer than the disk.
    is_longer: bool,
    /// A look is under way or has to wait for a thread.
    is_due: bool,
    look_began: Option<Instant>,
    /// How often an operator has recovered it: what a look found before holds no more.
    recoveries: u64,
    /// The log says that the file system does not answer.
    is_late: bool,
}

impl Backing {
    pub(crate) fn of(device: &dyn BlockDevice) -> Arc<Self> {
        let (device, probe) = (device.name().to_owned(), device.backing());
        Arc::new(Self { device, probe, state: Mutex::default() })
    }

    /// What is wrong now, the worst first.
    pub(crate) fn faults(&self) -> Vec<BackingFault> {
        let state = self.state();
        let waited = state.look_began.map_or(Duration::ZERO, |began| began.elapsed());
        let mut faults = state.faults.clone();
        if waited > LOOK_TIME_MAX {
            faults.push(BackingFault::NoAnswer { seconds: waited.as_secs() });
        }
        faults
    }

    /// Whether it was shorter than the disk since the last recovery.
    pub(crate) fn was_truncated(&self) -> bool {
        self.state().truncated_to.is_some()
    }

    /// It has the size of the disk again, and an operator accepts what is lost.
    pub(crate) fn recovered(&self) {
        let mut state = self.state();
        state.truncated_to = None;
        state.recoveries += 1;
        state.faults.retain(|fault| !matches!(fault, BackingFault::Truncated { .. }));
    }

    /// Claims the next look; `false`: there is nothing to look at, or the last look has not ended.
    fn claim_look(&self) -> bool {
        self.probe.is_some() && !std::mem::replace(&mut self.state().is_due, true)
    }

    /// Looks. May block.
    fn look(&self) {
        let Some(probe) = &self.probe else { return };
        let recoveries = {
            let mut state = self.state();
            state.look_began = Some(Instant::now());
            state.recoveries
        };
        let found = probe.look();
        // Only one that was renamed is asked for its new name: that may block as well.
        let new_path = match &found {
            Ok(found) if !found.is_deleted && found.path != BackingPath::Same => probe.new_path(),
            _ => None,
        };
        let mut state = self.state();
        state.look_began = None;
        state.is_due = false;
        if state.recoveries == recoveries {
            let faults = state.judge(found, probe.as_ref(), new_path);
            self.tell(&mut state, faults);
        }
    }

    /// Keeps what a look has found, and writes what is new to the log.
    fn tell(&self, state: &mut State, faults: Vec<BackingFault>) {
        let device = &self.device;
        for fault in &faults {
            if !state.faults.iter().any(|known| known.is_like(fault)) {
                tracing::error!(device, "{}", fault.line());
            }
        }
        if faults.is_empty() && !state.faults.is_empty() {
            tracing::warn!(device, "the backing file is as it was again");
        }
        if std::mem::take(&mut state.is_late) {
            tracing::warn!(device, "the file system of the backing file answers again");
        }
        state.faults = faults;
    }

    /// Writes to the log that a look takes too long.
    fn tell_if_late(&self) {
        let mut state = self.state();
        let late = state.look_began.is_some_and(|began| began.elapsed() > LOOK_TIME_MAX);
        if late && !std::mem::replace(&mut state.is_late, true) {
            let fault = BackingFault::NoAnswer { seconds: LOOK_TIME_MAX.as_secs() };
            tracing::error!(device = &self.device, "{}", fault.line());
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

impl State {
    fn judge(
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

/// Looks at the backing files of a server from time to time, until it is dropped.
#[derive(Debug)]
pub(crate) struct BackingWatcher {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl BackingWatcher {
    pub(crate) fn start(shared: &Arc<Shared>) -> io::Result<Self> {
        let (stop, stopped) = channel();
        let shared = Arc::downgrade(shared);
        let thread = Builder::new().name("backing-watch".to_owned());
        let thread = thread.spawn(move || watch(&shared, &stopped))?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for BackingWatcher {
    fn drop(&mut self) {
        drop(self.stop.take());
        // It asks no file system anything itself.
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the thread that watches backing files panicked");
        }
    }
}

fn watch(shared: &Weak<Shared>, stopped: &Receiver<()>) {
    let looks = Arc::new(Looks::default());
    while stopped.recv_timeout(LOOK_INTERVAL) == Err(RecvTimeoutError::Timeout) {
        let Some(shared) = shared.upgrade() else { return };
        let backings = shared.units().into_iter().map(|unit| Arc::clone(unit.backing()));
        let backings: Vec<_> = backings.collect();
        drop(shared);
        looks.begin_round(&backings);
    }
}

/// The looks that are to be made.
#[derive(Debug, Default)]
struct Looks {
    queue: Mutex<Queue>,
}

#[derive(Debug, Default)]
struct Queue {
    due: VecDeque<Arc<Backing>>,
    lookers: usize,
    /// The log says that all threads are held up.
    is_stuck: bool,
}

impl Looks {
    /// Has all of them looked at, but for those whose last look has not ended.
    fn begin_round(self: &Arc<Self>, backings: &[Arc<Backing>]) {
        backings.iter().for_each(|backing| backing.tell_if_late());
        let mut queue = lock(&self.queue);
        queue.due.extend(backings.iter().filter(|backing| backing.claim_look()).cloned());
        if queue.due.is_empty() {
            return;
        }
        if queue.lookers == LOOKERS_MAX {
            if !std::mem::replace(&mut queue.is_stuck, true) {
                tracing::error!(
                    "backing files are not watched: {LOOKERS_MAX} of them are on file systems \
                     that do not answer"
                );
            }
            return;
        }
        let looks = Arc::clone(self);
        match Builder::new().name("backing-look".to_owned()).spawn(move || looks.run()) {
            Ok(_) => queue.lookers += 1,
            // What is due stays so.
            Err(error) => tracing::error!(%error, "backing files are not watched: no thread"),
        }
    }

    /// Looks at one after the other until none is due.
    fn run(&self) {
        loop {
            let mut queue = lock(&self.queue);
            let Some(backing) = queue.due.pop_front() else {
                queue.lookers -= 1;
                queue.is_stuck = false;
                return;
            };
            drop(queue);
            backing.look();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
