//! Table of goals, each a ratio within one cell, judged round by round.

use super::cells::{CELLS, Cell, Contestant, LUNAR, NULL, ProbeKind, RING, Setup, TGT};
use super::results::{BenchRun, CellResult, Round, Sample};
use crate::bench::goal::{GoalOutcome, GoalVerdict};
use lunar_load::Spread;

/// One goal.
pub struct Goal {
    /// Column that the goal belongs to.
    pub part: &'static str,
    pub what: &'static str,
    /// Key of the cell that decides it.
    pub cell: &'static str,
    pub ratio: Ratio,
    pub bound: Bound,
}

/// Numerator and denominator of a goal, in each round.
#[derive(Clone, Copy)]
pub enum Ratio {
    /// A figure of one setup divided by that of another.
    Setups(Figure, Setup, Setup),
    /// The requests (of a stream: the bytes) a second of a setup divided by those of raw TCP.
    RawTcp(Setup, ProbeKind),
    /// The 99th percentile of a setup's latency divided by its median.
    Tail(Setup),
}

/// Figure that is compared.
#[derive(Clone, Copy)]
pub enum Figure {
    Iops,
    Bytes,
    /// The target's processor time for each request.
    TargetCpu,
}

/// Bound of the median of the ratios.
#[derive(Clone, Copy)]
pub enum Bound {
    Least(f64),
    Most(f64),
    /// A minimum, unless the client is at its limit while the target is not.
    LeastUnlessClientBusy(f64),
}

use self::Bound::{Least, LeastUnlessClientBusy, Most};
use self::Figure::{Bytes, Iops, TargetCpu};
use self::Ratio::{RawTcp, Setups, Tail};

/// Processor use from which on a client's core counts as saturated.
const CLIENT_BUSY: f64 = 0.95;
/// Processor use up to which a target's core has much capacity left.
const TARGET_BUSY: f64 = 0.70;

const READS: &str = "rand-read-4Ki-32-tmpfs";
const WRITES: &str = "rand-write-4Ki-32-tmpfs";
const READ_ALONE: &str = "rand-read-4Ki-1-tmpfs";
const WRITE_ALONE: &str = "rand-write-4Ki-1-tmpfs";
const LIBISCSI: &str = "rand-read-4Ki-32-tmpfs-libiscsi";
const READS_DISK: &str = "rand-read-4Ki-32-disk";
const STREAM_READS: &str = "read-256Ki-8-tmpfs";
const STREAM_WRITES: &str = "write-256Ki-8-tmpfs";
const DURABLE_WRITES: &str = "rand-write-4Ki-32-disk-through";
const SESSIONS: &str = "rand-read-4Ki-32-tmpfs-sessions";
const LARGE_READS: &str = "read-1Mi-8-tmpfs";
const DIRECT_READS: &str = "rand-read-4Ki-32-disk-direct";
const DIGESTS: &str = "rand-read-4Ki-32-tmpfs-digests";
const STREAM_DIGESTS: &str = "read-256Ki-8-tmpfs-digests";
const CONNECTIONS: &str = "rand-read-4Ki-32-tmpfs-connections";
const WRITE_CONNECTIONS: &str = "rand-write-4Ki-32-tmpfs-connections";
const TWO_CORES: &str = "rand-read-4Ki-32-tmpfs-two-cores";

/// Goals for which a run gives additional reasons (`report/reasons.rs`).
pub const CPU_BY_NULL: &str = "CPU for a 4 KiB read, of the null target's";
pub const FOUR_BY_ONE: &str = "IOPS of four connections by one's, two cores";

