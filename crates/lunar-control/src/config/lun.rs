//! Checks of one LUN that is added to a running target.

use super::conflict::Disks;
use super::file::{self, ConfigProblem, Problems, TableReader};
use super::limit_settings::{InitiatorLimitSettings, LimitSettings};
use super::model::{Configuration, LunConfig, PoolConfig, TargetConfig};
use super::resolve::Resolver;
use super::resolve_remote::check_remote_luns_of;
use super::rules;
use crate::{ErrorList, Failure, Readable};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use utoipa::ToSchema;
use uuid::Uuid;

/// A LUN: the keys of `[[target.lun]]`. Missing keys have their defaults.
#[derive(Clone, Debug, Default, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LunSettings {
    /// The LUN's number; without one, the first free number.
    #[schema(maximum = 16383)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<u16>,
    /// The identity of the unit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uuid: Option<Uuid>,
    /// The device: `file:/srv/disk.img` (an absolute path), `mem:1G`, `iscsi://HOST/TARGET/LUN`,
    /// `pool:NAME`.
    pub device: String,
    /// Credentials for the login to the target of a remote LUN.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_chap: Option<DeviceChapSettings>,
    /// The identity that initiators see: `own`, or `device` for that of the remote LUN.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<String>,
    /// Size of the disk, like `64GiB`: a missing file is created with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<String>,
    /// Cache mode: `write-through` or `write-back`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<String>,
    /// File I/O: `buffered` or `direct`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub io: Option<String>,
    /// Size of a logical block: 512, 1024, 2048 or 4096 bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block_size: Option<u64>,
    /// Size of a physical block in bytes, a power of two.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub physical_block_size: Option<u64>,
    /// Whether writes are refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_only: Option<bool>,
    /// Whether the LUN is shown as a removable medium.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub removable: Option<bool>,
    /// Whether blocks can be deallocated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thin: Option<bool>,
    /// Fill level at which initiators are notified: `90%`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thin_threshold: Option<String>,
    /// Handling of a write when there is no room: `fail` or `hold`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub out_of_space: Option<String>,
    /// Maximum rate of SANITIZE and FORMAT UNIT: `1Gbit`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub maintenance_rate: Option<String>,
    /// Initiators, of those that may log in, that see the LUN; none: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initiators: Option<Vec<String>>,
    /// Networks from which the LUN is seen; none: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub networks: Option<Vec<String>>,
    /// Initiators that may administer the unit, in place of those of the target; an empty list:
    /// nobody.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub administer: Option<Vec<String>>,
    /// Limit of all initiators together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<LimitSettings>,
    /// Limits of initiators at this LUN.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initiator_limit: Option<Vec<InitiatorLimitSettings>>,
}

/// The keys of `device_chap`. Secrets are named by files that the server reads.
#[derive(Clone, Debug, Default, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DeviceChapSettings {
    /// Name to log in with.
    pub user: String,
    /// Path of the file with the secret.
    pub secret_file: String,
    /// Name that the target must authenticate with (mutual CHAP).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mutual_user: Option<String>,
    /// Path of the file with the target's secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mutual_secret_file: Option<String>,
    /// CHAP algorithms in order of preference.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub algorithms: Option<Vec<String>>,
    /// Whether secrets may be shorter than 96 bits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allow_short_secrets: Option<bool>,
}

/// Builds the LUN that `settings` describe, beside the LUNs of `target`; its device may be one of
/// the `pools`.
///
/// # Errors
/// Fails if the settings are invalid or conflict with the other LUNs.
pub fn lun(
    settings: &LunSettings,
    target: &TargetConfig,
    pools: &[Arc<PoolConfig>],
) -> Result<LunConfig, Failure> {
    let free =
        || (0..=lunar_wire::Lun::UNIT_MAX).find(|id| target.luns.iter().all(|l| l.id != *id));
    let id = settings.id.or_else(free);
    let settings = LunSettings { id, ..settings.clone() };
    let text = toml::to_string(&settings)
        .map_err(|error| Failure::usage(format!("invalid LUN settings: {error}")))?;
    let mut problems = Problems::new(&text);
    let document = file::parse(&text, &mut problems);
    let mut resolver = Resolver::new(PathBuf::new(), problems, Readable::Regular);
    resolver.pools = pools.to_vec();
    let mut table = TableReader::new(document.get_ref(), 0..0, "the LUN");
    let lun = resolver.lun(&mut table, &target.name, &target.access);
    if let Some(lun) = &lun {
        resolver.check_distinct_luns(&target.access, &target.luns, lun, &(0..0));
    }
    let lun = match (lun, resolver.problems.into_sorted()) {
        (Some(lun), problems) if problems.is_empty() => lun,
        (_, problems) => return Err(problems_failure(&problems)),
    };
    match relative_path(&lun) {
        Some(path) => {
            let what = format!("{} is not an absolute path", path.display());
            Err(Failure::usage(what).hint("use an absolute path, like /srv/disk.img"))
        }
        None => Ok(lun),
    }
}

/// The first path of a LUN that is not absolute.
pub(super) fn relative_path(lun: &LunConfig) -> Option<&Path> {
    let chap = lun.unit.options.chap.iter();
    let secrets = chap.flat_map(|chap| [&chap.secret_file, &chap.mutual_secret_file]).flatten();
    let mut paths = lun.unit.device.path().into_iter().chain(secrets.map(PathBuf::as_path));
    paths.find(|path| path.is_relative())
}

/// Converts problems to a failure: one problem as it is, several as a list.
pub(super) fn problems_failure(problems: &[ConfigProblem]) -> Failure {
    if let [problem] = problems {
        return Failure { hint: problem.hint.clone(), ..Failure::usage(&problem.error) };
    }
    let line = |problem: &ConfigProblem| match &problem.hint {
        Some(hint) => format!("{} (hint: {hint})", problem.error),
        None => problem.error.clone(),
    };
    let lines: Vec<_> = problems.iter().map(line).collect();
    let what = lines.join("; ");
    let list = serde_json::to_value(problems).unwrap_or_default();
    let parts = ErrorList { lines, list: ("problems", list) };
    Failure { parts: Some(Box::new(parts)), ..Failure::usage(what) }
}

/// Checks a whole configuration for conflicts between disks, which no LUN shows by itself.
///
/// # Errors
/// Fails if two disks conflict.
pub fn check_together(configuration: &Configuration) -> Result<(), Failure> {
    let mut disks = Disks::default();
    for lun in configuration.targets.iter().flat_map(|target| &target.luns) {
        if let Some((what, hint)) = disks.add(lun) {
            return Err(Failure::conflict(format!("LUN {}: {what}", lun.id)).hint(hint));
        }
    }
    check_remote_luns_of(configuration)
}

/// Checks that each target restricts access if any portal can be reached from other machines.
///
/// # Errors
/// Fails if a target does not.
pub fn check_locked(configuration: &Configuration) -> Result<(), Failure> {
    let mut portals = configuration.portals.iter();
    let Some(portal) = portals.find(|portal| !rules::is_loopback(&portal.listen)) else {
        return Ok(());
    };
    match configuration.targets.iter().find(|target| !target.restricts_access()) {
        Some(target) => Err(Failure::conflict(format!(
            "{} would be accessible without authentication for every host that can reach {}",
            target.name, portal.listen
        ))
        .hint(
            "configure chap or networks for the target, or networks for each of its LUNs; \
             changing the portal requires a restart",
        )),
        None => Ok(()),
    }
}
