//! Converts a segment and its two units to existing blocks. SPC-3 §6.3.7.5.

use super::fault::{CopyFault, Reported, SegmentRole};
use super::list::{CopyList, CopySegment, Cscd};
use crate::plan::LbaRange;
use crate::sense::{FieldPointer, Sense};
use crate::unit::UnitOptions;

/// The ranges of one segment: equal numbers of bytes, whole blocks, inside both units.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Move {
    /// Range to read, in blocks of the source.
    pub source: LbaRange,
    /// Range to write, in blocks of the destination.
    pub destination: LbaRange,
    /// Number of bytes.
    pub bytes: u64,
}

impl CopyList {
    /// Returns the move of segment `number` between these units; `None` if there is no such
    /// segment.
    ///
    /// # Errors
    /// INVALID FIELD IN PARAMETER LIST for a block length the unit does not have, and for PAD or
    /// CAT if they would have an effect · UNEXPECTED INEXACT SEGMENT · COPY ABORTED with the
    /// LOGICAL BLOCK ADDRESS OUT OF RANGE of the unit that ends too early.
    pub fn plan_move(
        &self,
        number: usize,
        source: &UnitOptions,
        destination: &UnitOptions,
    ) -> Option<Result<Move, Sense>> {
        let segment = self.segments.get(number)?;
        let from = self.cscds.get(usize::from(segment.source))?;
        let to = self.cscds.get(usize::from(segment.destination))?;
        let checker = MoveChecker { segment, number: number as u16 };
        Some(checker.all((from, source), (to, destination)))
    }
}

struct MoveChecker<'a> {
    segment: &'a CopySegment,
    number: u16,
}

impl MoveChecker<'_> {
    fn all(&self, from: (&Cscd, &UnitOptions), to: (&Cscd, &UnitOptions)) -> Result<Move, Sense> {
        for (cscd, unit) in [from, to] {
            if cscd.block_bytes != unit.block_bytes {
                return Err(Sense::invalid_field_in_parameter_list(cscd.at + 29, None));
            }
        }
        let segment = self.segment;
        let counted = if segment.counts_destination { to.1 } else { from.1 };
        let bytes = u64::from(segment.blocks) * u64::from(counted.block_bytes);
        let blocks = |unit: &UnitOptions| {
            let block = u64::from(unit.block_bytes);
            bytes.checked_div(block).filter(|count| count * block == bytes)
        };
        let (Some(read), Some(written)) = (blocks(from.1), blocks(to.1)) else {
            return Err(self.inexact(from.0, to.0));
        };
        Ok(Move {
            source: self.within(from.1, segment.source_lba, read, SegmentRole::Source)?,
            destination: self.within(
                to.1,
                segment.destination_lba,
                written,
                SegmentRole::Destination,
            )?,
            bytes,
        })
    }

    /// The error of an inexact segment. Nothing is kept from one segment to the next, and nothing
    /// is padded. If one of these was requested, its bit is wrong; otherwise the segment is: "if
    /// there is residual source data or residual destination data, the command shall be
    /// terminated".
    fn inexact(&self, from: &Cscd, to: &Cscd) -> Sense {
        let wrong = Sense::invalid_field_in_parameter_list;
        if self.segment.concatenates {
            return wrong(self.segment.at + 1, Some(0));
        }
        for cscd in [from, to] {
            if cscd.pad {
                return wrong(cscd.at + 28, Some(2));
            }
        }
        self.stopped(Sense::UNEXPECTED_INEXACT_SEGMENT, 10, None)
    }

    fn within(
        &self,
        unit: &UnitOptions,
        lba: u64,
        count: u64,
        party: SegmentRole,
    ) -> Result<LbaRange, Sense> {
        let end = unit.block_count;
        if lba.checked_add(count).is_some_and(|after| after <= end) {
            return Ok(LbaRange { lba, count });
        }
        // The sense of a READ or WRITE of these blocks.
        let sense = Sense::LBA_OUT_OF_RANGE.with_information(lba.max(end));
        let reported = Reported::check(party, &sense);
        let field = match party {
            SegmentRole::Source => 12,
            SegmentRole::Destination => 20,
        };
        Err(self.stopped(Sense::COPY_REFUSED_BY_UNIT, field, Some(reported)))
    }

    /// COPY ABORTED with a pointer to a field of the segment descriptor.
    fn stopped(&self, sense: Sense, offset: u16, reported: Option<Reported>) -> Sense {
        let field = FieldPointer { in_cdb: false, byte: self.segment.at + offset, bit: None };
        sense.with_field(field).with_copy(CopyFault { segment: self.number, reported })
    }
}
