//! State shared by the connections of one session: the protocol's session, behind one lock.

use crate::Error;
use crate::completion_barrier::{BarrierToken, CompletionBarrier};
use crate::uncertain_writes::UncertainWrite;
use futures_util::task::AtomicWaker;
use lunar_iscsi::framing::TaskId;
use lunar_iscsi::session::initiator::{
    ConnectionEnding, InitiatorSession, InitiatorSessionOptions, Input, LoginNumbers, Output,
    ToConnection, ToSession,
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
    /// A caller waits for the end of all commands sent to this unit; each of them is to hold a
    /// clone of the token.
    Barrier(Lun, BarrierToken),
}

/// Mailbox of one connection. A session sends a connection a few messages for each of its requests,
/// so the limit of requests also limits the number of messages.
#[derive(Debug, Default)]
pub(crate) struct ConnectionMessageSender {
    queue: Mutex<Queue>,
    filled: AtomicBool,
    waker: AtomicWaker,
}

#[derive(Debug, Default)]
struct Queue {
    messages: VecDeque<ConnectionMessage>,
    /// True when the mailbox has no reader any more.
    closed: bool,
}

impl ConnectionMessageSender {
    /// Adds `message` and wakes the connection.
    ///
    /// # Errors
    /// Returns the message if the mailbox has no reader any more.
    pub(crate) fn put(&self, message: ConnectionMessage) -> Result<(), ConnectionMessage> {
        let mut queue = self.queue();
        if queue.closed {
            return Err(message);
        }
        queue.messages.push_back(message);
        self.filled.store(true, Ordering::Release);
        drop(queue);
        self.waker.wake();
        Ok(())
    }

    /// Drops the waiting barrier tokens: the commands sent to the unit are over.
    pub(crate) fn drop_barrier_tokens(&self) {
        self.queue().messages.retain(|message| !matches!(message, ConnectionMessage::Barrier(..)));
    }

    /// Closes the mailbox; returns the unread messages.
    pub(crate) fn close(&self) -> VecDeque<ConnectionMessage> {
        let mut queue = self.queue();
        queue.closed = true;
        std::mem::take(&mut queue.messages)
    }

    /// True when the mailbox has messages; otherwise registers the waker.
    pub(crate) fn poll(&self, context: &Context<'_>) -> bool {
        if self.filled.load(Ordering::Acquire) {
            return true;
        }
        self.waker.register(context.waker());
        self.filled.load(Ordering::Acquire)
    }

