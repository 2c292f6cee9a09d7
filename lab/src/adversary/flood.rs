//! The loop of most attacks: sessions that send without pause, and read the responses or do not.

use super::attacker::{Attacker, Destination};
use super::login::LoginParameters;
use super::session::RawSession;
use anyhow::Result;
use lunar_testkit::raw::RawPdu;
use std::time::{Duration, Instant};

/// Maximum number of bytes that one session queues before it waits for the socket.
const QUEUED_BYTES_MAX: usize = 256 << 10;

/// Maximum number of PDUs that a session queues before the next session continues.
const BATCH_PDUS: usize = 16;

/// Maximum number of responses that a session receives before the next session continues.
const RESPONSES_MAX: usize = 64;

/// Pause of the loop when no session could make progress.
const IDLE_PAUSE: Duration = Duration::from_millis(1);

/// Pause of a session that was refused or lost before it logs in again.
const LOGIN_PAUSE: Duration = Duration::from_millis(50);

/// Sessions that send without pause.
#[derive(Clone, Copy)]
pub struct Flood {
    /// Number of sessions, each of an initiator of its own.
    pub sessions: usize,
    /// Number of the first session's initiator.
    pub first_number: usize,
    /// Number of the attacker's addresses that the sessions are spread over.
    pub hosts: usize,
    /// Index of the first of these addresses.
    pub first_host: usize,
    /// LUN that the sessions log in to.
    pub destination: Destination,
    /// True for small socket buffers.
    pub has_small_buffers: bool,
    /// True for a second connection in each session that is read, so that the command window is
    /// known although the first connection is not read.
    pub has_observer: bool,
    /// Pause between batches; zero: as fast as the sockets accept data.
    pub pace: Duration,
    /// Changes the login of a session.
    pub login: fn(&mut LoginParameters),
}

/// Function that is called for each response of a session.
type ResponseHandler<'a> = dyn FnMut(&mut RawSession, &RawPdu) + 'a;

/// One session and the time at which it may log in again.
struct Slot {
    session: Option<RawSession>,
    /// Another connection of the session.
    observer: Option<RawSession>,
    login_at: Instant,
}

impl Flood {
    /// Creates sessions with the socket buffers of the system.
    pub fn new(sessions: usize, destination: Destination) -> Self {
        Self {
            sessions,
            first_number: 0,
            hosts: 1,
            first_host: 0,
            destination,
            has_small_buffers: false,
            has_observer: false,
            pace: Duration::ZERO,
            login: |_| {},
        }
    }

    /// Numbers the initiators from this number on.
    #[must_use]
    pub fn numbered_from(mut self, first_number: usize) -> Self {
        self.first_number = first_number;
        self
    }

    /// Spreads the sessions over this many addresses.
    #[must_use]
    pub fn from_hosts(mut self, hosts: usize) -> Self {
        self.hosts = hosts;
        self
    }

    /// Uses addresses from this index on.
    #[must_use]
    pub fn at_host(mut self, first_host: usize) -> Self {
        self.first_host = first_host;
        self
    }

    /// Sets small socket buffers, so that responses soon stay in the server.
    #[must_use]
    pub fn with_small_buffers(mut self) -> Self {
        self.has_small_buffers = true;
        self
    }

    /// Adds a second connection that follows the command window.
    #[must_use]
    pub fn with_observer(mut self) -> Self {
        self.has_observer = true;
        self
    }

    /// Sets a pause after each batch.
    #[must_use]
    pub fn paced(mut self, pace: Duration) -> Self {
        self.pace = pace;
        self
    }

    /// Changes the login of each session.
    #[must_use]
    pub fn with_login(mut self, login: fn(&mut LoginParameters)) -> Self {
        self.login = login;
        self
    }

    /// Sends the PDUs that `next` queues and never reads a response.
    ///
    /// # Errors
    /// None; the result suits [`Attack::run`](super::attack::Attack::run).
    pub fn unread(&self, attacker: &Attacker, mut next: impl FnMut(&mut RawSession)) -> Result<()> {
        self.run(attacker, &mut next, None)
    }

