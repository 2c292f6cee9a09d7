//! How it goes.

use super::operator::{Shared, blocking};
use super::problem::Problem;
use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
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
    /// How many targets there are.
    pub targets: usize,
    /// How many LUNs they have together.
    pub luns: usize,
    /// How many sessions there are.
    pub sessions: usize,
    /// How many connections there are, logged in or not.
    pub connections: usize,
    /// Each unit once, however many LUNs show it.
    pub units: Vec<UnitStatus>,
    /// What runs otherwise than configured, a line each: the next apply undoes it.
    pub drift: Vec<String>,
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
}

pub(super) fn routes() -> OpenApiRouter<Shared> {
    OpenApiRouter::new().routes(routes!(status))
}

/// How the server goes: version, uptime, drift, units
#[utoipa::path(get, path = "/status", tag = "status",
    responses((status = 200, description = "How it goes", body = Status)))]
async fn status(State(operator): State<Shared>) -> Result<Json<Status>, Problem> {
    blocking(&operator, |operator| operator.status()).await.map(Json)
}
