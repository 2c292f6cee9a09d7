//! Every sync of the product is tested: each is removed once, and the power-cut tests must fail.
//!
//! [`table`] says of each call what it becomes, or why it is left alone; [`check`], which a test
//! runs, compares it with the source; [`run`] does the rounds.

pub mod run;
mod scan;
pub mod table;

use anyhow::{Context, Result};
use std::path::Path;
use table::{CALLS, Call};

/// What does not fit between the source and the table, a sentence each.
///
/// # Errors
/// A file cannot be read.
pub fn check(root: &Path) -> Result<Vec<String>> {
    let mut problems = Vec::new();
    let mut covered = Vec::new();
    for call in CALLS {
        match place(root, call)? {
            Ok(lines) => covered.push((call.file, lines)),
            Err(what) => problems.push(what),
        }
    }
    for hit in scan::hits(root)? {
        let is_covered = covered.iter().any(|(file, lines)| {
            *file == hit.file && (hit.line >= lines.start && hit.line < lines.end)
        });
        if !is_covered {
            problems.push(format!(
                "{}:{}: `{}` is in no row of xtask/src/syncs/table.rs: say what it becomes when \
                 it is removed and which power-cut test notices, or why none can",
                hit.file, hit.line, hit.text
            ));
        }
    }
    Ok(problems)
}

/// The lines of the source that a row is about, or what is wrong with it.
fn place(root: &Path, call: &Call) -> Result<Result<std::ops::Range<usize>, String>> {
    let path = root.join(call.file);
    let source = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let mut found = source.match_indices(call.text);
    Ok(match (found.next(), found.next()) {
        (Some((at, _)), None) => {
            let first = source[..at].lines().count() + usize::from(source[..at].ends_with('\n'));
            Ok(first.max(1)..first.max(1) + call.text.lines().count())
        }
        (None, _) => Err(format!(
            "{}: a row of xtask/src/syncs/table.rs is about a call that is not there: {:?}",
            call.file, call.text
        )),
        (_, Some(_)) => Err(format!(
            "{}: what a row of xtask/src/syncs/table.rs is about is there twice: {:?}",
            call.file, call.text
        )),
    })
}

/// The line of a call, for a reader.
fn line(root: &Path, call: &Call) -> Result<usize> {
    place(root, call)?.map(|lines| lines.start).map_err(anyhow::Error::msg)
}

#[cfg(test)]
mod tests {
    /// Goal: no sync comes, goes or changes without a row that says how it is tested.
    #[test]
    fn every_sync_has_its_row() {
        let problems = super::check(&crate::workspace_root()).expect("the source can be read");
        assert!(problems.is_empty(), "{} problem(s):\n{}", problems.len(), problems.join("\n"));
    }
}
