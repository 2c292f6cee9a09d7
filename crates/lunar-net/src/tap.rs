//! Copies the PDUs of a connection, for a trace of its session.
//!
//! A trace must not delay the session: PDUs that do not fit into the queue are dropped and counted.
//! Without a trace, a connection only checks an `Option` once per PDU.

use lunar_iscsi::framing::{Digests, Header, Pdu, encode_header};
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::{Duration, Instant, SystemTime};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::mpsc::{Receiver, Sender, channel};

/// Maximum number of PDUs of a trace that wait to be read.
pub const TAP_PDUS_MAX: usize = 4096;
/// Maximum number of bytes of a trace that wait to be read or are being copied.
pub const TAP_BYTES_MAX: usize = 8 << 20;

/// Unit to which a PDU's data segment is padded.
const WORD_BYTES: usize = 4;
const DIGEST_BYTES: usize = 4;

/// Direction of a PDU.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Direction {
    /// From the peer to this process.
    Received,
    /// From this process to the peer; copied when it was queued.
    Sent,
}

/// A PDU as on the wire, with digests and padding.
#[derive(Debug)]
pub struct TappedPdu {
    /// Address of the peer.
    pub peer: SocketAddr,
    /// Local address.
    pub local: SocketAddr,
    /// Direction of the PDU.
    pub direction: Direction,
    /// Time at which it was complete, since the tap was created.
    pub at: Duration,
    /// Number of bytes in this direction before the PDU, since the connection was tapped.
    pub offset: u32,
    /// Number of bytes in the other direction at that time.
    pub other_offset: u32,
    /// Length on the wire.
    pub wire_bytes: usize,
    /// First bytes of the PDU, up to the limit of the tap.
    pub bytes: Vec<u8>,
    /// Digests in force on the connection.
    pub digests: Digests,
    /// True for the first PDU of the connection.
    pub first: bool,
    /// Number of PDUs dropped since the previous copied one.
    pub dropped_before: u64,
    _copied: CopiedBytes,
}

/// Receives copies of PDUs from connections.
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

/// Reads the copies of PDUs.
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

/// Memory of a copied PDU, charged to [`TAP_BYTES_MAX`] until this is dropped.
#[derive(Debug)]
struct CopiedBytes {
    counts: Arc<Counts>,
    bytes: usize,
}

impl CopiedBytes {
    fn take(counts: &Arc<Counts>, bytes: usize) -> Option<Self> {
        let charge = Self { counts: Arc::clone(counts), bytes };
        let before = counts.bytes.fetch_add(bytes, Relaxed);
        (before.saturating_add(bytes) <= TAP_BYTES_MAX).then_some(charge)
    }
}

impl Drop for CopiedBytes {
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
    /// Returns a tap that copies the first `snap_bytes` of each PDU, with its reader.
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
    /// Polls for the next PDU; `None` if there will be no more.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<TappedPdu>> {
        self.queue.poll_recv(context)
    }

    /// Closes the queue; PDUs in it can still be read.
    pub fn close(&mut self) {
        self.queue.close();
    }

    /// Number of PDUs that were dropped.
    pub fn dropped(&self) -> u64 {
        self.counts.dropped.load(Relaxed)
    }

    /// Time at which the tap was created.
    pub fn began(&self) -> SystemTime {
        self.began
    }
}

/// A connection with a tap; both directions pass their PDUs to it.
#[derive(Debug)]
pub struct TappedConnection {
    tap: Arc<Tap>,
    peer: SocketAddr,
    local: SocketAddr,
    /// Bytes in each direction. Written by one core only; atomic because both halves write.
    received: AtomicU32,
    sent: AtomicU32,
    /// True after a PDU of the connection was queued.
    begun: AtomicBool,
}

/// Change of a connection's tap.
#[derive(Debug)]
pub enum TapChange {
    /// No change.
    Unchanged,
    /// Replaces the tap, from the next PDU on.
    Replace(Option<Arc<TappedConnection>>),
}

/// A PDU that is being copied.
#[derive(Debug)]
pub(crate) struct PduCopy {
    direction: Direction,
    digests: Digests,
    wire_bytes: usize,
    /// `None` if the PDU is dropped.
    kept: Option<(Vec<u8>, CopiedBytes)>,
}

impl PduCopy {
    /// Appends the next bytes of the PDU.
    pub(crate) fn add(&mut self, bytes: &[u8]) {
        if let Some((copy, charge)) = &mut self.kept {
            let missing = charge.bytes.saturating_sub(copy.len());
            copy.extend_from_slice(&bytes[..bytes.len().min(missing)]);
        }
    }
}

