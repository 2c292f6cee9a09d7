//! Unit attentions of one I_T nexus: conditions that a unit reports before the next command.
//! SAM-5 §5.14.

use crate::mode::THRESHOLD_DESCRIPTOR_AT;
use crate::sense::{Sense, SenseKey};
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};

/// Maximum number of different unit attentions that wait for one nexus; the oldest is removed,
/// except a reset or nexus loss.
pub const ATTENTIONS_MAX: usize = 16;

/// The condition of a unit attention: its additional sense code and qualifier, `0xAAQQ`.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Ord, PartialOrd, Hash)]
pub struct Attention(pub u16);

impl Attention {
    /// POWER ON, RESET, OR BUS DEVICE RESET OCCURRED.
    pub const POWER_ON_RESET: Self = Self::of(Sense::POWER_ON_RESET);
    /// BUS DEVICE RESET FUNCTION OCCURRED: LOGICAL UNIT RESET or TARGET RESET.
    pub const RESET_BY_FUNCTION: Self = Self::of(Sense::RESET_BY_FUNCTION);
    /// I_T NEXUS LOSS OCCURRED.
    pub const NEXUS_LOSS: Self = Self::of(Sense::NEXUS_LOSS);
    /// MODE PARAMETERS CHANGED.
    pub const MODE_PARAMETERS_CHANGED: Self = Self::of(Sense::MODE_PARAMETERS_CHANGED);
    /// RESERVATIONS PREEMPTED.
    pub const RESERVATIONS_PREEMPTED: Self = Self::of(Sense::RESERVATIONS_PREEMPTED);
    /// RESERVATIONS RELEASED.
    pub const RESERVATIONS_RELEASED: Self = Self::of(Sense::RESERVATIONS_RELEASED);
    /// REGISTRATIONS PREEMPTED.
    pub const REGISTRATIONS_PREEMPTED: Self = Self::of(Sense::REGISTRATIONS_PREEMPTED);
    /// ASYMMETRIC ACCESS STATE CHANGED.
    pub const ASYMMETRIC_ACCESS_STATE_CHANGED: Self =
        Self::of(Sense::ASYMMETRIC_ACCESS_STATE_CHANGED);
    /// CAPACITY DATA HAS CHANGED.
    pub const CAPACITY_DATA_HAS_CHANGED: Self = Self::of(Sense::CAPACITY_DATA_HAS_CHANGED);
    /// NOT READY TO READY CHANGE, MEDIUM MAY HAVE CHANGED.
    pub const MEDIUM_MAY_HAVE_CHANGED: Self = Self::of(Sense::MEDIUM_MAY_HAVE_CHANGED);
    /// COMMANDS CLEARED BY ANOTHER INITIATOR.
    pub const COMMANDS_CLEARED_BY_ANOTHER_INITIATOR: Self =
        Self::of(Sense::COMMANDS_CLEARED_BY_ANOTHER_INITIATOR);
    /// INQUIRY DATA HAS CHANGED.
    pub const INQUIRY_DATA_HAS_CHANGED: Self = Self::of(Sense::INQUIRY_DATA_HAS_CHANGED);
    /// THIN PROVISIONING SOFT THRESHOLD REACHED.
    pub const SOFT_THRESHOLD_REACHED: Self =
        Self::of(Sense::THIN_PROVISIONING_SOFT_THRESHOLD_REACHED);
    /// REPORTED LUNS DATA HAS CHANGED.
    pub const REPORTED_LUNS_DATA_HAS_CHANGED: Self =
        Self::of(Sense::REPORTED_LUNS_DATA_HAS_CHANGED);

    /// The condition that a constant sense reports. A sense without descriptors holds no memory, so
    /// none is lost; a constant cannot drop it.
    const fn of(sense: Sense) -> Self {
        let code = sense.code;
        core::mem::forget(sense);
        Self(code)
    }

    /// The sense that reports the condition. For a threshold, INFORMATION contains the offset of
    /// its descriptor in mode page 1Ch/02h. SBC-3 §4.7.3.7.
    pub const fn sense(self) -> Sense {
        let sense = Sense::new(SenseKey::UNIT_ATTENTION, self.0);
        match self {
            Self::SOFT_THRESHOLD_REACHED => sense.with_information(THRESHOLD_DESCRIPTOR_AT as u64),
            _ => sense,
        }
    }

    /// Precedence of the condition. SAM-5 §5.14.3: a reset implies a nexus loss, and both imply all
    /// other conditions established before.
    const fn precedence(self) -> u8 {
        match self {
            Self::POWER_ON_RESET => 3,
            Self::RESET_BY_FUNCTION => 2,
            Self::NEXUS_LOSS => 1,
            _ => 0,
        }
    }
}

