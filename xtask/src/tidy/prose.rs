//! First words of comments: a comment opens with its subject.

use super::{Problem, Source};
use std::collections::BTreeMap;

/// Words that make a reader guess the subject.
const OPENERS: &[&str] = &["What", "Who", "How", "It", "So", "Such", "Whoever", "Where", "As"];

/// Share of comment blocks of a package that may open with one of [`OPENERS`], in percent.
const OPENERS_PERCENT_MAX: usize = 3;

/// Counts the comment blocks of each crate and Java module, and names the packages with too many
/// bad openers, with the first of them.
pub(super) fn check(sources: &[Source]) -> Vec<Problem> {
    let mut counts: BTreeMap<String, Count> = BTreeMap::new();
    for source in sources.iter().filter(|source| source.is_rust() || source.is_java()) {
        let count = counts.entry(package(&source.path)).or_default();
        for (line, first) in first_lines(&source.text, source.is_java()) {
            count.blocks += 1;
            if opens_badly(first) {
                count.bad.push(source.problem(line, "begin the comment with its subject"));
            }
        }
    }
    let exceeds = |count: &Count| count.bad.len() * 100 > count.blocks * OPENERS_PERCENT_MAX;
    let mut problems = Vec::new();
    for (package, count) in counts.into_iter().filter(|(_, count)| exceeds(count)) {
        let (bad, blocks) = (count.bad.len(), count.blocks);
        let list = OPENERS.join(", ");
        let what = format!(
            "{bad} of {blocks} comments of {package} begin with {list}; the maximum is \
             {OPENERS_PERCENT_MAX} %"
        );
        let first = count.bad.into_iter().next();
        problems.extend(first.map(|first| Problem { what, ..first }));
    }
    problems
}

#[derive(Default)]
struct Count {
    blocks: usize,
    bad: Vec<Problem>,
}

/// The folder of a crate or Java module.
fn package(path: &str) -> String {
    let parts: Vec<&str> = path.split('/').collect();
    let is_below = matches!(parts[0], "crates" | "apps" | "java");
    parts[..parts.len().min(1 + usize::from(is_below))].join("/")
}

fn opens_badly(line: &str) -> bool {
    let word = line.split(|letter: char| !letter.is_alphanumeric()).next().unwrap_or_default();
    OPENERS.contains(&word)
}

/// The first line of text of each comment block, with its number.
fn first_lines(text: &str, is_java: bool) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let (mut inside, mut begun) = (false, false);
    for (number, line) in text.lines().enumerate().map(|(index, line)| (index + 1, line.trim())) {
        let content = match line.strip_prefix("//") {
            Some(rest) => Some(rest.trim_start_matches(['/', '!'])),
            None if is_java => line
                .strip_prefix("/**")
                .or_else(|| line.strip_prefix("/*"))
                .or_else(|| line.strip_prefix('*').filter(|_| inside)),
            None => None,
        };
        let Some(content) = content else {
            (inside, begun) = (false, false);
            continue;
        };
        let content = content.trim_end_matches("*/").trim();
        inside = !line.ends_with("*/");
        if !begun && !content.is_empty() {
            found.push((number, content));
            begun = true;
        }
        begun &= inside;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(path: &str, text: &str) -> Source {
        Source { path: path.to_owned(), text: text.to_owned() }
    }

    /// Goal: each block counts once, by its first line of text, in both languages.
    #[test]
    fn blocks_are_found() {
        let rust =
            "//! One.\n//! What.\n\n/// What it is.\nfn f() {} // not a block of its own\n// So\n";
        let lines: Vec<_> = first_lines(rust, false).into_iter().map(|(line, _)| line).collect();
        assert_eq!(lines, [1, 4, 6]);
        let java = "/**\n * How.\n *\n * More.\n */\nint x; // end\n/* It. */\n// As\n";
        assert_eq!(first_lines(java, true), [(2, "How."), (7, "It."), (8, "As")]);
    }

    /// Goal: up to three of a hundred pass, more do not, and words that begin alike are no fault.
    #[test]
    fn shares_are_checked_per_package() {
        let with = |bad: usize| {
            let good = "/// Item.\nfn f() {}\n".repeat(100 - bad);
            let bad = "/// It is one.\nfn f() {}\n".repeat(bad);
            check(&[source("crates/lunar-a/src/lib.rs", &(good + &bad))]).len()
        };
        assert_eq!((with(3), with(4)), (0, 1));
        assert_eq!(package("java/pool/src/A.java"), "java/pool");
        assert_eq!(package("lab/src/a.rs"), "lab");
        assert!(!opens_badly("Items") && opens_badly("It's one") && opens_badly("As usual"));
    }
}
