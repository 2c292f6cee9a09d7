//! `lunar bench`: measures the speed of disks.

mod cells;
mod compared;
mod network;
mod page;
mod table;

use self::cells::{Cell, Disks};
use self::network::NetworkArgs;
use super::session::{self, SessionArgs};
use crate::output::{self, Failure, Format};
use lunar_block::output_file;
use lunar_control::time::rfc3339;
use lunar_control::units::parse_size;
use lunar_initiator::Url;
use lunar_load::probe::Probe;
use lunar_load::relay::Model;
use lunar_load::report::Report;
use lunar_load::{AccessPattern, Pace};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// Measure disks: requests per second, bytes per second, and latency
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  \
    lunar bench iscsi://127.0.0.1/iqn.2026-11.org.lunarsan:disk/0 --depth 1,32 --seconds 3\n\n\
    Each combination of the listed values is measured in several rounds. Several disks take turns\n\
    within a round, so that a slowdown of the machine affects all of them. Figures are medians of\n\
    the rounds, with minimum and maximum; percentiles are taken over all rounds together.\n\
    Write patterns overwrite the data on the disks.\n\n\
    --delay, --rate and --window simulate a network between this process and the targets with a\n\
    relay in this process. A target that redirects the login to another portal is refused:\n\
    the connection would bypass the relay.\n  \
    lunar bench iscsi://127.0.0.1/iqn.2026-11.org.lunarsan:disk/0 --delay 2ms --rate 1Gbit\n    \
    --window 256K --connections 1,4 --io-size 64K")]
pub struct BenchCommand {
    /// The disks: iscsi://HOST:PORT/TARGET/LUN, paths, file:PATH or mem:SIZE
    #[arg(value_name = "URL", required = true)]
    urls: Vec<String>,
    /// Write a report as one self-contained HTML page
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Size of a request
    #[arg(long, value_name = "SIZE", value_delimiter = ',', value_parser = parse_size)]
    #[arg(default_value = "4K")]
    io_size: Vec<u64>,
    /// Number of concurrent requests
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1,32")]
    depth: Vec<u16>,
    /// Connections per session, as far as the target allows; other disks have one
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=64))]
    connections: Vec<u16>,
    /// Access pattern: position and direction of requests
    #[arg(long, value_enum, value_name = "PATTERN", value_delimiter = ',')]
    #[arg(default_value = "rand-read")]
    pattern: Vec<PatternName>,
    /// Length of the measured area, from the beginning [default: the whole disk]
    #[arg(long, value_name = "RANGE", value_parser = parse_size)]
    size: Option<u64>,
    /// Duration of each round of each disk
    #[arg(long, value_name = "SECONDS", default_value_t = 5.0, value_parser = parse_seconds)]
    seconds: f64,
    /// Warm-up of each disk before a round
    #[arg(long, value_name = "SECONDS", default_value_t = 0.5, value_parser = parse_seconds)]
    warm_up: f64,
    /// Number of rounds
    #[arg(long, value_name = "N", default_value_t = 3)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: u16,
    /// Requests per second, evenly spaced, instead of as many as possible; time that a request
    /// waits for its turn counts as latency
    #[arg(long, value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    iops: Option<u32>,
    /// Also show the figures of each disk relative to the first one
    #[arg(long)]
    compare: bool,
    /// Threads that send requests [default: one per connection; one per core for local disks or
    /// several paths; never more than cores]
    #[arg(long, value_name = "N")]
    threads: Option<NonZeroUsize>,
    /// Make each write durable before it completes, on disks with a write cache too
    #[arg(long)]
    durable: bool,
    /// Seed of the random positions
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    // The last: their headings also apply to options after them.
    #[command(flatten)]
    network: NetworkArgs,
    #[command(flatten)]
    session: SessionArgs,
}

