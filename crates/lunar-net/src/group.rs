//! Several sockets in one task: what is received from one is sent on another in the same turn.

use crate::cores::LocalFuture;
use futures_util::task::AtomicWaker;
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::{Pin, pin};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

/// Maximum number of times that a member is polled before the other tasks of the core have their
/// turn. A member is polled again when another one has woken it: data received from a host wakes
/// the socket of a storage target, and data sent there wakes the host's socket, which may then
/// request more.
const PASSES_MAX: usize = 4;

/// Drivers of sockets that pass data to each other, such as those of a host and of the storage
/// targets that its commands are passed on to.
///
/// The members are futures that one task polls, on one core, so their handlers share state without
/// a lock. A member that wakes another one, by the waker that
/// [`poll_work`](crate::ConnectionHandler::poll_work) has registered, has it polled in the same
/// turn of the task. Each socket has its own deadlines, limits and memory checks, and when it is
/// over it lingers while the others continue. Its time counts for the owner that its handler names:
/// if all handlers name one owner, the group gets no more of the core than a single socket of
/// another.
///
/// Members are added and end at any time. The group decides nothing about their ends: the shared
/// state of the handlers makes the others [over](crate::ConnectionHandler::is_over), or has them
/// [handed back](crate::ConnectionHandler::is_detaching), and wakes them. If a member panics, all
/// of them end, because the shared state may be inconsistent.
///
/// ```
/// use lunar_net::SocketGroup;
/// use std::cell::Cell;
/// use std::rc::Rc;
///
/// # let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
/// # runtime.block_on(async {
/// let sockets = SocketGroup::new();
/// let group = sockets.handle();
/// let ended = Rc::new(Cell::new(0));
/// let storage_ended = Rc::clone(&ended);
/// sockets.handle().add(async move {
///     // drive(host_socket, &mut host_handler, clock).await
///     group.add(async move {
///         // drive(storage_socket, &mut storage_handler, clock).await
///         storage_ended.set(storage_ended.get() + 1);
///     });
/// });
/// sockets.run().await; // until no member is left
/// assert_eq!(ended.get(), 1);
/// # });
/// ```
pub struct SocketGroup {
    members: Vec<Member>,
    shared: Rc<Shared>,
}

/// A handle of a [`SocketGroup`], with which members are added while it runs.
#[derive(Clone)]
pub struct SocketGroupHandle(Weak<Shared>);

/// State of the group that its members use.
struct Shared {
    added: RefCell<Vec<LocalFuture>>,
    /// Number of members, including those in `added`.
    members: Cell<usize>,
    task: Arc<AtomicWaker>,
}

struct Member {
    future: LocalFuture,
    /// The waker that the future gets, and its state.
    waker: Waker,
    woken: Arc<MemberWaker>,
}

/// Marks a member as woken, and wakes the task unless it is polling the members.
struct MemberWaker {
    is_woken: AtomicBool,
    task: Arc<AtomicWaker>,
}

impl Wake for MemberWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.is_woken.swap(true, Ordering::AcqRel) {
            self.task.wake();
        }
    }
}

impl SocketGroup {
    /// Creates a group without members.
    #[expect(clippy::new_without_default, reason = "a group that is not run does nothing")]
    pub fn new() -> Self {
        let (added, members) = (RefCell::default(), Cell::new(0));
        let shared = Shared { added, members, task: Arc::new(AtomicWaker::new()) };
        Self { members: Vec::new(), shared: Rc::new(shared) }
    }

    /// Returns a handle to add members.
    pub fn handle(&self) -> SocketGroupHandle {
        SocketGroupHandle(Rc::downgrade(&self.shared))
    }

    /// Runs the members until none is left, those included that are added meanwhile. Dropping the
    /// future drops them all.
    pub async fn run(self) {
        // A driver limits its turns itself. A budget for all of them would run out in a large
        // group, always before the last ones.
        tokio::task::unconstrained(self).await;
    }

    /// Polls each member that was woken, new ones included; `false` if there was none.
    fn poll_woken(&mut self) -> bool {
        for future in self.shared.added.take() {
            let task = Arc::clone(&self.shared.task);
            let woken = Arc::new(MemberWaker { is_woken: AtomicBool::new(true), task });
            let waker = Waker::from(Arc::clone(&woken));
            self.members.push(Member { future, waker, woken });
        }
        let mut any = false;
        self.members.retain_mut(|member| {
            if !member.woken.is_woken.swap(false, Ordering::AcqRel) {
                return true;
            }
            any = true;
            member.future.as_mut().poll(&mut Context::from_waker(&member.waker)).is_pending()
        });
        let added = self.shared.added.borrow().len();
        self.shared.members.set(self.members.len() + added);
        any
    }

    fn is_any_woken(&self) -> bool {
        self.members.iter().any(|member| member.woken.is_woken.load(Ordering::Acquire))
    }
}

impl Future for SocketGroup {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let group = self.get_mut();
        // Until it is registered again, wakers only mark their members.
        drop(group.shared.task.take());
        for _ in 0..PASSES_MAX {
            if group.poll_woken() {
                continue;
            }
            if group.members.is_empty() {
                return Poll::Ready(());
            }
            group.shared.task.register(context.waker());
            if !group.is_any_woken() {
                return Poll::Pending;
            }
        }
        // Woken after the runtime has polled the sockets, as any task that yields. A task that
        // wakes itself at once keeps those that yield from their turns.
        let _ = pin!(tokio::task::yield_now()).poll(context);
        Poll::Pending
    }
}

impl SocketGroupHandle {
    /// Adds a member, which is first polled in this turn of the group. Without the group, it is
    /// dropped.
    pub fn add(&self, member: impl Future<Output = ()> + 'static) {
        let Some(shared) = self.0.upgrade() else { return };
        shared.added.borrow_mut().push(Box::pin(member));
        shared.members.set(shared.members.get() + 1);
        shared.task.wake();
    }

    /// Number of members that have not ended.
    pub fn members(&self) -> usize {
        self.0.upgrade().map_or(0, |shared| shared.members.get())
    }
}

impl std::fmt::Debug for SocketGroup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SocketGroup").field("members", &self.shared.members).finish()
    }
}

impl std::fmt::Debug for SocketGroupHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SocketGroupHandle").field("members", &self.members()).finish()
    }
}

#[cfg(test)]
mod tests;
