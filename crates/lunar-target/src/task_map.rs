//! Maps by task, for lookups with every command.

use lunar_iscsi::framing::{TaskHasher, TaskId};
use std::collections::{HashMap, HashSet};
use std::hash::BuildHasherDefault;

/// Values by task.
pub(crate) type TaskMap<V> = HashMap<TaskId, V, BuildHasherDefault<TaskHasher>>;

/// Tasks.
pub(crate) type TaskIds = HashSet<TaskId, BuildHasherDefault<TaskHasher>>;

/// Number of entries for which an empty map keeps room.
const KEPT_ENTRIES_MAX: usize = 14;

/// Memory of a map's entries.
pub(crate) fn memory_bytes<V>(map: &TaskMap<V>) -> usize {
    map.capacity() * size_of::<(TaskId, V)>()
}

/// Memory of a set of tasks.
pub(crate) fn ids_memory_bytes(ids: &TaskIds) -> usize {
    ids.capacity() * size_of::<TaskId>()
}

/// Frees spare memory of an empty map.
pub(crate) fn free_spare<V>(map: &mut TaskMap<V>) {
    if map.is_empty() && map.capacity() > KEPT_ENTRIES_MAX {
        *map = TaskMap::default();
    }
}

/// Frees spare memory of an empty set.
pub(crate) fn free_spare_ids(ids: &mut TaskIds) {
    if ids.is_empty() && ids.capacity() > KEPT_ENTRIES_MAX {
        *ids = TaskIds::default();
    }
}

/// Values by task, with the newest one kept apart: most tasks finish with it before the next one
/// comes, and look it up several times.
#[derive(Debug)]
pub(crate) struct RecentTasks<V> {
    newest: Option<(TaskId, V)>,
    others: TaskMap<V>,
}

impl<V> Default for RecentTasks<V> {
    fn default() -> Self {
        Self { newest: None, others: TaskMap::default() }
    }
}

impl<V> RecentTasks<V> {
    pub(crate) fn is_empty(&self) -> bool {
        self.newest.is_none() && self.others.is_empty()
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        memory_bytes(&self.others)
    }

    pub(crate) fn free_spare(&mut self) {
        free_spare(&mut self.others);
    }

    pub(crate) fn insert(&mut self, task: TaskId, value: V) {
        self.remove(task);
        if let Some((earlier, its)) = self.newest.replace((task, value)) {
            self.others.insert(earlier, its);
        }
    }

    pub(crate) fn get(&self, task: TaskId) -> Option<&V> {
        match &self.newest {
            Some((newest, value)) if *newest == task => Some(value),
            _ => self.others.get(&task),
        }
    }

    pub(crate) fn get_mut(&mut self, task: TaskId) -> Option<&mut V> {
        match &mut self.newest {
            Some((newest, value)) if *newest == task => Some(value),
            _ => self.others.get_mut(&task),
        }
    }

    pub(crate) fn remove(&mut self, task: TaskId) -> Option<V> {
        match self.newest.take_if(|(newest, _)| *newest == task) {
            Some((_, value)) => Some(value),
            None => self.others.remove(&task),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_are_distinguished() {
        let mut map = TaskMap::default();
        (1..=1000).for_each(|id| assert_eq!(map.insert(TaskId(id), id), None));
        (1..=1000).for_each(|id| assert_eq!(map.remove(&TaskId(id)), Some(id)));
        assert!(map.is_empty());
    }

    #[test]
    fn recent_and_earlier_tasks_are_found() {
        let mut map = RecentTasks::default();
        assert!(map.is_empty());
        for id in 1..=3 {
            map.insert(TaskId(id), id);
            assert_eq!((map.get(TaskId(id)), map.get(TaskId(4))), (Some(&id), None));
        }
        for id in 1..=3 {
            *map.get_mut(TaskId(id)).unwrap() += 10;
            assert_eq!(map.get(TaskId(id)), Some(&(id + 10)));
        }
        map.insert(TaskId(1), 21);
        assert_eq!([3, 1, 2].map(|id| map.remove(TaskId(id))), [Some(13), Some(21), Some(12)]);
        assert_eq!(map.remove(TaskId(2)), None);
        map.insert(TaskId(5), 5);
        map.insert(TaskId(5), 6);
        assert_eq!((map.remove(TaskId(5)), map.remove(TaskId(5))), (Some(6), None));
        assert!(map.is_empty());
    }
}
