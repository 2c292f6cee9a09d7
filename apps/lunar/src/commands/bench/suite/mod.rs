//! `--suite`: repeats the measurements of papers, one file for each.

mod multi_connection;
mod storage_over_ip;

pub(super) use self::storage_over_ip::StorageArgs;
use super::BenchCommand;
use crate::output::{self, Failure, Format};
use lunar_load::report::{Report, Section};
use serde_json::json;

/// Values of `--suite`.
#[derive(Clone, Copy, Debug, Eq, PartialEq, clap::ValueEnum)]
pub(super) enum SuiteName {
    /// One or several connections, queue depth, a metropolitan network, frame size
    MultiConnection,
    /// Record sizes over iSCSI, on the local file, and over NFS
    StorageOverIp,
}

impl SuiteName {
    const fn text(self) -> &'static str {
        match self {
            Self::MultiConnection => "multi-connection",
            Self::StorageOverIp => "storage-over-ip",
        }
    }
}

/// A running suite, with its options and the report so far.
#[derive(Debug)]
struct Suite<'a> {
    args: &'a BenchCommand,
    format: Format,
    report: Report,
}

impl Suite<'_> {
    /// Adds a section to the report, and prints it in human format.
    fn add(&mut self, section: Section) -> Result<(), Failure> {
        if self.format == Format::Human {
            output::print_text(&format!("\n{}", section.text()))?;
        }
        self.report.sections.push(section);
        Ok(())
    }
}

/// Runs a suite, and reports the results: during the run, as one JSON document, and as a page.
pub(super) async fn run(
    name: SuiteName,
    args: &BenchCommand,
    format: Format,
) -> Result<(), Failure> {
    let mut suite = Suite { args, format, report: Report::default() };
    suite.report.facts = super::facts(args);
    match name {
        SuiteName::MultiConnection => multi_connection::run(&mut suite).await?,
        SuiteName::StorageOverIp => storage_over_ip::run(&mut suite).await?,
    }
    super::write_page(args, &suite.report)?;
    if format == Format::Json {
        let mut document = suite.report.json();
        document["suite"] = json!(name.text());
        output::print_json(&document)?;
    }
    Ok(())
}
