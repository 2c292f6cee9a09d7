//! Cost of a command: one command, and the bytes that the device moves for it.

use super::DiskUnit;
use crate::quota::Cost;
use lunar_scsi::commands::{self, QuotaClass};
use lunar_scsi::plan::Plan;

/// Cost to be charged before a command begins, by its CDB and its plan, if it needs one; `None` if
/// it is not limited.
///
/// Reads and writes cost the bytes that they move; commands that read and then write, or write and
/// read back, cost both. Commands that may be longer than any transfer are charged piece by piece:
/// WRITE SAME with data, and EXTENDED COPY, where each piece is a command at its unit. UNMAP and
/// WRITE SAME of zeroes on a sparse disk move no bytes and are charged as one command. All others
/// are free: INQUIRY, TEST UNIT READY, reservations; SYNCHRONIZE CACHE, whose bytes were charged
/// when they were written; SANITIZE and FORMAT UNIT, which have a rate of their own.
pub(super) fn cost(cdb: &[u8], plan: Option<&Plan>, unit: &DiskUnit) -> Option<Cost> {
    let times = match commands::row(cdb)?.quota_class {
        QuotaClass::Free => return None,
        QuotaClass::Command => 0,
        QuotaClass::BytesOnce => 1,
        QuotaClass::BytesTwice => 2,
    };
    let ranges = plan.map_or(&[][..], Plan::ranges);
    let blocks = ranges.iter().map(|range| range.count).fold(0, u64::saturating_add);
    let bytes = blocks.saturating_mul(unit.block_bytes().into());
    let bytes = match plan {
        Some(Plan::Prefetch { .. }) => bytes.min(prefetch_bytes_max(unit)),
        _ => bytes,
    };
    Some(Cost { commands: 1, bytes: bytes.saturating_mul(times) })
}

/// Bytes to which a PRE-FETCH at a limited unit is cut: it is a hint, and all its bytes are
/// charged.
pub(crate) fn prefetch_bytes_max(unit: &DiskUnit) -> u64 {
    unit.options().transfer_bytes.into()
}
