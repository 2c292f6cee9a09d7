//! Asking a disk.

use crate::offsets::OffsetGenerator;
use crate::pace::Pacer;
use crate::{Latency, Pace, Work, WorkError};
use bytes::Bytes;
use lunar_block::{BlockDevice, BlockRange, Buffer, BufferPool, Error};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// What came of it.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Requests that ended within the time that was measured.
    pub requests: u64,
    /// Their bytes.
    pub bytes: u64,
    /// How long was measured.
    pub time: Duration,
    /// How long they took; at a fixed rate, from when each was due.
    pub latency: Latency,
}

impl Outcome {
    /// Requests a second.
    pub fn requests_per_second(&self) -> f64 {
        self.requests as f64 / self.time.as_secs_f64().max(f64::MIN_POSITIVE)
    }

    /// Bytes a second.
    pub fn bytes_per_second(&self) -> f64 {
        self.bytes as f64 / self.time.as_secs_f64().max(f64::MIN_POSITIVE)
    }
}

/// Why there is no outcome.
#[derive(Debug, thiserror::Error)]
pub enum Failed {
    /// It cannot be asked of this disk.
    #[error(transparent)]
    Work(#[from] WorkError),
    /// A request failed.
    #[error(transparent)]
    Disk(#[from] Error),
}

/// One that asks, one request at a time.
struct Asker {
    device: Arc<dyn BlockDevice>,
    work: Work,
    places: Arc<OffsetGenerator>,
    /// At a fixed rate: who says when.
    pacer: Option<Arc<Pacer>>,
    data: Bytes,
    begin: Instant,
}

/// Asks `device` for `work`, in tasks of the current runtime: as many as the depth, so that a
/// runtime with several threads may use them all. They end when the future is dropped. A fixed rate
/// wants a runtime with I/O: its timer is a file of the kernel's.
///
/// # Errors
/// `Work` before anything is asked · the first request that fails, as the disk says.
pub async fn run(device: &Arc<dyn BlockDevice>, work: Work) -> Result<Outcome, Failed> {
    let places = work.places(&device.geometry());
    let places = places.map_err(|wrong| WorkError(format!("{}: {wrong}", device.name())))?;
    let places = Arc::new(OffsetGenerator::new(places, work.pattern.is_random(), work.seed));
    let pool = BufferPool::default();
    let data = match work.pattern.writes() {
        true => noise(work.io_bytes as usize, work.seed),
        false => Bytes::new(),
    };
    let begin = Instant::now();
    let pacer = match work.pace {
        Pace::Closed => None,
        Pace::PerSecond(rate) => Some(Arc::new(Pacer::new(begin, rate))),
    };
    let mut askers = JoinSet::new();
    for _ in 0..work.depth {
        let asker = Asker {
            device: Arc::clone(device),
            work,
            places: Arc::clone(&places),
            pacer: pacer.clone(),
            data: data.clone(),
            begin,
        };
        let buffer = pool.take(if work.pattern.writes() { 0 } else { work.io_bytes as usize });
        askers.spawn(asker.ask(buffer));
    }
    let mut outcome = Outcome { time: work.time, ..Outcome::default() };
    while let Some(asked) = askers.join_next().await {
        let latency = match asked {
            Ok(latency) => latency?,
            Err(panic) => std::panic::resume_unwind(panic.into_panic()),
        };
        outcome.requests += latency.count();
        outcome.latency.add(&latency);
    }
    outcome.bytes = outcome.requests * u64::from(work.io_bytes);
    Ok(outcome)
}

impl Asker {
    /// Asks until the time is over; how long those took that ended while it was measured.
    async fn ask(self, mut buffer: Buffer) -> Result<Latency, Error> {
        let mut latency = Latency::default();
        let (from, to) = (self.begin + self.work.warm_up, self.end());
        let mut now = Instant::now();
        while let Some(begun) = self.turn(now).await {
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

    /// Waits until the next request is due; `None`: there is none any more.
    async fn turn(&self, now: Instant) -> Option<Instant> {
        match &self.pacer {
            Some(pacer) => pacer.turn(self.end()).await,
            None => Some(now).filter(|now| *now < self.end()),
        }
    }

    async fn request(&self, buffer: Buffer) -> Result<Buffer, Error> {
        let blocks = u64::from(self.work.io_bytes / self.device.geometry().block_bytes.max(1));
        let range = BlockRange::new(self.places.next() * blocks, blocks);
        if self.work.pattern.writes() {
            self.device.write(range, self.data.clone(), false).await?;
            return Ok(buffer);
        }
        self.device.read(range, buffer).await
    }
}

/// Bytes that do not compress and are no zeroes.
fn noise(bytes: usize, seed: u64) -> Bytes {
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