/// Unit attentions that one command establishes, by nexus.
#[derive(Debug)]
pub(crate) struct ByNexus<N>(Vec<(N, Attention)>);

impl<N: Ord> ByNexus<N> {
    pub(crate) fn new(mut attentions: Vec<(N, Attention)>) -> Self {
        // Stable: those of one nexus stay in their order.
        attentions.sort_by(|(a, _), (b, _)| a.cmp(b));
        Self(attentions)
    }

    /// Unit attentions of one nexus, in the order in which they were established.
    pub(crate) fn of(&self, nexus: &N) -> impl Iterator<Item = Attention> {
        let first = self.0.partition_point(|(other, _)| other < nexus);
        let from_first = self.0.get(first..).unwrap_or_default();
        let its = from_first.iter().take_while(move |(other, _)| other == nexus);
        its.map(|(_, attention)| *attention)
    }
}

/// The unit attentions that wait for one nexus, each at most once.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct AttentionQueue {
    waiting: VecDeque<Attention>,
}

impl AttentionQueue {
    /// Creates an empty queue.
    pub const fn new() -> Self {
        Self { waiting: VecDeque::new() }
    }

    /// Establishes a unit attention. One that waits already is not repeated; a reset or a nexus
    /// loss replaces conditions of lower precedence.
    pub fn establish(&mut self, attention: Attention) {
        let precedence = attention.precedence();
        let subsumed = self.waiting.iter().any(|waiting| {
            *waiting == attention || (precedence > 0 && waiting.precedence() > precedence)
        });
        if subsumed {
            return;
        }
        if precedence > 0 {
            self.waiting.clear();
        } else if self.waiting.len() >= ATTENTIONS_MAX {
            // A waiting reset stays at the front: it implies the most.
            let oldest = usize::from(self.waiting[0].precedence() > 0);
            self.waiting.remove(oldest);
        }
        self.waiting.push_back(attention);
    }

    /// Takes the next unit attention to report, which clears it (UA_INTLCK_CTRL is 00b).
    pub fn take(&mut self) -> Option<Attention> {
        self.waiting.pop_front()
    }

    /// The next unit attention to report, which stays in the queue.
    pub fn peek(&self) -> Option<Attention> {
        self.waiting.front().copied()
    }

    /// Number of waiting unit attentions.
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Clears one kind: REPORT LUNS does so with REPORTED LUNS DATA HAS CHANGED.
    pub fn clear(&mut self, attention: Attention) {
        self.waiting.retain(|waiting| *waiting != attention);
    }

    /// True if no unit attention waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

/// A time of a logical clock that all units of the process share: it orders logins and
/// announcements. A unit that attaches a nexus late determines from this time which announcements
/// the nexus missed.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Ord, PartialOrd)]
pub struct LogicalTime(u64);

impl LogicalTime {
    /// Returns a time later than all before.
    pub fn next() -> Self {
        static CLOCK: AtomicU64 = AtomicU64::new(0);
        Self(CLOCK.fetch_add(1, Ordering::Relaxed) + 1)
    }
}

/// The nexuses that an announcement is for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Audience {
    All,
    /// Nexuses that logged in before this time.
    LoggedInBefore(LogicalTime),
}

impl Audience {
    fn includes(self, logged_in: LogicalTime) -> bool {
        match self {
            Self::All => true,
            Self::LoggedInBefore(time) => logged_in < time,
        }
    }

    /// True if an announcement to this audience makes an older one of its kind superfluous. Of two
    /// announcements for nexuses that logged in before some time, the later one has the later time.
    fn covers(self, older: Self) -> bool {
        self == Self::All || older != Self::All
    }
}

/// Unit attentions for the nexuses of a unit, with their times: a nexus takes missed ones into its
/// queue when it is next accessed. The cost of an announcement does not depend on the number of
/// nexuses.
#[derive(Debug, Default)]
pub(crate) struct Announcements {
    last: LogicalTime,
    /// Announcements that some nexus may not have received, the oldest first, each kind once per
    /// kind of audience.
    waiting: VecDeque<Announcement>,
}

#[derive(Clone, Copy, Debug)]
struct Announcement {
    time: LogicalTime,
    attention: Attention,
    audience: Audience,
}

impl Announcements {
    /// Time of the last announcement.
    pub(crate) fn last(&self) -> LogicalTime {
        self.last
    }

    pub(crate) fn add(&mut self, attention: Attention, audience: Audience) {
        self.last = LogicalTime::next();
        self.waiting.retain(|old| old.attention != attention || !audience.covers(old.audience));
        if self.waiting.len() >= ATTENTIONS_MAX {
            let oldest = self.waiting.iter().position(|old| old.attention.precedence() == 0);
            self.waiting.remove(oldest.unwrap_or_default());
        }
        self.waiting.push_back(Announcement { time: self.last, attention, audience });
    }

