//! `lunar serve`: CHAP credentials of initiators and of the target.

use crate::output::Failure;
use lunar_control::config;
use lunar_control::config::model::ChapConfig;
use lunar_control::secrets::{self, Lengths};
use lunar_iscsi::login::{ChapDemand, Credential};
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
    /// Name that discovery requires instead
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

/// Required credentials of targets and discovery.
#[derive(Debug)]
pub struct Demands {
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
    pub fn demands(&self) -> Result<Demands, Failure> {
        let target = self.target()?;
        let discovery = match (&self.discovery_chap_user, &self.discovery_chap_secret_file) {
            (Some(user), Some(file)) => {
                let secret = secrets::read_file(file)?;
                let demand = secrets::demand(self.credential(user, secret)?, None);
                Some(self.config(demand, Some(file), None))
            }
            _ if self.no_discovery_chap => None,
            _ => target.clone(),
        };
        if let (Some(discovery), Some(own)) =
            (&discovery, target.as_ref().and_then(|chap| chap.demand.target.as_ref()))
        {
            secrets::check_mutual(&discovery.demand.initiator.secret, &own.secret)?;
        }
        Ok(Demands { target, discovery })
    }

    fn target(&self) -> Result<Option<ChapConfig>, Failure> {
        let Some(user) = &self.chap_user else { return Ok(None) };
        let secret = secrets::from_file_or_environment(self.chap_secret_file.as_deref())?;
        let initiator = self.credential(user, secret)?;
        let own = match (&self.mutual_chap_user, &self.mutual_chap_secret_file) {
            (Some(user), Some(file)) => Some(self.credential(user, secrets::read_file(file)?)?),
            _ => None,
        };
        if let Some(own) = &own {
            secrets::check_mutual(&initiator.secret, &own.secret)?;
        }
        let (file, own_file) = (&self.chap_secret_file, &self.mutual_chap_secret_file);
        let demand = secrets::demand(initiator, own);
        Ok(Some(self.config(demand, file.as_deref(), own_file.as_deref())))
    }

    fn config(&self, demand: ChapDemand, file: Option<&Path>, own: Option<&Path>) -> ChapConfig {
        ChapConfig {
            initiator: None,
            demand,
            secret_file: file.map(Path::to_owned),
            mutual_secret_file: own.map(Path::to_owned),
            allow_short_secrets: self.allow_short_secrets,
        }
    }

    fn credential(
        &self,
        user: &str,
        secret: lunar_iscsi::login::Secret,
    ) -> Result<Credential, Failure> {
        config::check_user(user)
            .map_err(|why| Failure::usage("the CHAP user name is invalid").hint(why))?;
        secrets::check_length(&secret, Lengths::of(self.allow_short_secrets))?;
        Ok(Credential { user: user.to_owned(), secret })
    }
}
