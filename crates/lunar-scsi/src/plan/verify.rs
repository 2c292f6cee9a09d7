//! VERIFY, WRITE AND VERIFY.

use super::read_write::{transfer, unprotected};
use super::{Compare, Plan, Refusal};
use crate::commands::Request;
use crate::sense::Sense;
use crate::unit::BlockUnit;

/// VERIFY (10, 12, 16). SBC-3 §5.29 to §5.31.
pub(crate) fn verify(unit: &mut BlockUnit, request: &Request<'_>) -> Result<Plan, Refusal> {
    let blocks = unprotected(request)?;
    let compare = match blocks.byte_check() {
        0b00 => Compare::Medium,
        0b01 => Compare::Bytes,
        0b11 => Compare::OneBlock,
        _ => return Err(bad_byte_check()),
    };
    let range = transfer(unit, blocks)?;
    // Nothing to verify: not even the single block is sent.
    let compare = if range.count == 0 { Compare::Medium } else { compare };
    Ok(Plan::Verify { range, compare })
}

/// WRITE AND VERIFY (10, 12, 16). SBC-3 §5.37 to §5.39, which define no comparison with a single
/// block.
pub(crate) fn write_and_verify(
    unit: &mut BlockUnit,
    request: &Request<'_>,
) -> Result<Plan, Refusal> {
    let blocks = unprotected(request)?;
    let compare = match blocks.byte_check() {
        0b00 => Compare::Medium,
        0b01 => Compare::Bytes,
        _ => return Err(bad_byte_check()),
    };
    let range = transfer(unit, blocks)?;
    Ok(Plan::WriteAndVerify { range, compare })
}

fn bad_byte_check() -> Refusal {
    Sense::invalid_field_in_cdb(1, Some(2)).into()
}
