//! The size of a concatenation or a stripe, which may grow while it is in use.

use super::block_map::BlockMap;
use lunar_block::Geometry;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Maximum number of changes of the size between two openings.
const GROWTHS_MAX: usize = 31;

/// The shapes of a pool, one after the other. Transfers read the last one without a lock; an
/// earlier one is right for all blocks that it has.
#[derive(Debug)]
pub(super) struct Shapes {
    first: (Geometry, BlockMap),
    later: [OnceLock<(Geometry, BlockMap)>; GROWTHS_MAX],
    /// Number of later shapes.
    growths: AtomicUsize,
}

impl Shapes {
    pub(super) fn new(geometry: Geometry, map: BlockMap) -> Self {
        let later = std::array::from_fn(|_| OnceLock::new());
        Self { first: (geometry, map), later, growths: AtomicUsize::new(0) }
    }

    #[inline]
    fn last(&self) -> &(Geometry, BlockMap) {
        // A shape is set before it is counted.
        let last = self.growths.load(Ordering::Acquire).checked_sub(1);
        last.and_then(|last| self.later[last].get()).unwrap_or(&self.first)
    }

    #[inline]
    pub(super) fn geometry(&self) -> Geometry {
        self.last().0
    }

    #[inline]
    pub(super) fn map(&self) -> &BlockMap {
        &self.last().1
    }

    /// True if the pool can grow once more before it is opened again.
    pub(super) fn has_room(&self) -> bool {
        self.growths.load(Ordering::Acquire) < GROWTHS_MAX
    }

    /// Adds a shape; calls do not overlap.
    pub(super) fn push(&self, geometry: Geometry, map: BlockMap) {
        let next = self.growths.load(Ordering::Acquire);
        if self.later.get(next).is_some_and(|place| place.set((geometry, map)).is_ok()) {
            self.growths.store(next + 1, Ordering::Release);
        }
    }
}
