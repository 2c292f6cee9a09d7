//! Lock-free counts of durations and of syncs.

use std::array;
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

/// The first bucket holds durations of at most 2 to this power nanoseconds: 4.096 µs.
const FIRST_BOUND_LOG2: u32 = 12;
/// Number of buckets with a bound, each twice the previous one, up to 17.2 s. One more bucket holds
/// longer durations.
pub const DURATION_BOUNDS: usize = 23;
const BUCKETS: usize = DURATION_BOUNDS + 1;

/// Returns a number for each thread, from 0 on. Data that is kept per thread number needs no
/// contention.
pub fn thread_number() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static NUMBER: Cell<Option<usize>> = const { Cell::new(None) };
    }
    NUMBER.with(|assigned| {
        assigned.get().unwrap_or_else(|| {
            let number = NEXT.fetch_add(1, Relaxed);
            assigned.set(Some(number));
            number
        })
    })
}

/// A histogram of durations. Counting takes two additions, without a lock.
#[derive(Debug, Default)]
pub struct Durations {
    buckets: [AtomicU64; BUCKETS],
    sum_nanos: AtomicU64,
}

impl Durations {
    /// Counts one duration.
    pub fn count(&self, nanos: u64) {
        self.count_all(nanos, 1);
    }

    /// Counts several equal durations.
    pub fn count_all(&self, nanos: u64, times: u64) {
        let bucket = nanos.checked_sub(1).map_or(0, |below| u64::BITS - below.leading_zeros());
        let bucket = bucket.saturating_sub(FIRST_BOUND_LOG2) as usize;
        self.buckets[bucket.min(DURATION_BOUNDS)].fetch_add(times, Relaxed);
        self.sum_nanos.fetch_add(nanos.wrapping_mul(times), Relaxed);
    }

    /// Returns the counts so far. Durations counted at the same time may be missing.
    pub fn read(&self) -> DurationCounts {
        DurationCounts {
            buckets: array::from_fn(|bucket| self.buckets[bucket].load(Relaxed)),
            sum_nanos: self.sum_nanos.load(Relaxed),
        }
    }
}

/// The counts of a [`Durations`].
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct DurationCounts {
    buckets: [u64; BUCKETS],
    /// Sum of all durations in nanoseconds.
    pub sum_nanos: u64,
}

impl DurationCounts {
    /// Returns the number of durations.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// Returns for each bucket the longest duration that it holds, in seconds, and its count; the
    /// last bucket has no bound.
    pub fn buckets(&self) -> [(f64, u64); BUCKETS] {
        array::from_fn(|bucket| {
            let nanos = 1u64 << (FIRST_BOUND_LOG2 as usize + bucket);
            let bound = match bucket < DURATION_BOUNDS {
                true => Duration::from_nanos(nanos).as_secs_f64(),
                false => f64::INFINITY,
            };
            (bound, self.buckets[bucket])
        })
    }

    /// Adds the counts of another histogram.
    pub fn add(&mut self, other: &Self) {
        self.buckets.iter_mut().zip(other.buckets).for_each(|(mine, other)| *mine += other);
        self.sum_nanos = self.sum_nanos.wrapping_add(other.sum_nanos);
    }
}

/// Counts of the syncs of a disk.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct SyncCounts {
    /// Durations of all syncs, including failed ones.
    pub durations: DurationCounts,
    /// Number of durable writes and flushes that the syncs served; several share one sync.
    pub requests: u64,
    /// Number of syncs that failed.
    pub failures: u64,
    /// True when a sync has failed and the disk refuses writes until an operator recovers it.
    pub poisoned: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_holds_its_bound() {
        for (nanos, bucket) in [
            (0, 0),
            (1, 0),
            (4096, 0),
            (4097, 1),
            (8192, 1),
            (8193, 2),
            (1 << 34, 22),
            ((1 << 34) + 1, 23),
            (u64::MAX, 23),
        ] {
            let durations = Durations::default();
            durations.count(nanos);
            let counts = durations.read();
            let buckets = counts.buckets();
            assert_eq!(buckets.iter().position(|(_, count)| *count == 1), Some(bucket), "{nanos}");
            assert_eq!((counts.count(), counts.sum_nanos), (1, nanos));
            assert!(Duration::from_nanos(nanos).as_secs_f64() <= buckets[bucket].0, "{nanos}");
        }
        let bounds = DurationCounts::default().buckets();
        assert_eq!(bounds[0].0, 4.096e-6);
        assert_eq!(bounds[DURATION_BOUNDS].0, f64::INFINITY);
        assert!(bounds.is_sorted_by(|a, b| a.0 < b.0));
    }

    #[test]
    fn counts_add_up() {
        let (one, other) = (Durations::default(), Durations::default());
        one.count(10_000);
        one.count_all(10_000, 4);
        (0..3).for_each(|_| other.count(10_000_000));
        let mut sum = one.read();
        sum.add(&other.read());
        assert_eq!((sum.count(), sum.sum_nanos), (8, 30_050_000));
    }
}
