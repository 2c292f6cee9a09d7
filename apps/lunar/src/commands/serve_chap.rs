//! `lunar serve`: CHAP credentials of initiators and of the target.

use crate::output::Failure;
use lunar_control::config;
use lunar_control::config::model::ChapConfig;
use lunar_control::device_url::DeviceUrl;
use lunar_control::secrets::{self, Lengths};
use lunar_iscsi::login::{ChapRequirement, Credential, Secret};
use std::path::{Path, PathBuf};

/// Options for CHAP.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "CHAP")]
pub struct ChapArgs {
    /// Name that initiators must log in with; the secret comes from --chap-secret-file or the
    /// environment variable LUNAR_CHAP_SECRET. Discovery requires the same
    #[arg(long, value_name = "NAME")]
    pub chap_user: Option<String>,
    /// File with the initiators' secret (one trailing newline is not part of it)
    #[arg(long, value_name = "FILE", requires = "chap_user")]
    pub chap_secret_file: Option<PathBuf>,
    /// Name of the target, for initiators that authenticate it (mutual CHAP)
    #[arg(long, value_name = "NAME", requires_all = ["chap_user", "mutual_chap_secret_file"])]
    mutual_chap_user: Option<String>,
    /// File with the target's own secret
    #[arg(long, value_name = "FILE", requires = "mutual_chap_user")]
    mutual_chap_secret_file: Option<PathBuf>,
    /// Name that discovery requires, instead of that of --chap-user
    #[arg(long, value_name = "NAME", requires = "discovery_chap_secret_file")]
    pub discovery_chap_user: Option<String>,
    /// File with the secret for discovery
    #[arg(long, value_name = "FILE", requires = "discovery_chap_user")]
    pub discovery_chap_secret_file: Option<PathBuf>,
    /// Permit discovery without authentication: everybody who reaches the portal sees the target's
    /// name
    #[arg(long, requires = "chap_user", conflicts_with = "discovery_chap_user")]
    no_discovery_chap: bool,
    /// Accept secrets shorter than 12 bytes (96 bits), which can be guessed
    #[arg(long)]
    allow_short_secrets: bool,
}

/// Options for the login to the targets of remote LUNs.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Remote LUNs")]
pub struct DeviceChapArgs {
    /// Name for the login to the target of a remote LUN (a device iscsi://…)
    #[arg(long, value_name = "NAME", requires = "device_chap_secret_file")]
    device_chap_user: Option<String>,
    /// File with the secret of --device-chap-user
    #[arg(long, value_name = "FILE")]
    device_chap_secret_file: Option<PathBuf>,
    /// Name that the target of a remote LUN must authenticate with (mutual CHAP)
    #[arg(long, value_name = "NAME", requires = "device_mutual_chap_secret_file")]
    device_mutual_chap_user: Option<String>,
    /// File with the secret of --device-mutual-chap-user
    #[arg(long, value_name = "FILE", requires = "device_mutual_chap_user")]
    device_mutual_chap_secret_file: Option<PathBuf>,
}

