//! A set of members of one pool.

use super::MEMBERS_MAX;
use lunar_wire::Field;

/// A set of members: the bit of value 2ⁿ is the member at slot n.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct MemberSet(pub u64);

impl MemberSet {
    /// Returns the set of the first `count` members.
    pub const fn first(count: u16) -> Self {
        if count >= MEMBERS_MAX { Self(u64::MAX) } else { Self((1 << count) - 1) }
    }

    /// True if the member at `slot` is in the set.
    pub const fn contains(self, slot: u16) -> bool {
        slot < MEMBERS_MAX && self.0 >> slot & 1 == 1
    }

    /// Adds the member at `slot`, which is below [`MEMBERS_MAX`].
    pub const fn insert(&mut self, slot: u16) {
        debug_assert!(slot < MEMBERS_MAX);
        self.0 |= 1 << slot;
    }

    /// Removes the member at `slot`.
    pub const fn remove(&mut self, slot: u16) {
        if slot < MEMBERS_MAX {
            self.0 &= !(1 << slot);
        }
    }

    /// Returns the number of members in the set.
    pub const fn len(self) -> u16 {
        self.0.count_ones() as u16
    }

    /// True if the set has no member.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns the slots of the members in order.
    pub fn slots(self) -> impl Iterator<Item = u16> {
        (0..MEMBERS_MAX).filter(move |slot| self.contains(*slot))
    }

    /// True if no member has a slot of `count` or more.
    pub(super) const fn is_within(self, count: u16) -> bool {
        self.0 & !Self::first(count).0 == 0
    }
}

impl FromIterator<u16> for MemberSet {
    fn from_iter<I: IntoIterator<Item = u16>>(slots: I) -> Self {
        let mut set = Self::default();
        slots.into_iter().for_each(|slot| set.insert(slot));
        set
    }
}

impl Field for MemberSet {
    const SIZE: usize = 8;

    fn get(bytes: &[u8]) -> Self {
        Self(Field::get(bytes))
    }

    fn put(self, bytes: &mut [u8]) {
        self.0.put(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: sets of all sizes have the right members.
    #[test]
    fn members() {
        for count in [0, 1, 2, 63, 64] {
            let set = MemberSet::first(count);
            assert_eq!(set.slots().collect::<Vec<_>>(), (0..count).collect::<Vec<_>>());
            assert!(set.is_within(count));
            assert!(count == 0 || !set.is_within(count - 1));
            assert_eq!(set.slots().collect::<MemberSet>(), set);
            assert_eq!(set.len(), count);
            let mut less = set;
            less.remove(0);
            assert!(!less.contains(0) && less.len() == count.saturating_sub(1));
            assert!(!set.contains(count) && !set.contains(64) && !set.contains(u16::MAX));
        }
    }
}
