//! Splits a stream of bytes into headers and payloads, and encodes PDUs. RFC 7143 §11.2.
//!
//! Holds no payload: the deframer reports which bytes of the caller are payload, or the caller
//! receives them directly into their destination. Only one header is kept, at most
//! [`HEADER_SEGMENTS_BYTES_MAX`] + 4 bytes.

use super::{Digests, Header, Pdu, SegmentDigest};
use crate::pdu::HEADER_BYTES;
use alloc::boxed::Box;
use alloc::vec::Vec;
use bytes::BufMut;
use lunar_wire::{Crc32c, crc32c};

/// Length of the Basic Header Segment and the longest Additional Header Segments.
/// RFC 7143 §11.2.1.5.
pub const HEADER_SEGMENTS_BYTES_MAX: usize = HEADER_BYTES + 255 * 4;

const DIGEST_BYTES: usize = 4;

/// Finds PDUs in a stream of bytes, in either role.
///
/// Bytes are offered with [`push`](Self::push), which returns how many it consumed. A header with
/// DataSegmentLength 0 is a whole PDU; otherwise `Payload` events and one `PayloadEnd` follow.
#[derive(Debug, Default)]
pub struct Deframer {
    digests: Digests,
    head: Vec<u8>,
    state: State,
}

/// An item found in the stream.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Event {
    /// A header; its digest was correct, if there is one.
    Header(Header),
    /// A header digest did not match. The start of the next PDU is unknown: all further input is
    /// consumed without events. RFC 7143 §7.8.
    HeaderDigestError,
    /// This many bytes at the start of the input are payload; the caller copies them.
    Payload {
        /// At least 1.
        bytes: usize,
    },
    /// The payload is complete, its padding and digest are consumed.
    PayloadEnd {
        /// Result of the check of the data digest.
        digest: SegmentDigest,
    },
}

#[derive(Debug, Default)]
enum State {
    #[default]
    Head,
    Payload(Segment),
    /// A header digest was wrong.
    Lost,
}

/// The data segment being received.
#[derive(Debug)]
struct Segment {
    missing_bytes: usize,
    padding_bytes: usize,
    crc: Option<Crc32c>,
    /// Padding, then digest.
    tail: [u8; 3 + DIGEST_BYTES],
    tail_filled: usize,
}

impl Deframer {
    /// Creates a deframer at the start of a PDU, without digests.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets which digests follow headers and payloads from the next PDU on. Call it between two
    /// PDUs.
    pub fn set_digests(&mut self, digests: Digests) {
        self.digests = digests;
    }

    /// Examines bytes that were not consumed yet; returns how many it consumed, and an event if one
    /// is complete. `(0, None)` means that more bytes are needed. Call it again while it returns
    /// anything else, with an empty `input` too: the end of a payload may need no further byte.
    pub fn push(&mut self, input: &[u8]) -> (usize, Option<Event>) {
        match &mut self.state {
            State::Head => self.push_head(input),
            State::Payload(segment) if segment.missing_bytes > 0 => {
                let bytes = segment.missing_bytes.min(input.len());
                segment.take(&input[..bytes]);
                (bytes, (bytes > 0).then_some(Event::Payload { bytes }))
            }
            State::Payload(segment) => {
                let (consumed, digest) = segment.push_tail(input);
                if digest.is_some() {
                    self.state = State::Head;
                }
                (consumed, digest.map(|digest| Event::PayloadEnd { digest }))
            }
            State::Lost => (input.len(), None),
        }
    }

    /// Number of missing bytes of the current payload; 0 outside of a payload. The caller may
    /// receive up to that many bytes directly into their destination, and must then report them by
    /// [`received`](Self::received).
    pub fn payload_missing(&self) -> usize {
        match &self.state {
            State::Payload(segment) => segment.missing_bytes,
            _ => 0,
        }
    }

