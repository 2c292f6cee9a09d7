//! Hui Xiong, "An iSCSI Design and Implementation" (MSST 2004): several connections per session,
//! queue length, a metropolitan network and frame size.

mod frames;
mod paper;

use self::paper::Findings;
use super::{PaperArgs, PaperRun, parse_seconds, probe};
use crate::bench::INITIATOR;
use crate::peers::lunar::{Lunar, release_binary};
use anyhow::{Context, Result, anyhow};
use lunar_control::units::rate_text;
use lunar_initiator::{SessionOptions, Url};
use lunar_load::probe::ProbeShape;
use lunar_load::relay::Model;
use lunar_load::remote::RemoteSubjects;
use lunar_load::report::{
    Axis, AxisScale, AxisUnit, Column, Plot, Report, Section, Series, Table, TableCell, probe_row,
    probe_table, size_text,
};
use lunar_load::{AccessPattern, Measured, Pace, Workload, measure_in_rounds};
use std::time::Duration;

/// Delay of the remote network in each direction.
const DELAY: Duration = Duration::from_millis(2);
/// Limit of unacknowledged bytes on each connection there.
const WINDOW_BYTES: u64 = 256 << 10;
/// A gigabit per second, in bytes per second.
const GIGABIT: u64 = 125_000_000;
const LARGE: u64 = 64 << 10;
const SMALL: u64 = 4 << 10;
/// Concurrent requests for throughput: enough for eight windows.
const DEPTH: u16 = 64;
/// Size of the disk of an own target.
const DISK_BYTES: u64 = 256 << 20;
/// Fraction of the maximum that defines the knee.
const KNEE: f64 = 0.95;

/// Several connections in a session: repeats the measurements of Hui Xiong's paper of MSST 2004
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  \
    cargo run --release -p lunar-lab -- papers multi-connection --html connections.html\n\n\
    Frame sizes require root and iproute2; without them this part is skipped.")]
pub struct MultiConnection {
    /// A LUN, iscsi://HOST:PORT/TARGET/LUN, that is only read [default: a target of its own with a
    /// disk in memory]
    url: Option<Url>,
    /// Duration of each round of each subject
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = parse_seconds)]
    seconds: Duration,
    /// Warm-up of each subject before a round
    #[arg(long, value_name = "SECONDS", default_value = "0.5", value_parser = parse_seconds)]
    warm_up: Duration,
    #[command(flatten)]
    pub(super) common: PaperArgs,
}

/// Name of the targets of this process: it contains the process ID, so that the owner can be
/// identified.
fn target_name() -> String {
    format!("iqn.2026-11.org.lunarsan:bench-{}", std::process::id())
}

/// URL of the disk of an own target at this address.
fn own_url(address: &str) -> String {
    format!("iscsi://{address}/{}/0", target_name())
}

/// Arguments of `lunar` that end it with this process, even if it is killed.
fn end_with_this() -> [String; 2] {
    ["--end-with-parent".to_owned(), std::process::id().to_string()]
}

/// Workload of one row.
#[derive(Clone, Copy, Debug)]
struct RowWorkload {
    pattern: AccessPattern,
    io_bytes: u64,
    depth: u16,
    connections: u16,
    model: Option<Model>,
}

/// Results of one row.
#[derive(Clone, Debug)]
struct Row {
    ask: RowWorkload,
    /// Number of connections.
    connections: u64,
    measured: Measured,
}

/// State of a run.
struct Runner<'a> {
    asked: &'a MultiConnection,
    url: Url,
    /// Patterns to measure; writes only if the disk belongs to this run.
    patterns: &'static [AccessPattern],
    subjects: RemoteSubjects,
}

impl MultiConnection {
    /// Size in bytes of the disk of an own target.
    fn disk_bytes(&self) -> u64 {
        self.common.size.unwrap_or(DISK_BYTES)
    }

    /// Starts a target with a disk in memory, by way of the program and arguments in `by` if any.
    fn own_target(&self, by: &[&str], listen: &str, more: &[&str]) -> Result<Lunar> {
        let (device, name) = (format!("mem:{}", self.disk_bytes()), target_name());
        let serve = ["serve", &device, "--name", &name, "--listen", listen];
        let (program, parent) = (release_binary()?, end_with_this());
        let parent = parent.each_ref().map(String::as_str);
        let program = program.to_str().context("a path in UTF-8")?;
        Lunar::start_by(by, program, &[&parent[..], &serve, more].concat())
    }

