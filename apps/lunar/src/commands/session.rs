//! Options common to all commands that log in to targets.

use crate::output::Failure;
use lunar_control::config::model::PoolConfig;
use lunar_control::config::{self, rules};
use lunar_control::device_url::{DeviceOptions, DeviceUrl};
use lunar_control::secrets::{self, Lengths};
use lunar_initiator::{
    COMMAND_SECONDS, Chap, PathPolicy, RECOVERY_SECONDS, SessionOptions, Url, parse_portal,
};
use lunar_iscsi::login::{ChapAlgorithm, Credential};
use lunar_iscsi::text::Digest;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The configuration of the installed service.
const CONFIG_DEFAULT: &str = "/etc/lunar/lunar.toml";

/// Credentials and parameters of a session.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Session")]
pub struct SessionArgs {
    /// Configuration that lists the members of a disk pool:NAME
    #[arg(long, value_name = "FILE", default_value = CONFIG_DEFAULT, help_heading = "Pools")]
    config: PathBuf,
    /// Name to log in with; the secret comes from --chap-secret-file or the environment variable
    /// LUNAR_CHAP_SECRET
    #[arg(long, value_name = "NAME")]
    chap_user: Option<String>,
    /// File with the initiator's secret (one trailing newline is not part of it)
    #[arg(long, value_name = "FILE")]
    chap_secret_file: Option<PathBuf>,
    /// Name that the target must authenticate with (mutual CHAP)
    #[arg(long, value_name = "NAME", requires = "mutual_chap_secret_file")]
    mutual_chap_user: Option<String>,
    /// File with the target's secret
    #[arg(long, value_name = "FILE", requires = "mutual_chap_user")]
    mutual_chap_secret_file: Option<PathBuf>,
    /// Accept secrets shorter than 12 bytes (96 bits), which can be guessed
    #[arg(long)]
    allow_short_secrets: bool,
    /// CHAP algorithms in order of preference [default: all, strongest first]
    ///
    /// tgt 1.0.85 takes the number of SHA-256 for SHA-1: use md5 for it.
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_parser = parse_algorithm)]
    chap_algorithm: Vec<ChapAlgorithm>,
    /// The initiator's iSCSI name [default: iqn.2026-11.org.lunarsan:NAME OF THIS HOST]
    #[arg(long, value_name = "IQN")]
    initiator_name: Option<String>,
    /// The initiator part of the session identifier, 12 hexadecimal digits [default: random]
    #[arg(long, value_name = "HEX", value_parser = parse_isid)]
    isid: Option<[u8; 6]>,
    /// Header digests in order of preference; a single one is required
    #[arg(long, value_enum, value_name = "DIGEST", value_delimiter = ',', default_value = "none")]
    header_digest: Vec<DigestName>,
    /// Data digests in order of preference; a single one is required
    #[arg(long, value_enum, value_name = "DIGEST", value_delimiter = ',', default_value = "none")]
    data_digest: Vec<DigestName>,
    /// Maximum iSCSIProtocolLevel to propose; 1 is for old targets that close the connection when
    /// they receive unknown keys [default: 2]
    ///
    /// At 1, neither iSCSIProtocolLevel nor TaskReporting is sent. Without the option, a login to a
    /// target that closes the connection over these keys is repeated once without them.
    #[arg(long, value_name = "LEVEL", value_parser = clap::value_parser!(u8).range(1..=2))]
    protocol_level: Option<u8>,
    /// Maximum time to wait for the target after the connection is lost; 0: do not wait
    #[arg(long, value_name = "SECONDS", default_value_t = RECOVERY_SECONDS)]
    recovery_seconds: u32,
    /// Maximum time for the target to answer a command; 0: unlimited
    #[arg(long, value_name = "SECONDS", default_value_t = COMMAND_SECONDS)]
    command_seconds: u32,
    /// Another portal of the same target, used in addition; may be repeated
    #[arg(long = "portal", value_name = "HOST[:PORT]", value_parser = parse_other_portal)]
    portals: Vec<(String, u16)>,
    /// Selection of a path for each command, among those in the best access state (ALUA)
    #[arg(long, value_enum, value_name = "POLICY", default_value = "least-outstanding")]
    path_policy: PathPolicyName,
}

