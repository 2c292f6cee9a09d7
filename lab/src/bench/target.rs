//! Compares the target with tgt, and with what TCP and the disk of this machine allow.

mod cells;
mod clients;
pub mod compare;
mod durability;
mod goals;
pub mod profile;
mod report;
pub mod results;
mod rounds;
mod servers;

use self::cells::{CELLS, Cell, LUNAR, Setup, StorageMedium};
use self::clients::{Clients, TurnTimes};
use self::report::{markdown, page, tables};
use self::results::{BenchRun, CellResult, Durability};
use self::rounds::{RoundCounts, TcpProbe};
use self::servers::{Programs, Servers};
use super::parse_seconds;
use crate::bench::goal::GoalVerdict;
use crate::peers::lunar::release_binary;
use crate::system::files;
use anyhow::{Context, Result, ensure};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Maximum number of additional rounds of a cell while raw TCP varies too much, as a multiple of
/// its rounds.
const EXTRA_ROUNDS_FACTOR: usize = 1;
/// Factor of the number of rounds of [unsteady](is_unsteady) cells.
const UNSTEADY_ROUNDS_FACTOR: usize = 2;
/// Time that a TCP probe is given, as a multiple of a client's measured time; it runs for a tenth.
const PROBE_TURNS: u32 = 2;

/// Cells of served disk, pattern, size and depth; in each round raw TCP is probed and all
/// contestants take turns on the same file. Goals are medians of the ratios of rounds.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  \
    cargo run --release -p lunar-lab -- target --only rand-read-4Ki --html report.html\n\n\
    Requires root (tgtd), two cores, and the packages that `scripts/setup bench` installs.")]
pub struct TargetBench {
    /// All cells, not only those that goals need
    #[arg(long)]
    full: bool,
    /// Only cells whose key contains this
    #[arg(long, value_name = "PATTERN")]
    only: Option<String>,
    /// Rounds that count
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: u16,
    /// Time that each client measures in a round
    #[arg(long, default_value_t = 1.0, value_parser = parse_seconds)]
    seconds: f64,
    /// Warm-up of each client before that
    #[arg(long, default_value_t = 0.2, value_parser = parse_seconds)]
    warm_up: f64,
    /// Directory of files on a disk; its file system is measured
    #[arg(long, value_name = "DIRECTORY", default_value = ".")]
    directory: PathBuf,
    /// List the cells, and measure nothing
    #[arg(long)]
    list: bool,
    /// Measure nothing: read a run that `--json` wrote, and judge and show it again
    #[arg(long, value_name = "FILE")]
    from: Option<PathBuf>,
    /// Goals of other parts: files whose member `goals` has rows like those of `--json`
    #[arg(long, value_name = "FILE")]
    goals_from: Vec<PathBuf>,
    /// Write everything as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write one page with plots
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write a chapter in Markdown
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
    /// Directory of flame graphs: one for each setup whose goal was missed, sampled by perf
    #[arg(long, value_name = "DIRECTORY", conflicts_with = "from")]
    profiles: Option<PathBuf>,
    /// Fail when more than two goals are missed, or one of the column tgt
    #[arg(long)]
    strict: bool,
}

impl TargetBench {
    /// Runs the measurements.
    ///
    /// # Errors
    /// Something cannot be built or started, a client fails, or `--strict` and goals are missed.
    pub fn run(&self) -> Result<()> {
        let cells: Vec<&Cell> = CELLS.iter().filter(|cell| self.wants(cell)).collect();
        ensure!(!cells.is_empty(), "no cell has a matching key: see --list --full");
        if self.list {
            cells.iter().for_each(|cell| println!("{}", cell.key()));
            return Ok(());
        }
        let mut run = match &self.from {
            Some(path) => read(path)?,
            None => {
                self.check_outputs()?;
                self.measure(&cells)?
            }
        };
        if let Some(directory) = &self.profiles {
            run.profiles = profile::of_all(&goals::missed(&run), &self.programs()?, directory);
        }
        run.goals = goals::verdicts(&run);
        for path in &self.goals_from {
            run.goals.extend(goals_of(path)?);
        }
        self.write_outputs(&run)
    }

    fn wants(&self, cell: &Cell) -> bool {
        let named = self.only.as_ref().is_none_or(|part| cell.key().contains(part));
        named && (self.full || cell.is_short || self.only.is_some())
    }

    fn measure(&self, cells: &[&Cell]) -> Result<BenchRun> {
        let programs = self.programs()?;
        let count = |cell: &Cell| {
            let wanted = usize::from(self.rounds)
                * if is_unsteady(cell) { UNSTEADY_ROUNDS_FACTOR } else { 1 };
            RoundCounts { wanted, extra: wanted * EXTRA_ROUNDS_FACTOR, turns: 1 }
        };
        let times = TurnTimes {
            warm_up: Duration::from_secs_f64(self.warm_up),
            measured: Duration::from_secs_f64(self.seconds),
        };
        let mut run = BenchRun {
            facts: tables::facts(&programs)?,
            rounds: self.rounds.into(),
            seconds: self.seconds,
            is_full: self.full,
            ..BenchRun::default()
        };
        tables::print_machine_facts(&run);
        measure_cells(cells, &programs, count, times, |cell, durability| {
            print!("{}", tables::cell_text(&cell));
            run.cells.push(cell);
            durability.clone_into(&mut run.durability);
            // After each cell, so that a run that is ended early leaves a file for `--from`.
            self.write_json(&run)
        })?;
        Ok(run)
    }

