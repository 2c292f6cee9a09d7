//! The connections to storages of all hosts, counted by owner.

use super::ALL_LINKS_MAX;
use lunar_net::OwnerId;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Number of connections to storages of each owner that has any.
#[derive(Debug, Default)]
pub(super) struct LinkCount(Mutex<HashMap<OwnerId, usize>>);

/// Counts a connection until it is dropped.
#[derive(Debug)]
pub(super) struct CountedLink {
    all: Arc<LinkCount>,
    owner: OwnerId,
}

impl LinkCount {
    fn with<T>(&self, use_it: impl FnOnce(&mut HashMap<OwnerId, usize>) -> T) -> T {
        use_it(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Number of connections.
    pub(super) fn all(&self) -> usize {
        self.with(|owners| owners.values().sum())
    }

    /// Counts a further connection of an owner. Returns `None` if the owner has as many as are
    /// free: an owner with many connections leaves as many for other owners.
    pub(super) fn begin(self: &Arc<Self>, owner: OwnerId) -> Option<CountedLink> {
        self.with(|owners| {
            let left = ALL_LINKS_MAX.saturating_sub(owners.values().sum());
            let own = owners.get(&owner).copied().unwrap_or(0);
            (own < left).then(|| owners.insert(owner, own + 1))
        })?;
        Some(CountedLink { all: Arc::clone(self), owner })
    }
}

impl Drop for CountedLink {
    fn drop(&mut self) {
        self.all.with(|owners| match owners.get_mut(&self.owner) {
            Some(own) if *own > 1 => *own -= 1,
            _ => drop(owners.remove(&self.owner)),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn begin_all(count: &Arc<LinkCount>, owner: u64) -> Vec<CountedLink> {
        std::iter::from_fn(|| count.begin(OwnerId(owner))).collect()
    }

    /// Fault: one owner with a thousand connections kept all others from the fast path.
    #[test]
    fn an_owner_leaves_links_for_others() {
        let count = Arc::new(LinkCount::default());
        let first = begin_all(&count, 1);
        assert_eq!(first.len(), ALL_LINKS_MAX / 2);
        let second = begin_all(&count, 2);
        assert_eq!(second.len(), ALL_LINKS_MAX / 4);
        drop(first);
        assert_eq!(count.all(), second.len());
        drop(second);
        assert_eq!((count.all(), count.with(|owners| owners.len())), (0, 0));
    }
}
