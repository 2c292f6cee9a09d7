//! Deallocating and zeroing in short pieces, between which reads and writes get the file's lock.
//!
//! The kernel holds a lock of the file while it deallocates or zeroes, and a write waits for it. So
//! long ranges are cleared in pieces that are short in time. During a piece, transfers are left to
//! workers, which may sleep. Between two pieces, others get the lock for as long as it was held:
//! left alone, the thread that clears would take it again before they wake.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

/// The first piece of a job, and the shortest.
const PIECE_BYTES_MIN: u64 = 256 << 10;

/// The longest piece: of a range without data.
const PIECE_BYTES_MAX: u64 = 1 << 30;

/// The longest piece with data in it. What a range without data took says nothing of it.
pub(super) const DATA_PIECE_BYTES_MAX: u64 = 4 << 20;

/// A piece that takes longer is followed by a shorter one.
const PIECE_TIME: Duration = Duration::from_micros(500);

/// A piece takes so many times the shortest one at least: where each call costs much, as that of a
/// file on another machine does, many calls would cost the more.
const PIECE_TIME_FACTOR: u32 = 4;

/// When the lock was held for so long, others get it.
const HELD_TIME_MAX: Duration = Duration::from_micros(250);

/// Others get it for as long as it was held, and for no longer than this.
const PAUSE_TIME_MAX: Duration = Duration::from_millis(1);

/// Looks of an inline transfer at a piece that is with the system; a worker does the transfer if
/// the piece is not over then. Most pieces of an UNMAP list end within some microseconds.
const INLINE_TRIES_MAX: u32 = 64;

/// Looks of a piece at the inline transfers that began before it; the piece begins in any case
/// then. An inline transfer that takes longer waits in the kernel for something else.
const PIECE_TRIES_MAX: u32 = 256;

/// The length of a job's next piece, adapted to the time that the pieces before took.
#[derive(Debug)]
pub(super) struct PieceSize {
    bytes: u64,
    bytes_min: u64,
    /// The shortest time that a piece of this job took.
    time_min: Duration,
}

impl PieceSize {
    /// Pieces that are multiples of a power of two.
    pub(super) fn new(granularity_bytes: u64) -> Self {
        let bytes_min = PIECE_BYTES_MIN.max(granularity_bytes);
        Self { bytes: bytes_min, bytes_min, time_min: Duration::MAX }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The next piece has data in it.
    pub(super) fn limit_to_data(&mut self) {
        self.bytes = self.bytes.min(DATA_PIECE_BYTES_MAX.max(self.bytes_min));
    }

    /// A piece of `bytes` took so long. One that the end of a range cut short says nothing of a
    /// longer one.
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

/// Keeps inline transfers apart from pieces of clears and from writes of workers, and has clears
/// leave time to transfers that wait.
#[derive(Debug, Default)]
pub(super) struct ClearGate {
    /// Pieces, and writes of workers, that are with the system.
    pieces: AtomicUsize,
    inline: AtomicUsize,
    /// Transfers of workers and rings, which may wait for the lock.
    others: AtomicUsize,
    /// Nanoseconds for which pieces held the file's lock since the last pause.
    held_nanos: AtomicU64,
    /// Pauses that were made.
    #[cfg(test)]
    pub(super) pauses: AtomicUsize,
}

/// Ends what it counts when it is dropped.
pub(super) struct CountGuard<'a>(&'a AtomicUsize);

impl Drop for CountGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

impl ClearGate {
    /// Held during an inline transfer. `None`: it would wait for the end of a piece.
    pub(super) fn try_inline(&self) -> Option<CountGuard<'_>> {
        for _ in 0..INLINE_TRIES_MAX {
            if !self.is_closed() {
                self.inline.fetch_add(1, SeqCst);
                let guard = CountGuard(&self.inline);
                if !self.is_closed() {
                    return Some(guard);
                }
            }
            std::hint::spin_loop();
        }
        None
    }

    /// Held while a piece is with the system.
    pub(super) fn piece(&self) -> CountGuard<'_> {
        self.pieces.fetch_add(1, SeqCst);
        for _ in 0..PIECE_TRIES_MAX {
            if self.inline.load(SeqCst) == 0 {
                break;
            }
            std::thread::yield_now();
        }
        CountGuard(&self.pieces)
    }

    /// Held while a write of a worker is with the system: an inline write would wait for the lock
    /// of the file as long as it does.
    pub(super) fn worker_write(&self) -> CountGuard<'_> {
        self.piece()
    }

    /// A piece, or a write of a worker, is with the system.
    pub(super) fn is_closed(&self) -> bool {
        self.pieces.load(SeqCst) > 0
    }

    /// A transfer of a worker or ring is queued.
    pub(super) fn begin(&self) {
        self.others.fetch_add(1, SeqCst);
    }

    /// A transfer of a worker or ring has ended, or was dropped before it began.
    pub(super) fn end(&self) {
        self.others.fetch_sub(1, SeqCst);
    }

    /// Before a piece: leaves the lock to others, if some wait and it was held long.
    pub(super) fn pause(&self) {
        let held = Duration::from_nanos(self.held_nanos.load(SeqCst));
        if held < HELD_TIME_MAX || self.others.load(SeqCst) == 0 {
            return;
        }
        #[cfg(test)]
        self.pauses.fetch_add(1, SeqCst);
        self.held_nanos.store(0, SeqCst);
        std::thread::sleep(held.min(PAUSE_TIME_MAX));
    }

    /// The lock was held for a piece.
    pub(super) fn count_held(&self, time: Duration) {
        self.held_nanos.fetch_add(time.as_nanos() as u64, SeqCst);
    }
}

#[cfg(test)]
mod tests;
