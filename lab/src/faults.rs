//! Outcomes that are the tool's own doing, each with its reason.

use crate::suite::{Outcome, TestResult};
use std::fmt::Write;

/// One of them.
#[derive(Clone, Copy, Debug)]
pub struct Fault {
    /// On which profiles; none named: on every one.
    pub profiles: &'static [&'static str],
    /// Which suite.
    pub suite: &'static str,
    /// Which of its tests.
    pub tests: &'static [&'static str],
    /// What a correct target gets.
    pub outcome: Outcome,
    /// Why, for a reader who does not believe it.
    pub why: &'static str,
}

/// Every excused outcome. Everything else has to pass or be skipped.
pub const FAULTS_OF_THE_TOOL: &[Fault] = &[
    Fault {
        profiles: &["thin-512e"],
        suite: "SCSI.GetLBAStatus",
        tests: &["UnmapSingle"],
        outcome: Outcome::Failed,
        why: "It asks for the status from block i + 1 and wants the first descriptor to begin at \
            block i + 8, the next physical one. SBC wants it to begin at the block that was \
            asked for (\"the first LBA status descriptor … shall contain the value specified in \
            the STARTING LOGICAL BLOCK ADDRESS field\", as Seagate's SCSI Commands Reference \
            Manual, rev. J, §3.4.2.3 has it), and QEMU relies on that. Where a physical block is \
            a logical one, i + 1 is what the tool means, and it passes; tgt fails it on such a \
            disk as well.",
    },
    Fault {
        profiles: &[],
        suite: "iSCSI.iSCSIdatasn",
        tests: &["iSCSIDataSnInvalid"],
        outcome: Outcome::Soft,
        why: "It sends data with wrong numbers and wants the write not to end GOOD. The function \
            it sends with was told to expect GOOD and prints `[FAILED]` for everything else, \
            also for a closed connection: the line is printed exactly when the target is right.",
    },
    Fault {
        profiles: &["thin-4096"],
        suite: "SCSI.ProutReserve",
        tests: &["AccessEA", "AccessWE", "AccessEARO", "AccessWERO", "AccessEAAR", "AccessWEAR"],
        outcome: Outcome::Failed,
        why: "It writes one block with 512 bytes of data, however long a block is. A write of \
            4096 bytes with an Expected Data Transfer Length of 512 cannot end GOOD as it wants; \
            the answer is one of those that its own iSCSIResiduals tests accept for such a \
            write.",
    },
    Fault {
        profiles: &["small"],
        suite: "SCSI.WriteSame10",
        tests: &["UnmapUntilEnd"],
        outcome: Outcome::Failed,
        why: "Where WSNZ is 0 it sends WRITE SAME (10) with UNMAP and a block full of FFh, and \
            wants to read zeroes. With LBPRZ of 1 only zeroes may be unmapped instead of written \
            (SBC-3 §5.44); its own WriteSame16.UnmapUntilEnd sends zeroes, and passes.",
    },
    Fault {
        profiles: &["two-paths"],
        suite: "SCSI.MultipathIO",
        tests: &["Reset"],
        outcome: Outcome::Failed,
        why: "It wants a unit attention also on the path that sent the LOGICAL UNIT RESET; \
            Reserve6 and PreventAllow print `[FAILED]` where there is one. No target passes all \
            of them cleanly. An initiator knows what it asked for: see decision 040.",
    },
];

/// The fault that excuses this result.
pub fn excuse(profile: &str, result: &TestResult) -> Option<&'static Fault> {
    FAULTS_OF_THE_TOOL.iter().find(|fault| {
        (fault.profiles.is_empty() || fault.profiles.contains(&profile))
            && fault.suite == result.suite
            && fault.tests.contains(&result.test.as_str())
            && fault.outcome == result.outcome
    })
}

/// The list, in Markdown.
pub fn markdown() -> String {
    let mut text = String::new();
    for Fault { profiles, suite, tests, outcome, why } in FAULTS_OF_THE_TOOL {
        let on = if profiles.is_empty() { "every profile".into() } else { profiles.join(", ") };
        let tests = tests.join(", ");
        writeln!(text, "- **{suite}: {tests}** ({outcome}, on {on}). {why}").ok();
    }
    text
}