/// Values of `--pattern`.
#[derive(Clone, Copy, Debug, Eq, PartialEq, clap::ValueEnum)]
enum PatternName {
    /// Random reads
    RandRead,
    /// Random writes
    RandWrite,
    /// Sequential reads
    Read,
    /// Sequential writes
    Write,
}

impl PatternName {
    const fn pattern(self) -> AccessPattern {
        match self {
            Self::RandRead => AccessPattern::RandomRead,
            Self::RandWrite => AccessPattern::RandomWrite,
            Self::Read => AccessPattern::Read,
            Self::Write => AccessPattern::Write,
        }
    }

    const fn text(self) -> &'static str {
        self.pattern().name()
    }
}

/// Runs the command.
///
/// # Errors
/// Fails if a disk cannot be opened, the options do not suit it, or a request fails.
pub fn run(args: &BenchCommand, format: Format) -> Result<(), Failure> {
    check_page(args)?;
    let threads = args.threads.map_or_else(|| args.threads_by_default(), NonZeroUsize::get);
    // A single thread does not need the multi-threaded runtime.
    let mut runtime = match threads {
        1 => tokio::runtime::Builder::new_current_thread(),
        _ => tokio::runtime::Builder::new_multi_thread(),
    };
    let runtime = runtime
        .worker_threads(threads)
        .enable_all()
        .build()
        .map_err(|error| Failure::new(format!("cannot start threads: {error}")))?;
    runtime.block_on(measure(args, format))
}

/// Measures every combination, and prints each as soon as it is measured.
async fn measure(args: &BenchCommand, format: Format) -> Result<(), Failure> {
    let mut disks = Disks::default();
    let mut all = Vec::new();
    let is_remote = args.urls.iter().any(|url| Url::has_scheme(url));
    if args.network.model().is_some() && !is_remote {
        return Err(Failure::usage("--delay, --rate and --window require an iscsi:// URL")
            .hint("they simulate a network, and all of these disks are local"));
    }
    if args.network.model().is_some() {
        refuse_portals(&args.session)?;
    }
    // All combinations are checked before the first measurement, which may take minutes.
    for cell in args.cells() {
        cells::check(args, &cell, &mut disks).await?;
    }
    let mut compared = compared::ComparedDisks::default();
    if let Some(cell) = args.cells().first() {
        compared = cells::describe(args, cell, &mut disks).await?;
    }
    let probe = is_remote.then(|| probe(args.network.model())).transpose()?;
    if format == Format::Human {
        if let Some(why) = compared.warning(args) {
            output::print_text(&format!("warning: {why}\n"))?;
        }
        output::print_text(&table::head(args))?;
    }
    for cell in args.cells() {
        let measured = cells::measure(args, &cell, &mut disks, probe.as_ref()).await?;
        if format == Format::Human {
            output::print_text(&table::rows(&measured, args.compare))?;
        }
        all.push(measured);
    }
    disks.close().await?;
    write_page(args, &page::report(args, &compared, &all))?;
    match format {
        Format::Json => output::print_json(&table::document(args, &all)),
        Format::Human => Ok(()),
    }
}

/// Refuses `--portal` with a network: the relay stands before the portal of the URL, and
/// connections to other portals would bypass it.
fn refuse_portals(session: &SessionArgs) -> Result<(), Failure> {
    match session.names_portals() {
        true => Err(Failure::usage(
            "--portal cannot be combined with --delay, --rate or --window: its connections would \
             bypass the simulated network",
        )
        .hint("remove --portal, or remove --delay, --rate and --window")),
        false => Ok(()),
    }
}

/// Starts both ends of the raw TCP probe, through the same kind of network as to the targets.
fn probe(model: Option<Model>) -> Result<Arc<Probe>, Failure> {
    let started = Probe::start(model);
    let started = started
        .map_err(|error| Failure::new(format!("cannot start the raw TCP probe: {error}")))?;
    Ok(Arc::new(started))
}

