//! Builds a server in which each sync can be left out, and runs the power-cut tests without each.

use super::switchable_build::{self, VARIABLE};
use super::table::{CALLS, Call, Treatment};
use super::{check, line, scan};
use anyhow::{Context, Result, bail, ensure};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Prefix of messages of the power-cut tests that report lost data.
const LOST: &str = "NOT KEPT";

/// Time after which a round counts as hung; all power-cut tests together take a minute.
const RUN_TIME_MAX: Duration = Duration::from_secs(300);
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Result of removing a sync.
struct Round {
    failed_test: Option<String>,
    /// The message of the test, or a description of the failure.
    message: String,
}

/// Runs a round for each call whose file or text contains `only`. Returns `true` if each removal
/// was detected.
///
/// # Errors
/// The table does not match the source; the server fails with all of its syncs; a program cannot be
/// run.
pub fn mutate(root: &Path, only: &str) -> Result<bool> {
    let began = Instant::now();
    let problems = check(root)?;
    ensure!(problems.is_empty(), "the table does not match the source:\n{}", problems.join("\n"));
    let copy = TreeCopy::make(root)?;
    let not_built = copy.build_all(root)?;
    let complete = copy.run_tests("", None)?;
    ensure!(complete.success, "a server with all of its syncs fails:\n{}", complete.output);
    println!("built, and passes with all syncs, after {} s", began.elapsed().as_secs());
    let (mut missed, mut done) = (0, 0);
    for (row, call) in CALLS.iter().enumerate() {
        let Treatment::Removed { detected_by, .. } = call.treatment else { continue };
        if !call.file.contains(only) && !call.text.contains(only) {
            continue;
        }
        let began = Instant::now();
        let round = match not_built.get(&row) {
            Some(error) => Round {
                failed_test: None,
                message: format!("the replacement does not compile: {error}"),
            },
            None => copy.round(row, detected_by)?,
        };
        let verdict = round.failed_test.as_deref().unwrap_or("NOT DETECTED");
        let location = format!("{}:{}", call.file, line(root, call)?);
        println!(
            "{location:<45} {:>5.1} s  {verdict}: {}",
            began.elapsed().as_secs_f64(),
            round.message
        );
        missed += usize::from(round.failed_test.is_none());
        done += 1;
    }
    let kept = CALLS.iter().filter(|call| matches!(call.treatment, Treatment::Kept { .. })).count();
    println!(
        "{done} syncs removed, {missed} not detected; {kept} calls kept; {} s",
        began.elapsed().as_secs()
    );
    Ok(missed == 0)
}

/// A copy of the tree with a build of its own, and the tests of the original.
struct TreeCopy {
    tree: PathBuf,
    build: PathBuf,
    tests: PathBuf,
}

struct RunResult {
    success: bool,
    output: String,
}

impl TreeCopy {
    fn make(root: &Path) -> Result<Self> {
        let tests = power_cut_tests(root)?;
        let target = tests.ancestors().nth(3).context("there is no target directory")?;
        let base = target.join("mutate-syncs");
        let copy = Self { tree: base.join("tree"), build: base.join("target"), tests };
        let with_switches =
            |file: &str| CALLS.iter().any(|call| is_removed(call) && call.file == file);
        for file in scan::files(root)?.into_iter().filter(|file| !with_switches(file)) {
            let bytes = fs::read(root.join(&file)).with_context(|| file.clone())?;
            write_changed(&copy.tree.join(&file), &bytes)?;
        }
        Ok(copy)
    }

    /// Builds the server; returns the rows whose replacement does not compile, with the first
    /// error.
    fn build_all(&self, root: &Path) -> Result<BTreeMap<usize, String>> {
        let mut rows: BTreeSet<_> =
            (0..CALLS.len()).filter(|row| is_removed(&CALLS[*row])).collect();
        let mut not_built = BTreeMap::new();
        loop {
            let switchable = switchable_build::write(root, &self.tree, &rows)?;
            let output = cargo()
                .args(["build", "--locked", "-p", "lunar-san", "--message-format", "json"])
                .current_dir(&self.tree)
                .env("CARGO_TARGET_DIR", &self.build)
                .env("CARGO_PROFILE_DEV_DEBUG", "0")
                .output()?;
            if output.status.success() {
                return Ok(not_built);
            }
            let messages = String::from_utf8_lossy(&output.stdout);
            let failing = switchable_build::rows_with_errors(&messages, &switchable);
            if failing.is_empty() {
                bail!("the copy does not build:\n{}", String::from_utf8_lossy(&output.stderr));
            }
            rows.retain(|row| !failing.contains_key(row));
            not_built.extend(failing);
        }
    }

