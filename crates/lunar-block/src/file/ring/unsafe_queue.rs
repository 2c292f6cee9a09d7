//! The queues shared with the kernel, and the memory it works on.

use super::transfer::{Memory, Transfer};
use io_uring::{IoUring, opcode, types};
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Transfers of one ring that are under way; more go by way of workers.
const TRANSFERS_MAX: u32 = 256;

/// So many are submitted at once, at most: the disk begins with them while the core reads on. With
/// all of a turn at once, disk, core and initiator wait for each other.
const BATCH_TRANSFERS_MAX: u32 = 4;

/// One request of the kernel moves at most this much; what is longer takes several.
const REQUEST_BYTES_MAX: u32 = 1 << 30;

/// The end of a ring waits at most this long for what was begun.
const CLOSING_WAIT_MAX: Duration = Duration::from_secs(1);

/// How often it looks whether that is through: while the thread waits, and later.
const LOOK_PAUSE: Duration = Duration::from_micros(100);
const LATER_LOOK_PAUSE: Duration = Duration::from_millis(50);

/// How much a ring takes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) transfers_max: u32,
    pub(super) request_bytes_max: u32,
}

/// Transfers that are under way, and how each ended.
pub(super) type CompletedTransfers = Vec<(Transfer, io::Result<()>)>;

/// A ring and the transfers that are with it. Dropping it waits for them; those that take too long
/// keep their memory, and the ring, until they are through.
pub(super) struct Queue(ManuallyDrop<Slots>);

struct Slots {
    // Goes before the memory: after it the kernel begins nothing any more.
    uring: IoUring,
    /// Where the kernel's requests point to. It is never moved, and a transfer leaves its slot only
    /// when the request that points into it has completed.
    slots: Box<[Option<Transfer>]>,
    free: Vec<u32>,
    request_bytes_max: u32,
    /// Requests that are not submitted yet.
    queued: u32,
    /// Completions as they came: number of the slot, result.
    completed: Vec<(u64, i32)>,
    /// System calls that submitted something.
    #[cfg(test)]
    submissions: u32,
}

impl Default for Shape {
    fn default() -> Self {
        Self { transfers_max: TRANSFERS_MAX, request_bytes_max: REQUEST_BYTES_MAX }
    }
}

impl Queue {
    pub(super) fn new(shape: Shape) -> io::Result<Self> {
        let count = shape.transfers_max;
        Ok(Self(ManuallyDrop::new(Slots {
            uring: open(count)?,
            slots: (0..count).map(|_| None).collect(),
            free: (0..count).rev().collect(),
            request_bytes_max: shape.request_bytes_max,
            queued: 0,
            completed: Vec::with_capacity(count as usize),
            #[cfg(test)]
            submissions: 0,
        })))
    }

    /// Tells the runtime of this thread when there are completions.
    pub(super) fn readable(&self) -> io::Result<AsyncFd<OwnedFd>> {
        let ring = self.0.uring.as_fd().try_clone_to_owned()?;
        // SAFETY: the descriptor is owned by what is registered, so it stays the same open file
        // until it is deregistered.
        let registered = unsafe { AsyncFd::register_with_interest(ring, Interest::READABLE) };
        registered.map_err(io::Error::from)
    }

    pub(super) fn is_full(&self) -> bool {
        self.0.free.is_empty()
    }

    /// Queues `transfer`, and submits what is queued if that is enough for a call. It is lost when
    /// there is no room.
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

    /// Submits what is queued and takes what is completed; `false`: the kernel did not take all.
    pub(super) fn turn(&mut self, ended: &mut CompletedTransfers) -> bool {
        self.0.turn(ended)
    }
}

impl Slots {
    /// Queues a request for the rest of what is in `slot`, which has none.
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
        // then. A buffer that is filled is touched by nobody else meanwhile; `bytes` are shared,
        // and only read. `Queue::drop` frees neither before.
        let pushed = unsafe { self.uring.submission().push(&entry) };
        self.queued += 1;
        debug_assert!(pushed.is_ok(), "as many entries as slots, and one request a slot");
    }

    fn turn(&mut self, ended: &mut CompletedTransfers) -> bool {
        loop {
            let submitted = self.submit();
            if !self.complete(ended) {
                return submitted;
            }
        }
    }

    /// `false`: some is left, as the kernel has no memory for it, or is interrupted.
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
            Err(error) => tracing::debug!(%error, "io_uring takes nothing now"),
        }
        self.uring.submission().is_empty()
    }

    /// Takes what is completed; `true`: some of it goes on, and has to be submitted.
    fn complete(&mut self, ended: &mut CompletedTransfers) -> bool {
        let mut completed = std::mem::take(&mut self.completed);
        completed.extend(self.uring.completion().map(|entry| (entry.user_data(), entry.result())));
        let mut more = false;
        for (slot, result) in completed.drain(..) {
            let place = &mut self.slots[slot as usize];
            let outcome = place.as_mut().and_then(|transfer| transfer.completed(result));
            match outcome {
                Some(outcome) => {
                    ended.extend(place.take().map(|transfer| (transfer, outcome)));
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

    /// Blocks until all is through, or `until`; `true`: all is.
    fn settle(&mut self, until: Option<Instant>, pause: Duration) -> bool {
        let mut ended = Vec::new();
        loop {
            self.turn(&mut ended);
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

/// With completions posted when the thread is in the kernel anyway, where that can be had.
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
        // SAFETY: `self.0` is not used after this. Until all is through it is never dropped, not
        // even where a waker panics or no thread can be had: the kernel may still use it.
        let mut slots = ManuallyDrop::new(unsafe { ManuallyDrop::take(&mut self.0) });
        if slots.settle(Some(Instant::now() + CLOSING_WAIT_MAX), LOOK_PAUSE) {
            drop(ManuallyDrop::into_inner(slots));
            return;
        }
        tracing::warn!("transfers of a core that ends take long: they are waited for elsewhere");
        let wait = move || {
            slots.settle(None, LATER_LOOK_PAUSE);
            drop(ManuallyDrop::into_inner(slots));
        };
        let thread = std::thread::Builder::new().name("lunar-ring-end".into()).spawn(wait);
        if let Err(error) = thread {
            tracing::warn!(%error, "nobody waits for these transfers: their file stays locked");
        }
    }
}
