//! The threshold of a thin unit for reporting that little free space is left. SBC-3 §4.7.3.7.

/// A threshold configured by the operator.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Threshold {
    /// THRESHOLD EXPONENT: a threshold set is 2 to this power of blocks.
    pub set_exponent: u8,
    /// Default of THRESHOLD COUNT: initiators are informed when about this number of sets or fewer
    /// is available.
    pub available_sets: u32,
}

impl Threshold {
    /// Length of a threshold set in bytes.
    pub const fn set_bytes(&self, block_bytes: u32) -> u64 {
        let exponent = if self.set_exponent > 31 { 31 } else { self.set_exponent };
        (block_bytes as u64) << exponent
    }
}

/// The space for a thin unit's blocks, in bytes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Resources {
    /// Space used by this unit.
    pub used_bytes: u64,
    /// Space available to it, and possibly to others.
    pub available_bytes: u64,
}

/// The same in threshold sets: used space is rounded up, available space is rounded down.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct SetCounts {
    /// Used LBA Mapping Resource Count.
    pub used: u32,
    /// Available LBA Mapping Resource Count.
    pub available: u32,
}

impl Resources {
    pub(crate) fn in_sets(self, set_bytes: u64) -> SetCounts {
        let count = |sets: u64| u32::try_from(sets).unwrap_or(u32::MAX);
        let set_bytes = set_bytes.max(1);
        SetCounts {
            used: count(self.used_bytes.div_ceil(set_bytes)),
            available: count(self.available_bytes / set_bytes),
        }
    }
}

/// The last measured space, and whether the threshold was reported.
#[derive(Debug, Default)]
pub(crate) struct FreeSpaceMonitor {
    resources: Option<Resources>,
    reached: bool,
}

impl FreeSpaceMonitor {
    pub(crate) fn resources(&self) -> Option<Resources> {
        self.resources
    }

    /// True from a reported crossing until the threshold is armed again.
    pub(crate) fn is_reached(&self) -> bool {
        self.reached
    }

    /// Allows the same crossing to be reported again, because the threshold has changed.
    pub(crate) fn rearm(&mut self) {
        self.reached = false;
    }

    /// Records a measurement; `true` if an armed threshold of `count` sets is reached. The count is
    /// the centre of a range of one set: available space must fall to its lower end, and the
    /// threshold is armed again above its upper one, so that a unit at the limit does not report
    /// continuously.
    pub(crate) fn observe(
        &mut self,
        resources: Resources,
        set_bytes: u64,
        count: Option<u32>,
    ) -> bool {
        self.resources = Some(resources);
        let Some(count) = count.map(u64::from) else { return false };
        let twice = resources.available_bytes.saturating_mul(2);
        let half_sets = |halves: u64| halves.saturating_mul(set_bytes);
        if self.reached {
            self.reached = twice < half_sets(2 * count + 1);
            return false;
        }
        self.reached = count > 0 && twice <= half_sets(2 * count - 1);
        self.reached
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SET: u64 = 1 << 20;

    fn available(available_bytes: u64) -> Resources {
        Resources { used_bytes: 3 * SET + 1, available_bytes }
    }

    /// Goal: one report per crossing, half a set below the count; armed again half a set above it.
    #[test]
    fn a_threshold_is_reported_once_per_crossing() {
        let mut watch = FreeSpaceMonitor::default();
        let mut is_reported = |bytes| watch.observe(available(bytes), SET, Some(10));
        assert!(!is_reported(10 * SET + SET / 2));
        assert!(!is_reported(10 * SET - SET / 2 + 1), "inside the range");
        assert!(is_reported(10 * SET - SET / 2));
        assert!(!is_reported(SET));
        assert!(!is_reported(10 * SET + SET / 2 - 1), "not armed yet");
        assert!(!is_reported(0));
        assert!(!is_reported(0));
        assert!(!is_reported(10 * SET + SET / 2), "armed");
        assert!(is_reported(0));
    }

    #[test]
    fn a_disabled_or_unreachable_threshold_is_not_reported() {
        let mut watch = FreeSpaceMonitor::default();
        assert!(!watch.observe(available(0), SET, None));
        assert!(!watch.observe(available(0), SET, Some(0)));
        assert!(watch.observe(available(0), SET, Some(1)));
        watch.rearm();
        assert!(watch.observe(available(0), SET, Some(1)));
        let mut watch = FreeSpaceMonitor::default();
        assert!(!watch.observe(available(u64::MAX), 0, Some(u32::MAX)), "no set of no bytes");
    }

    #[test]
    fn counts_of_sets() {
        assert_eq!(available(5 * SET - 1).in_sets(SET), SetCounts { used: 4, available: 4 });
        let huge = Resources { used_bytes: u64::MAX, available_bytes: u64::MAX };
        assert_eq!(huge.in_sets(0), SetCounts { used: u32::MAX, available: u32::MAX });
        let threshold = Threshold { set_exponent: 255, available_sets: 1 };
        assert_eq!(threshold.set_bytes(4096), 4096 << 31);
    }
}
