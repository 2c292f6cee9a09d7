//! Finds comparisons of SCSI operation codes outside the command table.

use super::{Problem, Source};

/// Paths that may compare operation codes: the command table, and the layouts of CDBs.
/// `lunar-iscsi` and the testkit cannot use the table: they do not depend on `lunar-scsi`.
const ALLOWED: &[&str] = &[
    "crates/lunar-scsi/src/commands.rs",
    "crates/lunar-scsi/src/commands/",
    "crates/lunar-scsi/src/cdb/",
    "crates/lunar-iscsi/",
    "crates/lunar-testkit/",
];

/// Forms of the first byte of a CDB.
const FIRST_BYTES: &[&str] = &["cdb.first()", "cdb[0]", "(cdb, [0x", "match opcode", "(opcode,"];
/// Parts of a line that compares.
const COMPARISONS: &[&str] = &["match", "==", "!=", ".contains(", ".is_some_and("];

pub(super) fn check(source: &Source) -> Vec<Problem> {
    let Source { path, text } = source;
    let is_product = path.starts_with("crates/") && path.contains("/src/");
    let is_test = path.contains("/tests/") || path.ends_with("/tests.rs");
    if !is_product || is_test || ALLOWED.iter().any(|allowed| path.starts_with(allowed)) {
        return Vec::new();
    }
    let lines = text.lines().enumerate().take_while(|(_, line)| !line.starts_with("mod tests {"));
    let compares = |line: &str| {
        FIRST_BYTES.iter().any(|form| line.contains(form))
            && COMPARISONS.iter().any(|form| line.contains(form))
    };
    let found = lines.filter(|(_, line)| compares(line));
    let what = "compares operation codes: put what is known of a command into its row of the \
                command table";
    found.map(|(index, _)| source.problem(index + 1, what)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> usize {
        check(&Source { path: path.into(), text: text.into() }).len()
    }

    /// Goal: the forms of comparisons that were used are found, other uses of the code are not.
    #[test]
    fn comparisons_of_codes() {
        let file = "crates/lunar-target/src/tasks.rs";
        for line in [
            "    if task.cdb.first() == Some(&REPORT_LUNS) {",
            "    matches!(cdb.first(), Some(0x03 | 0x12 | 0xa0))",
            "        match cdb.first().copied().unwrap_or(0) {",
            "    matches!(cdb, [0x5f, action, ..] if action & 0x1f == 0x05)",
            "        match parked.cdb.first() {",
            "    cdb.first().is_some_and(|opcode| MORE.contains(opcode))",
            "    match opcode {",
        ] {
            assert_eq!(found(file, line), 1, "{line}");
            assert_eq!(found("crates/lunar-scsi/src/commands.rs", line), 0);
            assert_eq!(found("crates/lunar-scsi/tests/it/unit/ports.rs", line), 0);
            assert_eq!(found(file, &format!("mod tests {{\n{line}")), 0);
        }
        assert_eq!(found(file, "let opcode = cdb.first().copied().unwrap_or_default();"), 0);
    }
}
