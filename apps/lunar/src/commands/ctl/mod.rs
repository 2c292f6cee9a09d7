//! `lunar ctl`: reads and changes the state of a running server.

mod change;
mod limit;
mod show;
mod table;
mod target;
mod trace;

use super::api_args::ApiArgs;
use crate::output::{Failure, Format};
use lunar_control::config;
use std::path::PathBuf;

/// Inspect a running server, and change what it serves
///
/// A change lasts until a configuration is applied or the server is restarted; to keep it, paste
/// the output of --print-toml into the configuration. An enlarged disk keeps its size, and targets
/// that were added with --persist stay.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    lunar ctl status\n  \
    lunar ctl status --config /etc/lunar/lunar.toml\n  \
    lunar ctl resize 0 20G\n  \
    lunar ctl limit 0 --bandwidth 200Mbit\n  \
    lunar ctl trace 1 --file trace.pcapng\n  \
    lunar ctl add-lun /srv/more.img --size 5G --print-toml\n  \
    lunar ctl sessions --json --api unix:/run/lunar/api.sock")]
pub struct Ctl {
    #[command(flatten)]
    api: ApiArgs,
    /// Use the server of this configuration, unless --api selects one
    #[arg(long, global = true, value_name = "FILE", help_heading = "Server")]
    config: Option<PathBuf>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Status(show::StatusCommand),
    Sessions(show::SessionsCommand),
    Targets(show::TargetsCommand),
    Luns(show::LunsCommand),
    Resize(change::ResizeCommand),
    Recover(change::RecoverCommand),
    AddLun(change::AddLun),
    RemoveLun(change::RemoveLun),
    AddTarget(target::AddTargetCommand),
    RemoveTarget(target::RemoveTargetCommand),
    Logout(change::Logout),
    Redirect(change::RedirectCommand),
    Limit(limit::LimitCommand),
    Trace(trace::TraceCommand),
    Stop(target::StopCommand),
}

/// Runs the command.
///
/// # Errors
/// Fails if no server is found, or the server refuses.
pub fn run(args: &Ctl, format: Format) -> Result<(), Failure> {
    let client = match &args.config {
        Some(file) => args.api.client_of(&config::read(file)?, file)?,
        None => args.api.client()?,
    };
    let work = async {
        match &args.command {
            Command::Status(args) => show::status(&client, args, format).await,
            Command::Sessions(args) => show::sessions(&client, args, format).await,
            Command::Targets(args) => show::targets(&client, args, format).await,
            Command::Luns(args) => show::luns(&client, args, format).await,
            Command::Resize(args) => change::resize(&client, args, format).await,
            Command::Recover(args) => change::recover(&client, args, format).await,
            Command::AddLun(args) => change::add_lun(&client, args, format).await,
            Command::RemoveLun(args) => change::remove_lun(&client, args, format).await,
            Command::AddTarget(args) => target::add_target(&client, args, format).await,
            Command::RemoveTarget(args) => target::remove_target(&client, args, format).await,
            Command::Stop(args) => target::stop(&client, args, format).await,
            Command::Logout(args) => change::logout(&client, args, format).await,
            Command::Redirect(args) => change::redirect(&client, args, format).await,
            Command::Limit(args) => limit::limit(&client, args, format).await,
            Command::Trace(args) => trace::trace(&client, args, format).await,
        }
    };
    super::runtime()?.block_on(work)
}