/// Values of `--path-policy`.
#[derive(Clone, Copy, Debug, Eq, PartialEq, clap::ValueEnum)]
enum PathPolicyName {
    /// The path with the fewest outstanding bytes
    LeastOutstanding,
    /// All paths in turn
    RoundRobin,
}

/// Values of `--header-digest` and `--data-digest`.
#[derive(Clone, Copy, Debug, Eq, PartialEq, clap::ValueEnum)]
enum DigestName {
    /// CRC32C
    Crc32c,
    /// No digest
    None,
}

impl SessionArgs {
    /// The options of a session with the target of `url`, which may also contain the CHAP user.
    ///
    /// # Errors
    /// Fails if options contradict each other, or a secret cannot be read.
    pub fn options(&self, url: Option<&Url>) -> Result<SessionOptions, Failure> {
        self.options_with(url, self.chap_secret_file.as_deref())
    }

    /// Like [`options`](Self::options), with the secret from another file.
    ///
    /// # Errors
    /// Same as [`options`](Self::options).
    pub fn options_with(
        &self,
        url: Option<&Url>,
        secret_file: Option<&Path>,
    ) -> Result<SessionOptions, Failure> {
        let name = match &self.initiator_name {
            Some(name) => {
                rules::check_name(name)
                    .map_err(|why| Failure::usage(format!("--initiator-name {name}: {why}")))?;
                name.clone()
            }
            None => default_initiator_name(),
        };
        let mut options = SessionOptions::new(name);
        options.isid = self.isid;
        options.recovery_seconds = self.recovery_seconds;
        options.command_seconds = self.command_seconds;
        options.portals.clone_from(&self.portals);
        options.path_policy = match self.path_policy {
            PathPolicyName::LeastOutstanding => PathPolicy::LeastOutstanding,
            PathPolicyName::RoundRobin => PathPolicy::RoundRobin,
        };
        options.chap = self.chap(url.and_then(|url| url.user.as_deref()), secret_file)?;
        options.header_digest = digests(&self.header_digest);
        options.data_digest = digests(&self.data_digest);
        if let Some(level) = self.protocol_level {
            options.protocol_level = level;
        }
        Ok(options)
    }

    /// The options for opening a disk that is no LUN of a target: with the configuration of a pool,
    /// and read-only if nothing is written.
    ///
    /// # Errors
    /// Fails if the configuration is invalid, or does not have the pool.
    pub fn local_options(&self, url: &DeviceUrl, writes: bool) -> Result<DeviceOptions, Failure> {
        let is_local = url.path().is_some() || matches!(url, DeviceUrl::Pool(_));
        let read_only = is_local && !writes;
        let pool = match url {
            DeviceUrl::Pool(name) => Some(self.pool(name)?),
            _ => None,
        };
        Ok(DeviceOptions { read_only, pool, ..DeviceOptions::default() })
    }

    fn pool(&self, name: &str) -> Result<Arc<PoolConfig>, Failure> {
        let path = self.config.display();
        if !self.config.exists() {
            let what = format!("pool:{name} cannot be opened: {path} does not exist");
            return Err(Failure::usage(what)
                .hint("name the configuration that has its [[pool]]: --config FILE"));
        }
        let configuration = config::load(&self.config)?;
        config::pools::find(&configuration.pools, name)
            .map_err(|hint| Failure::not_found(format!("{path} has no [[pool]] {name}")).hint(hint))
    }

    /// Whether other portals were named.
    pub fn names_portals(&self) -> bool {
        !self.portals.is_empty()
    }

    fn chap(
        &self,
        url_user: Option<&str>,
        secret_file: Option<&Path>,
    ) -> Result<Option<Chap>, Failure> {
        let user = match (self.chap_user.as_deref(), url_user) {
            (Some(option), Some(url)) if option != url => {
                return Err(Failure::usage("--chap-user and the URL name different users"));
            }
            (user, None) | (_, user @ Some(_)) => user,
        };
        let Some(user) = user else {
            if secret_file.is_some() || self.mutual_chap_user.is_some() {
                return Err(Failure::usage("a CHAP secret is given without a user name")
                    .hint("add --chap-user NAME, or write iscsi://NAME@HOST"));
            }
            return Ok(None);
        };
        let secret = secrets::from_file_or_environment(secret_file)?;
        let lengths = Lengths::of(self.allow_short_secrets);
        secrets::check_length(&secret, lengths)?;
        let target = match (&self.mutual_chap_user, &self.mutual_chap_secret_file) {
            (Some(user), Some(file)) => {
                let mutual = secrets::read_file(file)?;
                secrets::check_length(&mutual, lengths)?;
                secrets::check_mutual(&secret, &mutual)?;
                Some(Credential { user: user.clone(), secret: mutual })
            }
            _ => None,
        };
        let mut chap = Chap::new(Credential { user: user.to_owned(), secret }, target);
        if !self.chap_algorithm.is_empty() {
            chap.algorithms.clone_from(&self.chap_algorithm);
        }
        Ok(Some(chap))
    }
}

