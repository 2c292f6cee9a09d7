//! Additional Header Segments. RFC 7143 §11.2.2.
//!
//! AHSLength comes from the peer and is checked against the available bytes, against TotalAHSLength
//! and against the limits of its type before anything is read.

use crate::pdu::HEADER_BYTES;
use alloc::boxed::Box;
use alloc::vec::Vec;
use lunar_wire::Field;

/// Maximum CDB length: a variable-length CDB has 8 bytes and at most 252 (ADDITIONAL CDB LENGTH)
/// more.
pub const CDB_BYTES_MAX: usize = 260;

/// AHSType, the low six bits of the byte. RFC 7143 §11.2.2.1.
const TYPE_EXTENDED_CDB: u8 = 1;
const TYPE_BIDIRECTIONAL_READ: u8 = 2;
const TYPE_MASK: u8 = 0x3f;

/// Length of AHSLength and AHSType, which AHSLength does not count.
const PREFIX_BYTES: usize = 3;
/// Number of CDB bytes in the Basic Header Segment.
const CDB_IN_HEADER_BYTES: usize = 16;

/// One Additional Header Segment.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Segment<'a> {
    /// The bytes of a CDB from the seventeenth on. RFC 7143 §11.2.2.3.
    ExtendedCdb(&'a [u8]),
    /// Bidirectional Read Expected Data Transfer Length. RFC 7143 §11.2.2.4.
    BidirectionalRead {
        /// Number of data-in bytes that the initiator expects.
        expected_bytes: u32,
    },
}

/// An error in Additional Header Segments; a format error, RFC 7143 §7.7.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum AhsError {
    /// AHSLength exceeds TotalAHSLength, or the rest cannot hold a segment.
    #[error("an additional header segment exceeds TotalAHSLength")]
    Truncated,
    /// AHSLength is not valid for this AHSType.
    #[error("AHSLength {length} is not valid for AHSType {kind}")]
    Length {
        /// AHSType.
        kind: u8,
        /// AHSLength.
        length: u16,
    },
    /// An AHSType that RFC 7143 reserves.
    #[error("AHSType {0} is reserved")]
    Type(u8),
    /// The same AHSType occurs twice.
    #[error("two additional header segments of AHSType {0}")]
    Twice(u8),
}

/// Iterates over the segments of a header; stops after the first error.
#[derive(Clone, Debug)]
pub struct Segments<'a> {
    rest: &'a [u8],
}

/// Iterates over all segments in `ahs` ([`Header::ahs`](super::Header::ahs)).
pub fn segments(ahs: &[u8]) -> Segments<'_> {
    Segments { rest: ahs }
}

impl<'a> Segments<'a> {
    fn step(&mut self) -> Result<Segment<'a>, AhsError> {
        let (prefix, rest) = self.rest.split_at_checked(PREFIX_BYTES).ok_or(AhsError::Truncated)?;
        let length = u16::get(&prefix[..2]);
        let kind = prefix[2] & TYPE_MASK;
        let specific = rest.get(..usize::from(length)).ok_or(AhsError::Truncated)?;
        let padded_bytes = (PREFIX_BYTES + usize::from(length)).next_multiple_of(4);
        self.rest = self.rest.get(padded_bytes..).ok_or(AhsError::Truncated)?;
        match (kind, specific) {
            (TYPE_EXTENDED_CDB, [_reserved, cdb @ ..])
                if (1..=CDB_BYTES_MAX - CDB_IN_HEADER_BYTES).contains(&cdb.len()) =>
            {
                Ok(Segment::ExtendedCdb(cdb))
            }
            (TYPE_BIDIRECTIONAL_READ, [_reserved, expected @ ..]) if expected.len() == 4 => {
                Ok(Segment::BidirectionalRead { expected_bytes: u32::get(expected) })
            }
            (TYPE_EXTENDED_CDB | TYPE_BIDIRECTIONAL_READ, _) => {
                Err(AhsError::Length { kind, length })
            }
            _ => Err(AhsError::Type(kind)),
        }
    }
}

impl<'a> Iterator for Segments<'a> {
    type Item = Result<Segment<'a>, AhsError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let step = self.step();
        if step.is_err() {
            self.rest = &[];
        }
        Some(step)
    }
}

/// Contents of the segments of a SCSI Command.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct CommandSegments<'a> {
    /// The CDB from its seventeenth byte on.
    pub extended_cdb: Option<&'a [u8]>,
    /// Bidirectional Read Expected Data Transfer Length in bytes.
    pub expected_read_bytes: Option<u32>,
}

impl<'a> CommandSegments<'a> {
    /// Reads all segments of a SCSI Command.
    ///
    /// # Errors
    /// An invalid length, a reserved type, or a type that occurs twice.
    pub fn decode(ahs: &'a [u8]) -> Result<Self, AhsError> {
        let mut found = Self::default();
        for segment in segments(ahs) {
            match segment? {
                Segment::ExtendedCdb(cdb) => {
                    if found.extended_cdb.replace(cdb).is_some() {
                        return Err(AhsError::Twice(TYPE_EXTENDED_CDB));
                    }
                }
                Segment::BidirectionalRead { expected_bytes } => {
                    if found.expected_read_bytes.replace(expected_bytes).is_some() {
                        return Err(AhsError::Twice(TYPE_BIDIRECTIONAL_READ));
                    }
                }
            }
        }
        Ok(found)
    }
}

