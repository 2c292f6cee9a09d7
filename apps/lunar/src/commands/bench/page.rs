//! The results as a report with plots.

use super::PatternName;
use super::cells::{Cell, Measurement, Row};
use super::compared::ComparedDisks;
use super::network::model_text;
use super::{BenchCommand, facts};
use lunar_load::report::{
    Axis, AxisScale, AxisUnit, Column, Plot, Report, Section, Series, Table, TableCell as Figure,
    probe_row, probe_table,
};
use std::time::Duration;

/// The report of a run.
pub(super) fn report(args: &BenchCommand, compared: &ComparedDisks, all: &[Measurement]) -> Report {
    let mut section = Section::new("disks", "Disks");
    section.prose.push(
        "Figures are medians of the rounds, with minimum and maximum; percentiles are taken over \
         all rounds together. Disks take turns within a round."
            .to_owned(),
    );
    section.tables.push(figures(compared, all));
    for row in all.iter().flat_map(|one| &one.rows) {
        section.warnings.extend(row.warning().map(|why| format!("{}: {why}", row.url)));
    }
    section.warnings.dedup();
    section.plots = plots(compared, all);
    let mut sections = vec![compared.section(args), section];
    sections.extend(raw_tcp(all));
    let mut facts = facts(args);
    if let Some(model) = args.network.model() {
        facts.push(("network".to_owned(), format!("through a relay: {}", model_text(&model))));
    }
    Report { title: "lunar bench".to_owned(), prose: Vec::new(), facts, sections }
}

fn figures(compared: &ComparedDisks, all: &[Measurement]) -> Table {
    let mut table = Table::new([
        Column::text("disk", "disk"),
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
        for (position, row) in rows.iter().enumerate() {
            let one = &row.measured;
            let time = |percent| Figure::time(one.latency.percentile(percent));
            let mut figures = vec![
                Figure::text(compared.name(position)),
                Figure::text(cell.pattern.text()),
                Figure::size(cell.io_bytes),
                Figure::count(cell.depth.into()),
                row.connections.map_or_else(Figure::none, |count| Figure::count(count as u64)),
                Figure::spread(one.requests_per_second, 1.0, 0),
                Figure::spread(one.bytes_per_second, 1e6, 1),
                time(50.0),
                time(99.0),
                time(99.9),
                Figure::time(one.latency.max()),
                Figure::micros(one.client_cpu_micros),
                Figure::micros(one.target_cpu_micros),
            ];
            if one.no_figures_reason().is_some() {
                // The other figures are not known.
                figures.truncate(5);
            }
            table.row(figures);
        }
    }
    table
}

/// The section about the probes, if there were any.
fn raw_tcp(all: &[Measurement]) -> Option<Section> {
    let mut section = Section::new("raw_tcp", "Raw TCP during the measurement");
    section.prose.push(RAW_TCP_PROSE.to_owned());
    let mut table = probe_table();
    for Measurement { cell, probed, .. } in all {
        let Some(probed) = probed else { continue };
        let name = format!("{} {}", cell.pattern.text(), Figure::size(cell.io_bytes));
        let (depth, connections) = (cell.depth, cell.connections);
        let name = format!("{name}, depth {depth}, connections {connections}");
        table.row(probe_row(&name, probed));
        section.warnings.extend(probed.variation_warning().map(|why| format!("{name}: {why}")));
    }
    let some = !table.is_empty();
    section.tables.push(table);
    some.then_some(section)
}

/// Explanation of the probes.
const RAW_TCP_PROSE: &str = "Performance of plain TCP between two threads of this process, \
                             measured in the same rounds over this machine's loopback, and \
                             through the relay if there is one. These figures are the baseline \
                             for the disks on this machine; they say nothing about other machines \
                             or the network to them.";

/// A point in the grid of combinations, with its results.
#[derive(Clone, Copy, Debug)]
struct Point<'a> {
    cell: &'a Cell,
    row: &'a Row,
    /// Position of the disk on the command line.
    disk: usize,
}

/// The part of the grid that a plot shows: one line for each disk. Parameters other than the axis
/// have one value in it.
#[derive(Clone, Copy, Debug)]
struct GridSlice {
    pattern: PatternName,
    io_bytes: Option<u64>,
    depth: Option<u16>,
    connections: Option<u16>,
}

impl GridSlice {
    fn includes(&self, cell: &Cell) -> bool {
        self.pattern == cell.pattern
            && self.io_bytes.is_none_or(|bytes| bytes == cell.io_bytes)
            && self.depth.is_none_or(|depth| depth == cell.depth)
            && self.connections.is_none_or(|count| count == cell.connections)
    }

    /// Suffix of a title: the fixed values that have alternatives.
    fn text(&self, all: &[Measurement]) -> String {
        let others = |field: fn(&Cell) -> u64, value: u64| {
            all.iter().any(|measurement| field(&measurement.cell) != value)
        };
        let size = self.io_bytes.filter(|bytes| others(|cell| cell.io_bytes, *bytes));
        let depth = self.depth.map(u64::from);
        let depth = depth.filter(|depth| others(|cell| cell.depth.into(), *depth));
        let count = self.connections.map(u64::from);
        let count = count.filter(|count| others(|cell| cell.connections.into(), *count));
        let pattern = all.iter().any(|other| other.cell.pattern != self.pattern);
        let parts = [
            pattern.then(|| self.pattern.text().to_owned()),
            size.map(|bytes| format!("requests of {}", lunar_load::report::size_text(bytes))),
            depth.map(|depth| format!("depth {depth}")),
            count.map(|count| format!("connections {count}")),
        ];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        if parts.is_empty() { String::new() } else { format!(" ({})", parts.join(", ")) }
    }
}

