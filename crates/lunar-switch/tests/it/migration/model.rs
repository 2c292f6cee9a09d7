//! Hosts that use a disk, and the versions that each block may have.

use crate::storage::{BLOCK, Steps, bytes_of, versions_of};
use lunar_block::{BlockDevice, BlockRange, BufferPool, Clear, Error};
use lunar_switch::VirtualDisk;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use tokio::task::JoinSet;

/// Number of hosts at the same time.
const HOSTS: usize = 4;
/// Number of operations of each host after the end of a migration.
const OPERATIONS_AFTER: u64 = 20;

/// The contents that a disk may have, derived from what its hosts wrote and read.
#[derive(Debug)]
pub struct Model {
    blocks: Vec<ModelBlock>,
    last_version: u64,
    /// True if a storage has lost writes, and no flush has reported the loss.
    is_suspect: bool,
    /// Number of losses.
    losses: u64,
    /// True if a host has read a block whose write was lost since the last report.
    has_seen_loss: bool,
}

#[derive(Clone, Debug, Default)]
struct ModelBlock {
    /// The versions that a read may return.
    possible: Vec<u64>,
    /// The versions that the block may have after a loss of what was not flushed.
    durable: Vec<u64>,
    /// True while a host uses the block.
    is_busy: bool,
    /// Number of changes that have begun.
    changes: u64,
    /// Number of changes that have not ended.
    pending: usize,
}

/// A change that has ended.
#[derive(Debug)]
struct EndedChange {
    range: BlockRange,
    versions: Vec<u64>,
    is_durable: bool,
    is_good: bool,
    /// Number of losses at its end.
    losses: u64,
}

impl Model {
    pub fn new(blocks: u64) -> Self {
        let blocks = vec![ModelBlock::default(); blocks as usize];
        Self { blocks, last_version: 1000, is_suspect: false, losses: 0, has_seen_loss: false }
    }

    pub fn set_versions(&mut self, versions: &[u64]) {
        for (block, version) in self.blocks.iter_mut().zip(versions) {
            block.possible = vec![*version];
            block.durable = vec![*version];
        }
    }

    fn blocks_of(&mut self, range: BlockRange) -> &mut [ModelBlock] {
        &mut self.blocks[range.lba as usize..][..range.count as usize]
    }

    /// Reserves blocks for one host; returns false if another host uses one of them.
    fn try_reserve(&mut self, range: BlockRange) -> bool {
        let is_free = self.blocks_of(range).iter().all(|block| !block.is_busy);
        if is_free {
            self.blocks_of(range).iter_mut().for_each(|block| block.is_busy = true);
        }
        is_free
    }

    fn release(&mut self, range: BlockRange) {
        self.blocks_of(range).iter_mut().for_each(|block| block.is_busy = false);
    }

    fn new_versions(&mut self, count: u64) -> Vec<u64> {
        let first = self.last_version + 1;
        self.last_version += count;
        (first..first + count).collect()
    }

    fn begin_change(&mut self, range: BlockRange, versions: &[u64]) {
        for (block, version) in self.blocks_of(range).iter_mut().zip(versions) {
            block.possible.push(*version);
            block.durable.push(*version);
            block.changes += 1;
            block.pending += 1;
        }
    }

    /// Ends concurrent changes of `range` that began when there were `losses` losses. A later loss
    /// may have affected them, even if a flush reported it before they were acknowledged.
    fn end_changes(&mut self, range: BlockRange, losses: u64, all: &[EndedChange]) {
        let now = self.losses;
        if all.iter().any(|one| one.losses != losses) {
            self.lose_unflushed(); // for the flushes that begin from now on
        }
        for lba in range.lba..range.lba + range.count {
            let covers = |one: &BlockRange| one.lba <= lba && lba < one.lba + one.count;
            let covering: Vec<_> = all.iter().filter(|one| covers(&one.range)).collect();
            let block = &mut self.blocks[lba as usize];
            block.pending -= covering.len();
            if !covering.iter().any(|one| one.is_good) {
                continue;
            }
            // A change that has failed may have been executed last.
            let version = |one: &&EndedChange| one.versions[(lba - one.range.lba) as usize];
            block.possible = covering.iter().map(version).collect();
            if covering.iter().any(|one| one.losses != now) {
                // A flush may have reported the loss already.
                block.possible.extend(block.durable.clone());
            } else if covering.iter().all(|one| one.is_durable && one.is_good) {
                block.durable.clone_from(&block.possible);
            }
        }
    }

    /// Forgets a change that was not made.
    fn forget(&mut self, range: BlockRange, versions: &[u64]) {
        for (block, version) in self.blocks_of(range).iter_mut().zip(versions) {
            block.possible.retain(|other| other != version);
            block.durable.retain(|other| other != version);
        }
    }

