//! Retired terms: words of the project's own making that standard terms have replaced (decision
//! 120).

use super::{Problem, Source};

/// A term that is not used any more.
struct RetiredTerm {
    /// The words in lower case. They also match as parts of a name: `give_up`, `giveUp`.
    words: &'static [&'static str],
    /// Beginnings of the paths where the term is refused; none: everywhere.
    paths: &'static [&'static str],
    /// The terms to use instead.
    instead: &'static str,
}

const ENDED_WAIT: &str = "abandoned (by its caller), detached (it still runs, tracked), cancelled \
                          (a job or a waiter), or released";
const POSITION: &str = "slot of a member, source or destination of a migration, index, location, \
                        or permit";
const UNREACHABLE: &str = "unreachable (the transport), missing (at an opening), left out (by the \
                           pool), or unavailable";

const RETIRED: &[RetiredTerm] = &[
    RetiredTerm { words: &["give", "up"], paths: &[], instead: ENDED_WAIT },
    RetiredTerm { words: &["gives", "up"], paths: &[], instead: ENDED_WAIT },
    RetiredTerm { words: &["given", "up"], paths: &[], instead: ENDED_WAIT },
    RetiredTerm { words: &["gave", "up"], paths: &[], instead: ENDED_WAIT },
    RetiredTerm { words: &["giving", "up"], paths: &[], instead: ENDED_WAIT },
    RetiredTerm { words: &["place"], paths: STORAGE, instead: POSITION },
    RetiredTerm { words: &["places"], paths: STORAGE, instead: POSITION },
    RetiredTerm { words: &["away"], paths: SERVERS, instead: UNREACHABLE },
];

/// Paths whose subject are members and extents.
const STORAGE: &[&str] = &[
    "apps/lunar/src/commands/pool",
    "apps/lunar/src/commands/switch",
    "crates/lunar-control/src/api/",
    "crates/lunar-control/src/config/moved_extents",
    "crates/lunar-control/src/config/virtual_lun",
    "crates/lunar-control/src/daemon/migrations",
    "crates/lunar-control/src/daemon/pools",
    "crates/lunar-control/src/metrics/",
    "crates/lunar-pool/",
    "crates/lunar-switch/",
    "java/pool/",
];

/// Paths whose subject are storages that may be unreachable.
const SERVERS: &[&str] = &[
    "apps/lunar/src/",
    "crates/lunar-control/src/api/",
    "crates/lunar-control/src/config/",
    "crates/lunar-control/src/daemon/",
    "crates/lunar-control/src/metrics/",
    "crates/lunar-pool/src/assembly",
    "crates/lunar-switch/src/",
];

/// Names the retired terms in a source.
pub(super) fn check(source: &Source) -> Vec<Problem> {
    let is_refused = |term: &&RetiredTerm| {
        term.paths.is_empty() || term.paths.iter().any(|path| source.path.starts_with(path))
    };
    // This file lists the terms.
    if source.path == "xtask/src/tidy/terms.rs" {
        return Vec::new();
    }
    let terms: Vec<&RetiredTerm> = RETIRED.iter().filter(is_refused).collect();
    let mut problems = Vec::new();
    for (index, line) in source.text.lines().enumerate() {
        let words = words(line);
        for term in &terms {
            let is_used = words.windows(term.words.len()).any(|found| found == term.words);
            if is_used && !is_rename(line) {
                let what = format!("\"{}\": use {}", term.words.join(" "), term.instead);
                problems.push(source.problem(index + 1, what));
            }
        }
    }
    problems
}

/// True for the attribute that keeps a key of a stored file.
fn is_rename(line: &str) -> bool {
    line.trim_start().starts_with("#[serde(rename")
}

/// Returns the words of a line in lower case, also those of names in either case.
fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word = String::new();
    let mut was_lower = false;
    for letter in line.chars() {
        let is_start = letter.is_uppercase() && was_lower;
        if (is_start || !letter.is_alphanumeric()) && !word.is_empty() {
            words.push(std::mem::take(&mut word));
        }
        if letter.is_alphanumeric() {
            word.extend(letter.to_lowercase());
        }
        was_lower = letter.is_lowercase();
    }
    if !word.is_empty() {
        words.push(word);
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> usize {
        check(&Source { path: path.to_owned(), text: text.to_owned() }).len()
    }

    /// Goal: a retired term is found in prose and in names of both languages, whole words only.
    #[test]
    fn retired_terms_are_found() {
        for text in ["it gives up", "fn give_up()", "GivenUpWrites", "isGivenUp", "GIVEN_UP_MAX"] {
            assert_eq!(found("crates/lunar-a/src/lib.rs", text), 1, "{text}");
        }
        for text in ["it gives update", "upgiven", "give it up", "replace_places"] {
            assert_eq!(found("crates/lunar-a/src/lib.rs", text), 0, "{text}");
        }
    }

    /// Goal: a word with other uses is refused only where it had the retired meaning, and the key
    /// of a stored file passes.
    #[test]
    fn terms_have_paths() {
        let of = |path: &str| found(path, "let place = member.place;\nreplace(in_use)\n");
        assert_eq!((of("crates/lunar-pool/src/lib.rs"), of("lab/src/a.rs")), (1, 0));
        assert_eq!(found("crates/lunar-switch/src/a.rs", "    #[serde(rename = \"place\")]"), 0);
    }
}