    /// Reports `payload` received from the stream without [`push`](Self::push): at most
    /// [`payload_missing`](Self::payload_missing) bytes; the rest is ignored.
    pub fn received(&mut self, payload: &[u8]) {
        if let State::Payload(segment) = &mut self.state {
            let bytes = segment.missing_bytes.min(payload.len());
            segment.take(&payload[..bytes]);
        }
    }

    /// True if the header of a PDU was returned, but not yet the end of its payload.
    pub fn is_in_payload(&self) -> bool {
        matches!(self.state, State::Payload(_))
    }

    /// True between two PDUs: the stream may end here without loss.
    pub fn is_between_pdus(&self) -> bool {
        matches!(self.state, State::Head) && self.head.is_empty()
    }

    fn push_head(&mut self, input: &[u8]) -> (usize, Option<Event>) {
        if self.head.is_empty()
            && let Some(header) = self.whole_header(input)
        {
            return (HEADER_BYTES, Some(self.begin_pdu(header)));
        }
        let mut consumed = self.fill_head(input, HEADER_BYTES);
        if self.head.len() >= HEADER_BYTES {
            let wanted = self.head_bytes();
            consumed += self.fill_head(&input[consumed..], wanted);
            if self.head.len() == wanted {
                return (consumed, Some(self.end_head()));
            }
        }
        (consumed, None)
    }

    /// Returns the header at the start of `input` if it is complete there, without additional
    /// segments and digest.
    fn whole_header(&self, input: &[u8]) -> Option<Header> {
        let bhs = input.first_chunk::<HEADER_BYTES>()?;
        (bhs[4] == 0 && !self.digests.header).then(|| Header::new(*bhs))
    }

    /// Takes bytes until the head holds `wanted`; returns how many.
    fn fill_head(&mut self, input: &[u8], wanted: usize) -> usize {
        let bytes = wanted.saturating_sub(self.head.len()).min(input.len());
        self.head.extend_from_slice(&input[..bytes]);
        bytes
    }

    /// Length of the header segments and their digest, once the Basic Header Segment is complete.
    fn head_bytes(&self) -> usize {
        let digest = if self.digests.header { DIGEST_BYTES } else { 0 };
        HEADER_BYTES + 4 * usize::from(self.head[4]) + digest
    }

    fn end_head(&mut self) -> Event {
        let segments = if self.digests.header {
            let (segments, digest) = self.head.split_at(self.head.len() - DIGEST_BYTES);
            if digest != Crc32c::digest_bytes(crc32c(segments)) {
                self.head.clear();
                self.state = State::Lost;
                return Event::HeaderDigestError;
            }
            segments
        } else {
            &self.head[..]
        };
        let mut bhs = [0; HEADER_BYTES];
        bhs.copy_from_slice(&segments[..HEADER_BYTES]);
        let header = Header { bhs, ahs: Box::from(&segments[HEADER_BYTES..]) };
        self.head.clear();
        self.begin_pdu(header)
    }

    fn begin_pdu(&mut self, header: Header) -> Event {
        let bytes = header.data_segment_bytes() as usize;
        if bytes > 0 {
            self.state = State::Payload(Segment::new(bytes, self.digests.data));
        }
        Event::Header(header)
    }
}

impl Segment {
    fn new(bytes: usize, digest: bool) -> Self {
        Self {
            missing_bytes: bytes,
            padding_bytes: padding_bytes(bytes),
            crc: digest.then(Crc32c::new),
            tail: [0; 3 + DIGEST_BYTES],
            tail_filled: 0,
        }
    }

    fn take(&mut self, payload: &[u8]) {
        self.missing_bytes -= payload.len();
        if let Some(crc) = &mut self.crc {
            crc.update(payload);
        }
    }

