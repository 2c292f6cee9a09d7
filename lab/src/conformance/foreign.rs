//! The libiscsi suite on targets of other makers, for docs/comparison.md.

use super::report::totals;
use super::suite::{Suite, TestOutcome, TestResult, run_suite, suites};
use crate::peers::lio_guest::{Authentication, Guest};
use crate::peers::tgt::Tgt;
use crate::system::scratch::Scratch;
use anyhow::{Context, Result};
use std::collections::BTreeSet;
use std::fs::File;

/// Length of a disk, as of the first profile of `lunar serve`.
const DISK_BYTES: u64 = 1 << 30;

/// A target of another maker.
#[derive(Clone, Copy, Debug, Eq, PartialEq, clap::ValueEnum)]
pub enum ForeignTarget {
    /// Debian's tgt: a thin file.
    Tgt,
    /// The target of the Linux kernel, in a QEMU guest: iblock and fileio.
    Lio,
}

/// A running target; it ends when this is dropped.
enum ForeignServer {
    Tgt(Tgt),
    Lio(Box<Guest>),
}

impl ForeignTarget {
    /// Names of its disks.
    fn disks(self) -> &'static [&'static str] {
        match self {
            Self::Tgt => &["thin file"],
            Self::Lio => &["iblock", "fileio"],
        }
    }

    fn start(self, folder: Option<&str>, scratch: &Scratch) -> Result<ForeignServer> {
        Ok(match self {
            Self::Tgt => {
                let file = scratch.path("disk.img");
                File::create(&file)?.set_len(DISK_BYTES)?;
                let tgt = Tgt::start(&file)?;
                tgt.make_thin()?;
                ForeignServer::Tgt(tgt)
            }
            Self::Lio => {
                let folder = folder.context("LIO needs the folder that lab/kernel/fetch makes")?;
                ForeignServer::Lio(Box::new(Guest::start_with(folder, scratch, DISK_BYTES)?))
            }
        })
    }

    /// Runs the suite on each disk, and prints the tests that did not pass, and totals. After a
    /// suite with a failure the target is started again: reservations may be left.
    ///
    /// # Errors
    /// The target does not start, or the output of the tool cannot be parsed.
    pub fn run(self, folder: Option<&str>) -> Result<()> {
        let suites = suites()?;
        let mut passed = BTreeSet::new();
        for (number, disk) in self.disks().iter().enumerate() {
            let results = self.run_on(number, folder, &suites)?;
            for result in &results {
                let TestResult { suite, test, outcome, note } = result;
                match outcome {
                    TestOutcome::Passed => drop(passed.insert((suite.clone(), test.clone()))),
                    _ => println!("{disk}: {suite}.{test}: {outcome}: {note}"),
                }
            }
            for (outcome, count) in totals(&results) {
                println!("{disk}: {outcome}: {count}");
            }
        }
        let all: usize = suites.iter().map(|suite| suite.tests.len()).sum();
        println!("{} of {all} tests pass on one of the disks", passed.len());
        Ok(())
    }

    fn run_on(
        self,
        disk: usize,
        folder: Option<&str>,
        suites: &[Suite],
    ) -> Result<Vec<TestResult>> {
        let scratch = Scratch::new("suite-foreign")?;
        let mut server = self.start(folder, &scratch)?;
        let mut results = Vec::new();
        for suite in suites {
            eprintln!("{}", suite.name);
            let mut of_suite = run_suite(suite, &[server.url(disk)], &[])?;
            if of_suite.iter().any(|result| result.outcome >= TestOutcome::Soft) {
                drop(server);
                server = self.start(folder, &scratch)?;
            }
            results.append(&mut of_suite);
        }
        Ok(results)
    }
}

impl ForeignServer {
    fn url(&self, disk: usize) -> String {
        match self {
            Self::Tgt(tgt) => tgt.url(),
            Self::Lio(guest) => {
                let target = Authentication::Open.target();
                format!("iscsi://{}/{target}/{disk}", guest.address())
            }
        }
    }
}
