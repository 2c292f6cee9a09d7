//! The parameter list of EXTENDED COPY (LID1). SPC-3 §6.3.1, §6.3.5 to §6.3.7.

use super::fault::CopyFault;
use super::limits::{
    BLOCK_TO_BLOCK, CSCD_BYTES, CSCD_DESCRIPTORS_MAX, DESCRIPTOR_LIST_BYTES_MAX, IDENTIFICATION,
    SEGMENT_BYTES, SEGMENT_DESCRIPTORS_MAX,
};
use crate::reported_identity::ReportedIdentity;
use crate::sense::{FieldPointer, Sense};
use crate::vpd::{self, DesignatorType};
use alloc::vec::Vec;

lunar_wire::wire_struct! {
    /// The header of the list. SPC-4 §6.5.
    pub struct ListHeader [16] {
        0 => list_identifier: u8,
        /// STR 20h, LIST ID USAGE 18h, PRIORITY 07h.
        1 => usage: u8,
        2 => cscd_bytes: u16,
        8 => segment_bytes: u32,
        12 => inline_bytes: u32,
    }
}

lunar_wire::wire_struct! {
    /// Identification CSCD descriptor of a block device. SPC-3 §6.3.6.2, §6.3.6.8.
    pub struct Identification [32] {
        0 => kind: u8,
        /// LU ID TYPE C0h, NUL 20h, PERIPHERAL DEVICE TYPE 1Fh.
        1 => device: u8,
        2 => relative_initiator_port: u16,
        /// CODE SET 0Fh.
        4 => code_set: u8,
        /// ASSOCIATION 30h, DESIGNATOR TYPE 0Fh.
        5 => designator_type: u8,
        7 => designator_bytes: u8,
        8 => designator: [u8; 20],
        /// PAD 04h.
        28 => specific: u8,
        29 => block_bytes: lunar_wire::U24,
    }
}

lunar_wire::wire_struct! {
    /// Block device to block device. SPC-3 §6.3.7.5.
    pub struct BlockToBlock [28] {
        0 => kind: u8,
        /// FCO 04h (of SPC-5), DC 02h, CAT 01h.
        1 => flags: u8,
        2 => descriptor_bytes: u16,
        4 => source: u16,
        6 => destination: u16,
        10 => blocks: u16,
        12 => source_lba: u64,
        20 => destination_lba: u64,
    }
}

/// A decoded EXTENDED COPY parameter list.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct CopyList {
    /// Identifier for fetching results; `None` if they will not be fetched (LIST ID USAGE 11b).
    pub list_identifier: Option<u8>,
    /// Copy sources and copy destinations.
    pub cscds: Vec<Cscd>,
    /// Segments to copy, in order. Their CSCD numbers are within `cscds`.
    pub segments: Vec<CopySegment>,
}

/// A copy source or copy destination with an unresolved designator.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Cscd {
    /// CODE SET of the designator.
    pub code_set: u8,
    /// DESIGNATOR TYPE.
    pub kind: DesignatorType,
    /// DESIGNATOR, at most 20 bytes.
    pub designator: Vec<u8>,
    /// PAD: the rest of an inexact segment is padded or dropped.
    pub pad: bool,
    /// DISK BLOCK LENGTH: the block length that the initiator expects of the unit.
    pub block_bytes: u32,
    /// Offset of the descriptor in the list.
    pub at: u16,
}

/// A range of blocks to copy.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct CopySegment {
    /// Index of the copy source.
    pub source: u16,
    /// Index of the copy destination.
    pub destination: u16,
    /// Number of blocks.
    pub blocks: u16,
    /// DC: true if they are blocks of the destination, else of the source.
    pub counts_destination: bool,
    /// CAT: the rest of an inexact segment is kept for the next.
    pub concatenates: bool,
    /// First block read.
    pub source_lba: u64,
    /// First block written.
    pub destination_lba: u64,
    /// Offset of the descriptor in the list.
    pub at: u16,
}

