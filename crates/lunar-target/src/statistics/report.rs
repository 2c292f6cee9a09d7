//! The counters as plain values, added up and combined with values that are not counted: sessions,
//! units.

use super::OperationClass;
use super::{TargetCounters, lock};
use crate::login_refusal::LoginRefusal;
use crate::options::LunOptions;
use crate::server::Shared;
use crate::unit::CacheMode;
use lunar_block::{BufferPool, DurationCounts, MemoryUsage, SyncCounts};
use std::collections::BTreeMap;
use std::sync::Weak;
use std::sync::atomic::Ordering::Relaxed;
use uuid::Uuid;

/// Reads the statistics of a server, also while it stops, without keeping it alive.
#[derive(Clone, Debug)]
pub struct Observer {
    pub(crate) shared: Weak<Shared>,
}

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
    /// Connections of these sessions.
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
    /// True when the unit's backing file has a fault.
    pub backing_fault: bool,
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
    fn join(&mut self, other: &Self) {
        if self.uuid == other.uuid {
            return;
        }
        self.held_writes += other.held_writes;
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

impl Observer {
    /// Reads the statistics; `None` if the server is gone. The values are not of one instant:
    /// commands go on meanwhile.
    pub fn statistics(&self) -> Option<Statistics> {
        self.shared.upgrade().map(|shared| of_server(&shared))
    }

    /// The memory of the server; `None` if the server is gone.
    pub fn buffers(&self) -> Option<BufferPool> {
        self.shared.upgrade().map(|shared| shared.memory.buffers().clone())
    }
}

fn of_server(shared: &Shared) -> Statistics {
    let mut targets: BTreeMap<String, TargetStatistics> = BTreeMap::new();
    shared.counters.retain(|name| shared.target(name).is_some());
    for target in &shared.catalogue().catalogue.targets {
        let counters = shared.counters.target(&target.name);
        let mut statistics = of_target(&target.luns, &counters);
        statistics.name.clone_from(&target.name);
        targets.insert(target.name.to_ascii_lowercase(), statistics);
    }
    let mut discovery_sessions = 0;
    for session in shared.each_session() {
        match session.key.target_name.as_ref().map(|name| targets.get_mut(name)) {
            None => discovery_sessions += 1,
            Some(None) => {} // its target is gone; it will end
            Some(Some(target)) => {
                target.sessions += 1;
                target.connections += session.members().len() as u64;
            }
        }
    }
    let mut login_failures: BTreeMap<_, _> = LoginRefusal::LABELS.map(|why| (why, 0)).into();
    login_failures.append(&mut lock(&shared.counters.login_failures).clone());
    Statistics {
        targets: targets.into_values().collect(),
        connections: shared.connection_count() as u64,
        discovery_sessions,
        memory: shared.memory.buffers().budget().usage(),
        login_failures,
    }
}

fn of_target(luns: &[LunOptions], counters: &TargetCounters) -> TargetStatistics {
    let mut by_id: BTreeMap<u16, LunStatistics> = BTreeMap::new();
    for lun in luns {
        let read = of_lun(lun, counters);
        by_id.entry(lun.id).and_modify(|other| other.join(&read)).or_insert(read);
    }
    counters.retain(|id| by_id.contains_key(&id));
    let absent = counters.lun(None);
    TargetStatistics {
        logins: counters.logins.load(Relaxed),
        header_digest_errors: counters.header_digest_errors.load(Relaxed),
        data_digest_errors: counters.data_digest_errors.load(Relaxed),
        luns: by_id.into_values().collect(),
        absent_luns: absent.read(),
        absent_lun_errors: absent.errors(),
        ..TargetStatistics::default()
    }
}

fn of_lun(lun: &LunOptions, counters: &TargetCounters) -> LunStatistics {
    let options = lun.unit.options();
    let counters = counters.lun(Some(lun.id));
    LunStatistics {
        id: lun.id,
        uuid: options.uuid,
        cache: options.cache,
        io_tier: options.device.io_tier(),
        size_bytes: options.device.geometry().size_bytes(),
        held_writes: lun.unit.held_writes() as u64,
        backing_fault: !lun.unit.backing_faults().is_empty(),
        syncs: options.device.sync_counts(),
        operations: counters.read(),
        errors: counters.errors(),
    }
}
