//! The result of planning a command: the interface between checking a command and running it.
//!
//! `BlockUnit::plan` returns a [`Plan`] or a [`Refusal`]; the target's executor collects
//! [`data_out_bytes`](Plan::data_out_bytes), runs the plan on the unit's device and answers.

pub(crate) mod atomic;
pub mod buffers;
pub(crate) mod cache;
pub(crate) mod capacity;
pub(crate) mod copy;
pub(crate) mod defects;
pub(crate) mod diagnostic;
pub(crate) mod exclusive;
pub(crate) mod format;
pub(crate) mod inform;
pub(crate) mod log;
pub(crate) mod medium;
pub(crate) mod parameters;
pub(crate) mod ports;
pub(crate) mod provisioning;
pub(crate) mod read_write;
pub(crate) mod report;
pub(crate) mod reserve;
pub(crate) mod sanitize;
pub(crate) mod timestamp;
pub(crate) mod verify;

use crate::commands::ListKind;
use crate::copy::CopyList;
use crate::long_operation::LongOperation;
use crate::sense::Sense;
use alloc::vec::Vec;
use core::slice;

/// A range of logical blocks; always within the unit if it is part of a plan.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct LbaRange {
    /// First block.
    pub lba: u64,
    /// Number of blocks; may be 0.
    pub count: u64,
}

/// The status of a refused plan.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Refusal {
    /// CHECK CONDITION with this sense.
    Check(Sense),
    /// RESERVATION CONFLICT.
    ReservationConflict,
    /// BUSY.
    Busy,
}

impl From<Sense> for Refusal {
    fn from(sense: Sense) -> Self {
        Self::Check(sense)
    }
}

/// The comparison of a VERIFY or WRITE AND VERIFY. SBC-3 §5.38, BYTCHK.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Compare {
    /// 00b: the medium is readable.
    Medium,
    /// 01b: every byte equals the data-out.
    Bytes,
    /// 11b: every block equals the one block of data-out.
    OneBlock,
}

/// The data that WRITE SAME writes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Pattern {
    /// The single block of data-out.
    DataOut,
    /// NDOB: zeroes, without data-out.
    Zeroes,
}

/// The action for a command that all types of units share. SPC-4.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum PrimaryPlan {
    /// See [`Plan::Reply`].
    Reply(Vec<u8>),
    /// See [`Plan::Parameters`].
    Parameters {
        /// Length of the parameter list in bytes.
        bytes: u32,
        /// The waiting command.
        awaiting: AwaitingParameterList,
    },
    /// See [`Plan::SaveState`].
    SaveState,
    /// See [`Plan::AbortTasksOf`].
    AbortTasksOf {
        /// Nexuses whose tasks are aborted.
        nexuses: Vec<NexusId>,
        /// True if the state must be saved.
        save: bool,
    },
}

impl From<PrimaryPlan> for Plan {
    fn from(plan: PrimaryPlan) -> Self {
        match plan {
            PrimaryPlan::Reply(reply) => Self::Reply(reply),
            PrimaryPlan::Parameters { bytes, awaiting } => Self::Parameters { bytes, awaiting },
            PrimaryPlan::SaveState => Self::SaveState,
            PrimaryPlan::AbortTasksOf { nexuses, save } => Self::AbortTasksOf { nexuses, save },
        }
    }
}

