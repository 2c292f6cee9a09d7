//! Writers that keep the possible contents of each block.

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use lunar_block::{BlockDevice, BlockRange};
use lunar_initiator::{ErrorKind, RemoteDisk, SessionOptions, Url};
use lunar_lab::random::Random;
use std::fmt;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

const BLOCK: usize = 512;
/// Number of writers; each has a part of the disk for itself.
const WRITERS: u64 = 32;
/// Number of blocks of one part.
const PART_BLOCKS: u64 = 1024;
/// Length of the longest write.
const WRITE_BLOCKS_MAX: u64 = 160;
/// Interval of flushes: one of this many writes is followed by a flush.
const FLUSH_EVERY: u64 = 16;
/// Time without a response after which all writers count as still.
const STILL: Duration = Duration::from_millis(300);
const POLL: Duration = Duration::from_millis(20);

/// Results of all rounds.
#[derive(Debug, Default)]
pub struct Totals {
    pub acknowledged: u64,
    pub flushed: u64,
    /// Blocks that were read back from the file with an admissible content.
    pub verified: u64,
    /// Writes in flight when the server was killed.
    pub unanswered: u64,
    /// Flushes that failed because a volatile cache may have been lost.
    pub reported_losses: u64,
    pub longest: Duration,
    pub qemu_commands: u64,
    pub qemu_longest: Duration,
}

impl fmt::Display for Totals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} writes acknowledged, {} flushes, {} blocks verified, {} writes unanswered at the \
             kill, {} flushes reported a lost cache, longest latency {:.2?}; QEMU: {} commands \
             without an error, the longest {:.2?}",
            self.acknowledged,
            self.flushed,
            self.verified,
            self.unanswered,
            self.reported_losses,
            self.longest,
            self.qemu_commands,
            self.qemu_longest,
        )
    }
}

/// Record of one writer's blocks.
#[derive(Debug)]
struct Part {
    first_lba: u64,
    /// Version of the last acknowledged write of each block; 0: never written.
    acknowledged: Vec<u64>,
    /// The write in flight: blocks of this part, and their version.
    in_flight: Option<(std::ops::Range<usize>, u64)>,
    writes: u64,
    flushes: u64,
    reported_losses: u64,
    last_answer: Instant,
    longest: Duration,
    error: Option<String>,
}

/// Writers at work.
pub struct Load {
    parts: Vec<Arc<Mutex<Part>>>,
    stop: Arc<AtomicBool>,
    seed: u64,
    thread: JoinHandle<Result<()>>,
}

fn lock(part: &Mutex<Part>) -> MutexGuard<'_, Part> {
    part.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the content of a block of this version: address and version, repeated.
fn content(seed: u64, lba: u64, version: u64) -> [u8; BLOCK] {
    let mut random = Random::new(seed ^ (lba << 32) ^ version);
    let mut block = [0; BLOCK];
    block[..8].copy_from_slice(&lba.to_be_bytes());
    block[8..16].copy_from_slice(&version.to_be_bytes());
    for word in block[16..].chunks_exact_mut(8) {
        word.copy_from_slice(&random.next_u64().to_be_bytes());
    }
    block
}

impl Load {
    /// Connects, and starts the writers.
    pub fn start(url: &str, seed: u64, may_lose_cache: bool) -> Result<Self> {
        let url: Url = url.parse()?;
        let parts: Vec<_> = (0..WRITERS).map(Part::new).map(Mutex::new).map(Arc::new).collect();
        let stop = Arc::<AtomicBool>::default();
        let (all, until) = (parts.clone(), Arc::clone(&stop));
        let thread = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async {
                let mut options = SessionOptions::new("iqn.2026-11.org.lunarsan:kill");
                options.recovery_seconds = 60;
                let disk = Arc::new(RemoteDisk::connect(&url, &options).await?);
                // The disk holds data of the last round, of which this round has no record.
                let zeroes = Bytes::from(vec![0; (WRITERS * PART_BLOCKS) as usize * BLOCK]);
                disk.write(BlockRange::new(0, WRITERS * PART_BLOCKS), zeroes, true).await?;
                let mut writers = tokio::task::JoinSet::new();
                for part in all {
                    let random = Random::new(seed ^ lock(&part).first_lba);
                    let writer =
                        Writer { disk: Arc::clone(&disk), random, part, seed, may_lose_cache };
                    writers.spawn(writer.run(Arc::clone(&until)));
                }
                while let Some(ended) = writers.join_next().await {
                    ended?;
                }
                Ok(())
            })
        });
        let load = Self { parts, stop, seed, thread };
        load.wait("the load has begun", Duration::from_secs(30), |part| part.writes > 0)?;
        Ok(load)
    }

    fn wait(&self, what: &str, limit: Duration, is: impl Fn(&Part) -> bool) -> Result<()> {
        let until = Instant::now() + limit;
        while !self.parts.iter().all(|part| is(&lock(part))) {
            for part in &self.parts {
                if let Some(error) = &lock(part).error {
                    bail!("{error}");
                }
            }
            ensure!(!self.thread.is_finished(), "the load ended before {what}");
            ensure!(Instant::now() < until, "timed out after {limit:?} waiting until {what}");
            thread::sleep(POLL);
        }
        Ok(())
    }

    /// Waits until no more responses arrive: those that were on their way have been counted.
    pub fn wait_until_still(&self, limit: Duration) -> Result<()> {
        self.wait("no writer gets responses", limit, |part| part.last_answer.elapsed() > STILL)
    }

    /// Waits until every writer has received another response.
    pub fn wait_until_all_went_on(&self, limit: Duration) -> Result<()> {
        let before: Vec<u64> = self.parts.iter().map(|part| lock(part).writes).collect();
        self.wait("all writers have continued", limit, |part| {
            part.writes > before[(part.first_lba / PART_BLOCKS) as usize] + FLUSH_EVERY
        })
    }

    /// Returns the number of writes in flight.
    pub fn unanswered(&self) -> u64 {
        self.parts.iter().filter(|part| lock(part).in_flight.is_some()).count() as u64
    }

    /// Compares the file with the acknowledged writes; returns the number of those blocks.
    pub fn verify(&self, path: &str) -> Result<u64> {
        let file = File::open(path)?;
        let mut verified = 0;
        for part in &self.parts {
            verified += lock(part).verify(&file, self.seed)?;
        }
        Ok(verified)
    }

    /// Ends the writers, and verifies the file a last time.
    pub fn finish(mut self, path: &str, totals: &mut Totals) -> Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        let thread = std::mem::replace(&mut self.thread, thread::spawn(|| Ok(())));
        thread.join().map_err(|_| anyhow::anyhow!("the load panicked"))??;
        totals.verified += self.verify(path).context("at the end")?;
        for part in &self.parts {
            let part = lock(part);
            if let Some(error) = &part.error {
                bail!("{error}");
            }
            ensure!(part.in_flight.is_none(), "a write was never answered");
            totals.acknowledged += part.writes;
            totals.flushed += part.flushes;
            totals.reported_losses += part.reported_losses;
            totals.longest = totals.longest.max(part.longest);
        }
        Ok(())
    }
}

