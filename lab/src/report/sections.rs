//! Parts of committed documents, between marks, that runs write.

use anyhow::{Context, Result, ensure};

fn marks(part: &str) -> (String, String) {
    (format!("<!-- {part}: begin -->"), format!("<!-- {part}: end -->"))
}

/// Returns a part of a document between its marks.
pub fn marked(part: &str, text: &str) -> String {
    let (begin, end) = marks(part);
    format!("{begin}\n{}\n{end}", text.trim())
}

/// Returns a part of the document, without its marks.
///
/// # Errors
/// The marks are missing.
pub fn section<'a>(document: &'a str, part: &str) -> Result<&'a str> {
    let (begin, end) = marks(part);
    let from = document.find(&begin).with_context(|| format!("the line {begin} is missing"))?
        + begin.len();
    let to = document.find(&end).with_context(|| format!("the line {end} is missing"))?;
    Ok(document.get(from..to).context("the marks are in the wrong order")?.trim())
}

/// Replaces a part of a document, whose marks stay.
///
/// # Errors
/// The marks are missing.
pub fn replaced(document: &str, part: &str, text: &str) -> Result<String> {
    let old = marked(part, section(document, part)?);
    ensure!(document.matches(&old).count() == 1, "the old table of {part} occurs more than once");
    Ok(document.replace(&old, &marked(part, text)))
}
