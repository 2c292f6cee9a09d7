//! Capacity and start of a server: sessions, LUNs, logins, time until it listens.

use super::INITIATOR;
use crate::bench::goal::Bound::{self, AtLeast, AtMost};
use crate::bench::goal::GoalVerdict;
use crate::peers::lunar::{Lunar, release_binary};
use crate::system::files::{self, TemporaryFolder};
use crate::system::process::raise_open_files;
use anyhow::{Context, Result, ensure};
use lunar_initiator::{Initiator, RemoteDisk, SessionOptions, Unit, Url};
use lunar_load::Spread;
use serde_json::json;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

const TARGET: &str = "iqn.2026-11.org.lunarsan.bench:scale";
/// Number of logins under way at once.
const AT_ONCE: usize = 32;
/// Time that sessions rest before the server's memory is read.
const REST: Duration = Duration::from_secs(1);
/// Open files besides those of the sessions.
const OPEN_FILES_RESERVED: usize = 1024;
/// Goals.
const SESSION_BYTES_MAX: f64 = 32.0 * 1024.0;
const LOGINS_MIN: f64 = 1000.0;
const START_MILLISECONDS_MAX: f64 = 100.0;

/// Many idle sessions and the server's memory for each, many LUNs of one target, logins a second,
/// and the time from the start of the program until it listens.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  cargo run --release -p lunar-lab -- scale --sessions 2000")]
pub struct ScaleBench {
    /// Idle sessions, each of one connection; without authentication their number from one address
    /// is limited
    #[arg(long, default_value_t = 10_000)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=10_700))]
    sessions: u32,
    /// LUNs of one target; each is opened once
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u16).range(1..=4096))]
    luns: u16,
    /// Duration of the count of logins in a round
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
    /// Number of starts of the server, and of rounds that count logins
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: u16,
    /// Write the goals for programs, and for `target --goals-from`
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Fail when a goal is missed
    #[arg(long)]
    strict: bool,
}

/// The verdict on a goal of this part.
fn goal(what: &str, from: String, got: Spread, unit: &str, bound: Bound) -> GoalVerdict {
    GoalVerdict::of_median("scale", what, from, got, unit, bound)
}

fn once(figure: f64) -> Spread {
    Spread::of([figure])
}

impl ScaleBench {
    /// Runs the measurements.
    ///
    /// # Errors
    /// A server does not start, a login or a read fails, or `--strict` and a goal is missed.
    pub fn run(&self) -> Result<()> {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        let program = release_binary()?;
        let wanted = self.sessions as usize + OPEN_FILES_RESERVED;
        ensure!(raise_open_files() >= wanted, "{wanted} open files are needed (ulimit -n)");
        let mut goals = Vec::new();
        for measure in [Self::starts, Self::luns, Self::logins, Self::sessions] {
            for goal in measure(self, &runtime, &program)? {
                println!("{}", goal.line());
                goals.push(goal);
            }
        }
        if let Some(path) = &self.json {
            files::write_atomically(path, &format!("{:#}\n", json!({ "goals": goals })))?;
        }
        let is_missed = self.strict && !goals.iter().all(GoalVerdict::is_met);
        ensure!(!is_missed, "at least one goal was missed");
        Ok(())
    }

    /// Measures the time from the start of the process until it listens.
    fn starts(&self, _: &Runtime, program: &Path) -> Result<Vec<GoalVerdict>> {
        let mut goals = Vec::new();
        for luns in [1, self.luns] {
            let config = Config::with(luns)?;
            let timed = || -> Result<f64> {
                let begun = Instant::now();
                let _server = serve(program, &config)?;
                Ok(begun.elapsed().as_secs_f64() * 1000.0)
            };
            timed()?; // reads the program from the disk once
            let times: Result<Vec<_>> = (0..self.rounds).map(|_| timed()).collect();
            let what = format!("start of the server until it listens, LUNs: {luns}");
            let from = format!("lunar target, {} starts", self.rounds);
            let bound = AtMost(START_MILLISECONDS_MAX);
            goals.push(goal(&what, from, Spread::of(times?), "ms", bound));
        }
        Ok(goals)
    }

    /// Lists all LUNs and reads from each.
    fn luns(&self, runtime: &Runtime, program: &Path) -> Result<Vec<GoalVerdict>> {
        let config = Config::with(self.luns)?;
        let server = serve(program, &config)?;
        let url: Url = format!("iscsi://{}/{TARGET}/0", server.address()).parse()?;
        let opened = async {
            let initiator = log_in(&url).await?;
            let listed = Unit::new(initiator.clone(), 0).report_luns().await?.len();
            for lun in 0..self.luns {
                let unit = Unit::new(initiator.clone(), lun);
                RemoteDisk::open(unit, &url).await.with_context(|| format!("LUN {lun}"))?;
            }
            initiator.log_out().await?;
            anyhow::Ok(listed)
        };
        let listed = runtime.block_on(opened)? as f64;
        let from = "REPORT LUNS; each was opened in one session".to_owned();
        Ok(vec![goal("LUNs of one target", from, once(listed), "LUNs", AtLeast(self.luns.into()))])
    }

