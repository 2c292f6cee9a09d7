//! Counters of a running server, for monitoring.
//!
//! The data path counts with relaxed additions into counters of its own thread; they are added up
//! when they are read.

mod commands;
mod counters;
mod operation;
mod report;

pub(crate) use commands::Commands;
pub use operation::OperationClass;
pub(crate) use report::of_target;
pub use report::{
    CommandErrors, LunStatistics, OperationStatistics, Statistics, TargetStatistics,
};

use crate::lock::lock;
use crate::login_refusal::LoginRefusal;
use counters::LunCounters;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

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
    pub(crate) fn target(&self, name: &str) -> Arc<TargetCounters> {
        Arc::clone(lock(&self.targets).entry(name.to_ascii_lowercase()).or_default())
    }

    /// Counts a refused login.
    pub(crate) fn login_refused(&self, why: LoginRefusal) {
        *lock(&self.login_failures).entry(why.label()).or_default() += 1;
    }

    /// Refused logins by reason; every reason has an entry.
    pub(crate) fn login_failures(&self) -> BTreeMap<&'static str, u64> {
        let mut failures: BTreeMap<_, _> = LoginRefusal::LABELS.map(|why| (why, 0)).into();
        failures.append(&mut lock(&self.login_failures).clone());
        failures
    }

    /// Forgets targets that are gone and whose counters have no other user.
    pub(crate) fn retain(&self, is_there: impl Fn(&str) -> bool) {
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

fn add(counter: &AtomicU64, value: u64) {
    counter.fetch_add(value, Relaxed);
}
