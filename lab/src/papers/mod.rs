//! Measurements of papers, repeated with Lunar: the new figures beside those of the paper. They are
//! discussed in docs/papers.md.

mod jscsi;
mod multi_connection;
mod storage_over_ip;

use self::jscsi::Jscsi;
use self::multi_connection::MultiConnection;
use self::storage_over_ip::StorageOverIp;
use crate::system::files;
use anyhow::{Context, Result, anyhow, ensure};
use lunar_control::units::parse_size;
use lunar_load::probe::Probe;
use lunar_load::relay::Model;
use lunar_load::report::{Report, Section};
use serde_json::json;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};

/// A paper
#[derive(Debug, clap::Subcommand)]
pub enum Paper {
    /// jSCSI, 2007: writes of 8 MB to one target, to a stripe and to a mirror of two
    Jscsi(Jscsi),
    /// Hui Xiong, MSST 2004: one or several connections, queue depth, a metropolitan network, frame
    /// size
    MultiConnection(MultiConnection),
    /// CESNET technical report 5/2002: record sizes over iSCSI, on the local file, and over NFS
    StorageOverIp(StorageOverIp),
}

/// Options of all papers.
#[derive(Debug, clap::Args)]
struct PaperArgs {
    /// Length of the measured area of the disk
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    size: Option<u64>,
    /// Number of rounds
    #[arg(long, value_name = "N", default_value_t = 3)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: u16,
    /// Seed of the random positions
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Write a report as one self-contained HTML page
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write all figures for programs
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// The report of a run so far.
#[derive(Debug)]
struct PaperRun<'a> {
    args: &'a PaperArgs,
    report: Report,
}

impl<'a> PaperRun<'a> {
    fn new(args: &'a PaperArgs, title: &str, rounds: String) -> Self {
        let words = std::env::args().skip(1).collect::<Vec<_>>().join(" ");
        let mut facts = vec![
            ("command".to_owned(), format!("lab {words}")),
            ("version".to_owned(), format!("lunar {}", env!("CARGO_PKG_VERSION"))),
        ];
        facts.extend(lunar_load::report::machine().facts());
        facts.push(("rounds".to_owned(), rounds));
        Self { args, report: Report { title: title.to_owned(), facts, ..Report::default() } }
    }

    /// Adds a section to the report, and prints it.
    fn add(&mut self, section: Section) {
        println!("\n{}", section.text());
        self.report.sections.push(section);
    }
}

impl Paper {
    /// Repeats the measurements, and reports them: during the run, as JSON, and as a page.
    ///
    /// # Errors
    /// A peer does not start, a request fails, or a signal ends the run.
    pub fn run(&self) -> Result<()> {
        let (name, args) = match self {
            Self::Jscsi(paper) => ("jscsi", &paper.common),
            Self::MultiConnection(paper) => ("multi-connection", &paper.common),
            Self::StorageOverIp(paper) => ("storage-over-ip", &paper.common),
        };
        for path in args.html.iter().chain(&args.json) {
            files::check_writable(path)?;
        }
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        let report = runtime.block_on(self.measure())?;
        if let Some(path) = &args.html {
            files::write_atomically(path, &lunar_load::report::page(&report))?;
        }
        if let Some(path) = &args.json {
            let mut document = report.json();
            document["paper"] = json!(name);
            files::write_atomically(path, &format!("{document:#}\n"))?;
        }
        Ok(())
    }

    /// Measures until a signal ends the run; what was started ends with it.
    async fn measure(&self) -> Result<Report> {
        let mut interrupt = signal(SignalKind::interrupt()).context("catching signals")?;
        let mut terminate = signal(SignalKind::terminate()).context("catching signals")?;
        let measured = async {
            match self {
                Self::Jscsi(paper) => paper.measure().await,
                Self::MultiConnection(paper) => paper.measure().await,
                Self::StorageOverIp(paper) => paper.measure().await,
            }
        };
        tokio::select! {
            report = measured => report,
            _ = interrupt.recv() => Err(interrupted()),
            _ = terminate.recv() => Err(interrupted()),
        }
    }
}

fn interrupted() -> anyhow::Error {
    anyhow!("interrupted by a signal: its files and servers were removed")
}

/// Starts both ends of the raw TCP probe, through the same kind of network as to the target.
fn probe(model: Option<Model>) -> Result<Arc<Probe>> {
    Ok(Arc::new(Probe::start(model).context("starting the raw TCP probe")?))
}

/// Parses a number of seconds, at most a day.
fn parse_seconds(text: &str) -> Result<Duration> {
    let seconds: f64 = text.parse()?;
    ensure!((0.0..=86_400.0).contains(&seconds), "write a number of seconds from 0 to 86400");
    Ok(Duration::from_secs_f64(seconds))
}
