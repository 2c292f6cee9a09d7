//! Sections of RFCs, and the citations of them in sources.
//!
//! The texts of the RFCs are not part of the project, the numbers of their sections are:
//! `xtask/rfc-sections/rfcNNNN.txt`, one per line, written by `xtask rfc-sections rfcNNNN.txt`.

use anyhow::{Context, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Returns the folder of the lists of section numbers.
pub fn lists_folder(root: &Path) -> PathBuf {
    root.join("xtask").join("rfc-sections")
}

/// RFC number → its sections, for every RFC with a committed list.
pub type Lists = BTreeMap<u32, BTreeSet<String>>;

/// Reads the committed lists.
///
/// # Errors
/// The folder or one of its files cannot be read, or a file is not named `rfcNNNN.txt`.
pub fn read_lists(root: &Path) -> Result<Lists> {
    let folder = lists_folder(root);
    let mut lists = Lists::new();
    for entry in std::fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
        let number = stem.strip_prefix("rfc").and_then(|digits| digits.parse().ok());
        let number = number
            .with_context(|| format!("{}: the file name is not rfcNNNN.txt", path.display()))?;
        let sections = std::fs::read_to_string(&path)?.lines().map(str::to_owned).collect();
        lists.insert(number, sections);
    }
    Ok(lists)
}

/// Returns the section numbers in the text of an RFC, in order: `11.8.5`, `A.4`, `Appendix C` as
/// `C`.
///
/// A heading starts in the first column and follows the one before it; that excludes numbered lists
/// and tables. A parent section whose own heading has another layout is assumed to exist.
pub fn sections_of(text: &str) -> Vec<String> {
    let mut sections: Vec<String> = Vec::new();
    for line in text.lines() {
        let Some(number) = heading_number(line) else { continue };
        let parts: Vec<&str> = number.split('.').collect();
        for depth in 1..=parts.len() {
            let section = parts[..depth].join(".");
            if !sections.contains(&section) {
                sections.push(section);
            }
        }
    }
    sections
}

/// Returns `11.8.5` of `11.8.5.  Target Transfer Tag`, `C` of `Appendix C.  SendTargets Operation`.
fn heading_number(line: &str) -> Option<&str> {
    let rest = line.strip_prefix("Appendix ").unwrap_or(line);
    let appendix = rest.len() != line.len();
    let (number, title) = rest.split_once(' ')?;
    let number = number.trim_end_matches([':', '.']);
    let titled = title.trim_start().starts_with(|first: char| first.is_ascii_alphabetic());
    let (first, deeper) = number.split_once('.').unwrap_or((number, ""));
    let letter = first.len() == 1 && first.bytes().all(|byte| byte.is_ascii_uppercase());
    let digits = is_number(first);
    let numbered = digits || (letter && (appendix || !deeper.is_empty()));
    let deeper_fits = deeper.is_empty() || deeper.split('.').all(is_number);
    ((titled || appendix) && numbered && deeper_fits).then_some(number)
}

fn is_number(part: &str) -> bool {
    (1..=2).contains(&part.len()) && part.bytes().all(|byte| byte.is_ascii_digit())
}

/// A citation of a section of an RFC, or of an RFC as a whole.
#[derive(Debug, Eq, PartialEq)]
pub struct Citation {
    /// Line number, counted from 1.
    pub line: usize,
    /// Number of the RFC; `None` for a `§` without a document.
    pub rfc: Option<u32>,
    /// Section, such as `11.8.5` or `A.4`; `None` if the RFC is cited as a whole.
    pub section: Option<String>,
}

/// Returns every citation in `text`: `RFC 7143 §11.7, §11.8`, `RFC 7143 Appendix C`, a bare `§13`.
///
/// A `§` belongs to the last document named on its line if only other citations stand between them.
/// A bare `§` behind the name of another standard (`SPC-4 §4.5`) belongs to that standard and is
/// left out.
pub fn citations(text: &str) -> Vec<Citation> {
    let mut found = Vec::new();
    for (index, line) in text.lines().enumerate() {
        citations_in_line(line, index + 1, &mut found);
    }
    found
}

/// The document named last on a line, to which a following `§` belongs.
#[derive(Clone, Copy)]
enum CitedDocument {
    None,
    Rfc(u32),
    OtherStandard,
}