    /// Measures logins and logouts, this many at once.
    fn logins(&self, runtime: &Runtime, program: &Path) -> Result<Vec<GoalVerdict>> {
        let config = Config::with(1)?;
        let server = serve(program, &config)?;
        let url: Arc<Url> = Arc::new(format!("iscsi://{}/{TARGET}/0", server.address()).parse()?);
        let time = Duration::from_secs(self.seconds);
        let rates = (0..self.rounds).map(|_| runtime.block_on(logins_per_second(&url, time)));
        let rates = rates.collect::<Result<Vec<_>>>()?;
        let from = format!("with their logouts, {AT_ONCE} at once, {} rounds", self.rounds);
        Ok(vec![goal("logins", from, Spread::of(rates), "1/s", AtLeast(LOGINS_MIN))])
    }

    /// Measures the growth of the server's memory.
    fn sessions(&self, runtime: &Runtime, program: &Path) -> Result<Vec<GoalVerdict>> {
        let config = Config::with(1)?;
        let mut server = serve(program, &config)?;
        let url: Arc<Url> = Arc::new(format!("iscsi://{}/{TARGET}/0", server.address()).parse()?);
        // Allocations that are made once exist before the first reading.
        drop(runtime.block_on(log_in_often(&url, AT_ONCE))?);
        std::thread::sleep(REST);
        let before = server.server().resident_bytes()?;
        let held = runtime.block_on(log_in_often(&url, self.sessions as usize))?;
        std::thread::sleep(REST);
        let after = server.server().resident_bytes()?;
        let alive = held.iter().filter(|session| session.connections() == 1).count();
        let each = after.saturating_sub(before) as f64 / alive.max(1) as f64;
        let from = "VmRSS of the server with them, and without".to_owned();
        let bound = AtLeast(self.sessions.into());
        let was_there = format!("logged in and idle for {} s", REST.as_secs());
        Ok(vec![
            goal("idle sessions", was_there, once(alive as f64), "sessions", bound),
            goal("memory of an idle session", from, once(each), "B", AtMost(SESSION_BYTES_MAX)),
        ])
    }
}

/// Starts `lunar target` and waits until it listens.
fn serve(program: &Path, config: &Config) -> Result<Lunar> {
    let (program, config) = (program.to_str(), config.path());
    let (program, config) = program.zip(config.to_str()).context("paths in UTF-8")?;
    Lunar::start_by(&[], program, &["target", "--config", config])
}

async fn log_in(url: &Url) -> Result<Initiator> {
    Ok(Initiator::connect(url, &SessionOptions::new(INITIATOR)).await?)
}

async fn logins_per_second(url: &Arc<Url>, time: Duration) -> Result<f64> {
    let begun = Instant::now();
    let mut tasks = JoinSet::new();
    for _ in 0..AT_ONCE {
        let url = Arc::clone(url);
        tasks.spawn(async move {
            let mut logins = 0;
            while begun.elapsed() < time {
                log_in(&url).await?.log_out().await?;
                logins += 1;
            }
            anyhow::Ok(logins)
        });
    }
    let logins: u64 = all_of(tasks).await?.into_iter().sum();
    Ok(logins as f64 / begun.elapsed().as_secs_f64())
}

/// Logs in this many sessions.
async fn log_in_often(url: &Arc<Url>, sessions: usize) -> Result<Vec<Initiator>> {
    let mut tasks = JoinSet::new();
    for number in 0..AT_ONCE {
        let url = Arc::clone(url);
        let share = sessions / AT_ONCE + usize::from(number < sessions % AT_ONCE);
        tasks.spawn(async move {
            let mut held = Vec::with_capacity(share);
            for _ in 0..share {
                held.push(log_in(&url).await?);
            }
            anyhow::Ok(held)
        });
    }
    Ok(all_of(tasks).await?.into_iter().flatten().collect())
}

async fn all_of<T: 'static>(mut tasks: JoinSet<Result<T>>) -> Result<Vec<T>> {
    let mut all = Vec::new();
    while let Some(ended) = tasks.join_next().await {
        all.push(ended??);
    }
    Ok(all)
}

/// A configuration of one target with disks in memory, in a folder that is removed with it.
struct Config(TemporaryFolder);

impl Config {
    fn with(luns: u16) -> Result<Self> {
        let config = Self(TemporaryFolder::new(&format!("scale-{luns}"))?);
        let state = config.0.path("state");
        let mut text = format!(
            "state = {state:?}\n[listen]\nportals = [\"127.0.0.1:0\"]\n[api]\nlisten = \"none\"\n\
             [[target]]\nname = \"{TARGET}\"\n"
        );
        for id in 0..luns {
            text += &format!(
                "[[target.lun]]\nid = {id}\nuuid = \"0b0f3c1e-7d55-4f0e-9b1d-2f6c5c1f{id:04x}\"\n\
                 device = \"mem:1M\"\n"
            );
        }
        fs::write(config.path(), text)?;
        Ok(config)
    }

    fn path(&self) -> PathBuf {
        self.0.path("lunar.toml")
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a test may unwrap

    use super::*;

    /// Goal: the generated configuration is accepted.
    #[test]
    fn the_generated_configuration_is_accepted() {
        let config = Config::with(300).unwrap();
        let read = lunar_control::config::load(&config.path()).unwrap();
        assert_eq!(read.targets[0].luns.len(), 300);
    }
}
