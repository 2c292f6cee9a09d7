//! The data segment of a PDU that is sent before all of its data is there.

use super::deframer::padding_bytes;
use super::{Digests, Pdu};
use bytes::BufMut;
use lunar_wire::Crc32c;

/// The rest of the data segment of an open PDU: a PDU whose header announces more data than it
/// holds. Its parts follow in order, and padding and digest after the last one.
#[derive(Clone, Debug)]
pub struct OpenSegment {
    initiator_task_tag: u32,
    segment_bytes: usize,
    missing_bytes: usize,
    /// CRC of the data so far, if a data digest is in force.
    crc: Option<Crc32c>,
}

impl OpenSegment {
    /// Returns the missing rest of the data segment; `None` if the PDU is complete.
    pub fn of(pdu: &Pdu, digests: Digests) -> Option<Self> {
        let missing_bytes = pdu.missing_bytes();
        (missing_bytes > 0).then(|| {
            let crc = digests.data.then(|| {
                let mut crc = Crc32c::new();
                crc.update(&pdu.data);
                crc
            });
            let segment_bytes = pdu.data.len() + missing_bytes;
            let initiator_task_tag = pdu.initiator_task_tag();
            Self { initiator_task_tag, segment_bytes, missing_bytes, crc }
        })
    }

    /// Initiator Task Tag of the PDU. A task has at most one open PDU.
    pub fn initiator_task_tag(&self) -> u32 {
        self.initiator_task_tag
    }

    /// Number of bytes that are still missing.
    pub fn missing_bytes(&self) -> usize {
        self.missing_bytes
    }

    /// Adds the next part, at most the missing bytes. Returns true if the segment is complete.
    pub fn add(&mut self, part: &[u8]) -> bool {
        self.missing_bytes = self.missing_bytes.saturating_sub(part.len());
        if let Some(crc) = &mut self.crc {
            crc.update(part);
        }
        self.missing_bytes == 0
    }

    /// Appends padding and data digest of the complete segment to `out`: the given digest, or the
    /// one calculated from the parts.
    pub fn encode_tail(&self, digest: Option<u32>, out: &mut impl BufMut) {
        let padding = &[0; 3][..padding_bytes(self.segment_bytes)];
        out.put_slice(padding);
        if let Some(crc) = &self.crc {
            let digest = digest.unwrap_or_else(|| {
                let mut crc = crc.clone();
                crc.update(padding);
                crc.value()
            });
            out.put_slice(&Crc32c::digest_bytes(digest));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::framing::{encode_header, encode_tail};
    use crate::pdu::HEADER_BYTES;
    use alloc::vec::Vec;
    use bytes::Bytes;
    use proptest::prelude::*;

    proptest! {
        /// Goal: a PDU sent in parts has the same bytes as the whole PDU, and its digest can be
        /// given or calculated.
        #[test]
        fn parts_encode_as_the_whole(
            data in prop::collection::vec(any::<u8>(), 1..300),
            first in 0usize..300,
            step in 1usize..100,
            header: bool,
            digest: bool,
            given: bool,
        ) {
            let digests = Digests { header, data: digest };
            let whole = Pdu::with_data([7; HEADER_BYTES], Bytes::from(data.clone()));
            let (mut expected, mut tail) = (Vec::new(), Vec::new());
            encode_header(&whole, digests, &mut expected);
            expected.extend_from_slice(&data);
            encode_tail(&whole, digests, &mut tail);
            expected.extend_from_slice(&tail);

            let (prefix, rest) = data.split_at(first.min(data.len()));
            let prefix = Bytes::copy_from_slice(prefix);
            let pdu = Pdu::open([7; HEADER_BYTES], data.len() as u32, prefix);
            prop_assert_eq!(pdu.bhs, whole.bhs);
            let mut bytes = Vec::new();
            encode_header(&pdu, digests, &mut bytes);
            bytes.extend_from_slice(&pdu.data);
            prop_assert_eq!(OpenSegment::of(&whole, digests).is_none(), true);
            match OpenSegment::of(&pdu, digests) {
                None => {
                    prop_assert!(rest.is_empty());
                    encode_tail(&pdu, digests, &mut bytes);
                }
                Some(mut segment) => {
                    prop_assert_eq!(segment.initiator_task_tag(), 0x0707_0707);
                    for part in rest.chunks(step) {
                        prop_assert!(segment.missing_bytes() >= part.len());
                        bytes.extend_from_slice(part);
                        segment.add(part);
                    }
                    prop_assert_eq!(segment.missing_bytes(), 0);
                    let crc = tail.last_chunk().filter(|_| digest && given);
                    #[allow(clippy::little_endian_bytes)] // the order of digests on the wire
                    let crc = crc.map(|crc| u32::from_le_bytes(*crc));
                    segment.encode_tail(crc, &mut bytes);
                }
            }
            prop_assert_eq!(bytes, expected);
        }
    }
}
