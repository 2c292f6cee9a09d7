//! Renders a run: sections with tables and plots, docs/switch-performance.md, and a part of
//! docs/papers.md.

use super::SwitchBench;
use super::cells::SwitchPath::{Bytes, Direct, Fast, Foreign, Slow};
use super::cells::{CellLoad, PATHS, SCENES, SceneKind, SwitchPath};
use super::goals::counts;
use super::paper;
use super::results::{BYTES, CPU, CellRounds, Figure, RATE, RELAYED, TIME, USE, of_pattern};
use crate::bench::facts::facts_of_run;
use crate::bench::goal::{GoalVerdict, goals_table};
use crate::report::markdown::table;
use lunar_load::AccessPattern::{self, RandomRead, RandomWrite};
use lunar_load::report::{
    Axis, AxisScale, AxisUnit, Column, Plot, Report, Section, Series, Table, TableCell,
};
use std::path::Path;

/// Text that does not come from a run.
const TEMPLATE: &str = include_str!("../../../switch-performance.template.md");
/// Name of the part of docs/papers.md.
pub const PAPER_PART: &str = "switch";

/// Returns the report, with a section for goals, the paper, and each scene.
pub fn report(
    bench: &SwitchBench,
    program: &Path,
    cells: &[CellRounds],
    goals: &[GoalVerdict],
    warnings: &[String],
) -> Report {
    let rounds = format!("{} of {} s for each path", bench.rounds, bench.seconds);
    let mut report = Report {
        title: "The switch: direct, byte relay, slow path, fast path, tgt and QEMU".to_owned(),
        facts: facts_of_run(program, rounds),
        ..Report::default()
    };
    let mut section = Section::new("goals", "Goals");
    section.prose.push(counts(goals));
    section.warnings.extend_from_slice(warnings);
    section.tables.push(goals_table(goals));
    report.sections.push(section);
    let mut section = Section::new("paper", "The paper's figures beside ours");
    section.tables.push(paper::table(cells));
    report.sections.push(section);
    for scene in &SCENES {
        report.sections.extend(scene_section(scene, cells));
    }
    report
}

fn scene_section(scene: &'static SceneKind, cells: &[CellRounds]) -> Option<Section> {
    let own: Vec<&CellRounds> = cells.iter().filter(|cell| cell.scene == scene).collect();
    if own.is_empty() {
        return None;
    }
    let mut section = Section::new(scene.key, scene.title);
    section.tables.push(throughput(&own));
    section.tables.push(processors(&own));
    let (reads, writes) = match scene.is_linked {
        true => ("Figure 9 of the paper: read throughput", "Figure 10: write throughput"),
        false => ("Random reads", "Random writes"),
    };
    section.plots.push(rates(scene, cells, RandomRead, reads));
    section.plots.push(rates(scene, cells, RandomWrite, writes));
    let title = match scene.is_linked {
        true => "Figure 11: CPU utilization of the switch",
        false => "CPU utilization of the switch",
    };
    section.plots.push(usage(scene, cells, title));
    Some(section)
}

/// Cells that name the load, at the beginning of a row.
fn load_columns() -> Vec<Column> {
    vec![
        Column::text("pattern", "pattern"),
        Column::number("io_bytes", "size"),
        Column::number("depth", "depth"),
    ]
}

fn load_cells(load: CellLoad) -> Vec<TableCell> {
    vec![
        TableCell::text(load.pattern.name()),
        TableCell::size(load.io_bytes.into()),
        TableCell::count(load.depth as u64),
    ]
}

fn throughput(cells: &[&CellRounds]) -> Table {
    let mut columns = load_columns();
    let names = ["direct", "byte_relay", "slow", "fast", "foreign"];
    let ratios = [
        (Direct, "fast_of_direct", "of direct"),
        (Bytes, "fast_of_byte_relay", "of the byte relay"),
        (Slow, "fast_of_slow", "of the slow path"),
        (Foreign, "fast_of_foreign", "of tgt and QEMU"),
    ];
    let label = |path: SwitchPath| format!("{}, MB/s", path.name());
    columns
        .extend(names.into_iter().zip(PATHS).map(|(key, path)| Column::number(key, label(path))));
    columns
        .extend(ratios.iter().map(|(_, key, label)| Column::number(key, format!("fast, {label}"))));
    columns.push(Column::number("fast_requests_per_second", "fast, requests/s"));
    columns.push(Column::number("fast_p50_us", "fast, median us"));
    columns.push(Column::number("relayed", "relayed"));
    let mut all = Table::new(columns);
    for cell in cells {
        let mut row = load_cells(cell.load);
        row.extend(PATHS.map(|path| TableCell::median(cell.figure(path, BYTES), 1e6, 1)));
        let ratio = |to| TableCell::median(cell.ratio(BYTES, Fast, to), 1.0, 2);
        row.extend(ratios.iter().map(|(to, ..)| ratio(*to)));
        row.push(TableCell::median(cell.figure(Fast, RATE), 1.0, 0));
        row.push(TableCell::median(cell.figure(Fast, TIME), 1.0, 1));
        row.push(TableCell::median(cell.figure(Fast, RELAYED), 1.0, 2));
        all.row(row);
    }
    all
}

