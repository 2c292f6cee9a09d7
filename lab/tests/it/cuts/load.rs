//! Workers that write, read and flush, and keep the expected content of each block.

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use lunar_block::{BlockDevice, BlockRange};
use lunar_initiator::{ErrorKind, Initiator, RemoteDisk};
use lunar_lab::random::Random;
use lunar_lab::wire::cutter::Cutter;
use lunar_wire::Lun;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::task::JoinSet;

pub const BLOCK: usize = 512;
/// Number of workers; each has a part of the disk for itself.
const WORKERS: u64 = 10;
/// Number of blocks of a part: 2 MiB.
const PART_BLOCKS: u64 = 4096;
/// Length of the longest write and read: 1 MiB.
const BLOCKS_MAX: u64 = 2048;
/// Number of blocks after the parts, which cancelled commands use.
const ABORTED_BLOCKS: u64 = 2048;
/// Number of blocks of the whole disk.
pub const DISK_BLOCKS: u64 = WORKERS * PART_BLOCKS + ABORTED_BLOCKS;
/// Number of blocks that the model covers.
pub const MODEL_BLOCKS: u64 = WORKERS * PART_BLOCKS;
/// Pause between two cancelled commands.
const ABORT_PAUSE: Duration = Duration::from_millis(15);
/// First word of each block.
const MAGIC: u64 = 0x4c75_6e61_7220_6375;

/// Returns the content of a block that was written with this counter: seed, address and counter,
/// repeated.
pub fn content(seed: u64, lba: u64, counter: u64) -> [u8; BLOCK] {
    let mut block = [0; BLOCK];
    let mut word = MAGIC;
    let key = (seed ^ lba.rotate_left(40)).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ counter;
    for (at, bytes) in block.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        *bytes = match at {
            0 => MAGIC,
            1 => lba,
            2 => counter,
            _ => word,
        }
        .to_be_bytes();
        word = word.rotate_left(7).wrapping_add(key);
    }
    block
}

/// Returns the counter of a block written by a worker; `None`: the block has other content, such as
/// zeroes.
pub fn counter_of(block: &[u8; BLOCK]) -> Option<u64> {
    let word = |at: usize| u64::from_be_bytes(block.as_chunks::<8>().0[at]);
    (word(0) == MAGIC).then(|| word(2))
}

/// True if the block has the content of this counter; 0: never written.
fn holds(block: &[u8; BLOCK], seed: u64, lba: u64, counter: u64) -> bool {
    match counter {
        0 => *block == [0; BLOCK],
        _ => *block == content(seed, lba, counter),
    }
}

/// A write that has ended.
#[derive(Clone, Debug)]
pub struct Write {
    pub blocks: Range<u64>,
    pub counter: u64,
    /// Number of cuts during which it may have been in flight.
    pub cuts: u64,
    /// Result that its caller received: executed or not; `None`: unknown.
    pub executed: Option<bool>,
}

/// Results of a load.
#[derive(Debug, Default)]
pub struct LoadResults {
    pub writes: Vec<Write>,
    pub acknowledged: u64,
    pub reads: u64,
    pub flushes: u64,
    /// Flushes that failed because a volatile cache may have been lost.
    pub lost_caches: u64,
    /// Commands that were cancelled by dropping their futures.
    pub abandoned: u64,
    /// Raw commands that failed with their session, or were not sent.
    pub lost: u64,
    pub longest: Duration,
}

impl LoadResults {
    /// Adds the results of another load.
    pub fn add(&mut self, other: Self) {
        self.writes.extend(other.writes);
        self.acknowledged += other.acknowledged;
        self.reads += other.reads;
        self.flushes += other.flushes;
        self.lost_caches += other.lost_caches;
        self.abandoned += other.abandoned;
        self.lost += other.lost;
        self.longest = self.longest.max(other.longest);
    }
}

/// Shared record of the disk's content.
pub struct Ledger {
    pub seed: u64,
    cutter: Arc<Cutter>,
    /// Counter of the last acknowledged write of each block.
    acknowledged: Vec<AtomicU64>,
    steps: Vec<AtomicU64>,
    /// Number of cuts after which every worker has continued.
    settled: AtomicU64,
}

impl Ledger {
    /// Returns the counter of the block's last acknowledged write; 0: never written.
    pub fn acknowledged(&self, lba: u64) -> u64 {
        self.acknowledged[lba as usize].load(Ordering::Acquire)
    }

