//! The types between bytes and PDUs: received headers, and PDUs to be sent.

pub mod ahs;
mod deframer;
mod open_segment;
mod task_hasher;

pub use deframer::{Deframer, Event, HEADER_SEGMENTS_BYTES_MAX, encode_header, encode_tail};
pub use open_segment::OpenSegment;
pub use task_hasher::TaskHasher;

use crate::pdu::{BasicHeader, FirstByte, HEADER_BYTES, Opcode};
use alloc::boxed::Box;
use bytes::Bytes;

/// One PDU's header as received: the raw Basic Header Segment and Additional Header Segments. The
/// framing has checked the header digest, nothing else.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Header {
    /// Basic Header Segment, RFC 7143 §11.2.1.
    pub bhs: [u8; HEADER_BYTES],
    /// All Additional Header Segments, 4 × TotalAHSLength bytes (at most 1,020).
    pub ahs: Box<[u8]>,
}

impl Header {
    /// Creates a header without additional segments.
    pub fn new(bhs: [u8; HEADER_BYTES]) -> Self {
        Self { bhs, ahs: Box::default() }
    }

    /// The fields all headers share.
    pub fn basic(&self) -> BasicHeader {
        BasicHeader::decode(&self.bhs)
    }

    /// The opcode.
    pub fn opcode(&self) -> Opcode {
        FirstByte(self.bhs[0]).opcode()
    }

    /// The I bit.
    pub fn is_immediate(&self) -> bool {
        FirstByte(self.bhs[0]).is_immediate()
    }

    /// DataSegmentLength, without padding.
    pub fn data_segment_bytes(&self) -> u32 {
        <lunar_wire::U24 as lunar_wire::Field>::get(&self.bhs[5..8]).value()
    }
}

/// Identifies one task of a session; never reused, so a late completion cannot be taken for that of
/// a newer task with the same Initiator Task Tag.
///
/// In the target role the upper 16 bits are the [serial number](Self::connection_serial) of the
/// connection that the command came on, and the others are a count of that connection, so the
/// connections of a session create ids without a common counter. An initiator uses the count alone.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Ord, PartialOrd, Hash)]
pub struct TaskId(pub u64);

impl TaskId {
    /// Bits of the count: enough for a million tasks a second for eight years.
    const COUNT_BITS: u32 = 48;

    /// The id before the first one of the connection with this serial number: it belongs to no
    /// task, and the connection counts up from it.
    pub(crate) const fn before_first(connection_serial: u16) -> Self {
        Self((connection_serial as u64) << Self::COUNT_BITS)
    }

    /// Serial number, in its session, of the connection that the command came on. The task keeps it
    /// if another connection takes the task over.
    pub const fn connection_serial(self) -> u16 {
        (self.0 >> Self::COUNT_BITS) as u16
    }
}

/// Destination of the data segment of the current PDU.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum DataDestination {
    /// The machine itself, by `Input::Payload`: login, text, ping data, sense.
    Control,
    /// The data buffer of a task, at this offset: the data-out buffer in the target role, the
    /// data-in buffer in the initiator role.
    Task {
        /// Owner of the buffer.
        task: TaskId,
        /// Position of the first byte of the data segment in that buffer.
        offset_bytes: u32,
        /// Total length of that buffer: the ExpectedDataTransferLength. The same for every segment
        /// of a task, so that the driver allocates once and nothing is moved.
        buffer_bytes: u32,
    },
    /// The stream of a task: the driver hands the bytes over as they arrive, before the digest is
    /// checked. The machine reports the segment once it is checked.
    Stream {
        /// Task whose data it is.
        task: TaskId,
        /// Position of the first byte of the data segment in the task's data-out (target role) or
        /// data-in (initiator role).
        offset_bytes: u32,
    },
    /// No destination: read and discard. The digest is still checked, and `Input::Payload` still
    /// follows.
    Discard,
}

/// Result of the check of a data segment against its data digest. RFC 7143 §11.2.3.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum SegmentDigest {
    /// No data digest is in force.
    #[default]
    None,
    /// The digest matched. The value is the CRC32C of the data and of zeroes as padding: the digest
    /// of the same segment when it is sent unchanged.
    Matched(u32),
    /// The digest did not match.
    Mismatched,
}

impl SegmentDigest {
    /// True unless the digest did not match.
    #[inline]
    pub fn is_ok(self) -> bool {
        self != Self::Mismatched
    }

    /// The digest of the segment when it is sent unchanged, if it is known.
    pub fn value(self) -> Option<u32> {
        match self {
            Self::Matched(digest) => Some(digest),
            Self::None | Self::Mismatched => None,
        }
    }
}

/// A PDU to send. The driver adds padding and digests; the header contains DataSegmentLength.
///
/// A PDU whose DataSegmentLength is larger than the length of `data` is *open*: the rest of its
/// data follows in parts. It keeps its position in the stream, and later PDUs wait behind it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Pdu {
    /// Basic Header Segment, complete with numbers and lengths.
    pub bhs: [u8; HEADER_BYTES],
    /// Additional Header Segments, a multiple of four bytes.
    pub ahs: Box<[u8]>,
    /// Data segment, without padding, or the start of it. Shared, not copied.
    pub data: Bytes,
    /// Data digest with which the same segment was received, to be sent if a data digest is in
    /// force; `None`: that of the data. Not used if the PDU is open.
    pub digest: Option<u32>,
}

impl Pdu {
    /// Creates a PDU that consists of a header alone.
    pub fn new(bhs: [u8; HEADER_BYTES]) -> Self {
        Self { bhs, ahs: Box::default(), data: Bytes::new(), digest: None }
    }

    /// Creates a PDU with a data segment; sets the header's DataSegmentLength.
    pub fn with_data(mut bhs: [u8; HEADER_BYTES], data: Bytes) -> Self {
        lunar_wire::Field::put(lunar_wire::U24::truncate(data.len() as u32), &mut bhs[5..8]);
        Self { bhs, ahs: Box::default(), data, digest: None }
    }

    /// Creates an open PDU that announces `segment_bytes` bytes of data and holds the first of
    /// them; sets the header's DataSegmentLength.
    pub fn open(mut bhs: [u8; HEADER_BYTES], segment_bytes: u32, data: Bytes) -> Self {
        lunar_wire::Field::put(lunar_wire::U24::truncate(segment_bytes), &mut bhs[5..8]);
        Self { bhs, ahs: Box::default(), data, digest: None }
    }

    /// DataSegmentLength.
    pub fn data_segment_bytes(&self) -> u32 {
        <lunar_wire::U24 as lunar_wire::Field>::get(&self.bhs[5..8]).value()
    }

    /// Number of bytes that the header announces and `data` does not hold; 0 unless the PDU is
    /// open.
    #[inline]
    pub fn missing_bytes(&self) -> usize {
        (self.data_segment_bytes() as usize).saturating_sub(self.data.len())
    }

    /// Initiator Task Tag.
    pub fn initiator_task_tag(&self) -> u32 {
        <u32 as lunar_wire::Field>::get(&self.bhs[16..20])
    }

    /// The opcode.
    pub fn opcode(&self) -> Opcode {
        FirstByte(self.bhs[0]).opcode()
    }
}

/// Digests in use in both directions of one connection. RFC 7143 §13.1.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Digests {
    /// A CRC32C follows the header segments.
    pub header: bool,
    /// A CRC32C follows a data segment that is not empty.
    pub data: bool,
}
