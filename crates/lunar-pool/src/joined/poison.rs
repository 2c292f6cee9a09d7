//! Poison of the members of a pool, passed on to the watcher of the pool.

use lunar_block::PoisonWatcher;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Tells the watcher of a pool when the first member is poisoned, and when the last one recovers.
#[derive(Debug)]
pub(super) struct PoisonRelay {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    poisoned: Vec<bool>,
    watcher: Option<Arc<dyn PoisonWatcher>>,
}

/// The watcher of one member.
#[derive(Debug)]
struct MemberWatcher {
    relay: Arc<PoisonRelay>,
    index: usize,
}

impl PoisonRelay {
    pub(super) fn new(members: usize) -> Arc<Self> {
        let state = State { poisoned: vec![false; members], watcher: None };
        Arc::new(Self { state: Mutex::new(state) })
    }

    /// Sets the watcher of the pool, before the members get theirs.
    pub(super) fn watch(&self, watcher: Arc<dyn PoisonWatcher>) {
        let mut state = self.state();
        state.watcher = Some(watcher);
        state.poisoned.fill(false);
    }

    pub(super) fn is_watched(&self) -> bool {
        self.state().watcher.is_some()
    }

    /// Returns the watcher for the member at `index`, which may be a new one.
    pub(super) fn of_member(relay: &Arc<Self>, index: usize) -> Arc<dyn PoisonWatcher> {
        let mut state = relay.state();
        let members = state.poisoned.len().max(index + 1);
        state.poisoned.resize(members, false);
        drop(state);
        Arc::new(MemberWatcher { relay: Arc::clone(relay), index })
    }

    /// Returns the watcher for a further member.
    pub(super) fn of_new_member(relay: &Arc<Self>) -> Arc<dyn PoisonWatcher> {
        let index = relay.state().poisoned.len();
        Self::of_member(relay, index)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PoisonWatcher for MemberWatcher {
    fn poisoned(&self) {
        let mut state = self.relay.state();
        let was_good = !state.poisoned.contains(&true);
        state.poisoned[self.index] = true;
        // The lock is held: requests of this member may fail only after the watcher has returned.
        if was_good && let Some(watcher) = &state.watcher {
            watcher.poisoned();
        }
    }

    fn recovering(&self) -> io::Result<()> {
        let mut state = self.relay.state();
        let others = state.poisoned.iter().enumerate().any(|(at, bad)| *bad && at != self.index);
        if !others && let Some(watcher) = &state.watcher {
            watcher.recovering()?;
        }
        state.poisoned[self.index] = false;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicI32, Ordering::SeqCst};

    #[derive(Debug, Default)]
    struct Count(AtomicI32);

    impl PoisonWatcher for Count {
        fn poisoned(&self) {
            self.0.fetch_add(1, SeqCst);
        }

        fn recovering(&self) -> io::Result<()> {
            self.0.fetch_sub(1, SeqCst);
            Ok(())
        }
    }

    /// Goal: the pool is poisoned from the first member's poison to the last member's recovery.
    #[test]
    fn first_and_last() {
        let (relay, count) = (PoisonRelay::new(3), Arc::new(Count::default()));
        relay.watch(Arc::clone(&count) as Arc<dyn PoisonWatcher>);
        let members = [0, 1, 2].map(|index| PoisonRelay::of_member(&relay, index));
        members[1].poisoned();
        members[2].poisoned();
        assert_eq!(count.0.load(SeqCst), 1);
        members[1].recovering().unwrap();
        assert_eq!(count.0.load(SeqCst), 1, "another member is poisoned");
        members[2].recovering().unwrap();
        assert_eq!(count.0.load(SeqCst), 0);
    }
}
