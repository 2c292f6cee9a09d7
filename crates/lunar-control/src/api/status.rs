//! Status of the server.

use super::documents::document;
use super::health::{Health, UnitFault};
use super::migrations::{MigrationList, MigrationReport};
use super::pools::{PoolReport, Pools};
use super::problem::Problem;
use super::shared::{ApiState, Served};
use crate::Caller;
use crate::daemon::WaitingLun;
use crate::difference::ConfigChange;
use crate::time::rfc3339;
use axum::Extension;
use axum::extract::State;
use axum::response::Response;
use lunar_block::MemoryUsage;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// Status of a server.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct Status {
    /// Version of the program.
    pub version: String,
    /// Start time, RFC 3339.
    #[schema(format = DateTime)]
    pub started: String,
    /// Time since the start.
    pub uptime_seconds: u64,
    /// Process ID.
    pub pid: u32,
    /// The portals that the server listens on, `address:port`.
    pub portals: Vec<String>,
    /// Whether the server is stopping: no changes are accepted any more.
    pub stopping: bool,
    /// Overall health of the units.
    pub health: Health,
    /// Faults of the units; empty if there are none.
    pub troubles: Vec<UnitFault>,
    /// Number of targets.
    pub targets: usize,
    /// Number of LUNs of all targets.
    pub luns: usize,
    /// Number of sessions.
    pub sessions: usize,
    /// Number of connections, logged in or not.
    pub connections: usize,
    /// Memory used on behalf of peers.
    pub memory: MemoryStatus,
    /// Maximum number of connections.
    pub connections_max: usize,
    /// The limit `connections` of the configuration: more than `connections_max` where the system
    /// grants the process too few open files.
    pub connections_configured: usize,
    /// LUNs that are not served because their storages are unreachable: remote LUNs and pools of
    /// them, which are opened when the storages return.
    #[serde(default)]
    pub waiting: Vec<WaitingLunStatus>,
    /// The pools that are served.
    #[serde(default)]
    pub pools: Vec<PoolSummary>,
    /// Moves of extents of virtual LUNs: current ones, and the last ones that have ended.
    #[serde(default)]
    pub migrations: Vec<MigrationReport>,
    /// All units, each once, however many LUNs show it.
    pub units: Vec<UnitStatus>,
    /// Differences from the configuration, one per line. An apply or a restart undoes them, unless
    /// the line says otherwise.
    pub drift: Vec<String>,
}

/// Memory used on behalf of all peers of the process together.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct MemoryStatus {
    /// The maximum: `memory_bytes_max`.
    pub limit_bytes: u64,
    /// Memory in use, idle buffers included.
    pub used_bytes: u64,
    /// Idle buffers, kept for reuse and released when memory is scarce.
    pub idle_bytes: u64,
    /// Number of requests for memory that wait because all of it is in use.
    pub waiting: u64,
    /// Memory in use by purpose, in bytes.
    pub bytes_by_kind: BTreeMap<String, u64>,
}

impl From<MemoryUsage> for MemoryStatus {
    fn from(usage: MemoryUsage) -> Self {
        let kinds = usage.kinds().map(|(kind, bytes)| (kind.label().to_owned(), bytes as u64));
        Self {
            limit_bytes: usage.limit_bytes as u64,
            used_bytes: usage.used_bytes as u64,
            idle_bytes: usage.idle_bytes as u64,
            waiting: usage.waiting as u64,
            bytes_by_kind: kinds.collect(),
        }
    }
}

/// Status of a unit.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct UnitStatus {
    /// The unit's identity.
    pub uuid: String,
    /// The unit's device.
    pub device: String,
    /// I/O tier: the mechanism that reads and writes the blocks.
    pub io_tier: String,
    /// State of the connection to a remote LUN: `connected`, `waiting` or `failed`; none for a
    /// local device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link: Option<String>,
    /// Whether a sync has failed, so that the unit refuses writes until it is recovered.
    pub poisoned: bool,
    /// Space that a thin disk in a file uses on its file system, in bytes; null if unknown.
    #[serde(default)]
    pub allocated_bytes: Option<u64>,
    /// Free space of that file system in bytes, which other files may use as well; null if unknown.
    #[serde(default)]
    pub free_bytes: Option<u64>,
}

