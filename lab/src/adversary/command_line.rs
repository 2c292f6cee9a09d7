//! `cargo run -p lunar-lab -- adversary`.

use super::attack::Attack;
use super::attacks::all;
use super::measurement::Measurement;
use super::runner::{AttackOptions, run};
use super::table::Part;
use super::verdict::breaches;
use super::{server, table};
use anyhow::{Context, Result};
use std::time::Duration;

/// Duration of an attack in seconds.
const SECONDS: u64 = 15;
/// Time that the well-behaved client works alone before an attack.
const QUIET: Duration = Duration::from_secs(3);
/// Time that the client is watched after an attack.
const AFTERMATH: Duration = Duration::from_secs(3);

/// Attack a Lunar server while a well-behaved client measures it
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  cargo run -p lunar-lab -- adversary --attack x\n\n\
    The server is LUNAR_BIN, or a build of profile lab. As root it runs in a control group of\n\
    512 MiB.")]
pub struct Adversary {
    /// List the attacks with their summaries, and run none
    #[arg(long)]
    list: bool,
    /// Run this attack; may be given again [default: all]
    #[arg(long = "attack", value_name = "NAME")]
    names: Vec<String>,
    /// Duration of each attack; below 12 starvation is not judged [default: 15]
    #[arg(long, value_name = "N")]
    seconds: Option<u64>,
    /// Determines every random choice [default: from the clock]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Directory of the server's disks [default: /dev/shm, else the temporary directory]
    #[arg(long, value_name = "DIR")]
    directory: Option<String>,
    /// Write all measurements to a file
    #[arg(long, value_name = "FILE")]
    json: Option<String>,
    /// Renew the rows of these attacks in the first table of docs/adversary.md, each as soon as it
    /// is measured
    #[arg(long, conflicts_with = "seconds")]
    write: bool,
    /// Renew the rows of the second table: the attacks that reproduce a fault, on an earlier server
    /// (LUNAR_BIN)
    #[arg(long, conflicts_with_all = ["write", "seconds"])]
    write_before: bool,
}

impl Adversary {
    /// Returns the table whose rows are renewed.
    fn part(&self) -> Option<Part> {
        match (self.write, self.write_before) {
            (true, _) => Some(Part::Now),
            (_, true) => Some(Part::Before),
            _ => None,
        }
    }

    fn attacks(&self) -> Result<Vec<Attack>> {
        let all = attacks_of(self.part().unwrap_or(Part::Now));
        if self.names.is_empty() {
            return Ok(all);
        }
        let find = |name: &String| {
            let found = all.iter().find(|attack| attack.name == name).copied();
            found.with_context(|| format!("there is no attack {name}; --list prints all names"))
        };
        self.names.iter().map(find).collect()
    }

    /// Runs the attacks; returns whether the server withstood all of them.
    ///
    /// # Errors
    /// An unknown attack, or a server that does not start.
    pub fn run(self) -> Result<bool> {
        let attacks = self.attacks()?;
        if self.list {
            for attack in attacks {
                println!("{:<32} {}", attack.name, attack.summary);
            }
            return Ok(true);
        }
        run_attacks(&self, &attacks)
    }
}

fn run_attacks(arguments: &Adversary, attacks: &[Attack]) -> Result<bool> {
    let clock = std::time::UNIX_EPOCH.elapsed()?.as_secs();
    let seconds = arguments.seconds.unwrap_or(SECONDS);
    let options = AttackOptions {
        quiet: QUIET,
        attack: Duration::from_secs(seconds),
        aftermath: AFTERMATH,
        parent: arguments.directory.clone().unwrap_or_else(server::default_parent),
        seed: arguments.seed.unwrap_or(clock),
    };
    server::remove_leftovers(&options.parent);
    println!("seed {}", options.seed);
    let mut all = Vec::new();
    for attack in attacks {
        let measured = run(attack, &options).with_context(|| attack.name.to_owned())?;
        println!("{}", table::line(&measured));
        println!("    sent {}", measured.sent);
        if let Some(part) = arguments.part() {
            renew_row(part, &measured)?;
        }
        all.push(measured);
    }
    let succeeded = all.iter().filter(|measured| !breaches(measured).is_empty()).count();
    if let Some(path) = &arguments.json {
        let document = serde_json::to_string_pretty(&table::document(&all, options.seed))?;
        std::fs::write(path, document).with_context(|| path.clone())?;
    }
    println!("{} attacks of {seconds} s, {succeeded} succeeded", all.len());
    Ok(succeeded == 0)
}

/// Writes the measurement into the table, and above it the machine and the method by which memory
/// was limited.
fn renew_row(part: Part, measured: &Measurement) -> Result<()> {
    let processors = std::thread::available_parallelism()?;
    let memory = if measured.has_group {
        "a control group of 512 MiB"
    } else {
        "no control group: resident memory of the process, killed at 512 MiB"
    };
    let setting = format!("{processors} processors; {memory}; {SECONDS} s for each attack.");
    let order = attacks_of(part);
    let commit = match part {
        Part::Now => Some(commit()?),
        Part::Before => None,
    };
    table::renew(part, &table::row(measured, commit.as_deref()), &order, &setting)
}

/// Returns the attacks that have a row in this table.
fn attacks_of(part: Part) -> Vec<Attack> {
    let mut all = all();
    if part == Part::Before {
        all.retain(|attack| attack.fault != 0);
    }
    all
}

/// Returns the commit that the server is built from.
fn commit() -> Result<String> {
    let git = |arguments: &[&str]| {
        crate::system::process::run_checked("git", arguments, Duration::from_secs(10))
    };
    let commit = git(&["rev-parse", "--short", "HEAD"])?;
    let status = ["status", "--porcelain", "--untracked-files=no", "--", "crates", "apps"];
    let is_changed = !git(&status)?.trim().is_empty();
    Ok(format!("{}{}", commit.trim(), if is_changed { ", with changes" } else { "" }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        adversary: Adversary,
    }

    fn parse(line: &str) -> Result<Adversary> {
        let words = std::iter::once("adversary").chain(line.split_whitespace());
        Ok(<Line as clap::Parser>::try_parse_from(words)?.adversary)
    }

    /// Goal: options are parsed; unknown options and unknown attacks are refused.
    #[test]
    fn options_are_read() -> Result<()> {
        let parsed = parse("--attack a --attack b --seconds 3 --seed 9 --json x --directory d")?;
        assert_eq!(parsed.names, ["a", "b"]);
        assert_eq!(
            (parsed.seconds, parsed.seed, parsed.json.as_deref()),
            (Some(3), Some(9), Some("x"))
        );
        assert!(parsed.attacks().is_err());
        let before = parse("--write-before")?.attacks()?;
        assert!(!before.is_empty() && before.iter().all(|attack| attack.fault != 0));
        assert!(parse("")?.attacks()?.len() > before.len());
        for wrong in [
            "--attacks",
            "--seconds",
            "--seconds x",
            "--write --seconds 3",
            "--write-before --seconds 3",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
        Ok(())
    }
}
