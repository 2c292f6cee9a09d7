//! Tests the API with schemathesis, a client that reads the API document and tries both documented
//! and undocumented requests.

use anyhow::{Context, Result, ensure};
use lunar_lab::peers::lunar::Lunar;
use lunar_lab::system::scratch::Scratch;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Package from PyPI; Debian has none.
const SCHEMATHESIS: &str = "schemathesis==4.32.5";
const TOKEN: &str = "0123456789abcdef0123456789abcdef";
const STOP_MAX: Duration = Duration::from_secs(20);

/// Installs the program once, in a virtual environment of its own.
fn schemathesis() -> Result<PathBuf> {
    let environment = Path::new(env!("CARGO_TARGET_TMPDIR")).join("schemathesis");
    let program = environment.join("bin/schemathesis");
    if !program.exists() {
        run(Command::new("python3").arg("-m").arg("venv").arg(&environment))?;
        // Most of its modules are never loaded: compiling all takes half of the time.
        let install = ["install", "-q", "--no-compile", SCHEMATHESIS];
        run(Command::new(environment.join("bin/pip")).args(install))?;
    }
    Ok(program)
}

fn run(command: &mut Command) -> Result<()> {
    let output = command.output().with_context(|| format!("{command:?}"))?;
    let printed = [output.stdout, output.stderr].concat();
    ensure!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&printed));
    Ok(())
}

/// Goal: every response is one that the document describes, and none is a server error.
/// Method: a fixed seed, so that a failure is reproducible. Values with constraints that the schema
/// cannot express, such as addresses, may be refused although the schema allows them.
#[test]
fn schemathesis_finds_no_fault() -> Result<()> {
    let scratch = Scratch::new("schemathesis")?;
    let token = scratch.secret("token", TOKEN)?;
    let arguments = ["mem:1M", "--name", "iqn.2026-11.org.example:a", "--api", "127.0.0.1:0"];
    let lunar = Lunar::serve(&[&arguments[..], &["--api-token-file", &token]].concat())?;
    let api = lunar.api().context("no API address was printed")?;
    let mut command = Command::new(schemathesis()?);
    command.args(["run", &format!("http://{api}/api/v1/openapi.json")]);
    command.args(["-H", &format!("Authorization: Bearer {TOKEN}")]);
    command.args(["--phases", "examples,coverage,fuzzing", "--max-examples", "10"]);
    command.args(["--seed", "4", "--generation-database", "none", "--no-color"]);
    command.args(["--exclude-checks", "positive_data_acceptance"]);
    // A request to stop ends the server before the test.
    command.args(["--exclude-path", "/api/v1/stop"]);
    run(command.current_dir(scratch.folder()))?;
    lunar.stop(STOP_MAX)?;
    Ok(())
}