/// All goals, in the order of the report.
#[rustfmt::skip] // a table
pub const GOALS: &[Goal] = &[
    tgt("IOPS, 4 KiB random reads, depth 32, file in tmpfs",
        READS, Setups(Iops, LUNAR, TGT), Least(4.0)),
    tgt("IOPS, 4 KiB random reads, depth 32, file on the disk, cached",
        READS_DISK, Setups(Iops, LUNAR, TGT), Least(4.0)),
    tgt("IOPS, the same in tmpfs asked by libiscsi",
        LIBISCSI, Setups(Iops, LUNAR.libiscsi(), TGT.libiscsi()), LeastUnlessClientBusy(4.0)),
    tgt("throughput, 256 KiB reads",
        STREAM_READS, Setups(Bytes, LUNAR, TGT), Least(1.5)),
    tgt("throughput, 256 KiB writes",
        STREAM_WRITES, Setups(Bytes, LUNAR, TGT), Least(1.5)),
    tgt("CPU of the target for a 4 KiB read, depth 32",
        READS, Setups(TargetCpu, LUNAR, TGT), Most(0.25)),
    tgt("CPU of the target for a 4 KiB write, depth 32",
        WRITES, Setups(TargetCpu, LUNAR, TGT), Most(0.25)),
    tgt("IOPS, 4 KiB reads, one at a time",
        READ_ALONE, Setups(Iops, LUNAR, TGT), Least(1.0)),
    tgt("IOPS, 4 KiB writes, one at a time",
        WRITE_ALONE, Setups(Iops, LUNAR, TGT), Least(1.0)),
    tgt("IOPS, 4 KiB writes, depth 32, write-back in tmpfs",
        WRITES, Setups(Iops, LUNAR, TGT), Least(2.0)),
    tgt("IOPS, 4 KiB writes, depth 32, write-through on the disk",
        DURABLE_WRITES, Setups(Iops, LUNAR, TGT), Least(1.5)),
    ceiling("4 KiB reads one at a time, of raw TCP's ping-pong",
        READ_ALONE, RawTcp(LUNAR, ProbeKind::Ping), Least(0.85)),
    ceiling("IOPS, four sessions of depth 32, of the null target",
        SESSIONS, Setups(Iops, LUNAR.sessions(4), NULL.sessions(4)), Least(0.70)),
    ceiling(CPU_BY_NULL,
        READS, Setups(TargetCpu, LUNAR, NULL), Most(1.4)),
    ceiling("1 MiB reads, of raw TCP's stream",
        LARGE_READS, RawTcp(LUNAR, ProbeKind::Stream), Least(0.70)),
    ceiling("direct 4 KiB reads, depth 32, of local io_uring",
        DIRECT_READS, Setups(Iops, LUNAR, RING), Least(0.50)),
    ceiling("digests: IOPS at 4 KiB, of those without",
        DIGESTS, Setups(Iops, LUNAR.digests(), LUNAR), Least(0.90)),
    ceiling("digests: throughput at 256 KiB, of that without",
        STREAM_DIGESTS, Setups(Bytes, LUNAR.digests(), LUNAR), Least(0.90)),
    ceiling("p99 by p50, four connections, depth 32, reads",
        CONNECTIONS, Tail(LUNAR.connections(4)), Most(3.0)),
    ceiling("p99 by p50, four connections, depth 32, writes",
        WRITE_CONNECTIONS, Tail(LUNAR.connections(4)), Most(3.0)),
    ceiling(FOUR_BY_ONE,
        TWO_CORES, Setups(Iops, LUNAR.connections(4), LUNAR), Least(1.5)),
];

const fn tgt(what: &'static str, cell: &'static str, ratio: Ratio, bound: Bound) -> Goal {
    Goal { part: "tgt", what, cell, ratio, bound }
}

const fn ceiling(what: &'static str, cell: &'static str, ratio: Ratio, bound: Bound) -> Goal {
    Goal { part: "ceilings", what, cell, ratio, bound }
}

/// Maximum number of missed goals, none of them of the column tgt.
const MISSES_MAX: usize = 2;
/// The rule in words.
pub const RULE: &str =
    "at most two goals may be missed, none of them of the column tgt, and none void";

/// True when no more goals are missed than allowed, of those that were measured. A void goal does
/// not count, and a run that has measured none does not pass.
pub fn are_met(goals: &[GoalVerdict]) -> bool {
    let of = |outcome| goals.iter().filter(move |goal| goal.outcome == outcome);
    of(GoalOutcome::Miss).count() <= MISSES_MAX
        && of(GoalOutcome::Miss).all(|goal| goal.part != "tgt")
        && of(GoalOutcome::Void).next().is_none()
        && goals.iter().any(|goal| goal.outcome != GoalOutcome::NotMeasured)
}

/// The verdicts on all goals.
pub fn verdicts(run: &BenchRun) -> Vec<GoalVerdict> {
    let cell = |goal: &Goal| run.cells.iter().find(|cell| cell.key == goal.cell);
    GOALS.iter().map(|goal| goal.verdict(cell(goal))).collect()
}

