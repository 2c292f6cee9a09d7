//! Runs the conformance suite of libiscsi 1.19 (`iscsi-test-cu`) and parses its output.
//!
//! Each suite runs in a process of its own, so that a crash or a hang costs one suite only. The
//! tool counts a skipped test as passed, and a test may print `[FAILED]` and still count as passed:
//! this module detects both.

use crate::system::process::{End, Finished, run, run_checked};
use anyhow::{Context, Result, bail, ensure};
use std::fmt;
use std::time::Duration;

/// Maximum time of one suite; the slowest good one takes about 10 s.
const SUITE_TIME_MAX: Duration = Duration::from_secs(600);
const LIST_TIME_MAX: Duration = Duration::from_secs(60);

/// Outcome of a test, from best to worst.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum TestOutcome {
    /// Passed, without another message.
    Passed,
    /// The tool found nothing to test and counted it as passed.
    Skipped,
    /// `[FAILED]` was printed, yet the tool counted the test as passed.
    Soft,
    /// An assertion failed.
    Failed,
    /// The suite's time was over during this test.
    Hung,
    /// The tool died in this test.
    Crashed,
    /// The suite ended before this test.
    NotReached,
}

impl TestOutcome {
    /// All outcomes, from best to worst, with their names in tables.
    pub const NAMES: [(Self, &str); 7] = [
        (Self::Passed, "pass"),
        (Self::Skipped, "skip"),
        (Self::Soft, "soft"),
        (Self::Failed, "fail"),
        (Self::Hung, "hang"),
        (Self::Crashed, "crash"),
        (Self::NotReached, "not reached"),
    ];
}

impl fmt::Display for TestOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Self::NAMES.iter().find(|(outcome, _)| outcome == self);
        f.write_str(name.map_or("?", |(_, name)| name))
    }
}

/// Result of one test.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct TestResult {
    /// Name of the suite: `SCSI.Read10`.
    pub suite: String,
    /// Name of the test: `Simple`.
    pub test: String,
    /// Outcome.
    pub outcome: TestOutcome,
    /// Line of the tool with the reason why the test did not pass; empty if it did.
    pub note: String,
}

/// A suite and its tests, as `iscsi-test-cu --list` names them.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Suite {
    /// Name of the suite: `SCSI.Read10`.
    pub name: String,
    /// Names of its tests: `Simple`, `BeyondEol` …
    pub tests: Vec<String>,
}

/// Returns the suites of the families SCSI and iSCSI: every test once.
///
/// # Errors
/// The tool is not installed.
pub fn suites() -> Result<Vec<Suite>> {
    let listed = run_checked("iscsi-test-cu", &["--list"], LIST_TIME_MAX)?;
    let suites = parse_list(&listed);
    ensure!(!suites.is_empty(), "iscsi-test-cu --list prints no suites:\n{listed}");
    Ok(suites)
}

fn parse_list(listed: &str) -> Vec<Suite> {
    let mut suites: Vec<Suite> = Vec::new();
    for line in listed.lines() {
        let parts: Vec<&str> = line.trim().splitn(3, '.').collect();
        match parts[..] {
            ["SCSI" | "iSCSI", _] => {
                suites.push(Suite { name: line.trim().to_owned(), tests: Vec::new() });
            }
            ["SCSI" | "iSCSI", _, test] => {
                if let Some(suite) = suites.last_mut() {
                    suite.tests.push(test.to_owned());
                }
            }
            _ => {}
        }
    }
    suites
}

/// Runs one suite against a LUN, reached by one URL or by two; its data is lost. `options` are
/// those of the tool, besides `--dataloss`.
///
/// # Errors
/// The tool cannot be started, or its output cannot be parsed.
pub fn run_suite(suite: &Suite, urls: &[String], options: &[&str]) -> Result<Vec<TestResult>> {
    // Unbuffered, so that a crash or a kill does not lose the name of its test. Some tests report
    // that they skip only if every command is shown.
    let tool = ["-o0", "iscsi-test-cu", "--dataloss", "--verbose", "--Verbose-scsi", "--test"];
    let mut arguments = [&tool[..], &[suite.name.as_str()], options].concat();
    arguments.extend(urls.iter().map(String::as_str));
    let finished = run("stdbuf", &arguments, SUITE_TIME_MAX)?;
    parse_results(suite, &finished)
        .with_context(|| format!("{}:\n{}", suite.name, finished.outputs()))
}

