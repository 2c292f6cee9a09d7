//! READ CAPACITY.

use super::inform::truncated;
use super::{Plan, Refusal};
use crate::cdb::first;
use crate::cdb::sbc::{Capacity16, ReadCapacity10, ServiceActionIn16};
use crate::commands::Request;
use crate::sense::Sense;
use crate::unit::BlockUnit;

/// READ CAPACITY (10). SBC-3 §5.16: a last LBA that needs more than 32 bits is FFFFFFFFh.
pub(crate) fn read_10(unit: &mut BlockUnit, request: &Request<'_>) -> Result<Plan, Refusal> {
    let raw = ReadCapacity10::decode(&first(request.cdb));
    let last = last_lba(unit);
    check_pmi(raw.flags & 1 != 0, raw.lba.into(), last)?;
    let short = u32::try_from(last).unwrap_or(u32::MAX);
    let mut reply = short.to_be_bytes().to_vec();
    reply.extend_from_slice(&unit.options().block_bytes.to_be_bytes());
    Ok(Plan::Reply(reply))
}

/// READ CAPACITY (16). SBC-3 §5.17.
pub(crate) fn read_16(unit: &mut BlockUnit, request: &Request<'_>) -> Result<Plan, Refusal> {
    let raw = ServiceActionIn16::decode(&first(request.cdb));
    let last = last_lba(unit);
    check_pmi(raw.flags & 1 != 0, raw.lba, last)?;
    let options = unit.options();
    let ratio = options.physical_block_bytes.checked_div(options.block_bytes).unwrap_or(1).max(1);
    // LBPME and LBPRZ: deallocated blocks read as zeroes.
    let provisioning = if options.unmap_granularity_blocks.is_some() { 0xc000 } else { 0 };
    let reply = Capacity16 {
        last_lba: last,
        block_bytes: options.block_bytes,
        protection: 0,
        exponents: ratio.ilog2() as u8 & 0x0f,
        provisioning,
    };
    Ok(Plan::Reply(truncated(reply.encode().to_vec(), raw.allocation_bytes)))
}

fn last_lba(unit: &BlockUnit) -> u64 {
    unit.options().block_count.saturating_sub(1)
}

/// Checks PMI, which requests the last block before a substantial delay; there is no such delay.
/// Without PMI the address must be 0.
fn check_pmi(pmi: bool, lba: u64, last: u64) -> Result<(), Refusal> {
    if !pmi && lba != 0 {
        return Err(Sense::invalid_field_in_cdb(2, None).into());
    }
    if pmi && lba > last {
        return Err(Sense::LBA_OUT_OF_RANGE.with_information(lba).into());
    }
    Ok(())
}
