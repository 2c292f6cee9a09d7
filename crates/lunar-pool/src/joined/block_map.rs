//! Maps blocks of a concatenation or a stripe to blocks of its members.

use lunar_block::BlockRange;

/// The map of a pool. Blocks of members are counted from the beginning of their data.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum BlockMap {
    /// The blocks of each member follow those of the member before.
    Concat {
        /// First block of each member in the pool, and the number of blocks of the pool.
        starts: Vec<u64>,
    },
    /// Stripe units go to all members in turn.
    Stripe {
        /// Number of members.
        members: u64,
        /// Number of blocks of a stripe unit.
        unit_blocks: u64,
        /// Number of blocks of each member.
        data_blocks: u64,
    },
}

/// A run of blocks of the pool that are one run on a member.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct MappedRun {
    /// The member.
    pub(super) member: usize,
    /// First block on the member.
    pub(super) member_lba: u64,
    /// The blocks of the pool.
    pub(super) range: BlockRange,
}

impl MappedRun {
    pub(super) fn member_range(&self) -> BlockRange {
        BlockRange::new(self.member_lba, self.range.count)
    }
}

impl BlockMap {
    /// Creates the map of a concatenation of members with these numbers of blocks.
    pub(super) fn concat(data_blocks: impl IntoIterator<Item = u64>) -> Self {
        let mut starts = vec![0];
        for count in data_blocks {
            starts.push(starts.last().map_or(0, |start| start + count));
        }
        Self::Concat { starts }
    }

    /// Returns the number of blocks of the pool.
    pub(super) fn block_count(&self) -> u64 {
        match self {
            Self::Concat { starts } => starts.last().copied().unwrap_or(0),
            Self::Stripe { members, data_blocks, .. } => members * data_blocks,
        }
    }

    /// Returns the number of members.
    pub(super) fn members(&self) -> usize {
        match self {
            Self::Concat { starts } => starts.len() - 1,
            Self::Stripe { members, .. } => *members as usize,
        }
    }

    /// Returns the first run of `range`, which is not empty and within the pool.
    #[inline]
    pub(super) fn first_run(&self, range: BlockRange) -> MappedRun {
        let (member, member_lba, left) = match self {
            Self::Concat { starts } => {
                let member = starts.partition_point(|start| *start <= range.lba) - 1;
                let end = starts.get(member + 1).copied().unwrap_or(u64::MAX);
                (member, range.lba - starts[member], end - range.lba)
            }
            Self::Stripe { members, unit_blocks, .. } => {
                let (unit, inside) = (range.lba / unit_blocks, range.lba % unit_blocks);
                let member = (unit % members) as usize;
                (member, unit / members * unit_blocks + inside, unit_blocks - inside)
            }
        };
        let range = BlockRange::new(range.lba, range.count.min(left));
        MappedRun { member, member_lba, range }
    }

    /// Returns the only run of `range`; `None` if several members have a part of it, or if it is
    /// empty.
    #[inline]
    pub(super) fn only_run(&self, range: BlockRange) -> Option<MappedRun> {
        if range.count == 0 {
            return None;
        }
        let run = self.first_run(range);
        (run.range.count == range.count).then_some(run)
    }

    /// Returns the runs of `range`, which is within the pool, in order.
    pub(super) fn runs(&self, range: BlockRange) -> impl Iterator<Item = MappedRun> {
        let mut rest = range;
        std::iter::from_fn(move || {
            if rest.count == 0 {
                return None;
            }
            let run = self.first_run(rest);
            rest = BlockRange::new(rest.lba + run.range.count, rest.count - run.range.count);
            Some(run)
        })
    }

    /// Returns the blocks of a member that belong to `range`, which is within the pool. These are
    /// always consecutive.
    pub(super) fn member_range(&self, member: usize, range: BlockRange) -> BlockRange {
        let first = self.first_from(member, range.lba);
        let end = self.first_from(member, range.lba + range.count);
        BlockRange::new(first, end - first)
    }

    /// Returns the members with a part of `range`, and their parts.
    pub(super) fn parts(&self, range: BlockRange) -> Vec<(usize, BlockRange)> {
        let part = |member| (member, self.member_range(member, range));
        (0..self.members()).map(part).filter(|(_, part)| part.count > 0).collect()
    }

