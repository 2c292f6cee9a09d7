//! MODE SENSE and MODE SELECT (6, 10).

use super::inform::truncated;
use super::{NexusId, PrimaryPlan, Refusal};
use crate::attention::Attention;
use crate::cdb::first;
use crate::cdb::spc::{ModeSelect6, ModeSelect10, ModeSense6, ModeSense10};
use crate::commands::Request;
use crate::mode::{ModeParameters, SelectRequest, SenseRequest};
use crate::primary::DeviceServer;
use alloc::vec::Vec;

/// MODE SENSE (6). SPC-4 §6.13.
pub(crate) fn mode_sense_6<U: DeviceServer>(
    unit: &mut U,
    request: &Request<'_>,
) -> Result<U::Plan, Refusal> {
    let raw = ModeSense6::decode(&first(request.cdb));
    sense(unit, false, raw.flags, raw.page, raw.subpage, raw.allocation_bytes.into())
}

/// MODE SENSE (10). SPC-4 §6.14.
pub(crate) fn mode_sense_10<U: DeviceServer>(
    unit: &mut U,
    request: &Request<'_>,
) -> Result<U::Plan, Refusal> {
    let raw = ModeSense10::decode(&first(request.cdb));
    sense(unit, true, raw.flags, raw.page, raw.subpage, raw.allocation_bytes.into())
}

fn sense<U: DeviceServer>(
    unit: &U,
    is_ten_byte: bool,
    flags: u8,
    page: u8,
    subpage: u8,
    allocation_bytes: u32,
) -> Result<U::Plan, Refusal> {
    const LLBAA: u8 = 0x10;
    const DBD: u8 = 0x08;
    let page_request = SenseRequest {
        is_ten_byte,
        no_block_descriptor: flags & DBD != 0,
        long_lba: is_ten_byte && flags & LLBAA != 0,
        page_control: page >> 6,
        page: page & 0x3f,
        subpage,
    };
    let (modes, options) = unit.modes();
    let reply = modes.sense(options, page_request)?;
    Ok(PrimaryPlan::Reply(truncated(reply, allocation_bytes)).into())
}

/// MODE SELECT (6). SPC-4 §6.11.
pub(crate) fn mode_select_6<U: DeviceServer>(
    _: &mut U,
    request: &Request<'_>,
) -> Result<U::Plan, Refusal> {
    let raw = ModeSelect6::decode(&first(request.cdb));
    let bytes = raw.parameter_bytes.into();
    Ok(select(request, select_request(false, raw.flags), bytes)?.into())
}

/// MODE SELECT (10). SPC-4 §6.12.
pub(crate) fn mode_select_10<U: DeviceServer>(
    _: &mut U,
    request: &Request<'_>,
) -> Result<U::Plan, Refusal> {
    let raw = ModeSelect10::decode(&first(request.cdb));
    let bytes = raw.parameter_bytes.into();
    Ok(select(request, select_request(true, raw.flags), bytes)?.into())
}

/// Plans a MODE SELECT with a list of `bytes`. An empty list changes nothing.
fn select(
    request: &Request<'_>,
    parameters: SelectRequest,
    bytes: u32,
) -> Result<PrimaryPlan, Refusal> {
    parameters.check()?;
    if bytes == 0 {
        return Ok(PrimaryPlan::Reply(Vec::new()));
    }
    Ok(PrimaryPlan::Parameters { bytes, awaiting: request.awaiting() })
}

/// MODE SELECT (6) with its parameter list.
pub(crate) fn mode_select_6_list<U: DeviceServer>(
    unit: &mut U,
    request: &Request<'_>,
    list: &[u8],
) -> Result<U::Plan, Refusal> {
    let raw = ModeSelect6::decode(&first(request.cdb));
    select_list(unit, request.nexus, select_request(false, raw.flags), list)
}

/// MODE SELECT (10) with its parameter list.
pub(crate) fn mode_select_10_list<U: DeviceServer>(
    unit: &mut U,
    request: &Request<'_>,
    list: &[u8],
) -> Result<U::Plan, Refusal> {
    let raw = ModeSelect10::decode(&first(request.cdb));
    select_list(unit, request.nexus, select_request(true, raw.flags), list)
}

/// Selects the mode parameters of `list`; the other nexuses are informed of a change. Every change
/// affects all users of the unit, so it requires the right to administer the unit.
fn select_list<U: DeviceServer>(
    unit: &mut U,
    nexus: NexusId,
    parameters: SelectRequest,
    list: &[u8],
) -> Result<U::Plan, Refusal> {
    let (modes, options) = unit.modes();
    let mut selected = *modes;
    if selected.select(options, parameters, list)? {
        unit.primary().rights(nexus).check_administers()?;
        unit.set_modes(selected);
        unit.primary_mut().raise(Attention::MODE_PARAMETERS_CHANGED.0, Some(nexus));
    }
    Ok(PrimaryPlan::Reply(Vec::new()).into())
}

fn select_request(is_ten_byte: bool, flags: u8) -> SelectRequest {
    const PF: u8 = 0x10;
    const SP: u8 = 0x01;
    SelectRequest { is_ten_byte, page_format: flags & PF != 0, save: flags & SP != 0 }
}
