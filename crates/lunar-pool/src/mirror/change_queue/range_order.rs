//! Ranges in the order of their arrival: each waits for the earlier ones that overlap it.

use lunar_block::BlockRange;
use std::collections::BTreeMap;
use tokio::sync::oneshot;

/// Number of spans of ranges that have ended which are kept in any case: they are removed together.
const ENDED_SPANS_MAX: usize = 64;

/// Number of slots that an empty order keeps.
const KEPT_SLOTS_MAX: usize = 64;

/// Ranges that have not ended, in the order of their arrival.
///
/// A range waits for the last earlier one of each of its blocks, and through these for all others.
/// Therefore the work for a range does not grow with the number of those that wait, except for
/// searches in trees: it replaces the spans that it covers.
#[derive(Debug, Default)]
pub(super) struct RangeOrder {
    ranges: RangeTable,
    /// The last range of each block, as spans that do not overlap, by their first block. Those of
    /// ranges that have ended count for nothing.
    spans: BTreeMap<u64, RangeSpan>,
}

/// The number of a range in an order, which is not used again.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) struct RangeId {
    slot: u32,
    /// Number of ranges that had the slot before.
    former: u64,
}

/// Tells that all earlier overlapping ranges have ended.
pub(super) type RangeGranted = oneshot::Receiver<()>;

/// The waiters to be woken, without any lock.
pub(super) type RangeGrants = Vec<oneshot::Sender<()>>;

#[derive(Debug)]
struct OrderedRange {
    /// Number of ranges for which this one waits.
    earlier: usize,
    /// The ranges that wait for this one.
    later: Vec<RangeId>,
    grant: Option<oneshot::Sender<()>>,
    /// True if the range ends as soon as it waits for no other one.
    has_left: bool,
}

#[derive(Clone, Copy, Debug)]
struct RangeSpan {
    /// The first block behind it.
    end: u64,
    range: RangeId,
}

/// Ranges in slots that are used again.
#[derive(Debug, Default)]
struct RangeTable {
    slots: Vec<RangeSlot>,
    free: Vec<u32>,
}

#[derive(Debug)]
struct RangeSlot {
    former: u64,
    range: Option<OrderedRange>,
}

impl RangeTable {
    fn insert(&mut self, range: OrderedRange) -> RangeId {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(RangeSlot { former: 0, range: None });
            self.slots.len() as u32 - 1
        });
        let entry = &mut self.slots[slot as usize];
        entry.range = Some(range);
        RangeId { slot, former: entry.former }
    }

    fn slot(&mut self, id: RangeId) -> Option<&mut RangeSlot> {
        self.slots.get_mut(id.slot as usize).filter(|slot| slot.former == id.former)
    }

    fn get_mut(&mut self, id: RangeId) -> Option<&mut OrderedRange> {
        self.slot(id)?.range.as_mut()
    }

    fn contains(&self, id: RangeId) -> bool {
        self.slots.get(id.slot as usize).is_some_and(|slot| slot.former == id.former)
    }

    fn remove(&mut self, id: RangeId) -> Option<OrderedRange> {
        let slot = self.slot(id)?;
        let range = slot.range.take()?;
        slot.former += 1;
        self.free.push(id.slot);
        Some(range)
    }

    fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Frees the memory of many slots. To be called while no range is there: numbers begin anew.
    fn shrink(&mut self) {
        if self.slots.len() > KEPT_SLOTS_MAX {
            *self = Self::default();
        }
    }
}

impl RangeOrder {
    /// Adds a range, which is not empty. Without a receiver it need not wait.
    /// [`leave`](Self::leave) follows in any case.
    pub(super) fn enter(&mut self, range: BlockRange) -> (RangeId, Option<RangeGranted>) {
        let end = range.lba + range.count;
        let covered: Vec<_> = self.overlapping(range).collect();
        let mut earlier = Vec::with_capacity(covered.len());
        for (first, span) in covered {
            self.spans.remove(&first);
            if !self.ranges.contains(span.range) {
                continue;
            }
            earlier.push(span.range);
            if first < range.lba {
                self.spans.insert(first, RangeSpan { end: range.lba, ..span });
            }
            if span.end > end {
                self.spans.insert(end, span);
            }
        }
        let (id, granted) = self.add(earlier, false);
        self.spans.insert(range.lba, RangeSpan { end, range: id });
        (id, granted)
    }

