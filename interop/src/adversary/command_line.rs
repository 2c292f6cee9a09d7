//! `cargo run -p interop -- adversary`.

use super::attack::Attack;
use super::attacks::all;
use super::measurement::Measurement;
use super::runner::{Options, run};
use super::table::Part;
use super::verdict::breaches;
use super::{server, table};
use anyhow::{Context, Result, bail, ensure};
use std::time::Duration;

const USAGE: &str = "\
usage: cargo run -p interop -- adversary [OPTION]...
  --list             name the attacks and what they do, and run none
  --attack NAME      run this attack; may be given again. Default: all
  --seconds N        how long each attack lasts (15; below 12 starving is not judged)
  --seed N           determines every random choice (default: from the clock)
  --directory DIR    where the server's disks are (default: /dev/shm, else the temporary folder)
  --json FILE        write everything that was measured
  --write            renew the rows of these attacks in the first table of docs/adversary.md, each
                     as soon as it is measured
  --write-before     the same for the second table: the attacks that stand for a fault, on an
                     earlier server (LUNAR_BIN)
The server is LUNAR_BIN, or the release build. As root it runs in a control group of 512 MiB.";

/// How long an attack lasts.
const SECONDS: u64 = 15;
/// How long the well-behaved client works alone before an attack.
const QUIET: Duration = Duration::from_secs(3);
/// How long it is watched after an attack.
const AFTERMATH: Duration = Duration::from_secs(3);

/// What the command line asks for.
#[derive(Debug, Default)]
struct Arguments {
    list: bool,
    names: Vec<String>,
    seconds: Option<u64>,
    seed: Option<u64>,
    directory: Option<String>,
    json: Option<String>,
    write: Option<Part>,
}

impl Arguments {
    fn parse(arguments: &[String]) -> Result<Self> {
        let mut parsed = Self::default();
        let mut arguments = arguments.iter();
        while let Some(option) = arguments.next() {
            let mut value =
                || arguments.next().cloned().with_context(|| format!("{option}: of what?"));
            match option.as_str() {
                "--list" => parsed.list = true,
                "--write" => parsed.write = Some(Part::Now),
                "--write-before" => parsed.write = Some(Part::Before),
                "--attack" => parsed.names.push(value()?),
                "--seconds" => parsed.seconds = Some(value()?.parse().context("--seconds")?),
                "--seed" => parsed.seed = Some(value()?.parse().context("--seed")?),
                "--directory" => parsed.directory = Some(value()?),
                "--json" => parsed.json = Some(value()?),
                _ => bail!("{USAGE}"),
            }
        }
        let is_comparable = parsed.write.is_none() || parsed.seconds.is_none();
        ensure!(is_comparable, "the tables have attacks of {SECONDS} s: leave out --seconds");
        Ok(parsed)
    }

    fn attacks(&self) -> Result<Vec<Attack>> {
        let all = attacks_of(self.write.unwrap_or(Part::Now));
        if self.names.is_empty() {
            return Ok(all);
        }
        let find = |name: &String| {
            let found = all.iter().find(|attack| attack.name == name).copied();
            found.with_context(|| format!("no attack {name}; --list names them"))
        };
        self.names.iter().map(find).collect()
    }
}

/// Runs what the arguments ask for; returns whether the server withstood every attack.
///
/// # Errors
/// Wrong arguments, or a server that does not start.
pub fn main(arguments: &[String]) -> Result<bool> {
    let parsed = Arguments::parse(arguments)?;
    let attacks = parsed.attacks()?;
    if parsed.list {
        for attack in attacks {
            println!("{:<32} {}", attack.name, attack.summary);
        }
        return Ok(true);
    }
    let clock = std::time::UNIX_EPOCH.elapsed()?.as_secs();
    let seconds = parsed.seconds.unwrap_or(SECONDS);
    let options = Options {
        quiet: QUIET,
        attack: Duration::from_secs(seconds),
        aftermath: AFTERMATH,
        parent: parsed.directory.unwrap_or_else(server::default_parent),
        seed: parsed.seed.unwrap_or(clock),
    };
    server::remove_leftovers(&options.parent);
    println!("seed {}", options.seed);
    let mut all = Vec::new();
    for attack in &attacks {
        let measured = run(attack, &options).with_context(|| attack.name.to_owned())?;
        println!("{}", table::line(&measured));
        println!("    sent {}", measured.sent);
        if let Some(part) = parsed.write {
            renew_row(part, &measured)?;
        }
        all.push(measured);
    }
    let succeeded = all.iter().filter(|measured| !breaches(measured).is_empty()).count();
    if let Some(path) = parsed.json {
        let document = serde_json::to_string_pretty(&table::document(&all, options.seed))?;
        std::fs::write(&path, document).with_context(|| path.clone())?;
    }
    println!("{} attacks of {seconds} s, {succeeded} succeeded", all.len());
    Ok(succeeded == 0)
}

/// Writes what was measured into the table, and above it what the machine is and how memory was
/// held.
fn renew_row(part: Part, measured: &Measurement) -> Result<()> {
    let processors = std::thread::available_parallelism()?;
    let memory = if measured.has_group {
        "a control group of 512 MiB"
    } else {
        "no control group: resident memory of the process alone, ended at 512 MiB"
    };
    let setting = format!("{processors} processors; {memory}; {SECONDS} s for each attack.");
    let order = attacks_of(part);
    let commit = match part {
        Part::Now => Some(commit()?),
        Part::Before => None,
    };
    table::renew(part, &table::row(measured, commit.as_deref()), &order, &setting)
}

/// The attacks that have a row.
fn attacks_of(part: Part) -> Vec<Attack> {
    let mut all = all();
    if part == Part::Before {
        all.retain(|attack| attack.fault != 0);
    }
    all
}

/// The commit that the server is built from.
fn commit() -> Result<String> {
    let git = |arguments: &[&str]| crate::process::must("git", arguments, Duration::from_secs(10));
    let commit = git(&["rev-parse", "--short", "HEAD"])?;
    let status = ["status", "--porcelain", "--untracked-files=no", "--", "crates", "apps"];
    let is_changed = !git(&status)?.trim().is_empty();
    Ok(format!("{}{}", commit.trim(), if is_changed { ", with changes" } else { "" }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Arguments> {
        let arguments: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        Arguments::parse(&arguments)
    }

    /// Goal: options are taken, unknown ones and attacks are refused.
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
