//! Two builds of Lunar, measured in turns to detect regressions.

use super::cells::{COMPARED, Cell};
use super::clients::TurnTimes;
use super::report::tables;
use super::results::{CellResult, Sample};
use super::rounds::RoundCounts;
use super::servers::Programs;
use super::{EXTRA_ROUNDS_FACTOR, measure_cells};
use crate::bench::parse_seconds;
use anyhow::{Context, Result, ensure};
use lunar_load::Spread;
use lunar_load::report::{Column, Table, TableCell as Field};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::time::Duration;

/// A build is slower if every round shows it, and the median by more than this.
const SLOWER: f64 = 0.95;
/// Minimum number of rounds: this many agree by chance once in sixteen times; fewer prove nothing.
const ROUNDS_MIN: usize = 5;

/// Two builds of `lunar serve` on disks in memory and files in tmpfs, measured in turns: by the
/// initiator that this program is built with, and (both-ends) each by `lunar bench` of its own
/// build. Each round gives a ratio.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  make bench-compare REV=HEAD~1\n  \
    cargo run --release -p lunar-lab -- bench-compare --base /tmp/old/lunar --only rand-read")]
pub struct BenchCompare {
    /// The other build; ours is LUNAR_BIN, or a build of the source
    #[arg(long, value_name = "PROGRAM")]
    base: PathBuf,
    /// Only cells whose key contains this
    #[arg(long, value_name = "PATTERN")]
    only: Option<String>,
    /// Rounds that count
    #[arg(long, default_value_t = 9, value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: u16,
    /// Turns of each build in a round; both builds alternate
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=1000))]
    turns: u16,
    /// Time that each build is measured in a turn
    #[arg(long, default_value_t = 0.2, value_parser = parse_seconds)]
    seconds: f64,
    /// Warm-up of each build before that
    #[arg(long, default_value_t = 0.1, value_parser = parse_seconds)]
    warm_up: f64,
    /// Print one JSON document instead of the tables
    #[arg(long)]
    json: bool,
    /// Fail when ours is slower in any cell: in every round, and by more than 5 %
    #[arg(long)]
    strict: bool,
}

/// Ratios of our build to the base.
struct Row {
    key: String,
    is_void: bool,
    is_disturbed: bool,
    rounds: usize,
    iops: Spread,
    /// Ratio of the target's processor time; less is better.
    target_cpu: Option<Spread>,
    /// Ratio of the 99th percentile of latency; less is better.
    p99: Option<Spread>,
}

impl BenchCompare {
    /// Runs the comparison.
    ///
    /// # Errors
    /// A build does not start, a client fails, or `--strict` and ours is slower.
    pub fn run(&self) -> Result<()> {
        let base = self.base.canonicalize();
        let base = base.with_context(|| format!("--base {}", self.base.display()))?;
        let wanted = |cell: &&Cell| self.only.as_ref().is_none_or(|part| cell.key().contains(part));
        let cells: Vec<&Cell> = COMPARED.iter().filter(wanted).collect();
        let keys: Vec<String> = COMPARED.iter().map(Cell::key).collect();
        ensure!(!cells.is_empty(), "no cell has a matching key; the keys are {}", keys.join(", "));
        let programs = Programs {
            lunar: crate::peers::lunar::release_binary()?,
            directory: PathBuf::from("."),
            base: Some(base),
        };
        let rounds = usize::from(self.rounds);
        let count = RoundCounts {
            wanted: rounds,
            extra: rounds * EXTRA_ROUNDS_FACTOR,
            turns: self.turns.into(),
        };
        let times = TurnTimes {
            warm_up: Duration::from_secs_f64(self.warm_up),
            measured: Duration::from_secs_f64(self.seconds),
        };
        let mut results = Vec::new();
        measure_cells(
            &cells,
            &programs,
            |_| count,
            times,
            |cell, _| {
                if !self.json {
                    print!("{}", tables::cell_text(&cell));
                }
                results.push(cell);
                Ok(())
            },
        )?;
        let rows: Vec<Row> = results.iter().filter_map(Row::of).collect();
        match self.json {
            true => println!("{:#}", document(&results, &rows)),
            false => print!("{}", table(&rows).text()),
        }
        ensure!(!self.strict || !rows.iter().any(Row::is_slower), "this build is slower");
        Ok(())
    }
}

