//! Age of the oldest of several system calls in progress.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// System calls that are in progress.
#[derive(Debug, Default)]
pub(super) struct CallsInProgress {
    /// Start of the oldest call, or 0 if there is none.
    since_nanos: AtomicU64,
    calls: Mutex<Calls>,
}

#[derive(Debug, Default)]
struct Calls {
    next_id: u64,
    /// Number and start of each call, in order of their start.
    running: Vec<(u64, u64)>,
}

impl CallsInProgress {
    /// Records the start of a call; returns its number for [`end`](Self::end).
    pub(super) fn begin(&self, now: u64) -> u64 {
        let mut calls = self.calls();
        let id = calls.next_id;
        calls.next_id += 1;
        calls.running.push((id, now.max(1)));
        self.note(&calls);
        id
    }

    /// Records that a call has returned.
    pub(super) fn end(&self, id: u64) {
        let mut calls = self.calls();
        calls.running.retain(|(running, _)| *running != id);
        self.note(&calls);
    }

    /// Returns true when a call has been in progress for longer than `limit`.
    pub(super) fn is_older(&self, now: u64, limit: Duration) -> bool {
        let since = self.since_nanos.load(Relaxed);
        since > 0 && now > since.saturating_add(limit.as_nanos() as u64)
    }

    fn note(&self, calls: &Calls) {
        let oldest = calls.running.first().map_or(0, |(_, since)| *since);
        self.since_nanos.store(oldest, Relaxed);
    }

    fn calls(&self) -> MutexGuard<'_, Calls> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
