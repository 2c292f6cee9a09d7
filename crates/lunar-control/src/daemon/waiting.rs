//! LUNs of other targets whose storage is unreachable: they wait, and are opened when it returns.

use super::pause::RetryPause;
use crate::Failure;
use crate::config::model::{Configuration, LunConfig, UnitConfig};
use crate::device_url::DeviceUrl;
use std::pin::Pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::SystemTime;
use tokio::sync::Notify;
use tokio::time::Instant;

/// Maximum number of attempts at the same time.
const ATTEMPTS_MAX: usize = 8;

/// A configured LUN that is not served yet, because its storage is unreachable.
#[derive(Clone, Debug)]
pub struct WaitingLun {
    /// The iSCSI name of the target.
    pub target: String,
    /// The LUN's number.
    pub id: u16,
    /// The unit that is to be opened.
    pub(super) unit: UnitConfig,
    /// Time from which the LUN waits.
    pub since: SystemTime,
    /// Number of failed attempts.
    pub attempts: u32,
    /// Error of the last attempt, in one line.
    pub error: String,
    /// Number of this entry: a LUN that waits again has another one.
    number: u64,
    pause: RetryPause,
}

impl WaitingLun {
    /// The device that is to be opened.
    pub fn device(&self) -> &DeviceUrl {
        &self.unit.device
    }

    fn is_of(&self, target: &str, lun: &LunConfig) -> bool {
        self.id == lun.id
            && self.target.eq_ignore_ascii_case(target)
            && self.unit.device == lun.unit.device
    }

    /// Records a failed attempt, and schedules the next one.
    fn failed(&mut self, failure: &Failure) {
        self.attempts = self.attempts.saturating_add(1);
        self.error = failure.what.clone();
        self.pause.failed(failure);
    }
}

/// The LUNs that wait for their storages.
#[derive(Debug, Default)]
pub struct WaitingLuns {
    list: Mutex<List>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct List {
    luns: Vec<WaitingLun>,
    /// Number of the last entry.
    last: u64,
}

/// A LUN without a unit, and the failure to open it if there was an attempt.
pub(super) struct UnavailableLun<'c> {
    pub(super) target: &'c str,
    pub(super) lun: &'c LunConfig,
    pub(super) failure: Option<&'c Failure>,
}

impl WaitingLuns {
    /// The LUNs, in the order of the configuration.
    pub fn all(&self) -> Vec<WaitingLun> {
        self.list().luns.clone()
    }

    /// Whether this LUN waits.
    pub(super) fn contains(&self, target: &str, lun: &LunConfig) -> bool {
        self.list().luns.iter().any(|waiting| waiting.is_of(target, lun))
    }

    /// Whether the entry that an attempt was begun for still exists.
    pub(super) fn has(&self, lun: &WaitingLun) -> bool {
        self.list().luns.iter().any(|other| other.number == lun.number)
    }

    /// Sets the LUNs that wait: those in `unavailable`. Those that waited before with the same
    /// settings keep their entries. Logs the first wait and the end of each.
    pub(super) fn set(&self, running: &Configuration, unavailable: &[UnavailableLun<'_>]) {
        let mut list = self.list();
        let before = std::mem::take(&mut list.luns);
        for UnavailableLun { target, lun, failure } in unavailable {
            let kept = |one: &&WaitingLun| one.is_of(target, lun) && one.unit == lun.unit;
            let entry = match (before.iter().find(kept), failure) {
                (Some(kept), _) => kept.clone(),
                (None, failure) => {
                    list.last += 1;
                    let entry = new_entry(list.last, target, lun, *failure);
                    tracing::warn!(
                        target = entry.target,
                        lun = entry.id,
                        "{} waits for its storage, and is served when it returns: {}",
                        entry.unit.device,
                        entry.error
                    );
                    entry
                }
            };
            list.luns.push(entry);
        }
        for old in before.iter().filter(|old| list.luns.iter().all(|l| l.number != old.number)) {
            let mut targets = running.targets.iter();
            let is_served = list.luns.iter().all(|lun| lun.unit.device != old.unit.device)
                && targets.any(|target| target.luns.iter().any(|lun| old.is_of(&target.name, lun)));
            let (target, lun) = (&old.target, old.id);
            match is_served {
                true => tracing::info!(
                    target,
                    lun,
                    attempts = old.attempts,
                    "{} is served: its storage has returned",
                    old.unit.device
                ),
                false => tracing::debug!(target, lun, "{} waits no longer", old.unit.device),
            }
        }
        drop(list);
        self.changed.notify_one();
    }

    /// Has each LUN opened by `attempt` when it is due, until it is no longer on the list. Never
    /// ends; attempts that run are dropped with the future.
    pub(super) async fn retry<F>(&self, attempt: impl Fn(WaitingLun) -> F)
    where
        F: Future<Output = Result<(), Failure>> + Send + 'static,
    {
        let mut running: Vec<(u64, Pin<Box<F>>)> = Vec::new();
        loop {
            let due = match running.len() < ATTEMPTS_MAX {
                true => self.next_due(),
                false => None,
            };
            let until_due = async {
                match due {
                    Some(due) => tokio::time::sleep_until(due).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                (number, result) = first_to_end(&mut running) => {
                    // The LUN stays on the list until a change has removed it.
                    let failure = result.err();
                    self.attempt_ended(number, failure);
                }
                () = until_due => {
                    if let Some(lun) = self.begin_attempt() {
                        running.push((lun.number, Box::pin(attempt(lun))));
                    }
                }
                () = self.changed.notified() => {}
            }
        }
    }

    fn next_due(&self) -> Option<Instant> {
        self.list().luns.iter().filter_map(|lun| lun.pause.due()).min()
    }

    /// Takes the LUN that is due first.
    fn begin_attempt(&self) -> Option<WaitingLun> {
        let mut list = self.list();
        let due = list.luns.iter_mut().filter(|lun| lun.pause.due().is_some());
        let first = due.min_by_key(|lun| lun.pause.due())?;
        first.pause.begin().then(|| first.clone())
    }

    fn attempt_ended(&self, number: u64, failure: Option<Failure>) {
        let mut list = self.list();
        let Some(lun) = list.luns.iter_mut().find(|lun| lun.number == number) else { return };
        let failure = failure.unwrap_or_else(|| Failure::new("the LUN is not served"));
        tracing::debug!(target = lun.target, lun = lun.id, "still waiting: {failure}");
        lun.failed(&failure);
    }

    fn list(&self) -> MutexGuard<'_, List> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn new_entry(number: u64, target: &str, lun: &LunConfig, failure: Option<&Failure>) -> WaitingLun {
    let mut entry = WaitingLun {
        target: target.to_owned(),
        id: lun.id,
        unit: lun.unit.clone(),
        since: SystemTime::now(),
        attempts: 0,
        error: "its storage was lost".to_owned(),
        number,
        pause: RetryPause::none(),
    };
    if let Some(failure) = failure {
        entry.failed(failure);
    }
    entry
}

/// Waits for the first of several attempts to end, and removes it.
async fn first_to_end<F: Future>(running: &mut Vec<(u64, Pin<Box<F>>)>) -> (u64, F::Output) {
    std::future::poll_fn(|context| {
        for index in 0..running.len() {
            let (number, attempt) = &mut running[index];
            let number = *number;
            if let Poll::Ready(result) = attempt.as_mut().poll(context) {
                drop(running.swap_remove(index));
                return Poll::Ready((number, result));
            }
        }
        Poll::Pending
    })
    .await
}

#[cfg(test)]
mod tests;
