//! Measured comparisons: `cargo run --release -p bench -- --help`. What they gave, and on what
//! machine, stands in docs/benchmarks.md.

mod files;
mod group_commit;
mod libiscsi;
mod server;
mod tgt;

use clap::Parser;

/// Measured comparisons of Lunar with what it could be
#[derive(Debug, Parser)]
#[command(after_help = "Example:\n  cargo run --release -p bench -- group-commit --seconds 5")]
enum Command {
    /// Durable writes over iSCSI, against a local loop that syncs as many at once
    GroupCommit(group_commit::GroupCommit),
    /// Our initiator against libiscsi, on the same target
    Libiscsi(libiscsi::Libiscsi),
}

fn main() -> anyhow::Result<()> {
    match Command::parse() {
        Command::GroupCommit(command) => command.run(),
        Command::Libiscsi(command) => command.run(),
    }
}
