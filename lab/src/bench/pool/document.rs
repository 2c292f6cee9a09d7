//! Renders a run for a terminal, and as docs/pool-performance.md.

use super::PoolBench;
use crate::bench::goal::GoalVerdict;
use crate::report::markdown::table;
use lunar_load::report::{Column, Table, TableCell};
use std::path::Path;
use std::process::Command;

/// Text that does not come from a run.
const TEMPLATE: &str = include_str!("../../../pool-performance.template.md");

/// Returns the machine, the versions, the rounds.
pub fn facts(bench: &PoolBench, program: &Path) -> Vec<(String, String)> {
    let mut facts = lunar_load::report::machine().facts();
    let mut add = |name: &str, value: String| facts.push((name.to_owned(), value));
    add("measured on", first_line(Path::new("date"), &["-u", "+%F"]));
    let described = ["describe", "--always", "--dirty", "--abbrev=10"];
    add("source", first_line(Path::new("git"), &described));
    add("lunar", first_line(program, &["--version"]));
    add("rounds", format!("{} of {} s for each subject", bench.rounds, bench.seconds));
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    add("load average when it began", load.split_whitespace().next().unwrap_or("-").to_owned());
    facts
}

/// Returns the first line that a program prints; `-`: the program is not installed.
fn first_line(program: &Path, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    let printed = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    let line = printed.ok().and_then(|text| Some(text.lines().next()?.trim().to_owned()));
    line.unwrap_or_else(|| "-".to_owned())
}

/// Returns the goals as a table.
pub fn goals(goals: &[GoalVerdict]) -> Table {
    let mut all = Table::new([
        Column::text("outcome", "outcome"),
        Column::text("part", "part"),
        Column::text("goal", "what"),
        Column::text("wanted", "wanted"),
        Column::number("got", "median of the rounds"),
        Column::text("from", "medians of the subjects"),
    ]);
    for goal in goals {
        all.row([
            TableCell::text(goal.outcome.text()),
            TableCell::text(goal.part.clone()),
            TableCell::text(goal.what.clone()),
            TableCell::text(goal.wanted_text()),
            TableCell::text(goal.got_text()),
            TableCell::text(goal.from.clone()),
        ]);
    }
    all
}

/// Returns the document.
pub fn chapter(facts: &[(String, String)], verdicts: &[GoalVerdict]) -> String {
    let mut machine = Table::new([Column::text("name", ""), Column::text("value", "")]);
    for (name, value) in facts {
        machine.row([name, value].map(|text| TableCell::text(text.clone())));
    }
    let met = verdicts.iter().filter(|goal| goal.is_met()).count();
    let counts = format!("{met} of {} goals are met.", verdicts.len());
    let parts =
        [("machine", table(&machine)), ("goals", table(&goals(verdicts))), ("counts", counts)];
    parts.iter().fold(TEMPLATE.to_owned(), |text, (name, part)| {
        text.replace(&format!("{{{{{name}}}}}"), part.trim_end())
    })
}
