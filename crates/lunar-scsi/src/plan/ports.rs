//! REPORT TARGET PORT GROUPS and SET TARGET PORT GROUPS.

use super::inform::truncated;
use super::{PrimaryPlan, Refusal};
use crate::attention::Attention;
use crate::cdb::first;
use crate::cdb::spc::{ReportTargetPortGroups, SetTargetPortGroups};
use crate::commands::Request;
use crate::ports::{AccessState, PortGroups, StatusCode};
use crate::primary::{DeviceServer, TargetPort};
use crate::sense::Sense;
use alloc::vec::Vec;

lunar_wire::wire_struct! {
    /// One group with its one port. SPC-4 §6.37.
    pub struct GroupDescriptor [12] {
        /// PREF, always 0 because no group is preferred; and the state.
        0  => state: AccessState,
        /// T_SUP, O_SUP, LBD_SUP, U_SUP, S_SUP, AN_SUP, AO_SUP.
        1  => supported: u8,
        2  => group: u16,
        5  => status_code: StatusCode,
        7  => port_count: u8,
        10 => relative_id: u16,
    }
}

/// U_SUP, S_SUP, AN_SUP, AO_SUP.
const SUPPORTED: u8 = 0x08 | 0x04 | 0x02 | 0x01;
const HEADER_BYTES: usize = 4;
const DESCRIPTOR_BYTES: usize = 4;

/// REPORT TARGET PORT GROUPS. SPC-4 §6.37: the extended header has an implicit transition time,
/// which is 0 (not specified): changes take no time here.
pub(crate) fn report_groups<U: DeviceServer>(
    unit: &mut U,
    request: &Request<'_>,
) -> Result<U::Plan, Refusal> {
    const EXTENDED: u8 = 0x10;
    let raw = ReportTargetPortGroups::decode(&first(request.cdb));
    let mut reply = match raw.format >> 5 {
        0 => alloc::vec![0; 4],
        1 => alloc::vec![0, 0, 0, 0, EXTENDED, 0, 0, 0],
        _ => return Err(Sense::invalid_field_in_cdb(1, Some(7)).into()),
    };
    for port in request.context.ports {
        reply.extend_from_slice(&descriptor(unit.primary().port_groups(), port).encode());
    }
    let bytes = u32::try_from(reply.len() - 4).unwrap_or(u32::MAX);
    reply[..4].copy_from_slice(&bytes.to_be_bytes());
    Ok(PrimaryPlan::Reply(truncated(reply, raw.allocation_bytes)).into())
}

fn descriptor(groups: &PortGroups, port: &TargetPort) -> GroupDescriptor {
    GroupDescriptor {
        state: groups.state(port.portal_group_tag),
        supported: SUPPORTED,
        group: port.portal_group_tag,
        status_code: groups.status_code(port.portal_group_tag),
        port_count: 1,
        relative_id: port.relative_id,
    }
}

/// SET TARGET PORT GROUPS. SPC-4 §6.45: an empty list changes nothing; one with more groups than
/// exist is refused by its length.
pub(crate) fn set_groups<U: DeviceServer>(
    _: &mut U,
    request: &Request<'_>,
) -> Result<U::Plan, Refusal> {
    let bytes = SetTargetPortGroups::decode(&first(request.cdb)).parameter_bytes;
    if bytes == 0 {
        return Ok(PrimaryPlan::Reply(Vec::new()).into());
    }
    let list_bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
    let Some(descriptors_bytes) = list_bytes.checked_sub(HEADER_BYTES) else {
        return Err(Sense::PARAMETER_LIST_LENGTH_ERROR.into());
    };
    if descriptors_bytes > request.context.ports.len() * DESCRIPTOR_BYTES {
        return Err(Sense::invalid_field_in_cdb(6, None).into());
    }
    if !descriptors_bytes.is_multiple_of(DESCRIPTOR_BYTES) {
        return Err(Sense::PARAMETER_LIST_LENGTH_ERROR.into());
    }
    Ok(PrimaryPlan::Parameters { bytes, awaiting: request.awaiting() }.into())
}

/// SET TARGET PORT GROUPS with its parameter list, which is applied completely or not at all. Every
/// other nexus on every port is informed of a change (SPC-4 §5.15.2.8).
pub(crate) fn set_groups_list<U: DeviceServer>(
    unit: &mut U,
    request: &Request<'_>,
    list: &[u8],
) -> Result<U::Plan, Refusal> {
    let context = request.context;
    let unit = unit.primary_mut();
    let groups = changed(unit.port_groups(), context.ports, list)?;
    if groups != *unit.port_groups() {
        let differs = context.ports.iter().any(|port| {
            let group = port.portal_group_tag;
            groups.state(group) != unit.port_groups().state(group)
        });
        unit.set_port_groups(groups);
        if differs {
            unit.raise(Attention::ASYMMETRIC_ACCESS_STATE_CHANGED.0, Some(request.nexus));
        }
    }
    Ok(PrimaryPlan::Reply(Vec::new()).into())
}

/// Returns the states after the list. A list that names a group twice, or an unknown group, or
/// leaves no group active, is not a valid configuration: decision 041.
fn changed(groups: &PortGroups, ports: &[TargetPort], list: &[u8]) -> Result<PortGroups, Sense> {
    let mut changed = groups.clone();
    let mut named = Vec::new();
    let descriptors = list.get(HEADER_BYTES..).ok_or(Sense::PARAMETER_LIST_LENGTH_ERROR)?;
    for (index, descriptor) in descriptors.chunks(DESCRIPTOR_BYTES).enumerate() {
        // A list has at most `PORTS_MAX` descriptors.
        let at = (HEADER_BYTES + index * DESCRIPTOR_BYTES) as u16;
        let [state, _, high, low] = *descriptor else {
            return Err(Sense::PARAMETER_LIST_LENGTH_ERROR);
        };
        let (state, group) = (AccessState(state & 0x0f), u16::from_be_bytes([high, low]));
        if state.name().is_none() {
            return Err(Sense::invalid_field_in_parameter_list(at, Some(3)));
        }
        let known = ports.iter().any(|port| port.portal_group_tag == group);
        if !known || named.contains(&group) {
            return Err(Sense::invalid_field_in_parameter_list(at + 2, None));
        }
        named.push(group);
        changed.set(group, state);
    }
    if !named.is_empty() && !changed.any_active(ports) {
        return Err(Sense::invalid_field_in_parameter_list(HEADER_BYTES as u16, Some(3)));
    }
    Ok(changed)
}
