//! EXTENDED COPY (LID1), RECEIVE COPY RESULTS.

use super::inform::truncated;
use super::{AwaitingParameterList, Plan, Refusal};
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
        bytes => Ok(Plan::Parameters {
            bytes,
            awaiting: AwaitingParameterList { cdb: request.cdb.to_vec() },
        }),
    }
}

/// EXTENDED COPY with its parameter list.
pub(crate) fn extended_copy_list(list: &[u8]) -> Result<Plan, Refusal> {
    Ok(Plan::Copy { list: CopyList::decode(list)? })
}

/// RECEIVE COPY RESULTS: COPY STATUS, OPERATING PARAMETERS, FAILED SEGMENT DETAILS. SPC-3 §6.17.
pub(crate) fn receive_results(
    unit: &mut BlockUnit,
    request: &Request<'_>,
) -> Result<Plan, Refusal> {
    const COPY_STATUS: u8 = 0x00;
    const FAILED_SEGMENT_DETAILS: u8 = 0x04;
    let raw = ReceiveCopyResults::decode(&first(request.cdb));
    let results = unit.copies();
    let reply = match raw.service_action & 0x1f {
        COPY_STATUS => results.status(request.nexus, raw.list_identifier),
        FAILED_SEGMENT_DETAILS => results.failure(request.nexus, raw.list_identifier),
        _ => Some(crate::copy::operating_parameters()),
    };
    // "If the list identifier … is not known": SPC-3 §6.17.2, §6.17.5.
    let reply = reply.ok_or(Sense::invalid_field_in_cdb(2, None))?;
    Ok(Plan::Reply(truncated(reply, raw.allocation_bytes)))
}
