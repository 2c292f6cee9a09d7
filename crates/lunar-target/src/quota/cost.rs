//! Cost of a command: one command, and the bytes that the device moves for it.

use super::limit::Cost;
use crate::unit::LogicalUnit;
use lunar_scsi::plan::{LbaRange, Plan};

/// UNMAP, whose extent is only in its parameter list.
const UNMAP: u8 = 0x42;

/// Cost to be charged before `plan` begins; `None` if it is not limited.
///
/// Reads and writes cost the bytes that they move; commands that read and then write, or write and
/// read back, cost both. Commands that may be longer than any transfer are charged piece by piece:
/// WRITE SAME with data, and EXTENDED COPY, where each piece is a command at its unit. UNMAP and
/// WRITE SAME of zeroes on a sparse disk move nothing, and cost a command. All others are free:
/// INQUIRY, TEST UNIT READY, reservations; SYNCHRONIZE CACHE, whose bytes were charged when they
/// were written; SANITIZE and FORMAT UNIT, which have a rate of their own.
pub(crate) fn cost(plan: &Plan, unit: &LogicalUnit) -> Option<Cost> {
    let block_bytes = u64::from(unit.block_bytes());
    let of = |range: &LbaRange| range.count.saturating_mul(block_bytes);
    let bytes = match plan {
        Plan::Read { range, .. }
        | Plan::Write { range, .. }
        | Plan::WriteAtomic { range, .. }
        | Plan::Verify { range, .. } => of(range),
        Plan::WriteAndVerify { range, .. }
        | Plan::CompareAndWrite { range, .. }
        | Plan::OrWrite { range, .. } => of(range).saturating_mul(2),
        Plan::Prefetch { range } => of(range).min(prefetch_bytes_max(unit)),
        Plan::WriteSame { .. } | Plan::Unmap { .. } => 0,
        Plan::Parameters { awaiting, .. } if awaiting.cdb.first() == Some(&UNMAP) => 0,
        _ => return None,
    };
    Some(Cost { commands: 1, bytes })
}

/// Bytes to which a PRE-FETCH at a limited unit is cut: it is a hint, and all its bytes are
/// charged.
pub(crate) fn prefetch_bytes_max(unit: &LogicalUnit) -> u64 {
    unit.options().transfer_bytes.into()
}
