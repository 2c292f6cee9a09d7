//! The suite `multi-connection`: repeats the measurements of Hui Xiong's "An iSCSI Design and
//! Implementation" (MSST 2004) of several connections per session, queue length, a metropolitan
//! network and frame size.

mod child;
mod frames;
mod paper;

use self::child::OwnTarget;
use self::paper::Findings;
use super::super::cells::{self, Disks, Want};
use super::super::network::model_text;
use super::super::page::{cpu, probe_row, probe_table};
use super::super::{BenchCommand, PatternName, probe, refuse_portals};
use super::Suite;
use crate::output::Failure;
use lunar_control::device_url::DeviceUrl;
use lunar_load::probe::ProbeShape;
use lunar_load::relay::Model;
use lunar_load::report::{
    Axis, AxisScale, AxisUnit, Column, Plot, Section, Series, Table, TableCell, size_text,
};
use lunar_load::{Measured, Pace, Workload};
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};

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
/// Size of the disk of the suite's own target.
const DISK_BYTES: u64 = 256 << 20;
/// Fraction of the maximum that defines the knee.
const KNEE: f64 = 0.95;

/// Runs the suite.
pub(super) async fn run(suite: &mut Suite<'_>) -> Result<(), Failure> {
    // Processes and networks started by a part end when the part is dropped.
    tokio::select! {
        done = parts(suite) => done,
        failure = interrupted() => Err(failure),
    }
}

/// Waits for a signal that ends the suite.
async fn interrupted() -> Failure {
    let caught = (signal(SignalKind::interrupt()), signal(SignalKind::terminate()));
    let (Ok(mut interrupt), Ok(mut terminate)) = caught else {
        return Failure::new("cannot catch signals");
    };
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    Failure::new("interrupted")
}

/// Size in bytes of the disk of the suite's own target.
fn disk_bytes(args: &BenchCommand) -> u64 {
    args.size.unwrap_or(DISK_BYTES)
}

/// Workload of one lane.
#[derive(Clone, Copy, Debug)]
struct Ask {
    pattern: PatternName,
    io_bytes: u64,
    depth: u16,
    connections: u16,
    model: Option<Model>,
}

/// Results of one lane.
#[derive(Clone, Debug)]
struct Row {
    ask: Ask,
    /// Number of connections.
    connections: u64,
    measured: Measured,
}

/// State of a run of the suite.
struct Runner<'a> {
    args: &'a BenchCommand,
    url: String,
    /// Patterns to measure; writes only if the disk belongs to the suite.
    patterns: &'static [PatternName],
    disks: Disks,
}

async fn parts(suite: &mut Suite<'_>) -> Result<(), Failure> {
    let args = suite.args;
    refuse_portals(&args.session)?;
    suite.report.title = "Several connections in a session".to_owned();
    let own = match args.urls.as_slice() {
        [] => Some(OwnTarget::start(disk_bytes(args)).await?),
        [_] => None,
        _ => return Err(Failure::usage("this suite measures one target").hint("name one URL")),
    };
    let (url, patterns): (_, &[PatternName]) = match &own {
        Some(target) => (target.url("127.0.0.1"), &[PatternName::Read, PatternName::Write]),
        None => (args.urls[0].clone(), &[PatternName::Read]),
    };
    // The URL is checked first, as no message of this check repeats a secret.
    if DeviceUrl::parse(&url)?.portal().is_none() {
        return Err(Failure::usage(format!("{url} is no target"))
            .hint("write iscsi://HOST[:PORT]/TARGET/LUN, or no URL for a target of its own"));
    }
    let disk = match &own {
        Some(_) => format!("a target of its own, {} in memory", size_text(disk_bytes(args))),
        None => format!("{url}, read only"),
    };
    suite.report.facts.push(("disk".to_owned(), disk));
    let mut runner = Runner { args, url, patterns, disks: Disks::default() };
    let mut findings = Findings::default();
    let far = Model { delay: DELAY, window_bytes: Some(WINDOW_BYTES), ..Model::default() };
    let (section, [_, four]) = runner.connections("connections_far", Some(far)).await?;
    findings.far = four;
    suite.add(section)?;
    let (section, [two, four]) = runner.connections("connections_near", None).await?;
    (findings.near_two, findings.near) = (two, four);
    suite.add(section)?;
    let (section, small) = runner.queue().await?;
    findings.small = Some(small);
    suite.add(section)?;
    let (section, ratio) = runner.metro().await?;
    findings.metro = ratio;
    suite.add(section)?;
    runner.disks.close().await?;
    let (section, ratio) = frames::measure(args).await?;
    findings.frames = ratio;
    suite.add(section)?;
    suite.add(findings.section())?;
    // The findings come first on the page.
    suite.report.sections.rotate_right(1);
    Ok(())
}

