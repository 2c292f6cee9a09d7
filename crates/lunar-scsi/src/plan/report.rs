//! REPORT SUPPORTED OPERATION CODES and … TASK MANAGEMENT FUNCTIONS, built from the command table.

use super::inform::truncated;
use super::{PrimaryPlan, Refusal};
use crate::cdb::first;
use crate::cdb::spc::{ReportSupportedOperationCodes, ReportSupportedTaskManagement};
use crate::commands::{CommandRow, Request};
use crate::primary::DeviceServer;
use crate::rights::Administration;
use crate::sense::Sense;
use alloc::vec::Vec;

lunar_wire::wire_struct! {
    /// A command in the list of all. SPC-4 §6.35.2.
    pub struct CommandDescriptor [8] {
        0 => opcode: u8,
        2 => service_action: u16,
        /// CTDP 02h, SERVACTV 01h.
        5 => flags: u8,
        6 => cdb_bytes: u16,
    }
}

lunar_wire::wire_struct! {
    /// Timeouts of a command. SPC-4 §6.35.4.
    pub struct CommandTimeouts [12] {
        0 => length: u16,
        3 => command_specific: u8,
        4 => nominal_seconds: u32,
        8 => recommended_seconds: u32,
    }
}

/// REPORT SUPPORTED OPERATION CODES, for the table of the unit's type. SPC-4 §6.35. Commands that
/// the initiator may never send are reported as not supported.
pub(crate) fn operation_codes<U: DeviceServer>(
    unit: &mut U,
    request: &Request<'_>,
) -> Result<U::Plan, Refusal> {
    const RCTD: u8 = 0x80;
    let raw = ReportSupportedOperationCodes::decode(&first(request.cdb));
    let timeouts = raw.options & RCTD != 0;
    let administers = unit.primary().rights(request.nexus).administers_unit;
    let features = unit.primary().identity().features;
    let is_offered = |command: &&CommandRow| {
        let permitted = administers || command.administration != Administration::Always;
        permitted && command.is_offered(features)
    };
    let rows = U::commands().commands().iter().map(|command| &command.row);
    let offered: Vec<&CommandRow> = rows.filter(is_offered).collect();
    let mut same = offered.iter().filter(|command| command.opcode == raw.requested_opcode);
    let with_actions = same.clone().any(|command| command.service_action.is_some());
    let exact = same.find(|command| match command.service_action {
        Some(action) => action == raw.requested_service_action,
        None => true,
    });
    let reply = match raw.options & 0x07 {
        0 => all(&offered, timeouts),
        // The operation code alone: it must not have service actions.
        1 if with_actions => return Err(Sense::invalid_field_in_cdb(3, None).into()),
        1 => one(exact.copied(), timeouts),
        // With a service action: the operation code must have service actions.
        2 if !with_actions && exact.is_some() => {
            return Err(Sense::invalid_field_in_cdb(3, None).into());
        }
        2 => one(exact.copied(), timeouts),
        // Either form; without service actions the requested one must be 0.
        3 => {
            let named = with_actions || raw.requested_service_action == 0;
            one(exact.copied().filter(|_| named), timeouts)
        }
        _ => return Err(Sense::invalid_field_in_cdb(2, Some(2)).into()),
    };
    Ok(PrimaryPlan::Reply(truncated(reply, raw.allocation_bytes)).into())
}

fn all(commands: &[&CommandRow], timeouts: bool) -> Vec<u8> {
    const CTDP: u8 = 0x02;
    const SERVACTV: u8 = 0x01;
    let mut reply = alloc::vec![0; 4];
    for command in commands {
        let mut flags = if timeouts { CTDP } else { 0 };
        flags |= if command.service_action.is_some() { SERVACTV } else { 0 };
        let descriptor = CommandDescriptor {
            opcode: command.opcode,
            service_action: command.service_action.unwrap_or(0),
            flags,
            cdb_bytes: command.cdb_bytes() as u16,
        };
        reply.extend_from_slice(&descriptor.encode());
        if timeouts {
            reply.extend_from_slice(&timeouts_of(command).encode());
        }
    }
    let bytes = u32::try_from(reply.len() - 4).unwrap_or(u32::MAX);
    reply[..4].copy_from_slice(&bytes.to_be_bytes());
    reply
}

/// Builds the data for one command. SPC-4 §6.35.3.
fn one(command: Option<&CommandRow>, timeouts: bool) -> Vec<u8> {
    const CTDP: u8 = 0x80;
    const NOT_SUPPORTED: u8 = 0x01;
    const SUPPORTED_PER_STANDARD: u8 = 0x03;
    let Some(command) = command else { return alloc::vec![0, NOT_SUPPORTED, 0, 0] };
    let ctdp = if timeouts { CTDP } else { 0 };
    let [high, low] = (command.cdb_bytes() as u16).to_be_bytes();
    let mut reply = alloc::vec![0, SUPPORTED_PER_STANDARD | ctdp, high, low];
    reply.extend_from_slice(&command.usage_bitmap());
    if timeouts {
        reply.extend_from_slice(&timeouts_of(command).encode());
    }
    reply
}

/// Returns the timeouts of a command. The nominal time depends on the device and is not reported.
fn timeouts_of(command: &CommandRow) -> CommandTimeouts {
    CommandTimeouts {
        length: CommandTimeouts::LEN as u16 - 2,
        command_specific: 0,
        nominal_seconds: 0,
        recommended_seconds: command.timeout_seconds,
    }
}

/// REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS. SPC-4 §6.36: the functions of RFC 7143 §11.5.1, and
/// in a session of protocol level 2 those of RFC 7144 §6.3; TARGET RESET for administrators of the
/// target.
pub(crate) fn task_management<U: DeviceServer>(
    unit: &mut U,
    request: &Request<'_>,
) -> Result<U::Plan, Refusal> {
    const REPD: u8 = 0x80;
    const ABORT_TASK: u8 = 0x80;
    const ABORT_TASK_SET: u8 = 0x40;
    const CLEAR_TASK_SET: u8 = 0x10;
    const LOGICAL_UNIT_RESET: u8 = 0x08;
    const QUERY_TASK: u8 = 0x04;
    const TARGET_RESET: u8 = 0x02;
    // Byte 1.
    const QUERY_ASYNCHRONOUS_EVENT: u8 = 0x04;
    const QUERY_TASK_SET: u8 = 0x02;
    const I_T_NEXUS_RESET: u8 = 0x01;
    const ALLOCATION_BYTES_MIN: u32 = 4;
    let raw = ReportSupportedTaskManagement::decode(&first(request.cdb));
    if raw.allocation_bytes < ALLOCATION_BYTES_MIN {
        return Err(Sense::invalid_field_in_cdb(6, None).into());
    }
    let mut functions = [ABORT_TASK | ABORT_TASK_SET | CLEAR_TASK_SET | LOGICAL_UNIT_RESET, 0];
    if unit.primary().rights(request.nexus).administers_target {
        functions[0] |= TARGET_RESET;
    }
    if request.context.protocol_level >= 2 {
        functions[0] |= QUERY_TASK;
        functions[1] = QUERY_ASYNCHRONOUS_EVENT | QUERY_TASK_SET | I_T_NEXUS_RESET;
    }
    // Extended data: its additional length, and unspecified timeouts.
    let extended = raw.options & REPD != 0;
    let [first, second] = functions;
    let mut reply = alloc::vec![first, second, 0, if extended { 0x0c } else { 0 }];
    if extended {
        reply.extend_from_slice(&[0; 12]);
    }
    Ok(PrimaryPlan::Reply(truncated(reply, raw.allocation_bytes)).into())
}
