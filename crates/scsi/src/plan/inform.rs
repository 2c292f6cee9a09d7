//! Commands that tell about the unit and touch no block.

use super::{Plan, Refusal};
use crate::cdb::first;
use crate::cdb::spc::{Inquiry, ReportLuns};
use crate::commands::Request;
use crate::fault::invalid_field;
use crate::sense::Sense;
use crate::unit::{BlockUnit, Context};
use alloc::vec::Vec;
use wire::Lun;

/// Cuts data-in to the allocation length.
pub(crate) fn cut(mut reply: Vec<u8>, allocation_bytes: u32) -> Vec<u8> {
    reply.truncate(usize::try_from(allocation_bytes).unwrap_or(usize::MAX));
    reply
}

/// TEST UNIT READY: the dispatcher has judged all there is. SPC-4 §6.47.
pub(crate) fn ready(_: &mut BlockUnit, _: &Request<'_>) -> Result<Plan, Refusal> {
    Ok(Plan::Reply(Vec::new()))
}

/// INQUIRY. SPC-4 §6.6.
pub(crate) fn inquiry(unit: &mut BlockUnit, request: &Request<'_>) -> Result<Plan, Refusal> {
    let raw = Inquiry::decode(&first(request.cdb));
    if raw.flags & 1 != 0 || raw.page != 0 {
        return Err(invalid_field(2, Some(7)).into());
    }
    let options = unit.options();
    let mut reply = alloc::vec![0; 36];
    reply[1] = if options.removable { 0x80 } else { 0 };
    reply[2] = 6;
    reply[3] = 0x12;
    reply[4] = 31;
    reply[7] = 2;
    reply[8..36].fill(b' ');
    for (to, from) in reply[8..16].iter_mut().zip(b"LUNAR   ") {
        *to = *from;
    }
    for (to, from) in reply[16..32].iter_mut().zip(options.product.bytes()) {
        *to = from;
    }
    Ok(Plan::Reply(cut(reply, raw.allocation_bytes.into())))
}

/// REPORT LUNS. SPC-4 §6.33.
pub(crate) fn luns(_: &mut BlockUnit, request: &Request<'_>) -> Result<Plan, Refusal> {
    Ok(Plan::Reply(luns_reply(request.context, request.cdb)?))
}

/// What REPORT LUNS answers, through whichever unit it is asked.
pub(crate) fn luns_reply(context: &Context<'_>, cdb: &[u8]) -> Result<Vec<u8>, Sense> {
    let raw = ReportLuns::decode(&first(cdb));
    if raw.allocation_bytes < 16 {
        return Err(invalid_field(6, Some(7)));
    }
    let luns: &[Lun] = match raw.select_report {
        0x00 | 0x02 => context.luns,
        0x01 => &[],
        _ => return Err(invalid_field(2, Some(7))),
    };
    let mut reply = alloc::vec![0; 8];
    for lun in luns {
        reply.extend_from_slice(&lun.0);
    }
    let list_bytes = u32::try_from(reply.len() - 8).unwrap_or(u32::MAX);
    reply[..4].copy_from_slice(&list_bytes.to_be_bytes());
    Ok(cut(reply, raw.allocation_bytes))
}
