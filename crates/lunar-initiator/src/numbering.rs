//! What the connections of one session share: the protocol's session, behind one lock.
//!
//! As at the target (docs/decisions/002), the lock is held for one step and never across an await.
//! Values for connections go into their mailboxes under the lock, so they arrive in the order of
//! the steps: a connection must send its commands in the order of their CmdSN (RFC 7143 §4.2.2.1).

use crate::Error;
use crate::completion_barrier::{BarrierToken, CompletionBarrier};
use crate::uncertain_writes::UncertainWrite;
use futures_util::task::AtomicWaker;
use lunar_iscsi::framing::TaskId;
use lunar_iscsi::session::initiator::{
    Ending, InitiatorSession, Input, LoginNumbers, Output, SessionOptions, ToConnection, ToSession,
};
use lunar_iscsi::text::SessionParameters;
use lunar_wire::{Lun, SerialNumber};
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::Context;
use std::time::Duration;
use tokio::time::Instant;

/// Requests of a session that wait for its command window to open.
const QUEUE_REQUESTS_MAX: u32 = 8192;

/// What reaches a connection besides its socket and requests.
#[derive(Debug)]
pub(crate) enum Mail {
    /// From its session.
    Session(ToConnection),
    /// Whoever wanted this command's answer does so no more. A write is in doubt until it is over.
    Abort(TaskId, Option<UncertainWrite>),
    /// The session goes on without this connection.
    Retire,
    /// Somebody waits for the end of what was sent to this unit.
    Listen(Lun, BarrierToken),
}

/// Mail for one connection. A session sends a connection a few values for each request that it
/// made, so its limit of requests is the limit here.
#[derive(Debug, Default)]
pub(crate) struct Mailbox {
    queue: Mutex<Queue>,
    filled: AtomicBool,
    waker: AtomicWaker,
}

#[derive(Debug, Default)]
struct Queue {
    mail: VecDeque<Mail>,
    /// Nobody reads it any more.
    closed: bool,
}

