//! READ and WRITE.

use super::{LbaRange, Plan, Refusal};
use crate::cdb::sbc::Blocks;
use crate::commands::Request;
use crate::sense::Sense;
use crate::unit::BlockUnit;

/// READ (6, 10, 12, 16). SBC-3 §5.10 to §5.13.
pub(crate) fn read(unit: &mut BlockUnit, request: &Request<'_>) -> Result<Plan, Refusal> {
    let blocks = unprotected(request)?;
    let range = transfer(unit, blocks)?;
    Ok(Plan::Read { range, from_medium: blocks.fua() })
}

/// WRITE (6, 10, 12, 16). SBC-3 §5.32 to §5.35.
pub(crate) fn write(unit: &mut BlockUnit, request: &Request<'_>) -> Result<Plan, Refusal> {
    let blocks = unprotected(request)?;
    let range = transfer(unit, blocks)?;
    Ok(Plan::Write { range, durable: unit.is_durable(blocks.fua()) })
}

/// Decodes the common layout and checks that RDPROTECT (WRPROTECT, VRPROTECT) is 0: units here have
/// no protection information.
pub(crate) fn unprotected(request: &Request<'_>) -> Result<Blocks, Sense> {
    let blocks = Blocks::decode(request.cdb);
    if blocks.protect() != 0 {
        return Err(Sense::invalid_field_in_cdb(1, Some(7)));
    }
    Ok(blocks)
}

/// The range of a command that transfers its blocks: inside the unit, and no longer than MAXIMUM
/// TRANSFER LENGTH.
pub(crate) fn transfer(unit: &BlockUnit, blocks: Blocks) -> Result<LbaRange, Sense> {
    let range = checked_range(unit, blocks.lba, blocks.count)?;
    if blocks.count > u64::from(unit.options().transfer_blocks_max) {
        return Err(Sense::invalid_field_in_cdb(blocks.count_at, None));
    }
    Ok(range)
}

/// A range inside the unit; an empty one may start right at the end.
pub(crate) fn checked_range(unit: &BlockUnit, lba: u64, count: u64) -> Result<LbaRange, Sense> {
    let end = unit.options().block_count;
    match lba.checked_add(count) {
        Some(after) if after <= end => Ok(LbaRange { lba, count }),
        _ => Err(Sense::LBA_OUT_OF_RANGE.with_information(lba.max(end))),
    }
}