/// Adds a field pointer to a byte of the list to this sense.
fn wrong(sense: Sense, at: usize) -> Sense {
    sense.with_field(FieldPointer { in_cdb: false, byte: at as u16, bit: None })
}

fn invalid(at: usize, bit: Option<u8>) -> Sense {
    Sense::invalid_field_in_parameter_list(at as u16, bit)
}

impl CopyList {
    /// Decodes a parameter list, which is not longer than
    /// [`PARAMETER_LIST_BYTES_MAX`](super::PARAMETER_LIST_BYTES_MAX).
    ///
    /// # Errors
    /// The sense to send for the checks that SPC-3 §6.3.2 requires before the first segment is
    /// processed.
    pub fn decode(list: &[u8]) -> Result<Self, Sense> {
        let (head, rest) = list.split_first_chunk().ok_or(Sense::PARAMETER_LIST_LENGTH_ERROR)?;
        let header = ListHeader::decode(head);
        let list_identifier = list_identifier(&header)?;
        let descriptor_bytes = u32::from(header.cscd_bytes).saturating_add(header.segment_bytes);
        if descriptor_bytes > DESCRIPTOR_LIST_BYTES_MAX {
            return Err(Sense::PARAMETER_LIST_LENGTH_ERROR);
        }
        let cscd_bytes = usize::from(header.cscd_bytes);
        let (cscds, rest) =
            rest.split_at_checked(cscd_bytes).ok_or(Sense::PARAMETER_LIST_LENGTH_ERROR)?;
        let segment_bytes = usize::try_from(header.segment_bytes).unwrap_or(usize::MAX);
        let (segments, inline) =
            rest.split_at_checked(segment_bytes).ok_or(Sense::PARAMETER_LIST_LENGTH_ERROR)?;
        if header.inline_bytes as usize > inline.len() {
            return Err(Sense::PARAMETER_LIST_LENGTH_ERROR);
        }
        if header.inline_bytes > 0 {
            return Err(wrong(Sense::INLINE_DATA_LENGTH_EXCEEDED, 12));
        }
        let cscds = decode_cscds(cscds)?;
        let segments = decode_segments(segments, ListHeader::LEN + cscd_bytes, cscds.len())?;
        Ok(Self { list_identifier, cscds, segments })
    }
}

/// LIST ID USAGE. SPC-4 §6.5: 00b and 10b give the copy an identifier (they differ only in held
/// data, which does not exist here), 11b gives none, 01b is reserved.
fn list_identifier(header: &ListHeader) -> Result<Option<u8>, Sense> {
    match (header.usage >> 3) & 3 {
        0b00 | 0b10 => Ok(Some(header.list_identifier)),
        0b11 if header.list_identifier != 0 => Err(invalid(0, None)),
        0b11 => Ok(None),
        _ => Err(invalid(1, Some(4))),
    }
}

fn decode_cscds(bytes: &[u8]) -> Result<Vec<Cscd>, Sense> {
    let (descriptors, rest) = bytes.as_chunks::<CSCD_BYTES>();
    if descriptors.len() > usize::from(CSCD_DESCRIPTORS_MAX) {
        return Err(wrong(Sense::TOO_MANY_TARGET_DESCRIPTORS, 2));
    }
    if !rest.is_empty() {
        return Err(Sense::PARAMETER_LIST_LENGTH_ERROR);
    }
    let numbered = descriptors.iter().enumerate();
    numbered.map(|(index, raw)| Cscd::decode(raw, ListHeader::LEN + index * CSCD_BYTES)).collect()
}

