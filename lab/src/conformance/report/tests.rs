//! Tests with reports of made-up runs.

use super::*;
use crate::conformance::profiles::PROFILES;

fn result(suite: &str, test: &str, outcome: TestOutcome, note: &str) -> TestResult {
    let (suite, test, note) = (suite.into(), test.into(), note.into());
    TestResult { suite, test, outcome, note }
}

fn runs() -> Vec<ProfileRun> {
    let first = vec![
        result("SCSI.A", "One", TestOutcome::Passed, ""),
        result("SCSI.A", "Two", TestOutcome::Skipped, "a | b — c"),
        result("SCSI.A", "Three-X", TestOutcome::Skipped, "a | b — c"),
        result("SCSI.B", "Four", TestOutcome::Failed, "x: y"),
    ];
    let second = vec![
        result("SCSI.A", "One", TestOutcome::Passed, ""),
        result("SCSI.A", "Two", TestOutcome::Passed, ""),
        result("SCSI.A", "Three-X", TestOutcome::Soft, "why"),
    ];
    vec![
        ProfileRun { profile: &PROFILES[0], results: first },
        ProfileRun { profile: &PROFILES[1], results: second },
    ]
}

/// Goal: a test is covered by the first profile on which it passed without another message; an
/// uncovered test is listed with the tool's line, from a profile that did not skip it.
#[test]
fn what_is_covered() {
    let runs = runs();
    let by: Vec<_> = union(&runs).into_iter().map(|((_, test), by)| (test, by)).collect();
    let (first, second) = (PROFILES[0].name, PROFILES[1].name);
    let expected = [("One", Some(first)), ("Two", Some(second)), ("Three-X", None), ("Four", None)];
    assert_eq!(by, expected.map(|(test, by)| (test.to_owned(), by)));
    let text = report(&runs);
    for line in [
        format!("| SCSI.A | 3 | 2 | {first} 1, {second} 1 | Three-X: soft on {second} — why |"),
        format!("| SCSI.B | 1 | 0 |  | Four: fail on {first} — x: y |"),
        "| **all** | 4 | 2 |  |  |".to_owned(),
        format!("| {first} | SCSI.A | skip | Two, Three-X | a / b — c |"),
    ] {
        assert!(text.lines().any(|found| found == line), "{line}\n{text}");
    }
}

/// Goal: a run compared with its own report is no worse; each test with a worse result is named, on
/// its profile and in the union; a new profile or suite does not count as worse.
#[test]
fn a_run_is_compared_test_by_test() -> Result<()> {
    let mut runs = runs();
    let committed = report(&runs);
    let nothing = Vec::<String>::new();
    assert_eq!(regressions(committed.trim(), &runs)?, nothing);
    runs[0].results[3].outcome = TestOutcome::Passed;
    assert_eq!(regressions(&committed, &runs)?, nothing);
    runs.push(ProfileRun {
        profile: &PROFILES[2],
        results: vec![
            result("SCSI.A", "One", TestOutcome::Skipped, ""),
            result("SCSI.N", "New", TestOutcome::Failed, ""),
        ],
    });
    assert_eq!(regressions(&committed, &runs)?, nothing);
    runs[1].results[1] = result("SCSI.A", "Two", TestOutcome::Skipped, "why");
    runs[0].results[2].outcome = TestOutcome::Hung;
    let expected = [
        "SCSI.A.Two: no longer covered by any profile".to_owned(),
        format!("{}: SCSI.A.Three-X: was skip, now hang: a | b — c", PROFILES[0].name),
        format!("{}: SCSI.A.Two: was pass, now skip: why", PROFILES[1].name),
    ];
    assert_eq!(regressions(&committed, &runs)?, expected);
    assert!(regressions("nothing", &runs).is_err());
    Ok(())
}

/// Goal: a result is excused only with that exact outcome on that exact profile.
#[test]
fn excuses_are_exact() {
    let known = |outcome| result("SCSI.GetLBAStatus", "UnmapSingle", outcome, "line");
    let run =
        |at: usize, outcome| ProfileRun { profile: &PROFILES[at], results: vec![known(outcome)] };
    assert_eq!(PROFILES[0].name, "thin-512e");
    assert_eq!(unclean(&[run(0, TestOutcome::Failed)]), Vec::<String>::new());
    for bad in [run(1, TestOutcome::Failed), run(0, TestOutcome::Crashed)] {
        assert_eq!(unclean(&[bad]).len(), 1);
    }
    assert!(PROFILES.iter().all(|profile| !profile.name.contains([',', '|', ' '])));
}