fn citations_in_line(line: &str, number: usize, found: &mut Vec<Citation>) {
    let mut document = CitedDocument::None;
    let mut words = line.split_whitespace().peekable();
    while let Some(word) = words.next() {
        let word = word.trim_start_matches(['(', '[', '`', '"', '/', '*']);
        let next = words.peek().copied().unwrap_or_default();
        if word == "RFC" {
            let digits = leading(next, |byte| byte.is_ascii_digit());
            if let Ok(rfc) = digits.parse() {
                words.next();
                document = CitedDocument::Rfc(rfc);
                let after = words.peek().copied().unwrap_or_default();
                if !next[digits.len()..].is_empty() || !starts_section(after) {
                    found.push(Citation { line: number, rfc: Some(rfc), section: None });
                }
            }
        } else if let Some(section) = section_of(word, next) {
            match document {
                CitedDocument::OtherStandard => {}
                CitedDocument::Rfc(rfc) => found.push(cited(number, Some(rfc), section)),
                CitedDocument::None => found.push(cited(number, None, section)),
            }
        } else if is_standard(word) {
            document = CitedDocument::OtherStandard;
        } else if !matches!(word, "and" | "or" | "to" | "–" | "-" | "with") {
            // The sentence continues: later sections belong to the document until the sentence
            // ends.
            document = match document {
                CitedDocument::OtherStandard => CitedDocument::OtherStandard,
                CitedDocument::Rfc(rfc) if !word.ends_with('.') => CitedDocument::Rfc(rfc),
                _ => CitedDocument::None,
            };
        }
    }
}

fn cited(line: usize, rfc: Option<u32>, section: &str) -> Citation {
    Citation { line, rfc, section: Some(section.to_owned()) }
}

fn starts_section(word: &str) -> bool {
    word.starts_with('§') || word == "Appendix"
}

/// Returns the section of `§11.8.5,` or `Appendix C.`.
fn section_of<'a>(word: &'a str, next: &'a str) -> Option<&'a str> {
    if let Some(rest) = word.strip_prefix('§') {
        let number = leading(rest, |byte| byte.is_ascii_alphanumeric() || byte == b'.');
        return Some(number.trim_end_matches('.')).filter(|number| !number.is_empty());
    }
    let letter = leading(next, |byte| byte.is_ascii_alphanumeric() || byte == b'.');
    let letter = letter.trim_end_matches('.');
    let fits = word == "Appendix" && letter.starts_with(|first: char| first.is_ascii_uppercase());
    fits.then_some(letter)
}

/// True for a T10 standard, `SPC-4`, `SBC-3`, `SAM-5`, `OSD-2`: there are no lists of their
/// sections.
fn is_standard(word: &str) -> bool {
    let letters = leading(word, |byte| byte.is_ascii_uppercase());
    letters.len() == 3
        && word[3..]
            .strip_prefix('-')
            .is_some_and(|rest| rest.starts_with(|digit: char| digit.is_ascii_digit()))
}

fn leading(word: &str, fits: impl Fn(u8) -> bool) -> &str {
    let end = word.bytes().position(|byte| !fits(byte)).unwrap_or(word.len());
    &word[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: headings become numbers; lists, tables and running text do not.
    #[test]
    fn headings_are_found() {
        let text = "1.  Introduction\n   2.  A list item\n1.1. Names\n11.8.5.  Target Tag\n\
                    Appendix C.  SendTargets\nA.4.  CRC Examples\n0123 Field\nA word\n";
        let expected = ["1", "1.1", "11", "11.8", "11.8.5", "C", "A", "A.4"];
        assert_eq!(sections_of(text), expected);
    }

    fn pairs(text: &str) -> Vec<(Option<u32>, Option<String>)> {
        citations(text).into_iter().map(|found| (found.rfc, found.section)).collect()
    }

    /// Goal: every form of citation in the sources is found with its document.
    #[test]
    fn citations_are_found() {
        let section = |number: &str| Some(number.to_owned());
        assert_eq!(pairs("/// RFC 7143 §11.8.5."), [(Some(7143), section("11.8.5"))]);
        assert_eq!(
            pairs("(RFC 7143 §11.7, §11.8 and §9)"),
            [
                (Some(7143), section("11.7")),
                (Some(7143), section("11.8")),
                (Some(7143), section("9"))
            ]
        );
        assert_eq!(pairs("RFC 7143 Appendix A.4: x"), [(Some(7143), section("A.4"))]);
        assert_eq!(pairs("as RFC 1982 asks"), [(Some(1982), None)]);
        assert_eq!(pairs("as RFC 1982, and so on"), [(Some(1982), None)]);
        assert_eq!(pairs("never reserved, §11.8.5."), [(None, section("11.8.5"))]);
        assert_eq!(pairs("Sense data. SPC-4 §4.5.6."), []);
    }
}
