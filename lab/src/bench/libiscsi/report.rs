//! Report of both clients, as text and as JSON.

use super::{DISK_BYTES, Libiscsi, Sample};
use lunar_control::units::size_text;
use lunar_load::Spread;
use lunar_load::report::spread_json;
use serde_json::{Value, json};

/// Least ratio to the IOPS of libiscsi at 4 KiB and depth 32.
const IOPS_GOAL: f64 = 1.5;
/// Greatest ratio to its processor time for each request.
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

/// A goal and its result.
pub struct Goal {
    what: String,
    wanted: f64,
    got: f64,
    pub met: bool,
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

    /// Returns one line of the table.
    pub fn line(&self) -> String {
        let size = size_text(self.io_bytes).unwrap_or_else(|| self.io_bytes.to_string());
        let both = |of: fn(&Figures) -> f64, digits: usize| {
            let (ours, theirs) = (of(&self.lunar), of(&self.libiscsi));
            format!("{ours:.digits$} / {theirs:.digits$}")
        };
        format!(
            "{:<5} {:<10} {:>6} {:>5}  {:>15} {:<19}  {:>13} {:<19}  {:>13} {:>13}",
            self.disk,
            self.pattern,
            size,
            self.depth,
            both(|of| of.iops.median, 0),
            self.iops_ratio.text(2),
            both(|of| of.cpu_micros.median, 1),
            self.cpu_ratio.text(2),
            both(|of| of.latency_micros[0].median, 0),
            both(|of| of.latency_micros[1].median, 0),
        )
    }

    /// Returns the goals that this case decides.
    pub fn goals(&self) -> Vec<Goal> {
        if (self.io_bytes, self.depth) != GOAL_CASE || !self.pattern.starts_with("rand-") {
            return Vec::new();
        }
        let (iops, cpu) = (self.iops_ratio.median, self.cpu_ratio.median);
        let of = |what: &str| format!("{what}, {}, {}, 4 KiB, depth 32", self.disk, self.pattern);
        vec![
            Goal { what: of("IOPS"), wanted: IOPS_GOAL, got: iops, met: iops >= IOPS_GOAL },
            Goal { what: of("CPU"), wanted: CPU_GOAL, got: cpu, met: cpu <= CPU_GOAL },
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

impl Goal {
    /// Returns one line of text.
    pub fn line(&self) -> String {
        let met = if self.met { "met" } else { "missed" };
        let bound = if self.what.starts_with("IOPS") { "at least" } else { "at most" };
        format!("{met}: {}: {:.2}, goal {bound} {:.2}", self.what, self.got, self.wanted)
    }
}

/// Returns the head of the table.
pub fn head() -> String {
    format!(
        "Each pair: lunar / libiscsi, medians. Ratios: median of the rounds (least to most).\n\
         {:<5} {:<10} {:>6} {:>5}  {:>15} {:<19}  {:>13} {:<19}  {:>13} {:>13}",
        "disk",
        "pattern",
        "size",
        "depth",
        "IOPS",
        "ratio",
        "CPU us/req",
        "ratio",
        "p50 us",
        "p99 us"
    )
}

/// Returns everything as JSON.
pub fn document(asked: &Libiscsi, surroundings: &str, rows: &[Row], goals: &[Goal]) -> Value {
    let goals = goals.iter().map(|goal| {
        json!({ "what": goal.what, "wanted": goal.wanted, "got": goal.got, "met": goal.met })
    });
    json!({
        "target": asked.target,
        "surroundings": surroundings,
        "pinned": asked.pin,
        "threads": asked.threads,
        "rounds": asked.rounds,
        "seconds": asked.seconds,
        "warm_up_seconds": asked.warm_up,
        "range_bytes": DISK_BYTES,
        "results": rows.iter().map(Row::document).collect::<Vec<_>>(),
        "goals": goals.collect::<Vec<_>>(),
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
        let met: Vec<_> = row.goals().iter().map(|goal| goal.met).collect();
        assert_eq!(met, [true, false]);
        assert!(Row::new("mem", "rand-read", 4096, 8, &rounds).goals().is_empty());
        assert!(Row::new("mem", "read", 4096, 32, &rounds).goals().is_empty());
    }
}
