//! MODE SENSE and MODE SELECT (6, 10).

use super::inform::truncated;
use super::{NexusId, Plan, Refusal};
use crate::attention::Attention;
use crate::cdb::first;
use crate::cdb::spc::{ModeSelect6, ModeSelect10, ModeSense6, ModeSense10};
use crate::commands::Request;
use crate::mode::{SelectRequest, SenseRequest};
use crate::unit::BlockUnit;
use alloc::vec::Vec;

/// MODE SENSE (6). SPC-4 §6.13.
pub(crate) fn mode_sense_6(unit: &mut BlockUnit, request: &Request<'_>) -> Result<Plan, Refusal> {
    let raw = ModeSense6::decode(&first(request.cdb));
    sense(unit, false, raw.flags, raw.page, raw.subpage, raw.allocation_bytes.into())
}

/// MODE SENSE (10). SPC-4 §6.14.
pub(crate) fn mode_sense_10(unit: &mut BlockUnit, request: &Request<'_>) -> Result<Plan, Refusal> {
    let raw = ModeSense10::decode(&first(request.cdb));
    sense(unit, true, raw.flags, raw.page, raw.subpage, raw.allocation_bytes.into())
}

fn sense(
    unit: &BlockUnit,
    ten: bool,
    flags: u8,
    page: u8,
    subpage: u8,
    allocation_bytes: u32,
) -> Result<Plan, Refusal> {
    const LLBAA: u8 = 0x10;
    const DBD: u8 = 0x08;
    let page_request = SenseRequest {
        ten,
        no_block_descriptor: flags & DBD != 0,
        long_lba: ten && flags & LLBAA != 0,
        page_control: page >> 6,
        page: page & 0x3f,
        subpage,
    };
    let reply = unit.modes().sense(unit.options(), page_request)?;
    Ok(Plan::Reply(truncated(reply, allocation_bytes)))
}

/// MODE SELECT (6). SPC-4 §6.11.
pub(crate) fn mode_select_6(_: &mut BlockUnit, request: &Request<'_>) -> Result<Plan, Refusal> {
    let raw = ModeSelect6::decode(&first(request.cdb));
    select(request, select_request(false, raw.flags), raw.parameter_bytes.into())
}

/// MODE SELECT (10). SPC-4 §6.12.
pub(crate) fn mode_select_10(_: &mut BlockUnit, request: &Request<'_>) -> Result<Plan, Refusal> {
    let raw = ModeSelect10::decode(&first(request.cdb));
    select(request, select_request(true, raw.flags), raw.parameter_bytes.into())
}

/// Plans a MODE SELECT with a list of `bytes`. An empty list changes nothing.
fn select(request: &Request<'_>, parameters: SelectRequest, bytes: u32) -> Result<Plan, Refusal> {
    parameters.check()?;
    if bytes == 0 {
        return Ok(Plan::Reply(Vec::new()));
    }
    Ok(Plan::Parameters { bytes, awaiting: request.awaiting() })
}

/// MODE SELECT (6) with its parameter list.
pub(crate) fn mode_select_6_list(
    unit: &mut BlockUnit,
    request: &Request<'_>,
    list: &[u8],
) -> Result<Plan, Refusal> {
    let raw = ModeSelect6::decode(&first(request.cdb));
    select_list(unit, request.nexus, select_request(false, raw.flags), list)
}

/// MODE SELECT (10) with its parameter list.
pub(crate) fn mode_select_10_list(
    unit: &mut BlockUnit,
    request: &Request<'_>,
    list: &[u8],
) -> Result<Plan, Refusal> {
    let raw = ModeSelect10::decode(&first(request.cdb));
    select_list(unit, request.nexus, select_request(true, raw.flags), list)
}

/// Selects the mode parameters of `list`; the other nexuses are informed of a change.
fn select_list(
    unit: &mut BlockUnit,
    nexus: NexusId,
    parameters: SelectRequest,
    list: &[u8],
) -> Result<Plan, Refusal> {
    if unit.select_modes(nexus, parameters, list)? {
        unit.raise(Attention::MODE_PARAMETERS_CHANGED.0, Some(nexus));
    }
    Ok(Plan::Reply(Vec::new()))
}

fn select_request(ten: bool, flags: u8) -> SelectRequest {
    const PF: u8 = 0x10;
    const SP: u8 = 0x01;
    SelectRequest { ten, page_format: flags & PF != 0, save: flags & SP != 0 }
}