    fn cuts(&self) -> u64 {
        self.cutter.counts().cuts()
    }

    /// Number of steps that the workers have ended.
    fn steps_in_all(&self) -> u64 {
        self.steps.iter().map(|steps| steps.load(Ordering::Relaxed)).sum()
    }

    /// Compares the data of a range with the acknowledged writes.
    fn check(&self, range: BlockRange, data: &[u8]) -> Result<()> {
        for (lba, block) in (range.lba..).zip(data.as_chunks::<BLOCK>().0) {
            let counter = self.acknowledged(lba);
            ensure!(
                holds(block, self.seed, lba, counter),
                "block {lba} was acknowledged with counter {counter} and holds {:02x?}…",
                &block[..24]
            );
        }
        Ok(())
    }
}

/// Interface through which commands are issued.
#[derive(Clone)]
pub enum CommandInterface {
    Disk(Arc<RemoteDisk>),
    Raw(Initiator, Lun),
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Gate {
    Open,
    Shut,
    Over,
}

/// Workers at work, as tasks of the current runtime.
pub struct Load {
    pub ledger: Arc<Ledger>,
    gate: watch::Sender<Gate>,
    /// True while commands are cancelled.
    abandoning: watch::Sender<bool>,
    workers: JoinSet<Result<LoadResults>>,
}

impl Load {
    pub fn start(
        hand: &CommandInterface,
        cutter: &Arc<Cutter>,
        seed: u64,
        may_lose_cache: bool,
    ) -> Self {
        let numbers = |count: u64| (0..count).map(|_| AtomicU64::new(0)).collect();
        let ledger = Arc::new(Ledger {
            seed,
            cutter: Arc::clone(cutter),
            acknowledged: numbers(MODEL_BLOCKS),
            steps: numbers(WORKERS),
            settled: AtomicU64::new(0),
        });
        let gate = watch::Sender::new(Gate::Open);
        let abandoning = watch::Sender::new(false);
        let mut workers = JoinSet::new();
        for number in 0..WORKERS {
            let worker = Worker {
                hand: hand.clone(),
                ledger: Arc::clone(&ledger),
                number,
                random: Random::new(seed << 8 | number),
                counter: 0,
                may_lose_cache,
                results: LoadResults::default(),
            };
            workers.spawn(worker.run(gate.subscribe()));
        }
        if let CommandInterface::Disk(disk) = hand {
            let random = Random::new(!seed);
            let gates = (gate.subscribe(), abandoning.subscribe());
            workers.spawn(abandon(Arc::clone(disk), Arc::clone(&ledger), random, gates));
        }
        Self { ledger, gate, abandoning, workers }
    }

    /// Keeps all workers from beginning a step until [`go_on`](Self::go_on).
    pub fn pause(&self) {
        self.gate.send_replace(Gate::Shut);
    }

    pub fn go_on(&self) {
        self.gate.send_replace(Gate::Open);
    }

    /// Starts or stops the cancelling of commands.
    pub fn set_abandoning(&self, so: bool) {
        self.abandoning.send_replace(so);
    }

    /// Returns an error if a worker has failed.
    pub async fn check(&mut self) -> Result<()> {
        let Some(ended) = self.workers.try_join_next() else { return Ok(()) };
        ended?.context("a worker")?;
        bail!("a worker ended")
    }

