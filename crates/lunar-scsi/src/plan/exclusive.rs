//! Commands that read and write atomically: COMPARE AND WRITE, ORWRITE.

use super::read_write::{checked_range, transfer, unprotected};
use super::{Plan, Refusal};
use crate::cdb::first;
use crate::cdb::sbc::CompareAndWrite;
use crate::commands::Request;
use crate::sense::Sense;
use crate::unit::BlockUnit;
use crate::vpd::BlockLimits;

/// COMPARE AND WRITE. SBC-3 §5.2: two buffers of `count` blocks are sent.
///
/// A count of 0 is refused, although SBC-3 defines it as no operation: 256 blocks in eight bits are
/// 0, and GOOD would tell such an initiator that it holds the lock it requested.
pub(crate) fn compare_and_write(
    unit: &mut BlockUnit,
    request: &Request<'_>,
) -> Result<Plan, Refusal> {
    const FUA: u8 = 0x08;
    let raw = CompareAndWrite::decode(&first(request.cdb));
    if raw.flags >> 5 != 0 {
        return Err(Sense::invalid_field_in_cdb(1, Some(7)).into());
    }
    if raw.count == 0 || raw.count > BlockLimits::of(unit.options()).compare_and_write_blocks_max {
        return Err(Sense::invalid_field_in_cdb(13, None).into());
    }
    let range = checked_range(unit, raw.lba, raw.count.into())?;
    Ok(Plan::CompareAndWrite { range, durable: unit.is_durable(raw.flags & FUA != 0) })
}

/// ORWRITE (16). SBC-3 §5.7.
pub(crate) fn or_write(unit: &mut BlockUnit, request: &Request<'_>) -> Result<Plan, Refusal> {
    let blocks = unprotected(request)?;
    let range = transfer(unit, blocks)?;
    Ok(Plan::OrWrite { range, durable: unit.is_durable(blocks.fua()) })
}
