//! What is served.

use super::extract::At;
use super::problem::Problem;
use super::shared::{Served, Shared, blocking};
use crate::config::limit_settings::{InitiatorLimitInForce, LimitInForce};
use axum::Json;
use axum::extract::State;
use lunar_target::{Access, CacheMode, LunOptions, Portal, TargetOptions};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// All targets.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct Targets {
    /// In the order of the configuration.
    pub targets: Vec<Target>,
}

/// A target.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct Target {
    /// Its iSCSI name.
    pub name: String,
    /// Its tag at portals that have none of their own.
    pub portal_group: u16,
    /// Its tag at each portal, in their order.
    pub portal_groups: Vec<u16>,
    /// Names of the initiators that may log in; empty: all.
    pub initiators: Vec<String>,
    /// Networks from which one may log in; empty: all.
    pub networks: Vec<String>,
    /// Names of the initiators that may reset it and administer its units; empty: nobody; null:
    /// all that may log in.
    pub administer: Option<Vec<String>>,
    /// Whether initiators have to prove who they are.
    pub chap: bool,
    /// Where logins are sent instead.
    pub redirect: Option<String>,
    /// How much initiators may do at all its LUNs together; empty: as much as there is.
    pub initiator_limits: Vec<InitiatorLimitInForce>,
    /// Its LUNs.
    pub luns: Vec<Lun>,
}

/// All LUNs.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct Luns {
    /// Those of the first target first.
    pub luns: Vec<LunOfTarget>,
}

/// A LUN, and whose it is.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct LunOfTarget {
    /// The target's iSCSI name.
    pub target: String,
    /// The LUN.
    #[serde(flatten)]
    pub lun: Lun,
}

/// A LUN.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct Lun {
    /// Its number. Several LUNs of a target may have the same, each for other initiators.
    pub id: u16,
    /// What it is on.
    pub device: String,
    /// The unit's identity.
    pub uuid: String,
    /// Its size.
    pub size_bytes: u64,
    /// Its logical blocks.
    pub block_bytes: u32,
    /// Its physical blocks.
    pub physical_block_bytes: u32,
    /// When a write is acknowledged: `write-through` or `write-back`.
    pub cache: String,
    /// How its blocks are read and written: which tier of I/O.
    pub io_tier: String,
    /// Whether blocks can be deallocated.
    pub thin: bool,
    /// Whether writes are refused.
    pub read_only: bool,
    /// Whether it is shown as a removable medium.
    pub removable: bool,
    /// Whether a sync of its disk has failed, so that it takes no writes until it is recovered.
    pub poisoned: bool,
    /// Initiators, of those that may log in, that see it; empty: all.
    pub initiators: Vec<String>,
    /// Networks from which it is seen; empty: all.
    pub networks: Vec<String>,
    /// Names of the initiators that may administer its unit, in place of those of the target;
    /// empty: nobody; null: as the target has it.
    pub administer: Option<Vec<String>>,
    /// How much all initiators together may do.
    pub limit: LimitInForce,
    /// How much each initiator may do here; empty: as much as there is.
    pub initiator_limits: Vec<InitiatorLimitInForce>,
}

impl Target {
    /// As `target` is served at `portals`.
    pub fn new(target: &TargetOptions, portals: &[Portal]) -> Self {
        Self {
            name: target.name.clone(),
            portal_group: target.portal_group,
            portal_groups: portals.iter().map(|p| target.portal_group_at(p)).collect(),
            initiators: target.access.initiators.clone(),
            networks: networks(&target.access),
            administer: target.administer.clone(),
            chap: !target.chap.is_empty(),
            redirect: target.redirect.clone(),
            initiator_limits: target.initiator_limits.iter().map(Into::into).collect(),
            luns: target.luns.iter().map(Lun::new).collect(),
        }
    }
}

impl Lun {
    /// As `lun` is served.
    pub fn new(lun: &LunOptions) -> Self {
        let unit = lun.unit.options();
        let geometry = unit.device.geometry();
        Self {
            id: lun.id,
            device: unit.device.name().to_owned(),
            uuid: unit.uuid.to_string(),
            size_bytes: geometry.size_bytes(),
            block_bytes: geometry.block_bytes,
            physical_block_bytes: geometry.physical_block_bytes,
            cache: cache(unit.cache).to_owned(),
            io_tier: unit.device.io_tier(),
            thin: unit.thin && unit.device.sparse().is_some(),
            read_only: unit.read_only || unit.device.is_read_only(),
            removable: unit.removable,
            poisoned: lun.unit.is_poisoned(),
            initiators: lun.access.initiators.clone(),
            networks: networks(&lun.access),
            administer: lun.administer.clone(),
            limit: lun.unit.limit().into(),
            initiator_limits: lun.unit.initiator_limits().iter().map(Into::into).collect(),
        }
    }
}

fn all(served: &Served) -> Vec<Target> {
    let portals = served.daemon.running().portals;
    let targets = served.daemon.server().catalogue().targets;
    targets.iter().map(|target| Target::new(target, &portals)).collect()
}

fn networks(access: &Access) -> Vec<String> {
    access.networks.iter().map(ToString::to_string).collect()
}

fn cache(mode: CacheMode) -> &'static str {
    match mode {
        CacheMode::WriteThrough => "write-through",
        CacheMode::WriteBack => "write-back",
    }
}

pub(super) fn routes() -> OpenApiRouter<Shared> {
    OpenApiRouter::new().routes(routes!(targets)).routes(routes!(target)).routes(routes!(luns))
}

/// What is served: the targets and their LUNs
#[utoipa::path(get, path = "/targets", tag = "targets",
    responses((status = 200, description = "All targets", body = Targets)))]
async fn targets(State(served): State<Shared>) -> Result<Json<Targets>, Problem> {
    let targets = blocking(&served, all).await?;
    Ok(Json(Targets { targets }))
}

/// One target
#[utoipa::path(get, path = "/targets/{target}", tag = "targets",
    params(("target" = String, Path, description = "The target's iSCSI name")),
    responses((status = 200, description = "The target", body = Target)))]
async fn target(
    State(served): State<Shared>,
    At(name): At<String>,
) -> Result<Json<Target>, Problem> {
    let targets = blocking(&served, all).await?;
    let found = targets.into_iter().find(|target| target.name.eq_ignore_ascii_case(&name));
    found.map(Json).ok_or_else(|| {
        Problem::not_found(format!("there is no target {name}"))
            .hint("GET /api/v1/targets lists those there are")
    })
}

/// The LUNs of all targets
#[utoipa::path(get, path = "/luns", tag = "luns",
    responses((status = 200, description = "All LUNs", body = Luns)))]
async fn luns(State(served): State<Shared>) -> Result<Json<Luns>, Problem> {
    let targets = blocking(&served, all).await?;
    let luns = targets.into_iter().flat_map(|target| {
        let name = target.name;
        target.luns.into_iter().map(move |lun| LunOfTarget { target: name.clone(), lun })
    });
    Ok(Json(Luns { luns: luns.collect() }))
}
