//! The configuration of a server as plain values, without open files.

use super::api_options::ApiOptions;
use super::named_limits::NamedLimits;
use super::virtual_lun::StorageConfig;
use crate::device_url::{DeviceOptions, DeviceUrl, IdentitySource};
use lunar_initiator::Chap;
use lunar_iscsi::login::ChapRequirement;
use lunar_iscsi::text::Offer;
use lunar_target::{Access, CacheMode, ChapEntry, InitiatorLimit, Limit, OutOfSpace, Portal};
use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use uuid::Uuid;

/// Configuration of one server process.
#[derive(Clone, Debug)]
pub struct Configuration {
    /// Directory for the state of units; `None`: beside each file.
    pub state: Option<PathBuf>,
    /// The portals.
    pub portals: Vec<Portal>,
    /// CHAP credentials for discovery sessions.
    pub discovery_chap: Option<ChapConfig>,
    /// Options of the API.
    pub api: ApiOptions,
    /// Number of data-plane threads; 0: one per core.
    pub cores: usize,
    /// Data-plane threads poll for a while before they sleep.
    pub latency_mode: bool,
    /// Each data-plane thread has a ring for direct I/O and for reads of data that is not cached,
    /// if the system permits it.
    pub io_uring: bool,
    /// Named limits.
    pub limits: NamedLimits,
    /// Address of the metrics endpoint; `None`: no metrics.
    pub metrics: Option<SocketAddr>,
    /// The storages of virtual LUNs.
    pub storages: Vec<Arc<StorageConfig>>,
    /// The pools; a pool whose members are pools comes after these.
    pub pools: Vec<Arc<PoolConfig>>,
    /// The targets.
    pub targets: Vec<TargetConfig>,
    /// Targets of the state directory that are not served, because a file does not exist.
    pub skipped_targets: Vec<SkippedTarget>,
}

impl Configuration {
    /// True if a LUN serves the pool, by itself or as part of another pool.
    pub fn serves_pool(&self, pool: &PoolConfig) -> bool {
        let luns = self.targets.iter().flat_map(|target| &target.luns);
        luns.filter_map(|lun| lun.unit.options.pool.as_deref())
            .any(|served| served.is_or_contains(&pool.name))
    }
}

impl PoolConfig {
    /// This pool with another configuration of `pool`, which it is or has inside.
    pub fn with(self: &Arc<Self>, pool: &Arc<Self>) -> Arc<Self> {
        if self.name == pool.name {
            return Arc::clone(pool);
        }
        if !self.is_or_contains(&pool.name) {
            return Arc::clone(self);
        }
        let mut changed = Self::clone(self);
        for inner in changed.members.iter_mut().filter_map(|member| member.options.pool.as_mut()) {
            *inner = inner.with(pool);
        }
        Arc::new(changed)
    }

    /// This pool with read-only members: nothing is written to any of them.
    #[must_use]
    pub fn read_only(&self) -> Self {
        let mut pool = Self { spares: Vec::new(), ..self.clone() };
        for member in &mut pool.members {
            member.options.read_only = true;
            member.options.pool = member.options.pool.as_ref().map(|one| Arc::new(one.read_only()));
        }
        pool
    }

    /// True for the mirror of a virtual LUN, which has no `[[pool]]`.
    pub fn is_of_virtual_lun(&self) -> bool {
        self.members.iter().any(|member| matches!(member.device, DeviceUrl::Extent(_)))
    }

    /// True if the device of a member, also of a pool inside, is a LUN of another target.
    pub fn has_remote(&self) -> bool {
        self.members.iter().any(|member| match &member.options.pool {
            Some(inner) => inner.has_remote(),
            None => member.device.is_remote(),
        })
    }

    /// True if this is the pool `name`, or a member contains it.
    pub(crate) fn is_or_contains(&self, name: &str) -> bool {
        let mut inner = self.members.iter().filter_map(|member| member.options.pool.as_deref());
        self.name == name || inner.any(|pool| pool.is_or_contains(name))
    }
}

/// A pool: devices that are joined to one. Its kind is written on its members.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct PoolConfig {
    /// Name, for `pool:NAME`.
    pub name: String,
    /// The devices, in any order.
    pub members: Vec<PoolMemberConfig>,
    /// Spare devices of a mirror.
    pub spares: Vec<PoolMemberConfig>,
    /// Opens a mirror although members that have all data are missing.
    pub degraded: bool,
    /// Time for which a member of a mirror is waited for behind another; `None`: the default.
    pub member_wait: Option<Duration>,
    /// Maximum rate of copies in a mirror while it is used; `None`: the default.
    pub resync_bytes_per_second: Option<NonZeroU64>,
    /// Length of the leases of members whose targets have no persistent reservations; `None`: the
    /// default.
    pub lease: Option<Duration>,
    /// The state directory of the configuration, which names the owner of the pool.
    pub state: Option<PathBuf>,
}

/// A member of a pool.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct PoolMemberConfig {
    /// The device.
    pub device: DeviceUrl,
    /// Options for opening the device.
    pub options: DeviceOptions,
}

