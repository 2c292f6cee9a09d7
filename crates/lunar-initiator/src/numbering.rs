//! State shared by the connections of one session: the protocol's session, behind one lock.

use crate::Error;
use crate::completion_barrier::{BarrierToken, CompletionBarrier};
use crate::uncertain_writes::UncertainWrite;
use futures_util::task::AtomicWaker;
use lunar_iscsi::framing::TaskId;
use lunar_iscsi::session::initiator::{
    Ending, InitiatorSession, InitiatorSessionOptions, Input, LoginNumbers, Output, ToConnection,
    ToSession,
};
use lunar_iscsi::text::SessionParameters;
use lunar_wire::{Lun, SerialNumber};
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::Context;
use std::time::Duration;
use tokio::time::Instant;

/// Maximum number of a session's requests that wait for its command window to open.
const QUEUE_REQUESTS_MAX: u32 = 8192;

/// Messages to a connection, besides its socket and requests.
#[derive(Debug)]
pub(crate) enum ConnectionMessage {
    /// Message of its session.
    Session(ToConnection),
    /// The caller of this command is gone. If it is a write, its outcome is unknown until it ends.
    Abort(TaskId, Option<UncertainWrite>),
    /// The session continues without this connection.
    Retire,
    /// A caller waits for the end of all commands sent to this unit.
    Listen(Lun, BarrierToken),
}

/// Mailbox of one connection. A session sends a connection a few messages for each of its requests,
/// so the limit of requests also limits the mail.
#[derive(Debug, Default)]
pub(crate) struct ConnectionMessageSender {
    queue: Mutex<Queue>,
    filled: AtomicBool,
    waker: AtomicWaker,
}

#[derive(Debug, Default)]
struct Queue {
    mail: VecDeque<ConnectionMessage>,
    /// True when the mailbox has no reader any more.
    closed: bool,
}

impl ConnectionMessageSender {
    /// Adds `mail` and wakes the connection.
    ///
    /// # Errors
    /// Returns the mail if the mailbox has no reader any more.
    pub(crate) fn put(&self, mail: ConnectionMessage) -> Result<(), ConnectionMessage> {
        let mut queue = self.queue();
        if queue.closed {
            return Err(mail);
        }
        queue.mail.push_back(mail);
        self.filled.store(true, Ordering::Release);
        drop(queue);
        self.waker.wake();
        Ok(())
    }

    /// Drops the waiting barrier tokens: the commands sent to the unit are over.
    pub(crate) fn drop_listeners(&self) {
        self.queue().mail.retain(|mail| !matches!(mail, ConnectionMessage::Listen(..)));
    }

    /// Closes the mailbox; returns unread mail.
    pub(crate) fn close(&self) -> VecDeque<ConnectionMessage> {
        let mut queue = self.queue();
        queue.closed = true;
        std::mem::take(&mut queue.mail)
    }

    /// True when there is mail; otherwise registers the waker.
    pub(crate) fn poll(&self, context: &Context<'_>) -> bool {
        if self.filled.load(Ordering::Acquire) {
            return true;
        }
        self.waker.register(context.waker());
        self.filled.load(Ordering::Acquire)
    }