/// Plots of each pattern by size, depth and connections, percentiles, and the distribution,
/// without empty plots.
fn plots(compared: &ComparedDisks, all: &[Measurement]) -> Vec<Plot> {
    let mut patterns: Vec<PatternName> = Vec::new();
    for measurement in all {
        if !patterns.contains(&measurement.cell.pattern) {
            patterns.push(measurement.cell.pattern);
        }
    }
    let all_plots = patterns.into_iter().flat_map(|pattern| plots_of(pattern, compared, all));
    all_plots.filter(Plot::has_line).collect()
}

fn plots_of(pattern: PatternName, compared: &ComparedDisks, all: &[Measurement]) -> [Plot; 5] {
    let cells = || all.iter().map(|measurement| &measurement.cell);
    let small = cells().map(|cell| cell.io_bytes).min();
    let large = cells().map(|cell| cell.io_bytes).max();
    let deep = cells().map(|cell| cell.depth).max();
    let connections_max = cells().map(|cell| cell.connections).max();
    let bytes = |point: &Point<'_>| point.row.measured.bytes_per_second.median;
    let iops = |point: &Point<'_>| point.row.measured.requests_per_second.median;
    let bytes_axis = || Axis::new("throughput", AxisUnit::BytesPerSecond, AxisScale::Linear);
    let depth = || Axis::new("outstanding requests", AxisUnit::Count, AxisScale::Log2);
    let slice = |io_bytes, depth, connections| GridSlice { pattern, io_bytes, depth, connections };
    let by_size = slice(None, deep, connections_max);
    let by_depth = slice(small, None, connections_max);
    let by_count = slice(large, deep, None);
    let lines = |slice, x: fn(&Point<'_>) -> Option<f64>, y: fn(&Point<'_>) -> f64| {
        lines(compared, all, slice, x, y)
    };
    [
        Plot {
            title: format!("Throughput by request size{}", by_size.text(all)),
            x: Axis::new("request", AxisUnit::Bytes, AxisScale::Log2),
            y: bytes_axis(),
            series: lines(by_size, |point| Some(point.cell.io_bytes as f64), bytes),
        },
        Plot {
            title: format!("Requests per second by depth{}", by_depth.text(all)),
            x: depth(),
            y: Axis::new("IOPS", AxisUnit::PerSecond, AxisScale::Linear),
            series: lines(by_depth, |point| Some(point.cell.depth.into()), iops),
        },
        Plot {
            title: format!("Throughput by number of connections{}", by_count.text(all)),
            x: Axis::new("connections", AxisUnit::Count, AxisScale::Log2),
            y: bytes_axis(),
            series: lines(by_count, |point| point.row.connections.map(|n| n as f64), bytes),
        },
        percentiles(compared, all, by_depth, depth()),
        distribution(compared, all, slice(small, deep, connections_max)),
    ]
}

/// One line for each disk; points without a position on the axis are left out.
fn lines(
    compared: &ComparedDisks,
    all: &[Measurement],
    slice: GridSlice,
    x: impl Fn(&Point<'_>) -> Option<f64>,
    y: impl Fn(&Point<'_>) -> f64,
) -> Vec<Series> {
    let mut lines: Vec<Series> = Vec::new();
    for point in points(all, slice) {
        let Some(x) = x(&point) else { continue };
        Series::add_point(&mut lines, &compared.name(point.disk), (x, y(&point)));
    }
    lines
}

fn points(all: &[Measurement], slice: GridSlice) -> impl Iterator<Item = Point<'_>> {
    let shown = all.iter().filter(move |measurement| slice.includes(&measurement.cell));
    shown.flat_map(|Measurement { cell, rows, .. }| {
        rows.iter().enumerate().map(move |(disk, row)| Point { cell, row, disk })
    })
}

/// Two percentiles by depth: a colour for each disk, a dash for each percentile.
fn percentiles(compared: &ComparedDisks, all: &[Measurement], slice: GridSlice, x: Axis) -> Plot {
    let mut series = Vec::new();
    for (dash, (name, percent)) in [("p50", 50.0), ("p99", 99.0)].into_iter().enumerate() {
        let micros =
            |point: &Point<'_>| point.row.measured.latency.percentile(percent).as_secs_f64() * 1e6;
        let more = lines(compared, all, slice, |point| Some(point.cell.depth.into()), micros);
        series.extend(more.into_iter().enumerate().map(|(disk, line)| Series {
            label: format!("{} {name}", line.label),
            style: Some((disk, dash)),
            ..line
        }));
    }
    Plot {
        title: format!("Latency by depth{}", slice.text(all)),
        x,
        y: Axis::new("latency", AxisUnit::Micros, AxisScale::Log10),
        series,
    }
}

/// The whole distribution of latency.
fn distribution(compared: &ComparedDisks, all: &[Measurement], slice: GridSlice) -> Plot {
    let to_point = |(rest, time): (f64, Duration)| (1.0 / rest, time.as_secs_f64() * 1e6);
    let line = |point: Point<'_>| Series {
        label: compared.name(point.disk),
        points: point.row.measured.latency.curve().into_iter().map(to_point).collect(),
        style: None,
    };
    Plot {
        title: format!("Latency distribution{}", slice.text(all)),
        x: Axis::new("share of requests", AxisUnit::PercentileNines, AxisScale::Log10),
        y: Axis::new("latency", AxisUnit::Micros, AxisScale::Log10),
        series: points(all, slice).map(line).collect(),
    }
}
