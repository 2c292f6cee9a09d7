//! Finds marks of unfinished work, and paths that exist on one machine only.

use super::{Problem, Source};

/// Written in two halves, so that this file passes its own check.
const MARKS: &[(&str, &str)] = &[
    (concat!("TO", "DO"), "finish it, or open an issue and delete the mark"),
    (concat!("FIX", "ME"), "fix it, or open an issue and delete the mark"),
    (concat!("XX", "X"), "finish it, or open an issue and delete the mark"),
    (concat!("todo", "!("), "implement it: a stub is a defect"),
    (concat!("unimplemented", "!("), "implement it: a stub is a defect"),
    (concat!("#[ign", "ore"), "enable or delete the test"),
];

/// Top-level folders that exist only on one machine.
const OWN_FOLDERS: &[&str] = &["home", "root", "Users", "work", "farm"];

pub(super) fn check(source: &Source) -> Vec<Problem> {
    let mut problems = Vec::new();
    if source.path.ends_with(".lock") || source.path == "LICENSE" {
        return problems;
    }
    for (index, line) in source.text.lines().enumerate() {
        for (mark, what) in MARKS {
            if contains_word(line, mark) {
                problems.push(source.problem(index + 1, format!("{mark}: {what}")));
            }
        }
        if let Some(folder) = OWN_FOLDERS.iter().find(|folder| names_folder(line, folder)) {
            let what = format!("a path below /{folder} exists only on one machine");
            problems.push(source.problem(index + 1, what));
        }
    }
    problems
}

/// True when `line` contains `mark` other than as part of a longer word.
fn contains_word(line: &str, mark: &str) -> bool {
    let in_word = |letter: char| letter.is_alphanumeric() || letter == '_';
    line.match_indices(mark).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + mark.len()..].chars().next();
        let open = mark.ends_with('(') || mark.starts_with('#');
        !before.is_some_and(in_word) && (open || !after.is_some_and(in_word))
    })
}

/// True when the line contains an absolute path that begins with `folder`, with no path before its
/// slash.
fn names_folder(line: &str, folder: &str) -> bool {
    let path = format!("/{folder}/");
    line.match_indices(&path).any(|(at, _)| {
        let before = &line[..at];
        match before.chars().next_back() {
            // An opening quote, unlike a closing one, has an even number of quotes before it.
            Some('"') => before.matches('"').count() % 2 == 1,
            Some(other) => !other.is_alphanumeric() && !"._-/}$)>*".contains(other),
            None => true,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> usize {
        check(&Source { path: "a.rs".into(), text: text.into() }).len()
    }

    /// Goal: marks and private paths are found, words that contain them are not.
    #[test]
    fn marks_and_paths() {
        assert_eq!(found(concat!("// TO", "DO: later")), 1);
        assert_eq!(found("// a TODOLIST, a method todo_list()"), 0);
        assert_eq!(found(concat!("    todo", "!()")), 1);
        assert_eq!(found(concat!("    #[ign", "ore]")), 1);
        assert_eq!(found(concat!("open(\"/ho", "me/a/disk\")")), 1);
        assert_eq!(found(concat!("`/ro", "ot/x`")), 1);
        assert_eq!(found(concat!("target/wo", "rk/x and crates/home/y, /srv/disk.img")), 0);
        assert_eq!(found(concat!("ls \"$folder\"", "/ro", "ot/boot")), 0);
    }
}
