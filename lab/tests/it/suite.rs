//! The libiscsi suite against `lunar serve`, compared with the tables in CONFORMANCE.md.

use anyhow::{Result, ensure};
use lunar_lab::conformance::document::{SUITE, committed};
use lunar_lab::conformance::profiles::run_all;
use lunar_lab::conformance::report::{regressions, report, unclean, union};
use lunar_lab::report::sections::section;

/// Minimum number of the 230 tests that must be covered by some profile.
const COVERED_MIN: usize = 225;

/// Goal: no test has a worse result than in CONFORMANCE.md, none fails but those that it excuses,
/// and enough are covered.
/// Method: every profile with its suites, one process of the tool for each suite.
#[test]
fn no_worse_than_the_committed_tables() -> Result<()> {
    let document = committed()?;
    let runs = run_all()?;
    let report = report(&runs);
    let worse = regressions(section(&document, SUITE)?, &runs)?;
    ensure!(worse.is_empty(), "worse than CONFORMANCE.md:\n{}\n\n{report}", worse.join("\n"));
    let unclean = unclean(&runs);
    ensure!(unclean.is_empty(), "neither passed nor excused: {unclean:#?}\n\n{report}");
    let covered = union(&runs).iter().filter(|(_, by)| by.is_some()).count();
    ensure!(covered >= COVERED_MIN, "{covered} tests are covered\n\n{report}");
    Ok(())
}
