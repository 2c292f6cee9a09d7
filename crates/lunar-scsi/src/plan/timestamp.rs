//! REPORT TIMESTAMP. There is no SET TIMESTAMP: the clock belongs to the host, an initiator may
//! read it.

use super::inform::truncated;
use super::{PrimaryPlan, Refusal};
use crate::cdb::first;
use crate::cdb::spc::ReportTimestamp;
use crate::commands::Request;
use crate::primary::DeviceServer;
use alloc::vec::Vec;

/// REPORT TIMESTAMP. SPC-4 §6.38: milliseconds since 1970-01-01 00:00 UTC, in 48 bits.
pub(crate) fn report<U: DeviceServer>(
    _: &mut U,
    request: &Request<'_>,
) -> Result<U::Plan, Refusal> {
    /// TIMESTAMP PARAMETER DATA LENGTH counts the bytes after it.
    const LENGTH: [u8; 2] = [0, 10];
    /// 011b: "initialized by a method outside the scope of this standard".
    const ORIGIN_OUTSIDE: u8 = 0x03;
    let raw = ReportTimestamp::decode(&first(request.cdb));
    let [_, _, timestamp @ ..] = (request.context.now_milliseconds)().to_be_bytes();
    let mut reply = Vec::from(LENGTH);
    reply.extend_from_slice(&[ORIGIN_OUTSIDE, 0]);
    reply.extend_from_slice(&timestamp);
    reply.extend_from_slice(&[0, 0]);
    Ok(PrimaryPlan::Reply(truncated(reply, raw.allocation_bytes)).into())
}
