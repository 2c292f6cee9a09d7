//! Pools that are served, with the state of their members.

use super::documents::document;
use super::problem::Problem;
use super::shared::{ApiState, Served};
use crate::Caller;
use axum::Extension;
use axum::extract::State;
use axum::response::Response;
use lunar_block::BlockDevice;
use lunar_pool::{MemberState, Pool, PoolHealth};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// All pools that are served.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct Pools {
    /// The pools; a pool inside another one comes before it.
    pub pools: Vec<PoolReport>,
}

/// A pool.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct PoolReport {
    /// Name in the configuration.
    pub name: String,
    /// Id, which is written on the members.
    pub id: String,
    /// Kind: `concat`, `stripe` or `mirror`.
    pub kind: String,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Health: `healthy`, `degraded` or `failed`.
    pub health: String,
    /// Generation of the labels; it grows whenever the set of members with all data changes.
    pub generation: u64,
    /// Number of times that acknowledged writes may have been lost.
    pub losses: u64,
    /// Number of times that blocks were repaired which a member could not read.
    pub repairs: u64,
    /// Bytes that were copied to members since the pool was opened.
    pub copied_bytes: u64,
    /// The members, by place.
    pub members: Vec<PoolMemberReport>,
    /// The next step for the administrator; none if nothing is to be done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_step: Option<String>,
}

/// A member of a pool.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct PoolMemberReport {
    /// Place, from 0.
    pub place: u16,
    /// Name of the device; empty if it is missing.
    pub device: String,
    /// State: `current`, `syncing`, `stale` or `missing`.
    pub state: String,
    /// Bytes that are to be copied to it before it has all data.
    pub missing_bytes: u64,
    /// Number of reads that have not ended.
    pub outstanding_reads: u64,
    /// Mean latency of recent reads in microseconds; 0 if none was measured.
    pub latency_us: f64,
    /// Last failure; empty if there was none.
    pub last_failure: String,
}

impl PoolReport {
    fn of(pool: &Pool) -> Self {
        let status = pool.status();
        let members = status.members.iter().map(|member| PoolMemberReport {
            place: member.place,
            device: member.device.clone(),
            state: member.state.name().to_owned(),
            missing_bytes: member.missing_bytes,
            outstanding_reads: member.outstanding_reads,
            latency_us: member.latency_nanos as f64 / 1000.0,
            last_failure: member.last_failure.clone(),
        });
        let states: Vec<MemberState> = status.members.iter().map(|member| member.state).collect();
        Self {
            name: pool.name().to_owned(),
            id: status.pool.to_string(),
            kind: status.kind.as_str().to_owned(),
            size_bytes: pool.geometry().size_bytes(),
            health: status.health.name().to_owned(),
            generation: status.generation,
            losses: status.losses,
            repairs: status.repairs,
            copied_bytes: status.copied_bytes,
            members: members.collect(),
            next_step: next_step(status.health, &states).map(str::to_owned),
        }
    }
}

/// The next step for the administrator of a pool.
fn next_step(health: PoolHealth, members: &[MemberState]) -> Option<&'static str> {
    let is_any = |state| members.contains(&state);
    match health {
        PoolHealth::Healthy => None,
        PoolHealth::Failed => Some(
            "make the failed members available: no data can be read or written until one member \
             has everything",
        ),
        PoolHealth::Degraded if is_any(MemberState::Missing) => {
            Some("make the missing member available, and restart the server")
        }
        PoolHealth::Degraded if is_any(MemberState::Syncing) => {
            Some("wait: the data that a member has missed is being copied to it")
        }
        PoolHealth::Degraded => Some(
            "see the last failure of the member: once its device works again, what it missed is \
             copied to it",
        ),
    }
}

impl Pools {
    fn of(served: &Served) -> Self {
        let pools = served.daemon.pools();
        let pools = pools.iter().filter_map(|pool| pool.pool()).map(|pool| PoolReport::of(pool));
        Self { pools: pools.collect() }
    }
}

pub(super) fn routes() -> OpenApiRouter<ApiState> {
    OpenApiRouter::new().routes(routes!(pools))
}

/// The pools that are served, with the state of their members
#[utoipa::path(get, path = "/pools", tag = "pools",
    responses((status = 200, description = "All pools", body = Pools)))]
async fn pools(
    State(served): State<ApiState>,
    Extension(by): Extension<Caller>,
) -> Result<Response, Problem> {
    document(&served, by, Pools::of).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_state_that_needs_work_has_a_next_step() {
        use MemberState::{Current, Missing, Stale, Syncing};
        assert_eq!(next_step(PoolHealth::Healthy, &[Current, Current]), None);
        let steps = [
            next_step(PoolHealth::Degraded, &[Current, Missing]),
            next_step(PoolHealth::Degraded, &[Current, Syncing]),
            next_step(PoolHealth::Degraded, &[Current, Stale]),
            next_step(PoolHealth::Failed, &[Stale, Stale]),
        ];
        for (at, step) in steps.iter().enumerate() {
            assert!(step.is_some() && !steps[..at].contains(step), "{step:?}");
        }
    }
}
