//! Names of types: one meaning for each in the workspace.

use super::{Problem, Source};
use std::collections::{BTreeMap, BTreeSet};

/// Names that several packages may give to a type, and why.
const SHARED: &[(&str, &str)] = &[
    ("Error", "the error of a crate: the convention of Rust"),
    ("ErrorKind", "of an `Error`, as in std"),
    ("Problem", "the API's document of an error, and a finding of `tidy`"),
    ("Session", "an iSCSI session, as each role and the API's documents have it"),
    ("Lun", "the field of a PDU, and the API's document of a LUN"),
    ("Luns", "the LUNs that a session sees, and the API's document of them"),
    ("Sessions", "the sessions of a server, and the API's document of them"),
    ("Status", "the status byte of SAM-5, and the API's document of the server's status"),
    ("Unit", "a logical unit, as the target serves it and as the initiator uses it"),
    ("Resize", "the capability of a device, and the API's request for it"),
];

/// Names the types with one name in several packages that [`SHARED`] does not have.
pub(super) fn check(sources: &[Source]) -> Vec<Problem> {
    let mut found: BTreeMap<&str, BTreeMap<String, Problem>> = BTreeMap::new();
    for source in sources.iter().filter(|source| is_product(source)) {
        for (line, name) in types(&source.text) {
            let problem = source.problem(line, "");
            found.entry(name).or_default().entry(package(&source.path)).or_insert(problem);
        }
    }
    let allowed: BTreeSet<&str> = SHARED.iter().map(|(name, _)| *name).collect();
    let mut problems = Vec::new();
    for (name, packages) in found.iter().filter(|(_, packages)| packages.len() > 1) {
        if !allowed.contains(name) {
            let all: Vec<&str> = packages.keys().map(String::as_str).collect();
            let what = format!(
                "{name} is a type of {}: rename one of them, or add the reason for both to \
                 xtask/src/tidy/names.rs",
                all.join(" and ")
            );
            problems
                .extend(packages.values().next().map(|first| Problem { what, ..first.clone() }));
        }
    }
    for (name, _) in SHARED.iter().filter(|(name, _)| found.get(name).is_none_or(|of| of.len() < 2))
    {
        let file = "xtask/src/tidy/names.rs".to_owned();
        problems.push(Problem {
            file,
            line: 0,
            what: format!("{name} is not a type of two packages: remove its row"),
        });
    }
    problems
}

fn is_product(source: &Source) -> bool {
    let part = |part: &str| matches!(part, "tests" | "tests.rs");
    source.is_rust() && source.path.contains("/src/") && !source.path.split('/').any(part)
}

fn package(path: &str) -> String {
    path.split("/src/").next().unwrap_or_default().to_owned()
}

/// The types that are visible outside their module: line and name.
fn types(text: &str) -> Vec<(usize, &str)> {
    // House style: the tests of a file come last.
    let product = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let mut found = Vec::new();
    for (index, line) in product.lines().enumerate() {
        let line = line.trim_start();
        let Some(rest) = line.strip_prefix("pub ").or_else(|| line.strip_prefix("pub(crate) "))
        else {
            continue;
        };
        let mut words = rest.split(|letter: char| !letter.is_alphanumeric() && letter != '_');
        if matches!(words.next(), Some("struct" | "enum" | "trait" | "type" | "union")) {
            found.extend(words.next().map(|name| (index + 1, name)));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(path: &str, text: &str) -> Source {
        Source { path: path.to_owned(), text: text.to_owned() }
    }

    /// Goal: a name in two packages is found, one in two modules or in tests is not.
    #[test]
    fn names_of_two_packages_are_found() {
        let place = "pub struct Place;\n";
        let of = |second: &str, text: &str| {
            let sources = [source("crates/lunar-a/src/lib.rs", place), source(second, text)];
            check(&sources).iter().filter(|problem| problem.what.contains("Place")).count()
        };
        assert_eq!(of("crates/lunar-b/src/lib.rs", "pub(crate) enum Place {}\n"), 1);
        assert_eq!(of("crates/lunar-b/src/lib.rs", "pub(super) enum Place {}\n"), 0);
        assert_eq!(of("crates/lunar-b/src/lib.rs", "pub struct Places;\n"), 0);
        assert_eq!(of("crates/lunar-b/src/tests.rs", place), 0);
        assert_eq!(of("crates/lunar-a/src/other.rs", place), 0);
        assert_eq!(types("    pub trait Device: Send {}\n"), [(1, "Device")]);
    }
}
