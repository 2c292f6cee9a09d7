//! The limits of initiators at each target of a server.

use super::limit::InitiatorLimit;
use super::rate_limiter::InitiatorLimiters;
use crate::options::TargetOptions;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Limits by target. A target keeps its limiters as long as its sessions last, even if it is
/// replaced.
#[derive(Debug, Default)]
pub(crate) struct TargetQuotas {
    by_target: Mutex<HashMap<String, Arc<InitiatorLimiters>>>,
}

impl TargetQuotas {
    /// The limiters of a target.
    pub(crate) fn of(&self, target: &str) -> Arc<InitiatorLimiters> {
        Arc::clone(self.map().entry(target.to_ascii_lowercase()).or_default())
    }

    /// Applies a change of the catalogue. Limits that are the same in both are left alone: they may
    /// have been set to other values meanwhile.
    pub(crate) fn replace(&self, old: &[Arc<TargetOptions>], new: &[Arc<TargetOptions>]) {
        let limits = |targets: &[Arc<TargetOptions>]| -> HashMap<String, Vec<InitiatorLimit>> {
            let limits = targets.iter();
            limits.map(|t| (t.name.to_ascii_lowercase(), t.initiator_limits.clone())).collect()
        };
        let (old, new) = (limits(old), limits(new));
        let mut map = self.map();
        for (target, gates) in &*map {
            if !new.contains_key(target) {
                gates.set(Vec::new());
            }
        }
        map.retain(|target, gates| new.contains_key(target) || Arc::strong_count(gates) > 1);
        for (target, limits) in new {
            if old.get(&target) != Some(&limits) {
                map.entry(target).or_default().set(limits);
            }
        }
    }

    fn map(&self) -> MutexGuard<'_, HashMap<String, Arc<InitiatorLimiters>>> {
        self.by_target.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::super::Limit;
    use super::*;

    fn target(name: &str, limits: &[InitiatorLimit]) -> Arc<TargetOptions> {
        let initiator_limits = limits.to_vec();
        Arc::new(TargetOptions { initiator_limits, ..TargetOptions::for_test(name, 1) })
    }

    #[test]
    fn replacing_reaches_those_that_are_there() {
        let quotas = TargetQuotas::default();
        let limit = |iops| {
            let limit = Limit::new(Some(iops), None).unwrap();
            vec![InitiatorLimit { initiator: None, limit }]
        };
        let gates = quotas.of("iqn.A");
        let first = [target("iqn.a", &limit(100)), target("iqn.b", &[])];
        quotas.replace(&[], &first);
        assert_eq!(gates.limits(), limit(100));
        gates.set(limit(200));
        quotas.replace(&first, &first[..1]);
        assert_eq!(gates.limits(), limit(200), "its target was not changed");
        quotas.replace(&first, &[target("iqn.a", &limit(300))]);
        assert_eq!(gates.limits(), limit(300));
        quotas.replace(&first, &[]);
        assert!(gates.limits().is_empty() && !gates.is_limited());
        assert!(Arc::ptr_eq(&gates, &quotas.of("iqn.a")), "its sessions are there");
        drop(gates);
        quotas.replace(&[], &[]);
        assert!(quotas.map().is_empty());
    }
}
