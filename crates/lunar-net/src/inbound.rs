//! The receiving half of a connection: from socket bytes to events, through one shared chunk a
//! core; large payloads are received directly into their destination.

use crate::drive::ConnectionHandler;
use crate::outbox::Outbox;
use crate::tap::InboundTap;
use crate::turn::PollBudget;
use lunar_iscsi::framing::{Deframer, Digests, Event};
use lunar_wire::Time;
use std::cell::RefCell;
use std::io::{self, IoSliceMut};
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::io::Interest;
use tokio::net::TcpStream;

/// Size of the chunk that a core receives into.
pub(crate) const CHUNK_BYTES: usize = 256 << 10;
/// Minimum number of missing payload bytes for receiving directly into their destination.
const DIRECT_BYTES_MIN: usize = 4 << 10;
/// Minimum length of a data segment after which a connection receives few bytes into the chunk. For
/// 16 KiB the system calls cost more than the copies: 48 us in place of 28 for a relayed READ.
const LONG_SEGMENT_BYTES: usize = 64 << 10;
/// Maximum number of bytes received into the chunk after a long segment: the following headers.
/// Data of another long segment would be copied from there.
const HEADERS_BYTES_MAX: usize = 4 << 10;
/// Minimum of the number of bytes that a connection receives at once, even if its turns are short.
const RECEIVED_BYTES_MIN: usize = 16 << 10;
/// Maximum capacity of the leftover that a connection keeps once its bytes are handled.
const LEFTOVER_KEPT_BYTES: usize = 4 << 10;

thread_local! {
    /// Receive buffer of a core, shared by its connections; none holds it while it waits.
    static CHUNK: RefCell<Vec<u8>> = RefCell::new(vec![0; CHUNK_BYTES]);
}

static COPIED: AtomicU64 = AtomicU64::new(0);
static DIRECT: AtomicU64 = AtomicU64::new(0);

/// Ways in which payload bytes reached their destination since the process started: proof that none
/// is copied twice. Counted in builds with debug assertions only.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct CopyCount {
    /// Copied once, from the core's chunk.
    pub copied_bytes: u64,
    /// Received in place, not copied at all.
    pub direct_bytes: u64,
}

impl CopyCount {
    /// Returns the current counters.
    pub fn now() -> Self {
        Self {
            copied_bytes: COPIED.load(Ordering::Relaxed),
            direct_bytes: DIRECT.load(Ordering::Relaxed),
        }
    }
}

