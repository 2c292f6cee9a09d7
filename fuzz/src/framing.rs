//! A hostile stream of bytes, split anywhere: the framing finds the same PDUs however it arrives,
//! and holds at most a header.

use lunar_iscsi::framing::ahs::{CommandSegments, segments};
use lunar_iscsi::framing::{Deframer, Digests, Event, HEADER_SEGMENTS_BYTES_MAX, SegmentDigest};

/// PDUs found by the framing: headers, payload bytes, ends of payloads.
#[derive(Debug, Default, Eq, PartialEq)]
struct DeframedStream {
    headers: Vec<Vec<u8>>,
    payload: Vec<u8>,
    ends: Vec<SegmentDigest>,
    has_header_digest_error: bool,
}

/// Runs an input. The first byte selects digests and the length of the pieces; the rest is the
/// stream.
pub fn run(input: &[u8]) {
    let Some((selector, stream)) = input.split_first() else { return };
    let digests = Digests { header: selector & 1 != 0, data: selector & 2 != 0 };
    let whole = deframe(digests, stream, stream.len().max(1), false);
    let piece = usize::from(selector >> 2) + 1;
    assert_eq!(deframe(digests, stream, piece, false), whole, "pieces of {piece}");
    assert_eq!(deframe(digests, stream, piece, true), whole, "payload received directly");
    read_segments(stream);
}

/// Splits a stream into PDUs. With `is_direct`, payload bypasses the deframer, as it does when a
/// socket receives it into its destination.
fn deframe(digests: Digests, stream: &[u8], piece_bytes: usize, is_direct: bool) -> DeframedStream {
    let mut deframer = Deframer::new();
    deframer.set_digests(digests);
    let mut found = DeframedStream::default();
    for piece in stream.chunks(piece_bytes) {
        let mut rest = piece;
        loop {
            let missing = deframer.payload_missing().min(rest.len());
            if is_direct && missing > 0 {
                deframer.received(&rest[..missing]);
                found.payload.extend_from_slice(&rest[..missing]);
                rest = &rest[missing..];
                continue;
            }
            let (consumed, event) = deframer.push(rest);
            if consumed == 0 && event.is_none() {
                assert!(rest.is_empty(), "{} bytes are left over", rest.len());
                break;
            }
            match event {
                Some(Event::Header(header)) => {
                    let ahs = header.ahs.to_vec();
                    assert!(header.bhs.len() + ahs.len() <= HEADER_SEGMENTS_BYTES_MAX);
                    read_segments(&ahs);
                    found.headers.push([&header.bhs[..], &ahs].concat());
                }
                Some(Event::Payload { bytes }) => {
                    assert!(bytes > 0 && bytes <= consumed);
                    found.payload.extend_from_slice(&rest[..bytes]);
                }
                Some(Event::PayloadEnd { digest }) => found.ends.push(digest),
                Some(Event::HeaderDigestError) => found.has_header_digest_error = true,
                None => {}
            }
            rest = &rest[consumed..];
        }
    }
    found
}

/// Iterates over additional header segments; each lies within its input.
fn read_segments(ahs: &[u8]) {
    let count = segments(ahs).count();
    assert!(count <= ahs.len());
    if let Ok(command) = CommandSegments::decode(ahs) {
        assert!(command.extended_cdb.is_none_or(|cdb| cdb.len() < ahs.len()));
    }
}