    fn read(&mut self, range: BlockRange, versions: &[u64]) {
        let (suspect, mut seen) = (self.is_suspect, false);
        for (at, (block, version)) in self.blocks_of(range).iter_mut().zip(versions).enumerate() {
            let lba = range.lba + at as u64;
            if !block.possible.contains(version) {
                let is_older = block.durable.contains(version);
                assert!(suspect && is_older, "block {lba} has {version}, {block:?}");
                seen = true;
            }
            // The version that was read is the only possible one from now on.
            block.possible = vec![*version];
        }
        self.has_seen_loss |= seen;
    }

    /// A storage loses writes that were not flushed.
    pub fn lose_unflushed(&mut self) {
        self.is_suspect = true;
        self.losses += 1;
    }

    /// Returns the number of losses, and the changes of each block if all of them have ended.
    fn begin_flush(&self) -> (u64, Vec<Option<u64>>) {
        let ended = |block: &ModelBlock| (block.pending == 0).then_some(block.changes);
        (self.losses, self.blocks.iter().map(ended).collect())
    }

    fn end_flush(&mut self, (losses, changes): &(u64, Vec<Option<u64>>), good: bool) {
        if !good {
            // A loss is reported, or may have been: each block may have an earlier version.
            if self.is_suspect {
                for block in &mut self.blocks {
                    let durable = block.durable.clone();
                    block.possible.extend(durable);
                }
            }
            self.is_suspect = false;
            self.has_seen_loss = false;
            return;
        }
        if self.losses == *losses {
            assert!(!self.has_seen_loss, "a flush has hidden a loss");
            self.is_suspect = false;
        }
        for (block, changes) in self.blocks.iter_mut().zip(changes) {
            if Some(block.changes) == *changes {
                block.durable.clone_from(&block.possible);
            }
        }
    }

    /// Crashes the switch; the storages have all that they acknowledged.
    pub fn crash(&mut self) {
        self.after_crash();
    }

    /// Crashes the switch; the storages lose what was not flushed.
    pub fn crash_with_power_cut(&mut self) {
        for block in &mut self.blocks {
            let durable = block.durable.clone();
            block.possible.extend(durable);
        }
        self.after_crash();
    }

    fn after_crash(&mut self) {
        (self.is_suspect, self.has_seen_loss) = (false, false);
        for block in &mut self.blocks {
            block.is_busy = false;
            block.pending = 0;
        }
    }
}

async fn read(disk: &VirtualDisk, range: BlockRange) -> Result<Vec<u64>, Error> {
    let bytes = range.count as usize * BLOCK;
    let read = disk.read(range, BufferPool::default().take(bytes)).await?;
    Ok(versions_of(&read[..bytes]))
}

/// Reads all blocks, when no host uses them.
pub async fn check_all(disk: &VirtualDisk, model: &Mutex<Model>) {
    let range = BlockRange::new(0, model.lock().unwrap().blocks.len() as u64);
    let versions = read(disk, range).await.unwrap();
    model.lock().unwrap().read(range, &versions);
}

/// Hosts in tasks.
pub struct Hosts {
    tasks: JoinSet<()>,
    stop: Arc<AtomicBool>,
}

/// One host.
struct Host {
    disk: Arc<VirtualDisk>,
    model: Arc<Mutex<Model>>,
    steps: Arc<Steps>,
    is_eager: bool,
}

impl Hosts {
    /// Starts hosts. Those that are eager pause less, and all their changes are durable.
    pub fn start(
        disk: &Arc<VirtualDisk>,
        model: &Arc<Mutex<Model>>,
        steps: &Arc<Steps>,
        is_eager: bool,
    ) -> Self {
        let (mut tasks, stop) = (JoinSet::new(), Arc::new(AtomicBool::new(false)));
        for _ in 0..HOSTS {
            let (disk, model, steps) = (Arc::clone(disk), Arc::clone(model), Arc::clone(steps));
            let (host, stop) = (Host { disk, model, steps, is_eager }, Arc::clone(&stop));
            tasks.spawn(async move {
                let mut left = OPERATIONS_AFTER;
                while left > 0 {
                    host.operate().await;
                    left -= u64::from(stop.load(SeqCst));
                }
            });
        }
        Self { tasks, stop }
    }

    /// Lets the hosts do some more operations.
    pub async fn run_and_stop(mut self) {
        self.stop.store(true, SeqCst);
        while let Some(done) = self.tasks.join_next().await {
            done.unwrap();
        }
    }
}

impl Host {
    fn is_durable(&self) -> bool {
        self.is_eager || self.steps.one_in(4)
    }

