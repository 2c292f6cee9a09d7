//! `lab switch` in a short run: checks the report and that paths are really used, not the speed.

use anyhow::{Result, ensure};
use lunar_lab::peers::lunar;
use lunar_lab::system::process;
use lunar_lab::system::scratch::Scratch;
use serde_json::Value;
use std::time::Duration;

/// Timeout for a whole short run, even on a busy machine.
const RUN_MAX: Duration = Duration::from_secs(300);

/// Goal: all paths are measured; the fast path relays, the slow path and the others do not; all
/// documents have the figures. Method: one size; the counts of `lunar_relayed_commands_total`.
#[test]
fn all_paths_of_the_switch_are_measured() -> Result<()> {
    let scratch = Scratch::new("switch-bench-test")?;
    let [json, markdown, html] =
        ["json", "md", "html"].map(|end| scratch.path(&format!("s.{end}")));
    let papers = scratch.path("papers.md");
    std::fs::write(&papers, "# Papers\n<!-- switch: begin -->\nnone\n<!-- switch: end -->\n")?;
    let binary = format!("LUNAR_BIN={}", lunar::binary()?);
    let short = ["--rounds", "1", "--seconds", "0.3", "--disk-size", "16M"];
    let cells = ["--scene", "null,two,link", "--size", "64K"];
    let files = ["--json", &json, "--markdown", &markdown, "--html", &html, "--papers", &papers];
    let command = [binary.as_str(), env!("CARGO_BIN_EXE_lab"), "switch"];
    let words = [&command[..], &short, &cells, &files].concat();
    let finished = process::run("env", &words, RUN_MAX)?;
    ensure!(finished.succeeded(), "{}", finished.outputs());
    let document: Value = serde_json::from_slice(&std::fs::read(json)?)?;
    let measured = document["cells"].as_array().unwrap();
    // Four patterns, and two random ones twice.
    assert_eq!(measured.len(), 8, "{document:#}");
    for cell in measured {
        let paths = cell["rounds"][0].as_array().unwrap();
        let names: Vec<_> = paths.iter().map(|path| path["path"].as_str().unwrap()).collect();
        assert_eq!(names, ["direct", "bytes", "slow", "fast", "foreign"]);
        for path in paths {
            let figure = |key: &str| path["turn"][key].as_f64().unwrap();
            assert!(figure("bytes_per_second") > 0.0 && figure("p50_us") > 0.0, "{cell}");
            assert_eq!(figure("relayed_share") > 0.5, path["path"] == "fast", "{cell}");
            assert_eq!(figure("switch_cpu_us") > 0.0, path["path"] != "direct", "{cell}");
        }
    }
    let goals = document["goals"].as_array().unwrap();
    let parts = ["foreign", "slow", "bytes", "link"];
    for part in parts {
        assert!(goals.iter().any(|goal| goal["part"] == part), "{part}: {goals:#?}");
    }
    let [markdown, html, papers] = [markdown, html, papers].map(std::fs::read_to_string);
    let (markdown, html, papers) = (markdown?, html?, papers?);
    for goal in goals {
        assert!(goal["got"].is_number() && goal["outcome"] != "not_measured", "{goal}");
        assert!(markdown.contains(goal["what"].as_str().unwrap()), "{goal}");
    }
    for text in [&markdown, &html, &papers] {
        assert!(text.contains("best read throughput, below end to end"));
        assert!(!text.contains("{{"));
    }
    assert!(html.contains("Figure 11") && papers.contains("measured on"));
    Ok(())
}
