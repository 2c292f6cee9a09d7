//! Between bytes and PDUs: what a machine is told of a PDU, and what it hands out to be sent.

pub mod ahs;
mod deframer;
mod task_hasher;

pub use deframer::{Deframer, Event, HEADER_SEGMENTS_BYTES_MAX, encode_head, encode_tail};
pub use task_hasher::TaskHasher;

use crate::pdu::{BasicHeader, FirstByte, HEADER_BYTES, Opcode};
use alloc::boxed::Box;
use bytes::Bytes;

/// One PDU's header as it came: the Basic Header Segment and the Additional Header Segments
/// behind it, raw. The framing has checked the header digest, nothing else.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Header {
    /// Basic Header Segment, RFC 7143 §11.2.1.
    pub bhs: [u8; HEADER_BYTES],
    /// All Additional Header Segments, 4 × TotalAHSLength bytes (at most 1,020).
    pub ahs: Box<[u8]>,
}

impl Header {
    /// A header without additional segments.
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

/// Names one task of one connection for as long as the connection lives; never used twice, so a
/// late completion cannot be taken for that of a newer task with the same Initiator Task Tag.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Ord, PartialOrd, Hash)]
pub struct TaskId(pub u64);

/// Where the data segment of the PDU in hand goes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Place {
    /// To the machine itself, by `Input::Payload`: login, text, ping data, sense.
    Control,
    /// Into the data buffer of a task, at this offset. In the target role that is the task's
    /// data-out buffer, in the initiator role its data-in buffer.
    Task {
        /// Whose buffer.
        task: TaskId,
        /// First byte of the data segment in that buffer.
        offset_bytes: u32,
        /// How long that buffer has to be in all: the ExpectedDataTransferLength. The same for
        /// every segment of a task, so that the driver allocates once and nothing is moved.
        buffer_bytes: u32,
    },
    /// Nowhere: read and forget. The digest is still checked, and `Input::Payload` still follows.
    Discard,
}

/// A PDU to send. The driver adds padding and digests; DataSegmentLength stands in the header.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Pdu {
    /// Basic Header Segment, complete: numbers are stamped, lengths are set.
    pub bhs: [u8; HEADER_BYTES],
    /// Additional Header Segments, a multiple of four bytes.
    pub ahs: Box<[u8]>,
    /// Data segment, without padding. Shared, not copied.
    pub data: Bytes,
}

impl Pdu {
    /// A PDU of a header alone.
    pub fn new(bhs: [u8; HEADER_BYTES]) -> Self {
        Self { bhs, ahs: Box::default(), data: Bytes::new() }
    }

    /// A PDU with a data segment; the header's DataSegmentLength is set here.
    pub fn with_data(mut bhs: [u8; HEADER_BYTES], data: Bytes) -> Self {
        lunar_wire::Field::put(lunar_wire::U24::truncate(data.len() as u32), &mut bhs[5..8]);
        Self { bhs, ahs: Box::default(), data }
    }

    /// The opcode.
    pub fn opcode(&self) -> Opcode {
        FirstByte(self.bhs[0]).opcode()
    }
}

/// Which digests stand on the wire in both directions of one connection. RFC 7143 §13.1.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Digests {
    /// A CRC32C behind the header segments.
    pub header: bool,
    /// A CRC32C behind a data segment that is not empty.
    pub data: bool,
}
