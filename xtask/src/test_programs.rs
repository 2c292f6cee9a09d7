//! Runs the test programs of the workspace side by side.
//!
//! `cargo test` runs one program after the other, and `cargo test -p` selects other features of
//! dependencies than `--workspace` does, so that all crates are built twice. This runner builds
//! once, and runs several programs at once, because most tests wait more than they compute.

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use std::collections::VecDeque;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// Number of programs that run at once.
const PROGRAMS_AT_ONCE: usize = 4;

/// Program whose tests wait more than they compute.
struct WaitingProgram {
    /// Package and target.
    name: &'static str,
    /// Number of its tests that run at once.
    threads: usize,
    /// Modules that run in a process of their own, alongside the rest: those whose tests last
    /// longest and run one after the other anyway.
    separate: &'static [&'static str],
}

/// Programs that begin first, in this order: those that take longest.
const WAITING: &[WaitingProgram] = &[
    WaitingProgram { name: PEERS, threads: 4, separate: &["suite::", "adversary::"] },
    WaitingProgram { name: "lunar/it", threads: 4, separate: &[] },
    WaitingProgram { name: "lunar-target/it", threads: 6, separate: &[] },
    WaitingProgram { name: "lunar-control/it", threads: 4, separate: &[] },
];

/// Programs that begin next: the longest of those that compute more than they wait.
const COMPUTING: &[&str] = &["lunar-pool/it", "lunar-iscsi/lunar_iscsi"];

/// The program of the tests with foreign peers, whose server is the file in `LUNAR_BIN`.
const PEERS: &str = "lab/it";

/// Variable with the number of tests of a program that run at once.
const THREADS: &str = "RUST_TEST_THREADS";

/// Number of the slowest programs that are listed at the end.
const SLOWEST: usize = 6;

/// A test program that cargo has built.
#[derive(Clone, Debug, Eq, PartialEq)]
struct Program {
    /// Package and target: `lunar-target/it`.
    name: String,
    executable: PathBuf,
    /// The folder of its package, in which cargo runs it.
    folder: PathBuf,
    /// Arguments that select its tests; none: all run.
    selection: Vec<String>,
}

/// Builds the programs and runs them, `lab/it` only `with_peers`; returns whether all passed. The
/// output of each is written below `target/test-output`.
///
/// # Errors
/// The tests cannot be built, or a program cannot be started.
pub fn run(root: &Path, with_peers: bool) -> Result<bool> {
    let mut programs = build(root)?;
    programs.retain(|program| with_peers || program.name != PEERS);
    programs.sort_by_key(Program::order);
    let programs: VecDeque<_> = programs.iter().flat_map(Program::parts).collect();
    let output = root.join("target/test-output");
    std::fs::create_dir_all(&output).with_context(|| output.display().to_string())?;
    let (queue, ended) = (Mutex::new(programs), Mutex::new(Vec::new()));
    let failures = Mutex::new(Vec::new());
    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
    std::thread::scope(|scope| {
        let work = || {
            while let Some(program) = next() {
                let began = Instant::now();
                let passed = run_one(&program, &output);
                if let Err(error) = &passed {
                    let text = format!("{error:#}");
                    println!("{text}");
                    let failures = &mut failures.lock().unwrap_or_else(PoisonError::into_inner);
                    failures.push(messages(&text).to_owned());
                }
                let seconds = began.elapsed().as_secs();
                let ended = &mut ended.lock().unwrap_or_else(PoisonError::into_inner);
                ended.push((seconds, program.title(), passed.ok()));
            }
        };
        (0..PROGRAMS_AT_ONCE).for_each(|_| drop(scope.spawn(work)));
    });
    let mut ended = ended.into_inner().unwrap_or_else(PoisonError::into_inner);
    ended.sort_unstable();
    println!("slowest test programs:");
    for (seconds, title, _) in ended.iter().rev().take(SLOWEST) {
        println!("{seconds:>6} s  {title}");
    }
    let passed: usize = ended.iter().filter_map(|(.., passed)| *passed).sum();
    let failed = ended.iter().filter(|(.., passed)| passed.is_none()).count();
    // At the end of a long output, where they are seen.
    for failure in failures.into_inner().unwrap_or_else(PoisonError::into_inner) {
        println!("{failure}");
    }
    println!("tests that passed: {passed}; test programs that failed: {failed}");
    Ok(failed == 0)
}

