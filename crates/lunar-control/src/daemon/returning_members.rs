//! The return of members: devices of pools that were absent at the opening become members again.

use super::Daemon;
use crate::config::model::PoolMemberConfig;
use crate::device_url::REMOTE_OPEN_TIME_MAX;
use crate::{Failure, ServedPool};
use lunar_pool::PoolError;
use std::sync::{Arc, Weak};
use tokio::task::JoinSet;

/// Maximum number of attempts at the same time.
const ATTEMPTS_MAX: usize = 8;

impl Daemon {
    /// Opens the absent devices of pools, again and again, and gives each its place when it has
    /// returned. To be run in a task; ends with the daemon.
    pub async fn return_members(daemon: Weak<Self>) {
        let Some(served) = daemon.upgrade().map(|daemon| Arc::clone(&daemon.pools)) else {
            return;
        };
        let mut attempts = JoinSet::new();
        loop {
            let pools = served.all();
            for pool in &pools {
                for member in pool.absent().begin_attempts(ATTEMPTS_MAX - attempts.len()) {
                    attempts.spawn(attempt(Weak::clone(&daemon), pool.name().to_owned(), member));
                }
            }
            let due = match attempts.len() < ATTEMPTS_MAX {
                true => pools.iter().filter_map(|pool| pool.absent().next_due()).min(),
                false => None,
            };
            drop(pools);
            let until_due = async {
                match due {
                    Some(due) => tokio::time::sleep_until(due).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = until_due => {}
                () = served.changed.notified() => {}
                Some(_) = attempts.join_next() => {}
            }
        }
    }

    /// Gives a device back its place, and records the result.
    fn try_return(&self, name: &str, member: &PoolMemberConfig) -> Result<(), Failure> {
        let pool = self.pool(name)?;
        let result = self.rejoin(&pool, member);
        if result.is_ok() {
            tracing::info!(pool = name, "{} has returned to its pool", member.device);
        }
        pool.absent().attempt_ended(member, result);
        Ok(())
    }

    /// A failure is with `true` if the device has no label.
    fn rejoin(&self, pool: &ServedPool, member: &PoolMemberConfig) -> Result<(), (Failure, bool)> {
        let opener = self.unit_opener.opener();
        let device =
            opener.open_member(member, REMOTE_OPEN_TIME_MAX).map_err(|why| (why, false))?;
        // No change of the pool runs meanwhile, and none closes it.
        let _alone = self.begin_change().map_err(|why| (why, false))?;
        pool.add_device(&device);
        let returned = pool.run(|pool| async move { pool.rejoin(device).await });
        returned.map(drop).map_err(|error| {
            let lacks_label = matches!(error, PoolError::NotAMember { .. });
            (Failure::new(error.to_string()), lacks_label)
        })
    }
}

/// Tries to return a device, on a thread that may block.
async fn attempt(daemon: Weak<Daemon>, pool: String, member: PoolMemberConfig) {
    let (done, result) = tokio::sync::oneshot::channel::<()>();
    // A thread of its own, for whose end the process does not wait when it stops.
    let thread = std::thread::Builder::new().name("open".to_owned()).spawn(move || {
        if let Some(daemon) = daemon.upgrade() {
            // A pool that is closed has no absent devices.
            let _ = daemon.try_return(&pool, &member);
        }
        drop(done);
    });
    if let Err(error) = thread {
        tracing::warn!(%error, "cannot start a thread to open a member");
        return;
    }
    // An error: the thread has ended.
    let _ = result.await;
}
