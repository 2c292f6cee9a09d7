//! `lunar switch migrate`: moves an extent of a virtual LUN while hosts use it.

use crate::commands::api_args::ApiArgs;
use crate::commands::progress::ProgressMeter;
use crate::output::{self, Failure, Format};
use lunar_control::api::configuration::ConfigurationText;
use lunar_control::api::migrations::{MigrationList, MigrationReport, NewMigration};
use lunar_control::client::{ApiClient, ApiPath, Method};
use lunar_control::units::{parse_rate, parse_size};
use serde::Serialize;
use std::time::Duration;

/// Interval at which the progress is read.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(250);

/// Move an extent of a virtual LUN to other blocks while hosts use the LUN
///
/// The blocks must not be in use; what is there is lost. Hosts stay connected, and all that they
/// write reaches the source and the destination until the end. The state directory of the server
/// then has the destination, which outranks the configuration: `lunar check` and `lunar apply`
/// refuse the source.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    lunar switch migrate iqn.2026-11.org.example:virtual 0 --extent 1 --to c:0 --wait\n  \
    lunar switch migrate iqn.2026-11.org.example:virtual 0 --extent 1 --to c:10GiB --rate 1Gbit\n  \
    lunar switch migrate iqn.2026-11.org.example:virtual 0\n  \
    lunar switch migrate iqn.2026-11.org.example:virtual 0 --cancel\n\n\
    Without --to and --cancel, the progress is shown.")]
pub struct MigrateCommand {
    /// The target
    #[arg(value_name = "TARGET")]
    target: String,
    /// The number of the LUN
    #[arg(value_name = "LUN")]
    lun: u16,
    /// Position of the extent in the LUN, from 0; not needed if it has one
    #[arg(long, value_name = "N", requires = "to")]
    extent: Option<usize>,
    /// The storage that gets the extent, and the first byte there
    #[arg(long, value_name = "STORAGE:START", value_parser = parse_extent_start)]
    to: Option<ExtentStart>,
    /// Maximum rate of the copy [default: the limit migration_bytes_per_second while hosts use the
    /// LUN, else as fast as the storages]
    #[arg(long, requires = "to", value_parser = parse_rate)]
    rate: Option<u64>,
    /// Cancel the move; the extent stays where it is
    #[arg(long, conflicts_with = "to")]
    cancel: bool,
    /// Wait for the end
    #[arg(long)]
    wait: bool,
    #[command(flatten)]
    api: ApiArgs,
}

/// The start of an extent.
#[derive(Clone, Debug, Eq, PartialEq)]
struct ExtentStart {
    storage: String,
    start_bytes: u64,
}

/// A move, and the lines for the configuration once it has ended.
#[derive(Debug, Serialize)]
struct ShownMove {
    #[serde(flatten)]
    report: MigrationReport,
    /// The lines to paste into the configuration (TOML); empty before the end.
    toml: String,
}

fn parse_extent_start(text: &str) -> Result<ExtentStart, String> {
    let wrong = || "write STORAGE:START, for example b:10GiB".to_owned();
    let (storage, start) = text.rsplit_once(':').ok_or_else(wrong)?;
    if storage.is_empty() {
        return Err(wrong());
    }
    let start_bytes = if start == "0" { 0 } else { parse_size(start)? };
    Ok(ExtentStart { storage: storage.to_owned(), start_bytes })
}

/// Runs the command.
///
/// # Errors
/// The reason why the extent is not moved; with `--wait`, also if the move was cancelled.
pub fn run(args: &MigrateCommand, format: Format) -> Result<(), Failure> {
    let client = args.api.client()?;
    let lun = args.lun.to_string();
    let path = ApiPath::new(&["targets", &args.target, "luns", &lun, "migration"]);
    crate::commands::runtime()?.block_on(async {
        let mut report: MigrationReport = match &args.to {
            Some(to) => {
                let body = NewMigration {
                    extent: args.extent,
                    storage: to.storage.clone(),
                    start_bytes: to.start_bytes,
                    bytes_per_second: args.rate,
                };
                client.send(Method::POST, &path, &body).await?
            }
            None if args.cancel => client.delete(&path).await?,
            None => find(&client, args).await?,
        };
        if args.wait {
            report = wait_for_end(&client, args, report).await?;
        }
        let toml = match &*report.state {
            "moved" => {
                let text: ConfigurationText = client.get(&ApiPath::new(&["configuration"])).await?;
                text.drift
            }
            _ => String::new(),
        };
        let is_lost = args.wait && !args.cancel && report.state == "cancelled";
        print(&ShownMove { report, toml }, format)?;
        match is_lost {
            true => Err(Failure::new("the move was cancelled")
                .hint("see the log of the server; the extent is where it was")),
            false => Ok(()),
        }
    })
}

/// The last move of an extent of the LUN.
async fn find(client: &ApiClient, args: &MigrateCommand) -> Result<MigrationReport, Failure> {
    let list: MigrationList = client.get(&ApiPath::new(&["migrations"])).await?;
    let is_it = |one: &MigrationReport| {
        one.lun == args.lun && one.target.eq_ignore_ascii_case(&args.target)
    };
    list.migrations.into_iter().rev().find(is_it).ok_or_else(|| {
        let what = format!("no extent of LUN {} of {} is being moved", args.lun, args.target);
        Failure::not_found(what).hint("begin a move with --to STORAGE:START")
    })
}

async fn wait_for_end(
    client: &ApiClient,
    args: &MigrateCommand,
    mut now: MigrationReport,
) -> Result<MigrationReport, Failure> {
    let meter = ProgressMeter::begin("copy", now.size_bytes);
    while !now.has_ended() {
        meter.set(now.size_bytes.saturating_sub(now.missing_bytes));
        tokio::time::sleep(PROGRESS_INTERVAL).await;
        now = find(client, args).await?;
    }
    Ok(now)
}

/// The state of a move in one line.
pub(in crate::commands) fn human(report: &MigrationReport) -> String {
    let MigrationReport { from, to, state, size_bytes, missing_bytes, .. } = report;
    let done = size_bytes.saturating_sub(*missing_bytes);
    let progress = match report.has_ended() {
        true => String::new(),
        false => format!(", {} of {}", output::size(done), output::size(*size_bytes)),
    };
    let failure = match report.last_failure.is_empty() {
        true => String::new(),
        false => format!(" ({})", report.last_failure),
    };
    format!("extent {} from {from} to {to}: {state}{progress}{failure}", report.extent)
}

fn print(shown: &ShownMove, format: Format) -> Result<(), Failure> {
    match format {
        Format::Json => output::print_json(shown),
        Format::Human => {
            let report = &shown.report;
            let mut text = format!("{} LUN {}: {}\n", report.target, report.lun, human(report));
            if !shown.toml.is_empty() {
                text += "the configuration still has a former location; write:\n";
                text += &shown.toml;
            }
            output::print_text(&text)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extent_starts() {
        for (text, start) in [
            ("b:0", Some(("b", 0))),
            ("b:10GiB", Some(("b", 10 << 30))),
            ("b:512", Some(("b", 512))),
            ("b", None),
            (":0", None),
            ("b:", None),
            ("b:x", None),
        ] {
            let read = parse_extent_start(text).ok();
            let read = read.as_ref().map(|start| (&*start.storage, start.start_bytes));
            assert_eq!(read, start, "{text}");
        }
    }
}
