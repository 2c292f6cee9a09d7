//! The queues shared with the kernel, and the memory of the transfers in them.

use super::transfer::{Memory, Transfer};
use io_uring::{IoUring, opcode, types};
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Maximum number of transfers of one ring in progress; worker threads execute the others.
const TRANSFERS_MAX: u32 = 256;

/// Maximum number of transfers that are submitted at once, so that the disk begins with them while
/// the core continues. If a core submitted all transfers of one round of its runtime at once, disk,
/// core and initiator would wait for each other.
const BATCH_TRANSFERS_MAX: u32 = 4;

/// Maximum length of one kernel request; a longer transfer takes several.
const REQUEST_BYTES_MAX: u32 = 1 << 30;

/// Maximum time that the drop of a ring waits for transfers that have begun.
const CLOSING_WAIT_MAX: Duration = Duration::from_secs(1);

/// Interval at which the thread that drops a ring checks for completions.
const POLL_INTERVAL: Duration = Duration::from_micros(100);
/// The interval after [`CLOSING_WAIT_MAX`], on a thread of its own.
const SLOW_POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Limits of a ring.
#[derive(Clone, Copy, Debug)]
pub(super) struct RingLimits {
    pub(super) transfers_max: u32,
    pub(super) request_bytes_max: u32,
}

/// Transfers that have completed, with their results.
pub(super) type CompletedTransfers = Vec<(Transfer, io::Result<()>)>;

/// A ring and the transfers in it. Dropping it waits for them; transfers that take too long keep
/// their memory and the ring until they have completed.
pub(super) struct Queue(ManuallyDrop<RingState>);

struct RingState {
    // Dropped before the memory: after that the kernel begins no request.
    uring: IoUring,
    /// Transfers that kernel requests point into. The slice never moves, and a transfer leaves its
    /// slot only when the request that points into it has completed.
    slots: Box<[Option<Transfer>]>,
    free: Vec<u32>,
    request_bytes_max: u32,
    /// Number of requests that are not submitted yet.
    queued: u32,
    /// Completions in order of arrival: number of the slot, result.
    completed: Vec<(u64, i32)>,
    /// Number of system calls that submitted requests.
    #[cfg(test)]
    submissions: u32,
}

impl Default for RingLimits {
    fn default() -> Self {
        Self { transfers_max: TRANSFERS_MAX, request_bytes_max: REQUEST_BYTES_MAX }
    }
}

impl Queue {
    pub(super) fn new(limits: RingLimits) -> io::Result<Self> {
        let count = limits.transfers_max;
        Ok(Self(ManuallyDrop::new(RingState {
            uring: open(count)?,
            slots: (0..count).map(|_| None).collect(),
            free: (0..count).rev().collect(),
            request_bytes_max: limits.request_bytes_max,
            queued: 0,
            completed: Vec::with_capacity(count as usize),
            #[cfg(test)]
            submissions: 0,
        })))
    }

    /// Registers the ring with the runtime of this thread: the descriptor becomes readable when
    /// transfers complete.
    pub(super) fn readable(&self) -> io::Result<AsyncFd<OwnedFd>> {
        let ring = self.0.uring.as_fd().try_clone_to_owned()?;
        // SAFETY: the registered object owns the descriptor, so it stays the same open file until
        // it is deregistered.
        let registered = unsafe { AsyncFd::register_with_interest(ring, Interest::READABLE) };
        registered.map_err(io::Error::from)
    }

    pub(super) fn is_full(&self) -> bool {
        self.0.free.is_empty()
    }

    /// Queues `transfer`, and submits the queue if it is long enough to be worth a system call. The
    /// caller has checked that the ring is not full; a full ring drops the transfer.
    pub(super) fn put(&mut self, transfer: Transfer) {
        let Some(slot) = self.0.free.pop() else { return };
        self.0.slots[slot as usize] = Some(transfer);
        self.0.push(slot);
        if self.0.queued >= BATCH_TRANSFERS_MAX {
            self.0.submit();
        }
    }

    #[cfg(test)]
    pub(super) fn submissions(&self) -> u32 {
        self.0.submissions
    }

    /// Submits queued requests and takes completions; returns `false` if the kernel did not accept
    /// all.
    pub(super) fn process(&mut self, ended: &mut CompletedTransfers) -> bool {
        self.0.process(ended)
    }
}

