//! The API against a client that reads its document and then tries what it says and what it does
//! not say: schemathesis.

use anyhow::{Context, Result, ensure};
use lunar_lab::lunar::Lunar;
use lunar_lab::scratch::Scratch;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// From PyPI; Debian has none.
const SCHEMATHESIS: &str = "schemathesis==4.32.5";
const TOKEN: &str = "0123456789abcdef0123456789abcdef";
const STOP_MAX: Duration = Duration::from_secs(20);

/// The program, in a virtual environment of its own, which is made once.
fn schemathesis() -> Result<PathBuf> {
    let environment = Path::new(env!("CARGO_TARGET_TMPDIR")).join("schemathesis");
    let program = environment.join("bin/schemathesis");
    if !program.exists() {
        run(Command::new("python3").arg("-m").arg("venv").arg(&environment))?;
        run(Command::new(environment.join("bin/pip")).args(["install", "-q", SCHEMATHESIS]))?;
    }
    Ok(program)
}

fn run(command: &mut Command) -> Result<()> {
    let output = command.output().with_context(|| format!("{command:?}"))?;
    let said = [output.stdout, output.stderr].concat();
    ensure!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&said));
    Ok(())
}

/// Goal: whatever is asked for, the answer is one that the document describes, and none is an error
/// of ours. Method: a fixed seed, so that a failure comes again. What the document cannot say, as
/// that an address is one, may be refused although the schema allows it.
#[test]
fn schemathesis_finds_nothing() -> Result<()> {
    let scratch = Scratch::new("schemathesis")?;
    let token = scratch.secret("token", TOKEN)?;
    let arguments = ["mem:1M", "--name", "iqn.2026-11.org.example:a", "--api", "127.0.0.1:0"];
    let lunar = Lunar::serve(&[&arguments[..], &["--api-token-file", &token]].concat())?;
    let api = lunar.api().context("no API is told")?;
    let mut command = Command::new(schemathesis()?);
    command.args(["run", &format!("http://{api}/api/v1/openapi.json")]);
    command.args(["-H", &format!("Authorization: Bearer {TOKEN}")]);
    command.args(["--phases", "examples,coverage,fuzzing", "--max-examples", "10"]);
    command.args(["--seed", "4", "--generation-database", "none", "--no-color"]);
    command.args(["--exclude-checks", "positive_data_acceptance"]);
    run(command.current_dir(scratch.folder()))?;
    lunar.stop(STOP_MAX)?;
    Ok(())
}
