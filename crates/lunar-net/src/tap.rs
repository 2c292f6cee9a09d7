//! A copy of the PDUs of a connection, for whoever traces its session.
//!
//! Whoever traces must not hold up the session: what does not fit into the queue is dropped and
//! counted. A connection that nobody traces pays one `None` a PDU.

use lunar_iscsi::framing::{Digests, Header, Pdu, encode_head};
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::{Duration, Instant, SystemTime};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::mpsc::{Receiver, Sender, channel};

/// PDUs of a trace that wait to be read, at most.
pub const TAP_PDUS_MAX: usize = 4096;
/// Bytes of a trace that wait to be read or are being copied, at most.
pub const TAP_BYTES_MAX: usize = 8 << 20;

/// What a PDU's data segment is padded to.
const WORD_BYTES: usize = 4;
const DIGEST_BYTES: usize = 4;

/// Which way a PDU went.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Direction {
    /// From the peer to us.
    Received,
    /// From us to the peer; told when it was queued to be sent.
    Sent,
}

/// A PDU as it is on the wire, digests and padding included.
#[derive(Debug)]
pub struct TappedPdu {
    /// Address of the connection's other end.
    pub peer: SocketAddr,
    /// Our address of the connection.
    pub local: SocketAddr,
    /// Which way it went.
    pub direction: Direction,
    /// When it was whole, since the tap was made.
    pub at: Duration,
    /// Bytes that went this way before it, since the connection was tapped.
    pub offset: u32,
    /// Bytes that had gone the other way.
    pub other_offset: u32,
    /// Its length on the wire.
    pub wire_bytes: usize,
    /// Its first bytes, as many as the tap copies of each.
    pub bytes: Vec<u8>,
    /// The digests that are on this connection.
    pub digests: Digests,
    /// None of this connection came before.
    pub first: bool,
    /// PDUs that were dropped since the one before.
    pub dropped_before: u64,
    _room: Room,
}

/// Where connections put copies of their PDUs.
pub struct Tap {
    queue: Sender<TappedPdu>,
    counts: Arc<Counts>,
    snap_bytes: usize,
    began: Instant,
}

impl fmt::Debug for Tap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tap").field("counts", &self.counts).finish_non_exhaustive()
    }
}

/// Where they come out again.
#[derive(Debug)]
pub struct TapReader {
    queue: Receiver<TappedPdu>,
    counts: Arc<Counts>,
    began: SystemTime,
}

#[derive(Debug, Default)]
struct Counts {
    bytes: AtomicUsize,
    dropped: AtomicU64,
    dropped_since: AtomicU64,
}

/// Bytes that are taken from [`TAP_BYTES_MAX`] while this lives.
#[derive(Debug)]
struct Room {
    counts: Arc<Counts>,
    bytes: usize,
}

impl Room {
    fn take(counts: &Arc<Counts>, bytes: usize) -> Option<Self> {
        let room = Self { counts: Arc::clone(counts), bytes };
        let before = counts.bytes.fetch_add(bytes, Relaxed);
        (before.saturating_add(bytes) <= TAP_BYTES_MAX).then_some(room)
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.counts.bytes.fetch_sub(self.bytes, Relaxed);
    }
}

impl Counts {
    fn drop_one(&self) {
        self.dropped.fetch_add(1, Relaxed);
        self.dropped_since.fetch_add(1, Relaxed);
    }
}

impl Tap {
    /// A tap that copies the first `snap_bytes` of each PDU.
    pub fn new(snap_bytes: usize) -> (Arc<Self>, TapReader) {
        let (sender, receiver) = channel(TAP_PDUS_MAX);
        let counts = Arc::<Counts>::default();
        let reader =
            TapReader { queue: receiver, counts: Arc::clone(&counts), began: SystemTime::now() };
        let tap = Self { queue: sender, counts, snap_bytes, began: Instant::now() };
        (Arc::new(tap), reader)
    }
}

impl TapReader {
    /// The next PDU; `None`: there will be no more.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<TappedPdu>> {
        self.queue.poll_recv(context)
    }

    /// Takes no more: what waits is still to be read.
    pub fn close(&mut self) {
        self.queue.close();
    }

    /// PDUs that found no room.
    pub fn dropped(&self) -> u64 {
        self.counts.dropped.load(Relaxed)
    }

    /// When it was made.
    pub fn began(&self) -> SystemTime {
        self.began
    }
}

/// A connection that is tapped: both of its directions put their PDUs here.
#[derive(Debug)]
pub struct TappedConnection {
    tap: Arc<Tap>,
    peer: SocketAddr,
    local: SocketAddr,
    /// Bytes that went by, by direction. Its core alone writes them; atomic, as both halves do.
    received: AtomicU32,
    sent: AtomicU32,
    /// One of its PDUs was handed out.
    begun: AtomicBool,
}

/// Whether a connection is to be tapped.
#[derive(Debug)]
pub enum TapChange {
    /// As before.
    Same,
    /// From the next PDU on like this.
    To(Option<Arc<TappedConnection>>),
}

