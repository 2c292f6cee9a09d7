//! `lunar pool scrub`.

use super::status::{human_scrub, pool};
use crate::commands::api_args::ApiArgs;
use crate::commands::progress::ProgressMeter;
use crate::output::{self, Failure, Format};
use lunar_control::api::pools::{PoolChanged, PoolScrubReport, ScrubRequest};
use lunar_control::client::{ApiClient, ApiPath, Method};
use std::time::Duration;

/// Interval at which the progress is read.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(250);

/// Compare all members of a mirror while it is in use, and repair their differences
///
/// Blocks that a member cannot read are written to it again. Blocks that differ get the content
/// that most of at least three members have; of two members, that of the first one. The scrub runs
/// in the server; `lunar pool status` shows its progress and its result.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    lunar pool scrub safe --wait\n  \
    lunar pool scrub safe --rate 400Mbit\n  \
    lunar pool scrub safe --stop")]
pub struct ScrubCommand {
    /// The pool
    name: String,
    /// Wait for the end; fails if members differed or blocks are lost
    #[arg(long)]
    wait: bool,
    /// Stop the scrub that runs
    #[arg(long, conflicts_with_all = ["wait", "rate"])]
    stop: bool,
    /// Maximum rate, like 400Mbit [default: as fast as the members, slower while the pool is used]
    #[arg(long, value_name = "RATE")]
    rate: Option<String>,
    #[command(flatten)]
    api: ApiArgs,
}

/// Runs the command.
///
/// # Errors
/// Fails if the server does not scrub the pool; with `--wait`, if the scrub does not end well.
pub fn run(args: &ScrubCommand, format: Format) -> Result<(), Failure> {
    let client = args.api.client()?;
    let path = ApiPath::new(&["pools", &args.name, "scrub"]);
    let scrub = crate::commands::runtime()?.block_on(async {
        let changed: PoolChanged = match args.stop {
            true => client.delete(&path).await?,
            false => {
                let body = ScrubRequest { rate: args.rate.clone() };
                client.send(Method::POST, &path, &body).await?
            }
        };
        let scrub = changed.pool.scrub.ok_or_else(|| lost(&args.name))?;
        if args.wait { wait(&client, &args.name, scrub).await } else { Ok(scrub) }
    })?;
    match format {
        Format::Json => output::print_json(&scrub)?,
        Format::Human => output::print_text(&format!("{}\n", human_scrub(&scrub)))?,
    }
    if args.wait { check(&args.name, &scrub) } else { Ok(()) }
}

async fn wait(
    client: &ApiClient,
    name: &str,
    mut now: PoolScrubReport,
) -> Result<PoolScrubReport, Failure> {
    let meter = ProgressMeter::begin("scrub", now.total_bytes);
    while now.state == "running" {
        meter.set(now.checked_bytes + now.skipped_bytes);
        tokio::time::sleep(PROGRESS_INTERVAL).await;
        now = pool(client, name).await?.scrub.ok_or_else(|| lost(name))?;
    }
    Ok(now)
}

fn lost(name: &str) -> Failure {
    Failure::new(format!("the pool {name} was opened again, which has stopped the scrub"))
        .hint(format!("start it again: lunar pool scrub {name}"))
}

/// Fails unless the scrub is complete, and each block can be read.
fn check(name: &str, scrub: &PoolScrubReport) -> Result<(), Failure> {
    match &*scrub.state {
        "complete" if scrub.unreadable_blocks > 0 => Err(Failure::new(format!(
            "the pool {name} has {} blocks that no member can read",
            scrub.unreadable_blocks
        ))
        .hint("restore them from a backup: writing a block repairs it")),
        "complete" => Ok(()),
        "failed" => Err(Failure::new(format!("the scrub of {name} has failed: {}", scrub.error))
            .hint(format!("see `lunar pool status {name}`, then start it again"))),
        state => Err(Failure::new(format!("the scrub of {name} was {state}"))
            .hint(format!("start it again: lunar pool scrub {name}"))),
    }
}
