//! `cargo run -p interop -- adversary | conformance | conformance-tables | lio FOLDER [WORD…] |
//! state-fixture | suite URL [URL]`.
use anyhow::{Result, bail};
use interop::conformance::{report, totals, unclean};
use interop::document::{PATH, SUITE, committed, render, section};
use interop::profiles::run_all;
use interop::suite::{Outcome, run_suite, suites};

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["adversary", ..] => {
            let withstood = interop::adversary::command_line::main(&arguments[1..])?;
            std::process::exit(i32::from(!withstood));
        }
        ["conformance"] => {
            let runs = run_all()?;
            let report = report(&runs);
            println!("{report}");
            for line in unclean(&runs) {
                println!("not excused: {line}");
            }
            Ok(std::fs::write(PATH, render(&report)?)?)
        }
        ["conformance-tables"] => {
            Ok(std::fs::write(PATH, render(section(&committed()?, SUITE)?)?)?)
        }
        ["lio", folder, ..] => {
            let passed = interop::lio::main(folder, &arguments[2..])?;
            std::process::exit(i32::from(!passed));
        }
        ["state-fixture"] => interop::state::write_fixtures(),
        ["suite", _] | ["suite", _, _] => foreign(&arguments[1..]),
        _ => bail!(
            "usage: cargo run -p interop -- adversary | conformance | conformance-tables | \
             lio FOLDER [WORD…] | state-fixture | suite URL [URL]"
        ),
    }
}

/// Runs the suite against a target that somebody else started; its data is lost.
fn foreign(urls: &[String]) -> Result<()> {
    let mut all = Vec::new();
    for suite in suites()? {
        let results = run_suite(&suite, urls, &[])?;
        for result in results.iter().filter(|result| result.outcome != Outcome::Passed) {
            println!("{}.{}: {}: {}", result.suite, result.test, result.outcome, result.note);
        }
        all.extend(results);
    }
    for (outcome, count) in totals(&all) {
        println!("{outcome}: {count}");
    }
    Ok(())
}