impl Program {
    fn waiting(&self) -> Option<&'static WaitingProgram> {
        WAITING.iter().find(|waiting| waiting.name == self.name)
    }

    /// Returns a key by which those that last longest come first.
    fn order(&self) -> (usize, bool, String) {
        let mut long = WAITING.iter().map(|waiting| waiting.name).chain(COMPUTING.iter().copied());
        let at = long.position(|name| name == self.name);
        (at.unwrap_or(usize::MAX), !self.name.ends_with("/it"), self.name.clone())
    }

    /// Returns the runs of this program, which together run each of its tests once.
    fn parts(&self) -> Vec<Self> {
        let separate = self.waiting().map_or(&[][..], |waiting| waiting.separate);
        let part = |selection: Vec<String>| Self { selection, ..self.clone() };
        let mut parts: Vec<_> =
            separate.iter().map(|module| part(vec![(*module).into()])).collect();
        let skips = separate.iter().flat_map(|module| ["--skip".to_owned(), (*module).to_owned()]);
        parts.push(part(skips.collect()));
        parts
    }

    /// Returns its name, with the tests that are selected.
    fn title(&self) -> String {
        [std::slice::from_ref(&self.name), &self.selection[..]].concat().join(" ")
    }
}

fn build(root: &Path) -> Result<Vec<Program>> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    remove_own_variables(&mut command);
    let output = command
        .args(["test", "--workspace", "--locked", "--no-run"])
        .args(["--message-format", "json-render-diagnostics"])
        .current_dir(root)
        .stderr(Stdio::inherit())
        .output()
        .context("running cargo test --no-run")?;
    ensure!(output.status.success(), "cannot build the tests");
    let programs = programs(&String::from_utf8(output.stdout)?)?;
    if programs.is_empty() {
        bail!("cargo built no test programs");
    }
    Ok(programs)
}

/// Removes the variables that cargo has set for this program: crates whose build depends on them
/// would be built again.
fn remove_own_variables(command: &mut Command) {
    const PREFIXES: &[&str] =
        &["CARGO_MANIFEST", "CARGO_PKG", "CARGO_BIN", "CARGO_CRATE", "CARGO_PRIMARY"];
    for (name, _) in std::env::vars_os() {
        if PREFIXES.iter().any(|prefix| name.to_string_lossy().starts_with(prefix)) {
            command.env_remove(name);
        }
    }
}

/// The test programs that cargo's messages name.
fn programs(messages: &str) -> Result<Vec<Program>> {
    let mut found = Vec::new();
    for line in messages.lines() {
        let message: Value = serde_json::from_str(line).context("a message of cargo")?;
        let Some(executable) = message["executable"].as_str() else { continue };
        if message["profile"]["test"] != true {
            continue;
        }
        let manifest = Path::new(message["manifest_path"].as_str().context("a manifest")?);
        let folder = manifest.parent().context("a folder")?.to_path_buf();
        let package = folder.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let target = message["target"]["name"].as_str().context("a target")?;
        let name = format!("{package}/{target}");
        let (executable, selection) = (executable.into(), Vec::new());
        found.push(Program { name, executable, folder, selection });
    }
    Ok(found)
}

/// Runs a program and returns the number of tests that passed; an error has the end of its output.
fn run_one(program: &Program, output: &Path) -> Result<usize> {
    let title = program.title();
    let path = output.join(format!("{}.log", title.replace(['/', ' ', ':'], "-")));
    let file = File::create(&path).with_context(|| path.display().to_string())?;
    let began = Instant::now();
    let mut command = Command::new(&program.executable);
    remove_own_variables(&mut command);
    if let (Some(waiting), None) = (program.waiting(), std::env::var_os(THREADS)) {
        command.env(THREADS, waiting.threads.to_string());
    }
    let status = command
        .args(&program.selection)
        .current_dir(&program.folder)
        .stdin(Stdio::null())
        .stdout(file.try_clone()?)
        .stderr(file)
        .status()
        .with_context(|| title.clone())?;
    let seconds = began.elapsed().as_secs();
    let text = String::from_utf8_lossy(&std::fs::read(&path)?).into_owned();
    ensure!(status.success(), "{text}\n{title} failed after {seconds} s");
    let passed = passed(&text);
    println!("{title:<32} {passed} passed ({seconds} s)");
    Ok(passed)
}

