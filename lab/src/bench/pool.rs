//! Pools against their members: stripes and mirrors of remote LUNs and of memory.

mod cells;
mod document;
mod plain_mirror;
mod resync;
mod storages;

use self::cells::Cell;
use self::resync::ResyncCells;
use self::storages::Storages;
use super::goal::{GoalVerdict, goals_table};
use super::parse_seconds;
use crate::peers::lunar::release_binary;
use crate::system::files;
use anyhow::{Result, ensure};
use lunar_block::BlockDevice;
use lunar_control::units::parse_size;
use serde_json::json;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

type Device = Arc<dyn BlockDevice>;

/// Stripes and mirrors against single disks: remote LUNs behind a relay with a delay, and memory
/// of this process. Subjects take turns in each round; a ratio compares those of one round.
#[derive(Debug, clap::Args)]
pub struct PoolBench {
    /// Number of rounds
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Duration of each subject in a round
    #[arg(long, default_value = "1", value_parser = parse_seconds)]
    seconds: f64,
    /// Size of each LUN
    #[arg(long, value_name = "SIZE", default_value = "128M", value_parser = parse_size)]
    size: u64,
    /// Only cells whose names contain this text
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Write the results as Markdown: docs/pool-performance.md
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
    /// Write the goals for programs
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Fail when a goal is missed
    #[arg(long)]
    strict: bool,
}

impl PoolBench {
    /// Runs the measurements.
    ///
    /// # Errors
    /// A server does not start, a request fails, or `--strict` and a goal is missed.
    pub fn run(&self) -> Result<()> {
        for path in self.markdown.iter().chain(&self.json) {
            files::check_writable(path)?;
        }
        let program = release_binary()?;
        let facts = document::facts(self, &program);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let mut storages = Storages::start(&program, self.size)?;
        let goals = runtime.block_on(self.measure(&mut storages))?;
        ensure!(!goals.is_empty(), "no cell has this text in its name: change --only");
        print!("\n{}", goals_table(&goals).text());
        if let Some(path) = &self.markdown {
            files::write_atomically(path, &document::chapter(&facts, &goals))?;
        }
        if let Some(path) = &self.json {
            files::write_atomically(path, &format!("{:#}\n", json!({ "goals": goals })))?;
        }
        let is_missed = self.strict && !goals.iter().all(GoalVerdict::is_met);
        ensure!(!is_missed, "at least one goal was missed");
        Ok(())
    }

    async fn measure(&self, storages: &mut Storages) -> Result<Vec<GoalVerdict>> {
        let time = Duration::from_secs_f64(self.seconds);
        let mut cells: Vec<Cell> = Vec::new();
        for cell in cells::open(storages).await? {
            if self.is_wanted(cell.title()) {
                cells.push(cell);
            }
        }
        let mut resync = ResyncCells::open(storages).await?;
        for round in 0..self.rounds {
            for cell in &mut cells {
                cell.round(round, time).await?;
                println!("round {round}: {}", cell.last_line());
            }
            if self.is_wanted(resync::TITLE) {
                resync.round(round, time).await?;
                println!("round {round}: {}", resync.last_line());
            }
        }
        let mut goals: Vec<GoalVerdict> = cells.iter().map(Cell::verdict).collect();
        if self.is_wanted(resync::TITLE) {
            goals.extend(resync.verdicts());
        }
        Ok(goals)
    }

    fn is_wanted(&self, title: &str) -> bool {
        self.only.as_ref().is_none_or(|only| title.contains(only.as_str()))
    }
}
