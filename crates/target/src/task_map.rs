//! Maps by task, for what is looked up with every command.

use iscsi::framing::{TaskHasher, TaskId};
use std::collections::{HashMap, HashSet};
use std::hash::BuildHasherDefault;

/// Values by task.
pub(crate) type TaskMap<V> = HashMap<TaskId, V, BuildHasherDefault<TaskHasher>>;

/// Tasks.
pub(crate) type TaskSet = HashSet<TaskId, BuildHasherDefault<TaskHasher>>;

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
