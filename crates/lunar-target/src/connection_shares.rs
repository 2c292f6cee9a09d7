//! Number of connections of each initiator, so that none exceeds its share. The cost of a login
//! does not depend on the number of connections.

use lunar_scsi::share::{Origin, Owner};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The connections of all initiators.
#[derive(Clone, Debug, Default)]
pub(crate) struct ConnectionShares(Arc<Mutex<Counts>>);

/// Connections by owner. A name that is claimed from two origins counts as two initiators.
#[derive(Debug, Default)]
struct Counts {
    of_names: HashMap<String, HashMap<Option<Origin>, usize>>,
    of_origins: HashMap<Origin, usize>,
}

/// A connection of an initiator, counted until it is dropped.
#[derive(Debug)]
pub(crate) struct ConnectionPermit {
    shares: ConnectionShares,
    name: String,
    origin: Option<Origin>,
}

impl ConnectionShares {
    /// Counts one more connection of `owner`, without a limit.
    pub(crate) fn enter(&self, owner: Owner<'_>) -> ConnectionPermit {
        self.counts().add(owner);
        self.permit(owner)
    }

    /// Counts one more connection if `owner` and its origin have fewer than `connections_max`.
    pub(crate) fn try_enter(
        &self,
        owner: Owner<'_>,
        connections_max: usize,
    ) -> Option<ConnectionPermit> {
        let mut counts = self.counts();
        if counts.of(owner) >= connections_max {
            return None;
        }
        counts.add(owner);
        drop(counts);
        Some(self.permit(owner))
    }

    fn permit(&self, owner: Owner<'_>) -> ConnectionPermit {
        let Owner { name, origin } = owner;
        ConnectionPermit { shares: self.clone(), name: name.to_owned(), origin }
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Counts {
    /// Number of connections that count for `owner`: the greater of those of its name, proven or
    /// from the same origin, and those of its origin under any name.
    fn of(&self, owner: Owner<'_>) -> usize {
        let of_name = self.of_names.get(owner.name).map_or(0, |of_name| {
            let from = |origin| of_name.get(&origin).copied().unwrap_or(0);
            from(None) + owner.origin.map_or(0, |origin| from(Some(origin)))
        });
        let of_origin = owner.origin.and_then(|origin| self.of_origins.get(&origin).copied());
        of_name.max(of_origin.unwrap_or(0))
    }

    fn add(&mut self, owner: Owner<'_>) {
        if !self.of_names.contains_key(owner.name) {
            self.of_names.insert(owner.name.to_owned(), HashMap::new());
        }
        if let Some(of_name) = self.of_names.get_mut(owner.name) {
            *of_name.entry(owner.origin).or_default() += 1;
        }
        if let Some(origin) = owner.origin {
            *self.of_origins.entry(origin).or_default() += 1;
        }
    }

    fn remove(&mut self, name: &str, origin: Option<Origin>) {
        if let Some(of_name) = self.of_names.get_mut(name) {
            take_one(of_name, &origin);
            if of_name.is_empty() {
                self.of_names.remove(name);
            }
        }
        if let Some(origin) = origin {
            take_one(&mut self.of_origins, &origin);
        }
    }
}

/// Decrements a count, and removes it at zero.
fn take_one<K: std::hash::Hash + Eq>(counts: &mut HashMap<K, usize>, key: &K) {
    if let Some(count) = counts.get_mut(key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(key);
        }
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.shares.counts().remove(&self.name, self.origin);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_scsi::share::Shares;
    use proptest::prelude::*;

    /// One step: a connection of one of [`OWNERS`] is added, then one of the existing connections
    /// may leave.
    type Step = (prop::sample::Index, Option<prop::sample::Index>);

    const OWNERS: [(&str, Option<u128>); 6] =
        [("a", None), ("a", Some(1)), ("a", Some(2)), ("b", None), ("b", Some(1)), ("b", Some(2))];

    proptest! {
        /// Goal: an owner may have one more connection exactly if [`Shares`] admits it, whose sum
        /// walks all connections.
        #[test]
        fn the_counts_equal_those_of_all_connections(steps: Vec<Step>) {
            let (shares, mut held) = (ConnectionShares::default(), Vec::new());
            let rule = Shares { of_all: usize::MAX, of_initiator: 3, of_origin: 3 };
            for (owner, leaves) in steps {
                let (name, origin) = *owner.get(&OWNERS);
                let owner = Owner { name, origin: origin.map(Origin) };
                let taken = held.iter().map(|(owner, _): &(Owner<'_>, ConnectionPermit)| *owner);
                let admits = rule.admit(taken, owner, 1);
                let permit = shares.try_enter(owner, 3);
                prop_assert_eq!(permit.is_some(), admits, "{:?} beside {:?}", owner, held);
                held.extend(permit.map(|permit| (owner, permit)));
                if let Some(leaves) = leaves.filter(|_| !held.is_empty()) {
                    held.swap_remove(leaves.index(held.len()));
                }
            }
            held.clear();
            let counts = shares.counts();
            prop_assert!(counts.of_names.is_empty() && counts.of_origins.is_empty());
        }
    }
}
