//! The waiting claims of one owner.

use super::claim_index::ClaimIndex;
use super::claims::Claim;
use std::collections::BTreeMap;

/// The claims of one owner that are not eligible, and the number of its waiting claims.
///
/// Exclusive claims on the same range exclude each other, so only the oldest of them (the front)
/// has to be compared with others: the front blocks every claim that those behind it would block.
/// Therefore the end of a claim looks at one of the claims that wait for the same range, not at
/// all.
#[derive(Debug, Default)]
pub(super) struct OwnerQueue {
    /// The fronts, and all claims that are in no chain.
    pub(super) fronts: ClaimIndex,
    /// Exclusive claims on one range, by range (first block, count) and id.
    chains: BTreeMap<(u64, u64, u64), u32>,
    /// Number of waiting claims, eligible or not.
    pub(super) waiting: usize,
}

impl OwnerQueue {
    /// Adds a claim to the chain of its range, if it belongs to one.
    pub(super) fn chain(&mut self, claim: &Claim) {
        if let Some((lba, count)) = chain_of(claim) {
            self.chains.insert((lba, count, claim.id), claim.slot);
        }
    }

    pub(super) fn unchain(&mut self, claim: &Claim) {
        if let Some((lba, count)) = chain_of(claim) {
            self.chains.remove(&(lba, count, claim.id));
        }
    }

    /// The oldest claim of the chain that a claim belongs to.
    pub(super) fn front(&self, claim: &Claim) -> Option<u32> {
        let (lba, count) = chain_of(claim)?;
        self.chains.range((lba, count, 0)..=(lba, count, u64::MAX)).next().map(|(_, slot)| *slot)
    }
}

/// The range whose chain a claim belongs to. Shared claims do not exclude each other, empty ones
/// exclude nothing, and lists are not worth their comparison.
fn chain_of(claim: &Claim) -> Option<(u64, u64)> {
    let range = claim.blocks.as_range().filter(|range| claim.exclusive && range.count > 0)?;
    Some((range.lba, range.count))
}
