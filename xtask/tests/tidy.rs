//! Runs the rules of the project as a test.

/// Goal: the tree keeps its own rules. Method: every check of `xtask::tidy` over every file.
#[test]
fn the_tree_keeps_its_rules() {
    let problems = xtask::tidy::check(&xtask::workspace_root()).expect("the checks run");
    let lines: Vec<String> = problems.iter().map(ToString::to_string).collect();
    assert!(lines.is_empty(), "{} problem(s):\n{}", lines.len(), lines.join("\n"));
}
