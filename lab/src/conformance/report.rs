//! The libiscsi part of CONFORMANCE.md: written from a run of all profiles, and compared with one.

use super::faults::excuse;
use super::profiles::{ProfileRun, Suites};
use super::suite::{TestOutcome, TestResult};
use crate::report::markdown;
use anyhow::{Context, Result};
use lunar_load::report::{Column, Table, TableCell};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// A test: its suite and its name.
type Test = (String, String);

fn key(result: &TestResult) -> Test {
    (result.suite.clone(), result.test.clone())
}

/// Returns the results that are neither passed nor skipped nor a fault of the tool.
pub fn unclean(runs: &[ProfileRun]) -> Vec<String> {
    let mut bad = Vec::new();
    for ProfileRun { profile, results } in runs {
        for result in results.iter().filter(|result| result.outcome > TestOutcome::Skipped) {
            if excuse(profile.name, result).is_none() {
                let TestResult { suite, test, outcome, note } = result;
                bad.push(format!("{}: {suite}.{test}: {outcome}: {note}", profile.name));
            }
        }
    }
    bad
}

/// Returns the profile that covers each test, if one does, in the order in which the tool names the
/// tests. A profile covers a test if it passed there, and neither `[SKIPPED]` nor `[FAILED]` was
/// printed.
pub fn union(runs: &[ProfileRun]) -> Vec<(Test, Option<&'static str>)> {
    let mut order: Vec<Test> = Vec::new();
    let mut covered = BTreeMap::new();
    for ProfileRun { profile, results } in runs {
        for result in results {
            let key = key(result);
            if !covered.contains_key(&key) {
                order.push(key.clone());
            }
            let by = covered.entry(key).or_insert(None);
            if by.is_none() && result.outcome == TestOutcome::Passed {
                *by = Some(profile.name);
            }
        }
    }
    let by = |test: &Test| covered.get(test).copied().flatten();
    order.into_iter().map(|test| (test.clone(), by(&test))).collect()
}

/// Returns the whole part in Markdown: the coverage, the profiles, the tests that did not pass on
/// each.
pub fn report(runs: &[ProfileRun]) -> String {
    [union_table(runs), profile_table(runs), exceptions_table(runs)].join("\n")
}

fn union_table(runs: &[ProfileRun]) -> String {
    let mut all = Table::new([
        Column::text("suite", "suite"),
        Column::number("tests", "tests"),
        Column::number("covered", "covered"),
        Column::text("profiles", "by which profile"),
        Column::text("lacking", "not covered, and the tool's line"),
    ]);
    let union = union(runs);
    let mut left = &union[..];
    while let Some(((name, _), _)) = left.first() {
        let end = left.iter().position(|((suite, _), _)| suite != name).unwrap_or(left.len());
        let (suite, rest) = left.split_at(end);
        all.row(union_row(name, suite, runs));
        left = rest;
    }
    let covered = union.iter().filter(|(_, by)| by.is_some()).count();
    let [tests, covered] = [union.len(), covered].map(|count| TableCell::count(count as u64));
    all.row([TableCell::text("**all**"), tests, covered, TableCell::text(""), TableCell::text("")]);
    markdown::table(&all)
}

fn union_row(name: &str, tests: &[(Test, Option<&str>)], runs: &[ProfileRun]) -> [TableCell; 5] {
    let mut by: Vec<(&str, usize)> = Vec::new();
    for profile in tests.iter().filter_map(|(_, by)| *by) {
        match by.iter_mut().find(|(name, _)| *name == profile) {
            Some((_, count)) => *count += 1,
            None => by.push((profile, 1)),
        }
    }
    let covered: usize = by.iter().map(|(_, count)| count).sum();
    let by: Vec<String> = by.iter().map(|(profile, count)| format!("{profile} {count}")).collect();
    let lacking = tests.iter().filter(|(_, by)| by.is_none());
    let lacking: Vec<String> =
        lacking.map(|(test, _)| format!("{}: {}", test.1, best_line(test, runs))).collect();
    [
        TableCell::text(name),
        TableCell::count(tests.len() as u64),
        TableCell::count(covered as u64),
        TableCell::text(by.join(", ")),
        TableCell::text(lacking.join("<br>")),
    ]
}

/// Returns the tool's line from the profile with the best result: one that ran the test, rather
/// than skipped it; of equal profiles the last, which runs fewer tests.
fn best_line(test: &Test, runs: &[ProfileRun]) -> String {
    let all = runs.iter().flat_map(|run| run.results.iter().map(move |one| (run, one)));
    let of_test = all.filter(|(_, result)| key(result) == *test);
    let ran = |result: &TestResult| result.outcome != TestOutcome::Skipped;
    let best = of_test.max_by_key(|(_, result)| (ran(result), Reverse(result.outcome)));
    best.map_or_else(String::new, |(run, result)| {
        format!("{} on {} — {}", result.outcome, run.profile.name, one_cell(&result.note))
    })
}

fn one_cell(note: &str) -> String {
    note.replace('|', "/")
}

