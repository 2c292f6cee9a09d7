//! The status of an open pool.

use crate::format::{PoolId, PoolKind};
use crate::mirror::ScrubProgress;

/// The status of a pool.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct PoolStatus {
    /// The pool.
    pub pool: PoolId,
    /// Layout: concatenation, stripe or mirror.
    pub kind: PoolKind,
    /// Generation of its labels.
    pub generation: u64,
    /// Health.
    pub health: PoolHealth,
    /// Number of times that acknowledged writes may have been lost.
    pub losses: u64,
    /// Number of times that blocks were repaired which a member could not read.
    pub repairs: u64,
    /// Number of bytes that were copied to members since the pool was opened.
    pub copied_bytes: u64,
    /// The members, by their slots.
    pub members: Vec<PoolMember>,
    /// Devices that were given or were members, and are none.
    pub unused: Vec<UnusedDevice>,
    /// The last scrub since the pool was opened, or the one that runs.
    pub scrub: Option<ScrubProgress>,
}

/// A device that is not a member of the pool.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct UnusedDevice {
    /// Name of the device.
    pub device: String,
    /// The reason why it is not used.
    pub state: UnusedState,
    /// Last failure; empty if there was none.
    pub last_failure: String,
}

/// The reason why a device is not used.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum UnusedState {
    /// A spare device, which replaces a member that is left out for too long.
    Spare,
    /// Another device has its slot.
    Replaced,
    /// The mirror has grown, and the device has not.
    TooSmall,
    /// The mirror has no member at its slot any more.
    Removed,
}

impl UnusedState {
    /// Returns the name for status and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Spare => "spare",
            Self::Replaced => "replaced",
            Self::TooSmall => "too-small",
            Self::Removed => "removed",
        }
    }
}

impl UnusedDevice {
    pub(crate) fn new(device: &str, state: UnusedState, last_failure: String) -> Self {
        Self { device: device.to_owned(), state, last_failure }
    }
}

/// The health of a pool.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum PoolHealth {
    /// All members have all data.
    Healthy,
    /// A member is missing or does not have all data; the others serve the pool.
    Degraded,
    /// No member has all data, or a member of a pool without redundancy fails.
    Failed,
    /// Another host has taken the pool over: nothing is read or written here any more.
    Fenced,
}

impl PoolHealth {
    /// Returns the name for status and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Healthy => "healthy",
            Self::Degraded => "degraded",
            Self::Failed => "failed",
            Self::Fenced => "fenced",
        }
    }
}

/// A member of a pool.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct PoolMember {
    /// Its slot, from 0.
    pub slot: u16,
    /// Name of the device; empty if it is missing.
    pub device: String,
    /// State.
    pub state: MemberState,
    /// Number of bytes that are to be copied to it before it has all data.
    pub missing_bytes: u64,
    /// Number of reads that have not ended.
    pub outstanding_reads: u64,
    /// Mean latency of recent reads in nanoseconds; 0 if none was measured.
    pub latency_nanos: u64,
    /// Last failure; empty if there was none.
    pub last_failure: String,
}

/// The state of a member.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum MemberState {
    /// The member has all data.
    Current,
    /// Data is being copied to the member, and all writes go to it.
    Syncing,
    /// The member was left out: it has missed writes, and is neither read nor written.
    Stale,
    /// The device was not given, or its label could not be read.
    Missing,
}

impl MemberState {
    /// Returns the name for status and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Current => "current",
            Self::Syncing => "syncing",
            Self::Stale => "stale",
            Self::Missing => "missing",
        }
    }
}
