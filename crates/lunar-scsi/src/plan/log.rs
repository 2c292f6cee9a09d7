//! LOG SENSE.

use super::inform::truncated;
use super::{PrimaryPlan, Refusal};
use crate::cdb::first;
use crate::cdb::spc::LogSense;
use crate::commands::Request;
use crate::log::{self, LogRequest};
use crate::primary::DeviceServer;
use crate::sense::Sense;

/// LOG SENSE. SPC-4 §6.8. SP is refused because nothing can be saved; obsolete PPC is refused, too.
pub(crate) fn log_sense<U: DeviceServer>(
    unit: &mut U,
    request: &Request<'_>,
) -> Result<U::Plan, Refusal> {
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
    let page = log::page(U::LOG_PAGES, &unit.log_source(request.context), parameters)?;
    Ok(PrimaryPlan::Reply(truncated(page, raw.allocation_bytes.into())).into())
}
