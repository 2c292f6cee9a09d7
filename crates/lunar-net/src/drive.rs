//! The loop of a connection, the same for both roles.

use crate::buffer_limits::{BufferLimits, BufferedBytes, SocketBuffers};
use crate::busy_poll::tell_busy;
use crate::clock::Clock;
use crate::inbound::{Arrived, Inbound, discard};
use crate::outbox::Outbox;
use crate::owner_turns::{OwnerId, OwnerTurns, yield_for_round};
use crate::tap::TapChange;
use crate::turn::take_moved;
use crate::unsafe_socket_memory::SocketMemory;
use lunar_iscsi::framing::Header;
use lunar_wire::Time;
use socket2::SockRef;
use std::future::{Future, poll_fn};
use std::io;
use std::os::fd::AsFd;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::Sleep;

/// Stands for "no deadline" in the timer.
const FAR: Duration = Duration::from_secs(24 * 3600);
/// How often a role is asked whether a connection may hold what it does, socket included, while
/// something comes or goes or the peer leaves something with it.
pub const HELD_CHECK: Duration = Duration::from_secs(1);
/// Turns after which a busy connection's role is asked earlier.
const HELD_CHECK_TURNS: u32 = 32;
/// Bytes given to the socket after which the role is asked earlier. They count as held by the
/// socket until the kernel is asked what it holds.
const HELD_CHECK_BYTES: usize = 256 << 10;
/// Bytes given to the socket are rounded up to a power of two, and at least to this, so that the
/// charge changes rarely.
const SENT_BYTES_MIN: usize = 4 << 10;
/// Checks of a connection that ends, one each [`HELD_CHECK`]: 5 seconds in all.
const LINGER_CHECKS: usize = 5;
/// Bytes that a connection that ends reads and discards, at most.
const DISCARDED_BYTES_MAX: usize = 4 << 20;