    async fn operate(&self) {
        let pause = self.steps.next() % if self.is_eager { 3 } else { 20 };
        tokio::time::sleep(std::time::Duration::from_millis(pause)).await;
        if self.steps.one_in(12) {
            return self.flush().await;
        }
        let blocks = self.model.lock().unwrap().blocks.len() as u64;
        let lba = self.steps.next() % blocks;
        let range = BlockRange::new(lba, (1 + self.steps.next() % 24).min(blocks - lba));
        if !self.model.lock().unwrap().try_reserve(range) {
            return;
        }
        match self.steps.next() % 8 {
            0 | 1 => self.read(range).await,
            2 => self.compare_and_write(range).await,
            _ => self.change_together(range).await,
        }
        self.model.lock().unwrap().release(range);
    }

    async fn flush(&self) {
        let changes = self.model.lock().unwrap().begin_flush();
        let flushed = self.disk.flush().await;
        if !self.steps.has_crashed() {
            self.model.lock().unwrap().end_flush(&changes, flushed.is_ok());
        }
    }

    async fn read(&self, range: BlockRange) {
        let losses = self.model.lock().unwrap().losses;
        if let Ok(versions) = read(&self.disk, range).await {
            let mut model = self.model.lock().unwrap();
            // A read during a loss may return what was there before and after it.
            if model.losses == losses {
                model.read(range, &versions);
            }
        }
    }

    /// Runs one to three changes at the same time, which may overlap, then reads the result twice.
    async fn change_together(&self, range: BlockRange) {
        let mut changes = Vec::new();
        let losses = self.model.lock().unwrap().losses;
        for _ in 0..1 + self.steps.next() % 3 {
            let lba = range.lba + self.steps.next() % range.count;
            let count = 1 + self.steps.next() % (range.lba + range.count - lba);
            let part = BlockRange::new(lba, count);
            let is_clear = self.steps.one_in(4);
            let mut model = self.model.lock().unwrap();
            let versions =
                if is_clear { vec![0; count as usize] } else { model.new_versions(count) };
            model.begin_change(part, &versions);
            changes.push((part, versions, self.is_durable(), is_clear));
        }
        let each = changes.into_iter().map(|(range, versions, is_durable, is_clear)| async move {
            let done = match is_clear {
                true => self.clear(range, is_durable).await,
                false => self.disk.write(range, bytes_of(&versions).into(), is_durable).await,
            };
            let losses = self.model.lock().unwrap().losses;
            EndedChange { range, versions, is_durable, is_good: done.is_ok(), losses }
        });
        let ended = futures_util::future::join_all(each).await;
        self.model.lock().unwrap().end_changes(range, losses, &ended);
        self.read(range).await;
        self.read(range).await;
    }

    async fn clear(&self, range: BlockRange, durable: bool) -> Result<(), Error> {
        let sparse = self.disk.sparse().unwrap();
        match self.steps.next() % 3 {
            0 => sparse.unmap(range, durable).await,
            1 => sparse.write_zeroes(range, self.steps.one_in(2), durable).await,
            _ => {
                let (mut lba, end) = (range.lba, range.lba + range.count);
                while lba < end {
                    let rest = vec![BlockRange::new(lba, end - lba)];
                    lba = sparse.clear_piece(rest, Clear::Unmap, durable).await?;
                }
                Ok(())
            }
        }
    }

    async fn compare_and_write(&self, range: BlockRange) {
        let range = BlockRange::new(range.lba, range.count.min(8));
        let Some(compares) = self.disk.compare_and_write() else { return };
        let losses = self.model.lock().unwrap().losses;
        let Ok(mut old) = read(&self.disk, range).await else { return };
        let is_lost = {
            let mut model = self.model.lock().unwrap();
            let is_lost = model.losses != losses;
            if !is_lost {
                model.read(range, &old);
            }
            is_lost
        };
        if is_lost {
            return;
        }
        if self.steps.one_in(3) {
            old[0] ^= 1 << 50; // differs
        }
        let (losses, new) = {
            let mut model = self.model.lock().unwrap();
            let new = model.new_versions(range.count);
            model.begin_change(range, &new);
            (model.losses, new)
        };
        let both = [bytes_of(&old), bytes_of(&new)].concat();
        let durable = self.is_durable();
        let done = compares.compare_and_write(range, both.into(), durable).await;
        let mut model = self.model.lock().unwrap();
        let is_equal = old[0] >> 50 == 0;
        if let (Ok(differs), true) = (&done, model.losses == losses) {
            assert_eq!(differs.is_none(), is_equal);
        }
        let ended = EndedChange {
            range,
            versions: new,
            is_durable: durable,
            is_good: matches!(done, Ok(None)),
            losses: model.losses,
        };
        let ended = [ended];
        model.end_changes(range, losses, &ended);
        if let Ok(Some(_)) = done {
            model.forget(range, &ended[0].versions);
        }
    }
}
