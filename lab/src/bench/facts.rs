//! Conditions of a measurement, for its report.

use std::path::Path;
use std::process::Command;

/// Returns the machine, the versions of the source and of the measured program, and the rounds.
pub fn facts_of_run(program: &Path, rounds: String) -> Vec<(String, String)> {
    let mut facts = lunar_load::report::machine().facts();
    let mut add = |name: &str, value: String| facts.push((name.to_owned(), value));
    add("measured on", first_line(Path::new("date"), &["-u", "+%F"]));
    let described = ["describe", "--always", "--dirty", "--abbrev=10"];
    add("source", first_line(Path::new("git"), &described));
    add("lunar", first_line(program, &["--version"]));
    add("rounds", rounds);
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    add("load average when it began", load.split_whitespace().next().unwrap_or("-").to_owned());
    facts
}

/// Returns the first line that a program prints; `-`: the program is not installed.
pub fn first_line(program: &Path, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    let printed = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    let line = printed.ok().and_then(|text| Some(text.lines().next()?.trim().to_owned()));
    line.unwrap_or_else(|| "-".to_owned())
}
