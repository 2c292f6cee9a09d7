//! The table of the libiscsi suite in CONFORMANCE.md: written from a run, compared with a run.

use crate::lunar::Lunar;
use crate::scratch::Scratch;
use crate::suite::{Outcome, Subject, TestResult};
use anyhow::Result;
use std::collections::BTreeMap;
use std::fmt::Write;

/// Tests that no correct target passes cleanly, with the outcome a correct target gets: suite,
/// test, outcome. CONFORMANCE.md says why, for each. Everything else has to pass or be skipped.
pub const FAULTS_OF_THE_TOOL: [(&str, &str, Outcome); 2] = [
    ("SCSI.GetLBAStatus", "UnmapSingle", Outcome::Failed),
    ("iSCSI.iSCSIdatasn", "iSCSIDataSnInvalid", Outcome::Soft),
];

/// The results that are neither passed nor skipped nor a fault of the tool.
pub fn unclean(results: &[TestResult]) -> Vec<&TestResult> {
    let excused = |result: &TestResult| {
        let (suite, test) = (result.suite.as_str(), result.test.as_str());
        FAULTS_OF_THE_TOOL.contains(&(suite, test, result.outcome))
    };
    let bad = |result: &&TestResult| result.outcome > Outcome::Skipped && !excused(result);
    results.iter().filter(bad).collect()
}

/// The profile of the committed table: one thin LUN, 512-byte blocks on 4096-byte ones.
pub struct ThinDisk {
    scratch: Scratch,
    runs: u32,
    lunar: Option<Lunar>,
}

impl ThinDisk {
    const TARGET: &str = "iqn.2026-11.org.lunarsan.test:suite";

    /// Starts `lunar serve` on a new sparse file.
    ///
    /// # Errors
    /// It does not start.
    pub fn start() -> Result<Self> {
        let mut disk = Self { scratch: Scratch::new("suite")?, runs: 0, lunar: None };
        disk.reset()?;
        Ok(disk)
    }
}

impl Subject for ThinDisk {
    fn url(&self) -> String {
        self.lunar.as_ref().map_or_else(String::new, |lunar| lunar.url(Self::TARGET, 0))
    }

    fn reset(&mut self) -> Result<()> {
        self.lunar = None;
        self.runs += 1;
        let file = self.scratch.path(&format!("disk-{}.img", self.runs));
        let options = ["--size", "1G", "--physical-block-size", "4096", "--name", Self::TARGET];
        self.lunar = Some(Lunar::serve(&[&[file.as_str()], &options[..]].concat())?);
        Ok(())
    }
}

/// How many tests ended how.
pub fn totals(results: &[TestResult]) -> BTreeMap<Outcome, usize> {
    let mut totals = BTreeMap::new();
    for result in results {
        *totals.entry(result.outcome).or_default() += 1;
    }
    totals
}

/// The table, in Markdown. What did not pass is named, with the tool's own line.
pub fn table(results: &[TestResult]) -> String {
    let mut text = String::from("| suite |");
    for (_, name) in Outcome::NAMES {
        write!(text, " {name} |").ok();
    }
    text += " what did not pass, and the tool's line |\n|---|";
    text += &"--:|".repeat(Outcome::NAMES.len());
    text += "---|\n";
    let mut left = results;
    while let Some(first) = left.first() {
        let end = left.iter().position(|one| one.suite != first.suite).unwrap_or(left.len());
        let (suite, rest) = left.split_at(end);
        row(&mut text, &first.suite, suite, &exceptions(suite));
        left = rest;
    }
    row(&mut text, "**all**", results, "");
    text
}

fn row(text: &mut String, name: &str, results: &[TestResult], exceptions: &str) {
    write!(text, "| {name} |").ok();
    let totals = totals(results);
    for (outcome, _) in Outcome::NAMES {
        write!(text, " {} |", totals.get(&outcome).copied().unwrap_or_default()).ok();
    }
    writeln!(text, " {exceptions} |").ok();
}

/// `skip: A, B — why<br>fail: C — why`.
fn exceptions(results: &[TestResult]) -> String {
    let mut groups: Vec<(Outcome, &str, Vec<&str>)> = Vec::new();
    for result in results.iter().filter(|result| result.outcome != Outcome::Passed) {
        match groups.iter_mut().find(|group| (group.0, group.1) == (result.outcome, &result.note)) {
            Some(group) => group.2.push(&result.test),
            None => groups.push((result.outcome, &result.note, vec![&result.test])),
        }
    }
    let lines = groups.iter().map(|(outcome, note, tests)| {
        format!("{outcome}: {} — {}", tests.join(", "), note.replace('|', "/"))
    });
    lines.collect::<Vec<_>>().join("<br>")
}

/// What a table says of each test that did not pass: (suite, test) → outcome. Suites with
/// nothing to name are there with an empty test name.
fn parse_table(text: &str) -> BTreeMap<(String, String), Outcome> {
    let mut expected = BTreeMap::new();
    for line in text.lines().filter(|line| line.starts_with("| ") && line.contains("SCSI.")) {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let Some(suite) = cells.get(1) else { continue };
        expected.insert(((*suite).to_owned(), String::new()), Outcome::Passed);
        let exceptions = cells.get(Outcome::NAMES.len() + 2).copied().unwrap_or_default();
        for group in exceptions.split("<br>") {
            let Some((outcome, rest)) = group.split_once(": ") else { continue };
            let known = Outcome::NAMES.iter().find(|(_, name)| *name == outcome);
            let Some((outcome, _)) = known else { continue };
            for test in rest.split(" — ").next().unwrap_or_default().split(", ") {
                expected.insert(((*suite).to_owned(), test.to_owned()), *outcome);
            }
        }
    }
    expected
}

/// Each test that is worse than the committed table says, in words.
pub fn worse_than(committed: &str, results: &[TestResult]) -> Vec<String> {
    let expected = parse_table(committed);
    let mut worse = Vec::new();
    for result in results {
        let (suite, test) = (result.suite.clone(), result.test.clone());
        let known = expected.contains_key(&(suite.clone(), String::new()));
        let before = match expected.get(&(suite, test)) {
            Some(outcome) => *outcome,
            None if known => Outcome::Passed,
            None => continue,
        };
        if result.outcome > before {
            let TestResult { suite, test, outcome, note } = result;
            worse.push(format!("{suite}.{test}: was {before}, now {outcome}: {note}"));
        }
    }
    worse
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(test: &str, outcome: Outcome, note: &str) -> TestResult {
        let (suite, test, note) = ("SCSI.A".into(), test.into(), note.into());
        TestResult { suite, test, outcome, note }
    }

    /// Goal: a run compared with its own table is no worse; each test that falls is named.
    #[test]
    fn a_run_is_compared_test_by_test() -> Result<()> {
        let mut results = vec![
            result("One", Outcome::Passed, ""),
            result("Two", Outcome::Skipped, "a | b — c"),
            result("Three-X", Outcome::Skipped, "a | b — c"),
            result("Four", Outcome::Failed, "x: y"),
        ];
        let committed = &table(&results);
        assert_eq!(worse_than(committed, &results), Vec::<String>::new());
        results[3].outcome = Outcome::Passed;
        assert_eq!(worse_than(committed, &results), Vec::<String>::new());
        results[0] = result("One", Outcome::Skipped, "why");
        results[2].outcome = Outcome::Soft;
        let expected = [
            "SCSI.A.One: was pass, now skip: why",
            "SCSI.A.Three-X: was skip, now soft: a | b — c",
        ];
        assert_eq!(worse_than(committed, &results), expected);
        Ok(())
    }
}
