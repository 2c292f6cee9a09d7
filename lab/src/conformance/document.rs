//! CONFORMANCE.md: its prose is `conformance.template.md`, everything else comes from the code
//! or, for the libiscsi suite, from a run.

use crate::report::sections::marked;
use anyhow::{Context, Result, ensure};

/// Name of the part that a run of the suite writes.
pub const SUITE: &str = "libiscsi";

/// Function that writes a part from the code.
type Writer = fn() -> String;

/// Parts that are written from the code, cheap enough to be compared by every run of the tests.
pub const FROM_CODE: &[(&str, Writer)] = &[
    ("commands", lunar_scsi::commands::markdown),
    ("vpd", lunar_scsi::vpd::markdown),
    ("mode", lunar_scsi::mode::markdown),
    ("faults", super::faults::markdown),
    ("own", super::own_tests::markdown),
    ("management", lunar_iscsi::pdu::management_markdown),
    ("keys", lunar_iscsi::text::markdown),
    ("musts", super::rfc_requirements::markdown),
    ("log", lunar_scsi::log::markdown),
];

const TEMPLATE: &str = include_str!("../../conformance.template.md");

/// Path of the document.
pub const PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../CONFORMANCE.md");

/// Returns the committed CONFORMANCE.md.
///
/// # Errors
/// The file cannot be read.
pub fn committed() -> Result<String> {
    std::fs::read_to_string(PATH).with_context(|| PATH.to_owned())
}

/// Returns the document, with this text for the suite's part.
///
/// # Errors
/// The template has no marks for a part, or marks for an unknown part.
pub fn render(suite: &str) -> Result<String> {
    let mut document = String::from(
        "<!-- Written by `make conformance`: its prose is lab/conformance.template.md. -->\n",
    );
    document += TEMPLATE;
    document = put(&document, SUITE, suite)?;
    for (part, text) in FROM_CODE {
        document = put(&document, part, &text())?;
    }
    let left = document.lines().find(|line| line.starts_with("<!-- part: "));
    ensure!(left.is_none(), "the template refers to an unknown part: {left:?}");
    Ok(document)
}

fn put(document: &str, part: &str, text: &str) -> Result<String> {
    let line = format!("<!-- part: {part} -->\n");
    let lines = document.matches(&line).count();
    ensure!(lines == 1, "the template must contain exactly one line {line}");
    Ok(document.replace(&line, &format!("{}\n", marked(part, text))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::sections::section;

    /// Goal: CONFORMANCE.md matches template and code; `make conformance-tables` writes it.
    /// Method: generates it again with the committed results of the suite, which take minutes to
    /// get.
    #[test]
    fn the_committed_document_is_the_generated_one() -> Result<()> {
        let committed = committed()?;
        let generated = render(section(&committed, SUITE)?)?;
        let at = committed.lines().zip(generated.lines()).find(|(old, new)| old != new);
        ensure!(
            committed == generated,
            "CONFORMANCE.md differs from what is generated: make conformance-tables\n{at:#?}"
        );
        Ok(())
    }

    /// Goal: a part that was inserted is found again, and the prose stays around it.
    #[test]
    fn parts_are_found_again() -> Result<()> {
        let document = render("| a |\n| b |")?;
        assert_eq!(section(&document, SUITE)?, "| a |\n| b |");
        assert_eq!(section(&document, "vpd")?, lunar_scsi::vpd::markdown().trim());
        assert!(section(&document, "nothing").is_err());
        assert!(put(&document, "nothing", "").is_err());
        Ok(())
    }
}
