//! Report of both clients, as text and as JSON.

use super::{DISK_BYTES, Libiscsi};
use crate::bench::goal::{Bound, GoalVerdict};
use crate::peers::load_programs::Sample;
use lunar_load::Spread;
use lunar_load::report::{Column, Table, TableCell, size_text, spread_json};
use serde_json::{Value, json};

/// Minimum ratio to the IOPS of libiscsi at 4 KiB and depth 32.
const IOPS_GOAL: f64 = 1.5;
/// Maximum ratio to its processor time for each request.
const CPU_GOAL: f64 = 0.7;
const GOAL_CASE: (u64, u16) = (4096, 32);

/// Figures of one client over all rounds.
struct Figures {
    iops: Spread,
    cpu_micros: Spread,
    latency_micros: [Spread; 3],
}

/// One case.
pub struct Row {
    disk: String,
    pattern: String,
    io_bytes: u64,
    depth: u16,
    lunar: Figures,
    libiscsi: Figures,
    /// Ratio of our IOPS to theirs, in each round.
    iops_ratio: Spread,
    cpu_ratio: Spread,
}

impl Figures {
    fn of(samples: &[Sample]) -> Self {
        let spread = |figure: &dyn Fn(&Sample) -> f64| Spread::of(samples.iter().map(figure));
        Self {
            iops: spread(&|sample| sample.iops),
            cpu_micros: spread(&|sample| sample.cpu_micros),
            latency_micros: [0, 1, 2].map(|at| spread(&|sample| sample.latency_micros[at])),
        }
    }

    fn document(&self) -> Value {
        let [p50, p99, p99_9] = self.latency_micros.map(spread_json);
        json!({
            "iops": spread_json(self.iops),
            "client_cpu_us_per_request": spread_json(self.cpu_micros),
            "latency_us": { "p50": p50, "p99": p99, "p99_9": p99_9 },
        })
    }
}

impl Row {
    /// Creates a row from the samples of these rounds: ours and libiscsi's.
    pub fn new(
        disk: &str,
        pattern: &str,
        io_bytes: u64,
        depth: u16,
        rounds: &[(Sample, Sample)],
    ) -> Self {
        let (lunar, libiscsi): (Vec<_>, Vec<_>) = rounds.iter().copied().unzip();
        let ratio = |figure: fn(&Sample) -> f64| {
            Spread::of(rounds.iter().map(|(ours, theirs)| figure(ours) / figure(theirs)))
        };
        Self {
            disk: disk.to_owned(),
            pattern: pattern.to_owned(),
            io_bytes,
            depth,
            lunar: Figures::of(&lunar),
            libiscsi: Figures::of(&libiscsi),
            iops_ratio: ratio(|sample| sample.iops),
            cpu_ratio: ratio(|sample| sample.cpu_micros),
        }
    }

    /// Describes the case, as `mem, rand-read, 4Ki, depth 32`.
    fn case(&self) -> String {
        let size = size_text(self.io_bytes);
        format!("{}, {}, {size}, depth {}", self.disk, self.pattern, self.depth)
    }

    /// Returns one line that reports the case during a run.
    pub fn line(&self) -> String {
        format!("{}: IOPS of lunar by libiscsi {}", self.case(), self.iops_ratio.text(2))
    }

    /// Returns the goals that this case decides.
    pub fn goals(&self) -> Vec<GoalVerdict> {
        if (self.io_bytes, self.depth) != GOAL_CASE || !self.pattern.starts_with("rand-") {
            return Vec::new();
        }
        let goal = |what, ratio, bound| {
            GoalVerdict::of_median("libiscsi", what, self.case(), ratio, "", bound)
        };
        vec![
            goal("IOPS of lunar by libiscsi", self.iops_ratio, Bound::AtLeast(IOPS_GOAL)),
            goal("CPU of lunar by libiscsi", self.cpu_ratio, Bound::AtMost(CPU_GOAL)),
        ]
    }

