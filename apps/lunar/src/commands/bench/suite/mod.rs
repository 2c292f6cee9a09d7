//! `--suite`: what papers measured, measured again. One file each.

mod multi_connection;
mod storage_over_ip;

pub(super) use self::storage_over_ip::StorageArgs;
use super::Bench;
use crate::output::{self, Failure, Format};
use lunar_load::report::{Report, Section};
use serde_json::json;

/// `--suite`.
#[derive(Clone, Copy, Debug, Eq, PartialEq, clap::ValueEnum)]
pub(super) enum SuiteName {
    /// One against several connections, queue depth, a metropolitan network, frame size
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

/// A suite that is running: what it was asked for, and what it has told so far.
#[derive(Debug)]
struct Suite<'a> {
    args: &'a Bench,
    format: Format,
    report: Report,
}

impl Suite<'_> {
    /// One more part of the report, shown at once to people.
    fn add(&mut self, section: Section) -> Result<(), Failure> {
        if self.format == Format::Human {
            output::print_text(&format!("\n{}", section.text()))?;
        }
        self.report.sections.push(section);
        Ok(())
    }
}

/// Runs one, and tells what it came to: as it goes, as one JSON document, and as a page.
pub(super) async fn run(name: SuiteName, args: &Bench, format: Format) -> Result<(), Failure> {
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
