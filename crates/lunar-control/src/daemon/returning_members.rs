//! The return of members: devices of pools that were absent at the opening become members again.

use super::Daemon;
use crate::config::model::PoolMemberConfig;
use crate::device_url::REMOTE_OPEN_TIME_MAX;
use crate::{Failure, OpenPool, ServedPool, ServedPools};
use lunar_block::BlockDevice;
use lunar_pool::PoolError;
use std::sync::{Arc, Weak};
use tokio::task::JoinSet;

/// Maximum number of attempts at the same time.
const ATTEMPTS_MAX: usize = 8;

impl Daemon {
    /// Opens the absent devices of pools, again and again, and gives each its slot when it has
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
                    let pool = pool.name().to_owned();
                    attempts.spawn(attempt(
                        Weak::clone(&daemon),
                        Arc::clone(&served),
                        pool,
                        member,
                    ));
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

    /// Gives a device that was opened its slot again.
    fn rejoin(
        &self,
        pool: &ServedPool,
        (device, inner): (Arc<dyn BlockDevice>, Option<OpenPool>),
    ) -> ReturnResult {
        // No change of the pool runs meanwhile, and none closes it.
        let _change = self.begin_change().map_err(|why| (why, false))?;
        if inner.is_none() {
            pool.add_device(&device);
        }
        let returned = pool.run(|pool| async move { pool.rejoin(device).await });
        returned.map_err(|error| {
            let lacks_label = matches!(error, PoolError::NotAMember { .. });
            (Failure::new(error.to_string()), lacks_label)
        })?;
        if let Some(inner) = inner {
            self.pools.add_inside(pool, inner);
        }
        Ok(())
    }
}

/// Result of an attempt; a failure is with `true` if the device has no label.
type ReturnResult = Result<(), (Failure, bool)>;

/// Tries to return a device, and records the result: every attempt has one, or no other would
/// follow.
async fn attempt(
    daemon: Weak<Daemon>,
    served: Arc<ServedPools>,
    name: String,
    member: PoolMemberConfig,
) {
    let result = open_and_rejoin(&daemon, &name, &member).await;
    // A pool that is closed has no absent devices.
    let Some(pool) = served.all().into_iter().find(|pool| pool.name() == name) else { return };
    if result.is_ok() {
        tracing::info!(pool = name, "{} has returned to its pool", member.device);
    }
    pool.absent().attempt_ended(&member, result);
}

/// Opens a device and gives it its slot, on a thread that may block.
async fn open_and_rejoin(
    daemon: &Weak<Daemon>,
    name: &str,
    member: &PoolMemberConfig,
) -> ReturnResult {
    let opener = daemon.upgrade().map(|daemon| Arc::clone(daemon.unit_opener.opener()));
    let opener = opener.ok_or_else(|| (Failure::stopping(), false))?;
    let (daemon, name, member) = (Weak::clone(daemon), name.to_owned(), member.clone());
    let (done, result) = tokio::sync::oneshot::channel();
    // A thread of its own, for whose end the process does not wait when it stops.
    let thread = std::thread::Builder::new().name("open".to_owned()).spawn(move || {
        let returned = || {
            let opened = opener.open_any_member(&member, REMOTE_OPEN_TIME_MAX);
            let opened = opened.map_err(|why| (why, false))?;
            let daemon = daemon.upgrade().ok_or_else(|| (Failure::stopping(), false))?;
            let pool = daemon.pool(&name).map_err(|why| (why, false))?;
            daemon.rejoin(&pool, opened)
        };
        // The receiver is dropped when the server stops.
        let _ = done.send(returned());
    });
    thread.map_err(|why| (Failure::new(format!("cannot start a thread: {why}")), false))?;
    result
        .await
        .unwrap_or_else(|_| Err((Failure::new("the attempt failed by an internal error"), false)))
}