    /// Returns the announcements after `received_until` to a nexus that logged in at `logged_in`.
    pub(crate) fn after(
        &self,
        received_until: LogicalTime,
        logged_in: LogicalTime,
    ) -> impl Iterator<Item = Attention> {
        let first =
            self.waiting.partition_point(|announcement| announcement.time <= received_until);
        let undelivered = self.waiting.range(first..);
        undelivered.filter(move |its| its.audience.includes(logged_in)).map(|its| its.attention)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use core::cell::Cell;
    use core::cmp::Ordering;
    use proptest::prelude::*;

    fn drain(queue: &mut AttentionQueue) -> Vec<Attention> {
        core::iter::from_fn(|| queue.take()).collect()
    }

    #[test]
    fn each_attention_is_queued_once_and_in_order() {
        let mut queue = AttentionQueue::new();
        queue.establish(Attention::RESERVATIONS_RELEASED);
        queue.establish(Attention::MODE_PARAMETERS_CHANGED);
        queue.establish(Attention::RESERVATIONS_RELEASED);
        let order = [Attention::RESERVATIONS_RELEASED, Attention::MODE_PARAMETERS_CHANGED];
        assert_eq!(drain(&mut queue), order);
        assert!(queue.is_empty());
    }

    /// A reset replaces earlier conditions; later ones are reported after it.
    #[test]
    fn a_reset_replaces_earlier_attentions() {
        let mut queue = AttentionQueue::new();
        queue.establish(Attention::MODE_PARAMETERS_CHANGED);
        queue.establish(Attention::NEXUS_LOSS);
        queue.establish(Attention::RESET_BY_FUNCTION);
        queue.establish(Attention::NEXUS_LOSS);
        queue.establish(Attention::CAPACITY_DATA_HAS_CHANGED);
        let order = [Attention::RESET_BY_FUNCTION, Attention::CAPACITY_DATA_HAS_CHANGED];
        assert_eq!(drain(&mut queue), order);
    }

    /// Goal: memory stays bounded. Method: many new codes; the reset at the front stays.
    #[test]
    fn the_queue_is_bounded() {
        let mut queue = AttentionQueue::new();
        queue.establish(Attention::POWER_ON_RESET);
        for code in 0..1000 {
            queue.establish(Attention(0x8000 + code));
        }
        let left = drain(&mut queue);
        assert_eq!(left.len(), ATTENTIONS_MAX);
        assert_eq!(left[0], Attention::POWER_ON_RESET);
        assert_eq!(left[ATTENTIONS_MAX - 1], Attention(0x8000 + 999));
    }

    #[test]
    fn clearing_removes_one_kind_of_attention() {
        let mut queue = AttentionQueue::new();
        queue.establish(Attention::REPORTED_LUNS_DATA_HAS_CHANGED);
        queue.establish(Attention::NEXUS_LOSS);
        queue.establish(Attention::REPORTED_LUNS_DATA_HAS_CHANGED);
        queue.clear(Attention::REPORTED_LUNS_DATA_HAS_CHANGED);
        assert_eq!(drain(&mut queue), [Attention::NEXUS_LOSS]);
    }

    proptest! {
        /// Goal: a nexus that takes announcements from time to time has the same conditions at the
        /// end as one whose queue received each at once; except that a repeated reset implies those
        /// in between.
        #[test]
        fn late_attachment_reports_the_same_attentions(
            codes in prop::collection::vec((0_usize..6, any::<bool>(), any::<bool>()), 0..40),
        ) {
            const KINDS: [Attention; 6] = [
                Attention::POWER_ON_RESET,
                Attention::RESET_BY_FUNCTION,
                Attention::NEXUS_LOSS,
                Attention::MODE_PARAMETERS_CHANGED,
                Attention::CAPACITY_DATA_HAS_CHANGED,
                Attention::INQUIRY_DATA_HAS_CHANGED,
            ];
            let mut announcements = Announcements::default();
            let (mut at_once, mut late, mut received_until) =
                (AttentionQueue::new(), AttentionQueue::new(), LogicalTime::next());
            let login_time = received_until;
            let mut receive = |announcements: &Announcements, late: &mut AttentionQueue| {
                for attention in announcements.after(received_until, login_time) {
                    late.establish(attention);
                }
                received_until = announcements.last();
            };
            for (kind, looks, takes) in codes {
                at_once.establish(KINDS[kind]);
                announcements.add(KINDS[kind], Audience::All);
                if looks {
                    receive(&announcements, &mut late);
                }
                if takes {
                    receive(&announcements, &mut late);
                    // The unit may choose the order: SAM-5 §5.14.
                    let taken = late.peek();
                    for queue in [&mut late, &mut at_once] {
                        match taken {
                            Some(taken) if taken.precedence() == 0 => queue.clear(taken),
                            // An initiator that receives a reset examines everything again.
                            Some(_) => *queue = AttentionQueue::new(),
                            None => {}
                        }
                    }
                }
            }
            receive(&announcements, &mut late);
            let (late, at_once) = (drain(&mut late), drain(&mut at_once));
            prop_assert!(late.iter().all(|reported| at_once.contains(reported)), "{:?}", late);
            let has_reset = late.iter().any(|reported| reported.precedence() > 0);
            let is_covered = |one: &Attention| {
                late.contains(one) || has_reset && one.precedence() == 0
            };
            prop_assert!(at_once.iter().all(is_covered), "{:?} of {:?}", late, at_once);
        }
    }

    /// Goal: memory stays bounded. Method: many new codes alongside a reset, which stays.
    #[test]
    fn announcements_are_bounded() {
        let mut announcements = Announcements::default();
        let login_time = LogicalTime::next();
        announcements.add(Attention::POWER_ON_RESET, Audience::All);
        (0..1000).for_each(|code| announcements.add(Attention(0x8000 + code), Audience::All));
        let left: Vec<_> = announcements.after(login_time, login_time).collect();
        assert_eq!(left.len(), ATTENTIONS_MAX);
        assert_eq!((left[0], left[15]), (Attention::POWER_ON_RESET, Attention(0x8000 + 999)));
    }

    /// Goal: an announcement for nexuses that existed at some time reaches exactly these, and
    /// removes nothing that was announced to all.
    #[test]
    fn an_announcement_reaches_only_earlier_logins() {
        const KIND: Attention = Attention::MEDIUM_MAY_HAVE_CHANGED;
        let mut announcements = Announcements::default();
        let [early, between, late] = [(); 3].map(|()| LogicalTime::next());
        let received = |announcements: &Announcements, logged_in| {
            announcements.after(logged_in, logged_in).collect::<Vec<_>>()
        };
        announcements.add(KIND, Audience::LoggedInBefore(between));
        assert_eq!(received(&announcements, early), [KIND]);
        assert_eq!(received(&announcements, between), []);
        announcements.add(KIND, Audience::All);
        announcements.add(KIND, Audience::LoggedInBefore(late));
        assert_eq!(received(&announcements, between), [KIND, KIND]);
        assert_eq!(received(&announcements, late), [KIND]);
        announcements.add(KIND, Audience::All);
        assert_eq!(announcements.waiting.len(), 1);
    }

    /// A nexus that counts how often nexuses are compared.
    #[derive(Clone, Copy)]
    struct Counted<'a>(u32, &'a Cell<u32>);

