//! Outcomes that are caused by the tool itself, each with its reason.

use super::suite::{TestOutcome, TestResult};
use std::fmt::Write;

/// One excused outcome.
#[derive(Clone, Copy, Debug)]
pub struct InjectedFault {
    /// Names of the profiles; empty: every profile.
    pub profiles: &'static [&'static str],
    /// Name of the suite.
    pub suite: &'static str,
    /// Names of its tests.
    pub tests: &'static [&'static str],
    /// Outcome of a correct target.
    pub outcome: TestOutcome,
    /// Reason and evidence.
    pub why: &'static str,
}

/// Every excused outcome. Every other test has to pass or be skipped.
pub const FAULTS_OF_THE_TOOL: &[InjectedFault] = &[
    InjectedFault {
        profiles: &["thin-512e", "lun-of-lunar", "lun-of-tgt", "switch-slow", "switch-fast"],
        suite: "SCSI.GetLBAStatus",
        tests: &["UnmapSingle"],
        outcome: TestOutcome::Failed,
        why: "It asks for the status from block i + 1 and wants the first descriptor to begin at \
            block i + 8, the next physical one. SBC wants it to begin at the block that was \
            asked for (\"the first LBA status descriptor … shall contain the value specified in \
            the STARTING LOGICAL BLOCK ADDRESS field\", as Seagate's SCSI Commands Reference \
            Manual, rev. J, §3.4.2.3 has it), and QEMU relies on that. Where a physical block is \
            a logical one, i + 1 is what the tool means, and it passes; tgt fails it on such a \
            disk as well.",
    },
    InjectedFault {
        profiles: &[],
        suite: "iSCSI.iSCSIdatasn",
        tests: &["iSCSIDataSnInvalid"],
        outcome: TestOutcome::Soft,
        why: "It sends data with wrong numbers and wants the write not to end GOOD. The function \
            it sends with was told to expect GOOD and prints `[FAILED]` for everything else, \
            also for a closed connection: the line is printed exactly when the target is right.",
    },
    InjectedFault {
        profiles: &["thin-4096"],
        suite: "SCSI.ProutReserve",
        tests: &["AccessEA", "AccessWE", "AccessEARO", "AccessWERO", "AccessEAAR", "AccessWEAR"],
        outcome: TestOutcome::Failed,
        why: "It writes one block with 512 bytes of data, however long a block is. A write of \
            4096 bytes with an Expected Data Transfer Length of 512 cannot end GOOD as it wants; \
            the answer is one of those that its own iSCSIResiduals tests accept for such a \
            write.",
    },
    InjectedFault {
        profiles: &["small"],
        suite: "SCSI.WriteSame10",
        tests: &["UnmapUntilEnd"],
        outcome: TestOutcome::Failed,
        why: "Where WSNZ is 0 it sends WRITE SAME (10) with UNMAP and a block full of FFh, and \
            wants to read zeroes. With LBPRZ of 1 only zeroes may be unmapped instead of written \
            (SBC-3 §5.44); its own WriteSame16.UnmapUntilEnd sends zeroes, and passes.",
    },
    InjectedFault {
        profiles: &["two-paths"],
        suite: "SCSI.MultipathIO",
        tests: &["Reset"],
        outcome: TestOutcome::Failed,
        why: "It wants a unit attention also on the path that sent the LOGICAL UNIT RESET; \
            Reserve6 and PreventAllow print `[FAILED]` where there is one. No target passes all \
            of them cleanly. An initiator knows what it asked for: see decision 040.",
    },
];

/// Returns the fault that excuses this result.
pub fn excuse(profile: &str, result: &TestResult) -> Option<&'static InjectedFault> {
    FAULTS_OF_THE_TOOL.iter().find(|fault| {
        (fault.profiles.is_empty() || fault.profiles.contains(&profile))
            && fault.suite == result.suite
            && fault.tests.contains(&result.test.as_str())
            && fault.outcome == result.outcome
    })
}

/// Returns the list in Markdown.
pub fn markdown() -> String {
    let mut text = String::new();
    for InjectedFault { profiles, suite, tests, outcome, why } in FAULTS_OF_THE_TOOL {
        let on = if profiles.is_empty() { "every profile".into() } else { profiles.join(", ") };
        let tests = tests.join(", ");
        writeln!(text, "- **{suite}: {tests}** ({outcome}, on {on}). {why}").ok();
    }
    text
}
