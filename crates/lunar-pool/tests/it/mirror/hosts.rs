//! Hosts that use a mirror side by side, whose members are 20 ms away.

use super::bench::{Bench, REGION};
use crate::common::filled;
use lunar_block::{
    BlockDevice, BlockRange, Effect, FairDevice, FaultOperation, IoContext, MemoryOwner,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

/// Time that a member takes for a write or a flush.
const LATENCY: Duration = Duration::from_millis(20);

/// Time for which operations are counted.
const COUNTED: Duration = Duration::from_secs(10);

/// A mirror of distant members, as a server gives it to hosts.
struct DistantMirror {
    bench: Bench,
    shared: Arc<FairDevice>,
}

impl DistantMirror {
    async fn new() -> Self {
        let bench = Bench::new(2).await;
        let shared = FairDevice::new(Arc::clone(&bench.pool) as Arc<dyn BlockDevice>);
        for member in 0..2 {
            bench.inject(member, Effect::Delay(LATENCY), FaultOperation::Write);
            bench.inject(member, Effect::Delay(LATENCY), FaultOperation::Flush);
        }
        Self { bench, shared }
    }

    /// Repeats an operation for an owner until the task is aborted.
    fn repeat<F>(
        &self,
        owner: &Arc<MemoryOwner>,
        count: &Arc<AtomicU64>,
        mut operation: impl FnMut(Arc<FairDevice>, u64) -> F + Send + 'static,
    ) -> tokio::task::JoinHandle<()>
    where
        F: Future<Output = Result<(), lunar_block::Error>> + Send + 'static,
    {
        let (owner, shared) = (Arc::clone(owner), Arc::clone(&self.shared));
        let count = Arc::clone(count);
        tokio::spawn(async move {
            for number in 0.. {
                let operation = operation(Arc::clone(&shared), number);
                IoContext::new(&owner).scope(operation).await.unwrap();
                count.fetch_add(1, SeqCst);
            }
        })
    }

    /// Returns the number of writes of a host that sends one after the other, for some time.
    async fn victim(&self, lba: impl Fn(u64) -> u64 + Send + 'static) -> u64 {
        let count = Arc::default();
        let victim = self.repeat(&Arc::default(), &count, move |shared, number| {
            let range = BlockRange::new(lba(number), 8);
            async move { shared.write(range, filled(1, 8), false).await }
        });
        tokio::time::sleep(COUNTED).await;
        victim.abort();
        count.load(SeqCst)
    }
}

/// Fault: a host that wrote to the blocks of another one, 32 writes at a time, left it one of 22
/// writes. Goal: the two take turns.
#[tokio::test(start_paused = true)]
async fn overlapping_writes_of_two_hosts_take_turns() {
    const DEPTH: usize = 32;
    let mut counts = Vec::new();
    // The control writes as much to other blocks.
    for first in [REGION, 0] {
        let mirror = DistantMirror::new().await;
        let (owner, count) = (Arc::default(), Arc::default());
        let writes = (0..DEPTH).map(|_| {
            mirror.repeat(&owner, &count, move |shared, _| async move {
                shared.write(BlockRange::new(first, 64), filled(2, 64), false).await
            })
        });
        let writes: Vec<_> = writes.collect();
        counts.push(mirror.victim(|_| 0).await);
        writes.iter().for_each(|write| write.abort());
        mirror.bench.pool.close().await.unwrap();
    }
    println!("counted: alone={} beside={}", counts[0], counts[1]);
    assert!(counts[1] * 5 >= counts[0] * 2, "{counts:?}");
}
