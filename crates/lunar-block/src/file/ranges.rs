//! Byte ranges that are locked while they are read or written.

use super::ring;
use std::ops::Range;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Pause between two turns of a ring whose thread waits for a range.
const RING_TURN_PAUSE: Duration = Duration::from_micros(200);

/// A lock of byte ranges against concurrent reads and writes.
///
/// The kernel does not promise that a buffered read sees a block either before or after a
/// concurrent write (ext4 and block devices copy page by page without a common lock), so readers
/// share and writers exclude here. Requests are served in order of arrival. The list is as short as
/// the number of transfers in progress: one per thread, several per ring.
#[derive(Debug, Default)]
pub(crate) struct RangeLock {
    state: Mutex<State>,
    released: Condvar,
}

#[derive(Debug, Default)]
struct State {
    next_id: u64,
    waiting: usize,
    /// Entries in order of arrival. An entry holds its range if no earlier entry conflicts with it.
    entries: Vec<Entry>,
}

#[derive(Debug)]
struct Entry {
    id: u64,
    bytes: Range<u64>,
    exclusive: bool,
}

/// A held range, which is released when this is dropped.
#[derive(Debug)]
pub(crate) struct ByteRangeGuard<'a> {
    lock: &'a RangeLock,
    id: u64,
}

impl RangeLock {
    /// Locks `bytes` if no other entry conflicts, not even a waiting one.
    pub(crate) fn try_lock(
        &self,
        bytes: &Range<u64>,
        exclusive: bool,
    ) -> Option<ByteRangeGuard<'_>> {
        let mut state = self.state();
        if state.entries.iter().any(|other| other.conflicts(bytes, exclusive)) {
            return None;
        }
        Some(ByteRangeGuard { lock: self, id: state.enter(bytes, exclusive) })
    }

    /// Locks `bytes` as soon as earlier conflicting entries are released; blocks the thread.
    pub(crate) fn lock(&self, bytes: &Range<u64>, exclusive: bool) -> ByteRangeGuard<'_> {
        let mut state = self.state();
        let id = state.enter(bytes, exclusive);
        loop {
            let before = state.entries.iter().take_while(|entry| entry.id != id);
            if !before.into_iter().any(|other| other.conflicts(bytes, exclusive)) {
                return ByteRangeGuard { lock: self, id };
            }
            state.waiting += 1;
            state = self.wait(state);
            state.waiting -= 1;
        }
    }

    /// Waits until an entry is released. A thread with a ring, which comes here only if no other
    /// thread is available, may wait for a transfer of its own ring, and so turns the ring
    /// meanwhile.
    fn wait<'a>(&'a self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        if !ring::has_current() {
            return self.released.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        drop(state); // transfers that end release their ranges
        ring::process_current();
        let waited = self.released.wait_timeout(self.state(), RING_TURN_PAUSE);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Releases the range that is held as `id`.
    pub(crate) fn release(&self, id: u64) {
        let mut state = self.state();
        state.entries.retain(|entry| entry.id != id);
        if state.waiting > 0 {
            self.released.notify_all();
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ByteRangeGuard<'_> {
    /// Keeps the range locked without a borrow, until [`release`](RangeLock::release).
    pub(crate) fn into_id(self) -> u64 {
        std::mem::ManuallyDrop::new(self).id
    }
}

impl State {
    fn enter(&mut self, bytes: &Range<u64>, exclusive: bool) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        self.entries.push(Entry { id, bytes: bytes.clone(), exclusive });
        id
    }
}

impl Entry {
    fn conflicts(&self, bytes: &Range<u64>, exclusive: bool) -> bool {
        (self.exclusive || exclusive)
            && self.bytes.start < bytes.end
            && bytes.start < self.bytes.end
    }
}

impl Drop for ByteRangeGuard<'_> {
    fn drop(&mut self) {
        self.lock.release(self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    use std::time::Duration;

    /// Goal: readers share, writers exclude, neighbouring ranges do not conflict, and later readers
    /// do not overtake a waiting writer.
    #[test]
    fn readers_share_and_writers_exclude() {
        let lock = RangeLock::default();
        let reader = lock.try_lock(&(0..10), false).unwrap();
        let other = lock.try_lock(&(5..15), false).unwrap();
        assert!(lock.try_lock(&(9..10), true).is_none());
        drop(lock.try_lock(&(15..20), true).unwrap());
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| drop(lock.lock(&(0..20), true)));
            while lock.state().waiting == 0 {
                std::thread::sleep(Duration::from_millis(1));
            }
            assert!(lock.try_lock(&(0..1), false).is_none(), "the writer is earlier in the queue");
            drop(reader);
            assert!(!writer.is_finished());
            drop(other);
        });
        assert!(lock.state().entries.is_empty());
    }

    /// Goal: threads that increment one counter per range, synchronised by the lock only, lose no
    /// increment.
    #[test]
    fn excludes() {
        let lock = RangeLock::default();
        let counters: [AtomicUsize; 4] = Default::default();
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let (lock, counters) = (&lock, &counters);
                scope.spawn(move || {
                    for n in 0..500 {
                        let at = (n + thread) % 4;
                        let _guard = lock.lock(&(at..at + 1), true);
                        let seen = counters[at as usize].load(SeqCst);
                        std::hint::spin_loop();
                        counters[at as usize].store(seen + 1, SeqCst);
                    }
                });
            }
        });
        assert_eq!(counters.iter().map(|c| c.load(SeqCst)).sum::<usize>(), 2000);
        assert!(lock.state().entries.is_empty());
    }
}
