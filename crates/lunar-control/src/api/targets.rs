//! Targets and LUNs.

use super::extract::At;
use super::problem::Problem;
use super::shared::{ApiState, Served, blocking};
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
    /// All targets, in the order of the configuration.
    pub targets: Vec<Target>,
}

/// A target.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct Target {
    /// The target's iSCSI name.
    pub name: String,
    /// Portal group tag at portals that have no tag of their own.
    pub portal_group: u16,
    /// Portal group tag at each portal, in the order of the portals.
    pub portal_groups: Vec<u16>,
    /// Names of the initiators that may log in; empty: all.
    pub initiators: Vec<String>,
    /// Networks from which initiators may log in; empty: all.
    pub networks: Vec<String>,
    /// Names of the initiators that may reset the target and administer its units; empty: nobody;
    /// null: all that may log in.
    pub administer: Option<Vec<String>>,
    /// Whether initiators must authenticate with CHAP.
    pub chap: bool,
    /// The address that logins are redirected to.
    pub redirect: Option<String>,
    /// Limits of initiators at all LUNs of the target together; empty: unlimited.
    pub initiator_limits: Vec<InitiatorLimitInForce>,
    /// The target's LUNs.
    pub luns: Vec<Lun>,
}

/// All LUNs.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct Luns {
    /// All LUNs, ordered by target.
    pub luns: Vec<LunOfTarget>,
}

/// A LUN with the name of its target.
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
    /// The LUN's number. Several LUNs of a target may have the same, each for other initiators.
    pub id: u16,
    /// The unit's device.
    pub device: String,
    /// The unit's identity.
    pub uuid: String,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Size of a logical block in bytes.
    pub block_bytes: u32,
    /// Size of a physical block in bytes.
    pub physical_block_bytes: u32,
    /// When a write is acknowledged: `write-through` or `write-back`.
    pub cache: String,
    /// I/O tier: the mechanism that reads and writes the blocks.
    pub io_tier: String,
    /// Whether blocks can be deallocated.
    pub thin: bool,
    /// Whether writes are refused.
    pub read_only: bool,
    /// Whether the LUN is shown as a removable medium.
    pub removable: bool,
    /// Whether a sync of the disk has failed, so that the LUN takes no writes until it is
    /// recovered.
    pub poisoned: bool,
    /// Initiators, of those that may log in, that see the LUN; empty: all.
    pub initiators: Vec<String>,
    /// Networks from which the LUN is seen; empty: all.
    pub networks: Vec<String>,
    /// Names of the initiators that may administer the unit, in place of those of the target;
    /// empty: nobody; null: as for the target.
    pub administer: Option<Vec<String>>,
    /// Limit of all initiators together.
    pub limit: LimitInForce,
    /// Limits of initiators at this LUN; empty: unlimited.
    pub initiator_limits: Vec<InitiatorLimitInForce>,
}

impl Target {
    /// Describes `target`, which is served at `portals`.
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
    /// Describes `lun`.
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

pub(super) fn routes() -> OpenApiRouter<ApiState> {
    OpenApiRouter::new().routes(routes!(targets)).routes(routes!(target)).routes(routes!(luns))
}

/// All targets and their LUNs
#[utoipa::path(get, path = "/targets", tag = "targets",
    responses((status = 200, description = "All targets", body = Targets)))]
async fn targets(State(served): State<ApiState>) -> Result<Json<Targets>, Problem> {
    let targets = blocking(&served, all).await?;
    Ok(Json(Targets { targets }))
}

/// One target
#[utoipa::path(get, path = "/targets/{target}", tag = "targets",
    params(("target" = String, Path, description = "The target's iSCSI name")),
    responses((status = 200, description = "The target", body = Target)))]
async fn target(
    State(served): State<ApiState>,
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
async fn luns(State(served): State<ApiState>) -> Result<Json<Luns>, Problem> {
    let targets = blocking(&served, all).await?;
    let luns = targets.into_iter().flat_map(|target| {
        let name = target.name;
        target.luns.into_iter().map(move |lun| LunOfTarget { target: name.clone(), lun })
    });
    Ok(Json(Luns { luns: luns.collect() }))
}