    /// Measures all parts.
    pub(super) async fn measure(&self) -> Result<Report> {
        let rounds = self.common.rounds;
        let [seconds, warm_up] = [self.seconds, self.warm_up].map(|time| time.as_secs_f64());
        let rounds = format!("{rounds} rounds of {seconds} s, each after a warm-up of {warm_up} s");
        let mut run = PaperRun::new(&self.common, "Several connections in a session", rounds);
        let own = match self.url {
            None => Some(self.own_target(&[], "127.0.0.1:0", &[])?),
            Some(_) => None,
        };
        let (url, patterns): (Url, &[AccessPattern]) = match (&own, &self.url) {
            (Some(own), _) => {
                (own_url(own.address()).parse()?, &[AccessPattern::Read, AccessPattern::Write])
            }
            (None, url) => (url.clone().context("a URL")?, &[AccessPattern::Read]),
        };
        let disk = match &own {
            Some(_) => format!("a target of its own, {} in memory", size_text(self.disk_bytes())),
            None => format!("{url}, read only"),
        };
        run.report.facts.push(("disk".to_owned(), disk));
        let subjects = RemoteSubjects::default();
        let mut runner = Runner { asked: self, url, patterns, subjects };
        let mut findings = Findings::default();
        let far = Model { delay: DELAY, window_bytes: Some(WINDOW_BYTES), ..Model::default() };
        let (section, [_, four]) = runner.connections("connections_far", Some(far)).await?;
        findings.far = four;
        run.add(section);
        let (section, [two, four]) = runner.connections("connections_near", None).await?;
        (findings.near_two, findings.near) = (two, four);
        run.add(section);
        let (section, small) = runner.queue().await?;
        findings.small = Some(small);
        run.add(section);
        let (section, ratio) = runner.metro().await?;
        findings.metro = ratio;
        run.add(section);
        runner.subjects.close().await?;
        let (section, ratio) = frames::measure(self).await?;
        findings.frames = ratio;
        run.add(section);
        run.add(findings.section());
        // The findings come first on the page.
        run.report.sections.rotate_right(1);
        Ok(run.report)
    }
}

