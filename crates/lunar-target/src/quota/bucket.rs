//! A token bucket as a plain value: the time is an argument, and all arithmetic is done with
//! integers.

use lunar_wire::Time;
use std::time::Duration;

/// Time for which an unused rate accumulates units.
pub(crate) const BURST: Duration = Duration::from_millis(50);

const NANOS_PER_SECOND: i128 = 1_000_000_000;

/// Token bucket with a rate in units (commands, bytes) per second, which accumulates the units of
/// [`BURST`], but at least one.
///
/// A request may take as much as it needs while the level is above zero, also more than the level:
/// the next one waits until that debt is covered. Therefore no request is too large for a bucket,
/// and in any span of time no more is taken than the rate gives, plus one burst and one request.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Bucket {
    per_second: u64,
    /// Level in billionths of a unit, as of `at`; a value below zero is debt.
    level: i128,
    at: Time,
}

impl Bucket {
    /// A full bucket.
    pub(crate) fn new(per_second: u64, now: Time) -> Self {
        let per_second = per_second.max(1);
        Self { per_second, level: capacity(per_second), at: now }
    }

    /// Changes the rate from now on; units that were taken stay taken.
    pub(crate) fn set_rate(&mut self, per_second: u64, now: Time) {
        self.fill(now);
        self.per_second = per_second.max(1);
        self.level = self.level.min(capacity(self.per_second));
    }

    /// Time at which units can be taken: `now` or later.
    pub(crate) fn ready_at(&mut self, now: Time) -> Time {
        self.fill(now);
        if self.level > 0 {
            return now;
        }
        let missing = 1 - self.level;
        let nanos = missing.unsigned_abs().div_ceil(u128::from(self.per_second));
        now.after(Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX)))
    }

    /// Takes `units`, even if the level is lower.
    pub(crate) fn take(&mut self, units: u64, now: Time) {
        self.fill(now);
        self.level = self.level.saturating_sub(i128::from(units) * NANOS_PER_SECOND);
    }

    /// Time in which the rate gives `units`.
    pub(crate) fn time_of(&self, units: u64) -> Duration {
        let nanos = u128::from(units) * NANOS_PER_SECOND.unsigned_abs();
        let nanos = nanos / u128::from(self.per_second);
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    fn fill(&mut self, now: Time) {
        let elapsed = now.since(self.at).as_nanos();
        self.at = self.at.max(now);
        let gained = i128::try_from(elapsed).unwrap_or(i128::MAX / 2);
        let gained = gained.saturating_mul(self.per_second.into());
        self.level = self.level.saturating_add(gained).min(capacity(self.per_second));
    }
}

fn capacity(per_second: u64) -> i128 {
    let burst = i128::from(per_second).saturating_mul(BURST.as_nanos() as i128);
    burst.max(NANOS_PER_SECOND)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(millis: u64) -> Time {
        Time::from_nanos(millis * 1_000_000)
    }

    #[test]
    fn a_burst_then_the_rate() {
        let mut bucket = Bucket::new(1000, at(0));
        for _ in 0..50 {
            assert_eq!(bucket.ready_at(at(0)), at(0));
            bucket.take(1, at(0));
        }
        let next = bucket.ready_at(at(0));
        assert!(next > at(0) && next <= at(1).after(Duration::from_nanos(1)), "{next:?}");
        bucket.take(1, next);
        assert!(bucket.ready_at(next) > next);
        assert_eq!(bucket.ready_at(at(10_000)), at(10_000));
        assert_eq!(bucket.level, capacity(1000), "no more than a burst is saved up");
    }

    #[test]
    fn a_large_request_delays_the_next_one() {
        let mut bucket = Bucket::new(1 << 20, at(0));
        bucket.take(8 << 20, at(0));
        let ready = bucket.ready_at(at(0));
        assert!(ready > at(7_900) && ready < at(8_000), "{ready:?}");
        assert_eq!(bucket.time_of(8 << 20), Duration::from_secs(8));
    }

    #[test]
    fn a_changed_rate_applies_at_once() {
        let mut bucket = Bucket::new(10, at(0));
        bucket.take(101, at(0));
        assert!(bucket.ready_at(at(0)) >= at(10_000));
        bucket.set_rate(1000, at(0));
        assert!(bucket.ready_at(at(0)) <= at(101));
        bucket.set_rate(10, at(60_000));
        assert_eq!(bucket.level, capacity(10), "saved tokens are limited to the new burst");
    }

    /// Goal: nothing wraps at the limits of the types.
    #[test]
    fn extremes() {
        let end = Time::from_nanos(u64::MAX);
        for rate in [0, 1, u64::MAX] {
            let mut bucket = Bucket::new(rate, at(0));
            bucket.take(u64::MAX, at(0));
            bucket.take(u64::MAX, at(0));
            assert!(bucket.ready_at(at(0)) > at(0));
            bucket.ready_at(end);
            bucket.take(u64::MAX, end);
            assert!(bucket.ready_at(at(0)) >= at(0), "time does not go back");
            bucket.time_of(u64::MAX);
        }
    }

    proptest! {
        /// Goal: over any run of requests that wait as required, no window of time holds more than
        /// rate, burst and one request; and the rate is used while a request waits.
        #[test]
        fn the_rate_is_kept_and_used(
            per_second in 1u64..100_000,
            requests in prop::collection::vec((0u64..20_000, 0u64..50_000_000), 1..80),
        ) {
            let mut bucket = Bucket::new(per_second, at(0));
            let mut now = at(0);
            let mut taken: Vec<(Time, u64)> = Vec::new();
            for (units, idle_nanos) in requests {
                now = now.after(Duration::from_nanos(idle_nanos));
                now = bucket.ready_at(now);
                prop_assert_eq!(bucket.ready_at(now), now, "ready at the announced time");
                if now > at(0) {
                    let before = Time::from_nanos(now.as_nanos() - 1);
                    let mut copy = bucket.clone();
                    prop_assert!(copy.ready_at(before) >= before);
                }
                bucket.take(units, now);
                taken.push((now, units));
            }
            for (first, (begin, _)) in taken.iter().enumerate() {
                let mut sum = 0_u128;
                for (end, units) in &taken[first..] {
                    // The last request may overdraw; the requests before it are within the rate.
                    let nanos = end.since(*begin).as_nanos() + BURST.as_nanos();
                    let allowed = u128::from(per_second) * nanos / 1_000_000_000;
                    prop_assert!(sum <= allowed.max(1) + 1, "{sum} > {allowed}");
                    sum += u128::from(*units);
                }
            }
        }
    }
}
