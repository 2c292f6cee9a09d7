//! Mirrors whose members fail in all ways and change, by seed, against a model of what each block
//! may hold.

use super::rig::{BLOCKS, REGION, Rig, with_mark_time};
use crate::common::{Device, VolatileDevice, filled, memories, next, read};
use lunar_block::{BlockDevice, BlockRange, Effect, ErrorKind, Fault, FaultDevice, FaultOperation};
use lunar_pool::{OpenOptions, PoolError, ScrubOptions};
use std::sync::Arc;
use std::time::Duration;

const ROUNDS: u64 = 12;
const STEPS: u64 = 40;

/// Maximum number of members.
const MEMBERS_MAX: usize = 4;

/// Time after which a scrub is stopped.
const SCRUB_TIME: Duration = Duration::from_secs(5);

/// Number of seeds in a usual run; `LUNAR_POOL_SEEDS=10000` runs more.
const SEEDS: u64 = 20;

/// The contents that a block may have.
#[derive(Clone, Debug, Default)]
struct Block {
    /// The acknowledged content, or the content of writes that failed since.
    now: Vec<u8>,
    /// Older contents that a loss of unflushed writes may bring back.
    unflushed: Vec<u8>,
}

struct Ledger {
    blocks: Vec<Block>,
    value: u8,
}

impl Ledger {
    fn new() -> Self {
        let block = Block { now: vec![0], unflushed: Vec::new() };
        Self { blocks: vec![block; BLOCKS as usize], value: 0 }
    }

    fn of(&mut self, range: BlockRange) -> &mut [Block] {
        &mut self.blocks[range.lba as usize..(range.lba + range.count) as usize]
    }

    fn written(&mut self, range: BlockRange, value: u8, succeeded: bool) {
        for block in self.of(range) {
            if succeeded {
                block.unflushed.append(&mut block.now);
            }
            block.now.push(value);
        }
    }

    fn flushed(&mut self) {
        self.blocks.iter_mut().for_each(|block| block.unflushed.clear());
    }

    /// Records that unflushed writes may be lost.
    fn lost(&mut self) {
        for block in &mut self.blocks {
            block.now.append(&mut block.unflushed);
            block.now.sort_unstable();
            block.now.dedup();
        }
    }

    /// Checks blocks that were read.
    fn check(&mut self, range: BlockRange, data: &[u8], when: &str) {
        for (index, (block, data)) in self.of(range).iter().zip(data.chunks(512)).enumerate() {
            assert!(data[1..] == data[..511], "{when}: a torn block");
            let lba = range.lba + index as u64;
            assert!(block.now.contains(&data[0]), "{when}: block {lba} is {}: {block:?}", data[0]);
        }
    }
}

struct Trial {
    rig: Option<Rig>,
    ledger: Ledger,
    /// The slots of the devices of the rig.
    slots: Vec<u16>,
    random: u64,
    failed_flushes: u64,
}

impl Trial {
    fn draw(&mut self, below: u64) -> u64 {
        next(&mut self.random) % below
    }

    fn rig(&self) -> &Rig {
        self.rig.as_ref().unwrap()
    }

    fn range(&mut self) -> BlockRange {
        // Few regions, so that some are written again and others are marked anew.
        let lba = (self.draw(10) * REGION + self.draw(4) * 31).min(BLOCKS - 8);
        BlockRange::new(lba, 1 + self.draw(8))
    }

    /// Does a few operations. With `is_strict` all have to succeed.
    async fn operate(&mut self, is_strict: bool) {
        let draw = self.draw(10);
        let range = self.range();
        let pool = Arc::clone(&self.rig().pool);
        match draw {
            0..5 => {
                self.ledger.value = self.ledger.value % 250 + 1;
                let value = self.ledger.value;
                let written = pool.write(range, filled(value, range.count), false).await;
                assert!(written.is_ok() || !is_strict, "{written:?}");
                self.ledger.written(range, value, written.is_ok());
            }
            5..8 => {
                let buffer = lunar_block::BufferPool::default().take(range.count as usize * 512);
                match pool.read(range, buffer).await {
                    Ok(data) => self.ledger.check(range, &data, "a read"),
                    Err(error) => assert!(!is_strict, "{error}"),
                }
            }
            _ => {
                let flushed = pool.flush().await;
                assert!(flushed.is_ok() || !is_strict, "{flushed:?}");
                self.flush_ended(flushed.is_ok());
            }
        }
    }

    fn flush_ended(&mut self, succeeded: bool) {
        if succeeded {
            self.ledger.flushed();
        } else {
            self.ledger.lost();
            self.failed_flushes += 1;
        }
    }