impl Runner<'_> {
    /// Measures all workloads in the same rounds, together with a matching probe.
    async fn rows(&mut self, asks: &[RowWorkload], section: &mut Section) -> Result<Vec<Row>> {
        let MultiConnection { seconds, warm_up, common, .. } = self.asked;
        let (mut subjects, mut rows) = (Vec::new(), Vec::new());
        for ask in asks {
            let mut options = SessionOptions::new(INITIATOR);
            options.connections = ask.connections;
            let opened = self.subjects.open(&self.url, &options, ask.model).await;
            let opened = opened.map_err(|error| self.with_portal_names(&error))?;
            subjects.push(opened.subject(Workload {
                pattern: ask.pattern,
                io_bytes: ask.io_bytes as u32,
                range_bytes: common.size,
                depth: ask.depth.into(),
                pace: Pace::Closed,
                warm_up: *warm_up,
                time: *seconds,
                seed: common.seed,
                durable: false,
            }));
            rows.push((*ask, opened.disk.connections() as u64));
        }
        let Some(last) = asks.last() else { return Ok(Vec::new()) };
        let probe = probe(last.model)?;
        let (depth, connections) = (last.depth, last.connections);
        let io_bytes = last.io_bytes as u32;
        let shape = ProbeShape { writes: false, io_bytes, depth, connections };
        let measured = measure_in_rounds(subjects, common.rounds, Some(&probe), shape).await;
        let (measured, probed) = measured.map_err(|error| self.with_portal_names(&error))?;
        if let Some(probed) = probed {
            let load =
                format!("{}, depth {depth}, connections {connections}", size_text(last.io_bytes));
            let mut table = probe_table();
            table.row(probe_row(&load, &probed));
            section.warnings.extend(probed.variation_warning());
            section.tables.push(table);
        }
        let nothing = measured.iter().find_map(Measured::no_figures_reason);
        section.warnings.extend(nothing.map(str::to_owned));
        let rows = rows.into_iter().zip(measured);
        let row = |((ask, connections), measured)| Row { ask, connections, measured };
        Ok(rows.map(row).collect())
    }

    /// An error with the portals that the user named in place of relays.
    fn with_portal_names(&self, error: &dyn std::fmt::Display) -> anyhow::Error {
        anyhow!(self.subjects.with_portal_names(&error.to_string()))
    }

    /// One connection against several; returns the read throughput of two and of four relative to
    /// one.
    async fn connections(
        &mut self,
        key: &'static str,
        model: Option<Model>,
    ) -> Result<(Section, [Option<f64>; 2])> {
        let network = model
            .map_or("no delay, window size chosen by the kernel".to_owned(), |model| {
                model.text(rate_text)
            });
        let mut section = Section::new(key, format!("One against several connections: {network}"));
        section.prose.push(format!(
            "Sequential requests of {}, {DEPTH} outstanding over all connections together. {}",
            size_text(LARGE),
            match model {
                Some(_) =>
                    "A connection transfers one window per round trip, 65.5 MB/s; several \
                     connections transfer several windows.",
                None =>
                    "A connection is limited only by the processors, which client and target \
                     share: several connections gain only as much as there are free cores.",
            }
        ));
        let mut asks = Vec::new();
        for pattern in self.patterns {
            for connections in [1, 2, 4, 8] {
                let (pattern, io_bytes, depth) = (*pattern, LARGE, DEPTH);
                asks.push(RowWorkload { pattern, io_bytes, depth, connections, model });
            }
        }
        let rows = self.rows(&asks, &mut section).await?;
        let of = |row: &Row| {
            let one = rows
                .iter()
                .find(|one| one.ask.pattern == row.ask.pattern && one.ask.connections == 1);
            one.map_or(0.0, bytes_per_second)
        };
        section.tables.insert(0, figures(&rows, "of_one_connection", "of one", of));
        section.plots.push(Plot {
            title: "Throughput by number of connections".to_owned(),
            x: Axis::new("connections", AxisUnit::Count, AxisScale::Log2),
            y: Axis::new("throughput", AxisUnit::BytesPerSecond, AxisScale::Linear),
            series: by_pattern(&rows, |row| (row.connections as f64, bytes_per_second(row))),
        });
        let times = |connections| {
            let several = rows.iter().find(|row| row.ask.connections == connections);
            several.and_then(|row| part(bytes_per_second(row), of(row)))
        };
        Ok((section, [times(2), times(4)]))
    }

    /// Small requests by depth; returns the maximum per second and the knee.
    async fn queue(&mut self) -> Result<(Section, (f64, u16))> {
        let mut section = Section::new("queue_depth", "Queue depth with small requests");
        section.prose.push(format!(
            "Random reads of {}, one connection, no delay. The knee is the smallest depth that \
             reaches {:.0} % of the maximum over all depths.",
            size_text(SMALL),
            KNEE * 100.0
        ));
        let asks: Vec<RowWorkload> = (0..7)
            .map(|power| RowWorkload {
                pattern: AccessPattern::RandomRead,
                io_bytes: SMALL,
                depth: 1 << power,
                connections: 1,
                model: None,
            })
            .collect();
        let rows = self.rows(&asks, &mut section).await?;
        let first = rows.first().map_or(0.0, iops);
        section.tables.insert(
            0,
            figures(&rows, "of_depth_1", "of depth 1", |row| {
                first * bytes_per_second(row) / iops(row).max(f64::MIN_POSITIVE)
            }),
        );
        section.plots.push(Plot {
            title: "Requests per second by queue depth".to_owned(),
            x: Axis::new("outstanding requests", AxisUnit::Count, AxisScale::Log2),
            y: Axis::new("IOPS", AxisUnit::PerSecond, AxisScale::Linear),
            series: by_pattern(&rows, |row| (row.ask.depth.into(), iops(row))),
        });
        let by_depth: Vec<(u16, f64)> = rows.iter().map(|row| (row.ask.depth, iops(row))).collect();
        let peak = by_depth.iter().map(|(_, iops)| *iops).fold(0.0, f64::max);
        let knee = knee(&by_depth);
        section.prose.push(format!("The knee is at depth {knee}."));
        Ok((section, (peak, knee)))
    }

    /// A gigabit network without and with the delay; returns the relative read throughput.
    async fn metro(&mut self) -> Result<(Section, Option<f64>)> {
        let mut section = Section::new("metro", "Laboratory and metropolitan network");
        let lab = Model { rate_bytes_per_second: Some(GIGABIT), ..Model::default() };
        let metro = Model { delay: DELAY, ..lab };
        section.prose.push(format!(
            "Sequential requests of {}, {DEPTH} outstanding, one connection, over a link of 1 \
             Gbit/s: in the laboratory without delay, in the metropolitan network with {} ms each \
             way. The window is large enough for both.",
            size_text(LARGE),
            DELAY.as_millis()
        ));
        let mut asks = Vec::new();
        for pattern in self.patterns {
            for model in [lab, metro] {
                let (pattern, io_bytes, depth) = (*pattern, LARGE, DEPTH);
                asks.push(RowWorkload {
                    pattern,
                    io_bytes,
                    depth,
                    connections: 1,
                    model: Some(model),
                });
            }
        }
        let rows = self.rows(&asks, &mut section).await?;
        let of = |row: &Row| {
            let lab = rows
                .iter()
                .find(|other| other.ask.pattern == row.ask.pattern && other.ask.model == Some(lab));
            lab.map_or(0.0, bytes_per_second)
        };
        section.tables.insert(0, figures(&rows, "of_lab", "of lab", of));
        let far = rows.iter().find(|row| row.ask.model == Some(metro));
        let ratio = far.and_then(|row| part(bytes_per_second(row), of(row)));
        Ok((section, ratio))
    }
}

