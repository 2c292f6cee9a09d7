//! Targets and LUNs.

use super::extract::PathParameters;
use super::problem::Problem;
use super::shared::{ApiState, Served, blocking};
use super::streamed::{self, ListChanged};
use crate::config::limit_settings::{InitiatorLimitInForce, LimitInForce};
use crate::device_url::IdentitySource;
use axum::BoxError;
use axum::extract::State;
use axum::response::Response;
use lunar_target::{Access, CacheMode, DiskUnit, LunOptions, Portal, TargetOptions};
use serde::{Deserialize, Serialize};
use std::sync::{Arc, Weak};
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
    // The last member, because an answer encodes the LUNs one by one.
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
    /// The identity that initiators see: `own`, derived from the UUID, or `device`, that of the
    /// remote LUN.
    pub identity: String,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Space that a thin disk in a file uses on its file system, in bytes; null if unknown.
    #[serde(default)]
    pub allocated_bytes: Option<u64>,
    /// Free space of that file system in bytes, which other files may use as well; null if unknown.
    #[serde(default)]
    pub free_bytes: Option<u64>,
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
    /// Whether a sync of the disk has failed, so that the LUN refuses writes until it is
    /// recovered.
    pub poisoned: bool,
    /// Initiators, of those that may log in, that see the LUN; empty: all.
    pub initiators: Vec<String>,
    /// Networks from which the LUN is seen; empty: all.
    pub networks: Vec<String>,
    /// Names of the initiators that may administer the unit, instead of those of the target;
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
        let luns = target.luns.iter().map(Lun::new).collect();
        Self { luns, ..Self::without_luns(target, portals) }
    }

    fn without_luns(target: &TargetOptions, portals: &[Portal]) -> Self {
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
            luns: Vec::new(),
        }
    }
}

impl Lun {
    /// Describes `lun`.
    pub fn new(lun: &LunOptions) -> Self {
        let (unit, values, disk) = (&lun.unit, lun.unit.statistics(), lun.disk());
        let options = disk.map(DiskUnit::options);
        let geometry = options.map(|options| options.device.geometry());
        Self {
            id: lun.id,
            device: unit.name().to_owned(),
            uuid: unit.uuid().to_string(),
            identity: match unit.reported_identity() {
                Some(_) => IdentitySource::Device.name().to_owned(),
                None => IdentitySource::Own.name().to_owned(),
            },
            size_bytes: values.size_bytes,
            allocated_bytes: values.space.map(|space| space.used_bytes),
            free_bytes: values.space.map(|space| space.available_bytes),
            block_bytes: geometry.map_or(0, |geometry| geometry.block_bytes),
            physical_block_bytes: geometry.map_or(0, |geometry| geometry.physical_block_bytes),
            cache: cache(values.cache).to_owned(),
            io_tier: values.io_tier,
            thin: options.is_some_and(|disk| disk.thin && disk.device.sparse().is_some()),
            read_only: unit.is_read_only(),
            removable: options.is_some_and(|disk| disk.removable),
            poisoned: disk.is_some_and(DiskUnit::is_poisoned),
            initiators: lun.access.initiators.clone(),
            networks: networks(&lun.access),
            administer: lun.administer.clone(),
            limit: unit.common().limit().into(),
            initiator_limits: unit.common().initiator_limits().iter().map(Into::into).collect(),
        }
    }
}

/// The targets at the time of the request. An answer that is being sent keeps none of them, nor
/// their disks, in use.
struct ListedTargets {
    targets: std::vec::IntoIter<Weak<TargetOptions>>,
    portals: Vec<Portal>,
}

impl ListedTargets {
    fn new(served: &Served, is_listed: impl Fn(&TargetOptions) -> bool) -> Self {
        let portals = served.daemon.running().portals;
        let targets = served.daemon.server().catalogue().targets;
        let listed = targets.iter().filter(|target| is_listed(target)).map(Arc::downgrade);
        Self { targets: listed.collect::<Vec<_>>().into_iter(), portals }
    }

