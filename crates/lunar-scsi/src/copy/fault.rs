//! The point at which a copy stopped, as reported in sense data. SPC-3 §6.3.3, SPC-4 §6.5.

use crate::sense::{PLAIN_SENSE_BYTES_MAX, Sense, SenseFormat, Status};
use alloc::vec;
use alloc::vec::Vec;

/// The point at which an EXTENDED COPY stopped.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct CopyFault {
    /// Number of the segment descriptor, from 0.
    pub segment: u16,
    /// Status of one of the units, if that was the reason.
    pub reported: Option<Reported>,
}

/// Status and sense data of a copy source or copy destination.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Reported {
    by: SegmentRole,
    status: Status,
    /// Encoded sense; a unit's own sense is never longer.
    sense: [u8; PLAIN_SENSE_BYTES_MAX],
    sense_bytes: u8,
}

/// A role in a segment.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum SegmentRole {
    /// Copy source.
    Source = 1,
    /// Copy destination.
    Destination = 2,
}

const DESCRIPTOR_COMMAND_SPECIFIC: u8 = 0x01;
const DESCRIPTOR_FORWARDED: u8 = 0x0c;

impl CopyFault {
    /// COMMAND-SPECIFIC INFORMATION: "the segment number" in its third and fourth bytes; before it,
    /// in fixed format sense data, the offsets of the status and sense of the source and the
    /// destination (0: none). Forwarded data is at `forwarded_at`.
    pub(crate) fn command_specific(&self, forwarded_at: u8) -> [u8; 4] {
        let at = |party| match &self.reported {
            Some(reported) if reported.by == party => forwarded_at,
            _ => 0,
        };
        let [high, low] = self.segment.to_be_bytes();
        [at(SegmentRole::Source), at(SegmentRole::Destination), high, low]
    }

    /// Status byte and sense data to append to fixed format sense data.
    pub(crate) fn forwarded_fixed(&self) -> Vec<u8> {
        let Some(reported) = &self.reported else { return Vec::new() };
        let mut bytes = vec![reported.status.0];
        bytes.extend_from_slice(reported.sense());
        bytes
    }

    /// The same as sense data descriptors: command-specific information, forwarded sense data.
    /// SPC-4 §4.5.2.3, §4.5.2.7.
    pub(crate) fn descriptors(&self) -> Vec<u8> {
        let mut bytes = vec![DESCRIPTOR_COMMAND_SPECIFIC, 0x0a, 0, 0, 0, 0, 0, 0];
        bytes.extend_from_slice(&self.command_specific(0));
        if let Some(reported) = &self.reported {
            let sense = reported.sense();
            let additional = reported.sense_bytes + 2;
            let (by, status) = (reported.by as u8, reported.status.0);
            bytes.extend_from_slice(&[DESCRIPTOR_FORWARDED, additional, by, status]);
            bytes.extend_from_slice(sense);
        }
        bytes
    }
}

impl Reported {
    /// Creates a report of a status without sense data.
    pub const fn status(by: SegmentRole, status: Status) -> Self {
        Self { by, status, sense: [0; PLAIN_SENSE_BYTES_MAX], sense_bytes: 0 }
    }

    /// Creates a report of CHECK CONDITION with this sense, in fixed format.
    pub fn check(by: SegmentRole, sense: &Sense) -> Self {
        let mut reported = Self::status(by, Status::CHECK_CONDITION);
        let plain = Sense { copy: None, ..sense.clone() };
        for (target, byte) in reported.sense.iter_mut().zip(plain.encode(SenseFormat::Fixed)) {
            *target = byte;
            reported.sense_bytes += 1;
        }
        reported
    }

    fn sense(&self) -> &[u8] {
        &self.sense[..usize::from(self.sense_bytes)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sense::{BLOCK_SENSE_BYTES_MAX, FieldPointer};

    fn failed(by: SegmentRole) -> Sense {
        let reported = Some(Reported::check(by, &Sense::LBA_OUT_OF_RANGE));
        Sense::THIRD_PARTY_DEVICE_FAILURE.with_copy(CopyFault { segment: 0x0102, reported })
    }

    #[test]
    fn fixed_bytes() {
        let bytes = failed(SegmentRole::Source).encode(SenseFormat::Fixed);
        assert_eq!(bytes.len(), 18 + 1 + 18);
        assert_eq!(bytes[..18], [0x70, 0, 10, 0, 0, 0, 0, 29, 18, 0, 1, 2, 0x0d, 1, 0, 0, 0, 0]);
        assert_eq!(bytes[18], 2);
        assert_eq!(bytes[19..], Sense::LBA_OUT_OF_RANGE.encode(SenseFormat::Fixed));
        let bytes = failed(SegmentRole::Destination).encode(SenseFormat::Fixed);
        assert_eq!(bytes[8..12], [0, 18, 1, 2]);
    }

    #[test]
    fn descriptor_bytes() {
        let bytes = failed(SegmentRole::Destination).encode(SenseFormat::Descriptor);
        assert_eq!(bytes[..8], [0x72, 10, 0x0d, 1, 0, 0, 0, 12 + 22]);
        assert_eq!(bytes[8..20], [1, 10, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2]);
        assert_eq!(bytes[20..24], [12, 20, 2, 2]);
        assert_eq!(bytes[24..], Sense::LBA_OUT_OF_RANGE.encode(SenseFormat::Fixed));
    }

    /// COPY ABORTED has a segment pointer at the position of the field pointer of ILLEGAL REQUEST.
    #[test]
    fn segment_pointer() {
        let field = FieldPointer { in_cdb: false, byte: 0x30, bit: Some(2) };
        let fault = CopyFault { segment: 0, reported: None };
        let sense = Sense::UNEXPECTED_INEXACT_SEGMENT.with_field(field).with_copy(fault);
        let bytes = sense.encode(SenseFormat::Fixed);
        assert_eq!(bytes[15..], [0x8a, 0, 0x30]);
        assert_eq!(Sense::decode(&bytes).unwrap().field, Some(field));
        let mut in_segment = bytes;
        in_segment[15] |= 0x20;
        assert_eq!(Sense::decode(&in_segment).unwrap().field, None);
    }

    /// Goal: the longest possible sense data stays within the constant's limit.
    #[test]
    fn sense_is_never_longer_than_its_limit() {
        let field = FieldPointer { in_cdb: false, byte: 1, bit: None };
        let mut reported = Reported::check(SegmentRole::Source, &Sense::LBA_OUT_OF_RANGE);
        reported.sense_bytes = PLAIN_SENSE_BYTES_MAX as u8;
        let reported = Some(reported);
        let longest = Sense::THIRD_PARTY_DEVICE_FAILURE
            .with_information(u64::MAX)
            .with_field(field)
            .with_copy(CopyFault { segment: 0, reported });
        assert_eq!(longest.encode(SenseFormat::Descriptor).len(), BLOCK_SENSE_BYTES_MAX);
        assert!(longest.encode(SenseFormat::Fixed).len() <= BLOCK_SENSE_BYTES_MAX);
    }
}
