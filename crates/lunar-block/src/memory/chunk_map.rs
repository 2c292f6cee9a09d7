//! The existing chunks of one shard, by their number on the disk.

use super::{Chunk, SHARDS};
use std::collections::BTreeMap;

/// Number of chunks that are found together. In a model of random accesses to pages of 1 GiB
/// (median of three), a tree of single chunks takes 390 ns for each, a tree of groups 250.
const GROUP_CHUNKS: u64 = 16;

/// Difference between the chunk numbers of two neighbouring groups.
const GROUP_STEP: u64 = SHARDS * GROUP_CHUNKS;

/// The chunks of one shard: every [`SHARDS`]th chunk number.
#[derive(Default)]
pub(super) struct ChunkMap {
    groups: BTreeMap<u64, Box<Group>>,
}

#[derive(Default)]
struct Group {
    /// Bit mask of the chunks that exist.
    existing: u16,
    chunks: [Chunk; GROUP_CHUNKS as usize],
}

const _: () = assert!(GROUP_CHUNKS == u16::BITS as u64);

fn slot(chunk: u64) -> usize {
    (chunk / SHARDS % GROUP_CHUNKS) as usize
}

impl ChunkMap {
    /// Returns the chunk if it exists; returns `None` or an empty chunk if it does not.
    pub(super) fn get(&self, chunk: u64) -> Option<&Chunk> {
        let group = self.groups.get(&(chunk / GROUP_STEP))?;
        // Does not read `existing`, which lies in another cache line.
        Some(&group.chunks[slot(chunk)])
    }

    /// Returns the chunk if it exists.
    pub(super) fn get_mut(&mut self, chunk: u64) -> Option<&mut Chunk> {
        let group = self.groups.get_mut(&(chunk / GROUP_STEP))?;
        group.exists(slot(chunk)).then(|| &mut group.chunks[slot(chunk)])
    }

    /// Returns the chunk, creating it if necessary.
    pub(super) fn get_or_default(&mut self, chunk: u64) -> &mut Chunk {
        let group = self.groups.entry(chunk / GROUP_STEP).or_default();
        group.existing |= 1 << slot(chunk);
        &mut group.chunks[slot(chunk)]
    }

    /// Removes the chunk; frees the memory of a group with its last chunk.
    pub(super) fn remove(&mut self, chunk: u64) {
        let key = chunk / GROUP_STEP;
        let Some(group) = self.groups.get_mut(&key) else { return };
        group.existing &= !(1 << slot(chunk));
        group.chunks[slot(chunk)] = Chunk::default();
        if group.existing == 0 {
            self.groups.remove(&key);
        }
    }

    /// Returns the number of the first existing chunk from `chunk` on; `shard` is the number of
    /// this shard.
    pub(super) fn first_from(&self, chunk: u64, shard: u64) -> Option<u64> {
        // The lowest number of this shard that is not below `chunk`.
        let first = chunk.checked_add((shard + SHARDS - chunk % SHARDS) % SHARDS)?;
        self.groups.range(first / GROUP_STEP..).find_map(|(&key, group)| {
            let skipped = if key == first / GROUP_STEP { slot(first) } else { 0 };
            let left = group.existing >> skipped << skipped;
            let at = u64::from(left.trailing_zeros());
            (left != 0).then(|| key * GROUP_STEP + at * SHARDS + shard)
        })
    }

    /// Iterates over all existing chunks.
    pub(super) fn chunks(&self) -> impl Iterator<Item = &Chunk> {
        self.groups.values().flat_map(|group| {
            let slots = (0..GROUP_CHUNKS as usize).filter(|slot| group.exists(*slot));
            slots.map(|slot| &group.chunks[slot])
        })
    }

    /// Returns true when no chunk exists.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }
}

impl Group {
    fn exists(&self, slot: usize) -> bool {
        self.existing & 1 << slot != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        /// Goal: a map finds the same numbers as a set. Method: random changes and queries of both,
        /// with numbers of one shard near group boundaries and near the end of `u64`.
        #[test]
        fn the_map_agrees_with_a_set(
            shard in 0..SHARDS,
            changes in prop::collection::vec((any::<bool>(), number(), number()), 1..200),
        ) {
            let of_shard = |number: u64| (number / SHARDS * SHARDS).saturating_add(shard);
            let (mut map, mut set) = (ChunkMap::default(), BTreeSet::new());
            for (is_insertion, number, asked) in changes {
                let chunk = of_shard(number);
                if is_insertion {
                    map.get_or_default(chunk);
                    set.insert(chunk);
                } else {
                    map.remove(chunk);
                    set.remove(&chunk);
                }
                let has_page = |chunk: &Chunk| chunk.pages.iter().any(Option::is_some);
                let found = map.get(chunk).is_some_and(has_page);
                prop_assert!(!found || is_insertion);
                prop_assert_eq!(map.get_mut(chunk).is_some(), is_insertion);
                let first = set.range(asked..).next().copied();
                prop_assert_eq!(map.first_from(asked, shard), first, "from {}", asked);
                prop_assert_eq!(map.chunks().count(), set.len());
                prop_assert_eq!(map.is_empty(), set.is_empty());
            }
        }
    }

    fn number() -> impl Strategy<Value = u64> {
        let last = u64::MAX / super::super::CHUNK_BYTES;
        prop_oneof![0..4 * GROUP_STEP, last - 4 * GROUP_STEP..=last, 0..=last]
    }
}
