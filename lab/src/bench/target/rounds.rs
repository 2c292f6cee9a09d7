//! Rounds of a cell: probe, setups, probe, setups; and the selection of the rounds that count.

use super::cells::{Cell, Setup};
use super::results::{CellResult, RawTcpFigures, Round, Sample};
use crate::system::cores::{self, CLIENT_CORE, TARGET_CORE, on_a_thread};
use anyhow::{Context, Result};
use lunar_load::Spread;
use lunar_load::probe::{Probe, ProbeResults, ProbeShape, VARIATION_MAX};
use std::collections::BTreeMap;
use std::time::Duration;

/// Probe of raw TCP between the core of targets and that of clients.
pub struct TcpProbe(Probe);

impl TcpProbe {
    /// Starts the answering side, on the target's core.
    ///
    /// # Errors
    /// The system gives no sockets, threads or cores.
    pub fn start() -> Result<Self> {
        let start = || {
            cores::pin(TARGET_CORE)?;
            Ok::<_, anyhow::Error>(Probe::start(None)?)
        };
        on_a_thread(start).map(Self)
    }

    /// Runs one round of the shape of a cell from the client's core. `round` is the time of a round
    /// of a setup.
    ///
    /// # Errors
    /// A connection is lost.
    pub fn run_round(&self, cell: &Cell, round: Duration) -> Result<RawTcpFigures> {
        let sessions = cell.most(|setup| setup.sessions);
        let shape = ProbeShape {
            writes: cell.pattern.writes(),
            io_bytes: cell.io_bytes,
            depth: cell.depth.saturating_mul(sessions),
            connections: sessions.max(cell.most(|setup| setup.connections)),
        };
        let target_share = on_a_thread(|| {
            cores::pin(TARGET_CORE)?;
            Ok(cores::share())
        })?;
        let run_round = || {
            cores::pin(CLIENT_CORE)?;
            let core_share = cores::share().min(target_share);
            let mut probed = ProbeResults::default();
            self.0.round(shape, round, &mut probed)?;
            Ok(RawTcpFigures {
                ping_us: probed.ping_micros().median,
                exchanges_per_second: probed.exchanges_per_second().median,
                stream_bytes_per_second: probed.stream_bytes_per_second().median,
                core_share,
            })
        };
        on_a_thread(run_round)
    }
}

/// Number of rounds.
#[derive(Clone, Copy, Debug)]
pub struct RoundCounts {
    /// Number of rounds that count.
    pub wanted: usize,
    /// Maximum number of additional rounds, while the results of the probe vary too much.
    pub extra: usize,
    /// Number of turns of each setup in a round. Many short turns instead of a long one put setups
    /// close together in time, so that a slow phase of the machine affects all of them.
    pub turns: usize,
}

/// Measures a cell. `run_turn` receives the number of the turn.
///
/// # Errors
/// The errors of `probe` and `run_turn`.
pub fn measure(
    cell: &Cell,
    count: RoundCounts,
    mut probe: impl FnMut() -> Result<RawTcpFigures>,
    mut run_turn: impl FnMut(&Setup, u64) -> Result<Sample>,
) -> Result<CellResult> {
    let mut result = CellResult::new(cell);
    while result.rounds.len() < count.wanted
        || (result.is_void && result.rounds.len() < count.wanted + count.extra)
    {
        let number = result.rounds.len();
        let raw_tcp = probe()?;
        let mut turns = BTreeMap::<String, Vec<Sample>>::new();
        for turn in 0..count.turns {
            for setup in order(cell.setups, number + turn) {
                let name = setup.name();
                let sample = run_turn(setup, (number * count.turns + turn) as u64);
                let sample = sample.with_context(|| format!("{}, {name}", result.key))?;
                turns.entry(name).or_default().push(sample);
            }
        }
        let setups = turns.into_iter().map(|(name, turns)| (name, Sample::mean(&turns)));
        result.rounds.push(Round { raw_tcp, setups: setups.collect() });
        let probes = result.rounds.iter().map(|round| round.raw_tcp.rate(cell.probe_kind()));
        (result.kept, result.probe_variation) = quietest(&probes.collect::<Vec<_>>(), count.wanted);
        // Other programs that are busy all the time do not change the results of the probe.
        result.is_void =
            result.probe_variation > VARIATION_MAX || result.core_share() < 1.0 - VARIATION_MAX;
    }
    Ok(result)
}

