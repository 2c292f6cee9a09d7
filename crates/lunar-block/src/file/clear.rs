//! Deallocates and zeroes in short pieces, between which reads and writes get the file's lock.
//!
//! The kernel holds a lock of the file while it deallocates or zeroes, and writes wait for it. Long
//! ranges are therefore cleared in pieces that take little time. During a piece, transfers are left
//! to workers, which may sleep. Between two pieces, other transfers get the lock for as long as it
//! was held: without the pause, the thread that clears would take the lock again before they wake.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

/// Length of the first piece of a job, and minimum length of a piece.
const PIECE_BYTES_MIN: u64 = 256 << 10;

/// Maximum length of a piece of a range without data.
const PIECE_BYTES_MAX: u64 = 1 << 30;

/// Maximum length of a piece with data, whose time cannot be derived from that of a range without
/// data.
pub(super) const DATA_PIECE_BYTES_MAX: u64 = 4 << 20;

/// Target time of a piece: a piece that takes longer is followed by a shorter one.
const PIECE_TIME: Duration = Duration::from_micros(500);

/// Minimum time of a piece, as a multiple of the shortest one. If each call is expensive, as for a
/// file on another machine, many calls would cost even more.
const PIECE_TIME_FACTOR: u32 = 4;

/// Time that the lock is held before other transfers get it.
const HELD_TIME_MAX: Duration = Duration::from_micros(250);

/// Maximum time for which other transfers get the lock; otherwise they get it for as long as it was
/// held.
const PAUSE_TIME_MAX: Duration = Duration::from_millis(1);

/// Number of times that an inline transfer checks for the end of a piece that is with the system;
/// after that a worker does the transfer. Most pieces of an UNMAP list end within a few
/// microseconds.
const INLINE_TRIES_MAX: u32 = 64;

/// Number of times that a piece checks for the end of earlier inline transfers; after that the
/// piece begins in any case. An inline transfer that takes longer waits in the kernel for something
/// else.
const PIECE_TRIES_MAX: u32 = 256;

/// The length of a job's next piece, adapted to the time of the previous pieces.
#[derive(Debug)]
pub(super) struct PieceSize {
    bytes: u64,
    bytes_min: u64,
    /// The shortest time of a piece of this job.
    time_min: Duration,
}

impl PieceSize {
    /// Creates sizes that are multiples of `granularity_bytes`, a power of two.
    pub(super) fn new(granularity_bytes: u64) -> Self {
        let bytes_min = PIECE_BYTES_MIN.max(granularity_bytes);
        Self { bytes: bytes_min, bytes_min, time_min: Duration::MAX }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Limits the next piece because it has data in it.
    pub(super) fn limit_to_data(&mut self) {
        self.bytes = self.bytes.min(DATA_PIECE_BYTES_MAX.max(self.bytes_min));
    }

    /// Adapts the length after a piece of `bytes` that took `took`. A piece that was cut short by
    /// the end of a range does not make longer pieces possible.
    pub(super) fn adapt(&mut self, bytes: u64, took: Duration) {
        self.time_min = self.time_min.min(took);
        let time_max = PIECE_TIME.max(self.time_min.saturating_mul(PIECE_TIME_FACTOR));
        if took > time_max {
            self.bytes = (self.bytes / 2).max(self.bytes_min);
        } else if took < time_max / 2 && bytes >= self.bytes {
            self.bytes = (self.bytes * 2).min(PIECE_BYTES_MAX.max(self.bytes_min));
        }
    }
}

/// Separates inline transfers from pieces of clears and from writes of workers, and makes clears
/// leave time to waiting transfers.
#[derive(Debug, Default)]
pub(super) struct ClearCoordinator {
    /// Number of pieces and of writes of workers that are with the system.
    pieces: AtomicUsize,
    inline_transfers: AtomicUsize,
    /// Number of transfers of workers and rings, which may wait for the lock.
    queued_transfers: AtomicUsize,
    /// Nanoseconds for which pieces have held the file's lock since the last pause.
    held_nanos: AtomicU64,
    /// Number of pauses so far.
    #[cfg(test)]
    pub(super) pauses: AtomicUsize,
}

/// Decrements its counter when dropped.
pub(super) struct CountGuard<'a>(&'a AtomicUsize);

impl Drop for CountGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

impl ClearCoordinator {
    /// Returns a guard for an inline transfer; `None` if the transfer would wait for the end of a
    /// piece.
    pub(super) fn try_inline(&self) -> Option<CountGuard<'_>> {
        for _ in 0..INLINE_TRIES_MAX {
            if !self.is_piece_in_progress() {
                self.inline_transfers.fetch_add(1, SeqCst);
                let guard = CountGuard(&self.inline_transfers);
                if !self.is_piece_in_progress() {
                    return Some(guard);
                }
            }
            std::hint::spin_loop();
        }
        None
    }

    /// Returns a guard to hold while a piece is with the system.
    pub(super) fn begin_piece(&self) -> CountGuard<'_> {
        self.pieces.fetch_add(1, SeqCst);
        for _ in 0..PIECE_TRIES_MAX {
            if self.inline_transfers.load(SeqCst) == 0 {
                break;
            }
            std::thread::yield_now();
        }
        CountGuard(&self.pieces)
    }

    /// Returns a guard to hold while a write of a worker is with the system: an inline write would
    /// wait for the lock of the file until that write has ended.
    pub(super) fn begin_worker_write(&self) -> CountGuard<'_> {
        self.begin_piece()
    }

    /// Returns true while a piece or a write of a worker is with the system.
    pub(super) fn is_piece_in_progress(&self) -> bool {
        self.pieces.load(SeqCst) > 0
    }

    /// Counts a transfer of a worker or ring that is queued.
    pub(super) fn begin_transfer(&self) {
        self.queued_transfers.fetch_add(1, SeqCst);
    }

    /// Removes a transfer of a worker or ring that has ended or was dropped before it began.
    pub(super) fn end_transfer(&self) {
        self.queued_transfers.fetch_sub(1, SeqCst);
    }

    /// Pauses before a piece if transfers wait for the lock and pieces have held it for long.
    pub(super) fn pause(&self) {
        let held = Duration::from_nanos(self.held_nanos.load(SeqCst));
        if held < HELD_TIME_MAX || self.queued_transfers.load(SeqCst) == 0 {
            return;
        }
        #[cfg(test)]
        self.pauses.fetch_add(1, SeqCst);
        self.held_nanos.store(0, SeqCst);
        std::thread::sleep(held.min(PAUSE_TIME_MAX));
    }

    /// Counts the time for which the lock was held for a piece.
    pub(super) fn count_held(&self, time: Duration) {
        self.held_nanos.fetch_add(time.as_nanos() as u64, SeqCst);
    }
}

#[cfg(test)]
mod tests;