fn digests(names: &[DigestName]) -> Vec<Digest> {
    let mut digests = Vec::new();
    for name in names {
        let digest = match name {
            DigestName::Crc32c => Digest::Crc32c,
            DigestName::None => Digest::None,
        };
        if !digests.contains(&digest) {
            digests.push(digest);
        }
    }
    digests
}

fn parse_algorithm(name: &str) -> Result<ChapAlgorithm, String> {
    let known = secrets::ALGORITHMS.iter().find(|(_, known)| *known == name);
    known.map(|(algorithm, _)| *algorithm).ok_or_else(|| {
        let names = secrets::ALGORITHMS.map(|(_, name)| name);
        format!("choose one of {}", names.join(", "))
    })
}

fn parse_other_portal(text: &str) -> Result<(String, u16), String> {
    parse_portal(text).map_err(|wrong| wrong.to_string())
}

fn parse_isid(text: &str) -> Result<[u8; 6], String> {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    let is_hex = digits.len() == 12 && digits.bytes().all(|b| b.is_ascii_hexdigit());
    match u64::from_str_radix(digits, 16) {
        Ok(number) if is_hex => {
            let [_, _, isid @ ..] = number.to_be_bytes();
            Ok(isid)
        }
        _ => Err("an ISID is 12 hexadecimal digits, for example 800000000001".to_owned()),
    }
}

/// A name from the host's name, or a random one if that is not valid.
pub fn default_initiator_name() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host = host.trim().to_lowercase();
    let name = format!("iqn.2026-11.org.lunarsan:{host}");
    if !host.is_empty() && rules::check_name(&name).is_ok() {
        return name;
    }
    format!("iqn.2026-11.org.lunarsan:{}", uuid::Uuid::new_v4().simple())
}

/// Creates a runtime for the session's task, on this thread.
///
/// # Errors
/// Fails if the system refuses.
pub fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::new(format!("cannot start a runtime: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn isids() {
        assert_eq!(parse_isid("80123456789a"), Ok([0x80, 0x12, 0x34, 0x56, 0x78, 0x9a]));
        assert_eq!(parse_isid("0x00023d000001"), Ok([0, 2, 0x3d, 0, 0, 1]));
        for text in ["", "8", "80123456789", "80123456789ab", "+0123456789a", "80123456789g"] {
            assert!(parse_isid(text).is_err(), "{text}");
        }
    }

    /// Goal: --protocol-level is passed to the session; without it the highest level is proposed,
    /// and a level that does not exist is a usage error.
    #[test]
    fn protocol_levels() {
        #[derive(clap::Parser)]
        struct Command {
            #[command(flatten)]
            session: SessionArgs,
        }
        let level = |arguments: &[&str]| {
            let arguments =
                [&["lunar", "--initiator-name", "iqn.2026-11.org.a"], arguments].concat();
            let command = <Command as clap::Parser>::try_parse_from(arguments).ok()?;
            Some(command.session.options(None).ok()?.protocol_level)
        };
        assert_eq!(level(&[]), Some(2));
        assert_eq!(level(&["--protocol-level", "1"]), Some(1));
        assert_eq!(level(&["--protocol-level", "2"]), Some(2));
        for wrong in ["0", "3", "-1", "x"] {
            assert_eq!(level(&["--protocol-level", wrong]), None, "{wrong}");
        }
    }

    #[test]
    fn algorithms_by_name() {
        assert_eq!(parse_algorithm("sha-256"), Ok(ChapAlgorithm::Sha256));
        assert!(parse_algorithm("SHA").is_err());
    }

    #[test]
    fn the_default_name_is_valid() {
        assert_eq!(rules::check_name(&default_initiator_name()), Ok(()));
    }
}