fn parse_results(suite: &Suite, finished: &Finished) -> Result<Vec<TestResult>> {
    let ended = match (finished.end, finished.signal()) {
        (End::TimedOut, _) => Some((TestOutcome::Hung, format!("killed after {SUITE_TIME_MAX:?}"))),
        (_, Some(signal)) => {
            Some((TestOutcome::Crashed, format!("the tool was killed by signal {signal}")))
        }
        _ => None,
    };
    let mut outputs = parse_output(&finished.stdout);
    if let Some((outcome, note)) = &ended {
        if let Some(last) = outputs.last_mut().filter(|last| last.verdict.is_none()) {
            last.ended = Some((*outcome, note.clone()));
        }
    } else if !finished.stdout.contains("Run Summary:") {
        // The suite ends early when it cannot log in.
        ensure!(outputs.is_empty(), "no summary");
    } else {
        check_against_summary(&finished.stdout, &outputs)?;
    }
    let why = ended.map_or_else(|| first_line(&finished.stderr), |(_, note)| note);
    let mut results = Vec::new();
    for test in &suite.tests {
        let (outcome, note) = match outputs.iter().find(|output| output.name == *test) {
            Some(output) => output.outcome(),
            None => (TestOutcome::NotReached, why.clone()),
        };
        results.push(TestResult { suite: suite.name.clone(), test: test.clone(), outcome, note });
    }
    Ok(results)
}

fn first_line(text: &str) -> String {
    text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default().to_owned()
}

/// Output of the tool for one test.
#[derive(Debug, Default)]
struct TestOutput {
    name: String,
    /// CUnit's own verdict: passed or not.
    verdict: Option<bool>,
    /// The first `[SKIPPED]` line.
    skipped: Option<String>,
    /// The first `[FAILED]` line, or the first failed assertion.
    failed: Option<String>,
    /// Reason why there will be no verdict.
    ended: Option<(TestOutcome, String)>,
}

impl TestOutput {
    fn outcome(&self) -> (TestOutcome, String) {
        let note = |line: &Option<String>| line.clone().unwrap_or_default();
        match (self.verdict, &self.skipped, &self.failed, &self.ended) {
            (Some(false), ..) => (TestOutcome::Failed, note(&self.failed)),
            (Some(true), _, Some(line), _) => (TestOutcome::Soft, line.clone()),
            (Some(true), Some(line), ..) => (TestOutcome::Skipped, line.clone()),
            (Some(true), ..) => (TestOutcome::Passed, String::new()),
            (None, _, _, Some((outcome, note))) => (*outcome, note.clone()),
            (None, ..) => (TestOutcome::NotReached, note(&self.failed)),
        }
    }

    /// Parses one line printed while this test ran, or after it and before the next.
    fn take(&mut self, line: &str) {
        let line = match (self.verdict, line.strip_prefix("passed"), line.strip_prefix("FAILED")) {
            (None, Some(rest), _) => {
                self.verdict = Some(true);
                rest
            }
            (None, _, Some(rest)) => {
                self.verdict = Some(false);
                rest
            }
            _ => line,
        };
        // The line of a failed assertion continues with the next output, after its indentation.
        let first_part = |why: &str| why.trim().split("    ").next().unwrap_or_default().to_owned();
        if let Some((_, why)) = line.split_once("[SKIPPED]") {
            self.skipped.get_or_insert_with(|| why.trim().to_owned());
        } else if let Some((_, why)) = line.split_once("[FAILED]") {
            self.failed.get_or_insert_with(|| first_part(why));
        } else if self.verdict == Some(false) && line.trim_start().starts_with("1. ") {
            self.failed.get_or_insert_with(|| first_part(&line.trim_start()[3..]));
        }
    }
}

/// Parses CUnit's verbose form: `  Test: NAME ...`, output of the test, `passed` or `FAILED`.
fn parse_output(stdout: &str) -> Vec<TestOutput> {
    let mut tests: Vec<TestOutput> = Vec::new();
    for line in stdout.lines() {
        if line.trim_start().starts_with("Run Summary:") {
            break;
        }
        if let Some((name, rest)) =
            line.strip_prefix("  Test: ").and_then(|rest| rest.split_once(" ..."))
        {
            tests.push(TestOutput { name: name.to_owned(), ..TestOutput::default() });
            if let Some(test) = tests.last_mut() {
                test.take(rest);
            }
        } else if let Some(test) = tests.last_mut() {
            test.take(line);
        }
    }
    tests
}

