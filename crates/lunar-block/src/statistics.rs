//! Counting without locks: how long things take, and how syncs went.

use std::array;
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

/// The first bucket holds what takes at most 2 to this power nanoseconds: 4.096 µs.
const FIRST_BOUND_LOG2: u32 = 12;
/// Buckets with a bound, each twice the one before, up to 17.2 s; one more holds what is longer.
pub const DURATION_BOUNDS: usize = 23;
const BUCKETS: usize = DURATION_BOUNDS + 1;

/// A number for each thread, from 0 on: what threads keep apart needs no fighting over.
pub fn thread_number() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static MINE: Cell<Option<usize>> = const { Cell::new(None) };
    }
    MINE.with(|mine| {
        mine.get().unwrap_or_else(|| {
            let number = NEXT.fetch_add(1, Relaxed);
            mine.set(Some(number));
            number
        })
    })
}

/// How often something took how long. Counting is two additions, without a lock.
#[derive(Debug, Default)]
pub struct Durations {
    buckets: [AtomicU64; BUCKETS],
    sum_nanos: AtomicU64,
}

impl Durations {
    /// Counts one.
    pub fn count(&self, nanos: u64) {
        self.count_all(nanos, 1);
    }

    /// Counts several that took as long as each other.
    pub fn count_all(&self, nanos: u64, times: u64) {
        let bucket = nanos.checked_sub(1).map_or(0, |below| u64::BITS - below.leading_zeros());
        let bucket = bucket.saturating_sub(FIRST_BOUND_LOG2) as usize;
        self.buckets[bucket.min(DURATION_BOUNDS)].fetch_add(times, Relaxed);
        self.sum_nanos.fetch_add(nanos.wrapping_mul(times), Relaxed);
    }

    /// What was counted so far; what is counted meanwhile may be missing.
    pub fn read(&self) -> DurationCounts {
        DurationCounts {
            buckets: array::from_fn(|bucket| self.buckets[bucket].load(Relaxed)),
            sum_nanos: self.sum_nanos.load(Relaxed),
        }
    }
}

/// What a [`Durations`] counted.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct DurationCounts {
    buckets: [u64; BUCKETS],
    /// All durations together, in nanoseconds.
    pub sum_nanos: u64,
}

impl DurationCounts {
    /// How many there were.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// For each bucket the longest duration it holds, in seconds, and how many it holds; the last
    /// has no bound.
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

    /// Adds what another one counted.
    pub fn add(&mut self, other: &Self) {
        self.buckets.iter_mut().zip(other.buckets).for_each(|(mine, other)| *mine += other);
        self.sum_nanos = self.sum_nanos.wrapping_add(other.sum_nanos);
    }
}

/// How the syncs of a disk went.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct SyncCounts {
    /// How long they took, failed ones included.
    pub durations: DurationCounts,
    /// Durable writes and flushes that they served; several share one sync.
    pub requests: u64,
    /// Syncs that failed.
    pub failures: u64,
    /// One failed, and the disk takes no writes until somebody has looked at it.
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
