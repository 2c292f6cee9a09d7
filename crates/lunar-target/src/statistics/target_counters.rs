//! The counters of a server, by target and LUN, and their values with those of the units.

use super::counters::LunCounters;
use super::report::{LunStatistics, TargetStatistics};
use crate::lock::lock;
use crate::login_refusal::LoginRefusal;
use crate::options::{LunOptions, TargetOptions};
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
    pub(super) logins: AtomicU64,
    pub(super) header_digest_errors: AtomicU64,
    pub(super) data_digest_errors: AtomicU64,
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
    pub(super) fn lun(&self, lun: Option<u16>) -> Arc<LunCounters> {
        Arc::clone(lock(&self.luns).entry(lun).or_default())
    }

    /// Forgets LUNs that are gone and whose counters have no other user.
    fn retain(&self, is_there: impl Fn(u16) -> bool) {
        lock(&self.luns)
            .retain(|lun, counters| lun.is_none_or(&is_there) || Arc::strong_count(counters) > 1);
    }

    /// The statistics of a target, without its sessions.
    pub(crate) fn read(&self, target: &TargetOptions) -> TargetStatistics {
        let mut by_id: BTreeMap<u16, LunStatistics> = BTreeMap::new();
        for lun in &target.luns {
            let read = self.read_lun(lun);
            by_id.entry(lun.id).and_modify(|other| other.join(&read)).or_insert(read);
        }
        self.retain(|id| by_id.contains_key(&id));
        let absent = self.lun(None);
        TargetStatistics {
            name: target.name.clone(),
            logins: self.logins.load(Relaxed),
            header_digest_errors: self.header_digest_errors.load(Relaxed),
            data_digest_errors: self.data_digest_errors.load(Relaxed),
            luns: by_id.into_values().collect(),
            absent_luns: absent.read(),
            absent_lun_errors: absent.errors(),
            ..TargetStatistics::default()
        }
    }

    fn read_lun(&self, lun: &LunOptions) -> LunStatistics {
        let unit = lun.unit.statistics();
        let counters = self.lun(Some(lun.id));
        LunStatistics {
            id: lun.id,
            uuid: lun.unit.uuid(),
            cache: unit.cache,
            io_tier: unit.io_tier,
            size_bytes: unit.size_bytes,
            held_writes: unit.held_writes,
            space: unit.space,
            relayed: unit.relayed,
            backing_fault: unit.backing_fault,
            link: unit.link,
            syncs: unit.syncs,
            operations: counters.read(),
            errors: counters.errors(),
        }
    }
}