    /// Returns a receiver that is told when all present ranges that overlap `range` have ended;
    /// `None` if there are none. Later ranges do not wait for it.
    pub(super) fn watch(&mut self, range: BlockRange) -> Option<RangeGranted> {
        let present = self.overlapping(range).map(|(_, span)| span.range);
        let present: Vec<_> = present.filter(|id| self.ranges.contains(*id)).collect();
        if present.is_empty() { None } else { self.add(present, true).1 }
    }

    /// Adds a range that waits for others.
    fn add(
        &mut self,
        mut earlier: Vec<RangeId>,
        has_left: bool,
    ) -> (RangeId, Option<RangeGranted>) {
        earlier.sort_unstable();
        earlier.dedup();
        let (grant, granted) = match earlier.is_empty() {
            true => (None, None),
            false => {
                let (grant, granted) = oneshot::channel();
                (Some(grant), Some(granted))
            }
        };
        let added = OrderedRange { earlier: earlier.len(), later: Vec::new(), grant, has_left };
        let id = self.ranges.insert(added);
        for before in earlier {
            if let Some(before) = self.ranges.get_mut(before) {
                before.later.push(id);
            }
        }
        (id, granted)
    }

    /// Ends a range. One that still waits leaves the order; those behind it go on waiting for the
    /// earlier ones.
    pub(super) fn leave(&mut self, id: RangeId) -> RangeGrants {
        let Some(range) = self.ranges.get_mut(id) else { return Vec::new() };
        if range.earlier > 0 {
            (range.has_left, range.grant) = (true, None);
            return Vec::new();
        }
        let (mut grants, mut ended, mut next) = (Vec::new(), Vec::new(), Some(id));
        while let Some(range) = next.and_then(|id| self.ranges.remove(id)) {
            for id in range.later {
                let Some(later) = self.ranges.get_mut(id) else { continue };
                later.earlier -= 1;
                if later.earlier == 0 {
                    grants.extend(later.grant.take());
                    ended.extend(later.has_left.then_some(id));
                }
            }
            next = ended.pop();
        }
        // Ranges that have not ended have at most two spans each: their ends lie apart from others,
        // or at the ends of later ranges that wait for them.
        if self.ranges.len() == 0 {
            while self.spans.pop_first().is_some() {} // `clear` would free the memory
            self.ranges.shrink();
        } else if self.spans.len() > 4 * self.ranges.len() + ENDED_SPANS_MAX {
            self.spans.retain(|_, span| self.ranges.contains(span.range));
        }
        grants
    }

    /// Number of ranges that have not ended.
    pub(super) fn len(&self) -> usize {
        self.ranges.len()
    }

