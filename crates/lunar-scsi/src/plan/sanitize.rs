//! SANITIZE: overwrite, block erase, exit failure mode. There is no cryptographic erase because
//! there is no key.

use super::{NexusId, Plan, Refusal};
use crate::cdb::first;
use crate::cdb::sbc::{OverwriteHeader, Sanitize};
use crate::commands::Request;
use crate::long_operation::{LongOperation, OperationKind, OperationWork};
use crate::sense::Sense;
use crate::unit::BlockUnit;
use alloc::vec::Vec;

const IMMED: u8 = 0x80;
const ALLOW_UNRESTRICTED_EXIT: u8 = 0x20;

/// SANITIZE OVERWRITE. SBC-3 §5.24: its list has at least 5 bytes, and at most 4 plus a block.
pub(crate) fn overwrite(unit: &mut BlockUnit, request: &Request<'_>) -> Result<Plan, Refusal> {
    let raw = checked(unit, request.cdb)?;
    let longest = unit.options().block_bytes as usize + OverwriteHeader::LEN;
    let bytes = usize::from(raw.parameter_bytes);
    if bytes <= OverwriteHeader::LEN || bytes > longest {
        return Err(Sense::invalid_field_in_cdb(7, None).into());
    }
    let bytes = raw.parameter_bytes.into();
    Ok(Plan::Parameters { bytes, awaiting: request.awaiting() })
}

/// SANITIZE OVERWRITE with its list.
pub(crate) fn overwrite_list(
    unit: &mut BlockUnit,
    request: &Request<'_>,
    list: &[u8],
) -> Result<Plan, Refusal> {
    const INVERT: u8 = 0x80;
    const TEST: u8 = 0x60;
    const COUNT: u8 = 0x1f;
    let raw = checked(unit, request.cdb)?;
    let Some((header, pattern)) = list.split_first_chunk() else {
        return Err(Sense::PARAMETER_LIST_LENGTH_ERROR.into());
    };
    let header = OverwriteHeader::decode(header);
    if header.method & TEST != 0 {
        return Err(Sense::invalid_field_in_parameter_list(0, Some(6)).into());
    }
    if header.method & COUNT == 0 {
        return Err(Sense::invalid_field_in_parameter_list(0, Some(4)).into());
    }
    let bytes = usize::from(header.pattern_bytes);
    if bytes == 0 || bytes > unit.options().block_bytes as usize || bytes != pattern.len() {
        return Err(Sense::invalid_field_in_parameter_list(2, None).into());
    }
    let work = OperationWork::Overwrite {
        pattern: pattern.to_vec(),
        passes: header.method & COUNT,
        invert: header.method & INVERT != 0,
    };
    Ok(begin(request.nexus, raw, work))
}

/// SANITIZE BLOCK ERASE. SBC-3 §5.24: afterwards every block is deallocated.
pub(crate) fn block_erase(unit: &mut BlockUnit, request: &Request<'_>) -> Result<Plan, Refusal> {
    let raw = checked(unit, request.cdb)?;
    check_no_list(raw)?;
    Ok(begin(request.nexus, raw, OperationWork::Deallocate))
}

/// SANITIZE EXIT FAILURE MODE. SBC-3 §5.24: only after a failure that AUSE permits to exit. Without
/// a failure nothing is done.
pub(crate) fn exit_failure_mode(
    unit: &mut BlockUnit,
    request: &Request<'_>,
) -> Result<Plan, Refusal> {
    let raw = fields(request.cdb)?;
    check_no_list(raw)?;
    Ok(match unit.operations().exit()? {
        None => Plan::Reply(Vec::new()),
        Some(_) => Plan::ExitFailureMode,
    })
}

fn begin(by: NexusId, raw: Sanitize, work: OperationWork) -> Plan {
    let kind = OperationKind::SANITIZE;
    let unrestricted_exit = raw.flags & ALLOW_UNRESTRICTED_EXIT != 0;
    let operation = LongOperation { kind, unrestricted_exit, work };
    Plan::LongOperation { operation, by, immediate: raw.flags & IMMED != 0 }
}

/// Decodes the common fields of all service actions. ZNR is for zoned units; reserved fields must
/// be 0, because this command must not be misunderstood.
fn fields(cdb: &[u8]) -> Result<Sanitize, Sense> {
    const ZONED_NO_RESET: u8 = 0x40;
    let raw = Sanitize::decode(&first(cdb));
    if raw.flags & ZONED_NO_RESET != 0 {
        return Err(Sense::invalid_field_in_cdb(1, Some(6)));
    }
    match raw.reserved.iter().position(|byte| *byte != 0) {
        Some(at) => Err(Sense::invalid_field_in_cdb(2 + at as u16, None)),
        None => Ok(raw),
    }
}

/// Decodes the fields of a service action that starts an operation.
fn checked(unit: &BlockUnit, cdb: &[u8]) -> Result<Sanitize, Sense> {
    let raw = fields(cdb)?;
    unit.operations().check_exit(raw.flags & ALLOW_UNRESTRICTED_EXIT != 0)?;
    Ok(raw)
}

fn check_no_list(raw: Sanitize) -> Result<(), Sense> {
    if raw.parameter_bytes != 0 {
        return Err(Sense::invalid_field_in_cdb(7, None));
    }
    Ok(())
}
