//! What was measured, as a report with plots.

use super::cells::{Measurement, Row};
use super::network::model_text;
use super::table::RAW_TCP;
use super::{Bench, facts};
use load::probe::Probed;
use load::report::{Axis, Cell, Column, Plot, Report, Scale, Section, Series, Table, Unit};

/// The report of a run.
pub(super) fn report(args: &Bench, all: &[Measurement]) -> Report {
    let mut section = Section::new("disks", "Disks");
    section.prose.push(
        "Figures are medians of the rounds, with the least and the most; percentiles are those of \
         all rounds together. Disks take turns within a round."
            .to_owned(),
    );
    section.tables.push(figures(all));
    section.plots = plots(all);
    let mut sections = vec![section];
    sections.extend(raw_tcp(all));
    let mut facts = facts(args);
    if let Some(model) = args.network.model() {
        facts.push(("network".to_owned(), format!("through a relay: {}", model_text(&model))));
    }
    Report { title: "lunar bench".to_owned(), prose: Vec::new(), facts, sections }
}

fn figures(all: &[Measurement]) -> Table {
    let mut table = Table::new([
        Column::text("url", "disk"),
        Column::text("pattern", "pattern"),
        Column::number("io_bytes", "request"),
        Column::number("depth", "depth"),
        Column::number("connections", "connections"),
        Column::number("iops", "IOPS"),
        Column::number("bytes_per_second", "MB/s"),
        Column::number("p50_us", "p50"),
        Column::number("p99_us", "p99"),
        Column::number("p99_9_us", "p99.9"),
        Column::number("max_us", "longest"),
        Column::number("client_cpu_us_per_request", "client CPU, us"),
        Column::number("target_cpu_us_per_request", "target CPU, us"),
    ]);
    for Measurement { cell, rows, .. } in all {
        for row in rows {
            let one = &row.measured;
            let time = |percent| Cell::time(one.latency.percentile(percent));
            table.row([
                Cell::text(row.url.clone()),
                Cell::text(cell.pattern.text()),
                Cell::size(cell.io_bytes),
                Cell::count(cell.depth.into()),
                row.connections.map_or_else(Cell::none, |count| Cell::count(count as u64)),
                Cell::spread(one.requests_per_second, 1.0, 0),
                Cell::spread(one.bytes_per_second, 1e6, 1),
                time(50.0),
                time(99.0),
                time(99.9),
                Cell::time(one.latency.max()),
                Cell::median(one.client_cpu_micros, 1.0, 1),
                one.target_cpu_micros.map_or_else(Cell::none, |spent| Cell::median(spent, 1.0, 1)),
            ]);
        }
    }
    table
}

/// The probes, if there were any.
fn raw_tcp(all: &[Measurement]) -> Option<Section> {
    let mut section = Section::new("raw_tcp", "Raw TCP meanwhile");
    section.prose.push(RAW_TCP_PROSE.to_owned());
    let mut table = probe_table();
    for Measurement { cell, probed, .. } in all {
        let Some(probed) = probed else { continue };
        let name = format!("{} {}", cell.pattern.text(), Cell::size(cell.io_bytes));
        let (depth, connections) = (cell.depth, cell.connections);
        let name = format!("{name}, depth {depth}, connections {connections}");
        table.row(probe_row(&name, probed));
        section.warnings.extend(probed.unrest().map(|unrest| format!("{name}: {unrest}")));
    }
    let some = !table.is_empty();
    section.tables.push(table);
    some.then_some(section)
}

/// What the probes are.
pub(super) const RAW_TCP_PROSE: &str = "What TCP alone does between two threads of this process, in the same rounds: over this \
     machine's loopback, through the relay where there is one. It is the ground on which the \
     figures of disks stand; what another machine and the network to it can do it does not say.";

/// A table of probes, without rows.
pub(super) fn probe_table() -> Table {
    Table::new([
        Column::text("beside", "beside"),
        Column::number("ping_us", "alone, us"),
        Column::number("exchanges_per_second", "pipelined, a second"),
        Column::number("stream_bytes_per_second", "stream, MB/s"),
    ])
    .named("raw_tcp", RAW_TCP)
}

/// One row of it.
pub(super) fn probe_row(beside: &str, probed: &Probed) -> [Cell; 4] {
    [
        Cell::text(beside),
        Cell::spread(probed.ping_micros(), 1.0, 1),
        Cell::spread(probed.exchanges_per_second(), 1.0, 0),
        Cell::spread(probed.stream_bytes_per_second(), 1e6, 0),
    ]
}

/// A place in the grid of combinations, and what was measured there.
type Point<'a> = (&'a Measurement, &'a Row);