    /// Takes padding and digest; returns the number of bytes taken, and at the end the result of
    /// the check.
    fn push_tail(&mut self, input: &[u8]) -> (usize, Option<SegmentDigest>) {
        let wanted = self.padding_bytes + if self.crc.is_some() { DIGEST_BYTES } else { 0 };
        let bytes = (wanted - self.tail_filled).min(input.len());
        self.tail[self.tail_filled..self.tail_filled + bytes].copy_from_slice(&input[..bytes]);
        self.tail_filled += bytes;
        if self.tail_filled < wanted {
            return (bytes, None);
        }
        (bytes, Some(self.checked_digest()))
    }

    /// Checks the digest. Padding is zero as a rule (RFC 7143 §11.1: SHOULD); with other
    /// padding, the digest of the data with zeroes is calculated once more.
    fn checked_digest(&mut self) -> SegmentDigest {
        const ZEROES: [u8; 3] = [0; 3];
        let Some(mut crc) = self.crc.take() else { return SegmentDigest::None };
        let (padding, digest) = self.tail[..self.tail_filled].split_at(self.padding_bytes);
        let zeroes = &ZEROES[..padding.len()];
        let of_zeroes = (padding != zeroes).then(|| {
            let mut crc = crc.clone();
            crc.update(zeroes);
            crc.value()
        });
        crc.update(padding);
        let value = crc.value();
        match digest == Crc32c::digest_bytes(value) {
            true => SegmentDigest::Matched(of_zeroes.unwrap_or(value)),
            false => SegmentDigest::Mismatched,
        }
    }
}

/// Appends the bytes before the data of `pdu` to `out`: header segments and header digest.
#[inline]
pub fn encode_header(pdu: &Pdu, digests: Digests, out: &mut impl BufMut) {
    out.put_slice(&pdu.bhs);
    if !pdu.ahs.is_empty() {
        out.put_slice(&pdu.ahs);
    }
    if digests.header {
        let mut crc = Crc32c::new();
        crc.update(&pdu.bhs);
        crc.update(&pdu.ahs);
        out.put_slice(&Crc32c::digest_bytes(crc.value()));
    }
}

/// Appends the bytes after the data of `pdu` to `out`: padding and data digest, nothing if there is
/// no data. The digest is the one that the PDU names, otherwise that of the data.
#[inline]
pub fn encode_tail(pdu: &Pdu, digests: Digests, out: &mut impl BufMut) {
    let padding = &[0; 3][..padding_bytes(pdu.data.len())];
    if !padding.is_empty() {
        out.put_slice(padding);
    }
    if digests.data && !pdu.data.is_empty() {
        let digest = pdu.digest.unwrap_or_else(|| {
            let mut crc = Crc32c::new();
            crc.update(&pdu.data);
            crc.update(padding);
            crc.value()
        });
        out.put_slice(&Crc32c::digest_bytes(digest));
    }
}