fn processors(cells: &[&CellRounds]) -> Table {
    let mut columns = load_columns();
    let switches = [(Bytes, "byte_relay"), (Slow, "slow"), (Fast, "fast"), (Foreign, "foreign")];
    let column = |(path, key): (SwitchPath, &'static str)| {
        Column::number(key, format!("{}, us a request", path.name()))
    };
    columns.extend(switches.map(column));
    columns.push(Column::number("fast_us_per_mib", "fast, us a MiB"));
    columns.push(Column::number("foreign_us_per_mib", "tgt and QEMU, us a MiB"));
    columns.push(Column::number("fast_of_foreign", "fast, of tgt and QEMU"));
    columns.push(Column::number("fast_percent", "fast, % of a core"));
    columns.push(Column::number("foreign_percent", "tgt and QEMU, % of a core"));
    let mut all = Table::new(columns).named("cpu", "Processor time of the switch");
    for cell in cells {
        let mut row = load_cells(cell.load);
        row.extend(switches.map(|(path, _)| TableCell::median(cell.figure(path, CPU), 1.0, 2)));
        let mebibytes = f64::from(cell.load.io_bytes) / f64::from(1 << 20);
        let of = |path, figure, unit| TableCell::median(cell.figure(path, figure), unit, 0);
        row.extend([of(Fast, CPU, mebibytes), of(Foreign, CPU, mebibytes)]);
        row.push(TableCell::median(cell.ratio(CPU, Fast, Foreign), 1.0, 2));
        row.extend([of(Fast, USE, 1.0), of(Foreign, USE, 1.0)]);
        all.row(row);
    }
    all
}

fn points(
    scene: &SceneKind,
    cells: &[CellRounds],
    pattern: AccessPattern,
    (path, figure): (SwitchPath, Figure),
) -> Vec<(f64, f64)> {
    let point =
        |cell: &CellRounds| (f64::from(cell.load.io_bytes), cell.figure(path, figure).median);
    of_pattern(cells, scene.key, pattern).map(point).collect()
}

fn plot(title: &str, label: &str, unit: AxisUnit, series: Vec<Series>) -> Plot {
    Plot {
        title: title.to_owned(),
        x: Axis::new("block size", AxisUnit::Bytes, AxisScale::Log2),
        y: Axis::new(label, unit, AxisScale::Linear),
        series,
    }
}

fn rates(scene: &SceneKind, cells: &[CellRounds], pattern: AccessPattern, title: &str) -> Plot {
    let series = PATHS.map(|path| Series {
        label: path.name().to_owned(),
        points: points(scene, cells, pattern, (path, BYTES)),
        ..Series::default()
    });
    plot(title, "throughput", AxisUnit::BytesPerSecond, series.into())
}

fn usage(scene: &SceneKind, cells: &[CellRounds], title: &str) -> Plot {
    let mut series = Vec::new();
    for (pattern, name) in [(RandomRead, "reads"), (RandomWrite, "writes")] {
        series.extend([Bytes, Slow, Fast, Foreign].map(|path| Series {
            label: format!("{}, {name}", path.name()),
            points: points(scene, cells, pattern, (path, USE)),
            ..Series::default()
        }));
    }
    plot(title, "CPU utilization", AxisUnit::Percent, series)
}

/// Returns docs/switch-performance.md.
pub fn chapter(report: &Report, goals: &[GoalVerdict], cells: &[CellRounds]) -> String {
    let mut machine = Table::new([Column::text("name", ""), Column::text("value", "")]);
    for (name, value) in &report.facts {
        machine.row([name, value].map(|text| TableCell::text(text.clone())));
    }
    let mut figures = String::new();
    for section in report.sections.iter().filter(|section| section.key != "goals") {
        if section.key == "paper" {
            continue;
        }
        figures += &format!("### {}\n\n", section.title);
        for part in &section.tables {
            figures += &(table(part) + "\n");
        }
    }
    let warnings = report.sections.iter().flat_map(|section| &section.warnings);
    let warnings: String = warnings.map(|warning| format!("\n\nWarning: {warning}")).collect();
    let parts = [
        ("machine", table(&machine)),
        ("goals", table(&goals_table(goals))),
        ("counts", counts(goals) + &warnings),
        ("paper", table(&paper::table(cells))),
        ("figures", figures),
    ];
    parts.iter().fold(TEMPLATE.to_owned(), |text, (name, part)| {
        text.replace(&format!("{{{{{name}}}}}"), part.trim_end())
    })
}

/// Returns the part of docs/papers.md: where and when the figures were measured, and the table.
pub fn paper_part(report: &Report, cells: &[CellRounds]) -> String {
    let facts = ["measured on", "source", "processor", "cores", "kernel", "rounds"];
    let fact = |name: &&str| report.facts.iter().find(|(known, _)| known == name);
    let facts = facts.iter().filter_map(fact).map(|(name, value)| format!("* {name}: {value}\n"));
    format!("{}\n{}", facts.collect::<String>(), table(&paper::table(cells)))
}
