//! A target that is added to a running server, and its form in a file of the state directory.

use super::file::{self, Problems, TableReader};
use super::limit_settings::InitiatorLimitSettings;
use super::lun::{LunSettings, problems_failure, relative_path};
use super::model::{Configuration, TargetConfig};
use super::resolve::Resolver;
use super::resolve_chap::check_secrets_differ;
use crate::device_url::DeviceUrl;
use crate::{Failure, Readable};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use utoipa::ToSchema;

/// A target: keys of `[[target]]`. Missing keys have their defaults.
#[derive(Clone, Debug, Default, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TargetSettings {
    /// The target's iSCSI name.
    pub name: String,
    /// TargetAlias.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alias: Option<String>,
    /// Names of the initiators that may log in; none: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initiators: Option<Vec<String>>,
    /// Networks from which initiators may log in; none: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub networks: Option<Vec<String>>,
    /// Initiators that may reset the target and administer its units; an empty list: nobody.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub administer: Option<Vec<String>>,
    /// Portal group tag.
    #[schema(minimum = 1)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub portal_group: Option<u16>,
    /// The address that logins are redirected to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub redirect: Option<String>,
    /// CHAP credentials of initiators.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chap: Option<Vec<TargetChapSettings>>,
    /// Limits of initiators at all LUNs of the target together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<Vec<InitiatorLimitSettings>>,
    /// The target's LUNs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lun: Vec<LunSettings>,
}

/// CHAP credentials. Secrets are named by files that the server reads.
#[derive(Clone, Debug, Default, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TargetChapSettings {
    /// The initiator that has these credentials; none: all initiators.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initiator: Option<String>,
    /// Name that initiators log in with.
    pub user: String,
    /// Absolute path of the file with the secret.
    pub secret_file: String,
    /// Name of the target (mutual CHAP).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mutual_user: Option<String>,
    /// Absolute path of the file with the target's secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mutual_secret_file: Option<String>,
    /// CHAP algorithms in order of preference.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub algorithms: Option<Vec<String>>,
    /// Whether secrets may be shorter than 96 bits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allow_short_secrets: Option<bool>,
}

impl TargetSettings {
    /// Numbers the LUNs without a number: each gets the lowest free one.
    fn number_luns(&mut self) {
        for index in 0..self.lun.len() {
            let is_free = |id: &u16| self.lun.iter().all(|lun| lun.id != Some(*id));
            if self.lun[index].id.is_none() {
                self.lun[index].id = (0..=lunar_wire::Lun::UNIT_MAX).find(is_free);
            }
        }
    }

    /// The target as TOML. Sizes of files are left out: the files exist, and a size that they had
    /// once would be refused after they were enlarged.
    ///
    /// # Errors
    /// Fails if the settings cannot be written as TOML.
    pub fn to_file(&self) -> Result<String, Failure> {
        let mut settings = self.clone();
        settings.number_luns();
        for lun in &mut settings.lun {
            let device = DeviceUrl::parse(&lun.device).ok();
            if device.is_some_and(|device| device.path().is_some()) {
                lun.size = None;
            }
        }
        text(&settings)
    }
}

fn text(settings: &TargetSettings) -> Result<String, Failure> {
    toml::to_string(settings)
        .map_err(|error| Failure::usage(format!("invalid settings of the target: {error}")))
}

/// Builds the target that `settings` describe, beside those of `configuration`.
///
/// # Errors
/// Fails if the settings are invalid.
pub fn target(
    settings: &TargetSettings,
    configuration: &Configuration,
) -> Result<TargetConfig, Failure> {
    let mut settings = settings.clone();
    settings.number_luns();
    parse(&text(&settings)?, configuration)
}

/// Reads the keys of a target from `text`; its devices may be pools of `configuration`.
///
/// # Errors
/// Fails if the text is invalid or names relative paths.
pub fn parse(text: &str, configuration: &Configuration) -> Result<TargetConfig, Failure> {
    let mut problems = Problems::new(text);
    let document = file::parse(text, &mut problems);
    let mut resolver = Resolver::new(PathBuf::new(), problems, Readable::Regular);
    resolver.state = configuration.state.clone();
    resolver.pools = configuration.pools.clone();
    let mut table = TableReader::new(document.get_ref(), 0..0, "the target");
    let target = resolver.target(&mut table);
    check_secrets_differ(&mut resolver);
    let problems = resolver.problems.into_sorted();
    if !problems.is_empty() {
        return Err(problems_failure(&problems));
    }
    match first_relative_path(&target) {
        Some(path) => {
            let what = format!("{} is not an absolute path", path.display());
            Err(Failure::usage(what).hint("use an absolute path, like /srv/disk.img"))
        }
        None => Ok(target),
    }
}

/// The first path of a target that is not absolute.
fn first_relative_path(target: &TargetConfig) -> Option<&Path> {
    let chap = target.chap.iter().flat_map(|chap| [&chap.secret_file, &chap.mutual_secret_file]);
    let mut secrets = chap.flatten().map(PathBuf::as_path);
    secrets.find(|path| path.is_relative()).or_else(|| target.luns.iter().find_map(relative_path))
}