fn decode_segments(bytes: &[u8], at: usize, cscds: usize) -> Result<Vec<CopySegment>, Sense> {
    let mut segments = Vec::new();
    let mut rest = bytes;
    while let Some(kind) = rest.first() {
        let at = at + bytes.len() - rest.len();
        if segments.len() == usize::from(SEGMENT_DESCRIPTORS_MAX) {
            return Err(wrong(Sense::TOO_MANY_SEGMENT_DESCRIPTORS, 8));
        }
        if *kind != BLOCK_TO_BLOCK {
            return Err(wrong(Sense::UNSUPPORTED_SEGMENT_DESCRIPTOR_TYPE_CODE, at));
        }
        let (raw, after) = rest.split_first_chunk().ok_or(Sense::PARAMETER_LIST_LENGTH_ERROR)?;
        let segment = CopySegment::decode(raw, at)?;
        for (cscd, offset) in [(segment.source, 4), (segment.destination, 6)] {
            if usize::from(cscd) >= cscds {
                let fault = CopyFault { segment: segments.len() as u16, reported: None };
                return Err(wrong(Sense::UNREACHABLE_COPY_TARGET, at + offset).with_copy(fault));
            }
        }
        segments.push(segment);
        rest = after;
    }
    Ok(segments)
}

impl Cscd {
    fn decode(raw: &[u8; CSCD_BYTES], at: usize) -> Result<Self, Sense> {
        const NUL: u8 = 0x20;
        const DEVICE_TYPE: u8 = 0x1f;
        const ASSOCIATION: u8 = 0x30;
        const PAD: u8 = 0x04;
        let raw = Identification::decode(raw);
        if raw.kind != IDENTIFICATION {
            return Err(wrong(Sense::UNSUPPORTED_TARGET_DESCRIPTOR_TYPE_CODE, at));
        }
        // LU ID TYPE is ignored here: SPC-4 only uses it in descriptors with an LU identifier. NUL
        // is obsolete there, but an initiator that sets it means a null device, "not expected to
        // respond to commands from the copy manager".
        if raw.device & NUL != 0 {
            return Err(wrong(Sense::UNREACHABLE_COPY_TARGET, at + 1));
        }
        if raw.device & DEVICE_TYPE != 0 {
            // Every unit here is a direct access block device.
            return Err(wrong(Sense::INCORRECT_COPY_TARGET_DEVICE_TYPE, at + 1));
        }
        // Copies use no initiator port of ours, so none has an identifier.
        if raw.relative_initiator_port != 0 {
            return Err(invalid(at + 2, None));
        }
        // The designator must be one of a logical unit, not of a port or a device.
        if raw.designator_type & ASSOCIATION != 0 {
            return Err(invalid(at + 5, Some(5)));
        }
        let bytes = usize::from(raw.designator_bytes);
        let designator = raw.designator.get(..bytes).ok_or(invalid(at + 7, None))?;
        Ok(Self {
            code_set: raw.code_set & 0x0f,
            kind: DesignatorType(raw.designator_type & 0x0f),
            designator: designator.to_vec(),
            pad: raw.specific & PAD != 0,
            block_bytes: raw.block_bytes.value(),
            at: at as u16,
        })
    }

    /// True if page 83h of the unit with this UUID, or of one that reports the identity `reported`,
    /// has this designator.
    pub fn designates(&self, uuid: &[u8; 16], reported: Option<&ReportedIdentity>) -> bool {
        vpd::designates_unit(uuid, reported, self.code_set, self.kind, &self.designator)
    }
}

impl CopySegment {
    fn decode(raw: &[u8; SEGMENT_BYTES], at: usize) -> Result<Self, Sense> {
        const FAST_COPY_ONLY: u8 = 0x04;
        const DESTINATION_COUNT: u8 = 0x02;
        const CONCATENATE: u8 = 0x01;
        let raw = BlockToBlock::decode(raw);
        // "Only if it is as fast as can be" (SPC-5) is not promised.
        if raw.flags & FAST_COPY_ONLY != 0 {
            return Err(invalid(at + 1, Some(2)));
        }
        if usize::from(raw.descriptor_bytes) != SEGMENT_BYTES - 4 {
            return Err(invalid(at + 2, None));
        }
        Ok(Self {
            source: raw.source,
            destination: raw.destination,
            blocks: raw.blocks,
            counts_destination: raw.flags & DESTINATION_COUNT != 0,
            concatenates: raw.flags & CONCATENATE != 0,
            source_lba: raw.source_lba,
            destination_lba: raw.destination_lba,
            at: at as u16,
        })
    }
}