    fn random_fault(&mut self) -> Fault {
        let operations = [FaultOperation::Read, FaultOperation::Write, FaultOperation::Flush];
        let operation = operations[self.draw(3) as usize];
        let effect = match (self.draw(4), operation) {
            (0, _) => Effect::Hang,
            (1, FaultOperation::Write) => Effect::Tear { blocks: self.draw(8) },
            (2, _) => Effect::Fail(ErrorKind::Disconnected),
            _ => Effect::Fail(ErrorKind::Medium),
        };
        Fault::new(effect).on(operation).after(self.draw(12)).times(1 + self.draw(3))
    }

    async fn heal(&mut self) {
        for fault in &self.rig().faults {
            fault.heal();
            fault.release();
        }
        let pool = &self.rig().pool;
        let _ = pool.recover().await;
        for _ in 0..1000 {
            let is_healthy = pool.status().health == lunar_pool::PoolHealth::Healthy;
            let hanging = self.rig().faults.iter().any(|fault| fault.hanging() > 0);
            if is_healthy && !hanging {
                return;
            }
            for fault in &self.rig().faults {
                fault.heal();
                fault.release();
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        panic!("not healthy: {:#?}", pool.status());
    }

    /// One member fails in all ways, also by power cuts: nothing is lost, and no call fails.
    async fn one_member_fails(&mut self) {
        let member = self.draw(self.slots.len() as u64) as usize;
        for step in 0..STEPS {
            if self.draw(10) == 0 {
                self.scrub().await;
            }
            if step % 8 == 0 {
                let fault = self.random_fault();
                self.rig().faults[member].inject(fault);
            }
            if self.draw(8) == 0 {
                let (cache, one_in) = (self.rig().caches[member].clone(), 1 + self.draw(3));
                cache.cut_power(&mut self.random, one_in).await;
            }
            self.operate(true).await;
        }
    }

    /// All members lose power, and stay open: a loss of acknowledged writes fails a flush.
    async fn power_cuts(&mut self) {
        for _ in 0..STEPS {
            self.operate(true).await;
        }
        let before = self.rig().pool.cache_losses().unwrap();
        for cache in self.rig().caches.clone() {
            cache.cut_power(&mut self.random, 1).await;
        }
        let has_lost = self.rig().pool.cache_losses().unwrap() > before;
        let failed_before = self.failed_flushes;
        if has_lost {
            self.ledger.lost();
        }
        for _ in 0..self.draw(4) {
            self.operate(!has_lost).await;
        }
        self.all_flushed().await;
        let has_failed = self.failed_flushes > failed_before;
        assert!(!has_lost || has_failed, "a counted loss fails a flush");
    }

    /// Members are replaced, added and removed alongside operations; new devices may fail, and lose
    /// power.
    async fn members_change(&mut self) {
        for step in 0..STEPS {
            self.operate(true).await;
            if !step.is_multiple_of(8) {
                continue;
            }
            // A member that may become the last current one has no faults.
            for fault in &self.rig().faults {
                fault.heal();
                fault.release();
            }
            let cache = VolatileDevice::new(memories(1, BLOCKS * 512).remove(0));
            let new = FaultDevice::new(Arc::clone(&cache) as Device, self.draw(u64::MAX));
            if self.draw(3) == 0 {
                let fault = self.random_fault();
                new.inject(fault);
            }
            match self.draw(4) {
                0 => self.scrub().await,
                1 if self.slots.len() < MEMBERS_MAX => self.add(&cache, new).await,
                2 if self.slots.len() > 2 => self.remove().await,
                _ => self.replace(&cache, new).await,
            }
            if self.draw(4) == 0 {
                cache.cut_power(&mut self.random, 2).await;
            }
        }
    }

    /// Does a few operations during a change of the members.
    async fn while_operating<T>(&mut self, change: impl Future<Output = T>) -> T {
        let operations = async {
            for _ in 0..4 {
                self.operate(true).await;
            }
        };
        futures_util::future::join(change, operations).await.0
    }

    /// Compares all members during operations: whatever fails, current members are equal.
    async fn scrub(&mut self) {
        let pool = Arc::clone(&self.rig().pool);
        let scrub = tokio::time::timeout(SCRUB_TIME, pool.scrub(ScrubOptions::default()));
        if let Ok(report) = self.while_operating(scrub).await {
            assert_eq!(report.unwrap().different_blocks, 0, "{:?}", pool.status());
        }
    }

    async fn add(&mut self, cache: &Arc<VolatileDevice>, new: Arc<FaultDevice>) {
        let pool = Arc::clone(&self.rig().pool);
        match self.while_operating(pool.add(Arc::clone(&new) as Device)).await {
            Ok(slot) => self.record_joined(slot, cache, new),
            Err(error) => assert!(is_new_device_failure(&error), "{error}"),
        }
    }

    async fn replace(&mut self, cache: &Arc<VolatileDevice>, new: Arc<FaultDevice>) {
        let at = self.draw(self.slots.len() as u64) as usize;
        let (slot, pool) = (self.slots[at], Arc::clone(&self.rig().pool));
        match self.while_operating(pool.replace(slot, Arc::clone(&new) as Device)).await {
            Ok(()) => {
                self.record_left(at);
                self.record_joined(slot, cache, new);
            }
            Err(PoolError::LastCurrent { .. }) => {}
            Err(error) => assert!(is_new_device_failure(&error), "{error}"),
        }
    }

    async fn remove(&mut self) {
        let at = self.draw(self.slots.len() as u64) as usize;
        let (slot, pool) = (self.slots[at], Arc::clone(&self.rig().pool));
        match self.while_operating(pool.remove(slot)).await {
            Ok(()) => self.record_left(at),
            Err(error) => assert!(matches!(error, PoolError::LastCurrent { .. }), "{error}"),
        }
    }

    fn record_left(&mut self, at: usize) {
        let rig = self.rig.as_mut().unwrap();
        rig.disks.remove(at);
        rig.caches.remove(at);
        rig.faults.remove(at);
        self.slots.remove(at);
    }

    fn record_joined(&mut self, slot: u16, cache: &Arc<VolatileDevice>, new: Arc<FaultDevice>) {
        let rig = self.rig.as_mut().unwrap();
        rig.disks.push(cache.disk());
        rig.caches.push(Arc::clone(cache));
        rig.faults.push(new);
        self.slots.push(slot);
    }

    /// Flushes until it succeeds. Returns false if the first flush failed.
    async fn all_flushed(&mut self) -> bool {
        for attempt in 0..20 {
            let succeeded = self.rig().pool.flush().await.is_ok();
            self.flush_ended(succeeded);
            if succeeded {
                return attempt == 0;
            }
        }
        panic!("no flush succeeds");
    }

    /// The pool ends without being closed, and the caches of all members lose some blocks.
    async fn crash(&mut self) {
        for _ in 0..self.draw(STEPS) {
            self.operate(true).await;
        }
        let rig = self.rig.take().unwrap();
        let (disks, caches) = (rig.disks.clone(), rig.caches.clone());
        drop(rig);
        for cache in caches {
            let one_in = 1 + self.draw(3);
            cache.cut_power(&mut self.random, one_in).await;
        }
        self.ledger.lost();
        let seed = self.draw(u64::MAX);
        let options = self.random_options();
        self.rig = Some(Rig::open(disks, seed, options).await.unwrap());
    }

    /// Marks are removed with the next page, with a page of their own, or hardly ever.
    fn random_options(&mut self) -> OpenOptions {
        with_mark_time([0, 5, 60_000].map(Duration::from_millis)[self.draw(3) as usize])
    }

    /// Checks all blocks, and that the members are equal.
    async fn check_all(&mut self) {
        self.heal().await;
        let was_flushed = self.all_flushed().await;
        assert!(was_flushed || self.rig().pool.cache_losses() > Some(0));
        self.heal().await;
        let all = BlockRange::new(0, BLOCKS);
        let data = read(&*self.rig().pool, 0, BLOCKS).await;
        self.ledger.check(all, &data, "all blocks");
        for (block, data) in self.ledger.blocks.iter_mut().zip(data.chunks(512)) {
            // All members have this content durably.
            *block = Block { now: vec![data[0]], unflushed: Vec::new() };
        }
        self.rig().assert_same().await;
    }
}

fn is_new_device_failure(error: &PoolError) -> bool {
    // The label of a device that cannot be read may be in use.
    matches!(error, PoolError::Device(_) | PoolError::InUnknownUse { .. })
}

async fn trial(seed: u64) {
    let (ledger, slots) = (Ledger::new(), vec![0, 1]);
    let mut trial = Trial { rig: None, ledger, slots, random: seed, failed_flushes: 0 };
    trial.rig = Some(Rig::with_options(2, trial.random_options()).await);
    for round in 0..ROUNDS {
        println!("seed {seed} round {round}");
        match trial.draw(4) {
            0 => trial.one_member_fails().await,
            1 => trial.members_change().await,
            2 => trial.power_cuts().await,
            _ => trial.crash().await,
        }
        trial.check_all().await;
    }
    trial.rig().pool.close().await.unwrap();
    trial.rig().assert_same().await;
}

/// Goal: what was acknowledged as durable is read back as long as one current member lives; a loss
/// of unflushed writes fails a flush; a failure of one member is no failure of the pool; members
/// are equal after every recovery.
/// Method: rounds in which one member fails, members are replaced, added, removed and compared,
/// all lose power, or the pool crashes, by seed.
#[test]
fn members_fail_in_all_ways() {
    let seeds = std::env::var("LUNAR_POOL_SEEDS").map_or(SEEDS, |seeds| seeds.parse().unwrap());
    for seed in 0..seeds {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_time().start_paused(true).build().unwrap();
        runtime.block_on(trial(seed));
    }
}
