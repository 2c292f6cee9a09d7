//! Two initiators on one LUN at the same time: no write is lost, and reads return only written
//! data.

use anyhow::{Context, Result, ensure};
use lunar_lab::peers::lunar::Lunar;
use lunar_lab::random::Random;
use lunar_lab::system::process::run_checked;
use lunar_lab::system::scratch::Scratch;
use lunar_testkit::raw::RawClient;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

const TARGET: &str = "iqn.2026-11.org.lunarsan.test:two";
const TOOL_MAX: Duration = Duration::from_secs(120);
const BLOCK_BYTES: usize = 512;
/// Number of blocks: few, so that the initiators often access the same ones.
const BLOCKS: u64 = 48;
const WRITE_BLOCKS_MAX: u64 = 16;
/// Cache modes of the disk, and numbers of reads and writes of an initiator, by seed. The test
/// checks visibility; a sync for each write would only make it slow.
const RUNS: [(&str, u64); 3] = [("write-back", 600), ("write-back", 600), ("write-through", 60)];

/// One write of one block: the time span in which it was under way, and its value.
#[derive(Clone, Copy)]
struct Written {
    from: u64,
    to: u64,
    value: u64,
}

/// Possible values of each block: every write made to it, with a shared clock.
struct Model {
    clock: AtomicU64,
    blocks: Vec<Mutex<Vec<Written>>>,
}

impl Model {
    fn new() -> Self {
        let unwritten = Written { from: 0, to: 0, value: 0 };
        let blocks = (0..BLOCKS).map(|_| Mutex::new(vec![unwritten])).collect();
        Self { clock: AtomicU64::new(1), blocks }
    }

    fn now(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::SeqCst)
    }

    fn writes_of(&self, block: usize) -> std::sync::MutexGuard<'_, Vec<Written>> {
        self.blocks[block].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that a write is under way: a reader may see it already, but need not.
    fn begin(&self, block: usize, value: u64) {
        let from = self.now();
        self.writes_of(block).push(Written { from, to: u64::MAX, value });
    }

    fn end(&self, block: usize, value: u64) {
        let to = self.now();
        let mut writes = self.writes_of(block);
        if let Some(write) = writes.iter_mut().find(|write| write.value == value) {
            write.to = to;
        }
    }

    /// Checks a read that was under way from `from` until now and found `value`: the value must
    /// have been written, and not have been replaced for certain when the read began.
    fn check(&self, block: usize, value: u64, from: u64) -> Result<()> {
        let writes = self.writes_of(block);
        let seen = writes.iter().find(|write| write.value == value);
        let seen = seen.with_context(|| format!("block {block}: {value:#x} was never written"))?;
        let replaced = writes.iter().find(|later| later.from > seen.to && later.to < from);
        if let Some(later) = replaced {
            let (old, new) = (seen.value, later.value);
            anyhow::bail!("block {block}: {old:#x} came back after {new:#x} was acknowledged");
        }
        Ok(())
    }
}

/// Returns the value of a block; a block with two writes mixed is an error.
fn value_of(block: &[u8]) -> Result<u64> {
    let mut first = [0; 8];
    first.copy_from_slice(&block[..8]);
    ensure!(block.chunks(8).all(|chunk| chunk == first), "a block of two writes mixed");
    Ok(u64::from_be_bytes(first))
}

/// Runs one initiator: random reads and writes of a few blocks each.
fn work(address: &str, number: u32, seed: u64, steps: u64, model: &Model) -> Result<()> {
    let mut raw = RawClient::log_in_as(address, TARGET, number)?;
    let mut random = Random::new(seed ^ u64::from(number) << 32);
    for step in 0..steps {
        let count = 1 + random.below(WRITE_BLOCKS_MAX);
        let first = random.below(BLOCKS - count + 1);
        let (lba, blocks) = (u32::try_from(first)?, usize::try_from(first)?..);
        if random.below(2) == 0 {
            let value = (u64::from(number) << 32) | (step + 1);
            let data = value.to_be_bytes().repeat(usize::try_from(count)? * BLOCK_BYTES / 8);
            let blocks = blocks.start..blocks.start + usize::try_from(count)?;
            blocks.clone().for_each(|block| model.begin(block, value));
            raw.write_blocks(lba, &data)?;
            blocks.for_each(|block| model.end(block, value));
        } else {
            let from = model.now();
            let data = raw.read_blocks(lba, u16::try_from(count)?)?;
            for (block, bytes) in blocks.zip(data.chunks(BLOCK_BYTES)) {
                model.check(block, value_of(bytes)?, from).with_context(|| format!("{step}"))?;
            }
        }
    }
    Ok(())
}

