//! What a command needs to be done: the seam between judging a command and running it.
//!
//! `BlockUnit::plan` makes a [`Plan`] or a [`Refusal`]; the target's executor collects
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

use crate::copy::CopyList;
use crate::long_operation::LongOperation;
use crate::sense::Sense;
use alloc::vec::Vec;
use core::slice;

/// A run of logical blocks; always within the unit when it stands in a plan.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct LbaRange {
    /// First block.
    pub lba: u64,
    /// How many, perhaps 0.
    pub count: u64,
}

/// How a plan was refused.
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

/// What a VERIFY or WRITE AND VERIFY compares. SBC-3 §5.38, BYTCHK.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Compare {
    /// 00b: the medium can be read.
    Medium,
    /// 01b: every byte equals the data-out.
    Bytes,
    /// 11b: every block equals the one block of data-out.
    OneBlock,
}

/// What WRITE SAME writes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Pattern {
    /// The one block of data-out.
    DataOut,
    /// NDOB: zeroes, without data-out.
    Zeroes,
}

/// What is to be done.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Plan {
    /// GOOD, with this data-in (already cut to the allocation length).
    Reply(Vec<u8>),
    /// Read blocks. With `from_medium` (FUA) what a volatile cache holds of them is made
    /// durable first.
    Read {
        /// Which.
        range: LbaRange,
        /// FUA.
        from_medium: bool,
    },
    /// Write the data-out.
    Write {
        /// Which.
        range: LbaRange,
        /// FUA, or a write-through unit.
        durable: bool,
    },
    /// Write the data-out, all of it or none, as readers and other writers see it, too.
    WriteAtomic {
        /// Which.
        range: LbaRange,
        /// As in `Write`.
        durable: bool,
    },
    /// Write the data-out durably, then read it back and compare.
    WriteAndVerify {
        /// Which.
        range: LbaRange,
        /// What to compare.
        compare: Compare,
    },
    /// Read and compare; nothing is sent.
    Verify {
        /// Which.
        range: LbaRange,
        /// With what.
        compare: Compare,
    },
    /// If the blocks equal the first half of the data-out, write the second half; else MISCOMPARE.
    /// Nobody else writes these blocks in between.
    CompareAndWrite {
        /// Which.
        range: LbaRange,
        /// As in `Write`.
        durable: bool,
    },
    /// Read, OR with the data-out, write back, with the same exclusion.
    OrWrite {
        /// Which.
        range: LbaRange,
        /// As in `Write`.
        durable: bool,
    },
    /// Write one block's pattern over all.
    WriteSame {
        /// Which.
        range: LbaRange,
        /// What.
        pattern: Pattern,
        /// Deallocation is welcome if the pattern is zeroes.
        may_unmap: bool,
        /// As in `Write`.
        durable: bool,
    },
    /// Deallocate.
    Unmap {
        /// Which, in the order asked for; they may be empty.
        ranges: Vec<LbaRange>,
        /// As in `Write`.
        durable: bool,
    },
    /// Bring near; CONDITION MET if all fits in the cache, else GOOD.
    Prefetch {
        /// Which.
        range: LbaRange,
    },
    /// Make durable.
    Flush {
        /// IMMED: answer before it is done.
        immediate: bool,
    },
    /// GET LBA STATUS: look at the device's extents in `range` (from its first block on, at most
    /// `extents_max`), then reply with [`lba_status_reply`](crate::unit::lba_status_reply).
    MapStatus {
        /// From the starting LBA to the end of the unit.
        range: LbaRange,
        /// As many as fit the allocation length.
        extents_max: usize,
        /// Where to cut the reply.
        allocation_bytes: u32,
    },
    /// SEND DIAGNOSTIC's self-test: these can be read, or the unit has failed it.
    SelfTest {
        /// Which.
        reads: Vec<LbaRange>,
    },
    /// `BlockUnit::begin_operation`, save the state, then do it, whatever becomes of this command.
    LongOperation {
        /// What.
        operation: LongOperation,
        /// Who asks.
        by: NexusId,
        /// IMMED: answer once the state is saved.
        immediate: bool,
    },
    /// `BlockUnit::exit_failure_mode`, save the state, then answer GOOD.
    ExitFailureMode,
    /// Collect a parameter list, then call `BlockUnit::resume`.
    Parameters {
        /// How much data-out.
        bytes: u32,
        /// The command, parked.
        parked: Parked,
    },
    /// Copy between units that this initiator sees: resolve the designators, judge each segment
    /// ([`CopyList::judge`]) and whether both units may be used ([`BlockUnit::check_copy`]), and
    /// only then begin. Keep [`BlockUnit::copies`] up to date.
    ///
    /// [`BlockUnit::check_copy`]: crate::unit::BlockUnit::check_copy
    /// [`BlockUnit::copies`]: crate::unit::BlockUnit::copies
    Copy {
        /// What.
        list: CopyList,
    },
    /// The unit's persistent state changed: save `BlockUnit::persistent_state`, durably, then
    /// answer GOOD.
    SaveState,
    /// Other nexuses' tasks on this unit are to be aborted (PREEMPT AND ABORT), then the state is
    /// saved if `save`, then GOOD.
    AbortTasksOf {
        /// Whose.
        nexuses: Vec<NexusId>,
        /// Save as well.
        save: bool,
    },
}

/// A command that waits for its parameter list; `BlockUnit::resume` understands it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Parked {
    /// The CDB, whole.
    pub cdb: Vec<u8>,
}

impl Parked {
    /// The parameter list says itself where it ends, not the CDB: what the initiator announces is
    /// collected, up to as much as the plan takes.
    pub fn is_open_ended(&self) -> bool {
        const FORMAT_UNIT: u8 = 0x04;
        self.cdb.first() == Some(&FORMAT_UNIT)
    }

    /// It puts data into a buffer of its nexus.
    pub fn writes_buffer(&self) -> bool {
        const WRITE_BUFFER: u8 = 0x3b;
        self.cdb.first() == Some(&WRITE_BUFFER)
    }

    /// It may change the reservations.
    pub fn may_reserve(&self) -> bool {
        const PERSISTENT_RESERVE_OUT: u8 = 0x5f;
        self.cdb.first() == Some(&PERSISTENT_RESERVE_OUT)
    }
}

/// One I_T nexus, as the target numbers them; never used twice while the target runs.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Ord, PartialOrd, Hash)]
pub struct NexusId(pub u64);

impl Plan {
    /// The blocks it reads or writes, all within the unit when it was made. Of a copy and of an
    /// operation on the whole unit none are named.
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

    /// How many bytes of data-out must lie ready before the plan can run.
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
