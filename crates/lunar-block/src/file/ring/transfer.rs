//! One transfer of a ring: its memory, its bytes, and the receiver of its result.

use crate::Buffer;
use crate::file::disk::{HeldRange, shorter};
use bytes::Bytes;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::AcqRel, Ordering::Acquire};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// Number of retries of one transfer (EINTR, EAGAIN) before it fails.
const RETRIES_MAX: u32 = 64;

/// Time between two checks whether the transfers of a closing device have ended.
const POLL_INTERVAL: Duration = Duration::from_micros(200);

/// The memory of a transfer, and the receiver of its result. The transfer owns the memory until the
/// kernel has completed it.
pub(in crate::file) enum Memory {
    Read {
        buffer: Buffer,
        /// Index of the first byte that is filled.
        from: usize,
        answer: oneshot::Sender<ReadAnswer>,
    },
    Write {
        bytes: Bytes,
        answer: oneshot::Sender<io::Result<()>>,
    },
}

/// The result of a read, with its buffer.
pub(in crate::file) type ReadAnswer = (io::Result<()>, Buffer);

/// A transfer between memory and a disk. It owns its range, its memory and the disk; the future
/// that waits for it owns none of them, because it may be dropped at any time.
pub(in crate::file) struct Transfer {
    pub(super) memory: Memory,
    descriptor: RawFd,
    at: u64,
    len: usize,
    done: usize,
    retries: u32,
    // In this order: the disk is released before the flight ends.
    hold: HeldRange,
    flight: InFlightGuard,
}

/// Counts of a device's transfers with rings.
#[derive(Debug, Default)]
pub(in crate::file) struct TransfersInFlight {
    now: AtomicUsize,
    begun: AtomicUsize,
}

struct InFlightGuard(Arc<TransfersInFlight>);

impl Transfer {
    /// Creates a transfer of `bytes` on the disk, whose range is held by `hold`.
    pub(in crate::file) fn new(
        hold: HeldRange,
        bytes: &Range<u64>,
        memory: Memory,
        in_flight: &Arc<TransfersInFlight>,
    ) -> Self {
        Self {
            memory,
            descriptor: hold.disk().file.as_raw_fd(),
            at: bytes.start,
            len: (bytes.end - bytes.start) as usize,
            done: 0,
            retries: 0,
            hold,
            flight: InFlightGuard::begin(in_flight),
        }
    }

    pub(super) fn descriptor(&self) -> RawFd {
        self.descriptor
    }

    /// Returns the offset of the remaining part on the disk.
    pub(super) fn offset(&self) -> u64 {
        self.at + self.done as u64
    }

    /// Returns the position of the remaining part within the transfer.
    pub(super) fn rest(&self) -> Range<usize> {
        self.done..self.len
    }

    /// Evaluates a completion; `None` if there is more to transfer.
    pub(super) fn completed(&mut self, result: i32) -> Option<io::Result<()>> {
        if result < 0 {
            let again = matches!(-result, libc::EINTR | libc::EAGAIN);
            if again && self.retries < RETRIES_MAX {
                self.retries += 1;
                return None;
            }
            return Some(Err(io::Error::from_raw_os_error(-result)));
        }
        if result == 0 {
            return Some(Err(match self.memory {
                Memory::Read { .. } => shorter(io::ErrorKind::UnexpectedEof),
                Memory::Write { .. } => io::ErrorKind::WriteZero.into(),
            }));
        }
        self.done += result as usize;
        (self.done >= self.len).then_some(Ok(()))
    }

    /// Releases the disk, then sends the result.
    pub(super) fn end(self, result: io::Result<()>) {
        drop(self.hold);
        drop(self.flight);
        // The receiver may have been dropped.
        match self.memory {
            Memory::Read { buffer, answer, .. } => drop(answer.send((result, buffer))),
            Memory::Write { bytes, answer } => {
                drop(bytes);
                let _ = answer.send(result);
            }
        }
    }
}

impl TransfersInFlight {
    /// Returns the number of transfers begun so far.
    #[cfg(test)]
    pub(in crate::file) fn begun(&self) -> usize {
        self.begun.load(Acquire)
    }

    /// Returns the number of transfers in progress.
    pub(in crate::file) fn now(&self) -> usize {
        self.now.load(Acquire)
    }

    /// Blocks until no transfer is in progress, for `wait_max` at most.
    pub(in crate::file) fn drain(&self, wait_max: Duration) {
        let begin = Instant::now();
        while self.now() > 0 {
            super::process_current();
            if self.now() == 0 || begin.elapsed() > wait_max {
                return;
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }
}

impl InFlightGuard {
    fn begin(in_flight: &Arc<TransfersInFlight>) -> Self {
        in_flight.now.fetch_add(1, AcqRel);
        in_flight.begun.fetch_add(1, AcqRel);
        Self(Arc::clone(in_flight))
    }
}

impl Drop for InFlightGuard {
    fn drop(&mut self) {
        self.0.now.fetch_sub(1, AcqRel);
    }
}