impl TappedConnection {
    /// Returns the tapped connection between these addresses.
    pub fn new(tap: Arc<Tap>, peer: SocketAddr, local: SocketAddr) -> Arc<Self> {
        let (received, sent) = (AtomicU32::new(0), AtomicU32::new(0));
        Arc::new(Self { tap, peer, local, received, sent, begun: AtomicBool::new(false) })
    }

    /// Begins a PDU of `wire_bytes`.
    fn begin(&self, direction: Direction, wire_bytes: usize, digests: Digests) -> PduCopy {
        let bytes = wire_bytes.min(self.tap.snap_bytes);
        let charge = CopiedBytes::take(&self.tap.counts, bytes);
        let kept = charge.map(|charge| (Vec::with_capacity(bytes), charge));
        PduCopy { direction, digests, wire_bytes, kept }
    }

    /// Queues a complete PDU.
    pub(crate) fn end(&self, pdu_copy: PduCopy) {
        let PduCopy { direction, digests, wire_bytes, kept } = pdu_copy;
        let (own_offset, other) = match direction {
            Direction::Received => (&self.received, &self.sent),
            Direction::Sent => (&self.sent, &self.received),
        };
        // Offsets wrap as those of TCP do; a dropped PDU leaves a gap.
        let offset = own_offset.fetch_add(wire_bytes as u32, Relaxed);
        let counts = &self.tap.counts;
        let Some((bytes, charge)) = kept else { return counts.drop_one() };
        let permit = match self.tap.queue.try_reserve() {
            Ok(permit) => permit,
            Err(TrySendError::Full(())) => return counts.drop_one(),
            Err(TrySendError::Closed(())) => return, // the reader was closed
        };
        permit.send(TappedPdu {
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
            _copied: charge,
        });
    }

    /// Begins a sent PDU with `data_bytes` of data; `header` contains the bytes before its data.
    pub(crate) fn begin_sent(&self, header: &[u8], data_bytes: usize, digests: Digests) -> PduCopy {
        let wire_bytes = header.len() + segment_bytes(data_bytes, digests);
        let mut pdu_copy = self.begin(Direction::Sent, wire_bytes, digests);
        pdu_copy.add(header);
        pdu_copy
    }
}

/// Length of a data segment on the wire.
fn segment_bytes(data_bytes: usize, digests: Digests) -> usize {
    let digest = if digests.data && data_bytes > 0 { DIGEST_BYTES } else { 0 };
    data_bytes.next_multiple_of(WORD_BYTES) + digest
}

/// Tap of the receiving half of a connection.
#[derive(Debug, Default)]
pub(crate) struct InboundTap {
    connection: Option<Arc<TappedConnection>>,
    pdu_copy: Option<PduCopy>,
}

impl InboundTap {
    /// Sets the tap, from the next PDU on.
    pub(crate) fn set(&mut self, connection: Option<Arc<TappedConnection>>) {
        self.pdu_copy = None;
        self.connection = connection;
    }

    /// Begins the PDU of a header with a correct digest, whose bytes equal the encoding of its
    /// parts.
    pub(crate) fn header(&mut self, header: &Header, digests: Digests) {
        let Some(connection) = &self.connection else { return };
        let mut header_bytes = Vec::new();
        let pdu = Pdu { ahs: header.ahs.clone(), ..Pdu::new(header.bhs) };
        encode_header(&pdu, digests, &mut header_bytes);
        let data_bytes = header.data_segment_bytes() as usize;
        let wire_bytes = header_bytes.len() + segment_bytes(data_bytes, digests);
        let mut pdu_copy = connection.begin(Direction::Received, wire_bytes, digests);
        pdu_copy.add(&header_bytes);
        self.pdu_copy = Some(pdu_copy);
        if data_bytes == 0 {
            self.end();
        }
    }

    /// Copies the bytes that follow: payload, padding, digest.
    pub(crate) fn piece(&mut self, bytes: &[u8]) {
        if let Some(pdu_copy) = &mut self.pdu_copy {
            pdu_copy.add(bytes);
        }
    }

    /// Ends the PDU.
    pub(crate) fn end(&mut self) {
        if let (Some(connection), Some(pdu_copy)) = (&self.connection, self.pdu_copy.take()) {
            connection.end(pdu_copy);
        }
    }
}

#[cfg(test)]
mod tests;
