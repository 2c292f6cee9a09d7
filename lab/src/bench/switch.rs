//! The virtualization switch, measured as its paper measured: both paths against no switch, a bare
//! relay of bytes, and a conventional switch of foreign programs.

mod cells;
mod document;
mod goals;
mod paper;
mod results;
mod scene;
mod site;
mod turn;

use self::cells::{PATHS, SCENES, SceneKind};
use self::results::{CellRounds, TurnFigures};
use self::scene::Scene;
use self::turn::TurnLength;
use super::goal::GoalVerdict;
use super::parse_seconds;
use crate::peers::lunar::release_binary;
use crate::report::sections::replaced;
use crate::system::files;
use anyhow::{Result, ensure};
use lunar_control::units::parse_size;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Factor of the time over links: few large requests end in a turn there.
const LINK_TIME_FACTOR: u32 = 4;

/// Hosts to storages directly, through a relay of bytes, through both paths of the switch, and
/// through tgt on QEMU's initiator. The paths take turns in each round; a ratio compares those of
/// one round. The switch has a core of its own.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  \
    cargo run --release -p lunar-lab -- switch --markdown docs/switch-performance.md\n\n\
    Requires root (tgtd, FUSE, network namespaces), two cores, and the packages that\n\
    `scripts/setup bench` installs. Scenes: null, lunar, tgt, two, link.")]
pub struct SwitchBench {
    /// Number of rounds
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Time that each path measures in a round
    #[arg(long, default_value = "0.3", value_parser = parse_seconds)]
    seconds: f64,
    /// Warm-up of each path before that
    #[arg(long, default_value = "0.1", value_parser = parse_seconds)]
    warm_up: f64,
    /// Size of each LUN
    #[arg(long, value_name = "SIZE", default_value = "128M", value_parser = parse_size)]
    disk_size: u64,
    /// Only these scenes
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    scene: Vec<String>,
    /// Only requests of this size
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    size: Option<u64>,
    /// Write the results as Markdown: docs/switch-performance.md
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
    /// Write one page with plots
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write all figures for programs
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Renew the figures beside the paper's: docs/papers.md
    #[arg(long, value_name = "FILE")]
    papers: Option<PathBuf>,
    /// Fail when a goal is missed
    #[arg(long)]
    strict: bool,
}

impl SwitchBench {
    /// Runs the measurements.
    ///
    /// # Errors
    /// A process does not start, a request fails, a command takes another path than it should, or
    /// `--strict` and a goal is missed.
    pub fn run(&self) -> Result<()> {
        for path in self.markdown.iter().chain(&self.html).chain(&self.json) {
            files::check_writable(path)?;
        }
        for name in &self.scene {
            let known = SCENES.iter().any(|scene| scene.key == name);
            ensure!(known, "no scene {name}: the scenes are null, lunar, tgt, two, link");
        }
        let program = release_binary()?;
        let mut warnings = Vec::new();
        let scenes = self.start(&program, &mut warnings)?;
        let cells = self.measure(&scenes)?;
        drop(scenes);
        let goals = goals::verdicts(&cells);
        let report = document::report(self, &program, &cells, &goals, &warnings);
        for section in &report.sections {
            println!("\n{}", section.text());
        }
        if let Some(path) = &self.markdown {
            files::write_atomically(path, &document::chapter(&report, &goals, &cells))?;
        }
        if let Some(path) = &self.html {
            files::write_atomically(path, &lunar_load::report::page(&report))?;
        }
        if let Some(path) = &self.json {
            let mut document = report.json();
            document["goals"] = json!(goals);
            document["cells"] = cells.iter().map(cell_json).collect();
            files::write_atomically(path, &format!("{document:#}\n"))?;
        }
        if let Some(path) = &self.papers {
            let text = std::fs::read_to_string(path)?;
            let part = document::paper_part(&report, &cells);
            files::write_atomically(path, &replaced(&text, document::PAPER_PART, &part)?)?;
        }
        let is_missed = self.strict && !goals.iter().all(GoalVerdict::is_met);
        ensure!(!is_missed, "at least one goal was missed");
        Ok(())
    }

    /// Starts the wanted scenes. Without links the others are measured, unless links are asked for.
    fn start(&self, program: &Path, warnings: &mut Vec<String>) -> Result<Vec<Scene>> {
        let mut scenes = Vec::new();
        for kind in SCENES.iter().filter(|kind| self.wants(kind)) {
            match Scene::start(kind, program, self.disk_size) {
                Ok(scene) => scenes.push(scene),
                Err(why) if kind.is_linked && self.scene.is_empty() => {
                    warnings.push(format!("no figures over 1 Gbit/s: {why:#}"));
                }
                Err(why) => return Err(why.context(kind.title)),
            }
        }
        Ok(scenes)
    }

    fn wants(&self, kind: &SceneKind) -> bool {
        self.scene.is_empty() || self.scene.iter().any(|name| name == kind.key)
    }

    fn measure(&self, scenes: &[Scene]) -> Result<Vec<CellRounds>> {
        let mut cells: Vec<(&Scene, CellRounds)> = Vec::new();
        for scene in scenes {
            for load in scene.kind.cells(self.size) {
                cells.push((scene, CellRounds { scene: scene.kind, load, rounds: Vec::new() }));
            }
        }
        ensure!(!cells.is_empty(), "no cell has requests of this size: change --size");
        for round in 0..self.rounds {
            for (scene, cell) in &mut cells {
                cell.rounds.push(self.round(scene, cell, round)?);
                println!("round {round}: {}", last_line(cell));
            }
        }
        Ok(cells.into_iter().map(|(_, cell)| cell).collect())
    }

    /// Measures all paths; the order changes with each round.
    fn round(
        &self,
        scene: &Scene,
        cell: &CellRounds,
        round: u32,
    ) -> Result<[TurnFigures; PATHS.len()]> {
        let factor = if scene.kind.is_linked { LINK_TIME_FACTOR } else { 1 };
        let length = TurnLength {
            warm_up: Duration::from_secs_f64(self.warm_up),
            measured: Duration::from_secs_f64(self.seconds) * factor,
            range_bytes: self.disk_size,
            seed: u64::from(round),
        };
        let mut order = PATHS;
        if !round.is_multiple_of(2) {
            order.reverse();
        }
        let mut figures = [TurnFigures::default(); PATHS.len()];
        for path in order {
            figures[path.index()] = turn::turn(scene, path, cell.load, length)?;
        }
        Ok(figures)
    }
}

/// Describes the last round of a cell.
fn last_line(cell: &CellRounds) -> String {
    let figures = cell.rounds.last().into_iter().flat_map(|round| round.iter().zip(PATHS));
    let figures = figures.map(|(turn, path)| {
        let (rate, cpu) = (turn.bytes_per_second / 1e6, turn.switch_cpu_us);
        format!("{} {rate:.1} MB/s {cpu:.2} us", path.name())
    });
    let figures = figures.collect::<Vec<_>>().join(", ");
    format!("{}: {}: {figures}", cell.scene.key, cell.load.name())
}

fn cell_json(cell: &CellRounds) -> serde_json::Value {
    let round = |round: &[TurnFigures; PATHS.len()]| {
        let paths =
            round.iter().zip(PATHS).map(|(turn, path)| json!({ "path": path, "turn": turn }));
        paths.collect::<serde_json::Value>()
    };
    json!({
        "scene": cell.scene.key,
        "pattern": cell.load.pattern.name(),
        "io_bytes": cell.load.io_bytes,
        "depth": cell.load.depth,
        "rounds": cell.rounds.iter().map(round).collect::<Vec<_>>(),
    })
}
