//! Compares pictures and figures of README.md with the documents that they come from.

use super::{Problem, Source};
use crate::pictures;
use anyhow::{Context, Result};
use std::path::Path;

/// Lines that README.md may have.
const README_LINES_MAX: usize = 200;

pub(super) fn check(sources: &[Source], root: &Path) -> Result<Vec<Problem>> {
    let find = |path: &str| sources.iter().find(|source| source.path == path);
    let readme = find("README.md").context("there is no README.md")?;
    let mut problems = Vec::new();
    for picture in pictures::draw(root)? {
        if find(&picture.path).is_none_or(|source| source.text != picture.svg) {
            let what = "differs from its document: make pictures";
            problems.push(Problem { file: picture.path.clone(), line: 0, what: what.into() });
        }
        if !readme.text.contains(&format!("]({})", picture.path)) {
            problems.push(readme.problem(0, format!("does not show {}", picture.path)));
        }
    }
    problems.extend(check_figures(readme, &pictures::stated_figures(root)?));
    let lines = readme.text.lines().count();
    if lines > README_LINES_MAX {
        let what =
            format!("{lines} lines, the maximum is {README_LINES_MAX}: move a part to docs/");
        problems.push(readme.problem(lines, what));
    }
    Ok(problems)
}

/// Finds figures that README.md does not state as their documents do.
fn check_figures(readme: &Source, stated: &[(String, &str)]) -> Vec<Problem> {
    let missing = stated.iter().filter(|(text, _)| !readme.text.contains(text));
    missing.map(|(text, from)| readme.problem(0, format!("write `{text}`, as in {from}"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a figure that is not the document's is found.
    #[test]
    fn other_figures_are_found() {
        let readme = Source { path: "README.md".into(), text: "225 of 230 tests pass".into() };
        let stated = |text: &str| vec![(text.to_owned(), "CONFORMANCE.md")];
        assert_eq!(check_figures(&readme, &stated("225 of 230 tests pass")), []);
        let problems = check_figures(&readme, &stated("226 of 230 tests pass"));
        assert_eq!(problems.len(), 1);
        assert!(problems[0].what.contains("CONFORMANCE.md"), "{}", problems[0]);
    }
}
