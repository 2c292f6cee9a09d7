//! How it goes.

use super::health::{Health, Trouble};
use super::problem::Problem;
use super::shared::{Served, Shared, blocking};
use crate::difference::Change;
use crate::time::rfc3339;
use axum::Json;
use axum::extract::State;
use lunar_block::MemoryUsage;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// How a server goes.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct Status {
    /// Version of the program.
    pub version: String,
    /// When it started, RFC 3339.
    #[schema(format = DateTime)]
    pub started: String,
    /// For how long it has been running.
    pub uptime_seconds: u64,
    /// Its process.
    pub pid: u32,
    /// The portals it listens on, `address:port`.
    pub portals: Vec<String>,
    /// Whether it is ending: nothing changes any more.
    pub stopping: bool,
    /// How its units are, in a word.
    pub health: Health,
    /// What is wrong with them; none: nothing.
    pub troubles: Vec<Trouble>,
    /// How many targets there are.
    pub targets: usize,
    /// How many LUNs they have together.
    pub luns: usize,
    /// How many sessions there are.
    pub sessions: usize,
    /// How many connections there are, logged in or not.
    pub connections: usize,
    /// Memory that peers cause.
    pub memory: MemoryStatus,
    /// How many connections there may be at once.
    pub connections_max: usize,
    /// The limit `connections` of the configuration: more than `connections_max` where the system
    /// grants the process too few open files.
    pub connections_configured: usize,
    /// Each unit once, however many LUNs show it.
    pub units: Vec<UnitStatus>,
    /// What runs otherwise than configured, a line each: an apply or a restart undoes it, where
    /// the line does not say what else.
    pub drift: Vec<String>,
}

/// Memory that all peers of the process cause together.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct MemoryStatus {
    /// The most that there may be: `memory_bytes_max`.
    pub limit_bytes: u64,
    /// What there is, idle buffers included.
    pub used_bytes: u64,
    /// Buffers that are kept for the next user, and given up when memory is scarce.
    pub idle_bytes: u64,
    /// Requests for memory that wait because all is in use.
    pub waiting: u64,
    /// What it is used for, in bytes.
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

/// A unit, as it goes.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct UnitStatus {
    /// Its identity.
    pub uuid: String,
    /// What it is on.
    pub device: String,
    /// How its blocks are read and written: which tier of I/O.
    pub io_tier: String,
    /// Whether a sync of it has failed, so that it takes no writes until it is recovered.
    pub poisoned: bool,
}

impl Status {
    fn of(served: &Served) -> Self {
        let server = served.daemon.server();
        let catalogue = server.catalogue();
        let units = catalogue.units();
        let units = units.iter().map(|unit| {
            let options = unit.options();
            UnitStatus {
                uuid: options.uuid.to_string(),
                device: options.device.name().to_owned(),
                io_tier: options.device.io_tier(),
                poisoned: unit.is_poisoned(),
            }
        });
        let drift = served.daemon.drift();
        let troubles = Trouble::all(&catalogue);
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
            sessions: server.sessions().len(),
            connections: server.connections(),
            memory: server.buffers().budget().usage().into(),
            connections_max: server.connections_max(),
            connections_configured: served.daemon.running().limits.server.connections,
            units: units.collect(),
            drift: drift.changes.iter().map(Change::drift_line).collect(),
        }
    }
}

pub(super) fn routes() -> OpenApiRouter<Shared> {
    OpenApiRouter::new().routes(routes!(status))
}

/// How the server goes: version, uptime, health, drift, units
#[utoipa::path(get, path = "/status", tag = "status",
    responses((status = 200, description = "How it goes", body = Status)))]
async fn status(State(served): State<Shared>) -> Result<Json<Status>, Problem> {
    blocking(&served, Status::of).await.map(Json)
}
