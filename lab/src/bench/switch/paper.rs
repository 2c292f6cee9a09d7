//! The paper's stated figures beside ours: Chung, Lee, Chen, "A Packet Forwarding Method for the
//! iSCSI Virtualization Switch", §4. Its curves have no numbers.

use super::cells::SwitchPath::{Direct, Fast, Foreign};
use super::results::{BYTES, CPU, CellRounds, USE, of_pattern};
use lunar_load::AccessPattern::{self, RandomRead, RandomWrite};
use lunar_load::report::{Column, Table, TableCell};

/// Block size that the paper calls typical, and from which on it states the processor use.
const TYPICAL: u32 = 512 << 10;

/// Returns the statements of the paper, each with the figures of this run.
pub fn table(cells: &[CellRounds]) -> Table {
    let mut all = Table::new([
        Column::text("measurement", "measurement"),
        Column::text("paper", "the paper"),
        Column::text("link", "here, links of 1 Gbit/s"),
        Column::text("unlimited", "here, no limit, null target"),
    ]);
    let mut row = |what: &str, paper: &str, figures: [Option<String>; 2]| {
        let figures = figures.map(|figure| figure.map_or_else(TableCell::none, TableCell::text));
        let [link, unlimited] = figures;
        all.row([TableCell::text(what), TableCell::text(paper), link, unlimited]);
    };
    let both = |figure: fn(&[CellRounds], &str, AccessPattern) -> Option<String>, pattern| {
        ["link", "null"].map(|scene| figure(cells, scene, pattern))
    };
    row("read throughput, of the conventional switch", "+30 %", both(gain, RandomRead));
    row("write throughput, of the conventional switch", "+25 %", both(gain, RandomWrite));
    row("best read throughput, below end to end", "about 5 MB/s", both(below, RandomRead));
    row("best write throughput, below end to end", "about 3 MB/s", both(below, RandomWrite));
    let use_text = "CPU utilization from 512 KiB on, of the conventional switch";
    for (pattern, name) in [(RandomRead, "reads"), (RandomWrite, "writes")] {
        row(&format!("{use_text}, {name}"), "10 to 15 % lower", both(utilization, pattern));
        let what = format!("CPU for a byte from 512 KiB on, of the conventional switch, {name}");
        row(&what, "–", both(cpu, pattern));
    }
    all
}

fn mean(figures: impl Iterator<Item = f64>) -> Option<f64> {
    let figures: Vec<f64> = figures.collect();
    (!figures.is_empty()).then(|| figures.iter().sum::<f64>() / figures.len() as f64)
}

fn percent(ratio: f64) -> String {
    format!("{:+.0} %", 100.0 * (ratio - 1.0)).replace('-', "−")
}

/// The mean over all sizes, and the typical one.
fn gain(cells: &[CellRounds], scene: &str, pattern: AccessPattern) -> Option<String> {
    let ratio = |cell: &CellRounds| cell.ratio(BYTES, Fast, Foreign).median;
    let all = mean(of_pattern(cells, scene, pattern).map(ratio))?;
    let typical = of_pattern(cells, scene, pattern).find(|cell| cell.load.io_bytes == TYPICAL);
    let typical = typical.map(|cell| format!(" ({} at 512 KiB)", percent(ratio(cell))));
    Some(percent(all) + &typical.unwrap_or_default())
}

/// The difference at the size with the greatest throughput end to end.
fn below(cells: &[CellRounds], scene: &str, pattern: AccessPattern) -> Option<String> {
    let best = of_pattern(cells, scene, pattern).max_by(|one, other| {
        let median = |cell: &CellRounds| cell.figure(Direct, BYTES).median;
        median(one).total_cmp(&median(other))
    })?;
    let [direct, fast] = [Direct, Fast].map(|path| best.figure(path, BYTES).median / 1e6);
    let difference = direct - fast;
    Some(format!("{difference:.1} MB/s ({fast:.1} of {direct:.1})").replace('-', "−"))
}

fn from_typical<'a>(
    cells: &'a [CellRounds],
    scene: &'a str,
    pattern: AccessPattern,
) -> impl Iterator<Item = &'a CellRounds> {
    of_pattern(cells, scene, pattern).filter(|cell| cell.load.io_bytes >= TYPICAL)
}

fn utilization(cells: &[CellRounds], scene: &str, pattern: AccessPattern) -> Option<String> {
    let large = || from_typical(cells, scene, pattern);
    let of = |path| mean(large().map(|cell| cell.figure(path, USE).median));
    let ratio = mean(large().map(|cell| cell.ratio(USE, Fast, Foreign).median))?;
    Some(format!("{} ({:.0} of {:.0} % of a core)", percent(ratio), of(Fast)?, of(Foreign)?))
}

fn cpu(cells: &[CellRounds], scene: &str, pattern: AccessPattern) -> Option<String> {
    let ratio = |cell: &CellRounds| cell.ratio(CPU, Fast, Foreign).median;
    mean(from_typical(cells, scene, pattern).map(ratio)).map(percent)
}
