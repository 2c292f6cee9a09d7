//! The command window: CmdSNs that may arrive, and CmdSNs that arrived early. RFC 7143 §4.2.2.1.

use alloc::collections::BTreeMap;
use lunar_wire::SerialNumber;

/// The entry at a CmdSN that is not the next one.
#[derive(Debug, Eq, PartialEq)]
pub(super) enum Arrived<T> {
    Request(T),
    /// The number counts as received without a request. RFC 7143 §11.6.1.
    Plugged,
}

/// ExpCmdSN, MaxCmdSN, and requests that arrived out of order. Holds at most `size` requests.
#[derive(Debug)]
pub(super) struct Window<T> {
    expected: SerialNumber,
    max: SerialNumber,
    size: u32,
    /// Number of requests that were taken out in order and have not ended.
    active: u32,
    ahead: BTreeMap<u32, Arrived<T>>,
}

impl<T> Window<T> {
    pub(super) fn new(first: SerialNumber, size: u32) -> Self {
        // Serial arithmetic can distinguish at most half the circle.
        let size = size.clamp(1, 1 << 30);
        Self {
            expected: first,
            max: first.minus(1).plus(size),
            size,
            active: 0,
            ahead: BTreeMap::new(),
        }
    }

    pub(super) fn expected(&self) -> SerialNumber {
        self.expected
    }

    pub(super) fn max(&self) -> SerialNumber {
        self.max
    }

    /// True if the number is inside the window and not yet used.
    pub(super) fn may_arrive(&self, cmd_sn: SerialNumber) -> bool {
        cmd_sn.within(self.expected, self.max) && !self.ahead.contains_key(&cmd_sn.0)
    }

    /// True if the next number may arrive.
    pub(super) fn is_open(&self) -> bool {
        !self.max.before(self.expected)
    }

    /// Takes the next number for a request that has just arrived, like [`insert`](Self::insert) and
    /// [`next`](Self::next); `false` if it is not the next one. Check
    /// [`may_arrive`](Self::may_arrive) before.
    pub(super) fn pass(&mut self, cmd_sn: SerialNumber) -> bool {
        if cmd_sn != self.expected {
            return false;
        }
        self.expected = self.expected.next();
        self.active += 1;
        self.open();
        true
    }

    /// Stores an early request. Check [`may_arrive`](Self::may_arrive) before.
    pub(super) fn insert(&mut self, cmd_sn: SerialNumber, request: T) {
        self.ahead.insert(cmd_sn.0, Arrived::Request(request));
    }

    /// Marks a number as received; a request stored there is dropped.
    pub(super) fn plug(&mut self, cmd_sn: SerialNumber) {
        if cmd_sn.within(self.expected, self.max) {
            self.ahead.insert(cmd_sn.0, Arrived::Plugged);
        }
    }

    /// Marks all missing numbers before `end` as received.
    pub(super) fn plug_before(&mut self, end: SerialNumber) {
        let mut cmd_sn = self.expected;
        while cmd_sn.before(end) && cmd_sn.within(self.expected, self.max) {
            self.ahead.entry(cmd_sn.0).or_insert(Arrived::Plugged);
            cmd_sn = cmd_sn.next();
        }
    }

    /// Takes the entry at the next number, if it has arrived. A request occupies the window until
    /// [`end`](Self::end).
    pub(super) fn next(&mut self) -> Option<Arrived<T>> {
        let arrived = self.ahead.remove(&self.expected.0)?;
        self.expected = self.expected.next();
        self.active += u32::from(matches!(arrived, Arrived::Request(_)));
        self.open();
        Some(arrived)
    }

    pub(super) fn end(&mut self) {
        self.active = self.active.saturating_sub(1);
        self.open();
    }

    /// Drops matching early requests: they count as not received.
    pub(super) fn discard(&mut self, matches: impl Fn(&T) -> bool) {
        self.ahead.retain(|_, arrived| match arrived {
            Arrived::Request(request) => !matches(request),
            Arrived::Plugged => true,
        });
    }

    /// True if a request arrived ahead of a missing number.
    pub(super) fn has_gap(&self) -> bool {
        !self.ahead.is_empty()
    }

    /// Opens the window: MaxCmdSN never moves back, and leaves room for active requests.
    fn open(&mut self) {
        let free = self.size.saturating_sub(self.active);
        let max = self.expected.minus(1).plus(free);
        if max.after(self.max) {
            self.max = max;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Goal: the window holds its entries, only moves forward, and keeps the order.
    /// Method: random arrivals and ends around the wrap, compared with a plain list.
    #[derive(Clone, Debug)]
    enum Step {
        Arrive(u32),
        Plug(u32),
        End,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            6 => (0u32..12).prop_map(Step::Arrive),
            1 => (0u32..12).prop_map(Step::Plug),
            3 => Just(Step::End),
        ]
    }

    proptest! {
        #[test]
        fn moves_forward_in_order(
            size in 1u32..9, start in (u32::MAX - 20)..u32::MAX, passes in any::<bool>(),
            steps in prop::collection::vec(step(), 1..200),
        ) {
            let mut window = Window::new(SerialNumber(start), size);
            let mut delivered = SerialNumber(start);
            let mut active = 0u32;
            for step in steps {
                let (expected, max) = (window.expected(), window.max());
                match step {
                    Step::Arrive(ahead) => {
                        let cmd_sn = expected.plus(ahead).minus(2);
                        if window.may_arrive(cmd_sn) {
                            prop_assert!(ahead >= 2, "an acknowledged number is accepted again");
                            if passes && window.pass(cmd_sn) {
                                prop_assert_eq!(cmd_sn, expected);
                                delivered = expected.next();
                                active += 1;
                            } else {
                                window.insert(cmd_sn, cmd_sn);
                            }
                            prop_assert!(!window.may_arrive(cmd_sn), "a duplicate");
                        }
                    }
                    Step::Plug(ahead) => window.plug(expected.plus(ahead)),
                    Step::End if active > 0 => {
                        active -= 1;
                        window.end();
                    }
                    Step::End => {}
                }
                while let Some(arrived) = window.next() {
                    if let Arrived::Request(cmd_sn) = arrived {
                        prop_assert!(!cmd_sn.before(delivered));
                        delivered = cmd_sn.next();
                        active += 1;
                    }
                }
                prop_assert!(!window.max().before(max), "MaxCmdSN moved back");
                prop_assert!(!window.expected().before(expected));
                prop_assert!(!window.max().before(window.expected().minus(1)));
                prop_assert!(active + window.max().next().since(window.expected()) <= size);
                prop_assert!(window.ahead.len() as u32 <= size);
            }
        }
    }

    /// Goal: marking numbers as received stays inside the window, however far the end is.
    #[test]
    fn received_numbers_stay_within_the_window() {
        let mut window: Window<()> = Window::new(SerialNumber(5), 4);
        window.plug_before(SerialNumber(0x7000_0000));
        assert_eq!(window.ahead.len(), 4);
        while let Some(Arrived::Plugged) = window.next() {}
        assert_eq!((window.expected(), window.max()), (SerialNumber(9), SerialNumber(12)));
    }
}
