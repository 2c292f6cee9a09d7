//! Removes one sync at a time from a copy of the tree, builds the server, and plays power cuts.

use super::table::{CALLS, Call, Fate};
use super::{check, line, scan};
use anyhow::{Context, Result, bail, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

/// In front of each message of the power-cut tests that says that something was lost.
const LOST: &str = "NOT KEPT";

/// What became of a removed sync.
struct Round {
    caught_by: Option<String>,
    /// The message, or what else happened.
    how: String,
}

/// Rounds for all calls whose file or text contains `only`. `true`: each was noticed.
///
/// # Errors
/// The table does not fit the source; the unchanged copy fails; something cannot be run.
pub fn mutate(root: &Path, only: &str) -> Result<bool> {
    let problems = check(root)?;
    ensure!(problems.is_empty(), "the table does not fit:\n{}", problems.join("\n"));
    let copy = Copy::make(root)?;
    copy.build().context("the unchanged copy")?;
    let unchanged = copy.play("")?;
    ensure!(unchanged.success, "the unchanged copy fails:\n{}", unchanged.output);
    println!("the unchanged server passes; one sync less each time:");
    let mut missed = 0;
    let mut done = 0;
    for call in CALLS.iter().filter(|call| matches!(call.fate, Fate::Removed { .. })) {
        if !call.file.contains(only) && !call.text.contains(only) {
            continue;
        }
        let began = Instant::now();
        let round = copy.without(call)?;
        let verdict = round.caught_by.as_deref().unwrap_or("NOT NOTICED");
        let place = format!("{}:{}", call.file, line(root, call)?);
        println!("{place:<45} {:>4} s  {verdict}: {}", began.elapsed().as_secs(), round.how);
        missed += usize::from(round.caught_by.is_none());
        done += 1;
    }
    let kept = CALLS.iter().filter(|call| matches!(call.fate, Fate::Kept { .. })).count();
    println!("{done} syncs removed, {missed} not noticed; {kept} calls are none, or left alone");
    Ok(missed == 0)
}

/// A copy of the tree with a build of its own, and the tests of the original.
struct Copy {
    tree: PathBuf,
    build: PathBuf,
    tests: PathBuf,
}

struct Played {
    success: bool,
    output: String,
}

impl Copy {
    fn make(root: &Path) -> Result<Self> {
        let tests = power_cut_tests(root)?;
        let target = tests.ancestors().nth(3).context("a target directory")?;
        let base = target.join("mutate-syncs");
        let copy = Self { tree: base.join("tree"), build: base.join("target"), tests };
        for file in scan::files(root)? {
            let to = copy.tree.join(&file);
            let bytes = fs::read(root.join(&file)).with_context(|| file.clone())?;
            // What has not changed keeps its time, so that it is not built anew.
            if fs::read(&to).ok().as_ref() != Some(&bytes) {
                fs::create_dir_all(to.parent().context("a folder")?)?;
                fs::write(&to, bytes)?;
            }
        }
        Ok(copy)
    }

    fn build(&self) -> Result<()> {
        let output = cargo()
            .args(["build", "--locked", "-p", "lunar"])
            .current_dir(&self.tree)
            .env("CARGO_TARGET_DIR", &self.build)
            .output()?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Ok(())
    }

    /// The power-cut tests with this in their names.
    fn play(&self, tests: &str) -> Result<Played> {
        let output = Command::new(&self.tests)
            .arg(tests)
            .env("LUNAR_BIN", self.build.join("debug/lunar"))
            .env("RUST_BACKTRACE", "0")
            .current_dir(&self.tree)
            .output()?;
        let text = [output.stdout, output.stderr].concat();
        let output_text = String::from_utf8_lossy(&text).into_owned();
        ensure!(!output_text.contains("running 0 tests"), "no test is called {tests}");
        Ok(Played { success: output.status.success(), output: output_text })
    }

    fn without(&self, call: &Call) -> Result<Round> {
        let Fate::Removed { becomes, noticed_by } = call.fate else { bail!("it stays") };
        let path = self.tree.join(call.file);
        let source = fs::read_to_string(&path)?;
        fs::write(&path, source.replace(call.text, becomes))?;
        let round = self.round(noticed_by);
        fs::write(&path, source)?;
        round.with_context(|| format!("{}: {:?} becomes {becomes:?}", call.file, call.text))
    }

    /// The tests that should notice come first, then all.
    fn round(&self, noticed_by: &str) -> Result<Round> {
        self.build()?;
        let mut last = Played { success: true, output: String::new() };
        for tests in [noticed_by, ""] {
            last = self.play(tests)?;
            if !last.success {
                break;
            }
        }
        let lines = || last.output.lines().map(str::trim);
        let message = lines().find(|line| line.contains(LOST));
        let test = lines().find_map(|line| line.strip_prefix("test ")?.strip_suffix(" ... FAILED"));
        Ok(match (test, message) {
            (Some(test), Some(message)) => {
                Round { caught_by: Some(test.into()), how: message.chars().take(110).collect() }
            }
            (Some(test), None) => {
                let how = format!("{test} fails, but nothing was lost:\n{}", last.output);
                Round { caught_by: None, how }
            }
            _ => Round { caught_by: None, how: "every test passes".into() },
        })
    }
}

/// Builds the tests, and says where they are.
fn power_cut_tests(root: &Path) -> Result<PathBuf> {
    let output = cargo()
        .args(["test", "--locked", "--no-run", "-p", "interop", "--test", "power_cut"])
        .args(["--message-format", "json-render-diagnostics"])
        .current_dir(root)
        .output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout)?;
    let messages = text.lines().filter_map(|line| serde_json::from_str(line).ok());
    let executable = |message: serde_json::Value| {
        let of_test = message["target"]["name"] == "power_cut";
        of_test.then(|| message["executable"].as_str().map(PathBuf::from)).flatten()
    };
    messages.filter_map(executable).next_back().context("cargo named no test program")
}

fn cargo() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}
