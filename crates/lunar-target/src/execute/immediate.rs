//! Reads and writes that need no waiting, and run without a future: most commands end here.
//!
//! [`try_now`] is the only place that tries them, and contains all conditions for that. Each
//! condition is one of the general path ([`super::Run`]), asked in a form that does not wait: the
//! general path asks the same function, and looks closer or waits if the answer is no. The general
//! path then runs the command, so both paths have the same outcome.
//!
//! A device may refuse any command here: files refuse durable writes, which wait for a sync.
//!
//! Two conditions are checked by the caller, for both paths: the command has been charged, and no
//! other task of its task set goes before it.

use super::block_range;
use crate::disk_unit::{CacheMode, DiskUnit};
use crate::long_operation::Generation;
use crate::ranges::RangeLocks;
use crate::unit::CommandData;
use lunar_block::Buffer;
use lunar_scsi::plan::{LbaRange, Plan};
use std::sync::atomic::Ordering::SeqCst;

/// Runs `plan` if no waiting is needed, and it ends with GOOD. Returns `false` if it must wait, or
/// has to return an error; the command then continues in
/// [`execute_charged`](super::execute_charged).
pub(crate) fn try_now(
    unit: &DiskUnit,
    generation: Generation,
    plan: &Plan,
    data: &mut CommandData,
) -> bool {
    match (plan, data) {
        (Plan::Read { range, from_medium }, CommandData::In(buffer)) => {
            !unit.flushes_before_read(*from_medium) && read(unit, generation, *range, buffer)
        }
        (Plan::Write { range, durable }, CommandData::Out(data)) => {
            write(unit, generation, *range, data, *durable).is_some()
        }
        _ => false,
    }
}

fn read(unit: &DiskUnit, generation: Generation, range: LbaRange, buffer: &mut Buffer) -> bool {
    if !unit.ranges.are_readable() {
        return false;
    }
    let read = unit.device().try_read_now(block_range(range), buffer);
    if read {
        lunar_net::count_copied(buffer.len());
    }
    // Neither unfinished states of a long operation nor blocks reserved since may be read.
    read && unit.is_unchanged_since(generation)
}

fn write(
    unit: &DiskUnit,
    generation: Generation,
    range: LbaRange,
    data: &[u8],
    durable: bool,
) -> Option<()> {
    let share = RangeLocks::try_share(&*unit.ranges);
    let _guard = if share.is_none() { Some(unit.ranges.try_lock_shared(range)?) } else { None };
    // Checked under the lock: an operation that begins later waits for it.
    if !unit.is_unchanged_since(generation)
        || unit.detached_writes.may_be_too_many()
        || unit.holds_writes()
    {
        return None;
    }
    let written = unit.device().try_write_now(block_range(range), data, durable);
    if written {
        lunar_net::count_copied(data.len());
    }
    (written && !unit.was_recovered_since(generation)).then_some(())
}

/// Conditions of both paths.
impl DiskUnit {
    /// True if nothing has changed that may forbid a command checked at this generation. It is
    /// checked again otherwise.
    pub(super) fn is_unchanged_since(&self, generation: Generation) -> bool {
        self.revision() == generation.revision
    }

    /// True if the disk has been recovered since a command was checked. Earlier writes may have
    /// been lost by then, even if a later sync succeeds, so GOOD would be wrong.
    pub(super) fn was_recovered_since(&self, generation: Generation) -> bool {
        self.recoveries.load(SeqCst) != generation.recoveries
    }

    /// True if a read first makes written data durable, since it has to come `from_medium`.
    pub(super) fn flushes_before_read(&self, from_medium: bool) -> bool {
        from_medium && self.options().cache == CacheMode::WriteBack
    }
}
