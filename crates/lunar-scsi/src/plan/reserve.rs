//! RESERVE and RELEASE (6), PERSISTENT RESERVE IN and OUT.

use super::inform::truncated;
use super::{PrimaryPlan, Refusal};
use crate::cdb::first;
use crate::cdb::spc::{PersistentReserveIn, PersistentReserveOut, Reserve6};
use crate::commands::Request;
use crate::primary::DeviceServer;
use crate::reservations::OutRequest;
use crate::sense::Sense;
use alloc::vec::Vec;

/// RESERVE (6). SPC-2 §7.21. BUSY while changes of the persistent reservations are being saved:
/// GOOD would depend on these changes, which may still be reverted.
pub(crate) fn reserve_6<U: DeviceServer>(
    unit: &mut U,
    request: &Request<'_>,
) -> Result<U::Plan, Refusal> {
    check_whole_unit(request)?;
    let unit = unit.primary_mut();
    if unit.has_unsaved_changes() {
        return Err(Refusal::Busy);
    }
    let (reservations, ports) = unit.reservations_mut(request.nexus)?;
    reservations.reserve(ports)?;
    Ok(PrimaryPlan::Reply(Vec::new()).into())
}

/// RELEASE (6). SPC-2 §7.16.
pub(crate) fn release_6<U: DeviceServer>(
    unit: &mut U,
    request: &Request<'_>,
) -> Result<U::Plan, Refusal> {
    check_whole_unit(request)?;
    let (reservations, ports) = unit.primary_mut().reservations_mut(request.nexus)?;
    reservations.release(ports)?;
    Ok(PrimaryPlan::Reply(Vec::new()).into())
}

/// Checks that the command is for the whole unit: reservations of extents and for third parties are
/// obsolete and not supported.
fn check_whole_unit(request: &Request<'_>) -> Result<(), Sense> {
    const THIRD_PARTY: u8 = 0x10;
    const EXTENT: u8 = 0x01;
    let flags = Reserve6::decode(&first(request.cdb)).flags;
    for (flag, bit) in [(THIRD_PARTY, 4), (EXTENT, 0)] {
        if flags & flag != 0 {
            return Err(Sense::invalid_field_in_cdb(1, Some(bit)));
        }
    }
    Ok(())
}

/// PERSISTENT RESERVE IN. SPC-4 §6.15.
pub(crate) fn persistent_in<U: DeviceServer>(
    unit: &mut U,
    request: &Request<'_>,
) -> Result<U::Plan, Refusal> {
    let raw = PersistentReserveIn::decode(&first(request.cdb));
    let wanted_bytes = raw.allocation_bytes.into();
    let reply = unit.primary().reservations().report(raw.service_action & 0x1f, wanted_bytes)?;
    Ok(PrimaryPlan::Reply(truncated(reply, raw.allocation_bytes.into())).into())
}

/// PERSISTENT RESERVE OUT. SPC-4 §6.16.
pub(crate) fn persistent_out<U: DeviceServer>(
    _: &mut U,
    request: &Request<'_>,
) -> Result<U::Plan, Refusal> {
    let out = out_request(request.cdb);
    out.check()?;
    Ok(PrimaryPlan::Parameters { bytes: out.parameter_bytes, awaiting: request.awaiting() }.into())
}

/// PERSISTENT RESERVE OUT with its parameter list.
pub(crate) fn persistent_out_list<U: DeviceServer>(
    unit: &mut U,
    request: &Request<'_>,
    list: &[u8],
) -> Result<U::Plan, Refusal> {
    let unit = unit.primary_mut();
    let (context, registrations_allowed) = (request.context, unit.registrations_allowed);
    let (reservations, ports) = unit.reservations_mut(request.nexus)?;
    let before = reservations.clone();
    let outcome = reservations.out(ports, context.ports, out_request(request.cdb), list)?;
    if reservations.registered() > before.registered().saturating_add(registrations_allowed) {
        *reservations = before;
        return Err(Sense::INSUFFICIENT_REGISTRATION_RESOURCES.into());
    }
    let save = unit.unsaved.add(before, outcome.save);
    unit.establish_attentions(outcome.attentions, context.logins);
    let nexuses = unit.find_all(&outcome.abort, context.logins);
    let plan = match (nexuses.is_empty(), save) {
        (false, save) => PrimaryPlan::AbortTasksOf { nexuses, save },
        (true, true) => PrimaryPlan::SaveState,
        (true, false) => PrimaryPlan::Reply(Vec::new()),
    };
    Ok(plan.into())
}

fn out_request(cdb: &[u8]) -> OutRequest {
    let raw = PersistentReserveOut::decode(&first(cdb));
    OutRequest {
        service_action: raw.service_action & 0x1f,
        scope_and_type: raw.scope_and_type,
        parameter_bytes: raw.parameter_bytes,
    }
}
