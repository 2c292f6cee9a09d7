//! Compares disks: measures each of them once in every round, one after the other.

use crate::cpu::{ListeningProcess, processor_time};
use crate::probe::{Probe, ProbeResults, ProbeShape};
use crate::relay::Relay;
use crate::{Latency, LoadError, LoadResult, Spread, Workload, run};
use lunar_block::BlockDevice;
use std::sync::Arc;
use std::time::Duration;

/// A disk that each round measures once.
#[derive(Debug)]
pub struct Subject {
    /// The disk.
    pub device: Arc<dyn BlockDevice>,
    /// The load. Random offsets differ from round to round.
    pub work: Workload,
    /// Process of the target, if it runs on this machine.
    pub target: Option<ListeningProcess>,
    /// Relay to the target, if any; its processor time does not count as the client's.
    pub relay: Option<Arc<Relay>>,
}

/// Results of one disk in all rounds.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    /// Requests a second.
    pub requests_per_second: Spread,
    /// Bytes a second.
    pub bytes_per_second: Spread,
    /// Distribution of all rounds together.
    pub latency: Latency,
    /// Processor time of this process for each request, in microseconds; `None`: no request ended.
    pub client_cpu_micros: Option<Spread>,
    /// Processor time of the target for each request, in microseconds; `None`: not known.
    pub target_cpu_micros: Option<Spread>,
}

impl Measured {
    /// Returns why there are no figures, with a remedy, if no request ended in the measured time.
    pub fn no_figures_reason(&self) -> Option<&'static str> {
        (self.latency.count() == 0)
            .then_some("no request completed within the measurement: use a longer time (--seconds)")
    }
}

/// Result of one disk in one round.
#[derive(Debug)]
struct RoundResult {
    outcome: LoadResult,
    /// `None` if no request ended.
    client_micros: Option<f64>,
    target_micros: Option<f64>,
}

/// Disks to compare, with their results so far.
#[derive(Debug)]
pub struct Comparison {
    subjects: Vec<(Subject, Vec<RoundResult>)>,
}

impl Comparison {
    /// Creates a comparison of these disks, without results.
    pub fn new(subjects: impl IntoIterator<Item = Subject>) -> Self {
        Self { subjects: subjects.into_iter().map(|subject| (subject, Vec::new())).collect() }
    }

    /// Runs one round: measures each disk once, one after the other.
    ///
    /// # Errors
    /// The first request that fails, or the first impossible load.
    pub async fn round(&mut self) -> Result<(), LoadError> {
        for (subject, results) in &mut self.subjects {
            let number = results.len() as u64;
            let work = Workload { seed: subject.work.seed.wrapping_add(number), ..subject.work };
            results.push(measure(subject, work).await?);
        }
        Ok(())
    }

    /// Returns the results of all disks, in the given order.
    pub fn measured(&self) -> Vec<Measured> {
        self.subjects.iter().map(|(_, results)| combine(results)).collect()
    }
}

/// Measures all subjects in this many rounds, each with one round of the probe if there is one.
///
/// # Errors
/// The first request or probe that fails, or the first impossible load.
pub async fn measure_in_rounds(
    subjects: Vec<Subject>,
    rounds: u16,
    probe: Option<&Arc<Probe>>,
    shape: ProbeShape,
) -> Result<(Vec<Measured>, Option<ProbeResults>), LoadError> {
    let time = subjects.first().map_or(Duration::ZERO, |subject| subject.work.time);
    let mut comparison = Comparison::new(subjects);
    let mut probed = probe.map(|_| ProbeResults::default());
    for _ in 0..rounds {
        comparison.round().await?;
        if let (Some(probe), Some(so_far)) = (probe, probed.take()) {
            probed = Some(probe_round(Arc::clone(probe), shape, time, so_far).await?);
        }
    }
    Ok((comparison.measured(), probed))
}

/// Runs one round of the probe, on its own thread.
async fn probe_round(
    probe: Arc<Probe>,
    shape: ProbeShape,
    time: Duration,
    mut probed: ProbeResults,
) -> Result<ProbeResults, LoadError> {
    let round = move || probe.round(shape, time, &mut probed).map(|()| probed);
    let result = tokio::task::spawn_blocking(round).await;
    result.unwrap_or_else(|panic| Err(std::io::Error::other(panic))).map_err(LoadError::Probe)
}

async fn measure(subject: &Subject, work: Workload) -> Result<RoundResult, LoadError> {
    let target_time = || subject.target.as_ref().and_then(ListeningProcess::processor_time);
    let relay_time =
        || subject.relay.as_ref().map_or(Duration::ZERO, |relay| relay.processor_time());
    let client_time = || processor_time().saturating_sub(relay_time());
    let (client_before, target_before) = (client_time(), target_time());
    let outcome = run(&subject.device, work).await?;
    let client = client_time().saturating_sub(client_before);
    let target = target_before.zip(target_time()).map(|(from, to)| to.saturating_sub(from));
    // The processor time includes the warm-up, so requests are extrapolated to it.
    let whole = (work.warm_up + work.time).as_secs_f64() / work.time.as_secs_f64();
    let requests = outcome.requests as f64 * whole;
    let micros = |spent: Duration| (requests > 0.0).then(|| spent.as_secs_f64() * 1e6 / requests);
    let target_micros = target.and_then(micros);
    Ok(RoundResult { client_micros: micros(client), target_micros, outcome })
}