    /// Appends all mail to `into`.
    pub(crate) fn take(&self, into: &mut VecDeque<ConnectionMessage>) {
        if self.filled.load(Ordering::Acquire) {
            let mut queue = self.queue();
            self.filled.store(false, Ordering::Release);
            into.append(&mut queue.mail);
        }
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Numbers, window and tags of a session, and how it ended.
#[derive(Debug)]
pub(crate) struct Numbering {
    state: Mutex<State>,
    over: AtomicBool,
    cause: OnceLock<Error>,
    /// Set when a connection logs the session out.
    left: AtomicBool,
    /// Set when the session has or had several connections at once.
    several: AtomicBool,
    /// Set when a connection was lost with unanswered commands, and the session with it.
    unheard: AtomicBool,
    /// Set when the target closed a connection and the session ends with it.
    closed: AtomicBool,
    /// Set when the session ended with a connection that the target closed, and other connections
    /// were dropped that the target had left open.
    spared: AtomicBool,
}

#[derive(Debug)]
struct State {
    machine: InitiatorSession,
    mailboxes: BTreeMap<u16, Arc<ConnectionMessageSender>>,
    /// Time at which a connection last began to log in beside another one.
    joined_at: Option<Instant>,
    /// Time at which the target first closed a connection after that.
    closed_at: Option<Instant>,
}

/// The end of a session of several connections, of which the target had closed at least one.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct JoinedEnd {
    /// Time from the login of the connection that joined last to the first that was closed.
    pub(crate) after: Duration,
    /// True when the target had left other connections open.
    pub(crate) spared: bool,
}

impl Numbering {
    /// Returns the numbering of a session with this ISID and without connections.
    pub(crate) fn new(isid: [u8; 6]) -> Arc<Self> {
        let machine = InitiatorSession::new(InitiatorSessionOptions {
            isid,
            cmd_sn: SerialNumber(1),
            queue_requests_max: QUEUE_REQUESTS_MAX,
        });
        Arc::new(Self {
            state: Mutex::new(State {
                machine,
                mailboxes: BTreeMap::new(),
                joined_at: None,
                closed_at: None,
            }),
            over: AtomicBool::new(false),
            cause: OnceLock::new(),
            left: AtomicBool::new(false),
            several: AtomicBool::new(false),
            unheard: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            spared: AtomicBool::new(false),
        })
    }

    /// Registers a connection that is about to log in; `None` if it may not.
    pub(crate) fn open(
        &self,
        cid: u16,
        mailbox: &Arc<ConnectionMessageSender>,
    ) -> Option<LoginNumbers> {
        let mut state = self.state();
        let numbers = state.machine.open(cid)?;
        state.mailboxes.insert(cid, Arc::clone(mailbox));
        if state.mailboxes.len() > 1 {
            self.several.store(true, Ordering::Release);
            (state.joined_at, state.closed_at) = (Some(Instant::now()), None);
        }
        Some(numbers)
    }

    /// Returns a barrier for the commands in flight at the unit `lun`; `None` if the session never
    /// had several connections, so that responses arrive in the order of the target.
    pub(crate) fn listen(&self, lun: Lun) -> Option<CompletionBarrier> {
        if !self.several.load(Ordering::Acquire) {
            return None;
        }
        let (listener, hearing) = CompletionBarrier::new();
        for mailbox in self.state().mailboxes.values() {
            // A closed mailbox has no commands in flight.
            let _ = mailbox.put(ConnectionMessage::Listen(lun, listener.clone()));
        }
        Some(hearing)
    }

    /// Records that responses are lost because the session ends with one of its connections. To be
    /// called before the connection is removed.
    pub(crate) fn leave_unheard(&self) {
        self.unheard.store(true, Ordering::Release);
    }

    /// True when responses to some commands are lost.
    pub(crate) fn is_unheard(&self) -> bool {
        self.unheard.load(Ordering::Acquire)
    }

    /// Parameters negotiated in the leading login; `None` before it.
    pub(crate) fn parameters(&self) -> Option<SessionParameters> {
        self.state().machine.parameters()
    }

    /// Passes messages of a connection to the session, and returns its mail: waiting mail and the
    /// replies.
    pub(crate) fn hear(
        &self,
        cid: u16,
        said: &mut Vec<ToSession>,
        mail: &mut VecDeque<ConnectionMessage>,
    ) {
        let mut state = self.state();
        if let Some(mailbox) = state.mailboxes.get(&cid) {
            mailbox.take(mail);
        }
        for said in said.drain(..) {
            let own = Some((cid, &mut *mail));
            self.step(&mut state, Input::Connection(cid, said), own, None);
        }
    }