impl Runner<'_> {
    /// Measures all workloads in the same rounds, together with a matching probe.
    async fn rows(&mut self, asks: &[Ask], section: &mut Section) -> Result<Vec<Row>, Failure> {
        let (warm_up, time) = self.args.times();
        let (mut lanes, mut rows) = (Vec::new(), Vec::new());
        for ask in asks {
            let want = Want {
                url: &self.url,
                connections: ask.connections,
                writes: ask.pattern.pattern().writes(),
                model: ask.model,
            };
            let disk = self.disks.get(&self.args.session, want).await?;
            lanes.push(disk.lane(Workload {
                pattern: ask.pattern.pattern(),
                io_bytes: ask.io_bytes as u32,
                range_bytes: self.args.size,
                depth: ask.depth.into(),
                pace: Pace::Closed,
                warm_up,
                time,
                seed: self.args.seed,
            }));
            rows.push((*ask, disk.connections().unwrap_or(1) as u64));
        }
        let Some(last) = asks.last() else { return Ok(Vec::new()) };
        let probe = probe(last.model)?;
        let (depth, connections) = (last.depth, last.connections);
        let io_bytes = last.io_bytes as u32;
        let shape = ProbeShape { writes: false, io_bytes, depth, connections };
        let told = cells::in_rounds(lanes, self.args.rounds, Some(&probe), shape).await;
        let (measured, probed) = told.map_err(|failure| self.disks.as_named(failure))?;
        if let Some(probed) = probed {
            let beside =
                format!("{}, depth {depth}, connections {connections}", size_text(last.io_bytes));
            let mut table = probe_table();
            table.row(probe_row(&beside, &probed));
            section.warnings.extend(probed.unrest());
            section.tables.push(table);
        }
        let nothing = measured.iter().find_map(Measured::nothing);
        section.warnings.extend(nothing.map(str::to_owned));
        let rows = rows.into_iter().zip(measured);
        let row = |((ask, connections), measured)| Row { ask, connections, measured };
        Ok(rows.map(row).collect())
    }

    /// One connection against several; returns the read throughput of two and of four relative to
    /// one.
    async fn connections(
        &mut self,
        key: &'static str,
        model: Option<Model>,
    ) -> Result<(Section, [Option<f64>; 2]), Failure> {
        let network = model
            .map_or("no delay, windows as the kernel makes them".to_owned(), |model| {
                model_text(&model)
            });
        let mut section = Section::new(key, format!("One against several connections: {network}"));
        section.prose.push(format!(
            "Sequential requests of {}, {DEPTH} under way over all connections together. {}",
            size_text(LARGE),
            match model {
                Some(_) =>
                    "A connection carries its window in each round trip, 65.5 MB/s, and several \
                     carry several windows.",
                None =>
                    "Nothing limits a connection but the processors, which client and target \
                     share: what several connections bring here is what cores were free.",
            }
        ));
        let mut asks = Vec::new();
        for pattern in self.patterns {
            for connections in [1, 2, 4, 8] {
                let (pattern, io_bytes, depth) = (*pattern, LARGE, DEPTH);
                asks.push(Ask { pattern, io_bytes, depth, connections, model });
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
            title: "Throughput over connections".to_owned(),
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
    async fn queue(&mut self) -> Result<(Section, (f64, u16)), Failure> {
        let mut section = Section::new("queue_depth", "Queue length with small requests");
        section.prose.push(format!(
            "Random reads of {}, one connection, no delay. The knee is the smallest depth that \
             reaches {:.0} % of the most that any depth brings.",
            size_text(SMALL),
            KNEE * 100.0
        ));
        let asks: Vec<Ask> = (0..7)
            .map(|power| Ask {
                pattern: PatternName::RandRead,
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
            title: "Requests a second over queue length".to_owned(),
            x: Axis::new("requests under way", AxisUnit::Count, AxisScale::Log2),
            y: Axis::new("IOPS", AxisUnit::PerSecond, AxisScale::Linear),
            series: by_pattern(&rows, |row| (row.ask.depth.into(), iops(row))),
        });
        let by_depth: Vec<(u16, f64)> = rows.iter().map(|row| (row.ask.depth, iops(row))).collect();
        let most = by_depth.iter().map(|(_, iops)| *iops).fold(0.0, f64::max);
        let knee = knee(&by_depth);
        section.prose.push(format!("The knee is at depth {knee}."));
        Ok((section, (most, knee)))
    }

    /// A gigabit network without and with the delay; returns the relative read throughput.
    async fn metro(&mut self) -> Result<(Section, Option<f64>), Failure> {
        let mut section = Section::new("metro", "Lab against metropolitan network");
        let lab = Model { rate_bytes_per_second: Some(GIGABIT), ..Model::default() };
        let metro = Model { delay: DELAY, ..lab };
        section.prose.push(format!(
            "Sequential requests of {}, {DEPTH} under way, one connection, through a link of one \
             gigabit a second: in the laboratory without delay, in the metropolitan network with \
             {} ms each way. Windows are large enough for both.",
            size_text(LARGE),
            DELAY.as_millis()
        ));
        let mut asks = Vec::new();
        for pattern in self.patterns {
            for model in [lab, metro] {
                let (pattern, io_bytes, depth) = (*pattern, LARGE, DEPTH);
                asks.push(Ask { pattern, io_bytes, depth, connections: 1, model: Some(model) });
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
    let most = by_depth.iter().map(|(_, iops)| *iops).fold(0.0, f64::max);
    by_depth.iter().find(|(_, iops)| *iops >= most * KNEE).map_or(0, |(depth, _)| *depth)
}

/// One line for each pattern.
fn by_pattern(rows: &[Row], point: impl Fn(&Row) -> (f64, f64)) -> Vec<Series> {
    let mut lines: Vec<Series> = Vec::new();
    for row in rows {
        let label = row.ask.pattern.text();
        match lines.iter_mut().find(|line| line.label == label) {
            Some(line) => line.points.push(point(row)),
            None => lines.push(Series { label: label.to_owned(), points: vec![point(row)] }),
        }
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
            TableCell::text(ask.pattern.text()),
            TableCell::new(format!("{}", delay * 1e3), delay * 1e6),
            TableCell::count(row.connections),
            TableCell::count(ask.depth.into()),
            TableCell::median(one.requests_per_second, 1.0, 0),
            TableCell::spread(one.bytes_per_second, 1e6, 1),
            part(bytes_per_second(row), of(row))
                .map_or_else(TableCell::none, |part| TableCell::number(part, 2)),
            TableCell::time(one.latency.percentile(50.0)),
            TableCell::time(one.latency.percentile(99.0)),
            cpu(one.client_cpu_micros),
            cpu(one.target_cpu_micros),
        ];
        if one.nothing().is_some() {
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
        assert_eq!(knee(&curve), 32, "the last still brings more");
        assert_eq!(knee(&curve[..5]), 16, "8 brings 93 %");
        let dip = [(1, 10.0), (2, 18.0), (4, 17.0), (8, 40.0), (16, 39.0), (32, 41.0)];
        assert_eq!(knee(&dip), 8, "the dip at 4 is none");
        assert_eq!(knee(&[(1, 10.0), (2, 9.0)]), 1);
        assert_eq!(knee(&[]), 0);
    }
}
