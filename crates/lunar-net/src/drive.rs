//! The event loop of a connection, the same for both roles.

use crate::buffer_limits::{BufferLimits, BufferedBytes, SocketBuffers};
use crate::busy_poll::tell_busy;
use crate::clock::Clock;
use crate::inbound::{Arrived, Inbound, discard};
use crate::outbox::Outbox;
use crate::owner_turns::{OwnerId, OwnerTurns, yield_for_round};
use crate::tap::TapChange;
use crate::turn::{has_moved, take_moved};
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

/// Timer value that stands for "no deadline".
const FAR: Duration = Duration::from_secs(24 * 3600);
/// Interval at which [`ConnectionHandler::may_hold`] is called for the memory of a connection and
/// its socket, while data is received or sent or the peer leaves data with the connection.
pub const HELD_CHECK: Duration = Duration::from_secs(1);
/// Number of turns of a busy connection after which `may_hold` is called earlier.
const HELD_CHECK_TURNS: u32 = 32;
/// Bytes given to the socket after which `may_hold` is called earlier. They count as held by the
/// socket until the kernel is queried.
const HELD_CHECK_BYTES: usize = 256 << 10;
/// Least charge for bytes given to the socket, which are rounded up to a power of two so that the
/// charge changes rarely.
const SENT_BYTES_MIN: usize = 4 << 10;
/// Number of checks of a connection that ends, one each [`HELD_CHECK`]: 5 seconds in all.
const LINGER_CHECKS: usize = 5;
/// Greatest number of bytes that a connection that ends reads and discards.
const DISCARDED_BYTES_MAX: usize = 4 << 20;

