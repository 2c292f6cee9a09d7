//! Generator of the offsets of requests.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Generates offsets of requests, for concurrent callers.
#[derive(Debug)]
pub(crate) struct OffsetGenerator {
    random: bool,
    count: u64,
    seed: u64,
    next: AtomicU64,
}

impl OffsetGenerator {
    /// Generates offsets below `count`, random or sequential.
    pub(crate) fn new(count: u64, random: bool, seed: u64) -> Self {
        Self { random, count: count.max(1), seed, next: AtomicU64::new(0) }
    }

    /// Returns the next offset, below the count.
    pub(crate) fn next(&self) -> u64 {
        let number = self.next.fetch_add(1, Relaxed);
        match self.random {
            true => split_mix_64(self.seed, number) % self.count,
            false => number % self.count,
        }
    }
}

/// Returns output `number` of SplitMix64 (Steele, Lea, Flood 2014), which needs no other state.
pub fn split_mix_64(seed: u64, number: u64) -> u64 {
    const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut z = seed.wrapping_add(number.wrapping_add(1).wrapping_mul(GAMMA));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: sequential offsets wrap around; random ones use the whole range about evenly, and are
    /// the same for the same seed.
    #[test]
    fn all_of_the_range_is_used() {
        let offsets = OffsetGenerator::new(3, false, 9);
        let first: Vec<_> = (0..7).map(|_| offsets.next()).collect();
        assert_eq!(first, [0, 1, 2, 0, 1, 2, 0]);
        let (one, two, other) = (
            OffsetGenerator::new(16, true, 1),
            OffsetGenerator::new(16, true, 1),
            OffsetGenerator::new(16, true, 2),
        );
        let mut counts = [0_u32; 16];
        let mut same = 0;
        for _ in 0..16_000 {
            let offset = one.next();
            assert_eq!(offset, two.next());
            same += u32::from(offset == other.next());
            counts[offset as usize] += 1;
        }
        assert!(counts.iter().all(|count| (800..1200).contains(count)), "{counts:?}");
        assert!((800..1200).contains(&same), "{same}");
    }
}
