//! Checks that the power-cut tests need every sync of the product: each is removed in turn, and a
//! test must fail.
//!
//! [`table`] lists the replacement of each call, or the reason to keep it; [`check`], which a test
//! runs, compares the table with the source; `switchable_build` writes the source of a server that
//! can leave out each sync; [`run`] runs the rounds.

mod call_site;
pub mod run;
mod scan;
mod switchable_build;
pub mod table;

use anyhow::{Context, Result};
use std::path::Path;
use table::{CALLS, Call, Treatment};

/// Compares the table with the source; returns one message for each mismatch.
///
/// # Errors
/// A file cannot be read.
pub fn check(root: &Path) -> Result<Vec<String>> {
    let mut problems = Vec::new();
    let mut covered = Vec::new();
    for call in CALLS {
        let source = read(root, call)?;
        match call_site::find(&source, call) {
            Ok(call_site) => covered.push((call.file, call_site.lines(&source))),
            Err(what) => problems.push(what),
        }
    }
    let tests = scan::tests(root)?;
    for call in CALLS {
        if let Treatment::Removed { detected_by, .. } = call.treatment
            && !tests.iter().any(|name| name.contains(detected_by))
        {
            problems.push(format!("{}: there is no power-cut test {detected_by}", call.file));
        }
    }
    for hit in scan::hits(root)? {
        let is_covered =
            covered.iter().any(|(file, lines)| *file == hit.file && lines.contains(&hit.line));
        if !is_covered {
            problems.push(format!(
                "{}:{}: `{}` has no row in xtask/src/syncs/table.rs: add its replacement when it \
                 is removed and the power-cut test that detects this, or the reason why no test \
                 can",
                hit.file, hit.line, hit.text
            ));
        }
    }
    Ok(problems)
}

/// Reads the file of a row.
fn read(root: &Path, call: &Call) -> Result<String> {
    let path = root.join(call.file);
    std::fs::read_to_string(&path).with_context(|| path.display().to_string())
}

/// Returns the line of a call.
fn line(root: &Path, call: &Call) -> Result<usize> {
    let source = read(root, call)?;
    Ok(call_site::find(&source, call).map_err(anyhow::Error::msg)?.lines(&source).start)
}

#[cfg(test)]
mod tests {
    /// Goal: no sync is added, removed or changed without a row that states how it is tested.
    #[test]
    fn every_sync_has_its_row() {
        let problems = super::check(&crate::workspace_root()).expect("the source can be read");
        assert!(problems.is_empty(), "{} problem(s):\n{}", problems.len(), problems.join("\n"));
    }
}
