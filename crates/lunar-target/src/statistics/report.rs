//! The statistics as plain values.

use super::OperationClass;
use crate::disk_unit::CacheMode;
use crate::relay::RelayStatistics;
use lunar_block::{DeviceLink, DurationCounts, MemoryUsage, SpaceUsage, SyncCounts};
use std::collections::BTreeMap;
use uuid::Uuid;

/// Statistics of a server since its start, with its current state.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Statistics {
    /// Targets, in the order of their names.
    pub targets: Vec<TargetStatistics>,
    /// Open connections, logged in or not.
    pub connections: u64,
    /// Current discovery sessions.
    pub discovery_sessions: u64,
    /// Memory used on behalf of peers.
    pub memory: MemoryUsage,
    /// Refused logins by reason; every reason has an entry.
    pub login_failures: BTreeMap<&'static str, u64>,
}

/// Statistics of one target.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TargetStatistics {
    /// Name of the target.
    pub name: String,
    /// Current sessions.
    pub sessions: u64,
    /// Connections of the current sessions.
    pub connections: u64,
    /// Connections that were logged in so far.
    pub logins: u64,
    /// PDUs whose header digest was wrong.
    pub header_digest_errors: u64,
    /// PDUs whose data digest was wrong.
    pub data_digest_errors: u64,
    /// LUNs of the target by number.
    pub luns: Vec<LunStatistics>,
    /// Commands for LUNs that do not exist.
    pub absent_luns: Vec<OperationStatistics>,
    /// Failures among those.
    pub absent_lun_errors: Vec<CommandErrors>,
}

/// Statistics of one LUN. If several LUNs show one unit, the values of the unit appear at each of
/// them.
#[derive(Clone, Debug, PartialEq)]
pub struct LunStatistics {
    /// LUN number.
    pub id: u16,
    /// The unit's identity.
    pub uuid: Uuid,
    /// The unit's cache mode.
    pub cache: CacheMode,
    /// Method of the unit's I/O.
    pub io_tier: String,
    /// The unit's size in bytes.
    pub size_bytes: u64,
    /// Writes of the unit that wait for room.
    pub held_writes: u64,
    /// Space of a unit in a thin file; `None` if unknown.
    pub space: Option<SpaceUsage>,
    /// Commands that were given to a relay; `None` for a unit whose device has no relay map.
    pub relayed: Option<RelayStatistics>,
    /// True when the unit's backing file has a fault.
    pub backing_fault: bool,
    /// State of the connection to the unit's device; `None` for a device of this machine.
    pub link: Option<DeviceLink>,
    /// The unit's syncs; `None` if it has none, or they are not counted.
    pub syncs: Option<SyncCounts>,
    /// Commands by operation.
    pub operations: Vec<OperationStatistics>,
    /// Commands that failed.
    pub errors: Vec<CommandErrors>,
}

/// Commands of one kind.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OperationStatistics {
    /// The operation.
    pub operation: OperationClass,
    /// Ended commands, including those that failed or were aborted: the time of each from its
    /// receipt until its answer was ready, including the wait for its data.
    pub durations: DurationCounts,
    /// Commands that have not ended.
    pub in_flight: u64,
    /// Data-out of the commands that succeeded, in bytes.
    pub received_bytes: u64,
    /// Data-in of the commands that succeeded, in bytes.
    pub sent_bytes: u64,
}

impl OperationStatistics {
    pub(super) fn of(operation: OperationClass) -> Self {
        let durations = DurationCounts::default();
        Self { operation, durations, in_flight: 0, received_bytes: 0, sent_bytes: 0 }
    }
}

/// Commands of one kind that failed in one way.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct CommandErrors {
    /// The operation.
    pub operation: OperationClass,
    /// Their SCSI status; `None` if they were aborted.
    pub status: Option<u8>,
    /// With CHECK CONDITION: sense key, and additional sense code with its qualifier.
    pub sense: Option<(u8, u16)>,
    /// Number of commands.
    pub count: u64,
}

impl LunStatistics {
    /// Combines two LUNs with one number, each for other initiators: their commands are counted
    /// together; of their units the first is described, and no fault is hidden.
    pub(super) fn join(&mut self, other: &Self) {
        if self.uuid == other.uuid {
            return;
        }
        self.held_writes += other.held_writes;
        if let (Some(mine), Some(other)) = (&mut self.relayed, &other.relayed) {
            mine.commands += other.commands;
            mine.taken_over += other.taken_over;
        }
        self.backing_fault |= other.backing_fault;
        match (&mut self.syncs, &other.syncs) {
            (Some(mine), Some(other)) => {
                mine.durations.add(&other.durations);
                mine.requests += other.requests;
                mine.failures += other.failures;
                mine.poisoned |= other.poisoned;
            }
            (mine @ None, Some(other)) => *mine = Some(*other),
            (_, None) => {}
        }
    }
}
