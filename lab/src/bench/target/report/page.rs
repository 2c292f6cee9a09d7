//! Renders a run as a report with plots.

use super::tables;
use crate::bench::target::results::{BenchRun, CellResult, Sample};
use lunar_load::report::{Axis, AxisScale, AxisUnit, Plot, Report, Section, Series};

/// A plotted figure: title, unit, and the figure of a sample.
type Shown = (&'static str, AxisUnit, fn(&Sample) -> Option<f64>);

const OVER_DEPTH: [Shown; 3] = [
    ("IOPS", AxisUnit::PerSecond, |sample| Some(sample.iops)),
    ("p99", AxisUnit::Micros, |sample| sample.p99_us),
    ("CPU of the target for a request", AxisUnit::Micros, |sample| sample.target_cpu_us),
];
const OVER_SIZE: [Shown; 2] = [
    ("throughput", AxisUnit::BytesPerSecond, |sample| Some(sample.bytes_per_second)),
    ("CPU of the target for a request", AxisUnit::Micros, |sample| sample.target_cpu_us),
];

/// Returns the page.
pub fn report(run: &BenchRun) -> Report {
    let mut goals = Section::new("goals", "Goals");
    goals.tables.push(tables::goals_table(&run.goals));
    goals.prose.push(tables::counts(&run.goals));
    let notes = run.goals.iter().filter_map(|goal| Some((goal, goal.note.as_ref()?)));
    goals.warnings = notes.map(|(goal, note)| format!("{}: {note}", goal.what)).collect();
    goals.warnings.extend(tables::disturbance(run));
    let mut sections = vec![goals];
    let mut stores: Vec<&str> = run.cells.iter().map(|cell| cell.store.as_str()).collect();
    stores.dedup();
    for store in stores {
        let cells: Vec<&CellResult> = run.cells.iter().filter(|cell| cell.store == store).collect();
        sections.push(section(store, &cells));
    }
    Report {
        title: "The target, per core".to_owned(),
        prose: vec![
            "Medians of rounds in which all setups took turns on the same file, the target on one \
             core, the client on another. Ratios of goals are those of rounds."
                .to_owned(),
        ],
        facts: run.facts.clone(),
        sections,
    }
}

fn section(store: &str, cells: &[&CellResult]) -> Section {
    let mut section = Section::new("store", store);
    let void = cells.iter().filter(|cell| cell.is_void);
    section.warnings = void
        .map(|cell| {
            let variation = cell.probe_variation * 100.0;
            format!("{} is void: raw TCP ({}) varied by {variation:.0} %", cell.key, cell.probe)
        })
        .collect();
    let mut patterns: Vec<&str> = cells.iter().map(|cell| cell.pattern.as_str()).collect();
    patterns.sort_unstable();
    patterns.dedup();
    for pattern in patterns {
        let like =
            |cell: &&&CellResult| cell.pattern == pattern && !cell.is_shared && !cell.is_void;
        let cells: Vec<&CellResult> = cells.iter().filter(like).copied().collect();
        let is_random = pattern.starts_with("rand-");
        let (shown, x): (&[Shown], fn(&CellResult) -> f64) = match is_random {
            true => (&OVER_DEPTH, |cell| cell.depth.into()),
            false => (&OVER_SIZE, |cell| cell.io_bytes as f64),
        };
        let plots = shown.iter().map(|(what, unit, of)| Plot {
            title: format!("{what}, {pattern}, {store}"),
            x: match is_random {
                true => Axis::new("depth", AxisUnit::Count, AxisScale::Log2),
                false => Axis::new("request", AxisUnit::Bytes, AxisScale::Log2),
            },
            y: Axis::new(*what, *unit, AxisScale::Linear),
            // A single point forms no line; the tables have its value.
            series: series(&cells, x, *of)
                .into_iter()
                .filter(|line| line.points.len() > 1)
                .collect(),
        });
        section.plots.extend(plots.filter(Plot::has_line));
    }
    section.tables = cells
        .iter()
        .map(|cell| {
            tables::setups(cell).named("cell", format!("{}. {}", cell.key, tables::raw_tcp(cell)))
        })
        .collect();
    section
}

/// Returns a line for each setup; if cells have the same position, the first of the table counts.
fn series(
    cells: &[&CellResult],
    x: fn(&CellResult) -> f64,
    of: fn(&Sample) -> Option<f64>,
) -> Vec<Series> {
    let mut all: Vec<Series> = Vec::new();
    for cell in cells {
        for setup in &cell.setups {
            let Some(figure) = cell.setup(setup, of) else { continue };
            Series::add_point(&mut all, setup, (x(cell), figure.median));
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::super::competitors::tests::run;
    use super::*;

    /// Goal: lines run over depths, one for each setup; a single point is not plotted; the page is
    /// written.
    #[test]
    fn plots_have_lines() {
        let mut run = run();
        assert!(report(&run).sections[1].plots.is_empty());
        let mut alone = run.cells[0].clone();
        alone.depth = 1;
        run.cells.push(alone);
        let report = report(&run);
        let plot = &report.sections[1].plots[0];
        assert_eq!(plot.series[0].label, "lunar");
        assert_eq!(plot.series[0].points, [(32.0, 105_000.0), (1.0, 105_000.0)]);
        assert!(lunar_load::report::page(&report).contains("rand-read-4Ki-32-tmpfs"));
    }
}
