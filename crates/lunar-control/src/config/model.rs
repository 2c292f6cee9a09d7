//! What a server is to serve, as plain values without open files.

use super::named_limits::NamedLimits;
use crate::api_options::ApiOptions;
use crate::device_url::{DeviceUrl, LocalOptions};
use lunar_iscsi::login::ChapDemand;
use lunar_iscsi::text::Offer;
use lunar_target::{Access, CacheMode, ChapEntry, InitiatorLimit, Limit, OutOfSpace, Portal};
use std::net::SocketAddr;
use std::path::PathBuf;
use uuid::Uuid;

/// Everything one server process serves.
#[derive(Clone, Debug)]
pub struct Configuration {
    /// Where units keep their state; `None`: beside each file.
    pub state: Option<PathBuf>,
    /// Where to listen.
    pub portals: Vec<Portal>,
    /// What a discovery session must prove.
    pub discovery_chap: Option<ChapConfig>,
    /// Where the API is, and what it wants to be shown.
    pub api: ApiOptions,
    /// Data-plane threads; 0: one a core.
    pub cores: usize,
    /// They poll for a while before they sleep.
    pub latency_mode: bool,
    /// Each of them has a ring for direct I/O and reads of what is not cached, where the system
    /// permits it.
    pub io_uring: bool,
    /// Named limits.
    pub limits: NamedLimits,
    /// Where metrics are served; `None`: nowhere.
    pub metrics: Option<SocketAddr>,
    /// The targets.
    pub targets: Vec<TargetConfig>,
}

/// What an initiator must prove, and where its secret came from.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ChapConfig {
    /// Only for this initiator name.
    pub initiator: Option<String>,
    /// What it must prove.
    pub demand: ChapDemand,
    /// The file of its secret; `None`: the environment.
    pub secret_file: Option<PathBuf>,
    /// The file of the target's own secret.
    pub mutual_secret_file: Option<PathBuf>,
    /// Whether secrets may be shorter than 96 bits.
    pub allow_short_secrets: bool,
}

impl ChapConfig {
    /// For the server.
    pub fn entry(&self) -> ChapEntry {
        ChapEntry { initiator: self.initiator.clone(), demand: self.demand.clone() }
    }
}

/// One target.
#[derive(Clone, Debug)]
pub struct TargetConfig {
    /// iSCSI name.
    pub name: String,
    /// TargetAlias.
    pub alias: Option<String>,
    /// Portal group tag.
    pub portal_group: u16,
    /// Who may log in.
    pub access: Access,
    /// Initiators that may reset the target and administer its units; `None`: all.
    pub administer: Option<Vec<String>>,
    /// What initiators must prove.
    pub chap: Vec<ChapConfig>,
    /// What is negotiated.
    pub offer: Offer,
    /// Send logins elsewhere.
    pub redirect: Option<String>,
    /// How much each initiator may do, at all LUNs together.
    pub initiator_limits: Vec<InitiatorLimit>,
    /// Its units.
    pub luns: Vec<LunConfig>,
}

impl TargetConfig {
    /// Whether it asks something of initiators that each of them has to prove, or at least to be
    /// in the right network for.
    pub fn is_locked(&self) -> bool {
        let by_lun = self.luns.iter().all(|lun| !lun.access.networks.is_empty());
        let by_network = !self.access.networks.is_empty()
            || (by_lun && self.redirect.is_none() && !self.luns.is_empty());
        !self.chap.is_empty() || by_network
    }
}

/// One LUN.
#[derive(Clone, Debug)]
pub struct LunConfig {
    /// Its number.
    pub id: u16,
    /// The unit behind it.
    pub unit: UnitConfig,
    /// Who of those that may log in sees it.
    pub access: Access,
    /// Initiators that may administer the unit here, in place of those of the target.
    pub administer: Option<Vec<String>>,
    /// How much all initiators together may do.
    pub limit: Limit,
    /// How much each initiator may do here.
    pub initiator_limits: Vec<InitiatorLimit>,
}

/// A unit: a device and how it is shown. Two LUNs over one file must agree on it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct UnitConfig {
    /// Identity, where the configuration sets it.
    pub uuid: Option<Uuid>,
    /// What to open.
    pub device: DeviceUrl,
    /// How to open it.
    pub options: LocalOptions,
    /// What acknowledged writes are worth.
    pub cache: CacheMode,
    /// Initiators are told when so much of the room is taken, in percent.
    pub thin_threshold_percent: Option<u8>,
    /// What becomes of a write for which there is no room.
    pub out_of_space: OutOfSpace,
    /// How fast SANITIZE and FORMAT UNIT may go.
    pub maintenance_bytes_per_second: Option<u64>,
    /// Removable medium.
    pub removable: bool,
}
