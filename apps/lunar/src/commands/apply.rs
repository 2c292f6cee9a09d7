//! `lunar apply`: applies a configuration to a running daemon.

use super::api_args::ApiArgs;
use crate::output::{self, Failure, Format};
use lunar_control::api::configuration::{Apply as Request, SentConfiguration};
use lunar_control::client::{ApiPath, Method};
use lunar_control::config::{self, ConfigProblem};
use lunar_control::daemon::Applied;
use std::path::{Path, PathBuf};

/// Apply a configuration to the running daemon: all of it, or nothing
///
/// Without --api, the daemon is the one that the configuration describes: at the address of its
/// api table, else with its socket in the directory `state`, beside its disks or in a runtime
/// directory.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    lunar apply /etc/lunar/lunar.toml --dry-run\n  \
    lunar apply /etc/lunar/lunar.toml")]
pub struct ApplyCommand {
    /// The configuration; the daemon reads the files named in it
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Only print the changes
    #[arg(long)]
    dry_run: bool,
    /// Let disks shrink: data beyond their new ends is lost
    #[arg(long)]
    shrink: bool,
    #[command(flatten)]
    api: ApiArgs,
}

/// Runs the command.
///
/// # Errors
/// Fails if the file cannot be read, no daemon is running, or the daemon refuses the configuration.
pub fn run(args: &ApplyCommand, format: Format) -> Result<(), Failure> {
    let text = config::read(&args.file)?;
    let path = std::path::absolute(&args.file).unwrap_or_else(|_| args.file.clone());
    let client = args.api.client_of(&text, &path)?;
    let request = Request {
        configuration: Some(SentConfiguration { text, path: path.display().to_string() }),
        dry_run: args.dry_run,
        shrink: args.shrink,
    };
    let at = ApiPath::new(&["apply"]);
    let applied: Result<Applied, Failure> =
        super::runtime()?.block_on(client.send(Method::POST, &at, &request));
    let applied = applied.map_err(|failure| by_line(failure, &args.file))?;
    match format {
        Format::Json => output::print_json(&applied),
        Format::Human => output::print_text(&human(&applied)),
    }
}

fn human(applied: &Applied) -> String {
    let mut text = applied.difference.to_string();
    if applied.difference.is_empty() {
        text.push_str("no differences\n");
    }
    if applied.made {
        let (changed, ended) = (applied.sessions_changed, applied.sessions_ended);
        text.push_str(&format!(
            "applied; sessions whose LUNs changed: {changed}, sessions ended: {ended}\n"
        ));
    } else {
        text.push_str("--dry-run: no changes were made\n");
    }
    for warning in &applied.warnings {
        text.push_str(&format!("warning: {warning}\n"));
    }
    text
}

/// Formats the problems of the file as `lunar check` does: one line each, with the position.
fn by_line(failure: Failure, file: &Path) -> Failure {
    let list = failure.parts.as_ref().map(|parts| parts.list.1.clone()).unwrap_or_default();
    match serde_json::from_value::<Vec<ConfigProblem>>(list) {
        Ok(problems) if !problems.is_empty() => config::failure(file, &problems),
        _ => failure,
    }
}
