//! WRITE ATOMIC.

use super::read_write::checked_range;
use super::{Plan, Refusal};
use crate::cdb::first;
use crate::cdb::sbc::WriteAtomic;
use crate::commands::Request;
use crate::sense::Sense;
use crate::unit::BlockUnit;

/// WRITE ATOMIC (16). SBC-4; offered if the device writes several blocks atomically.
///
/// Atomic boundaries are not supported: MAXIMUM ATOMIC BOUNDARY SIZE is 0.
pub(crate) fn write_atomic(unit: &mut BlockUnit, request: &Request<'_>) -> Result<Plan, Refusal> {
    const FUA: u8 = 0x08;
    let Some(atomic) = unit.options().atomic else {
        return Err(Sense::INVALID_OPERATION_CODE.into()); // not offered by the table
    };
    let raw = WriteAtomic::decode(&first(request.cdb));
    if raw.flags >> 5 != 0 {
        return Err(Sense::invalid_field_in_cdb(1, Some(7)).into());
    }
    if raw.boundary != 0 {
        return Err(Sense::invalid_field_in_cdb(10, None).into());
    }
    let range = checked_range(unit, raw.lba, raw.count.into())?;
    let unit_blocks = u64::from(atomic.unit_blocks.max(1));
    if range.count > u64::from(atomic.blocks_max) || !range.count.is_multiple_of(unit_blocks) {
        return Err(Sense::invalid_field_in_cdb(12, None).into());
    }
    if !range.lba.is_multiple_of(unit_blocks) {
        return Err(Sense::invalid_field_in_cdb(2, None).into());
    }
    Ok(Plan::WriteAtomic { range, durable: unit.is_durable(raw.flags & FUA != 0) })
}
