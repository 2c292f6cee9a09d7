//! Commands that report about the unit without access to blocks: TEST UNIT READY, REQUEST SENSE,
//! INQUIRY, REPORT LUNS; the last three also for a LUN without a unit.

use super::{PrimaryPlan, Refusal};
use crate::cdb::first;
use crate::cdb::spc::{Inquiry, ReportLuns, RequestSense};
use crate::commands::Request;
use crate::inquiry;
use crate::ports::{AccessState, PortAccess};
use crate::primary::{Context, DeviceServer, DeviceType};
use crate::sense::{Sense, SenseFormat};
use alloc::vec::Vec;
use lunar_wire::Lun;

/// Truncates data-in to the allocation length.
pub(crate) fn truncated(mut reply: Vec<u8>, allocation_bytes: u32) -> Vec<u8> {
    reply.truncate(usize::try_from(allocation_bytes).unwrap_or(usize::MAX));
    reply
}

/// TEST UNIT READY: the dispatcher has made all checks. SPC-4 §6.47.
pub(crate) fn ready<U: DeviceServer>(_: &mut U, _: &Request<'_>) -> Result<U::Plan, Refusal> {
    Ok(PrimaryPlan::Reply(Vec::new()).into())
}

/// A LUN without a unit.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum AbsentUnit {
    /// There is no unit.
    Missing,
    /// The REPORT LUNS well known unit.
    WellKnown,
}

impl AbsentUnit {
    /// Returns the sense data with which a LUN without a unit refuses a command.
    pub(crate) fn refusal(self) -> Sense {
        match self {
            Self::Missing => Sense::LOGICAL_UNIT_NOT_SUPPORTED,
            Self::WellKnown => Sense::INVALID_OPERATION_CODE,
        }
    }
}

/// TEST UNIT READY, which only the well known unit processes.
pub(crate) fn ready_without_unit(
    unit: AbsentUnit,
    _: &Context<'_>,
    _: &[u8],
) -> Result<Vec<u8>, Sense> {
    match unit {
        AbsentUnit::Missing => Err(unit.refusal()),
        AbsentUnit::WellKnown => Ok(Vec::new()),
    }
}

/// REQUEST SENSE. SPC-4 §6.39: reports and clears a pending unit attention, or reports why the unit
/// is not ready, on this port or at all.
pub(crate) fn request_sense<U: DeviceServer>(
    unit: &mut U,
    request: &Request<'_>,
) -> Result<U::Plan, Refusal> {
    let sense = match unit.primary_mut().take_attention(request.nexus) {
        Some(attention) => attention.sense(),
        None => {
            let group = request.context.port.portal_group_tag;
            let port = unit.primary().port_groups().check(group, PortAccess::Active, request.cdb);
            port.err().or_else(|| unit.not_ready()).unwrap_or(Sense::NO_ADDITIONAL_SENSE)
        }
    };
    Ok(PrimaryPlan::Reply(sense_data(&sense, request.cdb)).into())
}

/// REQUEST SENSE at a LUN without a unit: returns sense data that say so.
pub(crate) fn sense_without_unit(
    unit: AbsentUnit,
    _: &Context<'_>,
    cdb: &[u8],
) -> Result<Vec<u8>, Sense> {
    let sense = match unit {
        AbsentUnit::Missing => unit.refusal(),
        AbsentUnit::WellKnown => Sense::NO_ADDITIONAL_SENSE,
    };
    Ok(sense_data(&sense, cdb))
}

/// Encodes sense as parameter data, in the format of the DESC bit.
fn sense_data(sense: &Sense, cdb: &[u8]) -> Vec<u8> {
    const DESC: u8 = 0x01;
    let raw = RequestSense::decode(&first(cdb));
    let format = if raw.flags & DESC != 0 { SenseFormat::Descriptor } else { SenseFormat::Fixed };
    truncated(sense.encode(format), raw.allocation_bytes.into())
}