/// Returns the setups from first to last, and in reverse order in every second turn.
fn order(setups: &[Setup], turn: usize) -> Vec<&Setup> {
    let mut order: Vec<&Setup> = setups.iter().collect();
    if turn % 2 == 1 {
        order.reverse();
    }
    order
}

/// Returns the numbers of the `wanted` rounds whose probes lie closest together, in order, and the
/// variation of these probes. The probe alone decides, never the measured setups.
fn quietest(probes: &[f64], wanted: usize) -> (Vec<usize>, f64) {
    let mut sorted: Vec<usize> = (0..probes.len()).collect();
    sorted.sort_by(|one, other| probes[*one].total_cmp(&probes[*other]));
    let variation = |window: &[usize]| {
        let Spread { median, least, most } = Spread::of(window.iter().map(|at| probes[*at]));
        (most - least) / median.max(f64::MIN_POSITIVE)
    };
    let windows = sorted.windows(wanted.clamp(1, probes.len().max(1)));
    let best = windows.map(|window| (window, variation(window)));
    let Some((window, variation)) = best.min_by(|one, other| one.1.total_cmp(&other.1)) else {
        return (Vec::new(), 0.0);
    };
    let mut kept = window.to_vec();
    kept.sort_unstable();
    (kept, variation)
}

#[cfg(test)]
mod tests {
    use super::super::cells::CELLS;
    use super::*;

    fn raw_tcp(exchanges_per_second: f64) -> RawTcpFigures {
        let ping_us = 1e6 / exchanges_per_second;
        let stream_bytes_per_second = exchanges_per_second;
        RawTcpFigures { ping_us, exchanges_per_second, stream_bytes_per_second, core_share: 1.0 }
    }

    fn run(probes: &[f64], count: RoundCounts) -> (CellResult, Vec<(String, u64)>) {
        let (mut asked, mut at) = (Vec::new(), 0);
        let probe = || {
            at += 1;
            Ok(raw_tcp(probes[at - 1]))
        };
        let run_round = |setup: &Setup, round| {
            asked.push((setup.name(), round));
            Ok(Sample { iops: round as f64, ..Sample::default() })
        };
        let result = measure(&CELLS[0], count, probe, run_round).unwrap();
        (result, asked)
    }

    /// Goal: on a quiet machine there are exactly the wanted rounds, all count, and setups change
    /// their order.
    #[test]
    fn quiet_rounds_all_count() {
        let (result, asked) =
            run(&[100.0, 110.0, 95.0], RoundCounts { wanted: 3, extra: 3, turns: 1 });
        assert_eq!((result.kept.as_slice(), result.is_void), (&[0, 1, 2][..], false));
        let order: Vec<_> = asked.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(order, ["lunar", "tgt", "tgt", "lunar", "lunar", "tgt"]);
    }

    /// Goal: several turns of a round alternate, and the round has their means.
    #[test]
    fn turns_alternate_within_a_round() {
        let (result, asked) = run(&[100.0, 100.0], RoundCounts { wanted: 2, extra: 0, turns: 2 });
        let order: Vec<_> = asked.iter().map(|(name, turn)| (name.as_str(), *turn)).collect();
        let pairs = |first, second, turn| [(first, turn), (second, turn)];
        let rounds = [pairs("lunar", "tgt", 0), pairs("tgt", "lunar", 1)].concat();
        assert_eq!(order[..4], rounds[..]);
        assert_eq!(result.rounds[1].setups["lunar"].iops, 2.5);
    }

    /// Goal: a round with a deviating probe is replaced, and the cell is void only when too few
    /// rounds agree.
    #[test]
    fn rounds_are_repeated_until_the_probe_agrees() {
        let (result, _) =
            run(&[100.0, 40.0, 110.0, 105.0], RoundCounts { wanted: 3, extra: 3, turns: 1 });
        assert_eq!((result.kept.as_slice(), result.is_void), (&[0, 2, 3][..], false));
        assert_eq!(result.setup("lunar", |one| Some(one.iops)).unwrap().median, 2.0);
        let varying = [100.0, 40.0, 200.0, 10.0, 400.0, 1000.0];
        let (result, _) = run(&varying, RoundCounts { wanted: 3, extra: 3, turns: 1 });
        assert_eq!((result.rounds.len(), result.is_void), (6, true));
    }
}
