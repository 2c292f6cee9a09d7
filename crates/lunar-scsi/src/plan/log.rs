//! LOG SENSE.

use super::inform::truncated;
use super::{Plan, Refusal};
use crate::cdb::first;
use crate::cdb::spc::LogSense;
use crate::commands::Request;
use crate::log::{self, LogRequest, LogSource};
use crate::sense::Sense;
use crate::unit::BlockUnit;

/// LOG SENSE. SPC-4 §6.8. SP is refused because nothing can be saved; obsolete PPC is refused, too.
pub(crate) fn log_sense(unit: &mut BlockUnit, request: &Request<'_>) -> Result<Plan, Refusal> {
    const PPC: u8 = 0x02;
    const SP: u8 = 0x01;
    let raw = LogSense::decode(&first(request.cdb));
    for (flag, bit) in [(PPC, 1), (SP, 0)] {
        if raw.flags & flag != 0 {
            return Err(Sense::invalid_field_in_cdb(1, Some(bit)).into());
        }
    }
    let parameters = LogRequest {
        page_control: raw.page >> 6,
        page: raw.page & 0x3f,
        subpage: raw.subpage,
        parameter_pointer: raw.parameter_pointer,
    };
    let source = LogSource {
        options: unit.options(),
        ports: request.context.ports,
        resources: unit.resources(),
    };
    Ok(Plan::Reply(truncated(log::page(&source, parameters)?, raw.allocation_bytes.into())))
}
