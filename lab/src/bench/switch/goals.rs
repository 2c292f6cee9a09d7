//! Goals: ratios between paths in one run.

use super::cells::SwitchPath::{self, Bytes, Direct, Fast, Foreign, Slow};
use super::results::{BYTES, CPU, CellRounds, Figure, RATE, TIME, of_pattern};
use crate::bench::goal::{Bound, GoalOutcome, GoalVerdict};
use lunar_load::AccessPattern::{self, RandomRead, RandomWrite, Read, Write};
use lunar_load::Spread;
use lunar_load::report::size_text;

/// Request size from which on the fast path must be faster than the slow one, and a link is the
/// limit of all paths.
const LARGE: u32 = 64 << 10;
/// Request size from which on the fast path must nearly be as fast as a byte relay.
const RELAYED: u32 = 16 << 10;
/// Request size of the goals for processor time and latency.
const SMALL: u32 = 4 << 10;
/// Processor time of the fast path for a request, in microseconds.
const CPU_MICROS_MAX: f64 = 2.5;

/// A goal for every request size in a range: the worst one counts.
struct SizesGoal {
    scene: &'static str,
    part: &'static str,
    what: &'static str,
    figure: Figure,
    to: SwitchPath,
    sizes: std::ops::Range<u32>,
    bound: Bound,
}

const ALL: std::ops::Range<u32> = 0..u32::MAX;

/// Goals for each pattern.
const PATTERN_GOALS: [SizesGoal; 5] = [
    goal("foreign", "throughput, of tgt and QEMU", BYTES, Foreign, ALL, Bound::AtLeast(1.3)),
    goal("foreign", "CPU for a byte, of tgt and QEMU", CPU, Foreign, ALL, Bound::AtMost(0.7)),
    goal(
        "slow",
        "throughput from 64 KiB, of the slow path",
        BYTES,
        Slow,
        LARGE..u32::MAX,
        Bound::AtLeast(1.15),
    ),
    goal(
        "bytes",
        "throughput from 16 KiB, of the byte relay",
        BYTES,
        Bytes,
        RELAYED..u32::MAX,
        Bound::AtLeast(0.9),
    ),
    goal(
        "bytes",
        "throughput below 16 KiB, of the byte relay",
        BYTES,
        Bytes,
        0..RELAYED,
        Bound::AtLeast(0.8),
    ),
];

const fn goal(
    part: &'static str,
    what: &'static str,
    figure: Figure,
    to: SwitchPath,
    sizes: std::ops::Range<u32>,
    bound: Bound,
) -> SizesGoal {
    SizesGoal { scene: "null", part, what, figure, to, sizes, bound }
}

/// The verdicts on all goals whose cells were measured.
pub fn verdicts(cells: &[CellRounds]) -> Vec<GoalVerdict> {
    let mut all = Vec::new();
    for goal in &PATTERN_GOALS {
        for pattern in [RandomRead, RandomWrite, Read, Write] {
            all.extend(goal.verdict(cells, pattern));
        }
    }
    for pattern in [RandomRead, RandomWrite] {
        all.extend(cpu(cells, pattern));
        all.extend(latency(cells, pattern));
    }
    for (pattern, least) in [(RandomRead, 0.95), (RandomWrite, 0.97)] {
        let link = SizesGoal {
            scene: "link",
            part: "link",
            what: "throughput over 1 Gbit/s from 64 KiB, of direct",
            figure: BYTES,
            to: Direct,
            sizes: LARGE..u32::MAX,
            bound: Bound::AtLeast(least),
        };
        all.extend(link.verdict(cells, pattern));
    }
    all
}

impl SizesGoal {
    /// The verdict on the size with the worst median; `None`: none was measured.
    fn verdict(&self, cells: &[CellRounds], pattern: AccessPattern) -> Option<GoalVerdict> {
        let sizes = of_pattern(cells, self.scene, pattern)
            .filter(|cell| self.sizes.contains(&cell.load.io_bytes));
        let ratios = sizes.map(|cell| (cell, cell.ratio(self.figure, Fast, self.to)));
        let by_median = |one: &(&CellRounds, Spread), other: &(&CellRounds, Spread)| {
            one.1.median.total_cmp(&other.1.median)
        };
        let (cell, got) = match self.bound {
            Bound::AtLeast(_) => ratios.min_by(by_median)?,
            Bound::AtMost(_) => ratios.max_by(by_median)?,
        };
        let size = size_text(cell.load.io_bytes.into());
        let from = format!("worst size {size}: {}", compared(cell, self.figure, self.to));
        let what = format!("{}: {}", pattern.name(), self.what);
        Some(GoalVerdict::of_median(self.part, what, from, got, "", self.bound))
    }
}

