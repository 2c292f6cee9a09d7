//! `lunar target`: serves a configuration.

use super::serve_api::ServeApiArgs;
use crate::client_lines::ClientCredentials;
use crate::output::{Failure, Format};
use crate::serving;
use lunar_control::config;
use lunar_control::daemon::{AwayStorage, ConfigOrigin};
use std::path::PathBuf;

/// Serve the targets of a configuration, in the foreground
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  lunar target --config /etc/lunar/lunar.toml")]
pub struct TargetCommand {
    /// The configuration; `lunar check` validates it
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    #[command(flatten)]
    api: ServeApiArgs,
}

/// Runs the command.
///
/// # Errors
/// Fails if the configuration is invalid, a device or address cannot be opened, or the final sync
/// fails.
pub fn run(args: &TargetCommand, format: Format) -> Result<(), Failure> {
    // `lunar apply` sends absolute paths, so that this path must be absolute too: the same file
    // must give the same configuration.
    let path = std::path::absolute(&args.config).unwrap_or_else(|_| args.config.clone());
    let mut configuration = config::load(&path)?;
    let api = args.api.options()?;
    if let Some(api) = &api {
        configuration.api = api.clone();
    }
    let origin = ConfigOrigin::File { path, api };
    serving::serve(configuration, origin, &ClientCredentials::default(), format, AwayStorage::Waits)
}
