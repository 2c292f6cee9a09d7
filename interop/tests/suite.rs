//! The libiscsi suite against `lunar serve`, compared with the table in CONFORMANCE.md.

use anyhow::{Result, ensure};
use interop::conformance::{ThinDisk, table, totals, unclean, worse_than};
use interop::document::{SUITE, committed, section};
use interop::suite::{Outcome, run_all};

/// What a run on one thin disk has to reach.
const PASSED_MIN: usize = 170;

/// Goal: no test ends worse than CONFORMANCE.md says, and none fails but those
/// that CONFORMANCE.md excuses.
/// Method: every suite once, in a process of its own, on one thin 512e LUN.
#[test]
fn no_worse_than_the_committed_table() -> Result<()> {
    let document = committed()?;
    let committed = section(&document, SUITE)?;
    let results = run_all(&mut ThinDisk::start()?)?;
    let table = table(&results);
    let worse = worse_than(committed, &results);
    ensure!(worse.is_empty(), "worse than CONFORMANCE.md:\n{}\n\n{table}", worse.join("\n"));
    let totals = totals(&results);
    let passed = totals.get(&Outcome::Passed).copied().unwrap_or_default();
    let unclean = unclean(&results);
    let good = unclean.is_empty() && passed >= PASSED_MIN;
    ensure!(good, "{passed} pass, not clean: {unclean:?}\n{table}");
    Ok(())
}
