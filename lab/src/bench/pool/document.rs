//! Renders a run for a terminal, and as docs/pool-performance.md.

use super::PoolBench;
use crate::bench::facts::facts_of_run;
use crate::bench::goal::{GoalVerdict, goals_table};
use crate::report::markdown::table;
use lunar_load::report::{Column, Table, TableCell};
use std::path::Path;

/// Text that does not come from a run.
const TEMPLATE: &str = include_str!("../../../pool-performance.template.md");

/// Returns the machine, the versions, the rounds.
pub fn facts(bench: &PoolBench, program: &Path) -> Vec<(String, String)> {
    let rounds = format!("{} of {} s for each subject", bench.rounds, bench.seconds);
    facts_of_run(program, rounds)
}

/// Returns the document.
pub fn chapter(facts: &[(String, String)], verdicts: &[GoalVerdict]) -> String {
    let mut machine = Table::new([Column::text("name", ""), Column::text("value", "")]);
    for (name, value) in facts {
        machine.row([name, value].map(|text| TableCell::text(text.clone())));
    }
    let met = verdicts.iter().filter(|goal| goal.is_met()).count();
    let counts = format!("{met} of {} goals are met.", verdicts.len());
    let parts = [
        ("machine", table(&machine)),
        ("goals", table(&goals_table(verdicts))),
        ("counts", counts),
    ];
    parts.iter().fold(TEMPLATE.to_owned(), |text, (name, part)| {
        text.replace(&format!("{{{{{name}}}}}"), part.trim_end())
    })
}
