//! `lab pool` in a short run: checks the report, not the speed.

use anyhow::{Result, ensure};
use lunar_lab::peers::lunar;
use lunar_lab::system::process;
use lunar_lab::system::scratch::Scratch;
use serde_json::Value;
use std::time::Duration;

/// Timeout for a whole short run, even on a busy machine.
const RUN_MAX: Duration = Duration::from_secs(300);

/// Goal: every goal has a figure, and the document has a row for each.
#[test]
fn all_goals_of_pools_are_measured() -> Result<()> {
    let scratch = Scratch::new("pool-bench")?;
    let (json, markdown) = (scratch.path("pool.json"), scratch.path("pool.md"));
    let binary = format!("LUNAR_BIN={}", lunar::binary()?);
    let short = ["--rounds", "1", "--seconds", "0.5", "--size", "16M"];
    let files = ["--json", json.as_str(), "--markdown", markdown.as_str()];
    let words =
        [&[binary.as_str(), env!("CARGO_BIN_EXE_lab"), "pool"], &short[..], &files].concat();
    let finished = process::run("env", &words, RUN_MAX)?;
    ensure!(finished.succeeded(), "{}", finished.outputs());
    let document: Value = serde_json::from_slice(&std::fs::read(json)?)?;
    let goals = document["goals"].as_array().unwrap();
    assert!(goals.len() >= 18, "{document:#}");
    let text = std::fs::read_to_string(markdown)?;
    for goal in goals {
        assert!(goal["got"].is_number() && goal["outcome"] != "not_measured", "{goal}");
        assert!(text.contains(goal["what"].as_str().unwrap()), "{goal}");
    }
    Ok(())
}