impl BenchCommand {
    /// All combinations, in the order of the options.
    fn cells(&self) -> Vec<Cell> {
        let mut cells = Vec::new();
        for pattern in &self.pattern {
            for io_bytes in &self.io_size {
                for connections in &self.connections {
                    for depth in &self.depth {
                        cells.push(Cell {
                            pattern: *pattern,
                            io_bytes: *io_bytes,
                            depth: *depth,
                            connections: *connections,
                        });
                    }
                }
            }
        }
        cells
    }

    /// Returns the default number of threads. It is at most the number of connections, because
    /// further threads only wake each other: with two threads for one connection, a request costs
    /// half as much processor time again.
    fn threads_by_default(&self) -> usize {
        let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        let remote = self.urls.iter().all(|url| Url::has_scheme(url));
        match self.connections.iter().max() {
            Some(most) if remote && !self.session.names_portals() => {
                cores.min(usize::from(*most).max(1))
            }
            _ => cores,
        }
    }

    fn pace(&self) -> Pace {
        self.iops.map_or(Pace::Closed, |rate| Pace::PerSecond(rate.into()))
    }

    fn times(&self) -> (Duration, Duration) {
        (Duration::from_secs_f64(self.warm_up), Duration::from_secs_f64(self.seconds))
    }
}

/// Facts about this run for the report: the command, the machine, the rounds.
fn facts(args: &BenchCommand) -> Vec<(String, String)> {
    let words = std::env::args().skip(1).collect::<Vec<_>>().join(" ");
    let mut facts = vec![
        ("date".to_owned(), rfc3339(SystemTime::now())),
        ("command".to_owned(), format!("lunar {words}")),
        ("version".to_owned(), format!("lunar {}", env!("CARGO_PKG_VERSION"))),
    ];
    facts.extend(lunar_load::report::machine().facts());
    let rounds = format!(
        "{} rounds of {} s, each after a warm-up of {} s",
        args.rounds, args.seconds, args.warm_up
    );
    facts.push(("rounds".to_owned(), rounds));
    facts
}

/// Checks that the page can be written, before any measurement.
fn check_page(args: &BenchCommand) -> Result<(), Failure> {
    let Some(path) = &args.html else { return Ok(()) };
    output_file::check(path).map_err(|error| cannot_write_page(path, &error))
}

/// Writes the page of `--html`.
fn write_page(args: &BenchCommand, report: &Report) -> Result<(), Failure> {
    let Some(path) = &args.html else { return Ok(()) };
    let page = lunar_load::report::page(report);
    output_file::write(path, page.as_bytes()).map_err(|error| cannot_write_page(path, &error))
}

fn cannot_write_page(path: &std::path::Path, error: &std::io::Error) -> Failure {
    Failure::new(format!("cannot write {}: {error}", path.display()))
        .hint("--html requires a path in an existing directory with write permission")
}

/// Parses a number of seconds, at most a day.
fn parse_seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.0..=86_400.0).contains(&seconds) => Ok(seconds),
        _ => Err("write a number of seconds from 0 to 86400".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(clap::Parser)]
    struct CommandLine {
        #[command(flatten)]
        bench: BenchCommand,
    }

    /// Goal: one connection is served by one thread; workloads that can use more cores get all of
    /// them.
    #[test]
    fn default_threads_depend_on_connections() {
        let cores = std::thread::available_parallelism().unwrap().get();
        let url = "iscsi://127.0.0.1/iqn.2026-11.org.example:a/0";
        for (line, threads) in [
            (vec![url], 1),
            (vec!["--connections", "1,2", url], 2.min(cores)),
            (vec!["--connections", "64", url], 64.min(cores)),
            (vec![url, "/disk.img"], cores),
            (vec!["--portal", "127.0.0.2", url], cores),
        ] {
            let line: Vec<_> = [vec!["bench"], line].concat();
            let bench = CommandLine::try_parse_from(&line).unwrap_or_else(|e| panic!("{e}")).bench;
            assert_eq!(bench.threads_by_default(), threads, "{line:?}");
        }
    }
}
