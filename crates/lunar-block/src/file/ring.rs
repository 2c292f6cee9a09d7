//! The ring of a core: direct transfers and reads of uncached data go to the kernel through a
//! private io_uring of the requesting thread.
//!
//! Transfers requested in one turn of the runtime are submitted with few system calls, the last one
//! at the end of the turn. Completions are taken at that point, and when the runtime finds the ring
//! readable.

mod probe;
#[cfg(test)]
mod tests;
mod transfer;
mod unsafe_queue;

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::os::fd::OwnedFd;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use tokio::io::unix::AsyncFd;
use tokio::runtime::Handle;
use unsafe_queue::{Queue, RingLimits};

pub(super) use probe::is_permitted;
pub(super) use transfer::{Memory, ReadAnswer, Transfer, TransfersInFlight};

thread_local! {
    static CURRENT_RING: RefCell<Option<Rc<Ring>>> = const { RefCell::new(None) };
}

/// Runs `main` on a thread with a ring that lasts as long as `main` runs. Files that were opened
/// for it ([`io_uring`](crate::FileOptions::io_uring)) are read and written through the ring when
/// their futures are polled on this thread, within `main` or in other tasks.
///
/// The ring is created when it is first needed. If that fails, and on other threads, workers do the
/// transfers. At the end, transfers that have begun are waited for, for a second at most; memory,
/// ranges and files of longer transfers stay held until the kernel has completed them.
///
/// # Panics
/// Outside of a tokio runtime; also when the ring is first needed, if the runtime was built without
/// `enable_io`.
pub async fn with_ring<T>(main: impl Future<Output = T>) -> T {
    with_ring_of(RingLimits::default(), main).await
}

async fn with_ring_of<T>(limits: RingLimits, main: impl Future<Output = T>) -> T {
    // One ring per thread is enough, and it lasts as long as the outer call runs.
    let Some(driver) = Driver::enter(limits) else { return main.await };
    let mut main = pin!(main);
    poll_fn(|context| driver.poll(context, main.as_mut())).await
}

/// A free slot for one transfer in the ring of this thread.
pub(super) struct FreeSlot(Rc<Ring>);

/// Returns a free slot; `None` if this thread has no ring, or if its ring is full.
pub(super) fn free_slot() -> Option<FreeSlot> {
    let ring = current_ring()?;
    ring.has_free_slot().then_some(FreeSlot(ring))
}

impl FreeSlot {
    /// Hands `transfer` to the ring, which submits it at the end of the runtime's turn at the
    /// latest.
    pub(super) fn put(self, transfer: Transfer) {
        self.0.put(transfer);
    }
}

/// Makes the ring of this thread submit and complete transfers without waiting. This is for code
/// that blocks the thread, and with it the ring.
pub(super) fn process_current() {
    if let Some(ring) = current_ring() {
        ring.process();
    }
}

/// Returns true when this thread has a ring.
pub(super) fn has_current() -> bool {
    current_ring().is_some()
}

fn current_ring() -> Option<Rc<Ring>> {
    // A thread that ends has no ring.
    CURRENT_RING.try_with(|current| current.borrow().clone()).ok().flatten()
}

/// The state of a thread's ring.
struct Ring {
    limits: RingLimits,
    /// The runtime that watches whether the ring is readable.
    runtime: Handle,
    state: RefCell<State>,
    /// True while the driver is polled, which submits at its end.
    in_turn: Cell<bool>,
    /// The waker of the driver.
    waker: RefCell<Option<Waker>>,
}

enum State {
    /// The ring has not been needed yet.
    Unused,
    Open {
        readable: AsyncFd<OwnedFd>,
        queue: Queue,
    },
    /// The ring could not be created: workers do the transfers.
    Refused,
}

impl State {
    fn open(limits: RingLimits, runtime: &Handle) -> io::Result<Self> {
        let queue = Queue::new(limits)?;
        let _runtime = runtime.enter();
        Ok(Self::Open { readable: queue.readable()?, queue })
    }

    fn queue(&mut self) -> Option<&mut Queue> {
        match self {
            Self::Open { queue, .. } => Some(queue),
            Self::Unused | Self::Refused => None,
        }
    }
}

impl Ring {
    /// Returns true when the ring has room; creates the ring if necessary.
    fn has_free_slot(&self) -> bool {
        let mut state = self.state.borrow_mut();
        if matches!(*state, State::Unused) {
            *state = State::open(self.limits, &self.runtime).unwrap_or_else(|error| {
                tracing::warn!(
                    %error,
                    "cannot create the io_uring of a core: its transfers use worker threads"
                );
                State::Refused
            });
        }
        state.queue().is_some_and(|queue| !queue.is_full())
    }

    /// Queues a transfer; the caller has checked that there is room.
    fn put(&self, transfer: Transfer) {
        if let Some(queue) = self.state.borrow_mut().queue() {
            queue.put(transfer);
        }
        if !self.in_turn.get() {
            self.wake();
        }
    }

    fn wake(&self) {
        let waker = self.waker.borrow_mut().take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Submits and completes transfers; returns `false` if some could not be submitted now.
    fn process(&self) -> bool {
        let mut ended = Vec::new();
        let submitted = match self.state.borrow_mut().queue() {
            Some(queue) => queue.process(&mut ended),
            None => return true,
        };
        // No state is borrowed here, because a woken task may use the ring at once.
        ended.into_iter().for_each(|(transfer, result)| transfer.end(result));
        submitted
    }

    /// Is ready when completions have come; otherwise the driver is woken by the next completion.
    fn poll_readable(&self, context: &mut Context<'_>) -> Poll<()> {
        let State::Open { readable, .. } = &*self.state.borrow() else { return Poll::Pending };
        match readable.poll_read_ready(context) {
            Poll::Ready(Ok(mut ready)) => {
                ready.clear_ready();
                Poll::Ready(())
            }
            // The runtime ends: the drop of the driver waits for the remaining transfers.
            Poll::Ready(Err(_)) | Poll::Pending => Poll::Pending,
        }
    }
}

/// Drives the ring of a thread; dropping it closes the ring.
struct Driver {
    ring: Rc<Ring>,
}

impl Driver {
    fn enter(limits: RingLimits) -> Option<Self> {
        CURRENT_RING.with(|current| {
            let mut current = current.borrow_mut();
            if current.is_some() {
                return None;
            }
            let ring = Rc::new(Ring {
                limits,
                runtime: Handle::current(),
                state: RefCell::new(State::Unused),
                in_turn: Cell::new(false),
                waker: RefCell::new(None),
            });
            *current = Some(Rc::clone(&ring));
            Some(Self { ring })
        })
    }

    fn poll<T>(
        &self,
        context: &mut Context<'_>,
        main: Pin<&mut impl Future<Output = T>>,
    ) -> Poll<T> {
        let ring = &self.ring;
        ring.in_turn.set(true);
        ring.process();
        let polled = main.poll(context);
        ring.in_turn.set(false);
        if polled.is_pending() {
            *ring.waker.borrow_mut() = Some(context.waker().clone());
            while {
                if !ring.process() {
                    ring.wake();
                }
                ring.poll_readable(context).is_ready()
            } {}
        }
        polled
    }
}

impl Drop for Driver {
    /// Removes the ring from the thread first, then drops its queue, which waits for transfers in
    /// progress.
    fn drop(&mut self) {
        let ring = CURRENT_RING.try_with(|current| current.borrow_mut().take());
        drop(ring);
        drop(self.ring.state.replace(State::Refused));
    }
}