/// Formats the medians of both paths.
fn compared(cell: &CellRounds, figure: Figure, to: SwitchPath) -> String {
    let text = |path: SwitchPath| {
        let median = cell.figure(path, figure).median;
        let median = match figure {
            _ if std::ptr::fn_addr_eq(figure, CPU) => format!("{median:.2} us a request"),
            _ if std::ptr::fn_addr_eq(figure, TIME) => format!("{median:.1} us"),
            _ => format!("{:.1} MB/s", median / 1e6),
        };
        format!("{} {median}", path.name())
    };
    format!("{}, {}", text(Fast), text(to))
}

fn small(cells: &[CellRounds], pattern: AccessPattern, is_alone: bool) -> Option<&CellRounds> {
    cells.iter().find(|cell| {
        let load = cell.load;
        cell.scene.key == "null"
            && (load.pattern, load.io_bytes, load.depth == 1) == (pattern, SMALL, is_alone)
    })
}

fn cpu(cells: &[CellRounds], pattern: AccessPattern) -> Option<GoalVerdict> {
    let cell = small(cells, pattern, false)?;
    let ratio = cell.ratio(CPU, Fast, Bytes).median;
    let rate = cell.figure(Fast, RATE).median;
    let from = format!("{ratio:.2} times the byte relay's, at {rate:.0} requests a second");
    let what = format!("{}: CPU for a request of 4 KiB, depth {}", pattern.name(), cell.load.depth);
    let got = cell.figure(Fast, CPU);
    Some(GoalVerdict::of_median("CPU", what, from, got, "us", Bound::AtMost(CPU_MICROS_MAX)))
}

fn latency(cells: &[CellRounds], pattern: AccessPattern) -> Option<GoalVerdict> {
    let cell = small(cells, pattern, true)?;
    let from = compared(cell, TIME, Bytes);
    let what = format!("{}: latency of 4 KiB, depth 1, of the byte relay's", pattern.name());
    let got = cell.ratio(TIME, Fast, Bytes);
    Some(GoalVerdict::of_median("latency", what, from, got, "", Bound::AtMost(1.25)))
}

/// Returns how many goals are met, as a sentence.
pub fn counts(goals: &[GoalVerdict]) -> String {
    let met = goals.iter().filter(|goal| goal.outcome == GoalOutcome::Pass).count();
    format!("{met} of {} goals are met.", goals.len())
}

#[cfg(test)]
mod tests {
    use super::super::cells::{CellLoad, PATHS, SCENES};
    use super::super::results::TurnFigures;
    use super::*;

    /// Returns a cell of one round in which the fast path has `ratio` times the figures of others.
    fn cell(pattern: AccessPattern, io_bytes: u32, depth: usize, ratio: f64) -> CellRounds {
        let others = TurnFigures {
            requests_per_second: 100.0,
            bytes_per_second: 100.0 * f64::from(io_bytes),
            p50_us: 10.0,
            switch_cpu_us: 5.0,
            relayed_share: 0.0,
        };
        let mut paths = [others; PATHS.len()];
        paths[Fast.index()] = TurnFigures {
            requests_per_second: 100.0 * ratio,
            bytes_per_second: others.bytes_per_second * ratio,
            p50_us: 10.0 * ratio,
            switch_cpu_us: 5.0 * ratio,
            relayed_share: 1.0,
        };
        CellRounds {
            scene: &SCENES[0],
            load: CellLoad { pattern, io_bytes, depth },
            rounds: vec![paths],
        }
    }

    /// Goal: the worst size decides, sizes outside of a goal's range do not, and what was not
    /// measured has no verdict.
    #[test]
    fn the_worst_size_counts() {
        let cells = [
            cell(Read, 512, 32, 0.85),
            cell(Read, 16 << 10, 32, 1.4),
            cell(Read, 64 << 10, 8, 1.2),
            cell(RandomRead, 4 << 10, 32, 0.5),
            cell(RandomRead, 4 << 10, 1, 1.3),
        ];
        let verdicts = verdicts(&cells);
        let got = |what: &str| {
            let found = verdicts.iter().find(|goal| goal.what == what);
            found.map(|goal| (goal.got.unwrap(), goal.is_met()))
        };
        assert_eq!(got("read: throughput, of tgt and QEMU"), Some((0.85, false)));
        assert_eq!(got("read: throughput from 64 KiB, of the slow path"), Some((1.2, true)));
        assert_eq!(got("read: throughput from 16 KiB, of the byte relay"), Some((1.2, true)));
        assert_eq!(got("read: throughput below 16 KiB, of the byte relay"), Some((0.85, true)));
        assert_eq!(got("read: CPU for a byte, of tgt and QEMU"), Some((1.4, false)));
        assert_eq!(got("rand-read: CPU for a request of 4 KiB, depth 32"), Some((2.5, true)));
        let latency = "rand-read: latency of 4 KiB, depth 1, of the byte relay's";
        assert_eq!(got(latency), Some((1.3, false)));
        assert_eq!(got("write: throughput, of tgt and QEMU"), None);
    }
}
