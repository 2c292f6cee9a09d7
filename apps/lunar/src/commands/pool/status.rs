//! `lunar pool status`.

use crate::commands::api_args::ApiArgs;
use crate::output::{self, Failure, Format};
use lunar_control::api::pools::{PoolReport, PoolScrubReport, Pools};
use lunar_control::client::{ApiClient, ApiPath};
use std::fmt::Write;

/// Show the pools that a server serves: health, members, copies and scrubs in progress
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  lunar pool status\n  lunar pool status safe --json")]
pub struct StatusCommand {
    /// The pool; without it, all pools
    name: Option<String>,
    #[command(flatten)]
    api: ApiArgs,
}

/// Runs the command.
///
/// # Errors
/// Fails if no server is found, or it does not serve the pool.
pub fn run(args: &StatusCommand, format: Format) -> Result<(), Failure> {
    let client = args.api.client()?;
    let pools = crate::commands::runtime()?.block_on(async {
        match &args.name {
            Some(name) => pool(&client, name).await.map(|pool| vec![pool]),
            None => Ok(client.get::<Pools>(&ApiPath::new(&["pools"])).await?.pools),
        }
    })?;
    match format {
        Format::Json => output::print_json(&Pools { pools }),
        Format::Human if pools.is_empty() => output::print_text("no pools\n"),
        Format::Human => output::print_text(&pools.iter().map(human).collect::<String>()),
    }
}

/// The pool `name` of a server.
///
/// # Errors
/// Fails if the server does not answer, or does not serve the pool.
pub async fn pool(client: &ApiClient, name: &str) -> Result<PoolReport, Failure> {
    let found: Pools = client.get(&ApiPath::new(&["pools"])).await?;
    found.pools.into_iter().find(|pool| pool.name == name).ok_or_else(|| {
        Failure::not_found(format!("the server serves no pool {name}")).hint(
            "see `lunar pool status` for the pools that it serves, `lunar ctl luns` for LUNs that \
             wait",
        )
    })
}

/// Describes a pool.
pub fn human(pool: &PoolReport) -> String {
    let mut text = format!(
        "{} ({}, {}): {}, generation {}\n",
        pool.name,
        pool.kind,
        output::size(pool.size_bytes),
        pool.health,
        pool.generation
    );
    for member in &pool.members {
        let device = if member.device.is_empty() { "-" } else { &member.device };
        let _ = write!(text, "  {} {:<8} {device}", member.slot, member.state);
        if member.missing_bytes > 0 {
            let done = pool.size_bytes.saturating_sub(member.missing_bytes);
            let percent = done * 100 / pool.size_bytes.max(1);
            let left = output::size(member.missing_bytes);
            let _ = write!(text, ", {left} to be copied ({percent} % is there)");
        }
        push_failure(&mut text, &member.last_failure);
    }
    for other in &pool.others {
        let _ = write!(text, "  - {:<8} {}", other.state, other.device);
        push_failure(&mut text, &other.last_failure);
    }
    let counts = [
        (pool.copied_bytes, format!("copied {}", output::size(pool.copied_bytes))),
        (pool.repairs, format!("repairs {}", pool.repairs)),
        (pool.losses, format!("LOSSES {}", pool.losses)),
    ];
    let counts: Vec<_> = counts.into_iter().filter(|(n, _)| *n > 0).map(|(_, text)| text).collect();
    if !counts.is_empty() {
        let _ = writeln!(text, "  {}", counts.join(", "));
    }
    if let Some(scrub) = &pool.scrub {
        let _ = writeln!(text, "  scrub {}", human_scrub(scrub));
    }
    if let Some(step) = &pool.next_step {
        let _ = writeln!(text, "  next: {step}");
    }
    text
}

fn push_failure(text: &mut String, failure: &str) {
    if !failure.is_empty() {
        let _ = write!(text, ", last failure: {failure}");
    }
    text.push('\n');
}

/// Describes a scrub in one line.
pub fn human_scrub(scrub: &PoolScrubReport) -> String {
    let done = scrub.checked_bytes + scrub.skipped_bytes;
    let mut text = match &*scrub.state {
        "complete" => format!("complete: {} compared", output::size(scrub.checked_bytes)),
        state => {
            let percent = done * 100 / scrub.total_bytes.max(1);
            let (done, all) = (output::size(done), output::size(scrub.total_bytes));
            format!("{state}: {done} of {all} compared ({percent} %)")
        }
    };
    if !scrub.error.is_empty() {
        let _ = write!(text, ": {}", scrub.error);
    }
    let _ = match scrub.different_blocks {
        0 => write!(text, ", no differences"),
        blocks => write!(text, ", {blocks} blocks differed and are equal now"),
    };
    if scrub.undecided_blocks > 0 {
        let _ = write!(
            text,
            " ({} of them without a majority: the content of the first member was kept)",
            scrub.undecided_blocks
        );
    }
    for member in &scrub.members {
        let parts = [
            (member.outvoted_blocks, "was outvoted in"),
            (member.unreadable_blocks, "could not read"),
        ];
        for (blocks, what) in parts.into_iter().filter(|(blocks, _)| *blocks > 0) {
            let _ = write!(text, ", member {} {what} {blocks} blocks", member.slot);
        }
    }
    if scrub.unreadable_blocks > 0 {
        let _ = write!(text, ", {} blocks could be read on NO member", scrub.unreadable_blocks);
    }
    if scrub.skipped_bytes > 0 {
        let skipped = output::size(scrub.skipped_bytes);
        let _ = write!(text, ", {skipped} not compared: fewer than two members have them");
    }
    text
}
