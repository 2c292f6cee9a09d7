//! The link: two streams of bytes that arrive in pieces, and the receiving half of each end.

use super::rng::Rng;
use crate::framing::{
    DataDestination, Deframer, Digests, Event, OpenSegment, Pdu, SegmentDigest, TaskId,
    encode_header, encode_tail,
};
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use bytes::Bytes;

/// One direction of a connection.
#[derive(Debug, Default)]
pub(super) struct Wire {
    bytes: VecDeque<u8>,
    digests: Digests,
    /// Open PDUs, in the order of sending, and the bytes that wait behind each.
    open: Vec<(OpenSegment, Vec<u8>)>,
    /// True once the link was cut: bytes sent later are lost.
    is_cut: bool,
    /// True once the sender has ended; the receiver is informed when all bytes are delivered.
    pub(super) ended: bool,
    /// True once the receiver was informed.
    pub(super) end_reported: bool,
    /// Total number of sent bytes.
    pub(super) sent_bytes: u64,
    /// Bit of the stream to flip, counted from its start.
    pub(super) flip_bit: Option<u64>,
}

impl Wire {
    /// Sets the digests of later PDUs.
    pub(super) fn set_digests(&mut self, digests: Digests) {
        self.digests = digests;
    }

    pub(super) fn send(&mut self, pdu: &Pdu) {
        let mut bytes = Vec::new();
        encode_header(pdu, self.digests, &mut bytes);
        bytes.extend_from_slice(&pdu.data);
        let segment = OpenSegment::of(pdu, self.digests);
        if segment.is_none() {
            encode_tail(pdu, self.digests, &mut bytes);
        }
        let position = self.open.len();
        self.put_at(position, &bytes);
        self.open.extend(segment.map(|segment| (segment, Vec::new())));
    }

    /// Sends the next part of an open PDU, which must not be longer than what is missing.
    pub(super) fn send_part(&mut self, initiator_task_tag: u32, data: &[u8], digest: Option<u32>) {
        let is_meant =
            |(segment, _): &(OpenSegment, _)| segment.initiator_task_tag() == initiator_task_tag;
        let Some(position) = self.open.iter().position(is_meant) else {
            assert!(self.is_cut, "a part of no open PDU");
            return;
        };
        let segment = &mut self.open[position].0;
        assert!((1..=segment.missing_bytes()).contains(&data.len()), "a part of {}", data.len());
        let is_complete = segment.add(data);
        self.put_at(position, data);
        if is_complete {
            let (segment, behind) = self.open.remove(position);
            let mut bytes = Vec::new();
            segment.encode_tail(digest, &mut bytes);
            bytes.extend_from_slice(&behind);
            self.put_at(position, &bytes);
        }
    }

    /// Appends bytes behind the first `position` open PDUs.
    fn put_at(&mut self, position: usize, bytes: &[u8]) {
        match position.checked_sub(1) {
            Some(before) => self.open[before].1.extend_from_slice(bytes),
            None => self.put(bytes),
        }
    }

    /// True if an open PDU waits for its data.
    pub(super) fn is_open(&self) -> bool {
        !self.open.is_empty()
    }

    /// Number of bytes that wait, also behind open PDUs.
    pub(super) fn waiting_bytes(&self) -> usize {
        self.bytes.len() + self.open.iter().map(|(_, behind)| behind.len()).sum::<usize>()
    }

