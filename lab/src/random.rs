//! Pseudo-random numbers, the same for the same seed.

use lunar_load::split_mix_64;
use std::ops::Range;

/// A sequence of numbers that its seed determines (SplitMix64).
#[derive(Debug)]
pub struct Random {
    seed: u64,
    /// Number of values returned so far.
    count: u64,
}

impl Random {
    /// Creates the sequence of a seed.
    pub fn new(seed: u64) -> Self {
        Self { seed, count: 0 }
    }

    /// Returns the next number.
    pub fn next_u64(&mut self) -> u64 {
        let number = split_mix_64(self.seed, self.count);
        self.count += 1;
        number
    }

    /// Returns a number below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.next_u64() % end
    }
}

/// Returns the seeds of a test: `LUNAR_SEED` alone if it is set, else `few`, or one for each
/// `of_asked` of `LUNAR_SEEDS`: a seed starts servers here, while in other tests it only runs a
/// state machine.
pub fn seeds(few: u64, of_asked: u64) -> Range<u64> {
    let number = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
    if let Some(seed) = number("LUNAR_SEED") {
        return seed..seed + 1;
    }
    0..number("LUNAR_SEEDS").map_or(few, |asked| (asked / of_asked).max(few))
}

/// Returns `bytes` bytes that `seed` determines.
pub fn pattern(seed: u64, bytes: usize) -> Vec<u8> {
    let mut random = Random::new(seed);
    let mut data = Vec::with_capacity(bytes + 8);
    while data.len() < bytes {
        data.extend_from_slice(&random.next_u64().to_be_bytes());
    }
    data.truncate(bytes);
    data
}
