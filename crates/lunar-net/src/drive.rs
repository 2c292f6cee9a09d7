//! The event loop of a connection, the same for both roles.

use crate::buffer_limits::{BufferLimits, BufferedBytes, SocketBuffers};
use crate::busy_poll::mark_busy;
use crate::clock::Clock;
use crate::inbound::{Inbound, ReadOutcome, discard};
use crate::outbox::Outbox;
use crate::owner_turns::{OwnerId, OwnerTurns, yield_for_round};
use crate::tap::TapChange;
use crate::turn::{has_moved, take_moved};
use crate::unsafe_socket_memory::SocketMemory;
use lunar_iscsi::framing::{Header, SegmentDigest};
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

/// Timer value without a deadline.
const NO_DEADLINE: Duration = Duration::from_secs(24 * 3600);
/// Interval at which [`ConnectionHandler::may_hold`] is called for the memory of a connection and
/// its socket, while data is received or sent or the peer leaves data with the connection.
pub const HELD_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Number of turns of a busy connection after which `may_hold` is called earlier.
const HELD_CHECK_TURNS: u32 = 32;
/// Bytes given to the socket after which `may_hold` is called earlier. They count as held by the
/// socket until the kernel is queried.
const HELD_CHECK_BYTES: usize = 256 << 10;
/// Minimum charge for bytes given to the socket, which are rounded up to a power of two so that the
/// charge changes rarely.
const SENT_BYTES_MIN: usize = 4 << 10;
/// Number of checks of a connection that ends, one each [`HELD_CHECK_INTERVAL`]: 5 seconds in all.
const LINGER_CHECKS: usize = 5;
/// Maximum number of bytes that a connection that ends reads and discards.
const DISCARDED_BYTES_MAX: usize = 4 << 20;

/// A protocol state machine and its surroundings, as the loop uses them.
///
/// Every call may queue PDUs in the [`Outbox`]. A header with a data segment is followed by
/// `payload_buffer`/`payload_filled` until the segment is complete, then `payload_end`.
pub trait ConnectionHandler {
    /// Handles the header of a PDU.
    fn header(&mut self, now: Time, header: Header, out: &mut Outbox);
    /// Handles a header whose digest was wrong.
    fn header_digest_error(&mut self, now: Time, out: &mut Outbox);
    /// Returns the memory for the next payload bytes: the rest of their destination, which may be
    /// longer or shorter than `missing`. If it is empty, the bytes are discarded.
    fn payload_buffer(&mut self, missing: usize) -> &mut [u8];
    /// Called when `bytes` were stored in the memory that `payload_buffer` returned.
    fn payload_filled(&mut self, bytes: usize);
    /// Handles the end of a data segment.
    fn payload_end(&mut self, now: Time, digest: SegmentDigest, out: &mut Outbox);
    /// Processes completions and messages. Returns `Ready` if there were any, otherwise registers
    /// the waker.
    fn poll_work(&mut self, now: Time, context: &mut Context<'_>, out: &mut Outbox) -> Poll<()>;
    /// Continues work for which other connections wait, although the owner has no turn; its time
    /// still counts for the owner. Returns `true` if there was any, otherwise registers the waker.
    /// PDUs queued here are sent in the next turn.
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
    fn send_progressed(&mut self, _now: Time, _bytes: usize, _out: &mut Outbox) {}
    /// Returns a change of the tap that copies the PDUs. Called in every turn, before anything is
    /// received or sent.
    fn tap(&mut self) -> TapChange {
        TapChange::Unchanged
    }
    /// Returns the owner whose share of the core's time the connection uses; `None` if the
    /// connection is not limited.
    fn owner(&self) -> Option<OwnerId> {
        None
    }
    /// Returns the limits of buffered data. Called in every turn; data that is already buffered is
    /// kept.
    fn buffer_limits(&self) -> BufferLimits {
        BufferLimits::LARGEST
    }
    /// True when the handler holds memory for its peer that is not passed to
    /// [`may_hold`](Self::may_hold), which is then called at intervals even if nothing is received
    /// or sent.
    fn holds_data(&self) -> bool {
        false
    }
    /// Returns whether the connection may hold this memory; if not, it is dropped at once. Called
    /// before the connection waits, and at least every [`HELD_CHECK_INTERVAL`] while it holds data
    /// for its peer.
    fn may_hold(&mut self, _bytes: BufferedBytes) -> bool {
        true
    }
    /// Returns `false` while the state machine needs a result before it can check the next PDU.
    fn can_receive(&self) -> bool;
    /// True when the connection is over and is to be flushed and closed.
    fn is_over(&self) -> bool;
    /// True when the connection continues without this handler: [`drive`] ends at the end of a turn
    /// and returns the socket, unless it has failed. Set by the handler in one of its calls;
    /// `poll_work` then returns `Ready`.
    fn is_detaching(&self) -> bool {
        false
    }
}

/// A connected socket with what was received and not handled, and what was not sent: one that was
/// handed back, or a new one. It stays on its core.
pub struct DrivenSocket {
    tcp: TcpStream,
    connection: Connection,
}

impl From<TcpStream> for DrivenSocket {
    fn from(tcp: TcpStream) -> Self {
        Self { tcp, connection: Connection::new() }
    }
}

impl std::fmt::Debug for DrivenSocket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DrivenSocket").field("tcp", &self.tcp).finish_non_exhaustive()
    }
}

