//! One transfer of a ring: whose memory, which bytes, and who waits for it.

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

/// How often the kernel may ask for one transfer again (EINTR, EAGAIN) before that is an error.
const RETRIES_MAX: u32 = 64;

/// How often the end of a device looks whether its transfers are gone.
const LOOK_PAUSE: Duration = Duration::from_micros(200);

/// What is transferred from or to, and who waits for it. The memory is the transfer's until the
/// kernel is through with it.
pub(in crate::file) enum Memory {
    Read {
        buffer: Buffer,
        /// The first byte that is filled.
        from: usize,
        answer: oneshot::Sender<ReadAnswer>,
    },
    Write {
        bytes: Bytes,
        answer: oneshot::Sender<io::Result<()>>,
    },
}

/// How a read went, with its buffer.
pub(in crate::file) type ReadAnswer = (io::Result<()>, Buffer);

/// Bytes on their way between memory and a disk. The range it holds, the memory and the disk go
/// with it, not with the future that waits for it: that one may be dropped at any time.
pub(in crate::file) struct Transfer {
    pub(super) memory: Memory,
    descriptor: RawFd,
    at: u64,
    len: usize,
    done: usize,
    retries: u32,
    // In this order: the disk is free when the flight ends.
    hold: HeldRange,
    flight: Flight,
}

/// How many transfers of a device are with rings.
#[derive(Debug, Default)]
pub(in crate::file) struct Flights {
    now: AtomicUsize,
    begun: AtomicUsize,
}

struct Flight(Arc<Flights>);

impl Transfer {
    /// `bytes` of `disk`, held as `hold`.
    pub(in crate::file) fn new(
        hold: HeldRange,
        bytes: &Range<u64>,
        memory: Memory,
        flights: &Arc<Flights>,
    ) -> Self {
        Self {
            memory,
            descriptor: hold.disk().file.as_raw_fd(),
            at: bytes.start,
            len: (bytes.end - bytes.start) as usize,
            done: 0,
            retries: 0,
            hold,
            flight: Flight::begin(flights),
        }
    }

    pub(super) fn descriptor(&self) -> RawFd {
        self.descriptor
    }

    /// Where on the disk the rest begins.
    pub(super) fn offset(&self) -> u64 {
        self.at + self.done as u64
    }

    /// Where in what is to be transferred the rest lies.
    pub(super) fn rest(&self) -> Range<usize> {
        self.done..self.len
    }

    /// What a completion means: `None`, there is more to do.
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

    /// Lets go of the disk, then tells who waits.
    pub(super) fn end(self, result: io::Result<()>) {
        drop(self.hold);
        drop(self.flight);
        // The one who asked may be gone.
        match self.memory {
            Memory::Read { buffer, answer, .. } => drop(answer.send((result, buffer))),
            Memory::Write { bytes, answer } => {
                drop(bytes);
                let _ = answer.send(result);
            }
        }
    }
}

impl Flights {
    /// How many were ever begun.
    #[cfg(test)]
    pub(in crate::file) fn begun(&self) -> usize {
        self.begun.load(Acquire)
    }

    /// How many are under way.
    pub(in crate::file) fn now(&self) -> usize {
        self.now.load(Acquire)
    }

    /// Blocks until none is under way, for `wait_max` at most.
    pub(in crate::file) fn settle(&self, wait_max: Duration) {
        let begin = Instant::now();
        while self.now() > 0 {
            super::turn_here();
            if self.now() == 0 || begin.elapsed() > wait_max {
                return;
            }
            std::thread::sleep(LOOK_PAUSE);
        }
    }
}

impl Flight {
    fn begin(flights: &Arc<Flights>) -> Self {
        flights.now.fetch_add(1, AcqRel);
        flights.begun.fetch_add(1, AcqRel);
        Self(Arc::clone(flights))
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        self.0.now.fetch_sub(1, AcqRel);
    }
}
