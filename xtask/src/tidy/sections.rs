//! Checks that every RFC section cited in a source or a document exists.

use super::{Problem, Source};
use crate::rfc::{Citation, Lists, citations};

/// Sources in which a section sign without a document means RFC 7143.
const ISCSI_SOURCES: &[&str] = &["crates/lunar-iscsi/", "java/iscsi/"];
const ISCSI_RFC: u32 = 7143;

pub(super) fn check(source: &Source, lists: &Lists) -> Vec<Problem> {
    let prose = source.is_rust()
        || source.is_java()
        || source.is_markdown()
        || source.path.ends_with(".py");
    // This crate's own sources mention citations without citing.
    if !prose || source.path.starts_with("xtask/") {
        return Vec::new();
    }
    let implies_iscsi = ISCSI_SOURCES.iter().any(|folder| source.path.starts_with(folder));
    let problems = citations(&source.text).into_iter().filter_map(|citation| {
        let what = problem_with(&citation, implies_iscsi, lists)?;
        Some(source.problem(citation.line, what))
    });
    problems.collect()
}

fn problem_with(citation: &Citation, implies_iscsi: bool, lists: &Lists) -> Option<String> {
    let section = citation.section.as_deref()?;
    let rfc = citation.rfc.or(implies_iscsi.then_some(ISCSI_RFC))?;
    match lists.get(&rfc) {
        Some(sections) if sections.contains(section) => None,
        Some(_) => Some(format!("RFC {rfc} has no §{section}")),
        None => Some(format!(
            "the sections of RFC {rfc} are not in xtask/rfc-sections: cite it without a section"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{BTreeMap, BTreeSet};

    /// Goal: sections that exist pass, others are reported with their line.
    #[test]
    fn sections_must_exist() {
        let lists = BTreeMap::from([(7143, BTreeSet::from([String::from("11.8")]))]);
        let text = "// RFC 7143 §11.8.\n// RFC 7143 §99.1.\n// RFC 1 §2\n// RFC 1\n// §99\n";
        let lines = |path: &str| -> Vec<usize> {
            let source = Source { path: path.into(), text: text.into() };
            check(&source, &lists).into_iter().map(|problem| problem.line).collect()
        };
        assert_eq!(lines("crates/lunar-iscsi/src/a.rs"), [2, 3, 5]);
        assert_eq!(lines("crates/lunar-net/src/a.rs"), [2, 3]);
    }
}