/// Returns the setups that were too slow in missed goals: the first one of the ratio, and beside it
/// the null target's where that is the reference. Each once.
pub fn missed(run: &BenchRun) -> Vec<(&'static Cell, Setup)> {
    let mut setups: Vec<(&'static Cell, Setup)> = Vec::new();
    for (goal, verdict) in GOALS.iter().zip(verdicts(run)) {
        if verdict.outcome != GoalOutcome::Miss {
            continue;
        }
        let Some(cell) = CELLS.iter().find(|cell| cell.key() == goal.cell) else { continue };
        for setup in [Some(goal.ratio.setup()), goal.ratio.null()].into_iter().flatten() {
            if !setups.iter().any(|(known, one)| known.key() == goal.cell && *one == setup) {
                setups.push((cell, setup));
            }
        }
    }
    setups
}

impl Goal {
    /// The verdict on the goal by this cell; `None`: the cell was not measured.
    fn verdict(&self, cell: Option<&CellResult>) -> GoalVerdict {
        let got = cell.and_then(|cell| self.ratio.of(cell));
        let (wanted, is_at_least) = match self.bound {
            Least(wanted) | LeastUnlessClientBusy(wanted) => (wanted, true),
            Most(wanted) => (wanted, false),
        };
        let (mut outcome, mut note) = (GoalOutcome::NotMeasured, None);
        if let (Some(cell), Some(got)) = (cell, got) {
            let is_met = if is_at_least { got.median >= wanted } else { got.median <= wanted };
            outcome = if is_met { GoalOutcome::Pass } else { GoalOutcome::Miss };
            if cell.is_void {
                outcome = GoalOutcome::Void;
                let (variation, share) = (cell.probe_variation * 100.0, cell.core_share() * 100.0);
                note = Some(format!(
                    "raw TCP ({}) varied by {variation:.0} %, and a spinning thread had \
                     {share:.0} % of its core",
                    cell.probe
                ));
            } else if let (false, Some(why)) = (is_met, self.exception(cell)) {
                (outcome, note) = (GoalOutcome::Pass, Some(why));
            }
        }
        GoalVerdict {
            part: self.part.to_owned(),
            what: self.what.to_owned(),
            from: self.cell.to_owned(),
            wanted,
            is_at_least,
            got: got.map(|got| got.median),
            least: got.map(|got| got.least),
            most: got.map(|got| got.most),
            unit: String::new(),
            outcome,
            note,
        }
    }

    /// Returns the reason why a missed goal does not count as missed.
    fn exception(&self, cell: &CellResult) -> Option<String> {
        let (LeastUnlessClientBusy(_), Setups(_, setup, _)) = (self.bound, self.ratio) else {
            return None;
        };
        let name = setup.name();
        let client = cell.setup(&name, |sample| sample.client_busy)?.median;
        let target = cell.setup(&name, |sample| sample.target_busy)?.median;
        (client >= CLIENT_BUSY && target <= TARGET_BUSY).then(|| {
            format!(
                "by the exception: the client's core is {:.0} % busy, the target's {:.0} %",
                client * 100.0,
                target * 100.0
            )
        })
    }
}

impl Ratio {
    /// Returns the setup that the goal is about.
    const fn setup(self) -> Setup {
        match self {
            Setups(_, setup, _) | RawTcp(setup, _) | Tail(setup) => setup,
        }
    }

    /// Returns the null target's setup, if it is the reference.
    fn null(self) -> Option<Setup> {
        match self {
            Setups(_, _, other) if other.contestant == Contestant::Null => Some(other),
            Setups(..) | RawTcp(..) | Tail(_) => None,
        }
    }

    fn of(self, cell: &CellResult) -> Option<Spread> {
        cell.figures(|round| self.in_round(round))
    }

    fn in_round(self, round: &Round) -> Option<f64> {
        let sample = |setup: Setup| round.setups.get(&setup.name());
        let ratio = |one: f64, other: f64| (other > 0.0).then(|| one / other);
        match self {
            Setups(figure, one, other) => {
                ratio(figure.of(sample(one)?)?, figure.of(sample(other)?)?)
            }
            RawTcp(setup, probe_kind) => {
                let sample = sample(setup)?;
                let got = match probe_kind {
                    ProbeKind::Stream => sample.bytes_per_second,
                    ProbeKind::Ping | ProbeKind::Exchange => sample.iops,
                };
                ratio(got, round.raw_tcp.rate(probe_kind))
            }
            Tail(setup) => {
                let sample = sample(setup)?;
                ratio(sample.p99_us?, sample.p50_us?)
            }
        }
    }
}

impl Figure {
    fn of(self, sample: &Sample) -> Option<f64> {
        match self {
            Iops => Some(sample.iops),
            Bytes => Some(sample.bytes_per_second),
            TargetCpu => sample.target_cpu_us,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::results::RawTcpFigures;
    use super::*;

    fn goal(what: &str) -> &'static Goal {
        GOALS.iter().find(|goal| goal.what.starts_with(what)).unwrap()
    }

    /// Creates a cell of one round for each list of samples.
    fn cell(key: &str, rounds: &[&[(&str, Sample)]]) -> CellResult {
        let rounds: Vec<Round> = rounds
            .iter()
            .map(|setups| Round {
                raw_tcp: RawTcpFigures { ping_us: 50.0, ..RawTcpFigures::default() },
                setups: setups
                    .iter()
                    .map(|(name, one)| ((*name).to_owned(), one.clone()))
                    .collect(),
            })
            .collect();
        let kept = (0..rounds.len()).collect();
        CellResult { key: key.to_owned(), rounds, kept, ..CellResult::default() }
    }

    fn iops(iops: f64) -> Sample {
        Sample { iops, ..Sample::default() }
    }

    /// Goal: each goal names a cell of the short form that has its setups.
    #[test]
    fn goals_have_cells() {
        for goal in GOALS {
            let cell = CELLS.iter().find(|cell| cell.key() == goal.cell && cell.is_short);
            let cell = cell.unwrap_or_else(|| panic!("{}: no cell {}", goal.what, goal.cell));
            let other = match goal.ratio {
                Setups(_, _, other) => Some(other),
                RawTcp(..) | Tail(_) => None,
            };
            let setups: Vec<Setup> = other.into_iter().chain([goal.ratio.setup()]).collect();
            assert!(setups.iter().all(|setup| cell.setups.contains(setup)), "{}", goal.what);
        }
    }

    /// Goal: ratios are those of rounds and not of medians; both kinds of bounds judge; an
    /// unmeasured goal is not judged.
    #[test]
    fn goals_pass_and_miss() {
        let rounds: [&[(&str, Sample)]; 3] = [
            &[("lunar", iops(400.0)), ("tgt", iops(100.0))],
            &[("lunar", iops(900.0)), ("tgt", iops(300.0))],
            &[("lunar", iops(500.0)), ("tgt", iops(100.0))],
        ];
        let four = goal("IOPS, 4 KiB random reads, depth 32, file in tmpfs");
        let verdict = four.verdict(Some(&cell(READS, &rounds)));
        assert_eq!((verdict.got, verdict.outcome), (Some(4.0), GoalOutcome::Pass));
        assert_eq!((verdict.least, verdict.most), (Some(3.0), Some(5.0)));
        let verdict = four.verdict(Some(&cell(READS, &rounds[1..2])));
        assert_eq!((verdict.got, verdict.outcome), (Some(3.0), GoalOutcome::Miss));
        // A setup is missing in one round.
        let verdict = four.verdict(Some(&cell(READS, &[rounds[0], &rounds[1][..1]])));
        assert_eq!((verdict.got, verdict.outcome), (None, GoalOutcome::NotMeasured));
        assert_eq!(four.verdict(None).outcome, GoalOutcome::NotMeasured);
        let cpu = |each| Sample { target_cpu_us: Some(each), ..Sample::default() };
        let quarter = goal("CPU of the target for a 4 KiB read");
        for (ours, outcome) in [(2.0, GoalOutcome::Pass), (3.0, GoalOutcome::Miss)] {
            let cell = cell(READS, &[&[("lunar", cpu(ours)), ("tgt", cpu(8.0))]]);
            assert_eq!(quarter.verdict(Some(&cell)).outcome, outcome);
        }
        let ping = goal("4 KiB reads one at a time");
        let verdict = ping.verdict(Some(&cell(READ_ALONE, &[&[("lunar", iops(18_000.0))]])));
        assert_eq!((verdict.got, verdict.outcome), (Some(0.9), GoalOutcome::Pass));
    }

    /// Goal: two misses are accepted, a third is not, and none of the column tgt.
    #[test]
    fn some_may_miss() {
        let miss = |part: &str| GoalVerdict {
            part: part.to_owned(),
            outcome: GoalOutcome::Miss,
            ..GOALS[0].verdict(None)
        };
        assert!(are_met(&[miss("ceilings"), miss("scale"), GOALS[0].verdict(None)]));
        assert!(!are_met(&[miss("ceilings"), miss("scale"), miss("ceilings")]));
        assert!(!are_met(&[miss("tgt")]));
        assert!(!are_met(&[GOALS[0].verdict(None)]), "nothing was measured");
        let void = GoalVerdict { outcome: GoalOutcome::Void, ..miss("ceilings") };
        assert!(!are_met(&[void, miss("scale")]), "a void cell shows nothing");
    }

    /// Goal: the setups of missed goals are returned, each once, and none of goals that are met,
    /// void or not measured.
    #[test]
    fn setups_of_missed_goals() {
        let ours = Sample { target_cpu_us: Some(5.0), ..iops(100.0) };
        let tgt = Sample { target_cpu_us: Some(5.0), ..iops(100.0) };
        // Missed in IOPS and in CPU, and one more connection would not help.
        let null = Sample { target_cpu_us: Some(1.0), ..iops(100.0) };
        let reads = [("lunar", ours.clone()), ("tgt", tgt.clone()), ("null target", null)];
        let reads = cell(READS, &[&reads]);
        let two = [("lunar, 4 connections", iops(100.0)), ("lunar", iops(100.0))];
        let two = cell(TWO_CORES, &[&two]);
        let void = cell(WRITES, &[&[("lunar", ours.clone()), ("tgt", tgt.clone())]]);
        let void = CellResult { is_void: true, ..void };
        let met = cell(READ_ALONE, &[&[("lunar", iops(20_000.0)), ("tgt", tgt)]]);
        let run = BenchRun { cells: vec![reads, two, void, met], ..BenchRun::default() };
        let missed_cells: Vec<(String, Setup)> =
            missed(&run).into_iter().map(|(cell, setup)| (cell.key(), setup)).collect();
        let wanted = [(READS, LUNAR), (READS, NULL), (TWO_CORES, LUNAR.connections(4))];
        assert_eq!(missed_cells, wanted.map(|(key, setup)| (key.to_owned(), setup)));
    }

    /// Goal: a void cell is neither pass nor miss, and its note says which probe varied too much.
    #[test]
    fn a_void_cell_is_neither_pass_nor_miss() {
        let rounds: [&[(&str, Sample)]; 1] = [&[("lunar", iops(900.0)), ("tgt", iops(100.0))]];
        let cell = CellResult { is_void: true, probe_variation: 0.4, ..cell(READS, &rounds) };
        let verdict = goal("IOPS, 4 KiB random reads, depth 32, file in").verdict(Some(&cell));
        assert_eq!(verdict.outcome, GoalOutcome::Void);
        assert!(verdict.note.unwrap().contains("40 %"));
    }

    /// Goal: the exception holds when the client is at its limit and the target is not, and only
    /// for the goal that has it.
    #[test]
    fn a_client_at_its_end_is_an_exception() {
        let goal = goal("IOPS, the same in tmpfs asked by libiscsi");
        for (client, target, outcome) in [
            (0.96, 0.6, GoalOutcome::Pass),
            (0.96, 0.8, GoalOutcome::Miss),
            (0.9, 0.6, GoalOutcome::Miss),
        ] {
            let busy = Some(client);
            let ours = Sample { client_busy: busy, target_busy: Some(target), ..iops(300.0) };
            let setups = [("lunar by libiscsi", ours), ("tgt by libiscsi", iops(100.0))];
            let verdict = goal.verdict(Some(&cell(LIBISCSI, &[&setups])));
            assert_eq!(verdict.outcome, outcome, "{client} {target}");
            assert_eq!(verdict.note.is_some(), outcome == GoalOutcome::Pass);
        }
    }
}
