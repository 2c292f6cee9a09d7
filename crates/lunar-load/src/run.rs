//! Sends the requests of a load to a disk.

use crate::offsets::OffsetGenerator;
use crate::pace::Pacer;
use crate::{Latency, Pace, Workload, WorkloadError};
use bytes::Bytes;
use lunar_block::{BlockDevice, BlockRange, Buffer, BufferPool, Error};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Result of a load.
#[derive(Clone, Debug, Default)]
pub struct LoadResult {
    /// Number of requests that ended within the measured time.
    pub requests: u64,
    /// Number of bytes of these requests.
    pub bytes: u64,
    /// Time of the measurement.
    pub time: Duration,
    /// Distribution of the latencies of these requests; at a fixed rate, measured from the time
    /// when each request was due.
    pub latency: Latency,
}

impl LoadResult {
    /// Requests a second.
    pub fn requests_per_second(&self) -> f64 {
        self.requests as f64 / self.time.as_secs_f64().max(f64::MIN_POSITIVE)
    }

    /// Bytes a second.
    pub fn bytes_per_second(&self) -> f64 {
        self.bytes as f64 / self.time.as_secs_f64().max(f64::MIN_POSITIVE)
    }
}

/// Reason why a load has no result.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The workload does not fit the disk.
    #[error(transparent)]
    Workload(#[from] WorkloadError),
    /// A request failed.
    #[error(transparent)]
    Disk(#[from] Error),
    /// The probe of raw TCP lost a connection.
    #[error("the raw TCP probe failed: {0}")]
    Probe(#[source] std::io::Error),
}

/// A task that sends requests, one at a time.
struct LoadTask {
    device: Arc<dyn BlockDevice>,
    work: Workload,
    offsets: Arc<OffsetGenerator>,
    /// Set at a fixed rate.
    pacer: Option<Arc<Pacer>>,
    data: Bytes,
    begin: Instant,
}

/// Sends the requests of `work` to `device`, in tasks of the current runtime: as many as the depth,
/// so that a runtime with several threads may use them all. The tasks end when the future is
/// dropped. A fixed rate needs a runtime with I/O: its timer is a file of the kernel.
///
/// # Errors
/// [`LoadError::Workload`] before any request is sent; the error of the first request that fails.
pub async fn run(device: &Arc<dyn BlockDevice>, work: Workload) -> Result<LoadResult, LoadError> {
    let count = work.offset_count(&device.geometry());
    let count = count.map_err(|wrong| WorkloadError(format!("{}: {wrong}", device.name())))?;
    let offsets = Arc::new(OffsetGenerator::new(count, work.pattern.is_random(), work.seed));
    let pool = BufferPool::default();
    let data = match work.pattern.writes() {
        true => random_bytes(work.io_bytes as usize, work.seed),
        false => Bytes::new(),
    };
    let begin = Instant::now();
    let pacer = match work.pace {
        Pace::Closed => None,
        Pace::PerSecond(rate) => Some(Arc::new(Pacer::new(begin, rate))),
    };
    let mut tasks = JoinSet::new();
    for _ in 0..work.depth {
        let task = LoadTask {
            device: Arc::clone(device),
            work,
            offsets: Arc::clone(&offsets),
            pacer: pacer.clone(),
            data: data.clone(),
            begin,
        };
        let buffer = pool.take(if work.pattern.writes() { 0 } else { work.io_bytes as usize });
        tasks.spawn(task.send_requests(buffer));
    }
    let mut outcome = LoadResult { time: work.time, ..LoadResult::default() };
    while let Some(joined) = tasks.join_next().await {
        let latency = match joined {
            Ok(latency) => latency?,
            Err(panic) => std::panic::resume_unwind(panic.into_panic()),
        };
        outcome.requests += latency.count();
        outcome.latency.add(&latency);
    }
    outcome.bytes = outcome.requests * u64::from(work.io_bytes);
    Ok(outcome)
}

impl LoadTask {
    /// Sends requests until the time is over; returns the times of those that ended within the
    /// measured time.
    async fn send_requests(self, mut buffer: Buffer) -> Result<Latency, Error> {
        let mut latency = Latency::default();
        let (from, to) = (self.begin + self.work.warm_up, self.end());
        let mut now = Instant::now();
        while let Some(begun) = self.next_start(now).await {
            buffer = self.request(buffer).await?;
            let ended = Instant::now();
            now = ended;
            if ended >= from && ended < to {
                latency.record(ended - begun);
            }
        }
        Ok(latency)
    }

    fn end(&self) -> Instant {
        self.begin + self.work.warm_up + self.work.time
    }

    /// Waits until the next request is due; `None` if there are no more.
    async fn next_start(&self, now: Instant) -> Option<Instant> {
        match &self.pacer {
            Some(pacer) => pacer.wait_until_due(self.end()).await,
            None => Some(now).filter(|now| *now < self.end()),
        }
    }

    async fn request(&self, buffer: Buffer) -> Result<Buffer, Error> {
        let blocks = u64::from(self.work.io_bytes / self.device.geometry().block_bytes.max(1));
        let range = BlockRange::new(self.offsets.next() * blocks, blocks);
        if self.work.pattern.writes() {
            self.device.write(range, self.data.clone(), self.work.durable).await?;
            return Ok(buffer);
        }
        self.device.read(range, buffer).await
    }
}

/// Returns bytes that do not compress and are not zeroes.
fn random_bytes(bytes: usize, seed: u64) -> Bytes {
    let numbers = OffsetGenerator::new(u64::MAX, true, seed);
    let mut data = Vec::with_capacity(bytes + 8);
    while data.len() < bytes {
        data.extend_from_slice(&numbers.next().to_be_bytes());
    }
    data.truncate(bytes);
    data.into()
}

#[cfg(test)]
mod tests;