/// The health of a pool; `GET /api/v1/pools` has its members.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct PoolSummary {
    /// Name in the configuration.
    pub name: String,
    /// Health: `healthy`, `degraded` or `failed`.
    pub health: String,
    /// The next step for the administrator; none if nothing is to be done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_step: Option<String>,
}

/// A LUN that waits for its storage.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct WaitingLunStatus {
    /// The target's iSCSI name.
    pub target: String,
    /// The LUN's number.
    pub lun: u16,
    /// The device that is to be opened.
    pub device: String,
    /// Time from which the LUN waits, RFC 3339.
    #[schema(format = DateTime)]
    pub since: String,
    /// Number of failed attempts to open it.
    pub attempts: u32,
    /// Error of the last attempt.
    pub error: String,
}

impl From<&WaitingLun> for WaitingLunStatus {
    fn from(lun: &WaitingLun) -> Self {
        Self {
            target: lun.target.clone(),
            lun: lun.id,
            device: lun.device().to_string(),
            since: rfc3339(lun.since),
            attempts: lun.attempts,
            error: lun.error.clone(),
        }
    }
}

impl Status {
    fn of(served: &Served) -> Self {
        let server = served.daemon.server();
        let catalogue = server.catalogue();
        let units = catalogue.disks();
        let units = units.iter().map(|unit| {
            let options = unit.options();
            UnitStatus {
                uuid: options.uuid.to_string(),
                device: options.device.name().to_owned(),
                io_tier: options.device.io_tier(),
                link: options.device.link().map(|link| link.name().to_owned()),
                poisoned: unit.is_poisoned(),
                allocated_bytes: unit.space_usage().map(|space| space.used_bytes),
                free_bytes: unit.space_usage().map(|space| space.available_bytes),
            }
        });
        let drift = served.daemon.drift();
        let waiting = served.daemon.waiting().all();
        let mut troubles = UnitFault::all(&catalogue);
        troubles.extend(waiting.iter().map(UnitFault::of_waiting));
        let pools = Pools::of(served).pools;
        let running = served.daemon.running();
        troubles.extend(running.skipped_targets.iter().map(UnitFault::of_skipped));
        troubles.extend(pools.iter().filter_map(|pool| UnitFault::of_pool(pool, &running)));
        let pools = pools.into_iter().map(|PoolReport { name, health, next_step, .. }| {
            PoolSummary { name, health, next_step }
        });
        Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            started: rfc3339(served.started),
            uptime_seconds: served.since.elapsed().as_secs(),
            pid: std::process::id(),
            portals: server.addresses().iter().map(ToString::to_string).collect(),
            stopping: served.daemon.is_stopping(),
            health: if troubles.is_empty() { Health::Good } else { Health::Degraded },
            troubles,
            targets: catalogue.targets.len(),
            luns: catalogue.targets.iter().map(|target| target.luns.len()).sum(),
            sessions: server.session_count(),
            connections: server.connections(),
            memory: server.buffers().budget().usage().into(),
            connections_max: server.connections_max(),
            connections_configured: running.limits.server.connections,
            waiting: waiting.iter().map(Into::into).collect(),
            pools: pools.collect(),
            migrations: MigrationList::of(served).migrations,
            units: units.collect(),
            drift: drift.changes.iter().map(ConfigChange::drift_line).collect(),
        }
    }
}

pub(super) fn routes() -> OpenApiRouter<ApiState> {
    OpenApiRouter::new().routes(routes!(status))
}

/// Status of the server: version, uptime, health, drift, units
#[utoipa::path(get, path = "/status", tag = "status",
    responses((status = 200, description = "The status of the server", body = Status)))]
async fn status(
    State(served): State<ApiState>,
    Extension(by): Extension<Caller>,
) -> Result<Response, Problem> {
    document(&served, by, Status::of).await
}