fn iops(row: &Row) -> f64 {
    row.measured.requests_per_second.median
}

fn bytes_per_second(row: &Row) -> f64 {
    row.measured.bytes_per_second.median
}

/// The ratio of two figures; `None` if the second is zero.
fn part(figure: f64, of: f64) -> Option<f64> {
    (of > 0.0).then(|| figure / of)
}

/// The smallest depth that reaches nearly the maximum, regardless of dips before it.
fn knee(by_depth: &[(u16, f64)]) -> u16 {
    let peak = by_depth.iter().map(|(_, iops)| *iops).fold(0.0, f64::max);
    by_depth.iter().find(|(_, iops)| *iops >= peak * KNEE).map_or(0, |(depth, _)| *depth)
}

/// One line for each pattern.
fn by_pattern(rows: &[Row], point: impl Fn(&Row) -> (f64, f64)) -> Vec<Series> {
    let mut lines: Vec<Series> = Vec::new();
    for row in rows {
        Series::add_point(&mut lines, row.ask.pattern.name(), point(row));
    }
    lines
}

/// The figures of a section; `of` returns the reference that a row's throughput is shown relative
/// to.
fn figures(rows: &[Row], key: &'static str, label: &str, of: impl Fn(&Row) -> f64) -> Table {
    let mut table = Table::new([
        Column::text("pattern", "pattern"),
        Column::number("delay_us", "delay, ms"),
        Column::number("connections", "conns"),
        Column::number("depth", "depth"),
        Column::number("iops", "IOPS"),
        Column::number("bytes_per_second", "MB/s"),
        Column::number(key, label),
        Column::number("p50_us", "p50"),
        Column::number("p99_us", "p99"),
        Column::number("client_cpu_us_per_request", "client CPU, us"),
        Column::number("target_cpu_us_per_request", "target CPU, us"),
    ]);
    for row in rows {
        let (ask, one) = (&row.ask, &row.measured);
        let delay = ask.model.map_or(0.0, |model| model.delay.as_secs_f64());
        let mut figures = vec![
            TableCell::text(ask.pattern.name()),
            TableCell::new(format!("{}", delay * 1e3), delay * 1e6),
            TableCell::count(row.connections),
            TableCell::count(ask.depth.into()),
            TableCell::median(one.requests_per_second, 1.0, 0),
            TableCell::spread(one.bytes_per_second, 1e6, 1),
            part(bytes_per_second(row), of(row))
                .map_or_else(TableCell::none, |part| TableCell::number(part, 2)),
            TableCell::time(one.latency.percentile(50.0)),
            TableCell::time(one.latency.percentile(99.0)),
            TableCell::micros(one.client_cpu_micros),
            TableCell::micros(one.target_cpu_micros),
        ];
        if one.no_figures_reason().is_some() {
            // The other figures are not known.
            figures.truncate(4);
        }
        table.row(figures);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::knee;

    /// Goal: the knee is where nearly the maximum is reached, not at the end of the curve or at the
    /// first dip.
    #[test]
    fn the_knee() {
        let curve = [(1, 10.0), (2, 18.0), (4, 30.0), (8, 40.0), (16, 43.0), (32, 50.0)];
        assert_eq!(knee(&curve), 32, "the last depth still increases the rate");
        assert_eq!(knee(&curve[..5]), 16, "8 brings 93 %");
        let dip = [(1, 10.0), (2, 18.0), (4, 17.0), (8, 40.0), (16, 39.0), (32, 41.0)];
        assert_eq!(knee(&dip), 8, "the dip at 4 is none");
        assert_eq!(knee(&[(1, 10.0), (2, 9.0)]), 1);
        assert_eq!(knee(&[]), 0);
    }
}
