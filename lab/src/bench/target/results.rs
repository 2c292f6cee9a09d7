//! Results of a run. `--json` writes them, and all other outputs are made from them.

use super::cells::{Cell, ProbeKind};
use crate::bench::goal::GoalVerdict;
use lunar_load::{Latency, Spread};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Minimum share of a core that a spinning thread gets if nothing else runs.
const UNDISTURBED: f64 = 0.9;

/// Measurements of one setup in one round.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Sample {
    /// Requests a second.
    pub iops: f64,
    pub bytes_per_second: f64,
    /// Percentiles of the times that requests took; `None`: the client does not report them.
    pub p50_us: Option<f64>,
    pub p99_us: Option<f64>,
    pub p99_9_us: Option<f64>,
    /// Processor time of the target's process for each request; `None`: there is no such process.
    pub target_cpu_us: Option<f64>,
    /// Processor time of the target for each second.
    pub target_busy: Option<f64>,
    /// Processor time of the client for each second; `None`: not known.
    pub client_busy: Option<f64>,
}

impl Sample {
    /// Creates a sample from the times of all requests.
    pub fn of(latency: &Latency, iops: f64, bytes_per_second: f64) -> Self {
        let percentile = |part| Some(latency.percentile(part).as_nanos() as f64 / 1e3);
        Self {
            iops,
            bytes_per_second,
            p50_us: percentile(50.0),
            p99_us: percentile(99.0),
            p99_9_us: percentile(99.9),
            ..Self::default()
        }
    }

    /// Returns the means of the figures of several turns, each of the turns that have it.
    pub fn mean(turns: &[Self]) -> Self {
        let mean = |figure: fn(&Self) -> Option<f64>| {
            let figures: Vec<f64> = turns.iter().filter_map(figure).collect();
            (!figures.is_empty()).then(|| figures.iter().sum::<f64>() / figures.len() as f64)
        };
        Self {
            iops: mean(|turn| Some(turn.iops)).unwrap_or_default(),
            bytes_per_second: mean(|turn| Some(turn.bytes_per_second)).unwrap_or_default(),
            p50_us: mean(|turn| turn.p50_us),
            p99_us: mean(|turn| turn.p99_us),
            p99_9_us: mean(|turn| turn.p99_9_us),
            target_cpu_us: mean(|turn| turn.target_cpu_us),
            target_busy: mean(|turn| turn.target_busy),
            client_busy: mean(|turn| turn.client_busy),
        }
    }
}

/// Measurements of raw TCP in one round.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct RawTcpFigures {
    /// Time from a request to its response when it is the only one.
    pub ping_us: f64,
    /// Requests a second with as many under way as in the cell.
    pub exchanges_per_second: f64,
    /// Bytes a second in the direction of the data.
    pub stream_bytes_per_second: f64,
    /// Share of a core that a spinning thread got just before: the lower one of both cores. The
    /// rest was used by other programs.
    pub core_share: f64,
}

/// One round: the probe, then all setups.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct Round {
    pub raw_tcp: RawTcpFigures,
    /// Samples by the names of setups.
    #[serde(alias = "lanes")]
    pub setups: BTreeMap<String, Sample>,
}

/// One cell.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct CellResult {
    pub key: String,
    /// BackingStore that is served: `tmpfs`, `disk-through`.
    pub store: String,
    pub pattern: String,
    pub io_bytes: u64,
    pub depth: u16,
    /// True when target and client share all cores.
    pub is_shared: bool,
    /// Names of the setups, in the order of the table.
    #[serde(alias = "lanes")]
    pub setups: Vec<String>,
    /// Name of the probe that shows whether the machine was quiet.
    pub probe: String,
    pub rounds: Vec<Round>,
    /// The numbers of the rounds that count, from 0.
    pub kept: Vec<usize>,
    /// Variation of the probe within these rounds, as a part of its median.
    #[serde(alias = "probe_moved")]
    pub probe_variation: f64,
    /// True when it varied too much: the cell proves nothing.
    pub is_void: bool,
}

/// Evidence that the compared targets are equally durable.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct Durability {
    pub store: String,
    pub contestant: String,
    pub text: String,
}

/// One run.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct BenchRun {
    /// Names and values: the machine, the versions, the options.
    pub facts: Vec<(String, String)>,
    pub rounds: usize,
    pub seconds: f64,
    pub is_full: bool,
    pub durability: Vec<Durability>,
    pub cells: Vec<CellResult>,
    pub goals: Vec<GoalVerdict>,
    /// Profiles of setups that missed goals.
    #[serde(default)]
    pub profiles: Vec<Profile>,
}

/// Profile of a target while a setup ran.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Profile {
    /// Key of the cell.
    pub cell: String,
    #[serde(alias = "lane")]
    pub setup: String,
    /// Path of the flame graph, as passed to the program that wrote it.
    pub file: String,
    /// Time that it was sampled.
    pub seconds: f64,
    pub samples: u64,
    /// Parts of the work, the largest first; together they are all samples.
    pub shares: Vec<Share>,
    /// Measurements of the setup meanwhile.
    pub sample: Sample,
}

/// A part of the work of a target.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Share {
    /// Name of the part: `kernel: sockets, sending`, `Lunar: iscsi`.
    pub part: String,
    pub samples: u64,
    /// Share of all samples: 1 is all of them.
    pub share: f64,
}

impl CellResult {
    /// Creates the result of this cell, without rounds yet.
    pub fn new(cell: &Cell) -> Self {
        Self {
            key: cell.key(),
            store: cell.store.name.to_owned(),
            pattern: cell.pattern.name().to_owned(),
            io_bytes: cell.io_bytes.into(),
            depth: cell.depth,
            is_shared: cell.is_shared,
            setups: cell.setups.iter().map(super::cells::Setup::name).collect(),
            probe: cell.probe_kind().text().to_owned(),
            ..Self::default()
        }
    }

    /// Returns the rounds that count.
    pub fn counted(&self) -> impl Iterator<Item = &Round> {
        self.kept.iter().filter_map(|number| self.rounds.get(*number))
    }

    /// Returns a figure of each round that counts; `None`: some round does not have it.
    pub fn figures(&self, of: impl Fn(&Round) -> Option<f64>) -> Option<Spread> {
        let all: Option<Vec<f64>> = self.counted().map(of).collect();
        all.filter(|all| !all.is_empty()).map(Spread::of)
    }

    /// Returns the share of its core that a spinning thread had in the rounds that count: 1 is all
    /// of it.
    pub fn core_share(&self) -> f64 {
        self.figures(|round| Some(round.raw_tcp.core_share)).map_or(1.0, |share| share.median)
    }

    /// True when other programs used a tenth of a core or more during the measurement.
    pub fn is_disturbed(&self) -> bool {
        self.core_share() < UNDISTURBED
    }

    /// Returns a figure of a setup.
    pub fn setup(&self, name: &str, of: impl Fn(&Sample) -> Option<f64>) -> Option<Spread> {
        self.figures(|round| round.setups.get(name).and_then(&of))
    }
}

impl RawTcpFigures {
    /// Returns the figure of one shape; higher is better.
    pub fn rate(&self, probe_kind: ProbeKind) -> f64 {
        match probe_kind {
            ProbeKind::Ping => 1e6 / self.ping_us.max(f64::MIN_POSITIVE),
            ProbeKind::Exchange => self.exchanges_per_second,
            ProbeKind::Stream => self.stream_bytes_per_second,
        }
    }
}