    /// Moves all messages to the end of `into`.
    pub(crate) fn take(&self, into: &mut VecDeque<ConnectionMessage>) {
        if self.filled.load(Ordering::Acquire) {
            let mut queue = self.queue();
            self.filled.store(false, Ordering::Release);
            into.append(&mut queue.messages);
        }
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The CmdSNs, command window and task tags of a session, and the reason of its end.
#[derive(Debug)]
pub(crate) struct SharedSessionState {
    state: Mutex<State>,
    over: AtomicBool,
    cause: OnceLock<Error>,
    /// True once a connection logs the session out.
    logging_out: AtomicBool,
    /// True once the session has had several connections at the same time.
    had_several_connections: AtomicBool,
    /// True once the session ended with a connection that had unanswered commands.
    responses_lost: AtomicBool,
    /// True while a connection that the target closed may end the session.
    closed_by_target: AtomicBool,
    /// True if the session ended with a connection that the target closed, and connections were
    /// dropped that the target had left open.
    others_open: AtomicBool,
    /// True once a command was answered.
    answered_commands: AtomicBool,
}

#[derive(Debug)]
struct State {
    machine: InitiatorSession,
    mailboxes: BTreeMap<u16, Arc<ConnectionMessageSender>>,
    /// Time at which a connection last began to log in alongside another one.
    joined_at: Option<Instant>,
    /// Time at which the target first closed a connection after that.
    closed_at: Option<Instant>,
}

/// The end of a session of several connections, of which the target had closed at least one.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct MultiConnectionEnd {
    /// Time from the login of the connection that joined last to the first that was closed.
    pub(crate) after: Duration,
    /// True when the target had left other connections open.
    pub(crate) others_open: bool,
}

impl SharedSessionState {
    /// Returns the state of a session with this ISID and without connections.
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
            logging_out: AtomicBool::new(false),
            had_several_connections: AtomicBool::new(false),
            responses_lost: AtomicBool::new(false),
            closed_by_target: AtomicBool::new(false),
            others_open: AtomicBool::new(false),
            answered_commands: AtomicBool::new(false),
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
            self.had_several_connections.store(true, Ordering::Release);
            (state.joined_at, state.closed_at) = (Some(Instant::now()), None);
        }
        Some(numbers)
    }

    /// Returns a barrier for the commands in flight at the unit `lun`; `None` if the session never
    /// had several connections, so that responses arrive in the order of the target.
    pub(crate) fn command_barrier(&self, lun: Lun) -> Option<CompletionBarrier> {
        if !self.had_several_connections.load(Ordering::Acquire) {
            return None;
        }
        let (token, barrier) = CompletionBarrier::new();
        for mailbox in self.state().mailboxes.values() {
            // A closed mailbox has no commands in flight.
            let _ = mailbox.put(ConnectionMessage::Barrier(lun, token.clone()));
        }
        Some(barrier)
    }

    /// Records that responses are lost because the session ends with one of its connections. To be
    /// called before the connection is removed.
    pub(crate) fn record_lost_responses(&self) {
        self.responses_lost.store(true, Ordering::Release);
    }

    /// True when responses of the session are lost.
    pub(crate) fn has_lost_responses(&self) -> bool {
        self.responses_lost.load(Ordering::Acquire)
    }

    /// Records that the target answered a command.
    pub(crate) fn record_answered_command(&self) {
        self.answered_commands.store(true, Ordering::Release);
    }

    /// True when the target answered a command.
    pub(crate) fn has_answered_commands(&self) -> bool {
        self.answered_commands.load(Ordering::Acquire)
    }

    /// Parameters negotiated in the leading login; `None` before it.
    pub(crate) fn parameters(&self) -> Option<SessionParameters> {
        self.state().machine.parameters()
    }

    /// Passes the messages of a connection to the session, and appends those to the connection to
    /// `messages`: the waiting ones and the replies.
    pub(crate) fn handle_messages(
        &self,
        cid: u16,
        from_connection: &mut Vec<ToSession>,
        messages: &mut VecDeque<ConnectionMessage>,
    ) {
        let mut state = self.state();
        if let Some(mailbox) = state.mailboxes.get(&cid) {
            mailbox.take(messages);
        }
        for message in from_connection.drain(..) {
            let own = Some((cid, &mut *messages));
            self.step(&mut state, Input::Connection(cid, message), own, None);
        }
    }

    /// Removes a connection that ended because of `cause`; `window` is its last window update.
    /// Returns true if it was the last connection, which ends the session. The session may also end
    /// with an earlier one.
    pub(crate) fn remove_connection(
        &self,
        cid: u16,
        ending: ConnectionEnding,
        window: Option<ToSession>,
        cause: &Error,
    ) -> bool {
        let mut state = self.state();
        state.mailboxes.remove(&cid);
        // The window may show that the target has received all commands, and lets other connections
        // continue. A tag granted to this connection now would never be used.
        let last = [Some(ToSession::WithdrawAll), window, Some(ToSession::Closed { ending })];
        for message in last.into_iter().flatten() {
            self.step(&mut state, Input::Connection(cid, message), None, Some(cause));
        }
        state.mailboxes.is_empty()
    }

    /// Records that the target has closed a connection, logged in or not.
    pub(crate) fn record_target_close(&self) {
        self.state().closed_at.get_or_insert_with(Instant::now);
    }

    /// Returns how the session ended, once all its connections are gone. `None` if it was logged
    /// out, had one connection, or the target closed none.
    pub(crate) fn multi_connection_end(&self) -> Option<MultiConnectionEnd> {
        let state = self.state();
        let (joined, closed) = (state.joined_at?, state.closed_at?);
        let others_open = self.others_open.load(Ordering::Acquire);
        let end =
            MultiConnectionEnd { after: closed.saturating_duration_since(joined), others_open };
        (!self.logging_out.load(Ordering::Acquire)).then_some(end)
    }

    /// Records that the target has closed a connection, unless the session is over. Whether the
    /// session ends with the connection is not known yet.
    pub(crate) fn record_close_of_target(&self) {
        if !self.is_over() {
            self.closed_by_target.store(true, Ordering::Release);
        }
    }

    /// Forgets that the target has closed a connection; true if it had.
    pub(crate) fn take_close_of_target(&self) -> bool {
        self.closed_by_target.swap(false, Ordering::AcqRel)
    }

    /// Records that a connection which the target had left open is dropped, because the session
    /// ends with one that the target closed; `true` for the first.
    pub(crate) fn note_others_open(&self) -> bool {
        let first = self.take_close_of_target();
        self.others_open.fetch_or(first, Ordering::AcqRel);
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

    /// Begins the logout of the session; returns `true` for the first connection that does.
    pub(crate) fn begin_logout(&self) -> bool {
        !self.logging_out.swap(true, Ordering::AcqRel)
    }

    /// Runs one step of the session. `own` is the calling connection, with the list that receives
    /// its messages.
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
                Output::ToConnection(cid, message) => {
                    if message == ToConnection::Close {
                        self.set_ended(cause);
                    }
                    let message = ConnectionMessage::Session(message);
                    match &mut own {
                        Some((own, own_messages)) if *own == cid => own_messages.push_back(message),
                        _ => {
                            // A connection that has ended needs no message.
                            let _ = state.mailboxes.get(&cid).map(|mailbox| mailbox.put(message));
                        }
                    }
                }
                Output::Ended(_) => self.set_ended(cause),
                Output::Established { .. } => {}
            }
        }
    }

    /// Sets the cause before `over`, so that a reader of `over` finds the cause.
    fn set_ended(&self, cause: Option<&Error>) {
        if let Some(cause) = cause {
            let _ = self.cause.set(cause.clone()); // the first counts
        }
        self.over.store(true, Ordering::Release);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
