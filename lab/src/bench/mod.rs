//! Measured comparisons. Their figures, and the machine, are in docs/benchmarks.md.

pub(crate) mod facts;
mod first_byte;
mod flame;
mod goal;
mod group_commit;
mod libiscsi;
mod pool;
mod scale;
mod switch;
mod target;

use crate::peers::byte_relay::ByteRelay;
use crate::peers::null_target::NullTarget;
use crate::system::files;
use anyhow::{Result, ensure};

/// Name that our initiator logs in with in measurements.
pub(crate) const INITIATOR: &str = "iqn.2026-11.org.lunarsan:bench";

/// Measured comparisons of Lunar with other implementations and with upper bounds
#[derive(Debug, clap::Subcommand)]
pub enum Bench {
    /// Durable writes over iSCSI, against a local loop that syncs as many at once
    GroupCommit(group_commit::GroupCommitBench),
    /// Our initiator against libiscsi, on the same target
    Libiscsi(libiscsi::Libiscsi),
    /// The target against tgt and against upper bounds: measured cases, goals, one report
    Target(target::TargetBench),
    /// Profile of a target: one setup of a measured case, as a flame graph
    Profile(target::profile::ProfileCommand),
    /// Compare two builds of Lunar with each other
    BenchCompare(target::compare::BenchCompare),
    /// Time to the first and the last byte of a READ, of two builds of Lunar
    FirstByte(first_byte::FirstByteBench),
    /// Pools against their members: stripes and mirrors of remote LUNs and of memory
    Pool(pool::PoolBench),
    /// The switch against no switch, a byte relay, and a switch of foreign programs
    Switch(switch::SwitchBench),
    /// A relay of bytes between sockets: an upper bound for switches
    ByteRelay(ByteRelay),
    /// Many sessions, many LUNs, logins a second, and the time until a server listens
    Scale(scale::ScaleBench),
    /// A minimal target that initiators can log in to and read from: an upper bound for targets
    NullTarget(NullTarget),
}

impl Bench {
    /// Runs the comparison.
    ///
    /// # Errors
    /// A peer is missing or fails, or a figure cannot be measured.
    pub fn run(self) -> Result<()> {
        files::remove_on_termination_signal()?;
        match self {
            Self::GroupCommit(command) => command.run(),
            Self::Libiscsi(command) => command.run(),
            Self::Target(command) => command.run(),
            Self::Profile(command) => command.run(),
            Self::BenchCompare(command) => command.run(),
            Self::FirstByte(command) => command.run(),
            Self::Pool(command) => command.run(),
            Self::Switch(command) => command.run(),
            Self::ByteRelay(command) => command.run(),
            Self::Scale(command) => command.run(),
            Self::NullTarget(command) => command.run(),
        }
    }
}

/// Parses a number of seconds, at most an hour.
fn parse_seconds(text: &str) -> Result<f64> {
    let seconds: f64 = text.parse()?;
    ensure!((0.0..=3600.0).contains(&seconds), "write a number of seconds from 0 to 3600");
    Ok(seconds)
}