impl DeviceChapArgs {
    /// The credentials for the login to the target of `device`, if it is a remote LUN.
    ///
    /// # Errors
    /// Fails if a secret cannot be read, is shorter than 12 bytes, or equals one that it must
    /// differ from, and if the user or the secret is missing.
    pub fn credentials(&self, device: &DeviceUrl) -> Result<Option<ChapConfig>, Failure> {
        let Some(url) = device.portal() else { return Ok(None) };
        let user = match (&self.device_chap_user, &url.user) {
            (Some(option), Some(url)) if option != url => {
                let what = "--device-chap-user and the URL of the device name different users";
                return Err(Failure::usage(what));
            }
            (option, url) => option.as_ref().or(url.as_ref()),
        };
        let (user, file) = match (user, &self.device_chap_secret_file) {
            (Some(user), Some(file)) => (user, file),
            (None, None) => return Ok(None),
            (Some(user), None) => {
                return Err(Failure::usage(format!("there is no CHAP secret for {user}"))
                    .hint("add --device-chap-secret-file FILE"));
            }
            (None, Some(_)) => {
                return Err(Failure::usage("a CHAP secret is given without a user name")
                    .hint("add --device-chap-user NAME, or write iscsi://NAME@HOST"));
            }
        };
        let lengths = Lengths::of(false);
        let initiator = credential(user, secrets::read_file(file)?, lengths)?;
        let own = match (&self.device_mutual_chap_user, &self.device_mutual_chap_secret_file) {
            (Some(user), Some(file)) => Some(credential(user, secrets::read_file(file)?, lengths)?),
            _ => None,
        };
        if let Some(own) = &own {
            secrets::check_mutual(&initiator.secret, &own.secret)?;
        }
        Ok(Some(ChapConfig {
            initiator: None,
            requirement: secrets::chap_requirement(initiator, own),
            secret_file: Some(file.clone()),
            mutual_secret_file: self.device_mutual_chap_secret_file.clone(),
            allow_short_secrets: false,
        }))
    }
}

fn credential(user: &str, secret: Secret, lengths: Lengths) -> Result<Credential, Failure> {
    config::check_user(user)
        .map_err(|why| Failure::usage("the CHAP user name is invalid").hint(why))?;
    secrets::check_length(&secret, lengths)?;
    Ok(Credential { user: user.to_owned(), secret })
}

/// Required credentials of targets and discovery.
#[derive(Debug)]
pub struct ChapRequirements {
    /// Credentials for the target.
    pub target: Option<ChapConfig>,
    /// Credentials for discovery sessions.
    pub discovery: Option<ChapConfig>,
}

impl ChapArgs {
    /// Reads the secrets.
    ///
    /// # Errors
    /// Fails if a secret cannot be read, is too short, or equals one that it must differ from.
    pub fn requirements(&self) -> Result<ChapRequirements, Failure> {
        let target = self.target()?;
        let discovery = match (&self.discovery_chap_user, &self.discovery_chap_secret_file) {
            (Some(user), Some(file)) => {
                let secret = secrets::read_file(file)?;
                let requirement =
                    secrets::chap_requirement(credential(user, secret, self.lengths())?, None);
                Some(self.config(requirement, Some(file), None))
            }
            _ if self.no_discovery_chap => None,
            _ => target.clone(),
        };
        if let (Some(discovery), Some(own)) =
            (&discovery, target.as_ref().and_then(|chap| chap.requirement.target.as_ref()))
        {
            secrets::check_mutual(&discovery.requirement.initiator.secret, &own.secret)?;
        }
        Ok(ChapRequirements { target, discovery })
    }

    fn target(&self) -> Result<Option<ChapConfig>, Failure> {
        let Some(user) = &self.chap_user else { return Ok(None) };
        let secret = secrets::from_file_or_environment(self.chap_secret_file.as_deref())?;
        let initiator = credential(user, secret, self.lengths())?;
        let own = match (&self.mutual_chap_user, &self.mutual_chap_secret_file) {
            (Some(user), Some(file)) => {
                Some(credential(user, secrets::read_file(file)?, self.lengths())?)
            }
            _ => None,
        };
        if let Some(own) = &own {
            secrets::check_mutual(&initiator.secret, &own.secret)?;
        }
        let (file, own_file) = (&self.chap_secret_file, &self.mutual_chap_secret_file);
        let requirement = secrets::chap_requirement(initiator, own);
        Ok(Some(self.config(requirement, file.as_deref(), own_file.as_deref())))
    }

    fn lengths(&self) -> Lengths {
        Lengths::of(self.allow_short_secrets)
    }

    fn config(
        &self,
        requirement: ChapRequirement,
        file: Option<&Path>,
        own: Option<&Path>,
    ) -> ChapConfig {
        ChapConfig {
            initiator: None,
            requirement,
            secret_file: file.map(Path::to_owned),
            mutual_secret_file: own.map(Path::to_owned),
            allow_short_secrets: self.allow_short_secrets,
        }
    }
}
