//! The time for which a member holds up the others although it answers within their limit.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// Length of the window in which late times are summed.
pub const LATENESS_WINDOW: Duration = Duration::from_secs(10);

/// Maximum time in this window for which a member may hold up the others.
pub const LATE_MAX: Duration = Duration::from_secs(5);

const SLOT: Duration = Duration::from_millis(100);

/// Number of slots of the window: bits of [`LateSlots::bits`].
const SLOTS: u64 = (LATENESS_WINDOW.as_millis() / SLOT.as_millis()) as u64;

const LATE_SLOTS_MAX: u32 = (LATE_MAX.as_millis() / SLOT.as_millis()) as u32;

/// The late times of a member. Operations that are late at the same time count once.
#[derive(Debug)]
pub struct Lateness {
    /// False if the member was never late since the last reset: most are not.
    has_any: AtomicBool,
    slots: Mutex<LateSlots>,
}

#[derive(Debug)]
struct LateSlots {
    /// Beginning of slot 0.
    origin: Instant,
    newest: u64,
    /// The slot `newest - i` is late if bit i is set.
    bits: u128,
}

impl Default for Lateness {
    fn default() -> Self {
        let slots = LateSlots { origin: Instant::now(), newest: 0, bits: 0 };
        Self { has_any: AtomicBool::new(false), slots: Mutex::new(slots) }
    }
}

impl Lateness {
    /// Creates the late times of a member that was never late.
    pub fn new() -> Self {
        Self::default()
    }

    fn slots(&self) -> MutexGuard<'_, LateSlots> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that the member has held up others.
    pub fn note(&self, from: Instant, to: Instant) {
        self.slots().note(from, to);
        self.has_any.store(true, SeqCst);
    }

    /// Forgets all late times.
    pub fn reset(&self) {
        self.slots().bits = 0;
        self.has_any.store(false, SeqCst);
    }

    /// True if the member has held up others for more than [`LATE_MAX`] of the last window.
    #[inline]
    pub fn is_excessive(&self) -> bool {
        self.has_any.load(SeqCst) && self.slots().late_by(Instant::now()) > LATE_SLOTS_MAX
    }
}

impl LateSlots {
    fn slot(&self, at: Instant) -> u64 {
        let slots = at.saturating_duration_since(self.origin).as_millis() / SLOT.as_millis();
        u64::try_from(slots).unwrap_or(u64::MAX)
    }

    fn advance(&mut self, to: u64) {
        let by = to.saturating_sub(self.newest);
        self.bits = u32::try_from(by).ok().and_then(|by| self.bits.checked_shl(by)).unwrap_or(0);
        self.bits &= (1 << SLOTS) - 1;
        self.newest += by;
    }

    fn note(&mut self, from: Instant, to: Instant) {
        let (from, to) = (self.slot(from), self.slot(to));
        self.advance(to);
        let first = from.max((self.newest + 1).saturating_sub(SLOTS));
        (first..to).for_each(|slot| self.bits |= 1 << (self.newest - slot));
    }

    fn late_by(&mut self, now: Instant) -> u32 {
        self.advance(self.slot(now));
        self.bits.count_ones()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the sums, in seconds, of late times given in milliseconds, at these moments.
    fn sums(late: &[(u64, u64)], moments: &[u64]) -> Vec<f64> {
        let origin = Instant::now();
        let at = |millis| origin + Duration::from_millis(millis);
        let mut slots = LateSlots { origin, newest: 0, bits: 0 };
        late.iter().for_each(|(from, to)| slots.note(at(*from), at(*to)));
        moments.iter().map(|now| f64::from(slots.late_by(at(*now))) / 10.0).collect()
    }

    /// Goal: times that overlap count once, and leave the window after ten seconds.
    #[test]
    fn late_times_are_united() {
        assert_eq!(sums(&[(0, 1800), (1000, 2000), (500, 2000)], &[2000, 9900]), [2.0, 2.0]);
        assert_eq!(
            sums(&[(0, 1800), (5000, 6000)], &[6000, 10_900, 12_000, 30_000]),
            [2.8, 1.8, 1.0, 0.0]
        );
    }

    /// Goal: a time longer than the window, and moments out of order, overflow nothing.
    #[test]
    fn long_and_odd_times() {
        assert_eq!(sums(&[(0, 3_600_000)], &[3_600_000, u64::from(u32::MAX)]), [9.9, 0.0]);
        assert_eq!(sums(&[(9000, 12_000), (2500, 3000), (5, 2)], &[12_000, 100]), [3.5, 3.5]);
    }

    /// Goal: a member is too late above half of the window, and not after a reset.
    #[tokio::test(start_paused = true)]
    async fn more_than_half_is_excessive() {
        let lateness = Lateness::new();
        for late in 1..=6 {
            let from = Instant::now();
            tokio::time::sleep(Duration::from_millis(1000)).await;
            lateness.note(from, Instant::now());
            assert_eq!(lateness.is_excessive(), late > 5, "{late} s");
        }
        lateness.reset();
        assert!(!lateness.is_excessive());
    }
}
