//! READ DEFECT DATA: both lists are always empty.
//!
//! The device below manages its own defects, if any; no block of this unit was ever reassigned.

use super::inform::truncated;
use super::{Plan, Refusal};
use crate::cdb::first;
use crate::cdb::sbc::{ReadDefectData10, ReadDefectData12};
use crate::commands::Request;
use crate::sense::Sense;
use crate::unit::BlockUnit;

/// REQ_PLIST, REQ_GLIST and DEFECT LIST FORMAT; the answer has PLISTV, GLISTV and the format of the
/// list at the same positions.
const LISTS_AND_FORMAT: u8 = 0x1f;
const FORMAT: u8 = 0x07;

/// READ DEFECT DATA (10). SBC-3 §5.18.
pub(crate) fn read_10(_: &mut BlockUnit, request: &Request<'_>) -> Result<Plan, Refusal> {
    let raw = ReadDefectData10::decode(&first(request.cdb));
    check_format(raw.request, 2)?;
    let reply = alloc::vec![0, raw.request & LISTS_AND_FORMAT, 0, 0];
    Ok(Plan::Reply(truncated(reply, raw.allocation_bytes.into())))
}

/// READ DEFECT DATA (12). SBC-3 §5.19: starts at the requested descriptor, of which there are none.
pub(crate) fn read_12(_: &mut BlockUnit, request: &Request<'_>) -> Result<Plan, Refusal> {
    let raw = ReadDefectData12::decode(&first(request.cdb));
    check_format(raw.request, 1)?;
    let reply = alloc::vec![0, raw.request & LISTS_AND_FORMAT, 0, 0, 0, 0, 0, 0];
    Ok(Plan::Reply(truncated(reply, raw.allocation_bytes)))
}

/// Checks the format. An empty list has no addresses and so fits each of the six formats of
/// SBC-3 §6.2. A vendor's format (6) is undefined; 7 is reserved.
fn check_format(format_byte: u8, byte: u16) -> Result<(), Sense> {
    match format_byte & FORMAT {
        0..=5 => Ok(()),
        _ => Err(Sense::invalid_field_in_cdb(byte, Some(2))),
    }
}
