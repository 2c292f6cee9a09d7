//! Maps by task, for what is looked up with every command.

use iscsi::framing::TaskId;
use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};

/// Values by task.
pub(crate) type TaskMap<V> = HashMap<TaskId, V, BuildHasherDefault<TaskHasher>>;

/// Tasks.
pub(crate) type TaskSet = HashSet<TaskId, BuildHasherDefault<TaskHasher>>;

/// Spreads the numbers of tasks. They are ours, counted up from 1: no peer can choose ones that
/// fall together, so none of the cost of a hash that withstands that is needed.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TaskHasher(u64);

impl Hasher for TaskHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u64(&mut self, number: u64) {
        /// 2^64 divided by the golden ratio: neighbours come to lie far from each other.
        const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
        self.0 = (self.0 ^ number).wrapping_mul(SPREAD);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_are_told_apart() {
        let mut map = TaskMap::default();
        (1..=1000).for_each(|id| assert_eq!(map.insert(TaskId(id), id), None));
        (1..=1000).for_each(|id| assert_eq!(map.remove(&TaskId(id)), Some(id)));
        assert!(map.is_empty());
    }
}
