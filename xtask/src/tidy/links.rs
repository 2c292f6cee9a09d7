//! Checks the links between the documents of the repository.

use super::{Problem, Source};
use std::path::{Component, Path, PathBuf};

/// The contents page, and the folder whose documents it lists.
const CONTENTS: &str = "docs/README.md";
const LISTED_FOLDER: &str = "docs/";

pub(super) fn check(source: &Source, sources: &[Source], root: &Path) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (line, target) in links(&source.text) {
        let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
        if path.contains("://") || path.starts_with("mailto:") {
            continue;
        }
        let document = if path.is_empty() { source.path.clone() } else { resolve(source, path) };
        if !root.join(&document).exists() {
            problems.push(source.problem(line, format!("no such file: {path}")));
            continue;
        }
        let Some(linked) = sources.iter().find(|source| source.path == document) else { continue };
        let has_anchor = || headings(&linked.text).any(|heading| anchor_of(heading) == anchor);
        if linked.is_markdown() && !anchor.is_empty() && !has_anchor() {
            problems.push(source.problem(line, format!("no such heading: {target}")));
        }
    }
    problems
}

/// Finds documents that the contents page does not list.
pub(super) fn check_contents(sources: &[Source]) -> Vec<Problem> {
    let Some(contents) = sources.iter().find(|source| source.path == CONTENTS) else {
        return Vec::new();
    };
    let listed: Vec<_> = links(&contents.text).map(|(_, target)| target).collect();
    let is_missing = |source: &&Source| {
        let name = source.path.strip_prefix(LISTED_FOLDER).filter(|name| !name.contains('/'));
        source.is_markdown()
            && source.path != CONTENTS
            && name.is_some_and(|name| !listed.contains(&name))
    };
    let missing = sources.iter().filter(is_missing);
    missing.map(|source| contents.problem(0, format!("does not list {}", source.path))).collect()
}

/// The path inside the repository of a link of `source`.
fn resolve(source: &Source, link: &str) -> String {
    let folder = Path::new(&source.path).parent().unwrap_or(Path::new(""));
    let mut path = PathBuf::new();
    for component in folder.join(link).components() {
        match component {
            Component::ParentDir => drop(path.pop()),
            other => path.push(other),
        }
    }
    path.to_string_lossy().into_owned()
}

/// Lines outside of code blocks, with their numbers.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut in_code = false;
    let lines = text.lines().enumerate().map(|(index, line)| (index + 1, line));
    lines.filter(move |(_, line)| {
        let is_fence = line.trim_start().starts_with("```");
        in_code ^= is_fence;
        !in_code && !is_fence
    })
}

/// Returns the targets in the round brackets of `[text](target)`, with their lines.
fn links(text: &str) -> impl Iterator<Item = (usize, &str)> {
    prose(text).flat_map(|(number, line)| {
        let targets = line.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        targets.map(move |target| (number, target))
    })
}

fn headings(text: &str) -> impl Iterator<Item = &str> {
    let headings = prose(text).filter(|(_, line)| line.starts_with('#'));
    headings.map(|(_, line)| line.trim_start_matches('#').trim())
}

/// The anchor that forges give to a heading.
fn anchor_of(heading: &str) -> String {
    let kept = heading.chars().filter(|letter| letter.is_alphanumeric() || " -_".contains(*letter));
    kept.collect::<String>().to_lowercase().replace(' ', "-")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(path: &str, text: &str) -> Source {
        Source { path: path.into(), text: text.into() }
    }

    /// Goal: a dead link is found; a live one, a web page and code cause no problem.
    #[test]
    fn dead_links() {
        let root = crate::workspace_root();
        let text = "# Part\n[a](Cargo.toml) [b](https://x.org/y) [c](#part) [d](no/such.md)\n\
                    ```\n[e](nowhere)\n```\n";
        let source = source("README.md", text);
        let problems = check(&source, &[], &root);
        assert_eq!(problems.len(), 1);
        assert_eq!(problems[0].to_string(), "README.md:2: no such file: no/such.md");
    }

    /// Goal: a link to a heading that the document lacks is found, also in another folder.
    #[test]
    fn dead_anchors() {
        let root = crate::workspace_root();
        let text = "[a](../README.md#use-it-now) [b](../README.md#other) [c](#none)\n";
        let sources = [
            source("README.md", "## Use it, *now*\n```\n# other\n```\n"),
            source("docs/a.md", text),
        ];
        let found = check(&sources[1], &sources, &root);
        let found: Vec<_> = found.iter().map(|problem| problem.what.as_str()).collect();
        // docs/a.md does not exist here.
        assert_eq!(found, ["no such heading: ../README.md#other", "no such file: "]);
    }

    /// Goal: the contents page lists each document.
    #[test]
    fn unlisted_documents() {
        let sources = [
            source("docs/README.md", "[a](a.md)"),
            source("docs/a.md", ""),
            source("docs/b.md", ""),
            source("docs/decisions/c.md", ""),
        ];
        let found = check_contents(&sources);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].what, "does not list docs/b.md");
    }
}