/// INQUIRY. SPC-4 §6.6. On a port in the state unavailable PERIPHERAL QUALIFIER is 001b: the unit
/// exists, and is not connected (§5.15.2.4.5). An initiator that may not send SET TARGET PORT
/// GROUPS sees only implicit state changes (TPGS 01b).
pub(crate) fn inquiry<U: DeviceServer>(
    unit: &mut U,
    request: &Request<'_>,
) -> Result<U::Plan, Refusal> {
    const NOT_CONNECTED: u8 = 0x20;
    const EXPLICIT_TPGS: u8 = 0x20;
    let parameters = inquiry_request(request.cdb);
    let mut reply = inquiry::reply(unit, request.context, parameters)?;
    let state = unit.primary().port_groups().state(request.context.port.portal_group_tag);
    if let (AccessState::UNAVAILABLE, Some(peripheral)) = (state, reply.first_mut()) {
        *peripheral |= NOT_CONNECTED;
    }
    if let (false, Some(groups)) = (parameters.is_vpd, reply.get_mut(5))
        && !unit.primary().rights(request.nexus).administers_unit
    {
        *groups &= !EXPLICIT_TPGS;
    }
    Ok(PrimaryPlan::Reply(reply).into())
}

/// INQUIRY for a LUN without a unit: the standard data report this, and there are no pages.
pub(crate) fn inquiry_without_unit(
    unit: AbsentUnit,
    context: &Context<'_>,
    cdb: &[u8],
) -> Result<Vec<u8>, Sense> {
    let parameters = inquiry_request(cdb);
    if parameters.is_vpd || parameters.page != 0 {
        return Err(Sense::invalid_field_in_cdb(2, None));
    }
    let mut reply = inquiry::standard_of_no_unit(context.protocol_level);
    if let (AbsentUnit::WellKnown, Some(peripheral)) = (unit, reply.first_mut()) {
        *peripheral = DeviceType::WELL_KNOWN.0;
    }
    Ok(truncated(reply, parameters.allocation_bytes.into()))
}

fn inquiry_request(cdb: &[u8]) -> inquiry::InquiryRequest {
    const EVPD: u8 = 0x01;
    let raw = Inquiry::decode(&first(cdb));
    inquiry::InquiryRequest {
        is_vpd: raw.flags & EVPD != 0,
        page: raw.page,
        allocation_bytes: raw.allocation_bytes,
    }
}

/// REPORT LUNS. SPC-4 §6.33.
pub(crate) fn luns<U: DeviceServer>(_: &mut U, request: &Request<'_>) -> Result<U::Plan, Refusal> {
    Ok(PrimaryPlan::Reply(luns_reply(request.context, request.cdb)?).into())
}

/// REPORT LUNS for a LUN without a unit.
pub(crate) fn luns_without_unit(
    _: AbsentUnit,
    context: &Context<'_>,
    cdb: &[u8],
) -> Result<Vec<u8>, Sense> {
    luns_reply(context, cdb)
}

/// Returns the answer to REPORT LUNS, which is the same for every unit.
fn luns_reply(context: &Context<'_>, cdb: &[u8]) -> Result<Vec<u8>, Sense> {
    const HEADER_BYTES: usize = 8;
    const ALLOCATION_BYTES_MIN: u32 = 16;
    let raw = ReportLuns::decode(&first(cdb));
    if raw.allocation_bytes < ALLOCATION_BYTES_MIN {
        return Err(Sense::invalid_field_in_cdb(6, None));
    }
    let (units, well_known): (&[Lun], &[Lun]) = match raw.select_report {
        // 11h: administrative units, and units outside a conglomerate, which all units here are.
        0x00 | 0x11 => (context.luns, &[]),
        0x01 => (&[], &[Lun::REPORT_LUNS]),
        0x02 => (context.luns, &[Lun::REPORT_LUNS]),
        // Administrative units only; 12h, the subsidiaries of an administrative unit, requires one.
        0x10 => (&[], &[]),
        _ => return Err(Sense::invalid_field_in_cdb(2, None)),
    };
    let luns = units.len() + well_known.len();
    let list_bytes = u32::try_from(luns * size_of::<Lun>()).unwrap_or(u32::MAX);
    let mut reply = alloc::vec![0; HEADER_BYTES];
    reply[..4].copy_from_slice(&list_bytes.to_be_bytes());
    // The cost of a short answer must not depend on the length of the list.
    let wanted = (raw.allocation_bytes as usize).div_ceil(size_of::<Lun>());
    for lun in units.iter().chain(well_known).take(wanted) {
        reply.extend_from_slice(&lun.0);
    }
    Ok(truncated(reply, raw.allocation_bytes))
}