impl Row {
    fn of(cell: &CellResult) -> Option<Self> {
        let [ours, base] = &cell.setups[..] else { return None };
        let ratio = |of: fn(&Sample) -> Option<f64>| {
            cell.figures(|round| {
                let (one, other) = (of(round.setups.get(ours)?)?, of(round.setups.get(base)?)?);
                (other > 0.0).then(|| one / other)
            })
        };
        let iops = ratio(|sample| Some(sample.iops));
        Some(Self {
            key: cell.key.clone(),
            // Without a request in some round there is no ratio, and the cell proves nothing
            // either.
            is_void: cell.is_void || iops.is_none(),
            is_disturbed: cell.is_disturbed(),
            rounds: cell.kept.len(),
            iops: iops.unwrap_or_default(),
            target_cpu: ratio(|sample| sample.target_cpu_us),
            p99: ratio(|sample| sample.p99_us),
        })
    }

    /// True when the rounds can distinguish a difference from chance.
    fn can_tell(&self) -> bool {
        !self.is_void && !self.is_disturbed && self.rounds >= ROUNDS_MIN
    }

    fn is_slower(&self) -> bool {
        self.can_tell() && self.iops.most < 1.0 && self.iops.median < SLOWER
    }

    fn verdict(&self) -> &'static str {
        match self {
            _ if self.is_void => "void: the machine was not idle",
            _ if self.is_disturbed => "void: other processes used the cores",
            _ if self.rounds < ROUNDS_MIN => "too few rounds for a result",
            _ if self.is_slower() => "slower",
            _ if self.iops.least > 1.0 && self.iops.median > 1.0 / SLOWER => "faster",
            _ => "no visible difference",
        }
    }
}

fn table(rows: &[Row]) -> Table {
    let mut table = Table::new([
        Column::text("key", "this build by the base"),
        Column::number("iops_ratio", "IOPS"),
        Column::number("target_cpu_ratio", "CPU of the target"),
        Column::number("p99_ratio", "p99"),
        Column::text("verdict", ""),
    ]);
    let spread = |of: Option<Spread>| of.map_or_else(Field::none, |of| Field::spread(of, 1.0, 2));
    for row in rows {
        table.row([
            Field::text(row.key.clone()),
            Field::spread(row.iops, 1.0, 2),
            spread(row.target_cpu),
            spread(row.p99),
            Field::text(row.verdict()),
        ]);
    }
    table
}

fn document(results: &[CellResult], rows: &[Row]) -> Value {
    json!({ "cells": results, "ratios": table(rows).json() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(ratios: &[f64], is_void: bool) -> Row {
        let iops = Spread::of(ratios.iter().copied());
        let key = "k".to_owned();
        let rounds = ROUNDS_MIN;
        Row { key, is_void, is_disturbed: false, rounds, iops, target_cpu: None, p99: None }
    }

    /// Goal: a difference is reported if all rounds agree and it is not small, and nowhere else.
    #[test]
    fn differences_are_reported() {
        assert_eq!(row(&[0.8, 0.9, 0.99], false).verdict(), "slower");
        assert_eq!(row(&[0.8, 0.9, 1.01], false).verdict(), "no visible difference");
        assert_eq!(row(&[0.97, 0.98, 0.99], false).verdict(), "no visible difference");
        assert_eq!(row(&[1.2, 1.3, 1.01], false).verdict(), "faster");
        let few = Row { rounds: 3, ..row(&[0.8, 0.9, 0.95], false) };
        assert!(few.verdict().starts_with("too few") && !few.is_slower());
        let busy = Row { is_disturbed: true, ..row(&[0.8, 0.9, 0.95], false) };
        assert!(busy.verdict().starts_with("void") && !busy.is_slower());
        let void = row(&[0.8, 0.9, 0.95], true);
        assert!(void.verdict().starts_with("void") && !void.is_slower());
    }
}
