//! Moves of extents of virtual LUNs to other blocks, while the LUNs are in use.

use super::documents::document;
use super::extract::{Body, PathParameters};
use super::problem::Problem;
use super::shared::{ApiState, Served};
use crate::daemon::{Daemon, LunSelector, MigrationJob, MigrationJobState, MigrationRequest};
use crate::time::rfc3339;
use crate::{Caller, Failure};
use axum::extract::State;
use axum::response::Response;
use axum::{Extension, Json};
use lunar_switch::MigrationPhase;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// All moves of extents.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct MigrationList {
    /// The moves that run, and the last ones that have ended; the latest one last.
    pub migrations: Vec<MigrationReport>,
}

/// A move of an extent.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct MigrationReport {
    /// The target's iSCSI name.
    pub target: String,
    /// The LUN's number.
    pub lun: u16,
    /// Position of the extent in the LUN, from 0.
    pub extent: usize,
    /// The source: the location of the extent at the beginning, `STORAGE:START+LENGTH`.
    pub from: String,
    /// The destination, likewise.
    pub to: String,
    /// State: `waiting` for the LUN or the storage after a start of the server, `starting`,
    /// `copying`, `paused` after a failure, `ending`, `moved`, `cancelled`.
    pub state: String,
    /// Time of the beginning, RFC 3339.
    #[schema(format = DateTime)]
    pub begun: String,
    /// Length of the extent.
    pub size_bytes: u64,
    /// Bytes that are to be copied before the destination has all data.
    pub missing_bytes: u64,
    /// Bytes that were copied, some of them maybe several times.
    pub copied_bytes: u64,
    /// Number of times that the copy began again, because a storage may have lost writes.
    pub restarts: u64,
    /// The last failure; empty if there is none.
    pub last_failure: String,
}

/// A request to move an extent.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewMigration {
    /// Position of the extent in the LUN, from 0; may be omitted if the LUN has one.
    #[serde(default)]
    pub extent: Option<usize>,
    /// Name of the storage that gets the extent.
    pub storage: String,
    /// First byte there.
    pub start_bytes: u64,
    /// Maximum rate of the copy in bytes per second; without it the limit
    /// `migration_bytes_per_second` holds while hosts use the LUN.
    #[serde(default)]
    #[schema(minimum = 65536)]
    pub bytes_per_second: Option<u64>,
}

/// Minimum of a requested rate.
const RATE_MIN: u64 = 64 << 10;

impl MigrationReport {
    /// Describes a move.
    pub fn of(job: &MigrationJob) -> Self {
        let (state, progress, failure) = match job.state() {
            MigrationJobState::Waiting(failure) => ("waiting", None, failure),
            MigrationJobState::Cancelled => ("cancelled", None, String::new()),
            MigrationJobState::Moved(progress) => ("moved", Some(progress), String::new()),
            MigrationJobState::Running(progress) => {
                let failure = progress.last_failure.clone();
                let state = match progress.phase {
                    MigrationPhase::Moved | MigrationPhase::Cancelled => "ending",
                    phase => phase.name(),
                };
                (state, Some(progress), failure)
            }
        };
        let size_bytes = job.from.length_bytes;
        Self {
            target: job.target.clone(),
            lun: job.id,
            extent: job.extent,
            from: job.from.to_string(),
            to: job.to.to_string(),
            state: state.to_owned(),
            begun: rfc3339(job.begun),
            size_bytes,
            missing_bytes: progress.as_ref().map_or(size_bytes, |one| one.missing_bytes),
            copied_bytes: progress.as_ref().map_or(0, |one| one.copied_bytes),
            restarts: progress.as_ref().map_or(0, |one| one.restarts),
            last_failure: failure,
        }
    }

    /// True if the move has ended.
    pub fn has_ended(&self) -> bool {
        ["moved", "cancelled"].contains(&&*self.state)
    }
}

impl MigrationList {
    pub(super) fn of(served: &Served) -> Self {
        let all = served.daemon.migrations().all();
        Self { migrations: all.iter().map(|job| MigrationReport::of(job)).collect() }
    }
}

pub(super) fn routes() -> OpenApiRouter<ApiState> {
    OpenApiRouter::new().routes(routes!(migrations)).routes(routes!(migrate, cancel))
}

/// The moves of extents of virtual LUNs, with their progress
#[utoipa::path(get, path = "/migrations", tag = "luns",
    responses((status = 200, description = "All moves", body = MigrationList)))]
async fn migrations(
    State(served): State<ApiState>,
    Extension(by): Extension<Caller>,
) -> Result<Response, Problem> {
    document(&served, by, MigrationList::of).await
}

/// Begins to move an extent of a virtual LUN to other blocks, while hosts use the LUN
#[utoipa::path(post, path = "/targets/{target}/luns/{lun}/migration", tag = "luns",
    request_body = NewMigration,
    params(
        ("target" = String, Path, description = "The target's iSCSI name"),
        ("lun" = u16, Path, description = "The LUN's number", maximum = 16383),
    ),
    responses((status = 200, description = "The move has begun", body = MigrationReport)))]
async fn migrate(
    State(served): State<ApiState>,
    Extension(by): Extension<Caller>,
    PathParameters((target, id)): PathParameters<(String, u16)>,
    Body(to, _charge): Body<NewMigration>,
) -> Result<Json<MigrationReport>, Problem> {
    let begun = served.changes.blocking(&served, move |served| {
        if to.bytes_per_second.is_some_and(|rate| rate < RATE_MIN) {
            let what = format!("the rate must be at least {RATE_MIN} bytes per second");
            return Err(Failure::usage(what));
        }
        let request = MigrationRequest {
            extent: to.extent,
            storage: to.storage,
            start_bytes: to.start_bytes,
            bytes_per_second: to.bytes_per_second,
        };
        let at = LunSelector { target: &target, id, device: None };
        let job = Daemon::migrate(&served.daemon, &at, &request, &by)?;
        Ok(MigrationReport::of(&job))
    });
    Ok(Json(begun.await??))
}

/// Cancels the move of an extent of a LUN; the extent stays where it is
#[utoipa::path(delete, path = "/targets/{target}/luns/{lun}/migration", tag = "luns",
    params(
        ("target" = String, Path, description = "The target's iSCSI name"),
        ("lun" = u16, Path, description = "The LUN's number", maximum = 16383),
    ),
    responses((status = 200, description = "The move ends", body = MigrationReport)))]
async fn cancel(
    State(served): State<ApiState>,
    Extension(by): Extension<Caller>,
    PathParameters((target, id)): PathParameters<(String, u16)>,
) -> Result<Json<MigrationReport>, Problem> {
    let cancelled = served.changes.blocking(&served, move |served| {
        let at = LunSelector { target: &target, id, device: None };
        let job = served.daemon.cancel_migration(&at, &by)?;
        Ok::<_, Failure>(MigrationReport::of(&job))
    });
    Ok(Json(cancelled.await??))
}
