//! Profile of a target: a setup runs once more while perf samples the target's process.

mod perf;

use super::cells::{CELLS, Cell, Contestant, LUNAR, Setup};
use super::clients::{Clients, TurnTimes};
use super::report::tables;
use super::results::{Profile, Share};
use super::servers::{Programs, Servers};
use crate::bench::{files, flame};
use crate::peers::lunar::release_binary;
use crate::system::cores::CLIENT_CORE;
use anyhow::{Context, Result, anyhow, ensure};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Default time that perf samples.
pub const SECONDS: f64 = 2.0;
/// Minimum time: a shorter one yields no samples; too long a time yields gigabytes of stacks.
const SECONDS_LEAST: f64 = 0.1;
const SECONDS_MOST: f64 = 30.0;
/// Load before perf begins, and after it has sampled: its start takes part of it.
const LEAD: Duration = Duration::from_millis(300);
const TAIL: Duration = Duration::from_millis(1200);
/// Duration of a turn before that: it fills pages and pools, and builds a client if needed.
const FIRST: Duration = Duration::from_millis(100);

/// Runs a setup of a cell while perf samples the target's process, and draws a flame graph of where
/// the target's time goes.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  \
    cargo run --release -p lunar-lab -- profile --cell rand-read-4Ki-32-tmpfs --svg flame.svg\n\n\
    Requires root and perf (linux-perf; see scripts/setup bench).")]
pub struct ProfileCommand {
    /// The key of the cell: `target --list --full` lists them
    #[arg(long, value_name = "KEY")]
    cell: String,
    /// The setup, by its name in the tables; default: the first one of the cell
    #[arg(long, value_name = "NAME")]
    setup: Option<String>,
    /// File of the flame graph
    #[arg(long, value_name = "FILE")]
    svg: PathBuf,
    /// Time that perf samples
    #[arg(long, default_value_t = SECONDS, value_parser = parse_seconds)]
    seconds: f64,
    /// Directory of files on a disk
    #[arg(long, value_name = "DIRECTORY", default_value = ".")]
    directory: PathBuf,
}

impl ProfileCommand {
    /// Runs the setup and writes its profile.
    ///
    /// # Errors
    /// There is no such cell or setup, or it cannot be run or sampled.
    pub fn run(&self) -> Result<()> {
        let cell = CELLS.iter().find(|cell| cell.key() == self.cell);
        let cell = cell.context("no cell has this key: see target --list --full")?;
        let setup = match &self.setup {
            None => cell.setups.first().context("a cell has setups")?,
            Some(name) => {
                cell.setups.iter().find(|setup| setup.name() == *name).with_context(|| {
                    let names: Vec<String> = cell.setups.iter().map(Setup::name).collect();
                    format!("this cell has no such setup; its setups are: {}", names.join("; "))
                })?
            }
        };
        let directory = self.directory.canonicalize();
        let directory = directory.with_context(|| self.directory.display().to_string())?;
        let programs = Programs { lunar: release_binary()?, directory, base: None };
        let profile = take(cell, setup, &programs, self.seconds, &self.svg)?;
        print!("{}", tables::profile(&profile));
        Ok(())
    }
}

/// Profiles setups, each with its flame graph in a folder. The measurements matter more: if a
/// profile fails, a line gives the reason, and no more are made.
pub fn of_all(setups: &[(&Cell, Setup)], programs: &Programs, directory: &Path) -> Vec<Profile> {
    let mut profiles = Vec::new();
    for (cell, setup) in setups {
        let file = directory.join(file_name(&cell.key(), &setup.name()));
        let made = std::fs::create_dir_all(directory).map_err(anyhow::Error::from);
        let profile = made.and_then(|()| take(cell, setup, programs, SECONDS, &file));
        match profile {
            Ok(profile) => profiles.push(profile),
            Err(why) => {
                println!(
                    "cannot profile {}, {}; no further profiles are made: {why:#}",
                    cell.key(),
                    setup.name()
                );
                break;
            }
        }
    }
    profiles
}

