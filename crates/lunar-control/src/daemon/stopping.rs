//! The end of a daemon: what changes is through, nothing changes any more, then the server ends.

use super::{Daemon, Entry};
use crate::Failure;
use lunar_target::ShutdownReport;
use std::sync::atomic::Ordering;
use std::sync::{MutexGuard, TryLockError};
use std::time::{Duration, Instant};

/// How long the end waits for a change that has begun; one that hangs on a device is left.
const CHANGE_TIME_MAX: Duration = Duration::from_secs(15);
const CHANGE_POLL: Duration = Duration::from_millis(20);

impl Daemon {
    /// Refuses changes from now on, waits for the one that has begun, then ends the server as
    /// [`lunar_target::Server::shutdown`] does.
    pub fn shutdown(&self, grace: Duration, progress: &mut dyn FnMut(&str)) -> ShutdownReport {
        self.stopping.store(true, Ordering::Release);
        self.wait_for_change(progress);
        self.server.shutdown(grace, progress)
    }

    /// Whether it has begun to end.
    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// Waits for its turn to change something.
    ///
    /// # Errors
    /// The server is stopping, or a former change has ended in a panic.
    pub(super) fn begin_change(&self) -> Result<MutexGuard<'_, Vec<Entry>>, Failure> {
        let Ok(entries) = self.entries.lock() else {
            let what = "a change has failed half way by an error of ours, so that what is open is \
                        not known any more";
            return Err(Failure::new(what).hint(
                "what is served goes on as it is; restart the server before the next change",
            ));
        };
        match self.is_stopping() {
            true => Err(Failure::stopping()),
            false => Ok(entries),
        }
    }

    fn wait_for_change(&self, progress: &mut dyn FnMut(&str)) {
        let until = Instant::now() + CHANGE_TIME_MAX;
        let mut told = false;
        loop {
            match self.entries.try_lock() {
                Ok(_) | Err(TryLockError::Poisoned(_)) => return,
                Err(TryLockError::WouldBlock) if Instant::now() >= until => {
                    progress("a change of what is served hangs: it is left");
                    return;
                }
                Err(TryLockError::WouldBlock) => {}
            }
            if !std::mem::replace(&mut told, true) {
                progress("waiting for a change of what is served");
            }
            std::thread::sleep(CHANGE_POLL);
        }
    }
}
