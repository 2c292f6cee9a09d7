//! Figures of a run, and ratios between paths.

use super::cells::{CellLoad, PATHS, SceneKind, SwitchPath};
use lunar_load::{AccessPattern, Spread};
use serde::Serialize;

/// Figures of one path in one round.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct TurnFigures {
    /// Requests a second of all hosts.
    pub requests_per_second: f64,
    pub bytes_per_second: f64,
    /// Median time of a request, in microseconds.
    pub p50_us: f64,
    /// Processor time of all processes of the switch for a request, in microseconds; 0 without a
    /// switch.
    pub switch_cpu_us: f64,
    /// Commands that the relay of a switch moved to the end, of all commands; 0 for other paths.
    pub relayed_share: f64,
}

/// Rounds of one cell; each has the figures of all paths, in the order of [`PATHS`].
#[derive(Clone, Debug)]
pub struct CellRounds {
    pub scene: &'static SceneKind,
    pub load: CellLoad,
    pub rounds: Vec<[TurnFigures; PATHS.len()]>,
}

/// A figure of a turn.
pub type Figure = fn(&TurnFigures) -> f64;

pub const RATE: Figure = |turn| turn.requests_per_second;
pub const BYTES: Figure = |turn| turn.bytes_per_second;
pub const CPU: Figure = |turn| turn.switch_cpu_us;
pub const TIME: Figure = |turn| turn.p50_us;
/// Processor time of the switch for each second, in percent of a core.
pub const USE: Figure = |turn| turn.switch_cpu_us * turn.requests_per_second / 1e4;
pub const RELAYED: Figure = |turn| turn.relayed_share;

impl CellRounds {
    /// Returns a figure of a path.
    pub fn figure(&self, path: SwitchPath, figure: Figure) -> Spread {
        Spread::of(self.rounds.iter().map(|round| figure(&round[path.index()])))
    }

    /// Returns the ratio of a path's figure to another's, of each round.
    pub fn ratio(&self, figure: Figure, path: SwitchPath, to: SwitchPath) -> Spread {
        let ratio = |round: &[TurnFigures; PATHS.len()]| {
            figure(&round[path.index()]) / figure(&round[to.index()]).max(f64::MIN_POSITIVE)
        };
        Spread::of(self.rounds.iter().map(ratio))
    }
}

/// Returns the cells of a scene with this pattern and a depth above 1, in the order of sizes.
pub fn of_pattern<'a>(
    cells: &'a [CellRounds],
    scene: &'a str,
    pattern: AccessPattern,
) -> impl Iterator<Item = &'a CellRounds> {
    cells.iter().filter(move |cell| {
        cell.scene.key == scene && cell.load.pattern == pattern && cell.load.depth > 1
    })
}
