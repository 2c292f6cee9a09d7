//! Serial numbers that wrap.

use crate::Field;

/// A 32-bit serial number, such as CmdSN, StatSN and DataSN, which are compared by RFC 1982
/// arithmetic: RFC 7143 §4.2.2.1.
///
/// There is no `Ord`: serial order is not transitive around the circle.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Hash)]
pub struct SerialNumber(pub u32);

impl SerialNumber {
    /// Returns the number `count` steps later, wrapping.
    #[must_use]
    pub const fn plus(self, count: u32) -> Self {
        Self(self.0.wrapping_add(count))
    }

    /// Returns the number `count` steps earlier, wrapping.
    #[must_use]
    pub const fn minus(self, count: u32) -> Self {
        Self(self.0.wrapping_sub(count))
    }

    /// The next number.
    #[must_use]
    pub const fn next(self) -> Self {
        self.plus(1)
    }

    /// Returns this number and replaces it by the next.
    pub fn take(&mut self) -> Self {
        core::mem::replace(self, self.next())
    }

    /// Number of steps from `earlier` to `self`, wrapping.
    pub const fn since(self, earlier: Self) -> u32 {
        self.0.wrapping_sub(earlier.0)
    }

    /// True if `self` comes before `other`. Numbers exactly 2^31 apart are unordered: neither is
    /// before the other.
    pub const fn before(self, other: Self) -> bool {
        let distance = other.0.wrapping_sub(self.0);
        distance != 0 && distance < 1 << 31
    }

    /// True if `self` comes after `other`.
    pub const fn after(self, other: Self) -> bool {
        other.before(self)
    }

    /// True if `first <= self <= last` on the circle. An empty window (`last` = `first` − 1)
    /// contains no number.
    pub const fn within(self, first: Self, last: Self) -> bool {
        !self.before(first) && !self.after(last) && !last.before(first)
    }
}

impl Field for SerialNumber {
    const SIZE: usize = 4;
    fn get(bytes: &[u8]) -> Self {
        Self(u32::get(bytes))
    }
    fn put(self, bytes: &mut [u8]) {
        self.0.put(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn order_holds_across_the_wrap() {
        let (before, after) = (SerialNumber(u32::MAX), SerialNumber(0));
        assert!(before.before(after) && after.after(before));
        assert!(!after.before(before));
        assert_eq!(before.next(), after);
        assert_eq!(after.since(before), 1);
        assert!(SerialNumber(0).within(SerialNumber(u32::MAX - 1), SerialNumber(3)));
        assert!(!SerialNumber(4).within(SerialNumber(u32::MAX - 1), SerialNumber(3)));
        assert!(!SerialNumber(7).within(SerialNumber(7), SerialNumber(6)), "an empty window");
    }

    proptest! {
        /// Goal: RFC 1982 order holds for every distance below 2^31, anywhere on the circle.
        #[test]
        fn numbers_less_than_2_31_apart_are_ordered(at: u32, distance in 1u32..(1 << 31)) {
            let (a, b) = (SerialNumber(at), SerialNumber(at).plus(distance));
            prop_assert!(a.before(b) && !b.before(a) && b.after(a));
            prop_assert_eq!(b.since(a), distance);
        }

        /// Goal: opposite numbers are unordered, RFC 1982.
        #[test]
        fn numbers_2_31_apart_are_unordered(at: u32) {
            let (a, b) = (SerialNumber(at), SerialNumber(at).plus(1 << 31));
            prop_assert!(!a.before(b) && !b.before(a));
        }
    }
}