    impl Ord for Counted<'_> {
        fn cmp(&self, other: &Self) -> Ordering {
            self.1.set(self.1.get() + 1);
            self.0.cmp(&other.0)
        }
    }

    impl PartialOrd for Counted<'_> {
        fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
            Some(self.cmp(other))
        }
    }

    impl PartialEq for Counted<'_> {
        fn eq(&self, other: &Self) -> bool {
            self.cmp(other).is_eq()
        }
    }

    impl Eq for Counted<'_> {}

    /// Goal: each nexus finds its own unit attentions in order, and the work for many nexuses does
    /// not grow with the product of nexuses and affected nexuses.
    #[test]
    fn attentions_are_found_by_nexus() {
        const NEXUSES: u32 = 6000;
        const CONCERNED: u32 = 511;
        let compared = Cell::new(0);
        let nexus = |number| Counted(number, &compared);
        let [first, second] =
            [Attention::REGISTRATIONS_PREEMPTED, Attention::RESERVATIONS_RELEASED];
        let concerned = |attention| (0..CONCERNED).rev().map(move |at| (nexus(3 * at), attention));
        let attentions = ByNexus::new(concerned(first).chain(concerned(second)).collect());
        for number in 0..NEXUSES {
            let found: Vec<_> = attentions.of(&nexus(number)).collect();
            let is_concerned = number % 3 == 0 && number / 3 < CONCERNED;
            let expected = if is_concerned { vec![first, second] } else { Vec::new() };
            assert_eq!(found, expected);
        }
        assert!(compared.get() < NEXUSES * 20, "{} comparisons", compared.get());
    }

    #[test]
    fn the_sense_of_an_attention() {
        assert_eq!(Attention::NEXUS_LOSS.sense(), Sense::NEXUS_LOSS);
        assert_eq!(Attention(0x2a05).sense(), Sense::REGISTRATIONS_PREEMPTED);
    }
}