/// Whatever has two points on its axis.
fn plots(all: &[Measurement]) -> Vec<Plot> {
    let size = |(measurement, _): &Point<'_>| measurement.cell.io_bytes as f64;
    let depth = |(measurement, _): &Point<'_>| f64::from(measurement.cell.depth);
    let connections = |(_, row): &Point<'_>| row.connections.unwrap_or(1) as f64;
    let bytes = |(_, row): &Point<'_>| row.measured.bytes_per_second.median;
    let iops = |(_, row): &Point<'_>| row.measured.requests_per_second.median;
    let bytes_axis = || Axis::new("throughput", Unit::BytesPerSecond, Scale::Linear);
    let depth_axis = || Axis::new("requests under way", Unit::Count, Scale::Log2);
    let mut plots = vec![
        Plot {
            title: "Throughput over request size".to_owned(),
            x: Axis::new("request", Unit::Bytes, Scale::Log2),
            y: bytes_axis(),
            series: series(all, size, bytes, |cell| [None, Some(cell.depth.into()), conns(cell)]),
        },
        Plot {
            title: "Requests a second over depth".to_owned(),
            x: depth_axis(),
            y: Axis::new("IOPS", Unit::PerSecond, Scale::Linear),
            series: series(all, depth, iops, |cell| [Some(cell.io_bytes), None, conns(cell)]),
        },
        Plot {
            title: "Throughput over connections".to_owned(),
            x: Axis::new("connections", Unit::Count, Scale::Log2),
            y: bytes_axis(),
            series: series(all, connections, bytes, |cell| {
                [Some(cell.io_bytes), Some(cell.depth.into()), None]
            }),
        },
    ];
    plots.push(percentiles(all, depth_axis()));
    plots.push(distribution(all));
    plots.retain(Plot::shows_something);
    plots
}

fn conns(cell: &super::cells::Cell) -> Option<u64> {
    Some(cell.connections.into())
}

/// One line for each disk, pattern, and whatever else is fixed.
fn series(
    all: &[Measurement],
    x: impl Fn(&Point<'_>) -> f64,
    y: impl Fn(&Point<'_>) -> f64,
    fixed: impl Fn(&super::cells::Cell) -> [Option<u64>; 3],
) -> Vec<Series> {
    let mut lines: Vec<Series> = Vec::new();
    for point in points(all) {
        let label = label(all, &point, fixed(&point.0.cell));
        let at = (x(&point), y(&point));
        match lines.iter_mut().find(|line| line.label == label) {
            Some(line) => line.points.push(at),
            None => lines.push(Series { label, points: vec![at] }),
        }
    }
    lines
}

fn points(all: &[Measurement]) -> impl Iterator<Item = Point<'_>> {
    all.iter().flat_map(|measurement| measurement.rows.iter().map(move |row| (measurement, row)))
}

/// The disk, the pattern, and what is fixed of size, depth and connections, where there are several
/// of them.
fn label(all: &[Measurement], point: &Point<'_>, fixed: [Option<u64>; 3]) -> String {
    let (measurement, row) = point;
    let mut parts = vec![row.url.clone()];
    let several = |of: fn(&super::cells::Cell) -> u64| {
        all.iter().any(|other| of(&other.cell) != of(&measurement.cell))
    };
    if several(|cell| cell.pattern as u64) || all.iter().all(|one| one.rows.len() == 1) {
        parts.push(measurement.cell.pattern.text().to_owned());
    }
    let [size, depth, connections] = fixed;
    if let Some(size) = size.filter(|_| several(|cell| cell.io_bytes)) {
        parts.push(load::report::size_text(size));
    }
    if let Some(depth) = depth.filter(|_| several(|cell| cell.depth.into())) {
        parts.push(format!("depth {depth}"));
    }
    if let Some(count) = connections.filter(|_| several(|cell| cell.connections.into())) {
        parts.push(format!("{count} conns"));
    }
    parts.join(", ")
}

/// Three percentiles over the depth.
fn percentiles(all: &[Measurement], x: Axis) -> Plot {
    let mut lines = Vec::new();
    for (name, percent) in [("p50", 50.0), ("p99", 99.0), ("p99.9", 99.9)] {
        let micros =
            |(_, row): &Point<'_>| row.measured.latency.percentile(percent).as_secs_f64() * 1e6;
        let depth = |(measurement, _): &Point<'_>| f64::from(measurement.cell.depth);
        let fixed = |cell: &super::cells::Cell| [Some(cell.io_bytes), None, conns(cell)];
        let more = series(all, depth, micros, fixed);
        lines.extend(
            more.into_iter()
                .map(|line| Series { label: format!("{name}: {}", line.label), ..line }),
        );
    }
    Plot {
        title: "Latency percentiles over depth".to_owned(),
        x,
        y: Axis::new("latency", Unit::Micros, Scale::Log10),
        series: lines,
    }
}

/// The whole distribution of each combination.
fn distribution(all: &[Measurement]) -> Plot {
    let line = |point: Point<'_>| {
        let cell = &point.0.cell;
        let fixed = [Some(cell.io_bytes), Some(cell.depth.into()), conns(cell)];
        let curve = point.1.measured.latency.curve();
        let place =
            |(rest, time): (f64, std::time::Duration)| (1.0 / rest, time.as_secs_f64() * 1e6);
        Series { label: label(all, &point, fixed), points: curve.into_iter().map(place).collect() }
    };
    Plot {
        title: "Distribution of latency".to_owned(),
        x: Axis::new("requests that took no longer", Unit::Nines, Scale::Log10),
        y: Axis::new("latency", Unit::Micros, Scale::Log10),
        series: points(all).map(line).collect(),
    }
}
