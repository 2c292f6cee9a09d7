//! An independent reader, which checks that counters never shrink. The reader sends raw PDUs in a
//! session of its own, which does not pass through the relay.

use crate::cuts::load::{BLOCK, Ledger, MODEL_BLOCKS, content, counter_of};
use crate::cuts::peers::Peer;
use anyhow::{Context, Result, anyhow, ensure};
use lunar_lab::random::Random;
use lunar_testkit::raw::RawClient;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Number of blocks that the reader reads repeatedly, spread over the disk.
const SAMPLED_BLOCKS: u64 = 300;
const PAUSE: Duration = Duration::from_millis(2);

/// The reader, at work until [`finish`](Self::finish).
pub struct Sampler {
    over: Arc<AtomicBool>,
    thread: JoinHandle<Result<u64>>,
}

impl Sampler {
    pub fn start(peer: &Peer, ledger: &Arc<Ledger>) -> Result<Self> {
        let mut raw =
            RawClient::log_in_as(peer.address(), peer.target(), 99).context("the reader")?;
        raw.lun[1] = peer.lun as u8;
        let over = Arc::<AtomicBool>::default();
        let (ledger, until) = (Arc::clone(ledger), Arc::clone(&over));
        let thread = thread::spawn(move || {
            sample(&mut raw, &ledger, &until).context("the independent reader")
        });
        Ok(Self { over, thread })
    }

    /// Stops the reader; returns the number of samples.
    pub fn finish(self) -> Result<u64> {
        self.over.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| anyhow!("the reader panicked"))?
    }
}

fn sample(raw: &mut RawClient, ledger: &Ledger, over: &AtomicBool) -> Result<u64> {
    let mut random = Random::new(ledger.seed ^ 0x5a);
    let mut seen: HashMap<u64, u64> = HashMap::new();
    let mut samples = 0;
    while !over.load(Ordering::Relaxed) {
        let lba = random.below(SAMPLED_BLOCKS) * (MODEL_BLOCKS / SAMPLED_BLOCKS);
        let acknowledged = ledger.acknowledged(lba);
        let data = raw.read_block(lba as u32)?;
        let block = &data.as_chunks::<BLOCK>().0[0];
        let counter = counter_of(block).unwrap_or(0);
        ensure!(
            counter >= acknowledged,
            "block {lba} holds counter {counter} after {acknowledged} was acknowledged"
        );
        let before = seen.insert(lba, counter).unwrap_or(0);
        ensure!(counter >= before, "block {lba} went back from counter {before} to {counter}");
        let whole = counter == 0 || *block == content(ledger.seed, lba, counter);
        ensure!(whole, "block {lba} with counter {counter} is torn: {block:02x?}");
        samples += 1;
        thread::sleep(PAUSE);
    }
    Ok(samples)
}