impl RingState {
    /// Queues a request for the remaining part of the transfer in `slot`, which has no request in
    /// progress.
    fn push(&mut self, slot: u32) {
        let Some(transfer) = &mut self.slots[slot as usize] else { return };
        let mut rest = transfer.rest();
        rest.end = rest.end.min(rest.start + self.request_bytes_max as usize);
        let (file, at) = (types::Fd(transfer.descriptor()), transfer.offset());
        let len = rest.len() as u32;
        let entry = match &mut transfer.memory {
            Memory::Read { buffer, from, .. } => {
                let part = &mut buffer[*from + rest.start..*from + rest.end];
                opcode::Read::new(file, part.as_mut_ptr(), len).offset(at).build()
            }
            Memory::Write { bytes, .. } => {
                opcode::Write::new(file, bytes[rest].as_ptr(), len).offset(at).build()
            }
        };
        let entry = entry.user_data(u64::from(slot));
        // SAFETY: the memory and the descriptor are valid until the request completes: the transfer
        // owns the memory, on the heap, and the disk with its file, and it stays in its slot until
        // then. No other code accesses a buffer that is being filled; `bytes` are shared, and only
        // read. `Queue::drop` frees neither before.
        let pushed = unsafe { self.uring.submission().push(&entry) };
        self.queued += 1;
        debug_assert!(pushed.is_ok(), "as many entries as slots, and one request a slot");
    }

    fn process(&mut self, ended: &mut CompletedTransfers) -> bool {
        loop {
            let submitted = self.submit();
            if !self.complete(ended) {
                return submitted;
            }
        }
    }

    /// Submits queued requests; returns `false` if some are left, because the kernel has no memory
    /// for them or is interrupted.
    fn submit(&mut self) -> bool {
        if self.uring.submission().is_empty() {
            return true;
        }
        #[cfg(test)]
        {
            self.submissions += 1;
        }
        self.queued = 0;
        match self.uring.submit() {
            Ok(_) => {}
            Err(error) => tracing::debug!(%error, "io_uring accepts no submissions at the moment"),
        }
        self.uring.submission().is_empty()
    }

    /// Takes completions; returns `true` if some transfers continue and have to be submitted.
    fn complete(&mut self, ended: &mut CompletedTransfers) -> bool {
        let mut completed = std::mem::take(&mut self.completed);
        completed.extend(self.uring.completion().map(|entry| (entry.user_data(), entry.result())));
        let mut more = false;
        for (slot, result) in completed.drain(..) {
            let entry = &mut self.slots[slot as usize];
            let outcome = entry.as_mut().and_then(|transfer| transfer.completed(result));
            match outcome {
                Some(outcome) => {
                    ended.extend(entry.take().map(|transfer| (transfer, outcome)));
                    self.free.push(slot as u32);
                }
                None => {
                    self.push(slot as u32);
                    more = true;
                }
            }
        }
        self.completed = completed;
        more
    }

    fn is_idle(&self) -> bool {
        self.free.len() == self.slots.len()
    }

    /// Blocks until all transfers have completed, or until `until`; returns `true` if all have
    /// completed.
    fn wait_until_idle(&mut self, until: Option<Instant>, pause: Duration) -> bool {
        let mut ended = Vec::new();
        loop {
            self.process(&mut ended);
            ended.drain(..).for_each(|(transfer, result)| transfer.end(result));
            if self.is_idle() {
                return true;
            }
            if until.is_some_and(|until| Instant::now() > until) {
                return false;
            }
            std::thread::sleep(pause);
        }
    }
}

/// Opens a ring. If the kernel supports it, completions are posted when the thread is in the kernel
/// anyway.
fn open(entries: u32) -> io::Result<IoUring> {
    let mut builder = IoUring::builder();
    builder.dontfork();
    match builder.clone().setup_coop_taskrun().build(entries) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => builder.build(entries),
        made => made,
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // SAFETY: `self.0` is not used after this. It is never dropped before all transfers have
        // completed, even if a waker panics or no thread is available, because the kernel may still
        // use it.
        let mut ring = ManuallyDrop::new(unsafe { ManuallyDrop::take(&mut self.0) });
        if ring.wait_until_idle(Some(Instant::now() + CLOSING_WAIT_MAX), POLL_INTERVAL) {
            drop(ManuallyDrop::into_inner(ring));
            return;
        }
        tracing::warn!(
            "transfers are still running at the end of a core: another thread waits for them"
        );
        let wait = move || {
            ring.wait_until_idle(None, SLOW_POLL_INTERVAL);
            drop(ManuallyDrop::into_inner(ring));
        };
        let thread = std::thread::Builder::new().name("lunar-ring-end".into()).spawn(wait);
        if let Err(error) = thread {
            tracing::warn!(
                %error,
                "cannot start a thread that waits for these transfers: their file stays locked"
            );
        }
    }
}
