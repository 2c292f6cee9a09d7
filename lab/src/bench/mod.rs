//! Measured comparisons. Their figures, and the machine, are in docs/benchmarks.md.

mod cores;
pub(crate) mod files;
mod flame;
mod group_commit;
mod libiscsi;
mod null_target;
mod scale;
mod target;

/// Measured comparisons of Lunar with rivals and with ceilings
#[derive(Debug, clap::Subcommand)]
pub enum Bench {
    /// Durable writes over iSCSI, against a local loop that syncs as many at once
    GroupCommit(group_commit::GroupCommitBench),
    /// Our initiator against libiscsi, on the same target
    Libiscsi(libiscsi::Libiscsi),
    /// The target against tgt and against ceilings: cells, goals, one report
    Target(target::TargetBench),
    /// Profile of a target: one lane of a cell, as a flame graph
    Profile(target::profile::ProfileCommand),
    /// Compare two builds of Lunar with each other
    BenchCompare(target::compare::BenchCompare),
    /// Many sessions, many LUNs, logins a second, and the time until a server listens
    Scale(scale::ScaleBench),
    /// A minimal target that initiators can log in to and read from: a ceiling for targets
    NullTarget(null_target::NullTarget),
}

impl Bench {
    /// Runs the comparison.
    ///
    /// # Errors
    /// A peer is missing or fails, or a figure cannot be measured.
    pub fn run(self) -> anyhow::Result<()> {
        files::remove_when_told_to_end()?;
        match self {
            Self::GroupCommit(command) => command.run(),
            Self::Libiscsi(command) => command.run(),
            Self::Target(command) => command.run(),
            Self::Profile(command) => command.run(),
            Self::BenchCompare(command) => command.run(),
            Self::Scale(command) => command.run(),
            Self::NullTarget(command) => command.run(),
        }
    }
}
