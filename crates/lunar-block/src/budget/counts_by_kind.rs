//! Counts of bytes by kind, kept in shards so that counting needs no contention.

use super::MemoryKind;
use std::array;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

const KINDS: usize = MemoryKind::ALL.len();

/// Number of shards. Each but the last one belongs to one thread; later threads share the last.
const SHARDS: usize = 16;

/// Bytes of each kind. The threads of a server count in different shards: a count per command costs
/// one addition in a cache line of the thread, without a locked instruction.
#[derive(Debug, Default)]
pub(super) struct CountsByKind {
    shards: [Shard; SHARDS],
}

/// Sums modulo the size of `usize`: bytes may be added in one shard and subtracted in another one.
/// The alignment keeps shards out of each other's cache lines, which processors fetch in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Shard([AtomicUsize; KINDS]);

impl CountsByKind {
    /// Adds bytes, modulo the size of `usize`; `thread` is the number of the thread that calls.
    #[inline]
    pub(super) fn add_by(&self, thread: usize, kind: MemoryKind, bytes: usize) {
        let count = &self.shards[thread.min(SHARDS - 1)].0[kind as usize];
        if thread < SHARDS - 1 {
            // No other thread writes here.
            count.store(count.load(Relaxed).wrapping_add(bytes), Relaxed);
        } else {
            count.fetch_add(bytes, Relaxed);
        }
    }

    /// Returns the bytes of each kind, in the order of [`MemoryKind::ALL`]. Bytes that move between
    /// shards at the same time may be missing.
    pub(super) fn read(&self) -> [usize; KINDS] {
        array::from_fn(|kind| {
            let counts = self.shards.iter().map(|shard| shard.0[kind].load(Relaxed));
            let sum = counts.fold(0, usize::wrapping_add);
            // A subtraction that was read before its addition makes the sum negative.
            sum.cast_signed().max(0).cast_unsigned()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::statistics::thread_number;
    use std::thread;

    fn add(counts: &CountsByKind, bytes: usize) {
        counts.add_by(thread_number(), MemoryKind::Work, bytes);
    }

    /// Goal: no count is lost, though more threads count than there are shards.
    #[test]
    fn counts_of_many_threads_add_up() {
        const THREADS: usize = 3 * SHARDS;
        const TIMES: usize = 20_000;
        let counts = CountsByKind::default();
        thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    for _ in 0..TIMES {
                        add(&counts, 3);
                        add(&counts, 1_usize.wrapping_neg());
                    }
                });
            }
        });
        assert_eq!(counts.read()[MemoryKind::Work as usize], 2 * THREADS * TIMES);
    }

    /// Goal: bytes may be subtracted by another thread than the one that added them, and a
    /// subtraction that is read before its addition makes no huge number.
    #[test]
    fn subtractions_by_other_threads_add_up() {
        let counts = CountsByKind::default();
        thread::scope(|scope| drop(scope.spawn(|| add(&counts, 5_usize.wrapping_neg()))));
        assert_eq!(counts.read()[MemoryKind::Work as usize], 0);
        add(&counts, 7);
        assert_eq!(counts.read()[MemoryKind::Work as usize], 2);
    }
}
