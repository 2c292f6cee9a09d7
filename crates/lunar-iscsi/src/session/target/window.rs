//! The command window: which CmdSNs may come, which have come ahead of their turn.
//! RFC 7143 §4.2.2.1.

use alloc::collections::BTreeMap;
use lunar_wire::SerialNumber;

/// What stands at a CmdSN that is not the next one.
#[derive(Debug, Eq, PartialEq)]
pub(super) enum Arrived<T> {
    Request(T),
    /// Counts as received; nothing is to be done. RFC 7143 §11.6.1.
    Plugged,
}

/// ExpCmdSN, MaxCmdSN, and what came out of order. Holds at most `size` requests.
#[derive(Debug)]
pub(super) struct Window<T> {
    expected: SerialNumber,
    max: SerialNumber,
    size: u32,
    /// Numbered requests that were taken out in order and have not ended.
    active: u32,
    ahead: BTreeMap<u32, Arrived<T>>,
}

impl<T> Window<T> {
    pub(super) fn new(first: SerialNumber, size: u32) -> Self {
        // Half the circle is the most that serial arithmetic can tell apart.
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

    /// Inside the window, and not there already.
    pub(super) fn may_come(&self, cmd_sn: SerialNumber) -> bool {
        cmd_sn.within(self.expected, self.max) && !self.ahead.contains_key(&cmd_sn.0)
    }

    /// The next number may come.
    pub(super) fn is_open(&self) -> bool {
        !self.max.before(self.expected)
    }

    /// Takes the next number for a request that has just come, as [`insert`](Self::insert) and
    /// [`next`](Self::next) would; `false`: it is not the next one. To be asked
    /// [`may_come`](Self::may_come) before.
    pub(super) fn pass(&mut self, cmd_sn: SerialNumber) -> bool {
        if cmd_sn != self.expected {
            return false;
        }
        self.expected = self.expected.next();
        self.active += 1;
        self.open();
        true
    }

    /// To be asked [`may_come`](Self::may_come) before.
    pub(super) fn insert(&mut self, cmd_sn: SerialNumber, request: T) {
        self.ahead.insert(cmd_sn.0, Arrived::Request(request));
    }

    /// The number counts as received; what stands there is let go.
    pub(super) fn plug(&mut self, cmd_sn: SerialNumber) {
        if cmd_sn.within(self.expected, self.max) {
            self.ahead.insert(cmd_sn.0, Arrived::Plugged);
        }
    }

    /// All numbers before `end` that have not come count as received.
    pub(super) fn plug_before(&mut self, end: SerialNumber) {
        let mut cmd_sn = self.expected;
        while cmd_sn.before(end) && cmd_sn.within(self.expected, self.max) {
            self.ahead.entry(cmd_sn.0).or_insert(Arrived::Plugged);
            cmd_sn = cmd_sn.next();
        }
    }

    /// What stands at the next number, if it has come. A request occupies the window until
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

    /// Lets go of what came ahead and matches: it counts as not received.
    pub(super) fn discard(&mut self, matches: impl Fn(&T) -> bool) {
        self.ahead.retain(|_, arrived| match arrived {
            Arrived::Request(request) => !matches(request),
            Arrived::Plugged => true,
        });
    }

    /// Something came ahead of a number that is missing.
    pub(super) fn has_gap(&self) -> bool {
        !self.ahead.is_empty()
    }

    /// MaxCmdSN never moves back, and leaves room for what is active.
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

    /// Goal: the window holds what it says, moves forward only, and never gives up its order.
    /// Method: random arrivals and ends around the wrap, against a plain list.
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
                        if window.may_come(cmd_sn) {
                            prop_assert!(ahead >= 2, "what was acknowledged does not come again");
                            if passes && window.pass(cmd_sn) {
                                prop_assert_eq!(cmd_sn, expected);
                                delivered = expected.next();
                                active += 1;
                            } else {
                                window.insert(cmd_sn, cmd_sn);
                            }
                            prop_assert!(!window.may_come(cmd_sn), "a duplicate");
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

    /// Goal: plugging stays inside the window, however far the end is.
    #[test]
    fn plugging_is_bounded() {
        let mut window: Window<()> = Window::new(SerialNumber(5), 4);
        window.plug_before(SerialNumber(0x7000_0000));
        assert_eq!(window.ahead.len(), 4);
        while let Some(Arrived::Plugged) = window.next() {}
        assert_eq!((window.expected(), window.max()), (SerialNumber(9), SerialNumber(12)));
    }
}
