//! A map for a bounded number of short-lived entries, which mostly come and go in order.
//!
//! The map keeps its memory: an entry that comes and goes costs no allocation, unlike in a
//! `BTreeMap` that becomes empty. Lookup is by binary search; adding the last or removing the first
//! entry moves nothing.

use alloc::collections::{VecDeque, vec_deque};
use core::cmp::Ordering;
use core::iter::Map;

/// Maximum capacity kept while the map is empty.
const KEPT_ENTRIES_MAX: usize = 32;

/// A named type, so that the compiler sees that it needs no drop.
type Iter<'a, K, V> = Map<vec_deque::Iter<'a, (K, V)>, fn(&'a (K, V)) -> (K, &'a V)>;

/// Entries in ascending order of their keys.
#[derive(Debug)]
pub(crate) struct SortedMap<K, V> {
    entries: VecDeque<(K, V)>,
}

impl<K, V> Default for SortedMap<K, V> {
    fn default() -> Self {
        Self { entries: VecDeque::new() }
    }
}

impl<K: Copy + Ord, V> SortedMap<K, V> {
    /// Returns the last value if its key is `key`: most lookups are for the newest entry.
    #[inline]
    fn last(&self, key: K) -> Option<&V> {
        self.entries.back().and_then(|(last, value)| (*last == key).then_some(value))
    }

    /// Index of `key`, or the index at which it belongs.
    fn find(&self, key: K) -> Result<usize, usize> {
        let Some((last, _)) = self.entries.back() else { return Err(0) };
        match last.cmp(&key) {
            Ordering::Less => Err(self.entries.len()),
            Ordering::Equal => Ok(self.entries.len() - 1),
            Ordering::Greater => self.entries.binary_search_by(|(other, _)| other.cmp(&key)),
        }
    }

    /// Inserts a value; returns the previous one of this key.
    #[inline]
    pub(crate) fn insert(&mut self, key: K, value: V) -> Option<V> {
        if self.entries.back().is_none_or(|(last, _)| *last < key) {
            self.entries.push_back((key, value));
            return None;
        }
        self.insert_before(key, value)
    }

    fn insert_before(&mut self, key: K, value: V) -> Option<V> {
        match self.find(key) {
            Ok(at) => Some(core::mem::replace(&mut self.entries[at].1, value)),
            Err(at) => {
                self.entries.insert(at, (key, value));
                None
            }
        }
    }

    /// Index of `key`.
    #[inline]
    fn position(&self, key: K) -> Option<usize> {
        match self.last(key).is_some() {
            true => Some(self.entries.len() - 1),
            false => self.find(key).ok(),
        }
    }

    #[inline]
    pub(crate) fn remove(&mut self, key: K) -> Option<V> {
        self.remove_if(key, |_| true)
    }

    /// Removes an entry only if its value `matches`.
    #[inline]
    pub(crate) fn remove_if(&mut self, key: K, matches: impl FnOnce(&V) -> bool) -> Option<V> {
        let at = self.position(key)?;
        if !matches(&self.entries[at].1) {
            return None;
        }
        let removed = match at + 1 == self.entries.len() {
            true => self.entries.pop_back(),
            false => self.entries.remove(at),
        };
        self.free_spare();
        removed.map(|(_, value)| value)
    }

    /// Removes the entries that do not match.
    pub(crate) fn retain(&mut self, mut matches: impl FnMut(&V) -> bool) {
        self.entries.retain(|(_, value)| matches(value));
        self.free_spare();
    }

    fn free_spare(&mut self) {
        if self.entries.is_empty() && self.entries.capacity() > KEPT_ENTRIES_MAX {
            self.entries = VecDeque::new();
        }
    }

    /// Memory of the entries in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.entries.capacity() * size_of::<(K, V)>()
    }

    #[inline]
    pub(crate) fn get(&self, key: K) -> Option<&V> {
        self.last(key).or_else(|| self.find(key).ok().map(|at| &self.entries[at].1))
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, key: K) -> Option<&mut V> {
        let at = self.position(key)?;
        self.entries.get_mut(at).map(|(_, value)| value)
    }

    #[inline]
    pub(crate) fn contains_key(&self, key: K) -> bool {
        self.get(key).is_some()
    }

    pub(crate) fn iter(&self) -> Iter<'_, K, V> {
        self.entries.iter().map(|(key, value)| (*key, value))
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = K> {
        self.entries.iter().map(|(key, _)| *key)
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &V> {
        self.entries.iter().map(|(_, value)| value)
    }

    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut V> {
        self.entries.iter_mut().map(|(_, value)| value)
    }

    pub(crate) fn clear(&mut self) {
        self.entries.clear();
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeMap;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    proptest! {
        /// Goal: the map behaves like an ordered map. Method: compared with a `BTreeMap`.
        #[test]
        fn as_any_ordered_map(
            steps in prop::collection::vec((0u8..6, 0u16..24, any::<u32>()), 0..300),
        ) {
            let (mut map, mut model) = (SortedMap::default(), BTreeMap::new());
            for (step, key, value) in steps {
                match step {
                    0 | 1 => prop_assert_eq!(map.insert(key, value), model.insert(key, value)),
                    2 => prop_assert_eq!(map.remove(key), model.remove(&key)),
                    3 => {
                        let odd = model.get(&key).is_some_and(|value| value % 2 == 1);
                        let modelled = odd.then(|| model.remove(&key)).flatten();
                        prop_assert_eq!(map.remove_if(key, |value| value % 2 == 1), modelled);
                    }
                    4 => {
                        map.values_mut().for_each(|held| *held ^= value);
                        model.values_mut().for_each(|held| *held ^= value);
                        map.retain(|held| held % 5 != 0);
                        model.retain(|_, held| *held % 5 != 0);
                    }
                    _ => {
                        let (last, modelled) = (map.keys().last(), model.keys().last().copied());
                        prop_assert_eq!(last, modelled);
                    }
                }
                prop_assert_eq!(map.get(key), model.get(&key));
                prop_assert_eq!(map.get_mut(key), model.get_mut(&key));
                prop_assert_eq!(map.contains_key(key), model.contains_key(&key));
                prop_assert_eq!((map.len(), map.is_empty()), (model.len(), model.is_empty()));
                let entries: Vec<_> = map.iter().map(|(key, value)| (key, *value)).collect();
                prop_assert_eq!(entries, Vec::from_iter(model.clone()));
                prop_assert!(map.keys().zip(map.values()).eq(model.iter().map(|(k, v)| (*k, v))));
            }
            map.clear();
            prop_assert!(map.is_empty());
        }
    }
}
