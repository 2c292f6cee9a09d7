//! Checks the links between the documents of the repository.

use super::{Problem, Source};
use std::path::Path;

pub(super) fn check(source: &Source, root: &Path) -> Vec<Problem> {
    let folder = Path::new(&source.path).parent().unwrap_or(Path::new(""));
    let mut problems = Vec::new();
    let mut in_code = false;
    for (index, line) in source.text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            in_code = !in_code;
        }
        if in_code {
            continue;
        }
        for target in link_targets(line) {
            let path = target.split('#').next().unwrap_or_default();
            let elsewhere = path.is_empty() || path.contains("://") || path.starts_with("mailto:");
            if !elsewhere && !root.join(folder).join(path).exists() {
                problems.push(source.problem(index + 1, format!("no such file: {path}")));
            }
        }
    }
    problems
}

/// Returns the targets in the round brackets of `[text](target)`.
fn link_targets(line: &str) -> impl Iterator<Item = &str> {
    line.split("](").skip(1).filter_map(|rest| rest.split(')').next())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a dead link is found; a live one, a web page and code cause no problem.
    #[test]
    fn dead_links() {
        let root = crate::workspace_root();
        let text = "[a](Cargo.toml) [b](https://x.org/y) [c](#part) [d](no/such.md)\n\
                    ```\n[e](nowhere)\n```\n";
        let source = Source { path: "README.md".into(), text: text.into() };
        let problems = check(&source, &root);
        assert_eq!(problems.len(), 1);
        assert_eq!(problems[0].to_string(), "README.md:1: no such file: no/such.md");
    }
}