/// The action for a command of a block unit.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Plan {
    /// Answer GOOD, with this data-in (already truncated to the allocation length).
    Reply(Vec<u8>),
    /// Read blocks. With `from_medium` (FUA), data of these blocks in a volatile cache is made
    /// durable first.
    Read {
        /// Blocks to read.
        range: LbaRange,
        /// FUA.
        from_medium: bool,
    },
    /// Write the data-out.
    Write {
        /// Blocks to write.
        range: LbaRange,
        /// True for FUA, or on a write-through unit.
        durable: bool,
    },
    /// Write the data-out completely or not at all, also as seen by readers and other writers.
    WriteAtomic {
        /// Blocks to write.
        range: LbaRange,
        /// Same as in `Write`.
        durable: bool,
    },
    /// Write the data-out durably, then read it back and compare.
    WriteAndVerify {
        /// Blocks to write.
        range: LbaRange,
        /// The comparison.
        compare: Compare,
    },
    /// Read and compare; no data is sent.
    Verify {
        /// Blocks to verify.
        range: LbaRange,
        /// The comparison.
        compare: Compare,
    },
    /// If the blocks equal the first half of the data-out, write the second half; else MISCOMPARE.
    /// No other writer may change these blocks in between.
    CompareAndWrite {
        /// Blocks to compare.
        range: LbaRange,
        /// Same as in `Write`.
        durable: bool,
    },
    /// Read, OR with the data-out, write back, with the same exclusion.
    OrWrite {
        /// Blocks to change.
        range: LbaRange,
        /// Same as in `Write`.
        durable: bool,
    },
    /// Write the pattern of one block to all blocks.
    WriteSame {
        /// Blocks to write.
        range: LbaRange,
        /// The pattern.
        pattern: Pattern,
        /// True if the blocks may be deallocated for a pattern of zeroes.
        may_unmap: bool,
        /// Same as in `Write`.
        durable: bool,
    },
    /// Deallocate blocks.
    Unmap {
        /// Blocks to deallocate, in the requested order; ranges may be empty.
        ranges: Vec<LbaRange>,
        /// Same as in `Write`.
        durable: bool,
    },
    /// Prefetch blocks; CONDITION MET if all fit in the cache, else GOOD.
    Prefetch {
        /// Blocks to prefetch.
        range: LbaRange,
    },
    /// Make all data durable.
    Flush {
        /// IMMED: answer before the end.
        immediate: bool,
    },
    /// GET LBA STATUS: query the device's extents in `range` (from its first block on, at most
    /// `extents_max`), then reply with [`lba_status_reply`](crate::unit::lba_status_reply).
    MapStatus {
        /// From the starting LBA to the end of the unit.
        range: LbaRange,
        /// Maximum number of extents that fit the allocation length.
        extents_max: usize,
        /// Length to which the reply is truncated.
        allocation_bytes: u32,
    },
    /// SEND DIAGNOSTIC's self-test: these blocks are readable, or the unit has failed the test.
    SelfTest {
        /// Blocks to read.
        reads: Vec<LbaRange>,
    },
    /// Call `BlockUnit::begin_operation`, save the state, then carry out the operation, whatever
    /// happens to this command.
    LongOperation {
        /// The operation.
        operation: LongOperation,
        /// The nexus that sent the command.
        by: NexusId,
        /// IMMED: answer once the state is saved.
        immediate: bool,
    },
    /// Call `BlockUnit::exit_failure_mode`, save the state, then answer GOOD.
    ExitFailureMode,
    /// Collect a parameter list, then call `BlockUnit::resume`.
    Parameters {
        /// Length of the parameter list in bytes.
        bytes: u32,
        /// The waiting command.
        awaiting: AwaitingParameterList,
    },
    /// Copy between units that this initiator sees: resolve the designators, check each segment
    /// ([`CopyList::plan_move`]) and whether both units may be used ([`BlockUnit::check_copy`]),
    /// and only then begin. Keep [`PrimaryUnit::copies`] up to date.
    ///
    /// [`BlockUnit::check_copy`]: crate::unit::BlockUnit::check_copy
    /// [`PrimaryUnit::copies`]: crate::primary::PrimaryUnit::copies
    Copy {
        /// The copies to make.
        list: CopyList,
    },
    /// The unit's persistent state changed: save `BlockUnit::persistent_state`, durably, then
    /// answer GOOD.
    SaveState,
    /// Abort other nexuses' tasks on this unit (PREEMPT AND ABORT), then save the state if `save`,
    /// then answer GOOD.
    AbortTasksOf {
        /// Nexuses whose tasks are aborted.
        nexuses: Vec<NexusId>,
        /// True if the state must be saved.
        save: bool,
    },
}

/// A command that waits for its parameter list, for `BlockUnit::resume`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct AwaitingParameterList {
    /// The whole CDB.
    pub cdb: Vec<u8>,
    /// Kind of the awaited list.
    pub kind: ListKind,
}

/// One I_T nexus, numbered by the target; never reused while the target runs.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Ord, PartialOrd, Hash)]
pub struct NexusId(pub u64);

impl Plan {
    /// The blocks that the plan reads or writes, all within the unit when the plan was made. Empty
    /// for a copy and for an operation on the whole unit.
    pub fn ranges(&self) -> &[LbaRange] {
        match self {
            Self::Read { range, .. }
            | Self::Write { range, .. }
            | Self::WriteAtomic { range, .. }
            | Self::WriteAndVerify { range, .. }
            | Self::Verify { range, .. }
            | Self::CompareAndWrite { range, .. }
            | Self::OrWrite { range, .. }
            | Self::WriteSame { range, .. }
            | Self::Prefetch { range }
            | Self::MapStatus { range, .. } => slice::from_ref(range),
            Self::Unmap { ranges, .. } | Self::SelfTest { reads: ranges } => ranges,
            Self::Reply(_)
            | Self::Flush { .. }
            | Self::LongOperation { .. }
            | Self::ExitFailureMode
            | Self::Parameters { .. }
            | Self::Copy { .. }
            | Self::SaveState
            | Self::AbortTasksOf { .. } => &[],
        }
    }

    /// Number of data-out bytes that are required before the plan can run.
    pub fn data_out_bytes(&self, block_bytes: u32) -> u64 {
        let block = u64::from(block_bytes);
        match self {
            Self::Write { range, .. }
            | Self::WriteAtomic { range, .. }
            | Self::WriteAndVerify { range, .. }
            | Self::OrWrite { range, .. } => range.count * block,
            Self::Verify { range, compare } => match compare {
                Compare::Medium => 0,
                Compare::Bytes => range.count * block,
                Compare::OneBlock => block,
            },
            Self::CompareAndWrite { range, .. } => 2 * range.count * block,
            Self::WriteSame { pattern: Pattern::DataOut, .. } => block,
            Self::Parameters { bytes, .. } => u64::from(*bytes),
            _ => 0,
        }
    }
}