    fn cells(&self) -> [TableCell; 14] {
        let Figures { iops, cpu_micros, latency_micros: [p50, p99, _] } = &self.lunar;
        let theirs = &self.libiscsi;
        let median = |spread: Spread, decimals| TableCell::median(spread, 1.0, decimals);
        [
            TableCell::text(self.disk.clone()),
            TableCell::text(self.pattern.clone()),
            TableCell::size(self.io_bytes),
            TableCell::count(self.depth.into()),
            median(*iops, 0),
            median(theirs.iops, 0),
            TableCell::spread(self.iops_ratio, 1.0, 2),
            median(*cpu_micros, 1),
            median(theirs.cpu_micros, 1),
            TableCell::spread(self.cpu_ratio, 1.0, 2),
            median(*p50, 0),
            median(theirs.latency_micros[0], 0),
            median(*p99, 0),
            median(theirs.latency_micros[1], 0),
        ]
    }

    fn document(&self) -> Value {
        json!({
            "disk": self.disk,
            "pattern": self.pattern,
            "io_bytes": self.io_bytes,
            "depth": self.depth,
            "lunar": self.lunar.document(),
            "libiscsi": self.libiscsi.document(),
            "iops_ratio": spread_json(self.iops_ratio),
            "cpu_ratio": spread_json(self.cpu_ratio),
        })
    }
}

/// Returns the table: medians of each client, and ratios of the rounds.
pub fn table(rows: &[Row]) -> Table {
    let mut table = Table::new([
        Column::text("disk", "disk"),
        Column::text("pattern", "pattern"),
        Column::number("io_bytes", "size"),
        Column::number("depth", "depth"),
        Column::number("iops", "IOPS"),
        Column::number("libiscsi_iops", "of libiscsi"),
        Column::number("iops_ratio", "ratio"),
        Column::number("cpu_us", "CPU us/request"),
        Column::number("libiscsi_cpu_us", "of libiscsi"),
        Column::number("cpu_ratio", "ratio"),
        Column::number("p50_us", "p50 us"),
        Column::number("libiscsi_p50_us", "of libiscsi"),
        Column::number("p99_us", "p99 us"),
        Column::number("libiscsi_p99_us", "of libiscsi"),
    ]);
    table.title = "Medians, and ratios of the rounds: median (least to most)".to_owned();
    rows.iter().for_each(|row| table.row(row.cells()));
    table
}

/// Returns everything as JSON.
pub fn document(asked: &Libiscsi, environment: &str, rows: &[Row], goals: &[GoalVerdict]) -> Value {
    json!({
        "target": asked.target,
        "surroundings": environment,
        "pinned": asked.pin,
        "threads": asked.threads,
        "rounds": asked.rounds,
        "seconds": asked.seconds,
        "warm_up_seconds": asked.warm_up,
        "range_bytes": DISK_BYTES,
        "results": rows.iter().map(Row::document).collect::<Vec<_>>(),
        "goals": goals,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(iops: f64, cpu_micros: f64) -> Sample {
        Sample { iops, cpu_micros, latency_micros: [1.0; 3] }
    }

    /// Goal: ratios are those of the rounds, not of the medians, and goals are judged by them, in
    /// the cases that have goals and nowhere else.
    #[test]
    fn ratios_and_goals() {
        let rounds = [
            (sample(150.0, 7.0), sample(100.0, 10.0)),
            (sample(600.0, 8.0), sample(200.0, 10.0)),
            (sample(120.0, 9.0), sample(100.0, 10.0)),
        ];
        let row = Row::new("mem", "rand-read", 4096, 32, &rounds);
        assert_eq!(row.iops_ratio, Spread { median: 1.5, least: 1.2, most: 3.0 });
        assert_eq!(row.cpu_ratio, Spread { median: 0.8, least: 0.7, most: 0.9 });
        let met: Vec<_> = row.goals().iter().map(GoalVerdict::is_met).collect();
        assert_eq!(met, [true, false]);
        let text = table(&[row]).text();
        let figures = ["mem", "rand-read", "4Ki", "32", "150", "100", "1.50", "8.0", "10.0"];
        assert!(figures.iter().all(|figure| text.contains(figure)), "{text}");
        assert!(Row::new("mem", "rand-read", 4096, 8, &rounds).goals().is_empty());
        assert!(Row::new("mem", "read", 4096, 32, &rounds).goals().is_empty());
    }
}
