//! Ranges of blocks in a balanced tree. A search for the ranges that overlap a given one does not
//! look at the others.

use super::spare::is_sparse;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::ops::Range;

/// Ranges by their first block, each with the slot of its claim.
///
/// A treap: random priorities keep it balanced for any order of insertions. Each node has the last
/// block of its subtree, so that a search leaves out subtrees that end before its range begins.
#[derive(Debug)]
pub(super) struct IntervalTree {
    nodes: Vec<Node>,
    /// Indexes of nodes that are not in use.
    free: Vec<u32>,
    root: u32,
    /// The state of the generator of priorities (xorshift). Peers cannot predict it.
    random: u64,
}

#[derive(Debug)]
struct Node {
    start: u64,
    end: u64,
    /// The greatest `end` of the subtree.
    subtree_end: u64,
    slot: u32,
    priority: u32,
    left: u32,
    right: u32,
}

/// No node.
const NONE: u32 = u32::MAX;

impl Default for IntervalTree {
    fn default() -> Self {
        let random = RandomState::new().hash_one(0) | 1; // xorshift needs a state other than 0
        Self { nodes: Vec::new(), free: Vec::new(), root: NONE, random }
    }
}

impl IntervalTree {
    /// Adds the range of a claim. No two ranges of one claim may begin at the same block.
    pub(super) fn insert(&mut self, range: Range<u64>, slot: u32) {
        let node = Node {
            start: range.start,
            end: range.end,
            subtree_end: range.end,
            slot,
            priority: self.next_priority(),
            left: NONE,
            right: NONE,
        };
        let new = match self.free.pop() {
            Some(at) => {
                self.nodes[at as usize] = node;
                at
            }
            None => {
                self.nodes.push(node);
                self.nodes.len() as u32 - 1
            }
        };
        self.root = self.insert_below(self.root, new);
    }

    /// Removes the range of a claim that begins at block `start`.
    pub(super) fn remove(&mut self, start: u64, slot: u32) {
        self.root = self.remove_below(self.root, (start, slot));
        if is_sparse(self.nodes.len() - self.free.len(), self.nodes.capacity()) {
            self.free_spare();
        }
    }

    /// Moves the nodes that are in use to less memory.
    #[cold]
    fn free_spare(&mut self) {
        let used = self.nodes.len() - self.free.len();
        let mut nodes = Vec::with_capacity(2 * used);
        self.root = self.move_below(self.root, &mut nodes);
        (self.nodes, self.free) = (nodes, Vec::new());
    }

    /// Moves a subtree; returns the new index of its root.
    fn move_below(&self, at: u32, nodes: &mut Vec<Node>) -> u32 {
        let Some(node) = self.nodes.get(at as usize) else { return NONE };
        let left = self.move_below(node.left, nodes);
        let right = self.move_below(node.right, nodes);
        nodes.push(Node { left, right, ..*node });
        nodes.len() as u32 - 1
    }

    /// Memory of the nodes, in use or not.
    #[cfg(test)]
    pub(super) fn memory_bytes(&self) -> usize {
        self.nodes.capacity() * size_of::<Node>() + self.free.capacity() * size_of::<u32>()
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.root == NONE
    }

    /// Calls `found` with the slot of each range that overlaps `range`, until it returns true.
    /// Returns true if it did.
    pub(super) fn any_overlap(
        &self,
        range: &Range<u64>,
        found: &mut impl FnMut(u32) -> bool,
    ) -> bool {
        self.any_below(self.root, range, found)
    }

    fn any_below(&self, at: u32, range: &Range<u64>, found: &mut impl FnMut(u32) -> bool) -> bool {
        let Some(node) = self.nodes.get(at as usize) else { return false };
        #[cfg(test)]
        super::claims::COMPARISONS.with(|count| count.set(count.get() + 1));
        if node.subtree_end <= range.start {
            return false;
        }
        if self.any_below(node.left, range, found) {
            return true;
        }
        if node.start >= range.end {
            return false;
        }
        (node.end > range.start && found(node.slot)) || self.any_below(node.right, range, found)
    }