    fn put(&mut self, piece: &[u8]) {
        if self.is_cut {
            return;
        }
        let start = self.bytes.len();
        self.bytes.extend(piece);
        let sent = self.sent_bytes;
        self.sent_bytes += piece.len() as u64;
        if let Some(bit) = self.flip_bit
            && (sent..self.sent_bytes).contains(&(bit / 8))
        {
            self.bytes[start + (bit / 8 - sent) as usize] ^= 1 << (bit % 8);
            self.flip_bit = None;
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// True if there are bytes to deliver, or an end to report.
    pub(super) fn is_due(&self) -> bool {
        !self.bytes.is_empty() || self.ended && !self.end_reported
    }

    /// Cuts the link: bytes on the way are lost.
    pub(super) fn cut(&mut self) {
        self.bytes.clear();
        self.open.clear();
        (self.ended, self.is_cut) = (true, true);
    }

    /// Takes the next piece: mostly all bytes there are, often very few.
    pub(super) fn piece(&mut self, rng: &mut Rng, bytes_max: usize) -> Vec<u8> {
        let piece_bytes_max = match rng.below(4) {
            0 => 1 + rng.below(8),
            1 => 1 + rng.below(200),
            _ => 1 + rng.below(100_000),
        };
        let bytes = piece_bytes_max.min(bytes_max).min(self.bytes.len());
        // In debug builds, bytes that move one by one take most of the time of a run.
        let (front, back) = self.bytes.as_slices();
        let from_front = bytes.min(front.len());
        let piece = [&front[..from_front], &back[..bytes - from_front]].concat();
        self.bytes.drain(..bytes);
        piece
    }

    /// Puts back bytes that the receiver did not take.
    pub(super) fn put_back(&mut self, rest: &[u8]) {
        let mut bytes = VecDeque::from(rest.to_vec());
        bytes.append(&mut self.bytes);
        self.bytes = bytes;
    }
}

/// The receiving half of one end.
#[derive(Debug, Default)]
pub(super) struct ReceivingEnd {
    deframer: Deframer,
    destination: Option<DataDestination>,
    /// True after a header with a data segment, until the segment is complete.
    in_segment: bool,
    /// Number of bytes of the current segment that are in their destination.
    filled: usize,
    control: Vec<u8>,
    /// Payload bytes copied from the link to a destination: the only copy allowed.
    pub(super) copied_bytes: u64,
    /// Number of payload bytes that arrived.
    pub(super) payload_bytes: u64,
}

/// An input for a machine.
#[derive(Debug)]
pub(super) enum Received {
    Header(crate::framing::Header),
    HeaderDigestError,
    Payload { data: Bytes, digest: SegmentDigest },
}

impl ReceivingEnd {
    pub(super) fn set_digests(&mut self, digests: Digests) {
        self.deframer.set_digests(digests);
    }

    /// True if the next bytes can be processed: not before the machine has named the destination of
    /// a segment, and no header before the machine can receive one.
    pub(super) fn is_ready(&self, can_receive: bool) -> bool {
        if self.in_segment { self.destination.is_some() } else { can_receive }
    }

    /// Sets the destination of the segment, which the machine has named.
    pub(super) fn receive(&mut self, destination: DataDestination) {
        assert!(self.destination.is_none(), "a second Receive for one segment");
        self.destination = Some(destination);
        self.filled = 0;
    }

    /// Discards the rest of a segment whose task's buffer was freed.
    pub(super) fn forget(&mut self, gone: TaskId) {
        let task = match self.destination {
            Some(DataDestination::Task { task, .. }) => task,
            Some(DataDestination::Stream { task, .. }) => task,
            _ => return,
        };
        if task == gone {
            self.destination = Some(DataDestination::Discard);
        }
    }

    /// Processes `input`; returns how much it took. Calls `store` with destination, offset in the
    /// buffer and bytes for data of tasks, and the offset in the segment for that of a stream.
    pub(super) fn take(
        &mut self,
        input: &[u8],
        mut store: impl FnMut(DataDestination, usize, &[u8]),
    ) -> (usize, Option<Received>) {
        let (used, event) = self.deframer.push(input);
        let received = match event {
            None => None,
            Some(Event::Header(header)) => {
                self.in_segment = header.data_segment_bytes() > 0;
                Some(Received::Header(header))
            }
            Some(Event::HeaderDigestError) => Some(Received::HeaderDigestError),
            Some(Event::Payload { bytes }) => {
                self.payload_bytes += bytes as u64;
                self.keep(&input[..bytes], &mut store);
                None
            }
            Some(Event::PayloadEnd { digest }) => {
                self.in_segment = false;
                assert!(self.destination.take().is_some(), "a segment without Receive");
                let data = Bytes::from(core::mem::take(&mut self.control));
                Some(Received::Payload { data, digest })
            }
        };
        (used, received)
    }

    fn keep(&mut self, bytes: &[u8], store: &mut impl FnMut(DataDestination, usize, &[u8])) {
        match self.destination.expect("the state machine named the destination of the segment") {
            DataDestination::Control => {
                self.control.extend_from_slice(bytes);
                self.copied_bytes += bytes.len() as u64;
            }
            destination @ DataDestination::Task { offset_bytes, .. } => {
                store(destination, offset_bytes as usize + self.filled, bytes);
                self.copied_bytes += bytes.len() as u64;
            }
            destination @ DataDestination::Stream { .. } => {
                store(destination, self.filled, bytes);
                self.copied_bytes += bytes.len() as u64;
            }
            DataDestination::Discard => {}
        }
        self.filled += bytes.len();
    }
}