/// A protocol machine and what it stands on, as the loop sees it.
///
/// Every call may queue PDUs in the [`Outbox`]. A header with a data segment is followed by
/// `payload_room`/`payload_filled` until the segment is complete, then `payload_end`.
pub trait ConnectionHandler {
    /// A PDU's header.
    fn header(&mut self, now: Time, header: Header, out: &mut Outbox);
    /// A header whose digest was wrong.
    fn header_digest_error(&mut self, now: Time, out: &mut Outbox);
    /// Where the next payload bytes go: what is left of their place, perhaps longer or shorter
    /// than `missing`. Empty: they are discarded.
    fn payload_room(&mut self, missing: usize) -> &mut [u8];
    /// So many bytes now lie there.
    fn payload_filled(&mut self, bytes: usize);
    /// The data segment is complete.
    fn payload_end(&mut self, now: Time, digest_ok: bool, out: &mut Outbox);
    /// Takes completions and messages in. `Ready` if anything was done; else the waker is kept.
    fn poll_work(&mut self, now: Time, context: &mut Context<'_>, out: &mut Outbox) -> Poll<()>;
    /// Goes on with what others wait for, though its owner has no turn; that counts for the owner
    /// all the same. `true` if anything was done; else the waker is kept. PDUs that are queued
    /// here are sent in the next turn.
    fn poll_out_of_turn(
        &mut self,
        _now: Time,
        _context: &mut Context<'_>,
        _out: &mut Outbox,
    ) -> bool {
        false
    }
    /// What it has queued is sent next.
    fn before_sending(&mut self) {}
    /// When [`elapsed`](Self::elapsed) is to be called.
    fn deadline(&self) -> Option<Time>;
    /// The deadline has come.
    fn elapsed(&mut self, now: Time, out: &mut Outbox);
    /// The peer closed its side, or the socket failed: nothing more will be received.
    fn peer_closed(&mut self, now: Time, out: &mut Outbox);
    /// Of more than the socket can hold, the peer took so many bytes: it is there, though it says
    /// nothing, and what was sent to it may be long on its way.
    fn peer_takes(&mut self, _now: Time, _bytes: usize, _out: &mut Outbox) {}
    /// Whether its PDUs are to be copied. Asked in every turn, before anything is received or said.
    fn tap(&mut self) -> TapChange {
        TapChange::Same
    }
    /// Who has to share a core's time with others as one; `None`: it has its turns like any other.
    fn owner(&self) -> Option<OwnerId> {
        None
    }
    /// How much of its data is held. Asked in every turn; nothing is dropped that is held already.
    fn buffer_limits(&self) -> BufferLimits {
        BufferLimits::LARGEST
    }
    /// It holds memory for its peer beside what [`may_hold`](Self::may_hold) is told: it is asked
    /// again, though nothing comes or goes.
    fn holds_data(&self) -> bool {
        false
    }
    /// Called before the connection waits; at least once a [`HELD_CHECK`] while the peer leaves
    /// something with it. `false`: the connection is dropped at once, with all that it holds.
    fn may_hold(&mut self, _bytes: BufferedBytes) -> bool {
        true
    }
    /// `false` while the machine waits for an answer before it can judge the next PDU.
    fn can_receive(&self) -> bool;
    /// The connection is over: flush and close.
    fn is_over(&self) -> bool;
}

/// What a turn of the loop woke for.
struct Woken {
    /// When: one look at the clock for all that the turn does.
    now: Time,
    work: bool,
    readable: bool,
    timer: bool,
    /// There was something to do at once: nobody else had a turn since the last one.
    at_once: bool,
}

/// Drives `role` over `tcp` until it is over. What went wrong with the socket is told to the role
/// as [`ConnectionHandler::peer_closed`], so it needs no answer here.
pub async fn drive<R: ConnectionHandler>(tcp: TcpStream, role: &mut R, clock: Clock) {
    let mut connection = Connection::new();
    let mut timer = pin!(tokio::time::sleep(FAR));
    while !role.is_over() {
        connection.turns.set_owner(role.owner());
        connection.wait_for_turn(role, &clock).await;
        // After what was done out of turn, which may have moved the deadline.
        set_timer(timer.as_mut(), role.deadline(), &clock);
        if connection.has_to_be_checked(role) {
            set_timer(timer.as_mut(), Some(connection.check_at), &clock);
        }
        let Some(woken) = connection.wait(&tcp, role, timer.as_mut(), &clock).await else {
            continue;
        };
        connection.outbox.begin_turn();
        let now = woken.now;
        if woken.timer && role.deadline().is_some_and(|deadline| deadline <= now) {
            role.elapsed(now, &mut connection.outbox);
        }
        let more = woken.readable && connection.receive(&tcp, role, now);
        connection.send(&tcp, role, now);
        connection.sent_bytes += connection.outbox.turn_bytes();
        connection.check(&tcp, role, &woken);
        tell_busy();
        connection.count(now, &clock);
        if more || woken.at_once {
            // A busy connection must not starve the others of its core.
            yield_for_round().await;
        }
    }
    if connection.open {
        connection.linger(&tcp, role, &clock).await;
    }
}

struct Connection {
    inbound: Inbound,
    outbox: Outbox,
    limits: BufferLimits,
    socket_buffers: SocketBuffers,
    turns: OwnerTurns,
    /// As the role was told last.
    held: BufferedBytes,
    /// Given to the socket since it was looked at.
    sent_bytes: usize,
    /// Something came or went since the socket was looked at.
    is_unchecked: bool,
    /// When it is looked at next, if it has to be.
    check_at: Time,
    /// Turns since then.
    unchecked_turns: u32,
    /// The socket still works.
    open: bool,
}

impl Connection {
    fn new() -> Self {
        Self {
            inbound: Inbound::new(),
            outbox: Outbox::default(),
            limits: BufferLimits::LARGEST,
            socket_buffers: SocketBuffers::default(),
            turns: OwnerTurns::default(),
            held: BufferedBytes::default(),
            sent_bytes: 0,
            is_unchecked: false,
            check_at: Time::ZERO,
            unchecked_turns: 0,
            open: true,
        }
    }

    /// Takes over what the role says now.
    #[cold]
    fn set_limits(&mut self, tcp: &TcpStream, limits: BufferLimits) {
        if limits.socket_bytes_max != self.limits.socket_bytes_max {
            self.socket_buffers.set(tcp, limits.socket_bytes_max);
        }
        self.inbound.receive_bytes_max = limits.receive_bytes_max;
        self.outbox.set_bytes_max(limits.send_bytes_max);
        self.limits = limits;
    }

    /// Waits until the owner has a turn for this connection.
    async fn wait_for_turn<R: ConnectionHandler>(&mut self, role: &mut R, clock: &Clock) {
        let Self { turns, outbox, .. } = self;
        if turns.may_go_on() {
            return;
        }
        let mut turn = pin!(turns.wait());
        poll_fn(|context| {
            let began = clock.now();
            if role.poll_out_of_turn(began, context, outbox) {
                count(turns, began, clock);
            }
            turn.as_mut().poll(context)
        })
        .await;
    }