    fn next_priority(&mut self) -> u32 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 32) as u32
    }

    fn key(&self, at: u32) -> (u64, u32) {
        let node = &self.nodes[at as usize];
        (node.start, node.slot)
    }

    /// Puts a new node into a subtree; returns the subtree's new root.
    fn insert_below(&mut self, at: u32, new: u32) -> u32 {
        if at == NONE {
            return new;
        }
        if self.nodes[at as usize].priority < self.nodes[new as usize].priority {
            let (left, right) = self.split(at, self.key(new));
            self.nodes[new as usize].left = left;
            self.nodes[new as usize].right = right;
            self.update(new);
            return new;
        }
        if self.key(new) < self.key(at) {
            self.nodes[at as usize].left = self.insert_below(self.nodes[at as usize].left, new);
        } else {
            self.nodes[at as usize].right = self.insert_below(self.nodes[at as usize].right, new);
        }
        self.update(at);
        at
    }

    /// Takes a node out of a subtree; returns the subtree's new root.
    fn remove_below(&mut self, at: u32, key: (u64, u32)) -> u32 {
        if at == NONE {
            return NONE;
        }
        let (left, right) = (self.nodes[at as usize].left, self.nodes[at as usize].right);
        let own = self.key(at);
        if key == own {
            self.free.push(at);
            return self.merge(left, right);
        }
        if key < own {
            self.nodes[at as usize].left = self.remove_below(left, key);
        } else {
            self.nodes[at as usize].right = self.remove_below(right, key);
        }
        self.update(at);
        at
    }

    /// Splits a subtree into the nodes before `key` and those behind it.
    fn split(&mut self, at: u32, key: (u64, u32)) -> (u32, u32) {
        if at == NONE {
            return (NONE, NONE);
        }
        let halves = if self.key(at) < key {
            let (left, right) = self.split(self.nodes[at as usize].right, key);
            self.nodes[at as usize].right = left;
            (at, right)
        } else {
            let (left, right) = self.split(self.nodes[at as usize].left, key);
            self.nodes[at as usize].left = right;
            (left, at)
        };
        self.update(at);
        halves
    }

    /// Joins two subtrees, of which the left one is before the right one.
    fn merge(&mut self, left: u32, right: u32) -> u32 {
        if left == NONE || right == NONE {
            return left.min(right);
        }
        let root = if self.nodes[left as usize].priority > self.nodes[right as usize].priority {
            self.nodes[left as usize].right = self.merge(self.nodes[left as usize].right, right);
            left
        } else {
            self.nodes[right as usize].left = self.merge(left, self.nodes[right as usize].left);
            right
        };
        self.update(root);
        root
    }

    fn update(&mut self, at: u32) {
        let node = &self.nodes[at as usize];
        let end_of = |child: u32| self.nodes.get(child as usize).map_or(0, |it| it.subtree_end);
        let subtree_end = node.end.max(end_of(node.left)).max(end_of(node.right));
        self.nodes[at as usize].subtree_end = subtree_end;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Goal: after any insertions and removals, a search finds the ranges that overlap, in
        /// order of their first blocks, and no others.
        #[test]
        fn a_search_finds_overlapping_ranges(
            steps in prop::collection::vec((0..60u64, 1..20u64, any::<bool>()), 0..200),
            searched in (0..80u64, 1..20u64),
        ) {
            let mut tree = IntervalTree::default();
            let mut all: Vec<(u64, u32, u64)> = Vec::new();
            for (slot, (start, count, inserts)) in (0..).zip(steps) {
                if inserts || all.is_empty() {
                    tree.insert(start..start + count, slot);
                    all.push((start, slot, start + count));
                } else {
                    let (start, slot, _) = all.swap_remove(start as usize % all.len());
                    tree.remove(start, slot);
                }
            }
            let searched = searched.0..searched.0 + searched.1;
            let overlaps = |one: &&(u64, u32, u64)| one.0 < searched.end && one.2 > searched.start;
            let mut expected: Vec<_> = all.iter().filter(overlaps).collect();
            expected.sort_unstable();
            let expected: Vec<_> = expected.into_iter().map(|one| one.1).collect();
            let mut found = Vec::new();
            tree.any_overlap(&searched, &mut |slot| { found.push(slot); false });
            prop_assert_eq!(&found, &expected);
            let first = tree.any_overlap(&searched, &mut |_| true);
            prop_assert_eq!(first, !expected.is_empty());
            for (start, slot, _) in all {
                tree.remove(start, slot);
            }
            prop_assert!(tree.is_empty() && tree.free.len() == tree.nodes.len());
        }
    }
}