/// Returns the messages of the tests that failed, from the output of a test program; all of the
/// output if it ended before it printed them.
fn messages(output: &str) -> &str {
    output.split_once("\nfailures:\n").map_or(output, |(_, messages)| messages)
}

/// Returns the number of tests that passed, from the output of a test program.
fn passed(output: &str) -> usize {
    let result = output.lines().rfind(|line| line.starts_with("test result: "));
    let words = result.unwrap_or_default().trim_start_matches("test result: ok. ");
    words.split(' ').next().and_then(|count| count.parse().ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: test programs are taken from cargo's messages, other programs and libraries are not.
    #[test]
    fn messages_are_read() -> Result<()> {
        let message = |executable: &str, test: bool| {
            format!(
                "{{\"manifest_path\":\"/w/crates/lunar-net/Cargo.toml\",\
                 \"target\":{{\"name\":\"it\"}},\"profile\":{{\"test\":{test}}},\
                 \"executable\":{executable}}}\n"
            )
        };
        let messages =
            [message("\"/t/it-1\"", true), message("null", true), message("\"/t/lunar\"", false)];
        let expected = Program {
            name: "lunar-net/it".to_owned(),
            executable: "/t/it-1".into(),
            folder: "/w/crates/lunar-net".into(),
            selection: Vec::new(),
        };
        assert_eq!(programs(&messages.concat())?, [expected]);
        assert!(programs("no message").is_err());
        Ok(())
    }

    /// Returns a program that does not exist.
    fn named(name: &str) -> Program {
        Program {
            name: name.to_owned(),
            executable: PathBuf::new(),
            folder: PathBuf::new(),
            selection: Vec::new(),
        }
    }

    /// Goal: programs that wait begin first, then long ones that compute, then other integration
    /// tests.
    #[test]
    fn long_programs_begin_first() {
        let names =
            ["fuzz/it", "lab/it", "lab/lab", "lunar-pool/it", "lunar-target/it", "xtask/xtask"];
        let mut programs = names.map(named);
        programs.sort_by_key(Program::order);
        let sorted = programs.each_ref().map(|program| program.name.as_str());
        let expected =
            ["lab/it", "lunar-target/it", "lunar-pool/it", "fuzz/it", "lab/lab", "xtask/xtask"];
        assert_eq!(sorted, expected);
    }

    /// Goal: the parts of a program run each test once, and others run as a whole.
    #[test]
    fn parts_run_each_test_once() {
        let titles =
            |name: &str| -> Vec<_> { named(name).parts().iter().map(Program::title).collect() };
        assert_eq!(titles("fuzz/it"), ["fuzz/it"]);
        let expected =
            ["lab/it suite::", "lab/it adversary::", "lab/it --skip suite:: --skip adversary::"];
        assert_eq!(titles("lab/it"), expected);
    }

    /// Goal: the number of tests that passed is read from the last result.
    #[test]
    fn results_are_read() {
        let output = "a line\ntest result: ok. 17 passed; 0 failed; 1 ignored; finished in 1s\n\n";
        assert_eq!((passed(output), passed("")), (17, 0));
    }

    /// Goal: the messages of failed tests are found; all of the output of a program that aborted.
    #[test]
    fn messages_are_found() {
        let output = "test a ... ok\ntest b ... FAILED\n\nfailures:\n\n---- b stdout ----\nwhy\n";
        assert_eq!(messages(output), "\n---- b stdout ----\nwhy\n");
        assert_eq!(messages("signal: 6"), "signal: 6");
    }

    /// Goal: a program that fails is an error with its output, one that succeeds is not.
    #[test]
    fn failures_are_reported() {
        let output = std::env::temp_dir().join(format!("lunar-xtask-{}", std::process::id()));
        std::fs::create_dir(&output).unwrap();
        let program = |executable: &str| Program {
            executable: executable.into(),
            folder: "/".into(),
            ..named(&format!("some{executable}"))
        };
        assert!(run_one(&program("/bin/true"), &output).is_ok());
        let error = run_one(&program("/bin/false"), &output).unwrap_err();
        assert!(error.to_string().contains("failed after"), "{error}");
        std::fs::remove_dir_all(&output).unwrap();
    }
}
