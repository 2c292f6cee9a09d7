//! `lab papers` in short runs: checks the reports, not the speed.

mod jscsi;
mod multi_connection;
mod storage_over_ip;

use anyhow::Result;
use lunar_lab::peers::lunar;
use lunar_lab::system::process::{self, Finished};
use lunar_lab::system::scratch::Scratch;
use serde_json::Value;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Timeout for a whole short run, even on a busy machine.
const PAPER_MAX: Duration = Duration::from_secs(300);

/// Returns `env LUNAR_BIN=… lab papers ARGUMENTS`, with the build of `lunar` that other tests use.
fn words(arguments: &[&str]) -> Result<Vec<String>> {
    let binary = format!("LUNAR_BIN={}", lunar::binary()?);
    let first = [&binary, env!("CARGO_BIN_EXE_lab"), "papers"];
    Ok(first.iter().chain(arguments).map(|&word| word.to_owned()).collect())
}

/// Returns the command, to be started and stopped.
fn paper(arguments: &[&str]) -> Result<Command> {
    let mut command = Command::new("env");
    command.args(words(arguments)?);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    Ok(command)
}

/// Runs the command to its end; `environment` holds further variables.
fn run(environment: &[&str], arguments: &[&str]) -> Result<Finished> {
    let words = words(arguments)?;
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    process::run("env", &[environment, &words].concat(), PAPER_MAX)
}

/// Runs the command, which must succeed, and returns its figures and its output.
fn report(scratch: &Scratch, environment: &[&str], arguments: &[&str]) -> Result<(Value, String)> {
    let json = scratch.path("report.json");
    let finished = run(environment, &[arguments, &["--json", &json]].concat())?;
    anyhow::ensure!(finished.succeeded(), "{}", finished.outputs());
    Ok((serde_json::from_slice(&std::fs::read(json)?)?, finished.stdout))
}

fn section<'a>(document: &'a Value, key: &str) -> &'a Value {
    let sections = document["sections"].as_array().unwrap();
    sections
        .iter()
        .find(|section| section["key"] == key)
        .unwrap_or_else(|| panic!("{key}: {document}"))
}
