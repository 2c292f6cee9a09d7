//! `lunar discover`: lists the targets of a portal.

use super::session::{SessionArgs, runtime};
use crate::output::{self, Failure, Format};
use lunar_initiator::{TargetRecord, Url};

/// List the targets that a portal offers to this initiator, with their portals (SendTargets)
#[derive(Debug, clap::Args)]
#[command(mut_arg("config", |arg| arg.hide(true)))]
#[command(after_help = "Examples:\n  \
    lunar discover iscsi://127.0.0.1\n  \
    lunar discover iscsi://[2001:db8::1]:3260 --json")]
pub struct Discover {
    /// The portal: iscsi://HOST or iscsi://HOST:PORT
    #[arg(value_name = "URL")]
    url: String,
    #[command(flatten)]
    session: SessionArgs,
}

/// Runs the command.
///
/// # Errors
/// Fails if the portal cannot be reached or refuses the login.
pub fn run(args: &Discover, format: Format) -> Result<(), Failure> {
    let url: Url = args.url.parse()?;
    let options = args.session.options(Some(&url))?;
    let targets = runtime()?.block_on(lunar_initiator::discover(&url, &options))?;
    match format {
        Format::Json => output::print_json(&document(&targets)),
        Format::Human => output::print_text(&human(&targets)),
    }
}

fn document(targets: &[TargetRecord]) -> serde_json::Value {
    let portal = |address: &(String, u16)| {
        let (address, portal_group) = address;
        serde_json::json!({ "address": address, "portal_group": portal_group })
    };
    let target = |target: &TargetRecord| {
        let portals: Vec<_> = target.addresses.iter().map(portal).collect();
        serde_json::json!({ "name": target.name, "portals": portals })
    };
    let targets: Vec<_> = targets.iter().map(target).collect();
    serde_json::json!({ "targets": targets })
}

fn human(targets: &[TargetRecord]) -> String {
    let mut text = String::new();
    for target in targets {
        text.push_str(&target.name);
        text.push('\n');
        for (address, portal_group) in &target.addresses {
            text.push_str(&format!("    {address}, portal group {portal_group}\n"));
        }
    }
    if text.is_empty() { "no targets are offered to this initiator\n".to_owned() } else { text }
}
