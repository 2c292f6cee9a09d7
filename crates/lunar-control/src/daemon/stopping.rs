//! Shutdown of a daemon: the running change ends, no more changes are accepted, then the server
//! ends.

use super::{Daemon, OpenUnit};
use crate::Failure;
use lunar_target::ShutdownReport;
use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{MutexGuard, TryLockError};
use std::time::{Duration, Instant};

/// Maximum time that a shutdown waits for a running change; a change that hangs on a device is
/// abandoned.
const CHANGE_TIME_MAX: Duration = Duration::from_secs(15);
const CHANGE_POLL: Duration = Duration::from_millis(20);

impl Daemon {
    /// Refuses changes from now on, waits for the running one, then ends the server as
    /// [`lunar_target::Server::shutdown`] does.
    pub fn shutdown(&self, grace: Duration, progress: &mut dyn FnMut(&str)) -> ShutdownReport {
        self.stopping.store(true, Ordering::Release);
        self.migrations.stop();
        self.wait_for_change(progress);
        let report = self.server.shutdown(grace, progress);
        self.close_pools();
        report
    }

    /// Requests that the program stops the server, as a signal does.
    pub fn request_stop(&self, by: &dyn fmt::Display) {
        tracing::info!(target: "audit", %by, "stop requested");
        self.stop_request.notify_one();
    }

    /// Waits for a request to stop the server.
    pub async fn stop_requested(&self) {
        self.stop_request.notified().await;
    }

    /// Closes the pools, so that their next opening does not find them as after a crash.
    fn close_pools(&self) {
        // A change that hangs keeps its units.
        if let Ok(mut entries) = self.entries.try_lock() {
            let pools = entries.iter_mut().filter_map(|entry| entry.pool.take());
            pools.for_each(|pool| {
                pool.close_at_exit();
                // Its members stay locked until the process ends: there is nobody to wait for.
                std::mem::forget(pool);
            });
        }
    }

    /// Whether the shutdown has begun.
    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// Waits until no other change is running.
    ///
    /// # Errors
    /// Fails if the server is stopping, or an earlier change ended in a panic.
    pub(super) fn begin_change(&self) -> Result<MutexGuard<'_, Vec<OpenUnit>>, Failure> {
        let Ok(entries) = self.entries.lock() else {
            let what = "an earlier change failed by an internal error, and the state of the open \
                        disks is unknown";
            return Err(
                Failure::new(what).hint("I/O continues; restart the server before the next change")
            );
        };
        match self.is_stopping() {
            true => Err(Failure::stopping()),
            false => Ok(entries),
        }
    }

    fn wait_for_change(&self, progress: &mut dyn FnMut(&str)) {
        let until = Instant::now() + CHANGE_TIME_MAX;
        let mut is_logged = false;
        loop {
            match self.entries.try_lock() {
                Ok(_) | Err(TryLockError::Poisoned(_)) => return,
                Err(TryLockError::WouldBlock) if Instant::now() >= until => {
                    progress(
                        "a configuration change does not end: the shutdown continues without it",
                    );
                    return;
                }
                Err(TryLockError::WouldBlock) => {}
            }
            if !std::mem::replace(&mut is_logged, true) {
                progress("waiting for a configuration change to end");
            }
            std::thread::sleep(CHANGE_POLL);
        }
    }
}
