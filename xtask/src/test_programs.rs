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

/// Programs whose tests wait more than they compute, with the number of their tests that run at
/// once. They begin first, in this order: those that last longest.
const WAITING: &[(&str, usize)] =
    &[("lab/it", 8), ("lunar/it", 8), ("lunar-target/it", 8), ("lunar-control/it", 4)];

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
}

/// Builds and runs the programs, those of `lunar-lab` too if `LUNAR_BIN` names a server; returns
/// whether all passed. The output of each is written below `target/test-output`.
///
/// # Errors
/// The tests cannot be built, or a program cannot be started.
pub fn run(root: &Path) -> Result<bool> {
    let mut programs = build(root)?;
    programs.sort_by_key(Program::order);
    let output = root.join("target/test-output");
    std::fs::create_dir_all(&output).with_context(|| output.display().to_string())?;
    let (queue, ended) = (Mutex::new(VecDeque::from(programs)), Mutex::new(Vec::new()));
    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
    std::thread::scope(|scope| {
        let work = || {
            while let Some(program) = next() {
                let began = Instant::now();
                let passed = run_one(&program, &output);
                let seconds = began.elapsed().as_secs();
                if let Err(error) = &passed {
                    println!("{error:#}");
                }
                let ended = &mut ended.lock().unwrap_or_else(PoisonError::into_inner);
                ended.push((seconds, program.name, passed.is_ok()));
            }
        };
        (0..PROGRAMS_AT_ONCE).for_each(|_| drop(scope.spawn(work)));
    });
    let mut ended = ended.into_inner().unwrap_or_else(PoisonError::into_inner);
    ended.sort_unstable();
    println!("slowest test programs:");
    for (seconds, name, _) in ended.iter().rev().take(SLOWEST) {
        println!("{seconds:>6} s  {name}");
    }
    let failed: Vec<_> = ended.iter().filter(|(.., passed)| !passed).collect();
    println!("failed test programs: {}", failed.len());
    Ok(failed.is_empty())
}

impl Program {
    /// Returns the number of its tests that run at once, if that is not the number of cores.
    fn threads(&self) -> Option<usize> {
        WAITING.iter().find(|(name, _)| *name == self.name).map(|(_, threads)| *threads)
    }

    /// Returns a key by which those that last longest come first.
    fn order(&self) -> (usize, bool, String) {
        let at = WAITING.iter().position(|(name, _)| *name == self.name);
        (at.unwrap_or(WAITING.len()), !self.name.ends_with("/it"), self.name.clone())
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
        found.push(Program { name, executable: executable.into(), folder });
    }
    Ok(found)
}

/// Runs a program; the error of one that fails contains its output.
fn run_one(program: &Program, output: &Path) -> Result<()> {
    let path = output.join(format!("{}.log", program.name.replace('/', "-")));
    let file = File::create(&path).with_context(|| path.display().to_string())?;
    let began = Instant::now();
    let mut command = Command::new(&program.executable);
    remove_own_variables(&mut command);
    if let (Some(threads), None) = (program.threads(), std::env::var_os(THREADS)) {
        command.env(THREADS, threads.to_string());
    }
    let status = command
        .current_dir(&program.folder)
        .stdin(Stdio::null())
        .stdout(file.try_clone()?)
        .stderr(file)
        .status()
        .with_context(|| program.name.clone())?;
    let seconds = began.elapsed().as_secs();
    let text = String::from_utf8_lossy(&std::fs::read(&path)?).into_owned();
    ensure!(status.success(), "{text}\n{} failed after {seconds} s", program.name);
    let counts = text.lines().rfind(|line| line.starts_with("test result: ")).unwrap_or_default();
    let passed = counts.trim_start_matches("test result: ok. ").split(';').next();
    println!("{:<32} {} ({seconds} s)", program.name, passed.unwrap_or_default());
    Ok(())
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
        };
        assert_eq!(programs(&messages.concat())?, [expected]);
        assert!(programs("no message").is_err());
        Ok(())
    }

    /// Goal: programs that wait begin first, with more tests at once; then other integration tests.
    #[test]
    fn long_programs_begin_first() {
        let program = |name: &str| Program {
            name: name.to_owned(),
            executable: PathBuf::new(),
            folder: PathBuf::new(),
        };
        let names =
            ["fuzz/it", "lab/it", "lab/lab", "lunar-target/it", "lunar-target/lunar_target"];
        let mut programs: Vec<_> = names.map(program).into();
        programs.sort_by_key(Program::order);
        let sorted: Vec<_> = programs.iter().map(|program| program.name.as_str()).collect();
        let first = ["lab/it", "lunar-target/it", "fuzz/it"];
        assert_eq!(sorted, [&first[..], &["lab/lab", "lunar-target/lunar_target"]].concat());
        assert!(programs[0].threads() > Some(1));
        assert_eq!(programs[2].threads(), None);
    }

    /// Goal: a program that fails is an error with its output, one that succeeds is not.
    #[test]
    fn failures_are_reported() {
        let output = std::env::temp_dir().join(format!("lunar-xtask-{}", std::process::id()));
        std::fs::create_dir(&output).unwrap();
        let program = |executable: &str| Program {
            name: format!("some{executable}"),
            executable: executable.into(),
            folder: "/".into(),
        };
        assert!(run_one(&program("/bin/true"), &output).is_ok());
        let error = run_one(&program("/bin/false"), &output).unwrap_err();
        assert!(error.to_string().contains("failed after"), "{error}");
        std::fs::remove_dir_all(&output).unwrap();
    }
}