    /// Waits until every worker has begun and ended a step since now: all have continued after the
    /// cuts so far.
    pub async fn wait_for_steps(&mut self, limit: Duration) -> Result<()> {
        let cuts = self.ledger.cuts();
        let steps = |ledger: &Ledger| -> Vec<u64> {
            ledger.steps.iter().map(|steps| steps.load(Ordering::Relaxed)).collect()
        };
        let before = steps(&self.ledger);
        let until = Instant::now() + limit;
        loop {
            self.check().await?;
            let now = steps(&self.ledger);
            if before.iter().zip(&now).all(|(before, now)| *now >= before + 2) {
                self.ledger.settled.fetch_max(cuts, Ordering::Release);
                return Ok(());
            }
            ensure!(
                Instant::now() < until,
                "not all workers continued after a cut: {before:?} to {now:?}"
            );
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// Stops the workers and returns their results.
    pub async fn finish(mut self) -> Result<(LoadResults, Arc<Ledger>)> {
        self.gate.send_replace(Gate::Over);
        let mut results = LoadResults::default();
        while let Some(ended) = self.workers.join_next().await {
            results.add(ended?.context("a worker")?);
        }
        Ok((results, self.ledger))
    }
}

/// Reads everything through this disk and compares it with the acknowledged writes.
pub async fn verify(disk: &RemoteDisk, ledger: &Ledger, results: &LoadResults) -> Result<()> {
    for lba in (0..DISK_BLOCKS).step_by(BLOCKS_MAX as usize) {
        let range = BlockRange::new(lba, BLOCKS_MAX.min(DISK_BLOCKS - lba));
        let data = read(disk, range).await?;
        if lba < MODEL_BLOCKS {
            ledger.check(range, &data).context("at the end, in another session")?;
            continue;
        }
        for (lba, block) in (range.lba..).zip(data.as_chunks::<BLOCK>().0) {
            let counter = counter_of(block).unwrap_or(0);
            let known = counter <= results.abandoned + results.acknowledged;
            let whole = holds(block, ledger.seed, lba, counter);
            ensure!(known && whole, "block {lba} of those that were abandoned: {block:02x?}");
        }
    }
    Ok(())
}

async fn read(disk: &RemoteDisk, range: BlockRange) -> Result<lunar_block::Buffer> {
    let buffer = disk.unit().initiator().pool().take(range.count as usize * BLOCK);
    disk.read(range, buffer).await.with_context(|| format!("reading {range:?}"))
}

fn data(seed: u64, range: BlockRange, counter: u64) -> Bytes {
    let mut data = Vec::with_capacity(range.count as usize * BLOCK);
    for lba in range.lba..range.lba + range.count {
        data.extend_from_slice(&content(seed, lba, counter));
    }
    data.into()
}

/// Issues commands and drops their futures, on blocks that no worker uses. As many steps as there
/// are workers end between two of them: a target that does not end an aborted command loses the
/// session each time, and on a busy machine nothing else would end.
async fn abandon(
    disk: Arc<RemoteDisk>,
    ledger: Arc<Ledger>,
    mut random: Random,
    (mut gate, mut abandoning): (watch::Receiver<Gate>, watch::Receiver<bool>),
) -> Result<LoadResults> {
    let mut results = LoadResults::default();
    while *gate.wait_for(|gate| *gate != Gate::Shut).await? == Gate::Open {
        tokio::select! {
            so = abandoning.wait_for(|so| *so) => drop(so?),
            changed = gate.changed() => {
                changed?;
                continue;
            }
        }
        let count = 256 + random.below(ABORTED_BLOCKS - 256);
        let range = BlockRange::new(MODEL_BLOCKS, count);
        let patience = Duration::from_micros(random.below(4000));
        let counter = results.abandoned + 1;
        let ended = if random.below(2) == 0 {
            let write = disk.write(range, data(ledger.seed, range, counter), false);
            tokio::time::timeout(patience, write).await.map(|written| written.map(drop))
        } else {
            let buffer = disk.unit().initiator().pool().take(count as usize * BLOCK);
            tokio::time::timeout(patience, disk.read(range, buffer)).await.map(|r| r.map(drop))
        };
        match ended {
            Ok(ended) => ended.context("a command that was to be abandoned")?,
            Err(_) => results.abandoned += 1,
        }
        let enough = ledger.steps_in_all() + WORKERS;
        while ledger.steps_in_all() < enough && *gate.borrow() == Gate::Open {
            tokio::time::sleep(ABORT_PAUSE).await;
        }
    }
    Ok(results)
}

struct Worker {
    hand: CommandInterface,
    ledger: Arc<Ledger>,
    number: u64,
    random: Random,
    counter: u64,
    may_lose_cache: bool,
    results: LoadResults,
}

impl Worker {
    async fn run(mut self, mut gate: watch::Receiver<Gate>) -> Result<LoadResults> {
        while *gate.wait_for(|gate| *gate != Gate::Shut).await? == Gate::Open {
            let sent = Instant::now();
            self.step().await.with_context(|| format!("worker {}", self.number))?;
            self.results.longest = self.results.longest.max(sent.elapsed());
            self.ledger.steps[self.number as usize].fetch_add(1, Ordering::Relaxed);
        }
        Ok(self.results)
    }

    async fn step(&mut self) -> Result<()> {
        let range = self.range();
        match self.random.below(16) {
            0..=8 => self.write(range).await,
            9..=14 => self.read(range).await,
            _ => self.flush().await,
        }
    }

    /// Picks a range. Half of all are short, so that their data comes with the command; a few are
    /// very long.
    fn range(&mut self) -> BlockRange {
        let count = match self.random.below(32) {
            0..=17 => 1 + self.random.below(16),
            18..=26 => 17 + self.random.below(200),
            27..=30 => 200 + self.random.below(600),
            _ => BLOCKS_MAX - self.random.below(2) * self.random.below(1000),
        };
        let first = self.number * PART_BLOCKS + self.random.below(PART_BLOCKS - count + 1);
        BlockRange::new(first, count)
    }

    async fn write(&mut self, range: BlockRange) -> Result<()> {
        loop {
            self.counter += 1;
            let settled = self.ledger.settled.load(Ordering::Acquire);
            let data = data(self.ledger.seed, range, self.counter);
            let executed = match &self.hand {
                CommandInterface::Disk(disk) => {
                    let written = disk.write(range, data, false).await;
                    written.with_context(|| format!("writing {range:?}"))?;
                    Some(true)
                }
                CommandInterface::Raw(initiator, lun) => {
                    raw_write(initiator, *lun, range, data).await?
                }
            };
            self.results.writes.push(Write {
                blocks: range.lba..range.lba + range.count,
                counter: self.counter,
                cuts: self.ledger.cuts() - settled,
                executed,
            });
            if executed == Some(true) {
                break;
            }
            self.results.lost += 1;
        }
        for lba in range.lba..range.lba + range.count {
            self.ledger.acknowledged[lba as usize].store(self.counter, Ordering::Release);
        }
        self.results.acknowledged += 1;
        Ok(())
    }

    async fn read(&mut self, range: BlockRange) -> Result<()> {
        match &self.hand {
            CommandInterface::Disk(disk) => {
                let data = read(disk, range).await?;
                self.ledger.check(range, &data)?;
            }
            CommandInterface::Raw(initiator, lun) => {
                let data = raw_read(initiator, *lun, range).await?;
                self.ledger.check(range, &data)?;
            }
        }
        self.results.reads += 1;
        Ok(())
    }

    async fn flush(&mut self) -> Result<()> {
        let CommandInterface::Disk(disk) = &self.hand else { return Ok(()) };
        match disk.flush().await {
            Ok(()) => self.results.flushes += 1,
            Err(error) if self.may_lose_cache && is_cache_lost(&error) => {
                self.results.lost_caches += 1;
            }
            Err(error) => return Err(error).context("flushing"),
        }
        Ok(())
    }
}

fn is_cache_lost(error: &lunar_block::Error) -> bool {
    let source = std::error::Error::source(error);
    let source = source.and_then(|source| source.downcast_ref::<lunar_initiator::Error>());
    source.is_some_and(|error| error.kind == ErrorKind::CacheLost)
}

/// Builds READ (16) or WRITE (16).
fn cdb(opcode: u8, range: BlockRange) -> Vec<u8> {
    let mut cdb = vec![0; 16];
    cdb[0] = opcode;
    cdb[2..10].copy_from_slice(&range.lba.to_be_bytes());
    cdb[10..14].copy_from_slice(&(range.count as u32).to_be_bytes());
    cdb
}

/// Executes one raw command, and records the result that its caller received.
async fn raw_write(
    initiator: &Initiator,
    lun: Lun,
    range: BlockRange,
    data: Bytes,
) -> Result<Option<bool>> {
    match initiator.execute(lun, cdb(0x8a, range), data, 0).await {
        Ok(reply) => Ok(Some(reply.result.status == 0)),
        Err(error) if error.kind == ErrorKind::NotSent => Ok(Some(false)),
        Err(error) if error.kind == ErrorKind::SessionLost => Ok(None),
        Err(error) => Err(error).context("a raw write"),
    }
}

async fn raw_read(initiator: &Initiator, lun: Lun, range: BlockRange) -> Result<Bytes> {
    let bytes = range.count as u32 * BLOCK as u32;
    loop {
        match initiator.execute(lun, cdb(0x88, range), Bytes::new(), bytes).await {
            Ok(reply) if reply.result.status == 0 => {
                ensure!(reply.data_in.len() == bytes as usize, "a short read: {:?}", reply.result);
                return Ok(reply.data_in);
            }
            // A unit attention of a new session.
            Ok(_) => {}
            Err(error) if error.kind == ErrorKind::SessionLost => {}
            Err(error) => return Err(error).context("a raw read"),
        }
    }
}
