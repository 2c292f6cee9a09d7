//! Writes the source of one server in which each sync can be left out, selected at run time by an
//! environment variable.
//!
//! One build serves all rounds; a build for each would take most of the time.

use super::place::{self, Place};
use super::table::{CALLS, Call, Fate};
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::ops::Range;
use std::path::Path;

/// Environment variable with the row of the sync to leave out.
pub(super) const VARIABLE: &str = "LUNAR_REMOVED_SYNC";

/// Lines of a row's code in a file of the copy, counted from 1.
pub(super) struct Built {
    row: usize,
    file: &'static str,
    lines: Range<usize>,
}

/// Rewrites the files of the copy so that the sync of each of these rows can be left out.
pub(super) fn write(root: &Path, tree: &Path, rows: &BTreeSet<usize>) -> Result<Vec<Built>> {
    let mut built = Vec::new();
    let removed = |call: &&Call| matches!(call.fate, Fate::Removed { .. });
    let files: BTreeSet<_> = CALLS.iter().filter(removed).map(|call| call.file).collect();
    for file in files {
        let source = fs::read_to_string(root.join(file)).with_context(|| file.to_owned())?;
        let (text, parts) = rewritten(&source, file, rows)?;
        built.extend(parts);
        super::run::write_changed(&tree.join(file), text.as_bytes())?;
    }
    Ok(built)
}

fn rewritten(
    source: &str,
    file: &'static str,
    rows: &BTreeSet<usize>,
) -> Result<(String, Vec<Built>)> {
    let mut places = BTreeMap::new();
    for row in rows.iter().filter(|row| CALLS[**row].file == file) {
        let Place { bytes } = place::find(source, &CALLS[*row]).map_err(anyhow::Error::msg)?;
        places.insert(bytes.start, (bytes, *row));
    }
    let (mut text, mut parts, mut at) = (String::new(), Vec::new(), 0);
    for (bytes, row) in places.into_values() {
        ensure!(bytes.start >= at, "{file}: two rows have the same text; one of them is {row}");
        text.push_str(&source[at..bytes.start]);
        let first = text.lines().count();
        text.push_str(&choice(row, &source[bytes.clone()]));
        parts.push(Built { row, file, lines: first..text.lines().count() + 1 });
        at = bytes.end;
    }
    text.push_str(&source[at..]);
    Ok((text, parts))
}

/// Returns an expression in place of the call: the call, or its replacement.
fn choice(row: usize, call: &str) -> String {
    let Fate::Removed { becomes, .. } = CALLS[row].fate else { return call.to_owned() };
    // Some of the crates do not use the standard library themselves.
    format!(
        "({{ extern crate std as of_xtask;\n\
         if of_xtask::env::var_os(\"{VARIABLE}\").is_some_and(|row| row == \"{row}\") \
         {{ {becomes} }} else {{ {call} }}\n}})"
    )
}

/// Returns the rows to which the messages of a failed build refer, each with the first error.
pub(super) fn blamed(messages: &str, built: &[Built]) -> BTreeMap<usize, String> {
    let mut blamed = BTreeMap::new();
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
            built.iter().find(|part| file.ends_with(part.file) && part.lines.contains(&line))
        };
        if let Some(part) = spans.clone().find_map(of_span) {
            blamed.entry(part.row).or_insert_with(|| what.to_owned());
        }
    }
    blamed
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows_of(file: &str) -> BTreeSet<usize> {
        let removed = |row: &usize| {
            CALLS[*row].file == file && matches!(CALLS[*row].fate, Fate::Removed { .. })
        };
        (0..CALLS.len()).filter(removed).collect()
    }

    /// Goal: each row has its choice in the text, and the rest stays as it is.
    #[test]
    fn each_row_gets_its_choice() {
        let root = crate::workspace_root();
        for file in CALLS.iter().map(|call| call.file) {
            let source = fs::read_to_string(root.join(file)).expect("it can be read");
            let rows = rows_of(file);
            let (text, built) = rewritten(&source, file, &rows).expect("rows that fit");
            assert_eq!(built.iter().map(|part| part.row).collect::<BTreeSet<_>>(), rows);
            assert_eq!(text.matches(VARIABLE).count(), rows.len(), "{file}");
            for part in &built {
                let lines: Vec<_> = text.lines().collect();
                let lines = lines[part.lines.start - 1..part.lines.end - 1].join("\n");
                let choice = format!("row == \"{}\"", part.row);
                assert_eq!(lines.matches("row == ").count(), 1, "{file}: {lines}");
                assert!(lines.contains(&choice), "{file}: {lines}");
            }
        }
    }

    /// Goal: an error belongs to the row whose lines contain it; an error elsewhere to none.
    #[test]
    fn an_error_is_a_rows_fault() {
        let part = |row, lines| Built { row, file: "crates/a/src/b.rs", lines };
        let built = [part(3, 10..14), part(5, 20..24)];
        let message = |level: &str, line: u64| {
            let span = serde_json::json!({"file_name": "crates/a/src/b.rs", "line_start": line});
            let message = serde_json::json!({"level": level, "message": "E", "spans": [span]});
            serde_json::json!({"reason": "compiler-message", "message": message}).to_string()
        };
        let messages =
            [message("error", 21), message("warning", 11), message("error", 14)].join("\n");
        assert_eq!(blamed(&messages, &built), BTreeMap::from([(5, "E".to_owned())]));
    }
}