    /// Lets the role work until there is something to do with the socket. `None`: the time of its
    /// owner is over.
    async fn wait<R: ConnectionHandler>(
        &mut self,
        tcp: &TcpStream,
        role: &mut R,
        mut timer: Pin<&mut Sleep>,
        clock: &Clock,
    ) -> Option<Woken> {
        let mut at_once = true;
        poll_fn(|context| {
            if !at_once && !self.turns.may_go_on() {
                return Poll::Ready(None);
            }
            if let TapChange::To(tap) = role.tap() {
                self.inbound.tap.set(tap.clone());
                self.outbox.set_tap(tap);
            }
            let limits = role.buffer_limits();
            if limits != self.limits {
                self.set_limits(tcp, limits);
            }
            let now = clock.now();
            let work = role.poll_work(now, context, &mut self.outbox).is_ready();
            let timer = timer.as_mut().poll(context).is_ready();
            let mut woken = Woken { now, work, timer, readable: false, at_once };
            let (mut receives, mut writable) = (true, false);
            if self.open {
                receives = role.can_receive() && !self.outbox.is_full();
                if receives {
                    woken.readable =
                        self.inbound.is_stalled() || tcp.poll_read_ready(context).is_ready();
                }
                writable = !self.outbox.is_empty() && tcp.poll_write_ready(context).is_ready();
            }
            if woken.work || woken.timer || woken.readable || writable || role.is_over() {
                return Poll::Ready(Some(woken));
            }
            at_once = false;
            if self.open && !self.may_hold(tcp, role, receives) {
                self.drop_at_once(tcp, role, now);
                return Poll::Ready(Some(woken));
            }
            self.count(now, clock);
            Poll::Pending
        })
        .await
    }

    /// Counts what it has worked since `began` for its owner.
    fn count(&self, began: Time, clock: &Clock) {
        count(&self.turns, began, clock);
    }

    /// Asks the role whether what is held may be held while the connection waits.
    fn may_hold<R: ConnectionHandler>(
        &mut self,
        tcp: &TcpStream,
        role: &mut R,
        receives: bool,
    ) -> bool {
        if !receives || !self.outbox.is_empty() || self.sent_bytes >= HELD_CHECK_BYTES {
            return self.may_hold_now(tcp, role);
        }
        // The common case: the kernel is asked now and then what the peer has not taken.
        let socket = self.held.socket;
        self.held = BufferedBytes { socket, ..BufferedBytes::default() };
        let sent = rounded_sent_bytes(self.sent_bytes);
        role.may_hold(BufferedBytes { socket: socket + sent, ..self.held })
            || self.may_hold_now(tcp, role)
    }

    fn has_to_be_checked<R: ConnectionHandler>(&self, role: &R) -> bool {
        self.open && (self.is_unchecked || !self.held.is_none() || role.holds_data())
    }

    /// Asks the role now and then whether what is held may be held, also of a connection that never
    /// waits, and with what the peer has not taken from the socket.
    fn check<R: ConnectionHandler>(&mut self, tcp: &TcpStream, role: &mut R, woken: &Woken) {
        let now = woken.now;
        if (woken.readable || woken.work) && !self.is_unchecked && self.held.is_none() {
            (self.check_at, self.unchecked_turns) = (now.after(HELD_CHECK), 0);
            self.is_unchecked = true;
        }
        self.unchecked_turns += 1;
        let is_due = self.check_at <= now
            || self.unchecked_turns >= HELD_CHECK_TURNS
            || self.sent_bytes >= HELD_CHECK_BYTES;
        if is_due && self.has_to_be_checked(role) {
            (self.check_at, self.unchecked_turns) = (now.after(HELD_CHECK), 0);
            self.is_unchecked = false;
            if !self.may_hold_now(tcp, role) {
                self.drop_at_once(tcp, role, now);
            }
        }
    }

    fn may_hold_now<R: ConnectionHandler>(&mut self, tcp: &TcpStream, role: &mut R) -> bool {
        let receives = role.can_receive() && !self.outbox.is_full();
        self.held = self.held_bytes(tcp, receives);
        self.sent_bytes = 0;
        role.may_hold(self.held)
    }

    /// Sends what waits and lets the peer close, for a while. What it has not taken then, the
    /// kernel gives up as well: it would keep it for a minute, and nobody would count it.
    async fn linger<R: ConnectionHandler>(&mut self, tcp: &TcpStream, role: &mut R, clock: &Clock) {
        for _ in 0..LINGER_CHECKS {
            if !self.may_hold_now(tcp, role) {
                break;
            }
            if tokio::time::timeout(HELD_CHECK, self.close(tcp, clock)).await.is_ok() {
                break;
            }
        }
        if SocketMemory::of(tcp.as_fd()).is_ok_and(|memory| memory.queued > 0) {
            let _ = SockRef::from(tcp).set_linger(Some(Duration::ZERO));
        }
    }

