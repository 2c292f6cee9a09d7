//! The loop of most attacks: some sessions that send without end, and read the answers or do not.

use super::attacker::{Aim, Attacker};
use super::login::Login;
use super::session::Session;
use crate::raw::Pdu;
use anyhow::Result;
use std::time::{Duration, Instant};

/// Bytes that one session has queued at most before it waits for the socket.
const QUEUED_BYTES_MAX: usize = 256 << 10;

/// PDUs that a session queues before the next session has its turn.
const BATCH_PDUS: usize = 16;

/// Answers that a session takes before the next session has its turn.
const ANSWERS_MAX: usize = 64;

/// How long the loop rests when no session could do anything.
const IDLE_PAUSE: Duration = Duration::from_millis(1);

/// How long a session that was refused or lost waits before it logs in again.
const LOGIN_PAUSE: Duration = Duration::from_millis(50);

/// Sessions that send without end.
#[derive(Clone, Copy)]
pub struct Flood {
    /// How many, each of an initiator of its own.
    pub sessions: usize,
    /// Where they log in.
    pub aim: Aim,
    /// With small socket buffers.
    pub has_small_buffers: bool,
    /// Pause between batches; zero: as fast as the sockets take it.
    pub pace: Duration,
    /// Changes the login of a session.
    pub login: fn(&mut Login),
}

/// What a session does with an answer.
type TakeAnswer<'a> = dyn FnMut(&mut Session, &Pdu) + 'a;

/// One session and when it may log in again.
struct Slot {
    session: Option<Session>,
    login_at: Instant,
}

impl Flood {
    /// Sessions as the system makes them.
    pub fn new(sessions: usize, aim: Aim) -> Self {
        Self { sessions, aim, has_small_buffers: false, pace: Duration::ZERO, login: |_| {} }
    }

    /// With small socket buffers, so that answers soon stay with the server.
    #[must_use]
    pub fn with_small_buffers(mut self) -> Self {
        self.has_small_buffers = true;
        self
    }

    /// With a pause after each batch.
    #[must_use]
    pub fn paced(mut self, pace: Duration) -> Self {
        self.pace = pace;
        self
    }

    /// With a login of another form.
    #[must_use]
    pub fn with_login(mut self, login: fn(&mut Login)) -> Self {
        self.login = login;
        self
    }

    /// Sends what `next` queues and never reads an answer.
    ///
    /// # Errors
    /// None; the result suits [`Attack::run`](super::attacker::Attack::run).
    pub fn unread(&self, attacker: &Attacker, mut next: impl FnMut(&mut Session)) -> Result<()> {
        self.run(attacker, &mut next, None)
    }

    /// Sends what `next` queues while the command window is open, and hands each answer to
    /// `answer`.
    ///
    /// # Errors
    /// None; the result suits [`Attack::run`](super::attacker::Attack::run).
    pub fn reading(
        &self,
        attacker: &Attacker,
        mut next: impl FnMut(&mut Session),
        mut answer: impl FnMut(&mut Session, &Pdu),
    ) -> Result<()> {
        self.run(attacker, &mut next, Some(&mut answer))
    }

    fn run(
        &self,
        attacker: &Attacker,
        next: &mut dyn FnMut(&mut Session),
        mut answer: Option<&mut TakeAnswer<'_>>,
    ) -> Result<()> {
        let now = Instant::now();
        let mut slots: Vec<Slot> =
            (0..self.sessions).map(|_| Slot { session: None, login_at: now }).collect();
        while !attacker.is_over() {
            let mut progress = false;
            for (number, slot) in slots.iter_mut().enumerate() {
                let Some(session) = self.live(attacker, number, slot) else { continue };
                let has_room =
                    |session: &Session| session.connection.unsent_bytes() < QUEUED_BYTES_MAX;
                while has_room(session) && session.answer_next_r2t() {}
                for _ in 0..BATCH_PDUS {
                    let is_open = answer.is_none() || session.window_is_open();
                    if !is_open || !has_room(session) {
                        break;
                    }
                    next(session);
                }
                progress |= session.connection.send();
                if let Some(answer) = &mut answer {
                    for _ in 0..ANSWERS_MAX {
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

    /// The session of a slot; logs in if there is none.
    fn live<'a>(
        &self,
        attacker: &Attacker,
        number: usize,
        slot: &'a mut Slot,
    ) -> Option<&'a mut Session> {
        if slot.session.as_ref().is_some_and(|session| session.connection.is_closed()) {
            slot.session = None;
            slot.login_at = Instant::now() + LOGIN_PAUSE;
        }
        if slot.session.is_none() && Instant::now() >= slot.login_at && !attacker.is_over() {
            slot.session = self.log_in(attacker, number).ok();
            slot.login_at = Instant::now() + LOGIN_PAUSE;
        }
        slot.session.as_mut()
    }

    fn log_in(&self, attacker: &Attacker, number: usize) -> Result<Session> {
        let connection = match self.has_small_buffers {
            true => attacker.connect_small()?,
            false => attacker.connect()?,
        };
        let mut login = attacker.login(self.aim, number);
        (self.login)(&mut login);
        attacker.log_in_over(connection, &login, self.aim)
    }
}
