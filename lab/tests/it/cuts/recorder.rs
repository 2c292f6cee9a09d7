//! A disk in memory that records the writes executed on it.

use crate::cuts::load::{BLOCK, Write, counter_of};
use anyhow::{Result, ensure};
use bytes::Bytes;
use lunar_block::{BlockDevice, BlockRange, BoxFuture, Buffer, Error, Geometry};
use lunar_lab::random::Random;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Longest delay of a write or read before it is executed.
const DELAY_MICROSECONDS_MAX: u64 = 6000;

/// A disk that records, for each block, the counters of the executed writes, in order.
#[derive(Debug)]
pub struct Recorder {
    geometry: Geometry,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    bytes: Vec<u8>,
    executed: Vec<Vec<u64>>,
    random: Random,
}

/// Statistics of a run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Account {
    /// Number of writes that were checked.
    pub writes: u64,
    /// Number of repeated executions.
    pub repetitions: u64,
    /// Largest number of executions of one write.
    pub executions_max: u64,
}

impl Recorder {
    /// Creates a disk of this many blocks of 512 bytes, all zeroes.
    pub fn new(blocks: u64, seed: u64) -> Result<Self> {
        let bytes = blocks * BLOCK as u64;
        let state = State {
            bytes: vec![0; bytes as usize],
            executed: vec![Vec::new(); blocks as usize],
            random: Random::new(seed),
        };
        let geometry = Geometry::new("recorder", bytes, BLOCK as u32, BLOCK as u32)?;
        Ok(Self { geometry, state: Mutex::new(state) })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Delays some commands, so that commands of a broken session are still pending in the disk.
    async fn dawdle(&self) {
        let pause = { self.state().random.below(4 * DELAY_MICROSECONDS_MAX) };
        if pause < DELAY_MICROSECONDS_MAX {
            tokio::time::sleep(Duration::from_micros(pause)).await;
        }
    }

    /// Checks that no counter of a block was followed by a lower one, from any writer.
    pub fn nothing_went_back(&self) -> Result<()> {
        for (lba, counters) in self.state().executed.iter().enumerate() {
            let order = counters.is_sorted();
            ensure!(order, "block {lba}: a stale write was executed: {counters:?}");
        }
        Ok(())
    }

    /// Returns the number of executions of each write, in the order of `writes`: the largest of its
    /// blocks, and the smallest.
    fn executions(&self, writes: &[Write]) -> Vec<(u64, u64)> {
        let state = self.state();
        let counts: Vec<BTreeMap<u64, u64>> = state.executed.iter().map(|all| tally(all)).collect();
        let each = writes.iter().map(|write| {
            let of = |lba: u64| counts[lba as usize].get(&write.counter).copied().unwrap_or(0);
            let times = write.blocks.clone().map(of);
            (times.clone().max().unwrap_or(0), times.min().unwrap_or(0))
        });
        each.collect()
    }

    /// Checks the rule for a disk that repeats unanswered commands: each acknowledged write was
    /// executed, and a write was executed more than once only if it was in flight at a cut, at most
    /// once for each cut.
    pub fn check_repeated(&self, writes: &[Write]) -> Result<Account> {
        let mut account = Account::default();
        for (write, (most, least)) in writes.iter().zip(self.executions(writes)) {
            ensure!(least >= 1, "{write:?} was acknowledged and not executed");
            ensure!(most <= 1 + write.cuts, "{write:?} was executed {most} times");
            account.note(most);
        }
        Ok(account)
    }

    /// Checks the rule for raw commands: executed once if it ended GOOD, never if it was not sent,
    /// and in no case twice.
    pub fn check_raw(&self, writes: &[Write]) -> Result<Account> {
        let mut account = Account::default();
        for (write, (most, least)) in writes.iter().zip(self.executions(writes)) {
            let allowed = match write.executed {
                Some(true) => 1..=1,
                Some(false) => 0..=0,
                None => 0..=1,
            };
            let fits = allowed.contains(&most) && allowed.contains(&least);
            ensure!(fits, "{write:?} was executed {least} to {most} times");
            account.note(most);
        }
        Ok(account)
    }
}

impl Account {
    fn note(&mut self, executions: u64) {
        self.writes += 1;
        self.repetitions += executions.saturating_sub(1);
        self.executions_max = self.executions_max.max(executions);
    }
}

fn tally(counters: &[u64]) -> BTreeMap<u64, u64> {
    let mut counts = BTreeMap::new();
    for counter in counters {
        *counts.entry(*counter).or_default() += 1;
    }
    counts
}

impl BlockDevice for Recorder {
    fn name(&self) -> &str {
        "recorder"
    }

    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn read(&self, range: BlockRange, mut into: Buffer) -> BoxFuture<'_, Result<Buffer, Error>> {
        Box::pin(async move {
            let bytes = self.geometry.checked(self.name(), range, into.len(), false)?;
            self.dawdle().await;
            let state = self.state();
            let from = &state.bytes[bytes.start as usize..bytes.end as usize];
            into[..from.len()].copy_from_slice(from);
            drop(state);
            Ok(into)
        })
    }

    fn write(
        &self,
        range: BlockRange,
        from: Bytes,
        _durable: bool,
    ) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            let bytes = self.geometry.checked(self.name(), range, from.len(), true)?;
            self.dawdle().await;
            let mut state = self.state();
            state.bytes[bytes.start as usize..bytes.end as usize].copy_from_slice(&from);
            for (lba, block) in (range.lba..).zip(from.as_chunks::<BLOCK>().0) {
                if let Some(counter) = counter_of(block) {
                    state.executed[lba as usize].push(counter);
                }
            }
            Ok(())
        })
    }

    fn flush(&self) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(async { Ok(()) })
    }

    fn io_tier(&self) -> String {
        "memory".to_owned()
    }
}
