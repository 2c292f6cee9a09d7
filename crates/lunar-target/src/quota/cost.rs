//! What a command costs: one command, and the bytes that it makes the device move.

use super::limit::Cost;
use crate::unit::LogicalUnit;
use lunar_scsi::plan::{LbaRange, Plan};

/// UNMAP, which says only in its parameter list what is to be done.
const UNMAP: u8 = 0x42;

/// What is to be paid before `plan` begins; `None`: it is not limited.
///
/// Reads and writes cost what they move; commands that read and then write, or write and read back,
/// both. What may be longer than any transfer is paid piece by piece: WRITE SAME with data, and
/// EXTENDED COPY, where each piece is a command at its unit. UNMAP and WRITE SAME of zeroes on a
/// sparse disk move nothing, and cost a command. All else is free: INQUIRY, TEST UNIT READY,
/// reservations; SYNCHRONIZE CACHE, whose bytes were paid when they were written; SANITIZE and
/// FORMAT UNIT, which have a rate of their own.
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
        Plan::Parameters { parked, .. } if parked.cdb.first() == Some(&UNMAP) => 0,
        _ => return None,
    };
    Some(Cost { commands: 1, bytes })
}

/// A longer PRE-FETCH at a limited unit brings near so much: it is a hint, and all is paid for.
pub(crate) fn prefetch_bytes_max(unit: &LogicalUnit) -> u64 {
    unit.options().transfer_bytes.into()
}