    /// Removes a connection that ended for this reason; `window` is its last window update. The
    /// session may end with it, and does if this was the last connection, in which case returns
    /// true.
    pub(crate) fn part(
        &self,
        cid: u16,
        ending: Ending,
        window: Option<ToSession>,
        cause: &Error,
    ) -> bool {
        let mut state = self.state();
        state.mailboxes.remove(&cid);
        // The window may show that the target has received all commands, and lets other connections
        // continue. A tag granted to this connection now would never be used.
        let last = [Some(ToSession::WithdrawAll), window, Some(ToSession::Closed { ending })];
        for said in last.into_iter().flatten() {
            self.step(&mut state, Input::Connection(cid, said), None, Some(cause));
        }
        state.mailboxes.is_empty()
    }

    /// Records that the target has closed a connection, logged in or not.
    pub(crate) fn note_closed_by_target(&self) {
        self.state().closed_at.get_or_insert_with(Instant::now);
    }

    /// Returns the end of the session, once all its connections are gone. `None` if it was logged
    /// out, had one connection, or the target closed none.
    pub(crate) fn joined_end(&self) -> Option<JoinedEnd> {
        let state = self.state();
        let (joined, closed) = (state.joined_at?, state.closed_at?);
        let spared = self.spared.load(Ordering::Acquire);
        let end = JoinedEnd { after: closed.saturating_duration_since(joined), spared };
        (!self.left.load(Ordering::Acquire)).then_some(end)
    }

    /// Records that the target has closed a connection; it is open whether the session ends with
    /// it.
    pub(crate) fn note_closed(&self) {
        if !self.is_over() {
            self.closed.store(true, Ordering::Release);
        }
    }

    /// Forgets that the target has closed a connection; true if it had.
    pub(crate) fn forget_closed(&self) -> bool {
        self.closed.swap(false, Ordering::AcqRel)
    }

    /// Records that a connection which the target had left open is dropped, because the session
    /// ends with one that the target closed; `true` for the first.
    pub(crate) fn note_spared(&self) -> bool {
        let first = self.forget_closed();
        self.spared.fetch_or(first, Ordering::AcqRel);
        first
    }

    /// Ends the session, for this reason.
    pub(crate) fn end(&self, cause: &Error) {
        self.step(&mut self.state(), Input::End, None, Some(cause));
    }

    /// True when the session takes no more requests.
    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// Returns why the session is over; `None` if it is not.
    pub(crate) fn cause(&self) -> Option<&Error> {
        self.cause.get()
    }

    /// Returns `true` for the first connection that would log the session out.
    pub(crate) fn leave(&self) -> bool {
        !self.left.swap(true, Ordering::AcqRel)
    }

    /// Runs one step of the session. `own` is the calling connection, with its mail in hand.
    fn step(
        &self,
        state: &mut State,
        input: Input,
        mut own: Option<(u16, &mut VecDeque<ConnectionMessage>)>,
        cause: Option<&Error>,
    ) {
        state.machine.handle(input);
        while let Some(output) = state.machine.poll() {
            match output {
                Output::ToConnection(cid, said) => {
                    if said == ToConnection::Close {
                        self.ends(cause);
                    }
                    let mail = ConnectionMessage::Session(said);
                    match &mut own {
                        Some((own, in_hand)) if *own == cid => in_hand.push_back(mail),
                        _ => {
                            // A connection that has ended needs no message.
                            let _ = state.mailboxes.get(&cid).map(|mailbox| mailbox.put(mail));
                        }
                    }
                }
                Output::Ended(_) => self.ends(cause),
                Output::Established { .. } => {}
            }
        }
    }

    /// Sets the cause before `over`, so that a reader of `over` finds the cause.
    fn ends(&self, cause: Option<&Error>) {
        if let Some(cause) = cause {
            let _ = self.cause.set(cause.clone()); // the first counts
        }
        self.over.store(true, Ordering::Release);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
