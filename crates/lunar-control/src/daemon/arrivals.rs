//! The return of storages: LUNs that have waited are served.

use super::change_transaction::ArrivedLun;
use super::units::{OpenedStorage, open_storage};
use super::{ChangeOptions, Daemon, WaitingLun};
use crate::Failure;
use crate::config::model::{LunConfig, TargetConfig};
use crate::device_url::REMOTE_OPEN_TIME_MAX;
use std::sync::{Arc, Weak};

impl Daemon {
    /// Serves a LUN that has waited for its storage, with the device that was opened.
    fn serve_arrived(&self, lun: &WaitingLun, storage: OpenedStorage) -> Result<(), Failure> {
        let arrived = ArrivedLun { unit: lun.unit.clone(), storage };
        let served = self.change_with(
            &ChangeOptions::default(),
            Some(arrived),
            &"the return of a storage",
            |running| match self.waiting.has(lun) {
                true => Ok(running),
                false => Err(Failure::conflict(format!("{} waits no longer", lun.device()))),
            },
        );
        served.map(drop).map_err(|(failure, _)| failure)
    }

    /// Opens the LUNs that wait, again and again, and serves each of them when its storage has
    /// returned. To be run in a task; ends with the daemon.
    pub async fn serve_waiting(daemon: Weak<Self>) {
        let Some(waiting) = daemon.upgrade().map(|daemon| Arc::clone(&daemon.waiting)) else {
            return;
        };
        waiting.retry(|lun| attempt(Weak::clone(&daemon), lun)).await;
    }

    /// Refuses a change of a LUN that waits for its storage.
    pub(super) fn refuse_waiting(&self, target: &str, lun: &LunConfig) -> Result<(), Failure> {
        match self.waiting.contains(target, lun) {
            true => Err(Failure::conflict(format!(
                "LUN {} waits for its storage, {}",
                lun.id, lun.unit.device
            ))
            .hint("see `lunar ctl status` for the reason")),
            false => Ok(()),
        }
    }

    /// The index in the catalogue of each LUN of a target of the running configuration; `None` if
    /// it waits.
    pub(super) fn served_indexes(&self, target: &TargetConfig) -> Vec<Option<usize>> {
        let mut served = 0..;
        let mut index = |lun: &LunConfig| match self.waiting.contains(&target.name, lun) {
            true => None,
            false => served.next(),
        };
        target.luns.iter().map(&mut index).collect()
    }
}

/// Opens a LUN that waits, and serves it, on a thread that may block.
async fn attempt(daemon: Weak<Daemon>, lun: WaitingLun) -> Result<(), Failure> {
    let opener = daemon.upgrade().map(|daemon| Arc::clone(daemon.unit_opener.opener()));
    let opener = opener.ok_or_else(Failure::stopping)?;
    let (done, result) = tokio::sync::oneshot::channel();
    // A thread of its own, for whose end the process does not wait when it stops.
    let thread = std::thread::Builder::new().name("open".to_owned()).spawn(move || {
        let opened = open_storage(&*opener, &lun.unit, REMOTE_OPEN_TIME_MAX);
        let served = opened.and_then(|storage| match daemon.upgrade() {
            Some(daemon) => daemon.serve_arrived(&lun, storage),
            None => Err(Failure::stopping()),
        });
        // The receiver is dropped when the server stops.
        let _ = done.send(served);
    });
    thread.map_err(|error| Failure::new(format!("cannot start a thread: {error}")))?;
    result.await.unwrap_or_else(|_| Err(Failure::new("the attempt failed by an internal error")))
}
