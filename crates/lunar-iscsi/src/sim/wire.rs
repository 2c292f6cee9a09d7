//! The link: two streams of bytes that arrive in pieces, and what each end makes of them.

use super::rng::Rng;
use crate::framing::{Deframer, Digests, Event, Pdu, Place, TaskId, encode_head, encode_tail};
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use bytes::Bytes;

/// One direction of a connection.
#[derive(Debug, Default)]
pub(super) struct Wire {
    bytes: VecDeque<u8>,
    digests: Digests,
    /// The sender is through; when all is delivered the receiver is told.
    pub(super) ended: bool,
    /// The receiver was told.
    pub(super) end_told: bool,
    /// How many bytes were ever sent.
    pub(super) sent_bytes: u64,
    /// Flip this bit of the stream (counted from its start).
    pub(super) flip_bit: Option<u64>,
}

impl Wire {
    /// Digests stand on what is sent from now on.
    pub(super) fn set_digests(&mut self, digests: Digests) {
        self.digests = digests;
    }

    pub(super) fn send(&mut self, pdu: &Pdu) {
        let (mut head, mut tail) = (Vec::new(), Vec::new());
        encode_head(pdu, self.digests, &mut head);
        encode_tail(pdu, self.digests, &mut tail);
        for piece in [&head[..], &pdu.data, &tail] {
            self.put(piece);
        }
    }

    fn put(&mut self, piece: &[u8]) {
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

    /// Something has to be done: bytes to deliver, or the end to be told.
    pub(super) fn is_due(&self) -> bool {
        !self.bytes.is_empty() || self.ended && !self.end_told
    }

    /// The link is cut: what is on the way is lost.
    pub(super) fn cut(&mut self) {
        self.bytes.clear();
        self.ended = true;
    }

    /// The next piece: mostly as much as there is, often very little.
    pub(super) fn piece(&mut self, rng: &mut Rng) -> Vec<u8> {
        let most = match rng.below(4) {
            0 => 1 + rng.below(8),
            1 => 1 + rng.below(200),
            _ => 1 + rng.below(100_000),
        };
        let bytes = most.min(self.bytes.len());
        self.bytes.drain(..bytes).collect()
    }

    /// What the receiver did not take.
    pub(super) fn put_back(&mut self, rest: &[u8]) {
        for byte in rest.iter().rev() {
            self.bytes.push_front(*byte);
        }
    }
}

/// The receiving half of one end.
#[derive(Debug, Default)]
pub(super) struct Intake {
    deframer: Deframer,
    place: Option<Place>,
    /// A header with a data segment was handed over, and the segment is not complete.
    in_segment: bool,
    /// Bytes of the segment under way that are in their place.
    filled: usize,
    control: Vec<u8>,
    /// Payload bytes copied from the link into a place: the one copy there may be.
    pub(super) copied_bytes: u64,
    /// Payload bytes that arrived.
    pub(super) payload_bytes: u64,
}

/// What a machine is to be told.
#[derive(Debug)]
pub(super) enum Told {
    Header(crate::framing::Header),
    HeaderDigestError,
    Payload { data: Bytes, digest_ok: bool },
}

impl Intake {
    pub(super) fn set_digests(&mut self, digests: Digests) {
        self.deframer.set_digests(digests);
    }

    /// The next bytes can be looked at: not before the machine has said where a segment goes, and
    /// no header before it can take one.
    pub(super) fn is_ready(&self, can_receive: bool) -> bool {
        if self.in_segment { self.place.is_some() } else { can_receive }
    }

    /// The machine said where the segment goes.
    pub(super) fn receive(&mut self, place: Place) {
        assert!(self.place.is_none(), "a second Receive for one segment");
        self.place = Some(place);
        self.filled = 0;
    }

    /// The buffer of a task was freed: the rest of a segment on its way there goes nowhere.
    pub(super) fn forget(&mut self, gone: TaskId) {
        if matches!(self.place, Some(Place::Task { task, .. }) if task == gone) {
            self.place = Some(Place::Discard);
        }
    }

    /// Looks at `input`; says how much it took. `store` is called with place, offset in the
    /// buffer and bytes for data of tasks.
    pub(super) fn take(
        &mut self,
        input: &[u8],
        mut store: impl FnMut(Place, usize, &[u8]),
    ) -> (usize, Option<Told>) {
        let (used, event) = self.deframer.push(input);
        let told = match event {
            None => None,
            Some(Event::Header(header)) => {
                self.in_segment = header.data_segment_bytes() > 0;
                Some(Told::Header(header))
            }
            Some(Event::HeaderDigestError) => Some(Told::HeaderDigestError),
            Some(Event::Payload { bytes }) => {
                self.payload_bytes += bytes as u64;
                self.keep(&input[..bytes], &mut store);
                None
            }
            Some(Event::PayloadEnd { digest_ok }) => {
                self.in_segment = false;
                assert!(self.place.take().is_some(), "a segment without Receive");
                let data = Bytes::from(core::mem::take(&mut self.control));
                Some(Told::Payload { data, digest_ok })
            }
        };
        (used, told)
    }

    fn keep(&mut self, bytes: &[u8], store: &mut impl FnMut(Place, usize, &[u8])) {
        match self.place.expect("the machine said where the segment goes") {
            Place::Control => {
                self.control.extend_from_slice(bytes);
                self.copied_bytes += bytes.len() as u64;
            }
            place @ Place::Task { offset_bytes, .. } => {
                store(place, offset_bytes as usize + self.filled, bytes);
                self.copied_bytes += bytes.len() as u64;
            }
            Place::Discard => {}
        }
        self.filled += bytes.len();
    }
}