/// Compares the tool's own count of failed tests with the parsed one, to detect parse errors.
fn check_against_summary(stdout: &str, tests: &[TestOutput]) -> Result<()> {
    let summary = stdout.lines().find_map(|line| line.trim_start().strip_prefix("tests "));
    let numbers: Vec<usize> =
        summary.unwrap_or_default().split_whitespace().filter_map(|n| n.parse().ok()).collect();
    let [_total, _ran, passed, failed, ..] = numbers[..] else { bail!("no summary of tests") };
    let parsed = |verdict| tests.iter().filter(|test| test.verdict == Some(verdict)).count();
    ensure!(
        (passed, failed) == (parsed(true), parsed(false)),
        "the tool counts {passed} passed and {failed} failed, we read {} and {}",
        parsed(true),
        parsed(false)
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    fn suite(tests: &[&str]) -> Suite {
        let tests = tests.iter().map(|test| (*test).to_owned()).collect();
        Suite { name: "SCSI.A".into(), tests }
    }

    fn finished(end: End, stdout: &str) -> Finished {
        Finished { end, stdout: stdout.into(), stderr: String::new(), took: Duration::ZERO }
    }

    const OUTPUT: &str = "\nSuite: A\n  Test: Good ...passed\n  Test: Skip ...    [SKIPPED] no\n\
        passed\n  Test: Talk ...    Take out a RESERVE6\n    [FAILED] MODESENSE6\nFAILED\n    \
        1. a.c:70  - CU_ASSERT_EQUAL(_r,0)\n  Test: Bare ...FAILED\n    1. b.c:8  - CU(1)\n  \
        Test: Soft ...passed    [FAILED] PRIN\n\n";
    const SUMMARY: &str = "Run Summary:    Type  Total    Ran Passed Failed Inactive\n   suites \
        1 1 n/a 0 0\n  tests  5  5  3  2  0\n";

    /// Goal: skips and printed failures are distinguished from passes.
    /// Method: the forms that occur.
    #[test]
    fn every_form_of_outcome_is_parsed() {
        let end = End::Exited(ExitStatus::from_raw(256));
        let tests = ["Good", "Skip", "Talk", "Bare", "Soft"];
        let text = format!("{OUTPUT}{SUMMARY}");
        let results = parse_results(&suite(&tests), &finished(end, &text)).expect("readable");
        let read: Vec<_> =
            results.iter().map(|result| (result.outcome, result.note.as_str())).collect();
        let expected = [
            (TestOutcome::Passed, ""),
            (TestOutcome::Skipped, "no"),
            (TestOutcome::Failed, "MODESENSE6"),
            (TestOutcome::Failed, "b.c:8  - CU(1)"),
            (TestOutcome::Soft, "PRIN"),
        ];
        assert_eq!(read, expected);
        let wrong = text.replace("  3  2  0", "  4  1  0");
        assert!(parse_results(&suite(&tests), &finished(end, &wrong)).is_err());
    }

    /// Goal: a kill or a crash is attributed to the test during which it happened; the remaining
    /// tests were not reached.
    #[test]
    fn a_hang_or_crash_counts_for_the_running_test() {
        let text = "  Test: One ...passed\n  Test: Two ...    Send";
        let ends = [
            (End::TimedOut, TestOutcome::Hung),
            (End::Exited(ExitStatus::from_raw(11)), TestOutcome::Crashed),
        ];
        for (end, outcome) in ends {
            let results = parse_results(&suite(&["One", "Two", "Three"]), &finished(end, text));
            let read: Vec<_> =
                results.expect("readable").iter().map(|result| result.outcome).collect();
            assert_eq!(read, [TestOutcome::Passed, outcome, TestOutcome::NotReached]);
        }
        let end = End::Exited(ExitStatus::from_raw(256));
        let results = parse_results(&suite(&["One"]), &finished(end, "")).expect("readable");
        assert_eq!(results[0].outcome, TestOutcome::NotReached);
    }

    /// Goal: the list is parsed: two families, suites with their tests, no duplicates.
    #[test]
    fn the_list_is_read() {
        let text = "ALL\nALL.A\nALL.A.B\nSCSI\nSCSI.A\nSCSI.A.B\nSCSI.A.C-D\niSCSI.E\niSCSI.E.F\n";
        let suites = parse_list(text);
        assert_eq!(suites[0], suite(&["B", "C-D"]));
        assert_eq!(suites.len(), 2);
    }
}