/// The reasons why a turn of the loop begins.
struct WakeReasons {
    /// The time, read once for the whole turn.
    now: Time,
    work: bool,
    readable: bool,
    timer: bool,
    /// True when the connection did not have to wait, so no other connection had a turn meanwhile.
    at_once: bool,
}

/// Drives `handler` over `socket` until it is over, or hands the socket back, which is then
/// returned. A socket error is reported to the handler by [`ConnectionHandler::peer_closed`] and
/// not returned.
///
/// Several sockets whose handlers pass data to each other are driven in a
/// [`SocketGroup`](crate::SocketGroup).
pub async fn drive<R: ConnectionHandler>(
    socket: impl Into<DrivenSocket>,
    handler: &mut R,
    clock: Clock,
) -> Option<DrivenSocket> {
    let DrivenSocket { tcp, mut connection } = socket.into();
    let mut timer = pin!(tokio::time::sleep(NO_DEADLINE));
    // The time at which the last turn ended, unless others had theirs since.
    let mut last_end = None;
    while !handler.is_over() && !handler.is_detaching() {
        connection.turns.set_owner(handler.owner());
        if connection.wait_for_turn(handler, &clock).await {
            last_end = None;
        }
        // Set after work that was done out of turn, which may have moved the deadline.
        set_timer(timer.as_mut(), handler.deadline(), &clock);
        if connection.has_to_be_checked(handler) {
            set_timer(timer.as_mut(), Some(connection.check_at), &clock);
        }
        let began = last_end.take();
        let Some(woken) = connection.wait(&tcp, handler, timer.as_mut(), &clock, began).await
        else {
            continue;
        };
        connection.outbox.begin_turn();
        let now = woken.now;
        if woken.timer && handler.deadline().is_some_and(|deadline| deadline <= now) {
            handler.elapsed(now, &mut connection.outbox);
        }
        let more = woken.readable && connection.receive(&tcp, handler, now);
        connection.send(&tcp, handler, now);
        connection.sent_bytes += connection.outbox.turn_bytes();
        connection.check(&tcp, handler, &woken);
        mark_busy();
        last_end = connection.count(now, &clock);
        if more || woken.at_once {
            // A busy connection must not starve the others of its core.
            yield_for_round().await;
            last_end = None;
        }
    }
    if connection.open && !handler.is_over() {
        connection.detach();
        return Some(DrivenSocket { tcp, connection });
    }
    if connection.open {
        connection.linger(&tcp, handler, &clock).await;
    }
    None
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
    /// True until the socket fails or the peer closes it.
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

    /// Removes what belongs to the handler: its owner, its tap, and its charge.
    #[cold]
    fn detach(&mut self) {
        self.turns.set_owner(None);
        self.inbound.tap.set(None);
        self.outbox.set_tap(None);
        self.held = BufferedBytes::default();
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
    async fn wait_for_turn<R: ConnectionHandler>(
        &mut self,
        handler: &mut R,
        clock: &Clock,
    ) -> bool {
        let Self { turns, outbox, .. } = self;
        if turns.may_run() {
            return false;
        }
        let mut turn = pin!(turns.wait());
        poll_fn(|context| {
            let began = clock.now();
            // Work that moved data may take long, whether it has ended or not.
            if handler.poll_out_of_turn(began, context, outbox) || has_moved() {
                count(turns, began, clock);
            }
            turn.as_mut().poll(context)
        })
        .await;
        true
    }

    /// Lets the handler work until the socket needs service. Returns `None` if the owner's time is
    /// over. `began` is the current time, if it was just read.
    async fn wait<R: ConnectionHandler>(
        &mut self,
        tcp: &TcpStream,
        handler: &mut R,
        mut timer: Pin<&mut Sleep>,
        clock: &Clock,
        mut began: Option<Time>,
    ) -> Option<WakeReasons> {
        let mut at_once = true;
        poll_fn(|context| {
            if !at_once && !self.turns.may_run() {
                return Poll::Ready(None);
            }
            if let TapChange::Replace(tap) = handler.tap() {
                self.inbound.tap.set(tap.clone());
                self.outbox.set_tap(tap);
            }
            let limits = handler.buffer_limits();
            if limits != self.limits {
                self.set_limits(tcp, limits);
            }
            let now = began.take().unwrap_or_else(|| clock.now());
            let work = handler.poll_work(now, context, &mut self.outbox).is_ready();
            let timer = timer.as_mut().poll(context).is_ready();
            let mut woken = WakeReasons { now, work, timer, readable: false, at_once };
            let (mut receives, mut writable) = (true, false);
            if self.open {
                receives = handler.can_receive() && !self.outbox.is_full();
                if receives {
                    woken.readable =
                        self.inbound.is_stalled() || tcp.poll_read_ready(context).is_ready();
                }
                writable = !self.outbox.is_empty() && tcp.poll_write_ready(context).is_ready();
            }
            if woken.work || woken.timer || woken.readable || writable || handler.is_over() {
                return Poll::Ready(Some(woken));
            }
            at_once = false;
            if self.open && !self.may_hold(tcp, handler, receives) {
                self.drop_at_once(tcp, handler, now);
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

    /// Calls [`ConnectionHandler::may_hold`] before the connection waits.
    fn may_hold<R: ConnectionHandler>(
        &mut self,
        tcp: &TcpStream,
        handler: &mut R,
        receives: bool,
    ) -> bool {
        if !receives || self.outbox.bytes() > 0 || self.sent_bytes >= HELD_CHECK_BYTES {
            return self.may_hold_now(tcp, handler);
        }
        // The common case: the kernel is queried only now and then for data the peer has not taken.
        let socket = self.held.socket;
        self.held = BufferedBytes { socket, ..BufferedBytes::default() };
        let sent = rounded_sent_bytes(self.sent_bytes);
        handler.may_hold(BufferedBytes { socket: socket + sent, ..self.held })
            || self.may_hold_now(tcp, handler)
    }

    fn has_to_be_checked<R: ConnectionHandler>(&self, handler: &R) -> bool {
        self.open && (self.is_unchecked || !self.held.is_none() || handler.holds_data())
    }

    /// Calls [`ConnectionHandler::may_hold`] at intervals for a connection that never waits, with
    /// the data that the peer has not acknowledged.
    fn check<R: ConnectionHandler>(
        &mut self,
        tcp: &TcpStream,
        handler: &mut R,
        woken: &WakeReasons,
    ) {
        let now = woken.now;
        if (woken.readable || woken.work) && !self.is_unchecked && self.held.is_none() {
            (self.check_at, self.unchecked_turns) = (now.after(HELD_CHECK_INTERVAL), 0);
            self.is_unchecked = true;
        }
        self.unchecked_turns += 1;
        let is_due = self.check_at <= now
            || self.unchecked_turns >= HELD_CHECK_TURNS
            || self.sent_bytes >= HELD_CHECK_BYTES;
        if is_due && self.has_to_be_checked(handler) {
            (self.check_at, self.unchecked_turns) = (now.after(HELD_CHECK_INTERVAL), 0);
            self.is_unchecked = false;
            if !self.may_hold_now(tcp, handler) {
                self.drop_at_once(tcp, handler, now);
            }
        }
    }

    fn may_hold_now<R: ConnectionHandler>(&mut self, tcp: &TcpStream, handler: &mut R) -> bool {
        let receives = handler.can_receive() && !self.outbox.is_full();
        self.held = self.held_bytes(tcp, receives);
        self.sent_bytes = 0;
        handler.may_hold(self.held)
    }

    /// Sends the queued data and waits for the peer to close, for a limited time. Data that the
    /// peer has not acknowledged by then is dropped: the kernel would keep it for a minute, without
    /// a charge to any owner.
    async fn linger<R: ConnectionHandler>(
        &mut self,
        tcp: &TcpStream,
        handler: &mut R,
        clock: &Clock,
    ) {
        for _ in 0..LINGER_CHECKS {
            if !self.may_hold_now(tcp, handler) {
                break;
            }
            if tokio::time::timeout(HELD_CHECK_INTERVAL, self.close(tcp, clock)).await.is_ok() {
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
    fn drop_at_once<R: ConnectionHandler>(&mut self, tcp: &TcpStream, handler: &mut R, now: Time) {
        let _ = SockRef::from(tcp).set_linger(Some(Duration::ZERO)); // else kept for a minute
        self.inbound.forget();
        self.lost(handler, now, None);
    }

    /// Receives and handles data; `true` if there may be more.
    fn receive<R: ConnectionHandler>(
        &mut self,
        tcp: &TcpStream,
        handler: &mut R,
        now: Time,
    ) -> bool {
        if self.inbound.is_stalled() {
            self.inbound.resume(tcp, handler, now, &mut self.outbox);
            return true;
        }
        match self.inbound.read(tcp, handler, now, &mut self.outbox) {
            Ok(ReadOutcome::Drained | ReadOutcome::NotReady) => return self.inbound.is_stalled(),
            Ok(ReadOutcome::MayHaveMore) => return true,
            Ok(ReadOutcome::EndOfStream) => self.lost(handler, now, None),
            Err(error) => self.lost(handler, now, Some(&error)),
        }
        false
    }

    fn send<R: ConnectionHandler>(&mut self, tcp: &TcpStream, handler: &mut R, now: Time) {
        handler.before_sending();
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
                handler.send_progressed(now, taken, &mut self.outbox);
            }
            Err(error) => self.lost(handler, now, Some(&error)),
        }
    }

    fn lost<R: ConnectionHandler>(
        &mut self,
        handler: &mut R,
        now: Time,
        error: Option<&io::Error>,
    ) {
        if let Some(error) = error {
            tracing::debug!(%error, "the connection failed");
        }
        self.open = false;
        self.outbox = Outbox::default();
        self.held = BufferedBytes::default();
        handler.peer_closed(now, &mut self.outbox);
    }
}

fn count(turns: &OwnerTurns, began: Time, clock: &Clock) -> Option<Time> {
    let moved = take_moved();
    if !turns.has_owner() {
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
        timer.as_mut().reset(instant.unwrap_or_else(|| tokio::time::Instant::now() + NO_DEADLINE));
    } else if let Some(instant) = instant
        && instant < timer.deadline()
    {
        timer.as_mut().reset(instant);
    }
}

#[cfg(test)]
mod tests;