impl PoolMemberConfig {
    /// False for a pool whose configuration is not known yet.
    pub fn is_resolved(&self) -> bool {
        self.options.pool.is_some() || !matches!(self.device, DeviceUrl::Pool(_))
    }
}

/// CHAP credentials of an initiator, and the files that the secrets came from.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ChapConfig {
    /// Applies only to this initiator name.
    pub initiator: Option<String>,
    /// The required credentials.
    pub requirement: ChapRequirement,
    /// File of the initiator's secret; `None`: the environment.
    pub secret_file: Option<PathBuf>,
    /// The file of the target's own secret.
    pub mutual_secret_file: Option<PathBuf>,
    /// Whether secrets may be shorter than 96 bits.
    pub allow_short_secrets: bool,
}

impl ChapConfig {
    /// The credentials for a login to another target.
    pub fn credentials(&self) -> Chap {
        let ChapRequirement { algorithms, initiator, target } = self.requirement.clone();
        Chap { algorithms, initiator, target }
    }

    /// Converts to the form that the server uses.
    pub fn entry(&self) -> ChapEntry {
        ChapEntry { initiator: self.initiator.clone(), requirement: self.requirement.clone() }
    }
}

/// One target.
#[derive(Clone, Debug)]
pub struct TargetConfig {
    /// The target's iSCSI name.
    pub name: String,
    /// TargetAlias.
    pub alias: Option<String>,
    /// Portal group tag.
    pub portal_group: u16,
    /// Access rules for logins.
    pub access: Access,
    /// Initiators that may reset the target and administer its units; `None`: all.
    pub administer: Option<Vec<String>>,
    /// CHAP credentials of initiators.
    pub chap: Vec<ChapConfig>,
    /// Offered parameters of the negotiation.
    pub offer: Offer,
    /// Redirects logins to this address.
    pub redirect: Option<String>,
    /// Limits of initiators at all LUNs together.
    pub initiator_limits: Vec<InitiatorLimit>,
    /// The target's LUNs.
    pub luns: Vec<LunConfig>,
    /// True if the state directory keeps the target, and not the configuration file.
    pub is_persisted: bool,
}

impl TargetConfig {
    /// Whether the target restricts access: initiators have to authenticate, or at least to come
    /// from a permitted network.
    pub fn restricts_access(&self) -> bool {
        let by_lun = self.luns.iter().all(|lun| !lun.access.networks.is_empty());
        let by_network = !self.access.networks.is_empty()
            || (by_lun && self.redirect.is_none() && !self.luns.is_empty());
        !self.chap.is_empty() || by_network
    }
}

/// A target of the state directory that is not served, because a file does not exist.
#[derive(Clone, Debug)]
pub struct SkippedTarget {
    /// The target's iSCSI name.
    pub name: String,
    /// Number of the LUN whose file is missing.
    pub lun: u16,
    /// The device of that LUN.
    pub device: DeviceUrl,
}

impl SkippedTarget {
    /// Describes the fault.
    pub fn error(&self) -> String {
        format!("the kept target {} is not served: {} does not exist", self.name, self.device)
    }

    /// Describes the remedy.
    pub fn hint(&self) -> String {
        format!(
            "restore the file and run `lunar apply FILE`, or remove the target: lunar ctl \
             remove-target {} --persist",
            self.name
        )
    }
}

/// One LUN.
#[derive(Clone, Debug)]
pub struct LunConfig {
    /// The LUN's number.
    pub id: u16,
    /// The unit behind it.
    pub unit: UnitConfig,
    /// Access rules for the LUN, for initiators that may log in.
    pub access: Access,
    /// Initiators that may administer the unit here, in place of those of the target.
    pub administer: Option<Vec<String>>,
    /// Limit of all initiators together.
    pub limit: Limit,
    /// Limits of initiators at this LUN.
    pub initiator_limits: Vec<InitiatorLimit>,
}

/// A unit: a device and its presentation to initiators. Two LUNs over one file must configure it
/// equally.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct UnitConfig {
    /// Identity of the unit, if the configuration sets it.
    pub uuid: Option<Uuid>,
    /// The identity that initiators see.
    pub identity: IdentitySource,
    /// The device to open.
    pub device: DeviceUrl,
    /// Options for opening the device.
    pub options: DeviceOptions,
    /// Durability of acknowledged writes.
    pub cache: CacheMode,
    /// Fill level at which initiators are notified, in percent.
    pub thin_threshold_percent: Option<u8>,
    /// Handling of a write when the device has no free space.
    pub out_of_space: OutOfSpace,
    /// Maximum rate of SANITIZE and FORMAT UNIT.
    pub maintenance_bytes_per_second: Option<u64>,
    /// Whether the unit reports a removable medium.
    pub removable: bool,
}

impl UnitConfig {
    /// True if the device, a member of its pool or an extent is on a LUN of another target: its
    /// storage may be unreachable.
    pub fn may_be_unavailable(&self) -> bool {
        self.device.portal().is_some()
            || self.options.virtual_disk.is_some()
            || self.options.pool.as_ref().is_some_and(|pool| pool.has_remote())
    }
}
