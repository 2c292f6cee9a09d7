//! Lengths of the pieces in which a mirror deallocates or zeroes blocks.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

/// Shortest piece.
const PIECE_BYTES_MIN: u64 = 1 << 20;

/// Length of the first piece.
const FIRST_PIECE_BYTES: u64 = 4 << 20;

/// Longest piece that is deallocated.
const DEALLOCATED_BYTES_MAX: u64 = 64 << 20;

/// Longest piece that is zeroed: a member may have to write it, also if others before took no time.
pub(super) const ZEROED_BYTES_MAX: u64 = 16 << 20;

/// Share of the time for which late members are waited for that a piece may take: a member that
/// takes 16 times as long for the next one is not late.
const WAIT_SHARE: u32 = 16;

/// The length of the next piece, by the time that the last one took. No command says how much work
/// it is for a member: deallocation may take no time, or mean that zeroes are written.
#[derive(Debug)]
pub(super) struct ClearLength {
    bytes: AtomicU64,
    bytes_max: u64,
}

/// The lengths for both kinds of clears.
#[derive(Debug)]
pub(super) struct ClearLengths {
    deallocated: ClearLength,
    zeroed: ClearLength,
}

impl Default for ClearLengths {
    fn default() -> Self {
        let length =
            |bytes_max| ClearLength { bytes: AtomicU64::new(FIRST_PIECE_BYTES), bytes_max };
        Self { deallocated: length(DEALLOCATED_BYTES_MAX), zeroed: length(ZEROED_BYTES_MAX) }
    }
}

impl ClearLengths {
    pub(super) fn of(&self, deallocates: bool) -> &ClearLength {
        if deallocates { &self.deallocated } else { &self.zeroed }
    }
}

impl ClearLength {
    /// Returns the length of the next piece, a power of two.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(SeqCst)
    }

    /// Records the time of a piece. Late members are left out after `member_wait`.
    pub(super) fn ended(&self, piece_bytes: u64, took: Duration, member_wait: Duration) {
        let limit = member_wait / WAIT_SHARE;
        if took <= limit && piece_bytes < self.bytes() {
            return; // a short piece says nothing about longer ones
        }
        let fitting = u128::from(piece_bytes) * limit.as_nanos() / took.as_nanos().max(1);
        let bytes_max = self.bytes_max.min(2 * piece_bytes).max(PIECE_BYTES_MIN);
        let next = u64::try_from(fitting).unwrap_or(bytes_max).clamp(PIECE_BYTES_MIN, bytes_max);
        self.bytes.store(1 << next.ilog2(), SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: pieces grow while members are fast, and become as short as needed at once when one is
    /// slow; short ones change nothing.
    #[test]
    fn lengths_follow_the_time_of_pieces() {
        let lengths = ClearLengths::default();
        let wait = Duration::from_secs(2);
        let fast = lengths.of(true);
        for expected in [8, 16, 32, 64, 64] {
            fast.ended(fast.bytes(), Duration::from_millis(20), wait);
            assert_eq!(fast.bytes(), expected << 20);
        }
        fast.ended(512, Duration::from_millis(20), wait);
        assert_eq!(fast.bytes(), 64 << 20);
        fast.ended(64 << 20, Duration::from_millis(800), wait);
        assert_eq!(fast.bytes(), 8 << 20, "a seventh of the time");
        fast.ended(512, Duration::from_secs(1), wait);
        assert_eq!(fast.bytes(), PIECE_BYTES_MIN);
        let zeroed = lengths.of(false);
        (0..10).for_each(|_| zeroed.ended(zeroed.bytes(), Duration::ZERO, wait));
        assert_eq!(zeroed.bytes(), ZEROED_BYTES_MAX);
    }
}