/// A protocol state machine and its surroundings, as the loop uses them.
///
/// Every call may queue PDUs in the [`Outbox`]. A header with a data segment is followed by
/// `payload_room`/`payload_filled` until the segment is complete, then `payload_end`.
pub trait ConnectionHandler {
    /// Handles the header of a PDU.
    fn header(&mut self, now: Time, header: Header, out: &mut Outbox);
    /// Handles a header whose digest was wrong.
    fn header_digest_error(&mut self, now: Time, out: &mut Outbox);
    /// Returns the memory for the next payload bytes: the rest of their destination, which may be
    /// longer or shorter than `missing`. If it is empty, the bytes are discarded.
    fn payload_room(&mut self, missing: usize) -> &mut [u8];
    /// Called when `bytes` were stored in that memory.
    fn payload_filled(&mut self, bytes: usize);
    /// Handles the end of a data segment.
    fn payload_end(&mut self, now: Time, digest_ok: bool, out: &mut Outbox);
    /// Processes completions and messages. `Ready` if there were any; else the waker is registered.
    fn poll_work(&mut self, now: Time, context: &mut Context<'_>, out: &mut Outbox) -> Poll<()>;
    /// Continues work that others wait for, although the owner has no turn; its time still counts
    /// for the owner. `true` if there was any; else the waker is registered. PDUs queued here are
    /// sent in the next turn.
    fn poll_out_of_turn(
        &mut self,
        _now: Time,
        _context: &mut Context<'_>,
        _out: &mut Outbox,
    ) -> bool {
        false
    }
    /// Called before queued PDUs are sent.
    fn before_sending(&mut self) {}
    /// Returns the time at which [`elapsed`](Self::elapsed) is to be called.
    fn deadline(&self) -> Option<Time>;
    /// Called when the deadline has come.
    fn elapsed(&mut self, now: Time, out: &mut Outbox);
    /// Called when the peer has closed its side, or the socket failed: nothing more is received.
    fn peer_closed(&mut self, now: Time, out: &mut Outbox);
    /// Called when a partial send made progress by `bytes`: the peer is alive even if it has sent
    /// nothing, and data sent to it may take long to arrive.
    fn peer_takes(&mut self, _now: Time, _bytes: usize, _out: &mut Outbox) {}
    /// Returns whether the PDUs are to be copied. Called in every turn, before anything is received
    /// or sent.
    fn tap(&mut self) -> TapChange {
        TapChange::Same
    }
    /// Returns the owner with which the connection shares a core's time; `None`: the connection has
    /// turns of its own.
    fn owner(&self) -> Option<OwnerId> {
        None
    }
    /// Returns the limits of buffered data. Called in every turn; data that is already buffered is
    /// kept.
    fn buffer_limits(&self) -> BufferLimits {
        BufferLimits::LARGEST
    }
    /// True when the handler holds memory for its peer that is not passed to
    /// [`may_hold`](Self::may_hold): the handler is then asked again even if nothing is received or
    /// sent.
    fn holds_data(&self) -> bool {
        false
    }
    /// Called before the connection waits, and at least once a [`HELD_CHECK`] while the peer leaves
    /// data with it. `false`: the connection is dropped at once, with all its memory.
    fn may_hold(&mut self, _bytes: BufferedBytes) -> bool {
        true
    }
    /// Returns `false` while the state machine waits for an answer before it can judge the next
    /// PDU.
    fn can_receive(&self) -> bool;
    /// True when the connection is over and is to be flushed and closed.
    fn is_over(&self) -> bool;
}

/// Reasons for which a turn of the loop begins.
struct Woken {
    /// The time, read once for the whole turn.
    now: Time,
    work: bool,
    readable: bool,
    timer: bool,
    /// True when there was work at once, so no other connection had a turn since the last one.
    at_once: bool,
}

/// Drives `role` over `tcp` until it is over. A socket error is reported to the handler by
/// [`ConnectionHandler::peer_closed`] and not returned.
pub async fn drive<R: ConnectionHandler>(tcp: TcpStream, role: &mut R, clock: Clock) {
    let mut connection = Connection::new();
    let mut timer = pin!(tokio::time::sleep(FAR));
    // The time at which the last turn ended, unless others had theirs since.
    let mut last_end = None;
    while !role.is_over() {
        connection.turns.set_owner(role.owner());
        if connection.wait_for_turn(role, &clock).await {
            last_end = None;
        }
        // Set after work that was done out of turn, which may have moved the deadline.
        set_timer(timer.as_mut(), role.deadline(), &clock);
        if connection.has_to_be_checked(role) {
            set_timer(timer.as_mut(), Some(connection.check_at), &clock);
        }
        let began = last_end.take();
        let Some(woken) = connection.wait(&tcp, role, timer.as_mut(), &clock, began).await else {
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
        last_end = connection.count(now, &clock);
        if more || woken.at_once {
            // A busy connection must not starve the others of its core.
            yield_for_round().await;
            last_end = None;
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
    /// Memory as last reported to the handler.
    held: BufferedBytes,
    /// Bytes given to the socket since it was last checked.
    sent_bytes: usize,
    /// True when data was received or sent since the socket was last checked.
    is_unchecked: bool,
    /// Time of the next check, if one is needed.
    check_at: Time,
    /// Number of turns since the last check.
    unchecked_turns: u32,
    /// True while the socket works.
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

    /// Applies new limits of the handler.
    #[cold]
    fn set_limits(&mut self, tcp: &TcpStream, limits: BufferLimits) {
        if limits.socket_bytes_max != self.limits.socket_bytes_max {
            self.socket_buffers.set(tcp, limits.socket_bytes_max);
        }
        self.inbound.receive_bytes_max = limits.receive_bytes_max;
        self.outbox.set_bytes_max(limits.send_bytes_max);
        self.limits = limits;
    }

    /// Waits until the owner has a turn for this connection; returns whether it had to wait.
    async fn wait_for_turn<R: ConnectionHandler>(&mut self, role: &mut R, clock: &Clock) -> bool {
        let Self { turns, outbox, .. } = self;
        if turns.may_go_on() {
            return false;
        }
        let mut turn = pin!(turns.wait());
        poll_fn(|context| {
            let began = clock.now();
            // Work that moved data may take long, whether it has ended or not.
            if role.poll_out_of_turn(began, context, outbox) || has_moved() {
                count(turns, began, clock);
            }
            turn.as_mut().poll(context)
        })
        .await;
        true
    }

    /// Lets the handler work until the socket needs service. `None`: the time of its owner is over.
    /// `began` is the time, if it was read just now.
    async fn wait<R: ConnectionHandler>(
        &mut self,
        tcp: &TcpStream,
        role: &mut R,
        mut timer: Pin<&mut Sleep>,
        clock: &Clock,
        mut began: Option<Time>,
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
            let now = began.take().unwrap_or_else(|| clock.now());
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

    /// Counts the time since `began` as work of the owner; returns the time if it was read.
    fn count(&self, began: Time, clock: &Clock) -> Option<Time> {
        count(&self.turns, began, clock)
    }

    /// Asks the handler whether the memory may be held while the connection waits.
    fn may_hold<R: ConnectionHandler>(
        &mut self,
        tcp: &TcpStream,
        role: &mut R,
        receives: bool,
    ) -> bool {
        if !receives || !self.outbox.is_empty() || self.sent_bytes >= HELD_CHECK_BYTES {
            return self.may_hold_now(tcp, role);
        }
        // The common case: the kernel is queried only now and then for data the peer has not taken.
        let socket = self.held.socket;
        self.held = BufferedBytes { socket, ..BufferedBytes::default() };
        let sent = rounded_sent_bytes(self.sent_bytes);
        role.may_hold(BufferedBytes { socket: socket + sent, ..self.held })
            || self.may_hold_now(tcp, role)
    }

    fn has_to_be_checked<R: ConnectionHandler>(&self, role: &R) -> bool {
        self.open && (self.is_unchecked || !self.held.is_none() || role.holds_data())
    }

    /// Asks the handler now and then whether the memory may be held, also for a connection that
    /// never waits, including data that the peer has not taken from the socket.
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

    /// Sends the queued data and lets the peer close, for a limited time. Data that the peer has
    /// not taken by then is dropped by the kernel too, which would keep it for a minute, uncounted.
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
        // Half-close, then wait for the peer: closing with unread bytes would reset the connection,
        // and the peer could lose the last PDU.
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
            // A socket that always has more data is always ready.
            yield_for_round().await;
        }
    }

    fn held_bytes(&self, tcp: &TcpStream, receives: bool) -> BufferedBytes {
        // A system that does not report the memory counts as holding none.
        let socket = SocketMemory::of(tcp.as_fd()).map_or(0, |memory| {
            memory.queued + if receives { memory.received } else { memory.received_max }
        });
        BufferedBytes {
            received: self.inbound.leftover_bytes(),
            queued: self.outbox.queue_bytes(),
            socket,
        }
    }

    /// Ends the connection without sending the queued data; the kernel drops its buffers too.
    #[cold]
    fn drop_at_once<R: ConnectionHandler>(&mut self, tcp: &TcpStream, role: &mut R, now: Time) {
        let _ = SockRef::from(tcp).set_linger(Some(Duration::ZERO)); // else kept for a minute
        self.inbound.forget();
        self.lost(role, now, None);
    }

    /// Receives and handles data; `true` if there may be more.
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

fn count(turns: &OwnerTurns, began: Time, clock: &Clock) -> Option<Time> {
    let moved = take_moved();
    if !turns.are_counted() {
        return None;
    }
    let now = clock.now();
    turns.count(now.since(began), moved);
    Some(now)
}

/// Returns the charge for `bytes` given to the socket until the kernel is queried.
fn rounded_sent_bytes(bytes: usize) -> usize {
    if bytes == 0 { 0 } else { bytes.next_power_of_two().max(SENT_BYTES_MIN) }
}

fn set_timer(mut timer: Pin<&mut Sleep>, deadline: Option<Time>, clock: &Clock) {
    let instant = deadline.and_then(|time| clock.instant(time)).map(tokio::time::Instant::from_std);
    // Resetting a timer costs time; a later deadline is noticed when the earlier one comes.
    if timer.is_elapsed() {
        timer.as_mut().reset(instant.unwrap_or_else(|| tokio::time::Instant::now() + FAR));
    } else if let Some(instant) = instant
        && instant < timer.deadline()
    {
        timer.as_mut().reset(instant);
    }
}

#[cfg(test)]
mod tests;