fn combine(results: &[RoundResult]) -> Measured {
    let spread = |figure: fn(&RoundResult) -> f64| Spread::of(results.iter().map(figure));
    // Rounds in which no request ended have no figure. If any other round lacks one, there is no
    // result.
    let cpu = |figure: fn(&RoundResult) -> Option<f64>| {
        let some = results.iter().filter(|round| round.outcome.requests > 0);
        let figures: Option<Vec<f64>> = some.map(figure).collect();
        figures.filter(|all| !all.is_empty()).map(Spread::of)
    };
    let mut latency = Latency::default();
    results.iter().for_each(|round| latency.add(&round.outcome.latency));
    Measured {
        requests_per_second: spread(|round| round.outcome.requests_per_second()),
        bytes_per_second: spread(|round| round.outcome.bytes_per_second()),
        latency,
        client_cpu_micros: cpu(|round| round.client_micros),
        target_cpu_micros: cpu(|round| round.target_micros),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a test may unwrap

    use super::*;
    use crate::{AccessPattern, Pace};
    use bytes::Bytes;
    use lunar_block::{BlockRange, BoxFuture, Buffer, Error, Geometry, MemoryDevice};
    use std::sync::Mutex;

    /// A disk that logs its name and each offset, and takes 10 ms for a request.
    #[derive(Debug)]
    struct LoggingDevice {
        name: &'static str,
        memory: MemoryDevice,
        log: Arc<Mutex<Vec<(&'static str, u64)>>>,
    }

    impl BlockDevice for LoggingDevice {
        fn name(&self) -> &str {
            self.name
        }

        fn geometry(&self) -> Geometry {
            self.memory.geometry()
        }

        fn read(&self, range: BlockRange, into: Buffer) -> BoxFuture<'_, Result<Buffer, Error>> {
            self.log.lock().unwrap().push((self.name, range.lba));
            Box::pin(async move {
                tokio::time::sleep(Duration::from_millis(10)).await;
                self.memory.read(range, into).await
            })
        }

        fn write(
            &self,
            range: BlockRange,
            from: Bytes,
            durable: bool,
        ) -> BoxFuture<'_, Result<(), Error>> {
            self.memory.write(range, from, durable)
        }

        fn flush(&self) -> BoxFuture<'_, Result<(), Error>> {
            self.memory.flush()
        }

        fn io_tier(&self) -> String {
            self.memory.io_tier()
        }
    }

    /// Goal: each round measures each disk alone; rounds use different offsets, and both disks use
    /// the same ones within a round.
    #[test]
    fn each_round_measures_each_disk() {
        let log = Arc::<Mutex<Vec<_>>>::default();
        let work = Workload {
            pattern: AccessPattern::RandomRead,
            io_bytes: 4096,
            range_bytes: None,
            depth: 1,
            pace: Pace::Closed,
            warm_up: Duration::ZERO,
            time: Duration::from_millis(100),
            seed: 1,
            durable: false,
        };
        let subjects = ["a", "b"].map(|name| {
            let memory = MemoryDevice::new(64 << 20, 512, 4096).unwrap();
            let device = Arc::new(LoggingDevice { name, memory, log: Arc::clone(&log) });
            Subject { device, work, target: None, relay: None }
        });
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        let mut comparison = Comparison::new(subjects);
        runtime.block_on(comparison.round()).unwrap();
        runtime.block_on(comparison.round()).unwrap();
        let log = log.lock().unwrap();
        let mut order: Vec<&str> = log.iter().map(|(name, _)| *name).collect();
        order.dedup();
        assert_eq!(order, ["a", "b", "a", "b"]);
        let offsets = |measure: usize| {
            let mut groups = log.chunk_by(|one, next| one.0 == next.0);
            let group = groups.nth(measure).unwrap();
            group.iter().map(|(_, offset)| *offset).collect::<Vec<_>>()
        };
        assert_eq!(offsets(0), offsets(1), "the same for both");
        assert_ne!(offsets(0), offsets(2), "and others in the next round");
        for measured in comparison.measured() {
            assert_eq!(
                measured.latency.count(),
                2 * 9,
                "requests that end after the time are not counted"
            );
            assert_eq!(measured.requests_per_second.median, 90.0);
            assert_eq!(measured.target_cpu_micros, None);
            assert!(measured.client_cpu_micros.is_some() && measured.no_figures_reason().is_none());
        }
    }

    /// Goal: without a request that ended in the time, there are no figures.
    #[test]
    fn no_ended_request_means_no_figures() {
        let outcome = LoadResult { time: Duration::from_secs(1), ..LoadResult::default() };
        let measure = RoundResult { outcome, client_micros: None, target_micros: None };
        let measured = combine(&[measure]);
        assert_eq!((measured.client_cpu_micros, measured.target_cpu_micros), (None, None));
        assert!(measured.no_figures_reason().unwrap().contains("--seconds"));
        let result = crate::report::latency_json(&measured.latency);
        assert_eq!((&result["p50"], &result["max"]), (&serde_json::Value::Null, &result["mean"]));
        assert_eq!(result["requests"], 0);
    }
}
