//! Opening several remote LUNs, and pools of them, at the same time.

use super::units::{OpenedStorage, open_storage};
use crate::config::model::UnitConfig;
use crate::device_url::{Opener, REMOTE_OPEN_TIME_MAX};
use crate::{Failure, FailureKind};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Maximum number of LUNs that are opened at the same time.
const OPENED_AT_ONCE_MAX: usize = 8;
/// Time to open a LUN that can wait for its storage.
const WAITABLE_OPEN_TIME_MAX: Duration = Duration::from_secs(5);
/// Time after which no further LUN is tried, if they can wait: a start is not delayed by more.
const WAITABLE_OPEN_TIME_MAX_ALL: Duration = Duration::from_secs(15);

/// Handling of a remote LUN whose storage is unreachable.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum UnavailableStorage {
    /// The operation fails.
    #[default]
    Fails,
    /// The LUN waits until its storage returns; the operation continues without it.
    Waits,
}

impl UnavailableStorage {
    /// True if the failure to open a LUN lets it wait.
    pub(super) fn lets_wait(self, failure: &Failure) -> bool {
        self == Self::Waits && failure.is_temporary()
    }
}

/// Opens the devices of remote LUNs, and pools of them, several at a time. Returns the results in
/// the order of `units`.
pub(super) fn open_remotes(
    opener: &dyn Opener,
    units: &[&UnitConfig],
    policy: UnavailableStorage,
) -> Vec<Result<OpenedStorage, Failure>> {
    let begin = Instant::now();
    let open = |unit: &UnitConfig| match policy {
        UnavailableStorage::Fails => open_storage(opener, unit, REMOTE_OPEN_TIME_MAX),
        UnavailableStorage::Waits if begin.elapsed() >= WAITABLE_OPEN_TIME_MAX_ALL => {
            let what = "not tried yet, because other storages did not answer";
            Err(Failure { kind: FailureKind::Unavailable, ..Failure::new(what) })
        }
        UnavailableStorage::Waits => open_storage(opener, unit, WAITABLE_OPEN_TIME_MAX),
    };
    let next = Mutex::new(units.iter().enumerate());
    let results = Mutex::new(Vec::new());
    let work = || {
        loop {
            let taken = next.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some((index, unit)) = taken else { return };
            let result = open(unit);
            results.lock().unwrap_or_else(PoisonError::into_inner).push((index, result));
        }
    };
    std::thread::scope(|scope| {
        // This thread works too: without further threads, LUNs are opened one after the other.
        for _ in 1..units.len().min(OPENED_AT_ONCE_MAX) {
            let thread = std::thread::Builder::new().name("open".to_owned());
            if let Err(error) = thread.spawn_scoped(scope, work) {
                tracing::warn!(%error, "cannot start a thread to open remote LUNs");
            }
        }
        work();
    });
    let mut results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    results.sort_by_key(|(index, _)| *index);
    results.into_iter().map(|(_, result)| result).collect()
}