/// Encodes a CDB and a bidirectional read length for a SCSI Command: the 16 bytes of the Basic
/// Header Segment (zero-filled), and the Additional Header Segments. The caller sets TotalAHSLength
/// to a quarter of the segments' length. A CDB is truncated at [`CDB_BYTES_MAX`].
pub fn encode_command(cdb: &[u8], expected_read_bytes: Option<u32>) -> ([u8; 16], Box<[u8]>) {
    let mut start = [0; CDB_IN_HEADER_BYTES];
    let in_header = cdb.len().min(CDB_IN_HEADER_BYTES);
    start[..in_header].copy_from_slice(&cdb[..in_header]);
    let mut ahs = Vec::new();
    let extended = &cdb[in_header..cdb.len().min(CDB_BYTES_MAX)];
    if !extended.is_empty() {
        push_segment(&mut ahs, TYPE_EXTENDED_CDB, extended);
    }
    if let Some(bytes) = expected_read_bytes {
        push_segment(&mut ahs, TYPE_BIDIRECTIONAL_READ, &bytes.to_be_bytes());
    }
    (start, ahs.into_boxed_slice())
}

fn push_segment(ahs: &mut Vec<u8>, kind: u8, specific: &[u8]) {
    let length = (specific.len() + 1) as u16;
    ahs.extend_from_slice(&length.to_be_bytes());
    ahs.extend_from_slice(&[kind, 0]);
    ahs.extend_from_slice(specific);
    ahs.resize(ahs.len().next_multiple_of(4), 0);
}

const _: () = assert!(HEADER_BYTES == 32 + CDB_IN_HEADER_BYTES);

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use proptest::prelude::*;

    /// Goal: wrong lengths are errors and cause no reads past the end. The first row once crashed a
    /// kernel target: an extended CDB with AHSLength 0.
    #[test]
    fn wrong_segment_lengths_are_errors() {
        let cases: &[(&[u8], AhsError)] = &[
            (&[0, 0, 1, 0], AhsError::Length { kind: 1, length: 0 }),
            (&[0, 1, 1, 0], AhsError::Length { kind: 1, length: 1 }),
            (&[0xff, 0xff, 1, 0], AhsError::Truncated),
            (&[0, 6, 1, 0, 1, 2, 3, 4], AhsError::Truncated),
            (&[0, 4, 2, 0, 1, 2, 3, 0], AhsError::Length { kind: 2, length: 4 }),
            (&[0, 0, 2, 0], AhsError::Length { kind: 2, length: 0 }),
            (&[0, 5, 3, 0, 1, 2, 3, 4], AhsError::Type(3)),
            (&[0, 5, 0, 0, 1, 2, 3, 4], AhsError::Type(0)),
            (&[0, 5, 2, 0, 0, 0, 0, 9, 0, 5, 2, 0, 0, 0, 0, 9], AhsError::Twice(2)),
            (&[0, 5, 2, 0, 0, 0, 0, 9, 0, 0, 0, 0], AhsError::Type(0)),
        ];
        for (ahs, error) in cases {
            assert_eq!(CommandSegments::decode(ahs), Err(*error), "{ahs:02x?}");
        }
        let mut long = vec![1, 0, 1, 0];
        long.resize(1020, 0);
        assert_eq!(
            CommandSegments::decode(&long),
            Err(AhsError::Length { kind: 1, length: 256 }),
            "a CDB of more than 260 bytes"
        );
    }

    /// RFC 7143 §11.2.2.3 and §11.2.2.4: an OSD command of 200 bytes, read length 4096.
    #[test]
    fn both_segments() {
        let cdb: Vec<u8> = (0..200).map(|i| i as u8).collect();
        let (start, ahs) = encode_command(&cdb, Some(4096));
        assert_eq!(start[..], cdb[..16]);
        assert_eq!(ahs[..4], [0, 185, 1, 0], "AHSLength is the length of the CDB less 15");
        assert_eq!(ahs[188..], [0, 5, 2, 0, 0, 0, 16, 0]);
        let found = CommandSegments::decode(&ahs).unwrap();
        assert_eq!(found.extended_cdb, Some(&cdb[16..]));
        assert_eq!(found.expected_read_bytes, Some(4096));
    }

    proptest! {
        /// Goal: encoded values are decoded unchanged; a CDB of up to 16 bytes needs no segment.
        #[test]
        fn encoded_segments_decode_unchanged(
            cdb in prop::collection::vec(any::<u8>(), 0..261),
            read: Option<u32>,
        ) {
            let (start, ahs) = encode_command(&cdb, read);
            prop_assert_eq!(ahs.len() % 4, 0);
            let found = CommandSegments::decode(&ahs).unwrap();
            prop_assert_eq!(found.expected_read_bytes, read);
            let mut whole = start.to_vec();
            whole.extend_from_slice(found.extended_cdb.unwrap_or_default());
            prop_assert_eq!(&whole[..cdb.len()], &cdb[..]);
            prop_assert_eq!(whole.len(), cdb.len().max(16));
        }

        /// Goal: arbitrary bytes yield segments inside them or an error, and iteration ends.
        #[test]
        fn arbitrary_bytes_never_panic(ahs in prop::collection::vec(any::<u8>(), 0..1024)) {
            prop_assert!(segments(&ahs).count() <= ahs.len() / 4 + 1);
            let _ = CommandSegments::decode(&ahs);
        }
    }
}
