//! A hash for tables that are searched for every PDU.

use core::hash::Hasher;

/// Hashes task ids ([`TaskId`](super::TaskId)). The ids are ours, counted up from 1: a peer cannot
/// choose ids that collide, so the cost of a collision-resistant hash is not needed.
#[derive(Clone, Copy, Debug, Default)]
pub struct TaskHasher(u64);

impl Hasher for TaskHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u64(&mut self, number: u64) {
        /// 2^64 divided by the golden ratio: spreads neighbouring numbers far apart.
        const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
        self.0 = (self.0 ^ number).wrapping_mul(SPREAD);
    }
}
