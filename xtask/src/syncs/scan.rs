//! Finds lines in the source of the product that look like a sync.

use anyhow::{Context, Result};
use std::path::Path;
use std::process::Command;

/// Text of calls that make something durable, or decide that it must be. Definitions are excluded.
const SYNC_PATTERNS: &[&str] = &[
    "sync_all(",
    "sync_data(",
    "fdatasync(",
    "fsync(",
    "syncfs(",
    "sync_file_range(",
    "msync(",
    "DSYNC",
    "O_SYNC",
    "OFlags::SYNC",
    ".commit(",
    ".flush(",
    "flush_later(",
    "keep_names(",
    "keep_folder(",
    "StateDirectory::create(",
    "create_directory(",
    "save_first(",
    "save_name(",
    "save_state(",
    ".save(",
    ".saved(",
    "outcome.save =",
    "if save {",
    "retire(",
    "make_durable(",
    ".sync_locked(",
    "send_flush(",
    "flush_all(",
    "is_durable(",
];

/// A line of the source that contains one of [`SYNC_PATTERNS`].
pub(super) struct Hit {
    pub(super) file: String,
    /// Line number, counted from 1.
    pub(super) line: usize,
    pub(super) text: String,
}

/// Returns all lines of the product that contain one of [`SYNC_PATTERNS`].
pub(super) fn hits(root: &Path) -> Result<Vec<Hit>> {
    let mut hits = Vec::new();
    for file in files(root)?.into_iter().filter(|file| is_product(file)) {
        let path = root.join(&file);
        let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        // House style: the tests of a file come last.
        let product = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
        for (number, line) in product.lines().enumerate() {
            let code = line.split("//").next().unwrap_or_default();
            let defines = code.contains("fn ");
            if !defines && SYNC_PATTERNS.iter().any(|pattern| code.contains(pattern)) {
                hits.push(Hit { file: file.clone(), line: number + 1, text: code.trim().into() });
            }
        }
    }
    Ok(hits)
}

/// Returns the functions in the files of the power-cut tests, which include all tests.
pub(super) fn tests(root: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for file in files(root)?.iter().filter(|file| file.starts_with("lab/tests/it/power_cut/")) {
        let text = std::fs::read_to_string(root.join(file)).with_context(|| file.clone())?;
        let functions = text.lines().filter_map(|line| line.strip_prefix("fn "));
        names.extend(functions.filter_map(|rest| Some(rest.split_once('(')?.0.to_owned())));
    }
    Ok(names)
}

fn is_product(file: &str) -> bool {
    let part = |part: &str| matches!(part, "tests" | "tests.rs" | "contract" | "contract.rs");
    let is_own = file.starts_with("crates/") || file.starts_with("apps/");
    is_own && file.contains("/src/") && file.ends_with(".rs") && !file.split('/').any(part)
}

/// Returns the files that git tracks or would add.
pub(super) fn files(root: &Path) -> Result<Vec<String>> {
    let output = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard"])
        .current_dir(root)
        .output()
        .context("running git")?;
    let exists = |file: &&str| root.join(file).is_file();
    let files = String::from_utf8(output.stdout)?;
    Ok(files.lines().filter(exists).map(str::to_owned).collect())
}
