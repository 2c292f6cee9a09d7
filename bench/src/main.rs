//! Measured comparisons: `cargo run --release -p bench -- --help`. What they gave, and on what
//! machine, stands in docs/benchmarks.md.

mod cores;
mod files;
mod flame;
mod group_commit;
mod libiscsi;
mod null_target;
mod scale;
mod server;
mod target;
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
    /// The target against tgt, and against what is possible: cells, goals, one report
    Target(target::Target),
    /// Where the time of a target goes: one lane of a cell, as a flame graph
    Profile(target::profile::Command),
    /// Two builds of Lunar against each other
    Compare(target::compare::Compare),
    /// Many sessions, many LUNs, logins a second, and how soon a server listens
    Scale(scale::Scale),
    /// The least that initiators log in to and read from: a ceiling for targets
    NullTarget(null_target::NullTarget),
}

fn main() -> anyhow::Result<()> {
    let command = Command::parse();
    files::remove_when_told_to_end()?;
    match command {
        Command::GroupCommit(command) => command.run(),
        Command::Libiscsi(command) => command.run(),
        Command::Target(command) => command.run(),
        Command::Profile(command) => command.run(),
        Command::Compare(command) => command.run(),
        Command::Scale(command) => command.run(),
        Command::NullTarget(command) => command.run(),
    }
}
