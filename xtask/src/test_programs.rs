//! Runs the test programs of the workspace side by side.
//!
//! `cargo test` runs one program after the other, and `cargo test -p` selects other features of
//! dependencies than `--workspace` does, so that all is built twice. Here everything is built once;
//! most tests wait more than they compute, so several programs run at once.

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use std::collections::VecDeque;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// Programs that run at once.
const AT_ONCE: usize = 4;

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
    // Integration tests last longest: they begin first.
    programs.sort_by_key(|program| (!program.name.ends_with("/it"), program.name.clone()));
    let output = root.join("target/test-output");
    std::fs::create_dir_all(&output).with_context(|| output.display().to_string())?;
    let (queue, failed) = (Mutex::new(VecDeque::from(programs)), Mutex::new(Vec::new()));
    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
    std::thread::scope(|scope| {
        let work = || {
            while let Some(program) = next() {
                if let Err(error) = run_one(&program, &output) {
                    println!("{error:#}");
                    failed.lock().unwrap_or_else(PoisonError::into_inner).push(program.name);
                }
            }
        };
        (0..AT_ONCE).for_each(|_| drop(scope.spawn(work)));
    });
    let failed = failed.into_inner().unwrap_or_else(PoisonError::into_inner);
    println!("failed test programs: {}", failed.len());
    Ok(failed.is_empty())
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

/// Removes the variables that cargo has set for this program: builds of crates that look at them
/// would begin anew.
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

/// Runs a program; an error has the end of its output.
fn run_one(program: &Program, output: &Path) -> Result<()> {
    let path = output.join(format!("{}.log", program.name.replace('/', "-")));
    let file = File::create(&path).with_context(|| path.display().to_string())?;
    let began = Instant::now();
    let mut command = Command::new(&program.executable);
    remove_own_variables(&mut command);
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

    /// Goal: a program that fails is an error with its output, one that succeeds is not.
    #[test]
    fn failures_are_told() {
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