    /// Sends the PDUs that `next` queues while the command window is open, and passes each response
    /// to `answer`.
    ///
    /// # Errors
    /// None; the result suits [`Attack::run`](super::attack::Attack::run).
    pub fn reading(
        &self,
        attacker: &Attacker,
        mut next: impl FnMut(&mut RawSession),
        mut answer: impl FnMut(&mut RawSession, &RawPdu),
    ) -> Result<()> {
        self.run(attacker, &mut next, Some(&mut answer))
    }

    fn run(
        &self,
        attacker: &Attacker,
        next: &mut dyn FnMut(&mut RawSession),
        mut answer: Option<&mut ResponseHandler<'_>>,
    ) -> Result<()> {
        let now = Instant::now();
        let mut slots: Vec<Slot> = (0..self.sessions).map(|_| Slot::new(now)).collect();
        while !attacker.is_over() {
            let mut progress = false;
            for (number, slot) in (self.first_number..).zip(&mut slots) {
                self.make_ready(attacker, number, slot);
                let Some(session) = &mut slot.session else { continue };
                let knows_window = answer.is_some() || slot.observer.is_some();
                if let Some(observer) = &mut slot.observer {
                    session.follow_window(observer);
                    attacker.count(observer);
                }
                send_batch(session, knows_window, next);
                progress |= session.connection.send();
                if let Some(answer) = &mut answer {
                    for _ in 0..RESPONSES_MAX {
                        let Some(pdu) = session.receive() else { break };
                        answer(session, &pdu);
                        progress = true;
                    }
                }
                attacker.count(session);
            }
            if !self.pace.is_zero() || !progress {
                std::thread::sleep(self.pace.max(IDLE_PAUSE));
            }
        }
        Ok(())
    }

    /// Logs in if there is no session or the session was closed.
    fn make_ready(&self, attacker: &Attacker, number: usize, slot: &mut Slot) {
        let mut sessions = slot.session.iter().chain(&slot.observer);
        if sessions.any(|session| session.connection.is_closed()) {
            *slot = Slot::new(Instant::now() + LOGIN_PAUSE);
        }
        if slot.session.is_none() && Instant::now() >= slot.login_at && !attacker.is_over() {
            slot.session = self.log_in(attacker, number).ok();
            slot.observer = match &slot.session {
                Some(session) if self.has_observer => self.observe(attacker, number, session).ok(),
                _ => None,
            };
            slot.login_at = Instant::now() + LOGIN_PAUSE;
        }
    }

    /// Opens another connection of a session.
    fn observe(
        &self,
        attacker: &Attacker,
        number: usize,
        session: &RawSession,
    ) -> Result<RawSession> {
        let mut login = attacker.login(self.destination, number);
        (self.login)(&mut login);
        login.joins = (session.negotiated.tsih, 1);
        attacker.log_in_as(&login, self.destination)
    }

    fn log_in(&self, attacker: &Attacker, number: usize) -> Result<RawSession> {
        let connection = match self.has_small_buffers {
            true => attacker.connect_small()?,
            false => attacker.connect_from(self.first_host + number % self.hosts)?,
        };
        let mut login = attacker.login(self.destination, number);
        (self.login)(&mut login);
        attacker.log_in_over(connection, &login, self.destination)
    }
}

impl Slot {
    fn new(login_at: Instant) -> Self {
        Self { session: None, observer: None, login_at }
    }
}

/// Queues requested Data-Out and the PDUs of `next`, while fewer than [`QUEUED_BYTES_MAX`] wait for
/// the socket.
fn send_batch(session: &mut RawSession, knows_window: bool, next: &mut dyn FnMut(&mut RawSession)) {
    let is_below_limit =
        |session: &RawSession| session.connection.unsent_bytes() < QUEUED_BYTES_MAX;
    while is_below_limit(session) && session.answer_next_r2t() {}
    for _ in 0..BATCH_PDUS {
        if !is_below_limit(session) || (knows_window && !session.window_is_open()) {
            return;
        }
        next(session);
    }
}