    /// Returns the first block on a member at or after block `lba` of the pool.
    fn first_from(&self, member: usize, lba: u64) -> u64 {
        match self {
            Self::Concat { starts } => {
                lba.clamp(starts[member], starts[member + 1]) - starts[member]
            }
            Self::Stripe { members, unit_blocks, .. } => {
                let unit = lba / unit_blocks;
                let (row, at) = (unit / members, (unit % members) as usize);
                match member.cmp(&at) {
                    std::cmp::Ordering::Less => (row + 1) * unit_blocks,
                    std::cmp::Ordering::Equal => row * unit_blocks + lba % unit_blocks,
                    std::cmp::Ordering::Greater => row * unit_blocks,
                }
            }
        }
    }

    /// Returns the block of the pool behind the run that a member has up to `member_end`: all
    /// blocks of the pool before the result and not before `lba`, if they lie on this member, are
    /// before `member_end` on it.
    pub(super) fn pool_end(&self, member: usize, member_end: u64, lba: u64) -> u64 {
        let end = match self {
            Self::Concat { starts } => {
                let end = starts[member] + member_end;
                // The member has no blocks from `lba` on if it ends there.
                if end >= starts[member + 1] { self.block_count() } else { end }
            }
            Self::Stripe { members, unit_blocks, .. } => {
                let (row, inside) = (member_end / unit_blocks, member_end % unit_blocks);
                (row * members + member as u64) * unit_blocks + inside
            }
        };
        end.max(lba).min(self.block_count())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn maps() -> impl Strategy<Value = BlockMap> {
        let concat = proptest::collection::vec(1u64..30, 2..6).prop_map(BlockMap::concat);
        let stripe = (2u64..6, 1u64..9, 1u64..9).prop_map(|(members, unit_blocks, units)| {
            BlockMap::Stripe { members, unit_blocks, data_blocks: units * unit_blocks }
        });
        prop_oneof![concat, stripe]
    }

    /// Returns the member and the member's block of every block, by counting.
    fn blocks_by_counting(map: &BlockMap) -> Vec<(usize, u64)> {
        match map {
            BlockMap::Concat { starts } => {
                let blocks_of =
                    |at: usize| (0..starts[at + 1] - starts[at]).map(move |block| (at, block));
                (0..starts.len() - 1).flat_map(blocks_of).collect()
            }
            BlockMap::Stripe { members, unit_blocks, data_blocks } => {
                let mut used = vec![0u64; *members as usize];
                let mut blocks = Vec::new();
                for unit in 0..members * data_blocks / unit_blocks {
                    let member = (unit % members) as usize;
                    for _ in 0..*unit_blocks {
                        blocks.push((member, used[member]));
                        used[member] += 1;
                    }
                }
                blocks
            }
        }
    }

    proptest! {
        /// Goal: runs, parts and ends are those of a map by counting, for every range.
        #[test]
        fn maps_like_counting(map in maps(), lba: u64, count: u64) {
            let expected = blocks_by_counting(&map);
            prop_assert_eq!(map.block_count(), expected.len() as u64);
            let lba = lba % (map.block_count() + 1);
            let range = BlockRange::new(lba, count % (map.block_count() - lba + 1));
            let blocks = &expected[range.lba as usize..][..range.count as usize];
            let mut found = Vec::new();
            for run in map.runs(range) {
                prop_assert_eq!(run.range.lba, range.lba + found.len() as u64);
                let lbas = run.member_lba..run.member_lba + run.range.count;
                found.extend(lbas.map(|lba| (run.member, lba)));
            }
            prop_assert_eq!(&found, blocks);
            let only = map.only_run(range);
            prop_assert_eq!(only.is_some(), map.runs(range).count() == 1);
            for member in 0..map.members() {
                let part = map.member_range(member, range);
                let lbas = blocks.iter().filter(|(owner, _)| *owner == member).map(|(_, lba)| *lba);
                prop_assert_eq!(lbas.collect::<Vec<_>>(),
                    (part.lba..part.lba + part.count).collect::<Vec<_>>());
                for member_end in part.lba..=part.lba + part.count {
                    let end = map.pool_end(member, member_end, range.lba);
                    let before = expected[range.lba as usize..end as usize].iter()
                        .all(|(owner, lba)| *owner != member || *lba < member_end);
                    prop_assert!(before, "{member} {member_end} {end}");
                    prop_assert!(end == map.block_count() || end == range.lba
                        || expected[end as usize] == (member, member_end));
                }
            }
        }
    }
}