/// Number of bytes that pad `bytes` to whole words. RFC 7143 §11.2.4.
pub(super) const fn padding_bytes(bytes: usize) -> usize {
    bytes.wrapping_neg() & 3
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use bytes::Bytes;
    use proptest::prelude::*;

    fn stream(pdus: &[Pdu], digests: Digests) -> Vec<u8> {
        let mut bytes = Vec::new();
        for pdu in pdus {
            encode_header(pdu, digests, &mut bytes);
            bytes.extend_from_slice(&pdu.data);
            encode_tail(pdu, digests, &mut bytes);
            assert_eq!(bytes.len() % 4, 0);
        }
        bytes
    }

    fn pdu(seed: u8, ahs_words: u8, data: Vec<u8>) -> Pdu {
        let mut bhs = [seed; HEADER_BYTES];
        bhs[4] = ahs_words;
        let mut pdu = Pdu::with_data(bhs, Bytes::from(data));
        pdu.ahs = vec![seed ^ 0xff; 4 * usize::from(ahs_words)].into();
        pdu
    }

    /// The digest of an unchanged segment.
    fn expected_digest(data: &[u8], digests: Digests) -> SegmentDigest {
        let mut padded = data.to_vec();
        padded.resize(data.len() + padding_bytes(data.len()), 0);
        match digests.data {
            true => SegmentDigest::Matched(crc32c(&padded)),
            false => SegmentDigest::None,
        }
    }

    /// Reads PDUs from pieces of the stream; `direct` receives payloads without `push`.
    fn read(mut bytes: &[u8], cuts: &[usize], digests: Digests, direct: bool) -> Vec<Pdu> {
        let mut deframer = Deframer::new();
        deframer.set_digests(digests);
        let mut found: Vec<Pdu> = Vec::new();
        let mut data = Vec::new();
        let mut cuts = cuts.iter().cycle();
        while !bytes.is_empty() {
            let (mut piece, rest) = bytes.split_at(bytes.len().min(*cuts.next().unwrap()));
            bytes = rest;
            loop {
                let missing = deframer.payload_missing().min(piece.len());
                if direct && missing > 0 {
                    deframer.received(&piece[..missing]);
                    data.extend_from_slice(&piece[..missing]);
                    piece = &piece[missing..];
                }
                let (consumed, event) = deframer.push(piece);
                match event {
                    Some(Event::Header(header)) => {
                        found.push(Pdu { ahs: header.ahs, ..Pdu::new(header.bhs) });
                    }
                    Some(Event::Payload { bytes }) => data.extend_from_slice(&piece[..bytes]),
                    Some(Event::PayloadEnd { digest }) => {
                        assert_eq!(digest, expected_digest(&data, digests));
                        found.last_mut().unwrap().data = Bytes::from(core::mem::take(&mut data));
                    }
                    Some(Event::HeaderDigestError) => panic!("a digest was right"),
                    None if consumed == 0 => break,
                    None => {}
                }
                piece = &piece[consumed..];
            }
            assert!(piece.is_empty(), "all input is consumed");
        }
        assert!(deframer.is_between_pdus());
        found
    }

    proptest! {
        /// Goal: PDUs are decoded unchanged, wherever the stream is cut.
        /// Method: random PDUs, all four digest settings, random pieces, both ways of receiving.
        #[test]
        fn pdus_decode_unchanged_however_the_stream_is_cut(
            parts in prop::collection::vec(
                (any::<u8>(), 0u8..6, prop::collection::vec(any::<u8>(), 0..70)), 1..6),
            cuts in prop::collection::vec(1usize..80, 1..10),
            header: bool,
            data: bool,
            direct: bool,
        ) {
            let digests = Digests { header, data };
            let pdus: Vec<Pdu> = parts.into_iter().map(|(s, a, d)| pdu(s, a, d)).collect();
            prop_assert_eq!(read(&stream(&pdus, digests), &cuts, digests, direct), pdus);
        }

        /// Goal: no input causes a panic or an endless loop, and at most a header is held.
        #[test]
        fn any_bytes_are_consumed(
            bytes in prop::collection::vec(any::<u8>(), 0..4000), header: bool, data: bool,
        ) {
            let mut deframer = Deframer::new();
            deframer.set_digests(Digests { header, data });
            let mut rest = &bytes[..];
            loop {
                let (consumed, event) = deframer.push(rest);
                rest = &rest[consumed..];
                prop_assert!(deframer.head.capacity() <= 4 * HEADER_SEGMENTS_BYTES_MAX);
                if consumed == 0 && event.is_none() {
                    break;
                }
            }
            prop_assert!(rest.is_empty());
        }

        /// Goal: one wrong bit anywhere under a digest is detected, exactly by that digest.
        #[test]
        fn a_flipped_bit_fails_its_digest(
            // Skips TotalAHSLength and DataSegmentLength, 32 bits, which determine the position of
            // the digests.
            bit in (0usize..8 * (48 + 8 + 4 + 12 + 4) - 32)
                .prop_map(|bit| if bit < 4 * 8 { bit } else { bit + 32 }),
        ) {
            let digests = Digests { header: true, data: true };
            let mut bytes = stream(&[pdu(7, 2, vec![1; 10])], digests);
            bytes[bit / 8] ^= 1 << (bit % 8);
            let mut deframer = Deframer::new();
            deframer.set_digests(digests);
            let (consumed, event) = deframer.push(&bytes);
            if bit < 8 * (48 + 8 + 4) {
                prop_assert_eq!(event, Some(Event::HeaderDigestError));
                prop_assert_eq!(deframer.push(&bytes), (bytes.len(), None));
            } else {
                let (payload, event) = deframer.push(&bytes[consumed..]);
                prop_assert_eq!(event, Some(Event::Payload { bytes: 10 }));
                let (_, event) = deframer.push(&bytes[consumed + payload..]);
                let digest = SegmentDigest::Mismatched;
                prop_assert_eq!(event, Some(Event::PayloadEnd { digest }));
            }
        }
    }

    /// Goal: a payload without padding and digest ends without a further byte.
    #[test]
    fn payload_ends_at_once() {
        let bytes = stream(&[pdu(1, 0, vec![9; 8])], Digests::default());
        let mut deframer = Deframer::new();
        assert!(matches!(deframer.push(&bytes), (48, Some(Event::Header(_)))));
        assert_eq!(deframer.payload_missing(), 8);
        deframer.received(&bytes[48..]);
        let digest = SegmentDigest::None;
        assert_eq!(deframer.push(&[]), (0, Some(Event::PayloadEnd { digest })));
        assert_eq!(deframer.push(&[]), (0, None));
        assert!(deframer.is_between_pdus());
    }

    /// Goal: the digest of a segment whose padding is not zero can be sent with the same data and
    /// zero padding, as every segment is sent here.
    #[test]
    fn the_digest_is_that_of_zero_padding() {
        let digests = Digests { header: false, data: true };
        let sent = pdu(3, 0, vec![5; 9]);
        let mut bytes = stream(std::slice::from_ref(&sent), digests);
        let tail = bytes.len() - 7;
        bytes[tail..tail + 3].copy_from_slice(&[1, 2, 3]);
        let of_padding = crc32c(&bytes[48..tail + 3]);
        bytes[tail + 3..].copy_from_slice(&Crc32c::digest_bytes(of_padding));
        let mut deframer = Deframer::new();
        deframer.set_digests(digests);
        deframer.push(&bytes);
        deframer.push(&bytes[48..]);
        let digest = expected_digest(&sent.data, digests);
        assert_ne!(digest, SegmentDigest::Matched(of_padding));
        assert_eq!(deframer.push(&bytes[tail..]), (7, Some(Event::PayloadEnd { digest })));
    }

    /// Goal: a digest that a PDU names is sent in place of that of its data, if digests are in use.
    #[test]
    fn a_known_digest_is_sent() {
        let known = Pdu { digest: Some(0x0102_0304), ..pdu(3, 0, vec![5; 9]) };
        for data in [false, true] {
            let mut bytes = Vec::new();
            encode_tail(&known, Digests { header: false, data }, &mut bytes);
            let digest = if data { &[4, 3, 2, 1][..] } else { &[] };
            assert_eq!(bytes, [&[0; 3], digest].concat());
        }
    }

    /// The digests of a PDU encoded by hand: RFC 7143 Appendix A.4, a READ(10) command.
    #[test]
    fn digest_of_the_rfc() {
        let bhs: [u8; HEADER_BYTES] = [
            0x01, 0xc0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x14, 0, 0, 0, 0, 0, 0x04, 0, 0,
            0, 0, 0x14, 0, 0, 0, 0x18, 0x28, 0, 0, 0, 0, 0, 0, 0, 0x02, 0, 0, 0, 0, 0, 0, 0,
        ];
        let mut bytes = Vec::new();
        encode_header(&Pdu::new(bhs), Digests { header: true, data: false }, &mut bytes);
        assert_eq!(bytes[48..], [0x56, 0x3a, 0x96, 0xd9]);
    }
}
