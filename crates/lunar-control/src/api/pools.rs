//! Pools that are served: the state of their members, and changes of these.

mod scrub;

use super::documents::document;
use super::extract::{Body, PathParameters};
use super::problem::Problem;
use super::shared::{ApiState, Served};
use crate::daemon::{Daemon, MemberChange};
use crate::device_url::DeviceUrl;
use crate::{AbsentMember, Caller, Failure, ServedPool};
use axum::extract::State;
use axum::response::Response;
use axum::{Extension, Json};
use lunar_block::BlockDevice;
use lunar_pool::{MemberState, PoolHealth, PoolStatus};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub use scrub::{PoolScrubReport, ScrubRequest, ScrubbedMemberReport};

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
    /// Health: `healthy`, `degraded`, `failed`, or `fenced` once another host has taken it over.
    pub health: String,
    /// Generation of the labels; it grows whenever the set of members with all data changes.
    pub generation: u64,
    /// Number of times that acknowledged writes may have been lost.
    pub losses: u64,
    /// Number of times that blocks were repaired which a member could not read.
    pub repairs: u64,
    /// Bytes that were copied to members since the pool was opened.
    pub copied_bytes: u64,
    /// The members, by slot.
    pub members: Vec<PoolMemberReport>,
    /// Devices that the configuration lists, and that are no members now: spare devices, and those
    /// that could not be opened or have no label of the pool.
    #[serde(default)]
    pub others: Vec<OtherDeviceReport>,
    /// The last scrub since the pool was opened, or the one that runs; none if there was none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scrub: Option<PoolScrubReport>,
    /// The next step for the administrator; none if nothing is to be done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_step: Option<String>,
}

/// A member of a pool.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct PoolMemberReport {
    /// Slot, from 0.
    pub slot: u16,
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

/// A device that belongs to a pool by its configuration or its label, and is no member.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct OtherDeviceReport {
    /// Name of the device.
    pub device: String,
    /// State: `spare`, `replaced`, `too-small`, `removed`, or `absent` for a configured device that
    /// was not opened.
    pub state: String,
    /// The last failure, or the reason; empty if there is none.
    pub last_failure: String,
}

/// A request for a new member.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewMember {
    /// The device, which the configuration lists among the members of the pool.
    pub device: String,
}

/// The result of a change of a pool.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct PoolChanged {
    /// The pool after the change.
    pub pool: PoolReport,
    /// The lines (TOML) to paste into the configuration, so that it lists the members.
    pub toml: String,
}

impl PoolReport {
    fn of(open: &ServedPool, listed: &[DeviceUrl]) -> Self {
        let pool = open.pool();
        let status = pool.status();
        let members = status.members.iter().map(|member| PoolMemberReport {
            slot: member.slot,
            device: member.device.clone(),
            state: member.state.name().to_owned(),
            missing_bytes: member.missing_bytes,
            outstanding_reads: member.outstanding_reads,
            latency_us: member.latency_nanos as f64 / 1000.0,
            last_failure: member.last_failure.clone(),
        });
        let absent = open.absent().all();
        let scrub = status.scrub.as_ref();
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
            others: others(&status, &absent),
            scrub: scrub.map(|progress| PoolScrubReport::of(progress, open.scrub_end())),
            next_step: next_step(pool.name(), &status, &absent, listed),
        }
    }
}

fn others(status: &PoolStatus, absent: &[AbsentMember]) -> Vec<OtherDeviceReport> {
    let unused = status.unused.iter().map(|device| OtherDeviceReport {
        device: device.device.clone(),
        state: device.state.name().to_owned(),
        last_failure: device.last_failure.clone(),
    });
    let absent = absent.iter().map(|device| OtherDeviceReport {
        device: device.config.device.to_string(),
        state: "absent".to_owned(),
        last_failure: device.error.clone(),
    });
    unused.chain(absent).collect()
}

/// The next step for the administrator of a pool.
fn next_step(
    name: &str,
    status: &PoolStatus,
    absent: &[AbsentMember],
    listed: &[DeviceUrl],
) -> Option<String> {
    if status.health == PoolHealth::Fenced {
        return Some(format!(
            "another host has taken the pool over: remove it here; or take it back with a restart: \
             lunar target --config FILE --take-over {name}"
        ));
    }
    if status.health == PoolHealth::Failed {
        let step = "make the failed members available: no data can be read or written until one \
                    member has everything";
        return Some(step.to_owned());
    }
    let missing = status.members.iter().find(|member| member.state == MemberState::Missing);
    let unlabelled = absent.iter().find(|device| device.lacks_label);
    if let Some(missing) = missing {
        return Some(match unlabelled {
            Some(device) => format!(
                "give the slot of the missing member to the device without a label: lunar pool \
                 replace {name} {} {}",
                missing.slot, device.config.device
            ),
            None => format!(
                "make member {0} available: it returns by itself, and gets what it has missed; or \
                 replace it: lunar pool replace {name} {0} DEVICE",
                missing.slot
            ),
        });
    }
    if status.health == PoolHealth::Degraded {
        let is_syncing = status.members.iter().any(|one| one.state == MemberState::Syncing);
        return Some(match is_syncing {
            true => "wait: the data that a member has missed is being copied to it".to_owned(),
            false => "see the last failure of the member: once its device works again, what it \
                      missed is copied to it"
                .to_owned(),
        });
    }
    if let Some(device) = unlabelled {
        return Some(format!(
            "make {0} a member: lunar pool add {name} {0}; or remove it from the configuration",
            device.config.device
        ));
    }
    let is_listed = |device: &str| listed.iter().any(|one| one.is_device(device));
    let mut devices = status.members.iter().map(|member| &member.device);
    let unlisted = devices.find(|device| !device.is_empty() && !is_listed(device))?;
    Some(format!("write {unlisted} into the members of the [[pool]] {name}"))
}