impl Part {
    fn new(number: u64) -> Self {
        Self {
            first_lba: number * PART_BLOCKS,
            acknowledged: vec![0; PART_BLOCKS as usize],
            in_flight: None,
            writes: 0,
            flushes: 0,
            reported_losses: 0,
            last_answer: Instant::now(),
            longest: Duration::ZERO,
            error: None,
        }
    }

    fn answered(&mut self, sent: Instant) {
        self.last_answer = Instant::now();
        self.longest = self.longest.max(sent.elapsed());
    }

    fn verify(&self, file: &File, seed: u64) -> Result<u64> {
        let mut verified = 0;
        for (index, acknowledged) in self.acknowledged.iter().enumerate() {
            let lba = self.first_lba + index as u64;
            let mut block = [0; BLOCK];
            file.read_exact_at(&mut block, lba * BLOCK as u64)?;
            let holds = |version| match version {
                0 => block == [0; BLOCK],
                version => block == content(seed, lba, version),
            };
            let in_flight = self.in_flight.as_ref().filter(|(blocks, _)| blocks.contains(&index));
            let in_flight = in_flight.map(|(_, version)| *version);
            ensure!(
                holds(*acknowledged) || in_flight.is_some_and(holds),
                "block {lba} was acknowledged with version {acknowledged}, {in_flight:?} is in \
                 flight, and it holds {:02x?}…",
                &block[..16]
            );
            verified += u64::from(*acknowledged > 0);
        }
        Ok(verified)
    }
}

/// One writer.
struct Writer {
    disk: Arc<RemoteDisk>,
    part: Arc<Mutex<Part>>,
    random: Random,
    seed: u64,
    may_lose_cache: bool,
}

impl Writer {
    async fn run(mut self, stop: Arc<AtomicBool>) {
        let mut version = 0;
        while !stop.load(Ordering::Relaxed) {
            version += 1;
            if let Err(error) = self.step(version).await {
                lock(&self.part).error = Some(format!("{error:#}"));
                return;
            }
        }
    }

    async fn step(&mut self, version: u64) -> Result<()> {
        let count = 1 + self.random.below(WRITE_BLOCKS_MAX).min(self.random.below(64));
        let index = self.random.below(PART_BLOCKS - count);
        let blocks = index as usize..(index + count) as usize;
        let lba = {
            let mut part = lock(&self.part);
            part.in_flight = Some((blocks.clone(), version));
            part.first_lba + index
        };
        let data: Vec<u8> =
            (lba..lba + count).flat_map(|lba| content(self.seed, lba, version)).collect();
        let sent = Instant::now();
        let range = BlockRange::new(lba, count);
        self.disk.write(range, data.into(), false).await.context("a write")?;
        {
            let mut part = lock(&self.part);
            part.answered(sent);
            part.acknowledged[blocks].fill(version);
            part.in_flight = None;
            part.writes += 1;
        }
        if self.random.below(FLUSH_EVERY) == 0 {
            self.flush().await?;
        }
        Ok(())
    }

    async fn flush(&self) -> Result<()> {
        let sent = Instant::now();
        let flushed = self.disk.flush().await;
        let mut part = lock(&self.part);
        part.answered(sent);
        match flushed {
            Ok(()) => part.flushes += 1,
            Err(error) if self.may_lose_cache && is_told(&error) => part.reported_losses += 1,
            Err(error) => return Err(error).context("a flush"),
        }
        Ok(())
    }
}

/// True if the error reports that a volatile cache may have been lost with the process.
fn is_told(error: &lunar_block::Error) -> bool {
    let source = std::error::Error::source(error);
    let source = source.and_then(|source| source.downcast_ref::<lunar_initiator::Error>());
    source.is_some_and(|source| source.kind == ErrorKind::CacheLost)
}