impl Mailbox {
    /// Puts `mail` in and wakes the connection up.
    ///
    /// # Errors
    /// The mail: nobody reads it any more.
    pub(crate) fn put(&self, mail: Mail) -> Result<(), Mail> {
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

    /// What was sent is over, so nobody has to wait for it.
    pub(crate) fn drop_listeners(&self) {
        self.queue().mail.retain(|mail| !matches!(mail, Mail::Listen(..)));
    }

    /// Takes no more; returns what nobody read.
    pub(crate) fn close(&self) -> VecDeque<Mail> {
        let mut queue = self.queue();
        queue.closed = true;
        std::mem::take(&mut queue.mail)
    }

    /// Is anything there? If not, the waker is kept.
    pub(crate) fn poll(&self, context: &Context<'_>) -> bool {
        if self.filled.load(Ordering::Acquire) {
            return true;
        }
        self.waker.register(context.waker());
        self.filled.load(Ordering::Acquire)
    }

    /// Appends all that is there to `into`.
    pub(crate) fn take(&self, into: &mut VecDeque<Mail>) {
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

/// The numbers, the window and the tags of a session, and how it ended.
#[derive(Debug)]
pub(crate) struct Numbering {
    state: Mutex<State>,
    over: AtomicBool,
    cause: OnceLock<Error>,
    /// A connection logs the session out.
    left: AtomicBool,
    /// It has, or had, several connections at once.
    several: AtomicBool,
    /// A connection went with commands that were not answered, and the session with it.
    unheard: AtomicBool,
    /// The target closed a connection, and the session ends with it.
    closed: AtomicBool,
    /// With a connection that the target closed, others were dropped that it had not closed.
    spared: AtomicBool,
}

#[derive(Debug)]
struct State {
    machine: InitiatorSession,
    mailboxes: BTreeMap<u16, Arc<Mailbox>>,
    /// When a connection began last to log in beside another one.
    joined_at: Option<Instant>,
    /// When the target closed a connection first after that.
    closed_at: Option<Instant>,
}

/// The end of a session of several connections, of which the target had closed one or more.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct JoinedEnd {
    /// From the login of the connection that joined last to the first that was closed.
    pub(crate) after: Duration,
    /// The target had left others open.
    pub(crate) spared: bool,
}

impl Numbering {
    /// Of a session with this ISID that has no connection yet.
    pub(crate) fn new(isid: [u8; 6]) -> Arc<Self> {
        let machine = InitiatorSession::new(SessionOptions {
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

    /// A connection is about to log in; `None`: it may not.
    pub(crate) fn open(&self, cid: u16, mailbox: &Arc<Mailbox>) -> Option<LoginNumbers> {
        let mut state = self.state();
        let numbers = state.machine.open(cid)?;
        state.mailboxes.insert(cid, Arc::clone(mailbox));
        if state.mailboxes.len() > 1 {
            self.several.store(true, Ordering::Release);
            (state.joined_at, state.closed_at) = (Some(Instant::now()), None);
        }
        Some(numbers)
    }

    /// Listens to what is under way at the unit `lun`; `None`: there never were several
    /// connections, so answers come in the order in which the target gave them.
    pub(crate) fn listen(&self, lun: Lun) -> Option<CompletionBarrier> {
        if !self.several.load(Ordering::Acquire) {
            return None;
        }
        let (listener, hearing) = CompletionBarrier::new();
        for mailbox in self.state().mailboxes.values() {
            // One that nobody reads any more has nothing under way.
            let _ = mailbox.put(Mail::Listen(lun, listener.clone()));
        }
        Some(hearing)
    }

    /// What was said to some commands will never be known, for the session ends with a connection
    /// of it. To be told before the connection is gone.
    pub(crate) fn leave_unheard(&self) {
        self.unheard.store(true, Ordering::Release);
    }

    /// What was said to some commands will never be known.
    pub(crate) fn is_unheard(&self) -> bool {
        self.unheard.load(Ordering::Acquire)
    }

    /// What the leading login brought; `None` before.
    pub(crate) fn parameters(&self) -> Option<SessionParameters> {
        self.state().machine.parameters()
    }

    /// A connection speaks, and reads its mail: what was there before, and what it is answered.
    pub(crate) fn hear(&self, cid: u16, said: &mut Vec<ToSession>, mail: &mut VecDeque<Mail>) {
        let mut state = self.state();
        if let Some(mailbox) = state.mailboxes.get(&cid) {
            mailbox.take(mail);
        }
        for said in said.drain(..) {
            let own = Some((cid, &mut *mail));
            self.step(&mut state, Input::Connection(cid, said), own, None);
        }
    }

    /// A connection is gone, for this reason; `window` is what it had heard last. The session may
    /// end with it; it has if this was the last one, which is returned.
    pub(crate) fn part(
        &self,
        cid: u16,
        ending: Ending,
        window: Option<ToSession>,
        cause: &Error,
    ) -> bool {
        let mut state = self.state();
        state.mailboxes.remove(&cid);
        // The window may show that the target has got all there is, and it lets others go on. What
        // is granted to this one now would be sent by nobody.
        let last = [Some(ToSession::WithdrawAll), window, Some(ToSession::Closed { ending })];
        for said in last.into_iter().flatten() {
            self.step(&mut state, Input::Connection(cid, said), None, Some(cause));
        }
        state.mailboxes.is_empty()
    }

    /// The target has closed a connection, logged in or not.
    pub(crate) fn note_closed_by_target(&self) {
        self.state().closed_at.get_or_insert_with(Instant::now);
    }

    /// The end of the session, once all its connections are gone. `None`: it was logged out, it had
    /// one connection, or the target closed none.
    pub(crate) fn joined_end(&self) -> Option<JoinedEnd> {
        let state = self.state();
        let (joined, closed) = (state.joined_at?, state.closed_at?);
        let spared = self.spared.load(Ordering::Acquire);
        let end = JoinedEnd { after: closed.saturating_duration_since(joined), spared };
        (!self.left.load(Ordering::Acquire)).then_some(end)
    }

    /// The target has closed a connection, of which it is not known yet whether the session ends
    /// with it.
    pub(crate) fn note_closed(&self) {
        if !self.is_over() {
            self.closed.store(true, Ordering::Release);
        }
    }

    /// Forgets that the target has closed a connection; whether it had.
    pub(crate) fn forget_closed(&self) -> bool {
        self.closed.swap(false, Ordering::AcqRel)
    }

    /// The session ends with a connection that the target closed, and this one is dropped with it,
    /// which the target had not closed; `true` for the first.
    pub(crate) fn note_spared(&self) -> bool {
        let first = self.forget_closed();
        self.spared.fetch_or(first, Ordering::AcqRel);
        first
    }

    /// Ends the session, for this reason.
    pub(crate) fn end(&self, cause: &Error) {
        self.step(&mut self.state(), Input::End, None, Some(cause));
    }

    /// It takes no more requests.
    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// Why it is over; `None`: it is not.
    pub(crate) fn cause(&self) -> Option<&Error> {
        self.cause.get()
    }

    /// `true` for the first connection that would log the session out.
    pub(crate) fn leave(&self) -> bool {
        !self.left.swap(true, Ordering::AcqRel)
    }

    /// `own`: the connection that speaks, and its mail in hand.
    fn step(
        &self,
        state: &mut State,
        input: Input,
        mut own: Option<(u16, &mut VecDeque<Mail>)>,
        cause: Option<&Error>,
    ) {
        state.machine.handle(input);
        while let Some(output) = state.machine.poll() {
            match output {
                Output::ToConnection(cid, said) => {
                    if said == ToConnection::Close {
                        self.ends(cause);
                    }
                    let mail = Mail::Session(said);
                    match &mut own {
                        Some((own, in_hand)) if *own == cid => in_hand.push_back(mail),
                        _ => {
                            // A connection that is gone for good needs to be told nothing.
                            let _ = state.mailboxes.get(&cid).map(|mailbox| mailbox.put(mail));
                        }
                    }
                }
                Output::Ended(_) => self.ends(cause),
                Output::Established { .. } => {}
            }
        }
    }

    /// Whoever finds it over finds the cause.
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