impl Pools {
    pub(super) fn of(served: &Served) -> Self {
        let daemon = &served.daemon;
        let pools = daemon.pools().all();
        Self { pools: pools.iter().map(|pool| report(daemon, pool)).collect() }
    }
}

fn report(daemon: &Daemon, open: &ServedPool) -> PoolReport {
    PoolReport::of(open, &daemon.listed_devices(open.name()))
}

pub(super) fn routes() -> OpenApiRouter<ApiState> {
    OpenApiRouter::new()
        .routes(routes!(pools))
        .routes(routes!(add))
        .routes(routes!(replace))
        .routes(routes!(remove))
        .merge(scrub::routes())
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

/// Runs a change of a pool and returns its result.
async fn change(
    served: &ApiState,
    work: impl FnOnce(&Daemon) -> Result<ServedPool, Failure> + Send + 'static,
) -> Result<Json<PoolChanged>, Problem> {
    let changed = served.changes.blocking(served, move |served| {
        let daemon = &served.daemon;
        let pool = report(daemon, &work(daemon)?);
        Ok::<_, Failure>(PoolChanged { pool, toml: daemon.toml_of_drift() })
    });
    Ok(Json(changed.await??))
}

/// Adds a member to a mirror while it is in use; the mirror is copied to it from then on
#[utoipa::path(post, path = "/pools/{pool}/members", tag = "pools", request_body = NewMember,
    params(("pool" = String, Path, description = "The pool's name")),
    responses((status = 200, description = "The device is a member", body = PoolChanged)))]
async fn add(
    State(served): State<ApiState>,
    Extension(by): Extension<Caller>,
    PathParameters(pool): PathParameters<String>,
    Body(NewMember { device }, _charge): Body<NewMember>,
) -> Result<Json<PoolChanged>, Problem> {
    change(&served, move |daemon| daemon.change_members(&pool, &MemberChange::Add { device }, &by))
        .await
}

/// Gives the slot of a member of a mirror to another device; the mirror is copied to it from then
/// on
#[utoipa::path(post, path = "/pools/{pool}/members/{slot}/replace", tag = "pools",
    request_body = NewMember,
    params(
        ("pool" = String, Path, description = "The pool's name"),
        ("slot" = u16, Path, description = "The member's slot"),
    ),
    responses((status = 200, description = "The device has the slot", body = PoolChanged)))]
async fn replace(
    State(served): State<ApiState>,
    Extension(by): Extension<Caller>,
    PathParameters((pool, slot)): PathParameters<(String, u16)>,
    Body(NewMember { device }, _charge): Body<NewMember>,
) -> Result<Json<PoolChanged>, Problem> {
    change(&served, move |daemon| {
        daemon.change_members(&pool, &MemberChange::Replace { slot, device }, &by)
    })
    .await
}

/// Removes a member of a mirror for good; at least two members remain
#[utoipa::path(delete, path = "/pools/{pool}/members/{slot}", tag = "pools",
    params(
        ("pool" = String, Path, description = "The pool's name"),
        ("slot" = u16, Path, description = "The member's slot"),
    ),
    responses((status = 200, description = "The device is no member any more",
        body = PoolChanged)))]
async fn remove(
    State(served): State<ApiState>,
    Extension(by): Extension<Caller>,
    PathParameters((pool, slot)): PathParameters<(String, u16)>,
) -> Result<Json<PoolChanged>, Problem> {
    change(&served, move |daemon| daemon.change_members(&pool, &MemberChange::Remove { slot }, &by))
        .await
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_pool::format::{PoolId, PoolKind};
    use lunar_pool::{PoolMember, PoolStatus};

    fn status(health: PoolHealth, states: &[MemberState]) -> PoolStatus {
        let member = |(slot, state): (u16, &MemberState)| PoolMember {
            slot,
            device: format!("/srv/{slot}.img"),
            state: *state,
            missing_bytes: 0,
            outstanding_reads: 0,
            latency_nanos: 0,
            last_failure: String::new(),
        };
        PoolStatus {
            pool: PoolId([0; 16]),
            kind: PoolKind::MIRROR,
            generation: 1,
            health,
            losses: 0,
            repairs: 0,
            copied_bytes: 0,
            members: (0..).zip(states).map(member).collect(),
            unused: Vec::new(),
            scrub: None,
        }
    }

    #[test]
    fn each_state_that_needs_work_has_a_next_step() {
        use MemberState::{Current, Missing, Stale, Syncing};
        let listed: Vec<_> =
            ["/srv/0.img", "/srv/1.img"].map(|path| DeviceUrl::File(path.into())).into();
        let step = |health, states: &[_], listed: &[DeviceUrl]| {
            next_step("p", &status(health, states), &[], listed)
        };
        assert_eq!(step(PoolHealth::Healthy, &[Current, Current], &listed), None);
        let steps = [
            step(PoolHealth::Degraded, &[Current, Missing], &listed),
            step(PoolHealth::Degraded, &[Current, Syncing], &listed),
            step(PoolHealth::Degraded, &[Current, Stale], &listed),
            step(PoolHealth::Failed, &[Stale, Stale], &listed),
            step(PoolHealth::Healthy, &[Current, Current], &listed[..1]),
        ];
        for (at, step) in steps.iter().enumerate() {
            assert!(step.is_some() && !steps[..at].contains(step), "{step:?}");
        }
    }
}