    /// Runs the power-cut tests with `tests` in their names, without the sync of row `without`.
    fn run_tests(&self, tests: &str, without: Option<usize>) -> Result<RunResult> {
        let mut command = Command::new(&self.tests);
        command.arg(tests).env("LUNAR_BIN", self.build.join("debug/lunar"));
        command.env("RUST_BACKTRACE", "0").env_remove(VARIABLE).current_dir(&self.tree);
        if let Some(row) = without {
            command.env(VARIABLE, row.to_string());
        }
        let (success, output) = run_within(&mut command, &self.build.join("tests.log"))?;
        ensure!(!output.contains("running 0 tests"), "there is no test {tests}");
        Ok(RunResult { success, output })
    }

    /// Runs the tests that should detect the removed sync, and then all.
    fn round(&self, row: usize, detected_by: &str) -> Result<Round> {
        let mut last = RunResult { success: true, output: String::new() };
        for tests in [detected_by, "power_cut::"] {
            last = self.run_tests(tests, Some(row))?;
            if !last.success {
                break;
            }
        }
        let lines = || last.output.lines().map(str::trim);
        let message = lines().find(|line| line.contains(LOST));
        let test = lines().find_map(|line| line.strip_prefix("test ")?.strip_suffix(" ... FAILED"));
        Ok(match (test, message) {
            (Some(test), Some(message)) => Round {
                failed_test: Some(test.into()),
                message: message.chars().take(110).collect(),
            },
            (Some(test), None) => {
                let message = format!("{test} failed, but no data was lost:\n{}", last.output);
                Round { failed_test: None, message }
            }
            _ if last.success => Round { failed_test: None, message: "all tests passed".into() },
            _ => {
                let message = format!("the tests crashed or timed out:\n{}", last.output);
                Round { failed_test: None, message }
            }
        })
    }
}

/// Runs a command with its output in a file; returns whether it succeeds, and the output. Kills it
/// after [`RUN_TIME_MAX`].
fn run_within(command: &mut Command, log: &Path) -> Result<(bool, String)> {
    let file = File::create(log).with_context(|| log.display().to_string())?;
    let mut child = command.stdout(file.try_clone()?).stderr(file).spawn()?;
    let until = Instant::now() + RUN_TIME_MAX;
    let success = loop {
        if let Some(status) = child.try_wait()? {
            break status.success();
        }
        if Instant::now() >= until {
            child.kill()?;
            child.wait()?;
            break false;
        }
        std::thread::sleep(POLL_INTERVAL);
    };
    let output = fs::read(log)?;
    Ok((success, String::from_utf8_lossy(&output).into_owned()))
}

fn is_removed(call: &Call) -> bool {
    matches!(call.treatment, Treatment::Removed { .. })
}

/// Writes a file. An unchanged file keeps its time, so that it is not built again.
pub(super) fn write_changed(path: &Path, bytes: &[u8]) -> Result<()> {
    if fs::read(path).ok().as_deref() != Some(bytes) {
        fs::create_dir_all(path.parent().context("a folder")?)?;
        fs::write(path, bytes).with_context(|| path.display().to_string())?;
    }
    Ok(())
}

/// Builds the tests; returns the path of their program.
fn power_cut_tests(root: &Path) -> Result<PathBuf> {
    let output = cargo()
        .args(["test", "--locked", "--no-run", "-p", "lunar-lab", "--test", "it"])
        .args(["--message-format", "json-render-diagnostics"])
        .current_dir(root)
        .output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout)?;
    let messages = text.lines().filter_map(|line| serde_json::from_str(line).ok());
    let executable = |message: serde_json::Value| {
        let of_test = message["target"]["name"] == "it";
        of_test.then(|| message["executable"].as_str().map(PathBuf::from)).flatten()
    };
    messages.filter_map(executable).next_back().context("cargo reported no test program")
}

fn cargo() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}
