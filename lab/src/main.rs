//! `cargo run -p lunar-lab -- --help`: foreign peers, attacks, conformance, comparisons.

use anyhow::Result;
use clap::Parser;
use lunar_lab::adversary::command_line::Adversary;
use lunar_lab::bench::Bench;
use lunar_lab::conformance::document::{PATH, SUITE, committed, render};
use lunar_lab::conformance::foreign::ForeignTarget;
use lunar_lab::conformance::profiles::run_all;
use lunar_lab::conformance::report::{report, totals, unclean};
use lunar_lab::conformance::suite::{TestOutcome, run_suite, suites};
use lunar_lab::papers::Paper;
use lunar_lab::report::sections::section;
use lunar_lab::switch_peers::SwitchPeers;

/// The laboratory of Lunar: foreign peers, attacks, conformance, measured comparisons
#[derive(Debug, Parser)]
#[command(
    name = "lab",
    after_help = "Example:\n  \
    cargo run --release -p lunar-lab -- group-commit --seconds 5"
)]
enum Command {
    #[command(flatten)]
    Bench(Bench),
    /// Attack a Lunar server while a well-behaved client measures it
    Adversary(Adversary),
    /// Run the libiscsi suite and write CONFORMANCE.md
    Conformance,
    /// Write the parts of CONFORMANCE.md that come from the code alone
    ConformanceTables,
    /// Our initiators against LIO in a QEMU guest: lab/kernel/run
    Lio {
        /// Directory created by lab/kernel/fetch
        folder: String,
        /// Run the cases whose names contain all of these words
        words: Vec<String>,
    },
    /// Repeat the measurements of a paper, and show its figures beside the new ones
    #[command(subcommand)]
    Papers(Paper),
    /// Write the state files of this version below testdata/state
    StateFixture,
    /// Hosts and storages of other makers with a switch between them: lab/kernel/run switch
    SwitchPeers(SwitchPeers),
    /// Run the libiscsi suite against a running target, whose data is lost, or a foreign one
    Suite {
        /// The LUN, and the same LUN by a second path
        #[arg(num_args = 1..=2, required_unless_present = "of")]
        urls: Vec<String>,
        /// Start this target, and run the suite on each kind of its disks
        #[arg(long, conflicts_with = "urls")]
        of: Option<ForeignTarget>,
        /// Directory created by lab/kernel/fetch, for LIO
        #[arg(long, requires = "of")]
        folder: Option<String>,
    },
}

fn main() -> Result<()> {
    match Command::parse() {
        Command::Bench(bench) => bench.run(),
        Command::Adversary(adversary) => exit_with(adversary.run()?),
        Command::Conformance => {
            let runs = run_all()?;
            let report = report(&runs);
            println!("{report}");
            for line in unclean(&runs) {
                println!("unexpected result: {line}");
            }
            Ok(std::fs::write(PATH, render(&report)?)?)
        }
        Command::ConformanceTables => {
            Ok(std::fs::write(PATH, render(section(&committed()?, SUITE)?)?)?)
        }
        Command::Lio { folder, words } => exit_with(lunar_lab::lio::main(&folder, &words)?),
        Command::Papers(paper) => paper.run(),
        Command::StateFixture => lunar_lab::state_fixtures::write_fixtures(),
        Command::SwitchPeers(peers) => exit_with(peers.main()?),
        Command::Suite { of: Some(target), folder, .. } => target.run(folder.as_deref()),
        Command::Suite { urls, .. } => run_suites(&urls),
    }
}

/// Ends the process with a status of 1 if something failed.
fn exit_with(passed: bool) -> ! {
    std::process::exit(i32::from(!passed))
}

fn run_suites(urls: &[String]) -> Result<()> {
    let mut all = Vec::new();
    for suite in suites()? {
        let results = run_suite(&suite, urls, &[])?;
        for result in results.iter().filter(|result| result.outcome != TestOutcome::Passed) {
            println!("{}.{}: {}: {}", result.suite, result.test, result.outcome, result.note);
        }
        all.extend(results);
    }
    for (outcome, count) in totals(&all) {
        println!("{outcome}: {count}");
    }
    Ok(())
}
