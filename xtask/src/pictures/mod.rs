//! Pictures of README.md: badges, a plot and a terminal session, drawn from documents of the
//! repository.
//!
//! `make pictures` writes them to `docs/images`; tidy compares them.

mod badge;
mod figures;
mod plot;
mod svg;
mod terminal;

use anyhow::{Context, Result};
use std::path::Path;

/// Folder of the pictures, and of the recording of the terminal session.
const FOLDER: &str = "docs/images";

/// A picture: its path inside the repository, and its content.
#[derive(Debug)]
pub struct Picture {
    /// Path inside the repository.
    pub path: String,
    /// The SVG document.
    pub svg: String,
}

/// Draws all pictures.
///
/// # Errors
/// Fails if a document is missing or has no such figure.
pub fn draw(root: &Path) -> Result<Vec<Picture>> {
    let read = |path: &str| {
        std::fs::read_to_string(root.join(path)).with_context(|| format!("reading {path}"))
    };
    let performance = read("docs/performance.md")?;
    let recording = read(&format!("{FOLDER}/quick-start.txt"))?;
    let goals = figures::goals(&performance)?;
    let conformance = figures::conformance(&read("CONFORMANCE.md")?)?;
    let attacks = figures::attacks(&read("docs/adversary.md")?)?;
    let rust = figures::rust(&read("rust-toolchain.toml")?)?;
    let pictures = [
        ("licence", badge::draw("licence", "Apache-2.0", badge::NEUTRAL)),
        ("rust", badge::draw("Rust", &rust, badge::NEUTRAL)),
        ("conformance", badge::draw("libiscsi suite", &conformance.to_string(), badge::GOOD)),
        ("attacks", badge::draw("attacks withstood", &attacks.to_string(), badge::GOOD)),
        ("goals", badge::draw("performance goals", &goals.to_string(), badge::GOOD)),
        ("against-tgt", plot::draw(&performance)?),
        ("quick-start", terminal::draw(&recording)),
    ];
    let of = |(name, svg)| Picture { path: format!("{FOLDER}/{name}.svg"), svg };
    Ok(pictures.into_iter().map(of).collect())
}

/// Writes all pictures.
///
/// # Errors
/// Fails if they cannot be drawn or written.
pub fn write(root: &Path) -> Result<()> {
    for Picture { path, svg } in draw(root)? {
        std::fs::write(root.join(&path), svg).with_context(|| format!("writing {path}"))?;
    }
    Ok(())
}

/// Figures that README.md states, each with the document that it comes from.
///
/// # Errors
/// Fails if a document is missing or has no such figure.
pub fn stated_figures(root: &Path) -> Result<Vec<(String, &'static str)>> {
    let read = |path: &str| {
        std::fs::read_to_string(root.join(path)).with_context(|| format!("reading {path}"))
    };
    let conformance = figures::conformance(&read("CONFORMANCE.md")?)?;
    let attacks = figures::attacks(&read("docs/adversary.md")?)?;
    let performance = read("docs/performance.md")?;
    let goals = figures::goals(&performance)?;
    let mut stated = vec![
        (format!("libiscsi suite: {conformance} tests pass"), "CONFORMANCE.md"),
        (
            format!("| libiscsi suite, {} tests | {} pass |", conformance.of, conformance.achieved),
            "CONFORMANCE.md",
        ),
        (format!("attacks withstood: {attacks}]"), "docs/adversary.md"),
        (format!("performance goals met: {goals}]"), "docs/performance.md"),
    ];
    for row in figures::table_rows(&performance)? {
        stated.push((row, "docs/performance.md"));
    }
    Ok(stated)
}
