//! Counts of bytes by kind, kept in shards so that counting needs no contention.

use super::MemoryKind;
use crate::statistics::thread_number;
use std::array;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

const KINDS: usize = MemoryKind::ALL.len();

/// Number of shards. A thread uses the shard given by its thread number, so two threads may share
/// one.
const SHARDS: usize = 16;

/// Bytes of each kind. The threads of a server count in different shards: a count per command costs
/// one addition in a cache line of the thread.
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
    #[inline]
    pub(super) fn add(&self, kind: MemoryKind, bytes: usize) {
        self.mine(kind).fetch_add(bytes, Relaxed);
    }

    #[inline]
    pub(super) fn subtract(&self, kind: MemoryKind, bytes: usize) {
        self.mine(kind).fetch_sub(bytes, Relaxed);
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

    #[inline]
    fn mine(&self, kind: MemoryKind) -> &AtomicUsize {
        &self.shards[thread_number() % SHARDS].0[kind as usize]
    }
}