/// Makes one profile, and writes its flame graph to a file.
fn take(
    cell: &Cell,
    setup: &Setup,
    programs: &Programs,
    seconds: f64,
    file: &Path,
) -> Result<Profile> {
    ensure!(setup.contestant != Contestant::Ring, "{} is not a separate process", setup.name());
    perf::check_installed()?;
    let mut servers = Servers::new(cell.store, cell.is_shared, programs)?;
    let mut clients = Clients::new(TurnTimes { warm_up: Duration::ZERO, measured: FIRST });
    clients.turn(&mut servers, cell, setup, 1)?;
    let pid = servers.portal(setup.contestant)?.pid;
    let sampled = Duration::from_secs_f64(seconds);
    clients.times = TurnTimes { warm_up: LEAD, measured: sampled + TAIL };
    // perf runs on the client's core, since the other core belongs to the target.
    let core = (!cell.is_shared).then_some(CLIENT_CORE);
    let (sample, script) = std::thread::scope(|scope| {
        let script = scope.spawn(|| {
            std::thread::sleep(LEAD);
            perf::script(pid, core, sampled)
        });
        let sample = clients.turn(&mut servers, cell, setup, 2);
        (sample, script.join())
    });
    let (sample, script) = (sample?, script.map_err(|_| anyhow!("a thread panicked"))??);
    let stacks = flame::parse(&script);
    ensure!(!stacks.is_empty(), "perf recorded no samples of the target");
    let count = stacks.len() as u64;
    let title = format!(
        "{}, {}: {count} samples of the target in {seconds} s, {:.0} IOPS",
        cell.key(),
        setup.name(),
        sample.iops
    );
    files::write_atomically(file, &flame::svg(&title, &stacks))?;
    let share = |(part, samples): (String, u64)| Share {
        part,
        samples,
        share: samples as f64 / count as f64,
    };
    Ok(Profile {
        cell: cell.key(),
        setup: setup.name(),
        file: file.display().to_string(),
        seconds,
        samples: count,
        shares: flame::shares(&stacks).into_iter().map(share).collect(),
        sample,
    })
}

/// Returns `CELL.svg`; for a setup other than plain Lunar, `CELL.lunar-4-connections.svg`.
fn file_name(cell: &str, setup: &str) -> String {
    if setup == LUNAR.name() {
        return format!("{cell}.svg");
    }
    let words = setup.split(|letter: char| !letter.is_ascii_alphanumeric());
    let words: Vec<&str> = words.filter(|word| !word.is_empty()).collect();
    format!("{cell}.{}.svg", words.join("-"))
}

fn parse_seconds(text: &str) -> Result<f64> {
    let seconds: f64 = text.parse()?;
    let range = SECONDS_LEAST..=SECONDS_MOST;
    ensure!(
        range.contains(&seconds),
        "the duration must be {SECONDS_LEAST} to {SECONDS_MOST} seconds"
    );
    Ok(seconds)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Goal: each setup of each cell has a file of its own, with a name that needs no quotes.
    #[test]
    fn files_have_names() {
        assert_eq!(file_name("rand-read-4Ki-32-tmpfs", "lunar"), "rand-read-4Ki-32-tmpfs.svg");
        assert_eq!(file_name("k", "lunar, 4 connections"), "k.lunar-4-connections.svg");
        let all = CELLS
            .iter()
            .flat_map(|cell| cell.setups.iter().map(|setup| file_name(&cell.key(), &setup.name())));
        let all: Vec<String> = all.collect();
        assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len());
        let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-.".contains(letter);
        assert!(all.iter().all(|name| name.chars().all(is_plain)), "{all:?}");
    }

    /// Goal: times out of range for perf are refused.
    #[test]
    fn times_have_bounds() {
        assert_eq!(parse_seconds("2").unwrap(), 2.0);
        for text in ["0", "31", "nan", "-1", "x"] {
            assert!(parse_seconds(text).is_err(), "{text}");
        }
    }
}
