//! The ring of a core: transfers past the page cache, and reads of what it does not hold, go to the
//! kernel by a private io_uring of the thread that asks.
//!
//! What is asked for in one turn of the runtime leaves in few system calls, the last one at its
//! end; the completions are taken there, and when the runtime finds the ring readable.

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
use unsafe_queue::{Queue, Shape};

pub(super) use probe::is_permitted;
pub(super) use transfer::{Flights, Memory, ReadAnswer, Transfer};

thread_local! {
    static HERE: RefCell<Option<Rc<Ring>>> = const { RefCell::new(None) };
}

/// Runs `main` on a thread that has a ring while it does: files that were opened for it
/// ([`io_uring`](crate::FileOptions::io_uring)) are read and written by the ring when their futures
/// are polled on this thread, be it within `main` or in other tasks.
///
/// The ring is made when it is first needed; where that fails, and on other threads, workers
/// transfer. At the end, transfers that were begun are waited for, for a second at most; memory,
/// ranges and files of those that take longer stay held until the kernel is through with them.
///
/// # Panics
/// Outside of a tokio runtime; when the ring is first needed, if the runtime was built without
/// `enable_io`.
pub async fn with_ring<T>(main: impl Future<Output = T>) -> T {
    with_ring_of(Shape::default(), main).await
}

async fn with_ring_of<T>(shape: Shape, main: impl Future<Output = T>) -> T {
    // One a thread is enough, and it lasts for as long as the outer one runs.
    let Some(driver) = Driver::enter(shape) else { return main.await };
    let mut main = pin!(main);
    poll_fn(|context| driver.poll(context, main.as_mut())).await
}

/// Room for one transfer in the ring of this thread.
pub(super) struct Place(Rc<Ring>);

/// `None`: this thread has no ring, or that has its fill.
pub(super) fn place() -> Option<Place> {
    let ring = here()?;
    ring.has_room().then_some(Place(ring))
}

impl Place {
    /// Leaves `transfer` to the ring. It is submitted when the turn of the runtime ends,
    /// at the latest.
    pub(super) fn put(self, transfer: Transfer) {
        self.0.put(transfer);
    }
}

/// Has the ring of this thread submit and complete what it can, without waiting. For those who
/// block the thread, and with it the turns of its ring.
pub(super) fn turn_here() {
    if let Some(ring) = here() {
        ring.turn();
    }
}

/// Whether this thread has a ring.
pub(super) fn is_here() -> bool {
    here().is_some()
}

fn here() -> Option<Rc<Ring>> {
    // While the thread ends, there is none.
    HERE.try_with(|here| here.borrow().clone()).ok().flatten()
}

/// What a thread has of its ring.
struct Ring {
    shape: Shape,
    /// The runtime that sees when the ring is readable.
    runtime: Handle,
    state: RefCell<State>,
    /// The driver is at it, and submits at the end of its turn.
    in_turn: Cell<bool>,
    /// Wakes the driver.
    waker: RefCell<Option<Waker>>,
}

enum State {
    /// Nobody needed it yet.
    Unused,
    Open {
        readable: AsyncFd<OwnedFd>,
        queue: Queue,
    },
    /// It could not be made: workers transfer.
    Refused,
}

impl State {
    fn open(shape: Shape, runtime: &Handle) -> io::Result<Self> {
        let queue = Queue::new(shape)?;
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
    /// Makes the ring if it is not there yet.
    fn has_room(&self) -> bool {
        let mut state = self.state.borrow_mut();
        if matches!(*state, State::Unused) {
            *state = State::open(self.shape, &self.runtime).unwrap_or_else(|error| {
                tracing::warn!(%error, "a core has no io_uring: its transfers go by workers");
                State::Refused
            });
        }
        state.queue().is_some_and(|queue| !queue.is_full())
    }

    /// There is room.
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

    /// Submits and completes; `false`: something could not be submitted now.
    fn turn(&self) -> bool {
        let mut ended = Vec::new();
        let submitted = match self.state.borrow_mut().queue() {
            Some(queue) => queue.turn(&mut ended),
            None => return true,
        };
        // Nothing is borrowed meanwhile: whoever is woken may come back at once.
        ended.into_iter().for_each(|(transfer, result)| transfer.end(result));
        submitted
    }

    /// Whether completions have come, or the driver is woken when one does.
    fn poll_readable(&self, context: &mut Context<'_>) -> Poll<()> {
        let State::Open { readable, .. } = &*self.state.borrow() else { return Poll::Pending };
        match readable.poll_read_ready(context) {
            Poll::Ready(Ok(mut ready)) => {
                ready.clear_ready();
                Poll::Ready(())
            }
            // The runtime ends: the end of the driver waits for what is left.
            Poll::Ready(Err(_)) | Poll::Pending => Poll::Pending,
        }
    }
}

/// Turns the ring of a thread; its drop ends it.
struct Driver {
    ring: Rc<Ring>,
}

impl Driver {
    fn enter(shape: Shape) -> Option<Self> {
        HERE.with(|here| {
            let mut here = here.borrow_mut();
            if here.is_some() {
                return None;
            }
            let ring = Rc::new(Ring {
                shape,
                runtime: Handle::current(),
                state: RefCell::new(State::Unused),
                in_turn: Cell::new(false),
                waker: RefCell::new(None),
            });
            *here = Some(Rc::clone(&ring));
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
        ring.turn();
        let polled = main.poll(context);
        ring.in_turn.set(false);
        if polled.is_pending() {
            *ring.waker.borrow_mut() = Some(context.waker().clone());
            while {
                if !ring.turn() {
                    ring.wake();
                }
                ring.poll_readable(context).is_ready()
            } {}
        }
        polled
    }
}

impl Drop for Driver {
    /// Who comes now finds no ring; dropping its queue waits for what is under way.
    fn drop(&mut self) {
        let ring = HERE.try_with(|here| here.borrow_mut().take());
        drop(ring);
        drop(self.ring.state.replace(State::Refused));
    }
}