/// Goal: a write acknowledged to one initiator is visible to the other one.
/// Method: two sessions on the same few blocks; a model of all writes with their times judges each
/// read; by seed.
#[test]
fn same_blocks_against_a_model() -> Result<()> {
    for (seed, (cache, steps)) in (1_u64..).zip(RUNS) {
        let scratch = Scratch::new("two")?;
        let disk = scratch.path("disk.img");
        let lunar = Lunar::serve(&[&disk, "--size", "16M", "--name", TARGET, "--cache", cache])?;
        let model = Model::new();
        let address = lunar.address();
        let outcomes: Vec<Result<()>> = thread::scope(|scope| {
            let model = &model;
            let start = |number| scope.spawn(move || work(address, number, seed, steps, model));
            let workers = [1, 2].map(start);
            workers.map(|worker| worker.join().expect("a worker panicked")).into()
        });
        for outcome in outcomes {
            outcome.with_context(|| format!("seed {seed}"))?;
        }
        let mut raw = RawClient::log_in_as(address, TARGET, 3)?;
        for block in 0..u32::try_from(BLOCKS)? {
            let now = model.now();
            model.check(usize::try_from(block)?, value_of(&raw.read_block(block)?)?, now)?;
        }
        drop(raw);
        lunar.stop(Duration::from_secs(60))?;
        let stored = std::fs::read(&disk)?;
        for block in 0..usize::try_from(BLOCKS)? {
            let bytes = &stored[block * BLOCK_BYTES..][..BLOCK_BYTES];
            model.check(block, value_of(bytes)?, model.now()).context("in the file")?;
        }
    }
    Ok(())
}

/// Goal: two of QEMU's initiators that write stripes in turn see each other's data.
#[test]
fn interleaved_stripes_of_two_qemu() -> Result<()> {
    const STRIPE: usize = 128 << 10;
    const STRIPES: usize = 256;
    let scratch = Scratch::new("stripes")?;
    let disk = scratch.path("disk.img");
    let lunar = Lunar::serve(&[&disk, "--size", "64M", "--name", TARGET])?;
    let url = lunar.url(TARGET, 0);
    let commands = |verb: &str, parity: usize| -> Vec<String> {
        let stripes = (0..STRIPES).filter(|stripe| stripe % 2 == parity);
        let line =
            |stripe: usize| format!("{verb} -P {} {} {STRIPE}", 1 + stripe % 250, stripe * STRIPE);
        stripes.map(line).collect()
    };
    let qemu_io = |verb: &str, parity: usize| -> Result<()> {
        let mut arguments = vec!["-f", "raw", "-t", "none"];
        let (lines, flush) = (commands(verb, parity), "aio_flush");
        for line in &lines {
            arguments.extend(["-c", line]);
        }
        arguments.extend(["-c", flush, &url]);
        let text = run_checked("qemu-io", &arguments, TOOL_MAX)?;
        ensure!(!text.contains("failed") && !text.contains("verification"), "{text}");
        Ok(())
    };
    for (verb, swapped) in [("aio_write", false), ("aio_read", true)] {
        thread::scope(|scope| -> Result<()> {
            let workers = [0, 1].map(|worker| {
                let parity = if swapped { 1 - worker } else { worker };
                let qemu_io = &qemu_io;
                scope.spawn(move || qemu_io(verb, parity))
            });
            workers.into_iter().try_for_each(|worker| worker.join().expect("a worker panicked"))
        })?;
    }
    Ok(())
}
