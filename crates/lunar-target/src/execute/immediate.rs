//! Reads and writes that need no waiting, and run without a future: most commands end here.
//!
//! [`try_now`] is the only place that tries them, and contains all conditions for that. Each
//! condition is one of the general path ([`super::Run`]), asked in a form that does not wait: the
//! general path asks the same function, and looks closer or waits if the answer is no. The general
//! path then runs the command, so both paths have the same outcome.
//!
//! Two conditions are checked by the caller, for both paths: the command has been charged, and no
//! other task of its task set goes before it.

use super::block_range;
use super::pieces::PieceReader;
use crate::long_operation::Generation;
use crate::ranges::RangeLocks;
use crate::unit::{CacheMode, LogicalUnit};
use bytes::Bytes;
use lunar_block::Buffer;
use lunar_scsi::plan::{LbaRange, Plan};
use std::sync::atomic::Ordering::SeqCst;

/// The data of a command that is about to run.
pub(crate) enum PlanData {
    None,
    /// Buffer for its data-in.
    In(Buffer),
    /// Memory for its data-in, which is read in pieces.
    Pieces(PieceReader),
    /// Buffer with all its data-out.
    Out(Buffer),
}

/// Memory for the data of a READ.
pub(crate) enum ReadMemory {
    None,
    /// A buffer for all of it.
    Whole(Buffer),
    Pieces(PieceReader),
}

impl PlanData {
    /// The memory for data-in, and the data-out.
    pub(crate) fn split(self) -> (ReadMemory, Bytes) {
        match self {
            Self::None => (ReadMemory::None, Bytes::new()),
            Self::In(buffer) => (ReadMemory::Whole(buffer), Bytes::new()),
            Self::Pieces(reader) => (ReadMemory::Pieces(reader), Bytes::new()),
            Self::Out(buffer) => (ReadMemory::None, buffer.freeze()),
        }
    }

    /// The data-in of a command that has run.
    pub(crate) fn into_reply(self) -> Bytes {
        match self {
            Self::In(buffer) => buffer.freeze(),
            Self::None | Self::Pieces(_) | Self::Out(_) => Bytes::new(),
        }
    }
}

/// Runs `plan` if no waiting is needed, and it ends with GOOD. Returns `false` if it must wait, or
/// has to return an error; the command then goes on in [`execute_paying`](super::execute_paying).
pub(crate) fn try_now(
    unit: &LogicalUnit,
    generation: Generation,
    plan: &Plan,
    data: &mut PlanData,
) -> bool {
    match (plan, data) {
        (Plan::Read { range, from_medium }, PlanData::In(buffer)) => {
            !unit.flushes_before_read(*from_medium) && read(unit, generation, *range, buffer)
        }
        (Plan::Write { range, durable }, PlanData::Out(data)) => {
            write(unit, generation, *range, data, *durable).is_some()
        }
        _ => false,
    }
}

fn read(unit: &LogicalUnit, generation: Generation, range: LbaRange, buffer: &mut Buffer) -> bool {
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
    unit: &LogicalUnit,
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
impl LogicalUnit {
    /// True if nothing has changed that may forbid a command judged at this generation. It is
    /// judged again otherwise.
    pub(super) fn is_unchanged_since(&self, generation: Generation) -> bool {
        self.revision() == generation.revision
    }

    /// True if the disk has been recovered since a command was judged. Earlier writes may have been
    /// lost by then, even if a later sync succeeds, so GOOD would be wrong.
    pub(super) fn was_recovered_since(&self, generation: Generation) -> bool {
        self.recoveries.load(SeqCst) != generation.recoveries
    }

    /// True if a read first makes written data durable, since it has to come `from_medium`.
    pub(super) fn flushes_before_read(&self, from_medium: bool) -> bool {
        from_medium && self.options().cache == CacheMode::WriteBack
    }
}