    /// The targets with their LUNs, as JSON.
    fn texts(self) -> impl Iterator<Item = Result<Vec<u8>, BoxError>> + Send {
        let Self { targets, portals } = self;
        targets.enumerate().flat_map(move |(index, target)| {
            let comma = if index == 0 { "" } else { "," };
            let head = std::iter::once_with({
                let (target, portals) = (Weak::clone(&target), portals.clone());
                move || head(comma, &*still_served(&target)?, &portals)
            });
            let luns = streamed::separated(each_lun(target, |_, lun| Lun::new(lun)));
            head.chain(luns).chain(std::iter::once(Ok(TARGET_END.to_vec())))
        })
    }
}

/// End of a target in JSON: its LUNs are its last member.
const TARGET_END: &[u8] = b"]}";

/// A target in JSON up to its first LUN, after `comma`.
fn head(comma: &str, target: &TargetOptions, portals: &[Portal]) -> Result<Vec<u8>, BoxError> {
    let mut text = comma.as_bytes().to_vec();
    serde_json::to_writer(&mut text, &Target::without_luns(target, portals))?;
    if !text.ends_with(TARGET_END) {
        return Err("the member `luns` of a target is not the last one".into());
    }
    text.truncate(text.len() - TARGET_END.len());
    Ok(text)
}

/// Each LUN of a target, as long as the target is served as it is.
fn each_lun<T>(
    target: Weak<TargetOptions>,
    describe: impl Fn(&TargetOptions, &LunOptions) -> T + Send,
) -> impl Iterator<Item = Result<T, BoxError>> + Send {
    let mut indexes = 0..;
    let mut next = move || {
        let target = still_served(&target)?;
        let lun = indexes.next().and_then(|index: usize| target.luns.get(index));
        Ok(lun.map(|lun| describe(&target, lun)))
    };
    std::iter::from_fn(move || next().transpose())
}

fn still_served(target: &Weak<TargetOptions>) -> Result<Arc<TargetOptions>, ListChanged> {
    target.upgrade().ok_or(ListChanged)
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
async fn targets(State(served): State<ApiState>) -> Result<Response, Problem> {
    let listed = blocking(&served, |served| ListedTargets::new(served, |_| true)).await?;
    let head = std::iter::once(Ok(b"{\"targets\":[".to_vec()));
    let end = std::iter::once(Ok(b"]}".to_vec()));
    streamed::text(Box::new(head.chain(listed.texts()).chain(end))).await
}

/// One target
#[utoipa::path(get, path = "/targets/{target}", tag = "targets",
    params(("target" = String, Path, description = "The target's iSCSI name")),
    responses((status = 200, description = "The target", body = Target)))]
async fn target(
    State(served): State<ApiState>,
    PathParameters(name): PathParameters<String>,
) -> Result<Response, Problem> {
    let wanted = name.clone();
    let has_name = move |target: &TargetOptions| target.name.eq_ignore_ascii_case(&wanted);
    let listed = blocking(&served, |served| ListedTargets::new(served, has_name)).await?;
    if listed.targets.len() == 0 {
        return Err(Problem::not_found(format!("there is no target {name}"))
            .hint("see GET /api/v1/targets for the current targets"));
    }
    streamed::text(Box::new(listed.texts())).await
}

/// The LUNs of all targets
#[utoipa::path(get, path = "/luns", tag = "luns",
    responses((status = 200, description = "All LUNs", body = Luns)))]
async fn luns(State(served): State<ApiState>) -> Result<Response, Problem> {
    let listed = blocking(&served, |served| ListedTargets::new(served, |_| true)).await?;
    let luns = listed.targets.flat_map(|target| {
        each_lun(target, |target, lun| LunOfTarget {
            target: target.name.clone(),
            lun: Lun::new(lun),
        })
    });
    streamed::list("luns", luns).await
}