fn count(counter: &AtomicU64, bytes: usize) {
    if cfg!(debug_assertions) {
        counter.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

/// The receiving half of a connection.
#[derive(Debug)]
pub(crate) struct Inbound {
    deframer: Deframer,
    /// Bytes that were received but could not be handled yet: the start of a header, or bytes
    /// behind a PDU that the handler is still processing, that was the last of its turn, or whose
    /// answers wait in a full outbox.
    leftover: Vec<u8>,
    /// Number of these bytes that were handled since.
    used: usize,
    /// True when the leftover waits for the handler, the outbox or the next turn, not for more
    /// bytes.
    stalled: bool,
    digests: Digests,
    /// True if the data segment of the last PDU was long.
    is_long_segment: bool,
    /// Maximum number of bytes received at once.
    pub(crate) receive_bytes_max: usize,
    /// Maximum number of bytes received at once so that a turn can handle them all; the rest would
    /// be copied.
    turn_bytes: usize,
    pub(crate) tap: InboundTap,
}

/// Result of receiving from the socket once; received bytes were handled.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum ReadOutcome {
    /// Bytes were received, and none are left in the socket for now.
    Drained,
    /// Bytes were received, and more may be in the socket.
    MayHaveMore,
    /// No bytes were in the socket.
    NotReady,
    /// The peer closed its side.
    EndOfStream,
}

impl Inbound {
    pub(crate) fn new() -> Self {
        Self {
            deframer: Deframer::new(),
            leftover: Vec::new(),
            used: 0,
            stalled: false,
            digests: Digests::default(),
            is_long_segment: false,
            receive_bytes_max: CHUNK_BYTES,
            turn_bytes: CHUNK_BYTES,
            tap: InboundTap::default(),
        }
    }

    /// True when the leftover waits for the handler, the outbox or the next turn.
    pub(crate) fn is_stalled(&self) -> bool {
        self.stalled
    }

    /// Drops the leftover, because the connection receives nothing more.
    pub(crate) fn forget(&mut self) {
        self.leftover = Vec::new();
        self.stalled = false;
    }

    /// Memory of the leftover.
    pub(crate) fn leftover_bytes(&self) -> usize {
        self.leftover.capacity()
    }

    /// Handles bytes that were received while the handler could not take them.
    pub(crate) fn resume<R: ConnectionHandler>(
        &mut self,
        tcp: &TcpStream,
        handler: &mut R,
        now: Time,
        out: &mut Outbox,
    ) {
        let mut bytes = std::mem::take(&mut self.leftover);
        self.used += self.handle(&bytes[self.used..], tcp, handler, now, out);
        if !self.stalled {
            bytes.drain(..self.used);
            self.used = 0;
            if bytes.is_empty() && bytes.capacity() > LEFTOVER_KEPT_BYTES {
                bytes = Vec::new();
            }
        }
        self.leftover = bytes;
    }

    /// Receives once and handles the bytes, as many as fit one turn.
    pub(crate) fn read<R: ConnectionHandler>(
        &mut self,
        tcp: &TcpStream,
        handler: &mut R,
        now: Time,
        out: &mut Outbox,
    ) -> io::Result<ReadOutcome> {
        CHUNK.with(|chunk| {
            let mut chunk = chunk.borrow_mut();
            let missing = self.deframer.payload_missing();
            let start = self.leftover.len();
            let headers_max = if self.is_long_segment { HEADERS_BYTES_MAX } else { CHUNK_BYTES };
            let bytes_max = self.receive_bytes_max.min(self.turn_bytes).min(headers_max);
            let bytes_max = bytes_max.max(start + 1);
            let chunk_bytes = chunk.len().min(bytes_max);
            let chunk = &mut chunk[..chunk_bytes];
            let received = if start == 0 && missing >= DIRECT_BYTES_MIN {
                self.read_in_place(tcp, chunk, missing, handler)
            } else {
                // At most an incomplete header: a stalled leftover is resumed first.
                chunk[..start].copy_from_slice(&self.leftover);
                let buffer = &mut chunk[start..];
                receive(tcp, buffer.len(), || tcp.try_read(buffer))
            };
            let (in_chunk, arrived) = match received {
                Ok(found) => found,
                Err(error) if is_transient(&error) => return Ok(ReadOutcome::NotReady),
                Err(error) => return Err(error),
            };
            if arrived == ReadOutcome::EndOfStream {
                return Ok(arrived);
            }
            self.leftover.clear();
            let filled = start + in_chunk;
            let used = self.handle(&chunk[..filled], tcp, handler, now, out);
            self.keep(&chunk[used..filled]);
            if self.stalled {
                self.turn_bytes = used.max(RECEIVED_BYTES_MIN);
            } else if arrived == ReadOutcome::MayHaveMore {
                self.turn_bytes = (2 * self.turn_bytes).min(CHUNK_BYTES);
            }
            Ok(arrived)
        })
    }

    /// Receives the missing payload into its destination and the following bytes into the chunk;
    /// returns the number of bytes in the chunk.
    fn read_in_place<R: ConnectionHandler>(
        &mut self,
        tcp: &TcpStream,
        chunk: &mut [u8],
        missing: usize,
        handler: &mut R,
    ) -> io::Result<(usize, ReadOutcome)> {
        let buffer = handler.payload_buffer(missing);
        let buffer_bytes = buffer.len().min(missing);
        if buffer_bytes == 0 {
            return receive(tcp, chunk.len(), || tcp.try_read(chunk));
        }
        let buffer = &mut buffer[..buffer_bytes];
        // A segment is followed by its padding and the next PDU, which go into the chunk. A buffer
        // shorter than the missing payload is filled first.
        let behind = if buffer_bytes == missing { chunk.len() } else { 0 };
        let mut buffers = [IoSliceMut::new(buffer), IoSliceMut::new(&mut chunk[..behind])];
        let read = || tcp.try_read_vectored(&mut buffers);
        let (received, arrived) = receive(tcp, buffer_bytes + behind, read)?;
        let placed = received.min(buffer_bytes);
        self.deframer.received(&buffer[..placed]);
        self.tap.piece(&buffer[..placed]);
        handler.payload_filled(placed);
        count(&DIRECT, placed);
        Ok((received - placed, arrived))
    }

    /// Handles PDUs until the bytes or the turn end, or the handler takes no more; the answers of
    /// each burst are sent meanwhile. Returns the number of bytes used.
    fn handle<R: ConnectionHandler>(
        &mut self,
        bytes: &[u8],
        tcp: &TcpStream,
        handler: &mut R,
        now: Time,
        out: &mut Outbox,
    ) -> usize {
        let mut used = 0;
        let mut turn = PollBudget::new(out);
        self.stalled = false;
        loop {
            // Between two PDUs: the end of a payload may need no further byte.
            if !self.deframer.is_in_payload() {
                if turn.burst_is_over(out) {
                    turn.end_burst(out);
                    handler.before_sending();
                    // An error, or data the socket does not take, is left to the end of the turn.
                    let _ = out.write_to(tcp);
                    turn.begin_burst(out);
                }
                // One chunk may hold thousands of requests with answers longer than themselves.
                if !handler.can_receive() || out.is_full() || turn.is_over(out) {
                    self.stalled = used < bytes.len();
                    break;
                }
            }
            // Before the next PDU: the digests may have been set while no bytes arrived.
            if let Some(digests) = out.take_receive_digests() {
                self.deframer.set_digests(digests);
                self.digests = digests;
            }
            let (consumed, event) = self.deframer.push(&bytes[used..]);
            let piece = &bytes[used..used + consumed];
            used += consumed;
            match event {
                Some(Event::Header(header)) => {
                    turn.count();
                    let bytes = header.data_segment_bytes() as usize;
                    self.is_long_segment = bytes >= LONG_SEGMENT_BYTES;
                    self.tap.header(&header, self.digests);
                    handler.header(now, header, out);
                }
                Some(Event::HeaderDigestError) => handler.header_digest_error(now, out),
                Some(Event::Payload { bytes }) => {
                    self.tap.piece(piece);
                    copy_payload(&piece[..bytes.min(piece.len())], handler);
                }
                Some(Event::PayloadEnd { digest }) => {
                    self.tap.piece(piece);
                    self.tap.end();
                    handler.payload_end(now, digest, out);
                }
                None if consumed == 0 => break,
                None => self.tap.piece(piece),
            }
        }
        used
    }

    fn keep(&mut self, bytes: &[u8]) {
        self.leftover.extend_from_slice(bytes);
    }
}

/// Reads and discards bytes.
pub(crate) fn discard(tcp: &TcpStream) -> io::Result<usize> {
    CHUNK.with(|chunk| tcp.try_read(&mut chunk.borrow_mut()))
}

/// Copies payload to the buffer of the handler; bytes for which it has none are discarded.
fn copy_payload<R: ConnectionHandler>(mut payload: &[u8], handler: &mut R) {
    while !payload.is_empty() {
        let buffer = handler.payload_buffer(payload.len());
        let bytes = buffer.len().min(payload.len());
        if bytes == 0 {
            return;
        }
        buffer[..bytes].copy_from_slice(&payload[..bytes]);
        handler.payload_filled(bytes);
        count(&COPIED, bytes);
        payload = &payload[bytes..];
    }
}

/// Reads into a buffer of `buffer_bytes`. A short read has drained the socket, so it clears the
/// readiness, which saves a further system call. Data that arrives meanwhile causes a new event,
/// and so does the end of the stream.
fn receive(
    tcp: &TcpStream,
    buffer_bytes: usize,
    read: impl FnOnce() -> io::Result<usize>,
) -> io::Result<(usize, ReadOutcome)> {
    let mut all = None;
    // Readiness is cleared as of before the read: a later event is kept.
    let received = tcp.try_io(Interest::READABLE, || match read()? {
        bytes if bytes > 0 && bytes < buffer_bytes => {
            all = Some(bytes);
            Err(io::ErrorKind::WouldBlock.into())
        }
        bytes => Ok(bytes),
    });
    match (all, received) {
        (Some(bytes), _) => Ok((bytes, ReadOutcome::Drained)),
        (None, Ok(0)) => Ok((0, ReadOutcome::EndOfStream)),
        (None, Ok(bytes)) => Ok((bytes, ReadOutcome::MayHaveMore)),
        (None, Err(error)) => Err(error),
    }
}

fn is_transient(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::turn::{TURN_TIME_MAX, mark_costly};
    use lunar_iscsi::framing::SegmentDigest;
    use std::io::Write;
    use std::task::{Context, Poll};
    use std::time::Instant;

    /// A handler that takes PDUs only up to a limit.
    #[derive(Default)]
    struct LimitedHandler {
        pdus_max: usize,
        pdus: usize,
        /// True if each PDU is marked as costly, and takes the time of a turn.
        is_costly: bool,
    }

    impl ConnectionHandler for LimitedHandler {
        fn header(&mut self, _: Time, _: lunar_iscsi::framing::Header, _: &mut Outbox) {
            self.pdus += 1;
            let began = Instant::now();
            while self.is_costly && began.elapsed() < TURN_TIME_MAX {}
            if self.is_costly {
                mark_costly();
            }
        }
        fn header_digest_error(&mut self, _: Time, _: &mut Outbox) {}
        fn payload_buffer(&mut self, _: usize) -> &mut [u8] {
            &mut []
        }
        fn payload_filled(&mut self, _: usize) {}
        fn payload_end(&mut self, _: Time, _: SegmentDigest, _: &mut Outbox) {}
        fn poll_work(&mut self, _: Time, _: &mut Context<'_>, _: &mut Outbox) -> Poll<()> {
            Poll::Pending
        }
        fn deadline(&self) -> Option<Time> {
            None
        }
        fn elapsed(&mut self, _: Time, _: &mut Outbox) {}
        fn peer_closed(&mut self, _: Time, _: &mut Outbox) {}
        fn can_receive(&self) -> bool {
            self.pdus < self.pdus_max
        }
        fn is_over(&self) -> bool {
            false
        }
    }

    /// A connected socket, and its peer.
    fn connected() -> (TcpStream, std::net::TcpStream) {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let peer = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (tcp, _) = listener.accept().unwrap();
        tcp.set_nonblocking(true).unwrap();
        (TcpStream::from_std(tcp).unwrap(), peer)
    }

    /// Fault: the budget of the turn was also checked within a payload, where a turn cannot end: a
    /// costly PDU with a payload lost its mark, and the next PDU was handled in the same turn.
    #[test]
    fn a_costly_pdu_with_a_payload_ends_a_turn() {
        const PDUS: usize = 4;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
        let _entered = runtime.enter();
        let (tcp, _peer) = connected();
        let mut pdu = [0; 48 + 4];
        pdu[7] = 4; // DataSegmentLength
        let mut inbound = Inbound::new();
        inbound.keep(&pdu.repeat(PDUS));
        let mut handler = LimitedHandler { pdus_max: PDUS, pdus: 0, is_costly: true };
        let mut out = Outbox::default();
        for handled in 1..=PDUS {
            inbound.resume(&tcp, &mut handler, Time::ZERO, &mut out);
            assert_eq!(handler.pdus, handled);
            assert_eq!(inbound.is_stalled(), handled < PDUS);
        }
    }

    /// Goal: of bytes received while the handler could not take them, no more are kept than may be
    /// received at once, and the memory is released. Fault: connections that were not logged in
    /// kept 256 KiB each. Method: a peer has sent a thousand PDUs before the first is handled.
    #[test]
    fn a_leftover_is_bounded_and_released() {
        const RECEIVE_BYTES_MAX: usize = 9 << 10;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
        runtime.block_on(async {
            let (tcp, mut peer) = connected();
            peer.write_all(&[0; 48 * 1000]).unwrap();
            let mut inbound = Inbound::new();
            inbound.receive_bytes_max = RECEIVE_BYTES_MAX;
            let (mut handler, mut out) = (LimitedHandler::default(), Outbox::default());
            let mut largest = 0;
            while handler.pdus < 1000 {
                handler.pdus_max = handler.pdus;
                if !inbound.is_stalled() {
                    tcp.readable().await.unwrap();
                    inbound.read(&tcp, &mut handler, Time::ZERO, &mut out).unwrap();
                }
                largest = largest.max(inbound.leftover.capacity());
                assert!(inbound.leftover.len() <= RECEIVE_BYTES_MAX);
                handler.pdus_max += 100;
                inbound.resume(&tcp, &mut handler, Time::ZERO, &mut out);
            }
            assert!((1..=RECEIVE_BYTES_MAX).contains(&largest), "{largest}");
            while inbound.is_stalled() {
                inbound.resume(&tcp, &mut handler, Time::ZERO, &mut out);
            }
            assert!(inbound.leftover.capacity() <= LEFTOVER_KEPT_BYTES);
        });
    }
}
