//! Counters of a running server, for monitoring.
//!
//! The data path counts with relaxed additions into counters of its own thread; they are added up
//! when they are read.

mod commands;
mod counters;
mod report;

pub(crate) use commands::Commands;
pub use lunar_scsi::commands::OperationClass;
pub use report::{
    CommandErrors, LunStatistics, Observer, OperationStatistics, Statistics, TargetStatistics,
};

use crate::login_refusal::LoginRefusal;
use counters::LunCounters;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The counters of a server.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    /// Counters by target name in lower case.
    targets: Mutex<BTreeMap<String, Arc<TargetCounters>>>,
    login_failures: Mutex<BTreeMap<&'static str, u64>>,
}

/// The counters of a target.
#[derive(Debug, Default)]
pub(crate) struct TargetCounters {
    logins: AtomicU64,
    header_digest_errors: AtomicU64,
    data_digest_errors: AtomicU64,
    /// Counters by LUN; `None`: commands for LUNs that do not exist.
    luns: Mutex<BTreeMap<Option<u16>, Arc<LunCounters>>>,
}

impl Counters {
    /// The counters of the target with this name, which must exist: names sent by peers create
    /// none.
    fn target(&self, name: &str) -> Arc<TargetCounters> {
        Arc::clone(lock(&self.targets).entry(name.to_ascii_lowercase()).or_default())
    }

    /// Counts a refused login.
    pub(crate) fn login_refused(&self, why: LoginRefusal) {
        *lock(&self.login_failures).entry(why.label()).or_default() += 1;
    }

    /// Forgets targets that are gone and whose counters have no other user.
    fn retain(&self, is_there: impl Fn(&str) -> bool) {
        lock(&self.targets)
            .retain(|name, counters| is_there(name) || Arc::strong_count(counters) > 1);
    }
}

impl TargetCounters {
    fn lun(&self, lun: Option<u16>) -> Arc<LunCounters> {
        Arc::clone(lock(&self.luns).entry(lun).or_default())
    }

    /// Forgets LUNs that are gone and whose counters have no other user.
    fn retain(&self, is_there: impl Fn(u16) -> bool) {
        lock(&self.luns)
            .retain(|lun, counters| lun.is_none_or(&is_there) || Arc::strong_count(counters) > 1);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn add(counter: &AtomicU64, value: u64) {
    counter.fetch_add(value, Relaxed);
}