    async fn close(&mut self, tcp: &TcpStream, clock: &Clock) {
        while !self.outbox.is_empty() {
            self.outbox.begin_turn();
            if tcp.writable().await.is_err() || self.outbox.write_to(tcp).is_err() {
                return;
            }
        }
        // Half-close, then wait for the peer: closing with unread bytes would reset the connection
        // and could take our last PDU from it.
        let _ = SockRef::from(tcp).shutdown(std::net::Shutdown::Write);
        let mut discarded = 0;
        while discarded < DISCARDED_BYTES_MAX && tcp.readable().await.is_ok() {
            self.turns.wait().await;
            let began = clock.now();
            match discard(tcp) {
                Ok(0) => return,
                Ok(bytes) => discarded += bytes,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => return,
            }
            self.count(began, clock);
            // A socket that has always more is always ready.
            yield_for_round().await;
        }
    }

    fn held_bytes(&self, tcp: &TcpStream, receives: bool) -> BufferedBytes {
        // A system that does not tell counts as one that holds nothing.
        let socket = SocketMemory::of(tcp.as_fd()).map_or(0, |memory| {
            memory.queued + if receives { memory.received } else { memory.received_max }
        });
        BufferedBytes {
            received: self.inbound.leftover_bytes(),
            queued: self.outbox.queue_bytes(),
            socket,
        }
    }

    /// Ends the connection without sending what waits; the kernel gives its buffers up as well.
    #[cold]
    fn drop_at_once<R: ConnectionHandler>(&mut self, tcp: &TcpStream, role: &mut R, now: Time) {
        let _ = SockRef::from(tcp).set_linger(Some(Duration::ZERO)); // else they go a minute later
        self.inbound.forget();
        self.lost(role, now, None);
    }

    /// `true`: there may be more.
    fn receive<R: ConnectionHandler>(&mut self, tcp: &TcpStream, role: &mut R, now: Time) -> bool {
        if self.inbound.is_stalled() {
            self.inbound.resume(tcp, role, now, &mut self.outbox);
            return true;
        }
        match self.inbound.read(tcp, role, now, &mut self.outbox) {
            Ok(Arrived::All | Arrived::Nothing) => return self.inbound.is_stalled(),
            Ok(Arrived::Bytes) => return true,
            Ok(Arrived::End) => self.lost(role, now, None),
            Err(error) => self.lost(role, now, Some(&error)),
        }
        false
    }

    fn send<R: ConnectionHandler>(&mut self, tcp: &TcpStream, role: &mut R, now: Time) {
        role.before_sending();
        if !self.open {
            self.outbox = Outbox::default();
            return;
        }
        let before = self.outbox.bytes();
        if before == 0 {
            return;
        }
        match self.outbox.write_to(tcp) {
            Ok(()) if self.outbox.is_empty() || self.outbox.bytes() == before => {}
            Ok(()) => {
                let taken = before - self.outbox.bytes();
                role.peer_takes(now, taken, &mut self.outbox);
            }
            Err(error) => self.lost(role, now, Some(&error)),
        }
    }

    fn lost<R: ConnectionHandler>(&mut self, role: &mut R, now: Time, error: Option<&io::Error>) {
        if let Some(error) = error {
            tracing::debug!(%error, "the connection failed");
        }
        self.open = false;
        self.outbox = Outbox::default();
        self.held = BufferedBytes::default();
        role.peer_closed(now, &mut self.outbox);
    }
}

fn count(turns: &OwnerTurns, began: Time, clock: &Clock) {
    let moved_bytes = take_moved();
    if turns.are_counted() {
        turns.count(clock.now().since(began), moved_bytes);
    }
}

/// What `bytes` given to the socket count as until the kernel is asked.
fn rounded_sent_bytes(bytes: usize) -> usize {
    if bytes == 0 { 0 } else { bytes.next_power_of_two().max(SENT_BYTES_MIN) }
}

fn set_timer(mut timer: Pin<&mut Sleep>, deadline: Option<Time>, clock: &Clock) {
    let instant = deadline.and_then(|time| clock.instant(time)).map(tokio::time::Instant::from_std);
    let instant = instant.unwrap_or_else(|| tokio::time::Instant::now() + FAR);
    // Moving a timer costs; a deadline that moved back is noticed when the earlier one comes.
    if instant < timer.deadline() || timer.is_elapsed() {
        timer.as_mut().reset(instant);
    }
}

#[cfg(test)]
mod tests;