fn profile_table(runs: &[ProfileRun]) -> String {
    let texts = ["profile", "`lunar`", "tool", "suites"].map(|name| Column::text(name, name));
    let outcomes = TestOutcome::NAMES.map(|(_, name)| Column::number(name, name));
    let mut all = Table::new(texts.into_iter().chain(outcomes));
    for ProfileRun { profile, results } in runs {
        let suites = match profile.suites {
            Suites::All => "all".into(),
            Suites::Only(names) => names.join(", "),
        };
        let line = format!("`{}`", profile.command_line());
        let texts = [profile.name.to_owned(), line, profile.tool.join(" "), suites];
        let totals = totals(results);
        let count = |outcome| totals.get(&outcome).copied().unwrap_or_default() as u64;
        let counts = TestOutcome::NAMES.map(|(outcome, _)| TableCell::count(count(outcome)));
        all.row(texts.map(TableCell::text).into_iter().chain(counts));
    }
    markdown::table(&all)
}

/// Counts the tests of each outcome.
pub fn totals(results: &[TestResult]) -> BTreeMap<TestOutcome, usize> {
    let mut totals = BTreeMap::new();
    for result in results {
        *totals.entry(result.outcome).or_default() += 1;
    }
    totals
}

fn exceptions_table(runs: &[ProfileRun]) -> String {
    let columns = ["profile", "suite", "outcome", "tests", "the tool's line"];
    let mut all = Table::new(columns.map(|name| Column::text(name, name)));
    for ProfileRun { profile, results } in runs {
        let mut groups: Vec<(&TestResult, Vec<&str>)> = Vec::new();
        for result in results.iter().filter(|result| result.outcome != TestOutcome::Passed) {
            let same = |of: &TestResult| {
                (&of.suite, of.outcome, &of.note) == (&result.suite, result.outcome, &result.note)
            };
            match groups.iter_mut().find(|(of, _)| same(of)) {
                Some((_, tests)) => tests.push(&result.test),
                None => groups.push((result, vec![&result.test])),
            }
        }
        for (TestResult { suite, outcome, note, .. }, tests) in groups {
            let (name, outcome) = (profile.name.to_owned(), outcome.to_string());
            let cells = [name, suite.clone(), outcome, tests.join(", "), one_cell(note)];
            all.row(cells.map(TableCell::text));
        }
    }
    markdown::table(&all)
}

/// Results in a committed report.
struct Committed {
    profiles: BTreeSet<String>,
    /// Every suite of the union, with the tests that no profile covers.
    uncovered: BTreeMap<String, BTreeSet<String>>,
    /// Outcome of each (profile, suite, test) that did not pass.
    exceptions: BTreeMap<(String, String, String), TestOutcome>,
}

impl Committed {
    fn parse(text: &str) -> Result<Self> {
        let mut parts = text.split("\n\n");
        let mut rows = || -> Result<Vec<Vec<String>>> {
            let table = parts.next().context("CONFORMANCE.md needs three tables")?;
            let cells = |line: &str| line.split('|').map(|cell| cell.trim().to_owned()).collect();
            Ok(table.lines().skip(2).map(cells).collect())
        };
        let mut uncovered = BTreeMap::new();
        for row in rows()? {
            let [_, suite, .., lacking, _] = &row[..] else { continue };
            let tests = lacking.split("<br>").filter_map(|test| test.split_once(": "));
            uncovered.insert(suite.clone(), tests.map(|(test, _)| test.to_owned()).collect());
        }
        let profiles = rows()?.iter().filter_map(|row| row.get(1).cloned()).collect();
        let mut exceptions = BTreeMap::new();
        for row in rows()? {
            let [_, profile, suite, outcome, tests, ..] = &row[..] else { continue };
            let known = TestOutcome::NAMES.iter().find(|(_, name)| name == outcome);
            let (outcome, _) = known.with_context(|| format!("no outcome {outcome}"))?;
            for test in tests.split(", ") {
                let key = (profile.clone(), suite.clone(), test.to_owned());
                exceptions.insert(key, *outcome);
            }
        }
        Ok(Self { profiles, uncovered, exceptions })
    }
}

/// Describes each test with a worse result than in the committed report: on its profile, or because
/// no profile covers it any more.
///
/// # Errors
/// The committed report cannot be read.
pub fn regressions(committed: &str, runs: &[ProfileRun]) -> Result<Vec<String>> {
    let committed = Committed::parse(committed)?;
    let mut worse = Vec::new();
    for ((suite, test), by) in union(runs) {
        let before = committed.uncovered.get(&suite);
        if by.is_none() && before.is_some_and(|tests| !tests.contains(&test)) {
            worse.push(format!("{suite}.{test}: no longer covered by any profile"));
        }
    }
    for ProfileRun { profile, results } in runs {
        for TestResult { suite, test, outcome, note } in results {
            let key = (profile.name.to_owned(), suite.clone(), test.clone());
            let before = committed.exceptions.get(&key).copied().unwrap_or(TestOutcome::Passed);
            if committed.profiles.contains(profile.name) && *outcome > before {
                let name = profile.name;
                worse.push(format!("{name}: {suite}.{test}: was {before}, now {outcome}: {note}"));
            }
        }
    }
    Ok(worse)
}

#[cfg(test)]
mod tests;
