//! A count that mostly one thread changes.

use crate::statistics::thread_number;
use std::sync::atomic::{AtomicUsize, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

/// A count of bytes. The thread that created the count changes it without a locked instruction:
/// buffers come and go with every command, mostly on the core of their connection. Any other thread
/// may change it too.
///
/// The count is the sum of two numbers modulo the size of `usize`: bytes may be added by one thread
/// and subtracted by another one.
#[derive(Debug)]
pub(super) struct ThreadCount {
    /// Number of the thread that created the count.
    thread: usize,
    /// Bytes that this thread has counted. No other thread writes here.
    own_count: AtomicUsize,
    /// Bytes that all other threads have counted.
    others_count: AtomicUsize,
}

impl Default for ThreadCount {
    fn default() -> Self {
        Self {
            thread: thread_number(),
            own_count: AtomicUsize::new(0),
            others_count: AtomicUsize::new(0),
        }
    }
}

impl ThreadCount {
    #[inline]
    pub(super) fn add(&self, bytes: usize) {
        self.add_by(thread_number(), bytes);
    }

    /// Adds bytes; `thread` is the number of the thread that calls.
    #[inline]
    pub(super) fn add_by(&self, thread: usize, bytes: usize) {
        if thread == self.thread {
            self.own_count.store(self.own_count.load(Relaxed).wrapping_add(bytes), Relaxed);
        } else {
            self.others_count.fetch_add(bytes, Release);
        }
    }

    #[inline]
    pub(super) fn subtract(&self, bytes: usize) {
        self.add(bytes.wrapping_neg());
    }

    /// Returns the count. It is exact unless other threads change it at the same time.
    #[inline]
    pub(super) fn get(&self) -> usize {
        // In this order: bytes that another thread has subtracted are not missed in the other sum.
        let others_count = self.others_count.load(Acquire);
        let sum = others_count.wrapping_add(self.own_count.load(Relaxed));
        // A subtraction that was read before its addition makes the sum negative.
        sum.cast_signed().max(0).cast_unsigned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    /// Goal: no count is lost when the thread of the count and others change it together.
    #[test]
    fn counts_of_all_threads_add_up() {
        const OTHERS: usize = 3;
        const TIMES: usize = 20_000;
        let count = ThreadCount::default();
        let change = || {
            for _ in 0..TIMES {
                count.add(3);
                count.subtract(1);
            }
        };
        thread::scope(|scope| {
            for _ in 0..OTHERS {
                scope.spawn(change);
            }
            change();
        });
        assert_eq!(count.get(), 2 * TIMES * (OTHERS + 1));
    }

    /// Goal: bytes may be subtracted by another thread than the one that added them, and a
    /// subtraction that is read before its addition makes no huge number.
    #[test]
    fn subtractions_by_other_threads_add_up() {
        let count = ThreadCount::default();
        thread::scope(|scope| drop(scope.spawn(|| count.subtract(5))));
        assert_eq!(count.get(), 0);
        count.add(7);
        assert_eq!(count.get(), 2);
        count.subtract(2);
        thread::scope(|scope| drop(scope.spawn(|| count.add(4))));
        assert_eq!(count.get(), 4);
    }
}
