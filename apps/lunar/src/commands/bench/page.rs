//! The results as a report with plots.

use super::cells::{Cell, Measurement, Row};
use super::network::model_text;
use super::{BenchCommand, facts};
use lunar_load::report::{
    Axis, AxisScale, AxisUnit, Column, Plot, Report, Section, Series, Table, TableCell as Figure,
    probe_row, probe_table,
};
use std::time::Duration;

/// The report of a run.
pub(super) fn report(args: &BenchCommand, all: &[Measurement]) -> Report {
    let mut section = Section::new("disks", "Disks");
    section.prose.push(
        "Figures are medians of the rounds, with minimum and maximum; percentiles are taken over \
         all rounds together. Disks take turns within a round."
            .to_owned(),
    );
    section.tables.push(figures(all));
    for row in all.iter().flat_map(|one| &one.rows) {
        section.warnings.extend(row.warning().map(|why| format!("{}: {why}", row.url)));
    }
    section.warnings.dedup();
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
            let time = |percent| Figure::time(one.latency.percentile(percent));
            let mut figures = vec![
                Figure::text(row.url.clone()),
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
type Point<'a> = (&'a Measurement, &'a Row);

/// The part of the grid that a plot shows: one line for each disk and pattern. Parameters other
/// than the axis have one value in it.
#[derive(Clone, Copy, Debug, Default)]
struct GridSlice {
    io_bytes: Option<u64>,
    depth: Option<u16>,
    connections: Option<u16>,
}

impl GridSlice {
    fn includes(&self, cell: &Cell) -> bool {
        self.io_bytes.is_none_or(|bytes| bytes == cell.io_bytes)
            && self.depth.is_none_or(|depth| depth == cell.depth)
            && self.connections.is_none_or(|count| count == cell.connections)
    }

    /// Suffix of a title: the fixed values that have alternatives.
    fn text(&self, all: &[Measurement]) -> String {
        let others = |of: fn(&Cell) -> u64, value: u64| {
            all.iter().any(|measurement| of(&measurement.cell) != value)
        };
        let size = self.io_bytes.filter(|bytes| others(|cell| cell.io_bytes, *bytes));
        let depth = self.depth.map(u64::from);
        let depth = depth.filter(|depth| others(|cell| cell.depth.into(), *depth));
        let count = self.connections.map(u64::from);
        let count = count.filter(|count| others(|cell| cell.connections.into(), *count));
        let parts = [
            size.map(|bytes| format!("requests of {}", lunar_load::report::size_text(bytes))),
            depth.map(|depth| format!("depth {depth}")),
            count.map(|count| format!("connections {count}")),
        ];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        if parts.is_empty() { String::new() } else { format!(" ({})", parts.join(", ")) }
    }
}

/// Plots by size, depth and connections, percentiles, and the distribution, without empty plots.
fn plots(all: &[Measurement]) -> Vec<Plot> {
    let cells = || all.iter().map(|measurement| &measurement.cell);
    let small = cells().map(|cell| cell.io_bytes).min();
    let large = cells().map(|cell| cell.io_bytes).max();
    let deep = cells().map(|cell| cell.depth).max();
    let most = cells().map(|cell| cell.connections).max();
    let bytes = |(_, row): &Point<'_>| row.measured.bytes_per_second.median;
    let iops = |(_, row): &Point<'_>| row.measured.requests_per_second.median;
    let bytes_axis = || Axis::new("throughput", AxisUnit::BytesPerSecond, AxisScale::Linear);
    let depth = || Axis::new("outstanding requests", AxisUnit::Count, AxisScale::Log2);
    let by_size = GridSlice { depth: deep, connections: most, ..GridSlice::default() };
    let by_depth = GridSlice { io_bytes: small, connections: most, ..GridSlice::default() };
    let by_count = GridSlice { io_bytes: large, depth: deep, ..GridSlice::default() };
    let mut plots = vec![
        Plot {
            title: format!("Throughput by request size{}", by_size.text(all)),
            x: Axis::new("request", AxisUnit::Bytes, AxisScale::Log2),
            y: bytes_axis(),
            series: lines(all, by_size, |(one, _)| Some(one.cell.io_bytes as f64), bytes),
        },
        Plot {
            title: format!("Requests per second by depth{}", by_depth.text(all)),
            x: depth(),
            y: Axis::new("IOPS", AxisUnit::PerSecond, AxisScale::Linear),
            series: lines(all, by_depth, |(one, _)| Some(one.cell.depth.into()), iops),
        },
        Plot {
            title: format!("Throughput by number of connections{}", by_count.text(all)),
            x: Axis::new("connections", AxisUnit::Count, AxisScale::Log2),
            y: bytes_axis(),
            series: lines(all, by_count, |(_, row)| row.connections.map(|n| n as f64), bytes),
        },
        percentiles(all, by_depth, depth()),
        distribution(all, GridSlice { io_bytes: small, depth: deep, connections: most }),
    ];
    plots.retain(Plot::has_line);
    plots
}

/// One line for each disk and pattern; points without a position on the axis are left out.
fn lines(
    all: &[Measurement],
    slice: GridSlice,
    x: impl Fn(&Point<'_>) -> Option<f64>,
    y: impl Fn(&Point<'_>) -> f64,
) -> Vec<Series> {
    let mut lines: Vec<Series> = Vec::new();
    for point in points(all, slice) {
        let Some(x) = x(&point) else { continue };
        Series::add_point(&mut lines, &label(all, &point), (x, y(&point)));
    }
    lines
}

fn points(all: &[Measurement], slice: GridSlice) -> impl Iterator<Item = Point<'_>> {
    let shown = all.iter().filter(move |measurement| slice.includes(&measurement.cell));
    shown.flat_map(|measurement| measurement.rows.iter().map(move |row| (measurement, row)))
}

/// The disk, and the pattern if there are several.
fn label(all: &[Measurement], (measurement, row): &Point<'_>) -> String {
    let pattern = measurement.cell.pattern;
    match all.iter().any(|other| other.cell.pattern != pattern) {
        true => format!("{}, {}", row.url, pattern.text()),
        false => row.url.clone(),
    }
}

/// Three percentiles by depth.
fn percentiles(all: &[Measurement], slice: GridSlice, x: Axis) -> Plot {
    let mut series = Vec::new();
    for (name, percent) in [("p50", 50.0), ("p99", 99.0), ("p99.9", 99.9)] {
        let micros =
            |(_, row): &Point<'_>| row.measured.latency.percentile(percent).as_secs_f64() * 1e6;
        let more = lines(all, slice, |(one, _)| Some(one.cell.depth.into()), micros);
        let named = |line: Series| Series { label: format!("{name}, {}", line.label), ..line };
        series.extend(more.into_iter().map(named));
    }
    Plot {
        title: format!("Latency by depth{}", slice.text(all)),
        x,
        y: Axis::new("latency", AxisUnit::Micros, AxisScale::Log10),
        series,
    }
}

/// The whole distribution of latency.
fn distribution(all: &[Measurement], slice: GridSlice) -> Plot {
    let to_point = |(rest, time): (f64, Duration)| (1.0 / rest, time.as_secs_f64() * 1e6);
    let line = |point: Point<'_>| Series {
        label: label(all, &point),
        points: point.1.measured.latency.curve().into_iter().map(to_point).collect(),
    };
    Plot {
        title: format!("Latency distribution{}", slice.text(all)),
        x: Axis::new("share of requests", AxisUnit::PercentileNines, AxisScale::Log10),
        y: Axis::new("latency", AxisUnit::Micros, AxisScale::Log10),
        series: points(all, slice).map(line).collect(),
    }
}
