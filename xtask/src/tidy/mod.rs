//! Rules of the project that a program can check. A test runs them: `cargo test -p xtask`.
//!
//! Each finding names the file and the line, the problem, and the remedy.

mod codes;
mod java;
mod layers;
mod leftovers;
mod lengths;
mod links;
mod names;
mod pictures;
mod prose;
mod sections;
mod terms;

use anyhow::{Context, Result};
use std::fmt;
use std::path::Path;
use std::process::Command;

/// A violation of a rule.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Problem {
    /// Path inside the repository.
    pub file: String,
    /// Line number, counted from 1; 0 for the file as a whole.
    pub line: usize,
    /// The problem and the remedy.
    pub what: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.file, self.line, self.what)
    }
}

/// A text file of the repository.
pub struct Source {
    /// Path inside the repository, with `/`.
    pub path: String,
    /// Contents of the file.
    pub text: String,
}

impl Source {
    fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    fn is_java(&self) -> bool {
        self.path.ends_with(".java")
    }

    fn is_markdown(&self) -> bool {
        self.path.ends_with(".md")
    }

    fn problem(&self, line: usize, what: impl Into<String>) -> Problem {
        Problem { file: self.path.clone(), line, what: what.into() }
    }
}

/// Runs every check over the files that git tracks or would add.
///
/// # Errors
/// git or cargo cannot be run, or a file cannot be read: there is no verdict then.
pub fn check(root: &Path) -> Result<Vec<Problem>> {
    let sources = sources(root)?;
    let lists = crate::rfc::read_lists(root)?;
    let mut problems = layers::check(root)?;
    for source in &sources {
        problems.extend(leftovers::check(source));
        problems.extend(sections::check(source, &lists));
        if source.is_rust() || source.is_java() {
            problems.extend(terms::check(source));
        }
        if source.is_rust() {
            problems.extend(lengths::check(source));
            problems.extend(codes::check(source));
        }
        if source.is_java() {
            problems.extend(lengths::check_lines(source));
            problems.extend(java::check(source));
        }
        if source.is_markdown() {
            problems.extend(links::check(source, &sources, root));
        }
    }
    problems.extend(no_std(&sources));
    problems.extend(prose::check(&sources));
    problems.extend(names::check(&sources));
    problems.extend(java::check_versions(&sources));
    problems.extend(links::check_contents(&sources));
    problems.extend(pictures::check(&sources, root)?);
    Ok(problems)
}

/// Crates that have no I/O, no clock and no randomness; the compiler enforces it.
const NO_STD: &[&str] = &["lunar-wire", "lunar-iscsi", "lunar-scsi", "lunar-isns"];

fn no_std(sources: &[Source]) -> Vec<Problem> {
    let mut problems = Vec::new();
    for name in NO_STD {
        let path = format!("crates/{name}/src/lib.rs");
        let Some(source) = sources.iter().find(|source| source.path == path) else { continue };
        if !source.text.lines().any(|line| line == "#![no_std]") {
            problems.push(source.problem(1, "a protocol crate must have #![no_std]"));
        }
    }
    problems
}

/// Returns the text files that are committed, or would be by `git add -A`.
fn sources(root: &Path) -> Result<Vec<Source>> {
    let listed = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard"])
        .current_dir(root)
        .output()
        .context("running git ls-files")?;
    anyhow::ensure!(
        listed.status.success(),
        "git ls-files failed: {}",
        String::from_utf8_lossy(&listed.stderr).trim()
    );
    let mut sources = Vec::new();
    for path in String::from_utf8(listed.stdout)?.lines() {
        // A file deleted but not committed is still listed; binary corpora are not text.
        if let Ok(text) = std::fs::read_to_string(root.join(path)) {
            sources.push(Source { path: path.to_owned(), text });
        }
    }
    anyhow::ensure!(!sources.is_empty(), "no files found below {}", root.display());
    Ok(sources)
}
