//! A fast hash for tables of tasks, which are searched for every PDU.

use core::hash::Hasher;

/// Hashes task ids ([`TaskId`](super::TaskId)). The local side assigns the ids, counting up: a peer
/// cannot choose ids that collide, so no collision-resistant hash is needed.
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
