//! SYNCHRONIZE CACHE, PRE-FETCH.

use super::read_write::checked_range;
use super::{LbaRange, Plan, Refusal};
use crate::cdb::sbc::Blocks;
use crate::commands::Request;
use crate::sense::Sense;
use crate::unit::BlockUnit;

/// SYNCHRONIZE CACHE (10, 16). SBC-3 §5.26, §5.27. Flushes the whole unit, whatever range was
/// requested; SYNC_NV, obsolete, has no effect.
pub(crate) fn synchronize(unit: &mut BlockUnit, request: &Request<'_>) -> Result<Plan, Refusal> {
    const IMMED: u8 = 0x02;
    let blocks = Blocks::decode(request.cdb);
    range_to_end(unit, blocks)?;
    Ok(Plan::Flush { immediate: blocks.flags & IMMED != 0 })
}

/// PRE-FETCH (10, 16). SBC-3 §5.8, §5.9.
pub(crate) fn prefetch(unit: &mut BlockUnit, request: &Request<'_>) -> Result<Plan, Refusal> {
    let range = range_to_end(unit, Blocks::decode(request.cdb))?;
    Ok(Plan::Prefetch { range })
}

/// Returns the range of a command whose count of 0 means all blocks from its LBA on.
fn range_to_end(unit: &BlockUnit, blocks: Blocks) -> Result<LbaRange, Sense> {
    let mut range = checked_range(unit, blocks.lba, blocks.count)?;
    if range.count == 0 {
        range.count = unit.options().block_count - range.lba;
    }
    Ok(range)
}