/// A PDU that is being copied.
#[derive(Debug)]
pub(crate) struct Copying {
    direction: Direction,
    digests: Digests,
    wire_bytes: usize,
    /// `None`: it is dropped.
    kept: Option<(Vec<u8>, Room)>,
}

impl Copying {
    /// The next bytes of it.
    pub(crate) fn add(&mut self, bytes: &[u8]) {
        if let Some((copy, room)) = &mut self.kept {
            let missing = room.bytes.saturating_sub(copy.len());
            copy.extend_from_slice(&bytes[..bytes.len().min(missing)]);
        }
    }
}

impl TappedConnection {
    /// A connection between these addresses.
    pub fn new(tap: Arc<Tap>, peer: SocketAddr, local: SocketAddr) -> Arc<Self> {
        let (received, sent) = (AtomicU32::new(0), AtomicU32::new(0));
        Arc::new(Self { tap, peer, local, received, sent, begun: AtomicBool::new(false) })
    }

    /// A PDU of so many bytes begins.
    fn begin(&self, direction: Direction, wire_bytes: usize, digests: Digests) -> Copying {
        let bytes = wire_bytes.min(self.tap.snap_bytes);
        let room = Room::take(&self.tap.counts, bytes);
        let kept = room.map(|room| (Vec::with_capacity(bytes), room));
        Copying { direction, digests, wire_bytes, kept }
    }

    /// It is whole.
    pub(crate) fn end(&self, copying: Copying) {
        let Copying { direction, digests, wire_bytes, kept } = copying;
        let (way, other) = match direction {
            Direction::Received => (&self.received, &self.sent),
            Direction::Sent => (&self.sent, &self.received),
        };
        // A stream's numbers wrap as those of TCP do; a dropped PDU leaves a gap.
        let offset = way.fetch_add(wire_bytes as u32, Relaxed);
        let counts = &self.tap.counts;
        let Some((bytes, room)) = kept else { return counts.drop_one() };
        let place = match self.tap.queue.try_reserve() {
            Ok(place) => place,
            Err(TrySendError::Full(())) => return counts.drop_one(),
            Err(TrySendError::Closed(())) => return, // it was read to its end
        };
        place.send(TappedPdu {
            peer: self.peer,
            local: self.local,
            direction,
            at: self.tap.began.elapsed(),
            offset,
            other_offset: other.load(Relaxed),
            wire_bytes,
            bytes,
            digests,
            first: !self.begun.swap(true, Relaxed),
            dropped_before: counts.dropped_since.swap(0, Relaxed),
            _room: room,
        });
    }

    /// Begins a PDU that is sent: `head` is what stands before its data.
    pub(crate) fn begin_sent(&self, head: &[u8], pdu: &Pdu, digests: Digests) -> Copying {
        let wire_bytes = head.len() + segment_bytes(pdu.data.len(), digests);
        let mut copying = self.begin(Direction::Sent, wire_bytes, digests);
        copying.add(head);
        copying
    }
}

/// What a data segment takes on the wire.
fn segment_bytes(data_bytes: usize, digests: Digests) -> usize {
    let digest = if digests.data && data_bytes > 0 { DIGEST_BYTES } else { 0 };
    data_bytes.next_multiple_of(WORD_BYTES) + digest
}

/// The receiving half of a connection, as it is tapped.
#[derive(Debug, Default)]
pub(crate) struct InboundTap {
    connection: Option<Arc<TappedConnection>>,
    copying: Option<Copying>,
}

impl InboundTap {
    /// From the next PDU on.
    pub(crate) fn set(&mut self, connection: Option<Arc<TappedConnection>>) {
        self.copying = None;
        self.connection = connection;
    }

    /// A header whose digest was right: what came is what its parts encode to.
    pub(crate) fn header(&mut self, header: &Header, digests: Digests) {
        let Some(connection) = &self.connection else { return };
        let mut head = Vec::new();
        let pdu = Pdu { bhs: header.bhs, ahs: header.ahs.clone(), data: Default::default() };
        encode_head(&pdu, digests, &mut head);
        let data_bytes = header.data_segment_bytes() as usize;
        let wire_bytes = head.len() + segment_bytes(data_bytes, digests);
        let mut copying = connection.begin(Direction::Received, wire_bytes, digests);
        copying.add(&head);
        self.copying = Some(copying);
        if data_bytes == 0 {
            self.end();
        }
    }

    /// Bytes behind it: payload, padding, digest.
    pub(crate) fn piece(&mut self, bytes: &[u8]) {
        if let Some(copying) = &mut self.copying {
            copying.add(bytes);
        }
    }

    /// The PDU is whole.
    pub(crate) fn end(&mut self) {
        if let (Some(connection), Some(copying)) = (&self.connection, self.copying.take()) {
            connection.end(copying);
        }
    }
}

#[cfg(test)]
mod tests;
