//! `lunar target`: serves a configuration.

use super::serve_api::ServeApiArgs;
use crate::device_url::ServedDevices;
use crate::output::{Failure, Format};
use crate::serving::{self, Serving};
use lunar_control::config;
use lunar_control::config::model::Configuration;
use lunar_control::config::moved_extents::MovedExtentsUse;
use lunar_control::config::persisted_targets;
use lunar_control::daemon::{ConfigOrigin, SmallerFile, StartOptions, UnavailableStorage};
use lunar_target::RelayFactory;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Serve the targets of a configuration, in the foreground
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  lunar target --config /etc/lunar/lunar.toml\n  \
    lunar target --config lunar.toml --take-over vms     # its former host is gone")]
pub struct TargetCommand {
    /// The configuration; `lunar check` validates it
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Take this pool over from the host that has it open, which cannot write to it from then on;
    /// may be repeated
    #[arg(long, value_name = "POOL")]
    take_over: Vec<String>,
    /// Enlarge files that are smaller than their size in the configuration, which otherwise keep
    /// their size until the configuration is applied
    #[arg(long)]
    grow: bool,
    // The last: its heading also applies to options after it.
    #[command(flatten)]
    api: ServeApiArgs,
}

/// Runs the command.
///
/// # Errors
/// Fails if the configuration is invalid, a device or address cannot be opened, or the final sync
/// fails.
pub fn run(args: &TargetCommand, format: Format) -> Result<(), Failure> {
    let smaller = SmallerFile::at_start(args.grow);
    serve(&args.config, &args.api, (format, smaller), None, &|configuration| {
        for name in &args.take_over {
            config::pools::find(&configuration.pools, name).map_err(|hint| {
                let what = format!("{} has no [[pool]] {name}", args.config.display());
                Failure::usage(what).hint(hint)
            })?;
        }
        Ok(ServedDevices::taking_over(&args.take_over))
    })
}

/// Serves a configuration, which `devices` checks before its devices are opened.
///
/// # Errors
/// Fails like [`run`], and with the errors of `devices`.
pub fn serve(
    file: &Path,
    api: &ServeApiArgs,
    (format, smaller): (Format, SmallerFile),
    relays: Option<Arc<dyn RelayFactory>>,
    devices: &dyn Fn(&Configuration) -> Result<ServedDevices, Failure>,
) -> Result<(), Failure> {
    // `lunar apply` sends absolute paths, so this path must be absolute too: the same file must
    // give the same configuration.
    let path = std::path::absolute(file).unwrap_or_else(|_| file.to_owned());
    let mut configuration = config::load_to_serve(&path, MovedExtentsUse::Replace)?;
    let persisted = persisted_targets::read(configuration.state.as_deref())?;
    for warning in persisted_targets::add(&mut configuration, persisted, &[])? {
        tracing::warn!("{warning}");
    }
    let devices = devices(&configuration)?;
    let api = api.options()?;
    if let Some(api) = &api {
        configuration.api = api.clone();
    }
    let origin = ConfigOrigin::File { path, api };
    let start = StartOptions { storage: UnavailableStorage::Waits, smaller };
    let serving = Serving { origin, format, start, relays };
    serving::serve(configuration, serving, devices)
}
