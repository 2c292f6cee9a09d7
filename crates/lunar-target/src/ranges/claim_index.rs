//! Index of the claims of one kind by their blocks.

use super::blocks::ClaimedBlocks;
use super::interval_tree::IntervalTree;

/// Claims by their blocks. Exclusive and shared claims are kept apart: a shared claim need not look
/// at shared ones.
#[derive(Debug, Default)]
pub(super) struct ClaimIndex {
    exclusive: IntervalTree,
    shared: IntervalTree,
}

impl ClaimIndex {
    pub(super) fn insert(&mut self, blocks: &ClaimedBlocks, exclusive: bool, slot: u32) {
        let tree = self.tree(exclusive);
        blocks.spans().for_each(|span| tree.insert(span, slot));
    }

    pub(super) fn remove(&mut self, blocks: &ClaimedBlocks, exclusive: bool, slot: u32) {
        let tree = self.tree(exclusive);
        blocks.spans().for_each(|span| tree.remove(span.start, slot));
    }

    fn tree(&mut self, exclusive: bool) -> &mut IntervalTree {
        if exclusive { &mut self.exclusive } else { &mut self.shared }
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.exclusive.is_empty() && self.shared.is_empty()
    }

    #[cfg(test)]
    pub(super) fn memory_bytes(&self) -> usize {
        self.exclusive.memory_bytes() + self.shared.memory_bytes()
    }

    /// Calls `found` with each claim that may exclude one of these blocks, until it returns true.
    /// Returns true if it did. A claim may be passed more than once, or share no block, if it or
    /// `blocks` is a list ([`ClaimedBlocks::spans`]).
    pub(super) fn any(
        &self,
        blocks: &ClaimedBlocks,
        exclusive: bool,
        mut found: impl FnMut(u32) -> bool,
    ) -> bool {
        blocks.spans().any(|span| {
            self.exclusive.any_overlap(&span, &mut found)
                || (exclusive && self.shared.any_overlap(&span, &mut found))
        })
    }
}
