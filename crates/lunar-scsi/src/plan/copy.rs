//! EXTENDED COPY (LID1), RECEIVE COPY RESULTS.

use super::inform::truncated;
use super::{Plan, Refusal};
use crate::cdb::first;
use crate::cdb::spc::{ExtendedCopy, ReceiveCopyResults};
use crate::commands::Request;
use crate::copy::{CopyList, PARAMETER_LIST_BYTES_MAX};
use crate::sense::Sense;
use crate::unit::BlockUnit;
use alloc::vec::Vec;

/// EXTENDED COPY (LID1). SPC-4 §6.5: an empty list copies nothing, and is no error.
pub(crate) fn extended_copy(_: &mut BlockUnit, request: &Request<'_>) -> Result<Plan, Refusal> {
    let raw = ExtendedCopy::decode(&first(request.cdb));
    match raw.parameter_bytes {
        0 => Ok(Plan::Reply(Vec::new())),
        bytes if bytes > PARAMETER_LIST_BYTES_MAX => Err(Sense::PARAMETER_LIST_LENGTH_ERROR.into()),
        bytes => Ok(Plan::Parameters { bytes, awaiting: request.awaiting() }),
    }
}

/// EXTENDED COPY with its parameter list.
pub(crate) fn extended_copy_list(
    _: &mut BlockUnit,
    _: &Request<'_>,
    list: &[u8],
) -> Result<Plan, Refusal> {
    Ok(Plan::Copy { list: CopyList::decode(list)? })
}

/// RECEIVE COPY RESULTS: COPY STATUS. SPC-3 §6.17.2.
pub(crate) fn status(unit: &mut BlockUnit, request: &Request<'_>) -> Result<Plan, Refusal> {
    results(request, |list_identifier| unit.copies().status(request.nexus, list_identifier))
}

/// RECEIVE COPY RESULTS: OPERATING PARAMETERS. SPC-3 §6.17.4.
pub(crate) fn operating_parameters(
    _: &mut BlockUnit,
    request: &Request<'_>,
) -> Result<Plan, Refusal> {
    results(request, |_| Some(crate::copy::operating_parameters()))
}

/// RECEIVE COPY RESULTS: FAILED SEGMENT DETAILS. SPC-3 §6.17.5.
pub(crate) fn failure(unit: &mut BlockUnit, request: &Request<'_>) -> Result<Plan, Refusal> {
    results(request, |list_identifier| unit.copies().failure(request.nexus, list_identifier))
}

/// Builds the plan from the data that `data_of` returns for a list identifier; `None` if the
/// identifier is not known.
fn results(
    request: &Request<'_>,
    data_of: impl FnOnce(u8) -> Option<Vec<u8>>,
) -> Result<Plan, Refusal> {
    let raw = ReceiveCopyResults::decode(&first(request.cdb));
    // "If the list identifier … is not known": SPC-3 §6.17.2, §6.17.5.
    let reply = data_of(raw.list_identifier).ok_or(Sense::invalid_field_in_cdb(2, None))?;
    Ok(Plan::Reply(truncated(reply, raw.allocation_bytes)))
}