    fn overlapping(&self, range: BlockRange) -> impl Iterator<Item = (u64, RangeSpan)> {
        let before = self.spans.range(..range.lba).next_back();
        let before = before.filter(|(_, span)| span.end > range.lba);
        let within = self.spans.range(range.lba..range.lba + range.count);
        before.into_iter().chain(within).map(|(first, span)| (*first, *span))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Ranges that each wait for all earlier ones that overlap them: the definition of the order.
    #[derive(Default)]
    struct Model(Vec<ModelRange>);

    struct ModelRange {
        id: RangeId,
        range: BlockRange,
        granted: Option<RangeGranted>,
        has_left: bool,
    }

    impl Model {
        fn waits(&self, at: usize) -> bool {
            let range = self.0[at].range;
            let overlaps = |one: &ModelRange| {
                one.range.lba < range.lba + range.count
                    && range.lba < one.range.lba + one.range.count
            };
            self.0[..at].iter().any(overlaps)
        }

        /// Removes the ranges that have left and wait no more.
        fn end(&mut self) {
            while let Some(at) =
                (0..self.0.len()).find(|at| self.0[*at].has_left && !self.waits(*at))
            {
                self.0.remove(at);
            }
        }
    }

    proptest! {
        /// Goal: a range has its turn when all earlier ones that overlap it have ended, also
        /// through those that have left the order, and nothing is left at the end.
        #[test]
        fn the_order_is_that_of_the_definition(
            steps in prop::collection::vec((0..60u64, 1..12u64, 0..3u8), 0..150),
        ) {
            let mut order = RangeOrder::default();
            let mut model = Model::default();
            for (lba, count, kind) in steps {
                let range = BlockRange::new(lba, count);
                if kind == 0 && !model.0.is_empty() {
                    let at = lba as usize % model.0.len();
                    if !model.0[at].has_left {
                        model.0[at].has_left = true;
                        order.leave(model.0[at].id).into_iter().for_each(|grant| {
                            grant.send(()).unwrap();
                        });
                    }
                } else {
                    let (id, granted) = order.enter(range);
                    model.0.push(ModelRange { id, range, granted, has_left: false });
                }
                model.end();
                for at in 0..model.0.len() {
                    let waits = model.waits(at);
                    let one = &mut model.0[at];
                    let granted = one.granted.as_mut().is_none_or(|it| it.try_recv().is_ok());
                    if granted {
                        one.granted = None;
                    }
                    prop_assert_eq!(granted, !waits, "{:?}", one.range);
                }
                prop_assert_eq!(order.len(), model.0.len());
                let all = BlockRange::new(lba, count);
                let overlaps = model.0.iter().any(|one| {
                    one.range.lba < lba + count && lba < one.range.lba + one.range.count
                });
                let is_open = |(_, span): (u64, RangeSpan)| order.ranges.contains(span.range);
                prop_assert_eq!(order.overlapping(all).any(is_open), overlaps);
                prop_assert!(order.spans.len() <= 4 * order.len() + ENDED_SPANS_MAX + 3);
            }
            for one in model.0 {
                order.leave(one.id);
            }
            prop_assert!(order.len() == 0 && order.spans.is_empty());
        }
    }

    /// Goal: of thousands of waiting ranges, each waits for few others, whether all are the same or
    /// long ones cross many short ones.
    #[test]
    fn thousands_wait_for_few_each() {
        const COUNT: u64 = 10_000;
        let same = |_: u64| BlockRange::new(0, 8);
        let crossing = |at: u64| match at.is_multiple_of(2) {
            true => BlockRange::new(0, COUNT),
            false => BlockRange::new(at, 1),
        };
        for range in [&same as &dyn Fn(u64) -> BlockRange, &crossing] {
            let mut order = RangeOrder::default();
            let ids: Vec<_> = (0..COUNT).map(|at| order.enter(range(at)).0).collect();
            let ranges = order.ranges.slots.iter().filter_map(|slot| slot.range.as_ref());
            let waits: usize = ranges.map(|range| range.earlier).sum();
            assert!(waits as u64 <= 3 * COUNT, "{waits}");
            assert!(order.spans.len() as u64 <= 2 * COUNT);
            for id in ids {
                order.leave(id);
            }
            assert!(order.len() == 0 && order.spans.is_empty());
            assert_eq!(order.ranges.slots.capacity(), 0, "the memory is freed");
        }
    }

    /// Goal: a watcher learns of the end of the present ranges, and holds up nobody.
    #[test]
    fn watchers_hold_up_nobody() {
        let mut order = RangeOrder::default();
        let range = BlockRange::new(5, 5);
        assert!(order.watch(range).is_none());
        let (first, _) = order.enter(range);
        let mut watcher = order.watch(BlockRange::new(0, 6)).unwrap();
        drop(order.watch(range));
        let (second, granted) = order.enter(range);
        for grant in order.leave(first) {
            let _ = grant.send(()); // one watcher is gone
        }
        watcher.try_recv().unwrap();
        granted.unwrap().try_recv().unwrap();
        assert_eq!(order.len(), 1, "the second range");
        order.leave(second);
        assert_eq!(order.len(), 0);
    }
}
