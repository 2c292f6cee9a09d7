//! Writes the source of a server that leaves out one sync, which an environment variable selects at
//! run time.
//!
//! One build serves all rounds, because a build for each would take most of the time.

use super::call_site::{self, CallSite};
use super::table::{CALLS, Call, Treatment};
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::ops::Range;
use std::path::Path;

/// Environment variable with the row of the sync to leave out.
pub(super) const VARIABLE: &str = "LUNAR_REMOVED_SYNC";

/// The lines of a row's switchable call in a file of the copy, counted from 1.
pub(super) struct SwitchableRow {
    row: usize,
    file: &'static str,
    lines: Range<usize>,
}

/// Rewrites the files of the copy so that the sync of each of these rows can be left out.
pub(super) fn write(
    root: &Path,
    tree: &Path,
    rows: &BTreeSet<usize>,
) -> Result<Vec<SwitchableRow>> {
    let mut switchable = Vec::new();
    let removed = |call: &&Call| matches!(call.treatment, Treatment::Removed { .. });
    let files: BTreeSet<_> = CALLS.iter().filter(removed).map(|call| call.file).collect();
    for file in files {
        let source = fs::read_to_string(root.join(file)).with_context(|| file.to_owned())?;
        let (text, row_parts) = with_switches(&source, file, rows)?;
        switchable.extend(row_parts);
        super::run::write_changed(&tree.join(file), text.as_bytes())?;
    }
    Ok(switchable)
}

fn with_switches(
    source: &str,
    file: &'static str,
    rows: &BTreeSet<usize>,
) -> Result<(String, Vec<SwitchableRow>)> {
    let mut sites = BTreeMap::new();
    for row in rows.iter().filter(|row| CALLS[**row].file == file) {
        let CallSite { bytes } =
            call_site::find(source, &CALLS[*row]).map_err(anyhow::Error::msg)?;
        sites.insert(bytes.start, (bytes, *row));
    }
    let (mut text, mut row_parts, mut at) = (String::new(), Vec::new(), 0);
    for (bytes, row) in sites.into_values() {
        ensure!(bytes.start >= at, "{file}: two rows have the same text; one of them is {row}");
        text.push_str(&source[at..bytes.start]);
        let first = text.lines().count();
        text.push_str(&switch_expression(row, &source[bytes.clone()]));
        row_parts.push(SwitchableRow { row, file, lines: first..text.lines().count() + 1 });
        at = bytes.end;
    }
    text.push_str(&source[at..]);
    Ok((text, row_parts))
}

/// Returns the expression that replaces the call: it evaluates the call or the row's replacement.
fn switch_expression(row: usize, call: &str) -> String {
    let Treatment::Removed { replacement, .. } = CALLS[row].treatment else {
        return call.to_owned();
    };
    // Some crates are `no_std`, so the expression names the standard library itself.
    format!(
        "({{ extern crate std as std_of_mutation;\n\
         if std_of_mutation::env::var_os(\"{VARIABLE}\").is_some_and(|row| row == \"{row}\") \
         {{ {replacement} }} else {{ {call} }}\n}})"
    )
}

/// Returns the rows to which the messages of a failed build refer, each with the first error.
pub(super) fn rows_with_errors(
    messages: &str,
    switchable: &[SwitchableRow],
) -> BTreeMap<usize, String> {
    let mut errors = BTreeMap::new();
    let lines = messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    for message in lines.map(|line| line["message"].clone()) {
        if message["level"] != "error" {
            continue;
        }
        let what = message["message"].as_str().unwrap_or("an error");
        let spans = message["spans"].as_array().into_iter().flatten();
        let of_span = |span: &Value| {
            let file = span["file_name"].as_str().unwrap_or_default();
            let line = span["line_start"].as_u64().unwrap_or_default() as usize;
            switchable.iter().find(|part| file.ends_with(part.file) && part.lines.contains(&line))
        };
        if let Some(part) = spans.clone().find_map(of_span) {
            errors.entry(part.row).or_insert_with(|| what.to_owned());
        }
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows_of(file: &str) -> BTreeSet<usize> {
        let removed = |row: &usize| {
            CALLS[*row].file == file && matches!(CALLS[*row].treatment, Treatment::Removed { .. })
        };
        (0..CALLS.len()).filter(removed).collect()
    }

    /// Goal: each row has one switch in the text, and the other text is unchanged.
    #[test]
    fn each_row_gets_one_switch() {
        let root = crate::workspace_root();
        for file in CALLS.iter().map(|call| call.file) {
            let source = fs::read_to_string(root.join(file)).expect("it can be read");
            let rows = rows_of(file);
            let (text, switchable) = with_switches(&source, file, &rows).expect("rows that fit");
            assert_eq!(switchable.iter().map(|part| part.row).collect::<BTreeSet<_>>(), rows);
            assert_eq!(text.matches(VARIABLE).count(), rows.len(), "{file}");
            for part in &switchable {
                let lines: Vec<_> = text.lines().collect();
                let lines = lines[part.lines.start - 1..part.lines.end - 1].join("\n");
                let condition = format!("row == \"{}\"", part.row);
                assert_eq!(lines.matches("row == ").count(), 1, "{file}: {lines}");
                assert!(lines.contains(&condition), "{file}: {lines}");
            }
        }
    }

    /// Goal: an error belongs to the row whose lines contain it; an error elsewhere to none.
    #[test]
    fn errors_are_attributed_to_rows() {
        let part = |row, lines| SwitchableRow { row, file: "crates/a/src/b.rs", lines };
        let switchable = [part(3, 10..14), part(5, 20..24)];
        let message = |level: &str, line: u64| {
            let span = serde_json::json!({"file_name": "crates/a/src/b.rs", "line_start": line});
            let message = serde_json::json!({"level": level, "message": "E", "spans": [span]});
            serde_json::json!({"reason": "compiler-message", "message": message}).to_string()
        };
        let messages =
            [message("error", 21), message("warning", 11), message("error", 14)].join("\n");
        assert_eq!(rows_with_errors(&messages, &switchable), BTreeMap::from([(5, "E".to_owned())]));
    }
}