    /// Checks that outputs can be written, before the measurements take half an hour.
    fn check_outputs(&self) -> Result<()> {
        for path in [&self.json, &self.html, &self.markdown].into_iter().flatten() {
            files::check_writable(path)?;
        }
        Ok(())
    }

    /// Writes the current state of the run as JSON.
    fn write_json(&self, run: &BenchRun) -> Result<()> {
        let Some(path) = &self.json else { return Ok(()) };
        files::write_atomically(path, &format!("{}\n", serde_json::to_string(run)?))
    }

    fn programs(&self) -> Result<Programs> {
        let directory = self.directory.canonicalize();
        let directory = directory.with_context(|| self.directory.display().to_string())?;
        Ok(Programs { lunar: release_binary()?, directory, base: None })
    }

    fn write_outputs(&self, run: &BenchRun) -> Result<()> {
        run.profiles.iter().for_each(|profile| println!("{}", tables::profile(profile)));
        print!("{}", tables::goals_text(&run.goals));
        tables::disturbance(run).iter().for_each(|warning| println!("warning: {warning}"));
        let write = |path: &Option<PathBuf>, what: &dyn Fn() -> Result<String>| match path {
            Some(path) => files::write_atomically(path, &what()?),
            None => Ok(()),
        };
        let chapter =
            || Ok(markdown::chapter(run, self.markdown.as_deref().unwrap_or(Path::new(""))));
        write(&self.markdown, &chapter)?;
        write(&self.html, &|| Ok(lunar_load::report::page(&page::report(run))))?;
        self.write_json(run)?;
        ensure!(!self.strict || goals::are_met(&run.goals), "{}", goals::RULE);
        Ok(())
    }
}

/// True for streams that goals need: their rounds differ by a tenth and more where TCP is paced,
/// unlike those of small requests.
fn is_unsteady(cell: &Cell) -> bool {
    cell.is_short && cell.probe_kind() == cells::ProbeKind::Stream
}

/// Measures all cells, one after the other, and passes each one to `on_result` with the durability
/// observed so far.
fn measure_cells(
    cells: &[&Cell],
    programs: &Programs,
    count: impl Fn(&Cell) -> RoundCounts,
    times: TurnTimes,
    mut on_result: impl FnMut(CellResult, &[Durability]) -> Result<()>,
) -> Result<()> {
    let tcp_probe = TcpProbe::start()?;
    let mut clients = Clients::new(times);
    let mut durability = Vec::<Durability>::new();
    // Adjacent cells with the same store share its servers.
    let mut servers: Option<Servers> = None;
    for cell in cells {
        let mut current = match servers.take() {
            Some(same) if same.store == cell.store && same.is_shared == cell.is_shared => same,
            other => {
                drop(other);
                Servers::new(cell.store, cell.is_shared, programs)?
            }
        };
        let seed = |round: u64| round + 1;
        let counts = count(cell);
        let result = rounds::measure(
            cell,
            counts,
            || tcp_probe.run_round(cell, times.measured * PROBE_TURNS * counts.turns as u32),
            |setup, round| clients.turn(&mut current, cell, setup, seed(round)),
        )?;
        check_durability(&mut current, cell, &mut durability)?;
        on_result(result, &durability)?;
        servers = Some(current);
    }
    Ok(())
}

/// Checks the durability of a cell's contestants that were not checked yet.
fn check_durability(servers: &mut Servers, cell: &Cell, known: &mut Vec<Durability>) -> Result<()> {
    if cell.store.medium == StorageMedium::Memory || cell.is_shared {
        return Ok(());
    }
    for setup in cell.setups.iter().filter(|setup| setup.contestant.has_store()) {
        let name = Setup { contestant: setup.contestant, ..LUNAR }.name();
        let is_this = |row: &Durability| row.store == cell.store.name && row.contestant == name;
        if !known.iter().any(is_this) {
            known.push(durability::seen(servers, setup.contestant)?);
        }
    }
    Ok(())
}

fn read(path: &Path) -> Result<BenchRun> {
    let text = std::fs::read(path).with_context(|| path.display().to_string())?;
    serde_json::from_slice(&text).with_context(|| path.display().to_string())
}

fn goals_of(path: &Path) -> Result<Vec<GoalVerdict>> {
    #[derive(serde::Deserialize)]
    struct Part {
        goals: Vec<GoalVerdict>,
    }
    let text = std::fs::read(path).with_context(|| path.display().to_string())?;
    let part: Part = serde_json::from_slice(&text).with_context(|| path.display().to_string())?;
    Ok(part.goals)
}
