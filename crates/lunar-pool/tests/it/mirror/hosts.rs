//! Hosts that use a mirror side by side, whose members are 20 ms away.

use super::rig::{BLOCKS, REGION, Rig, with_mark_time};
use crate::common::{Device, filled, memory};
use bytes::Bytes;
use futures_util::future::join_all;
use lunar_block::{
    BlockDevice, BlockRange, BoxFuture, Buffer, Effect, Error, FairDevice, FaultOperation,
    Geometry, IoContext, MemoryOwner,
};
use lunar_pool::MemberState;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;
use tokio::time::Instant;

/// Time that a member takes for a write or a flush.
const LATENCY: Duration = Duration::from_millis(20);

/// Time for which operations are counted.
const COUNTED: Duration = Duration::from_secs(10);

/// A disk that does one write after the other.
#[derive(Debug)]
struct SlowDisk {
    disk: Device,
    arm: tokio::sync::Mutex<()>,
    write_time: Duration,
}

impl SlowDisk {
    fn new(disk: Device, write_time: Duration) -> Arc<Self> {
        Arc::new(Self { disk, arm: tokio::sync::Mutex::default(), write_time })
    }
}

impl BlockDevice for SlowDisk {
    fn name(&self) -> &str {
        self.disk.name()
    }

    fn geometry(&self) -> Geometry {
        self.disk.geometry()
    }

    fn read(&self, range: BlockRange, into: Buffer) -> BoxFuture<'_, Result<Buffer, Error>> {
        self.disk.read(range, into)
    }

    fn write(
        &self,
        range: BlockRange,
        from: Bytes,
        durable: bool,
    ) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            let _arm = self.arm.lock().await;
            tokio::time::sleep(self.write_time).await;
            self.disk.write(range, from, durable).await
        })
    }

    fn flush(&self) -> BoxFuture<'_, Result<(), Error>> {
        self.disk.flush()
    }

    fn io_tier(&self) -> String {
        self.disk.io_tier()
    }
}

/// A mirror of distant members, as a server gives it to hosts.
struct DistantMirror {
    rig: Rig,
    shared: Arc<FairDevice>,
}

impl DistantMirror {
    async fn new() -> Self {
        let rig = Rig::new(2).await;
        let shared = FairDevice::new(Arc::clone(&rig.pool) as Arc<dyn BlockDevice>);
        for member in 0..2 {
            rig.inject(member, Effect::Delay(LATENCY), FaultOperation::Write);
            rig.inject(member, Effect::Delay(LATENCY), FaultOperation::Flush);
        }
        Self { rig, shared }
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

    /// Returns the number of writes that a host with one write at a time completes in [`COUNTED`].
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

/// Fault: while a host wrote to the blocks of another one, 32 writes at a time, the write rate of
/// the other host fell to 5 %. Goal: the two hosts take turns.
#[tokio::test(start_paused = true)]
async fn overlapping_writes_of_two_hosts_take_turns() {
    const DEPTH: usize = 32;
    let mut counts = Vec::new();
    // For comparison, the first host writes as much to other blocks.
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
        mirror.rig.pool.close().await.unwrap();
    }
    println!("writes of the host: {} without overlap, {} with overlap", counts[0], counts[1]);
    assert!(counts[1] * 5 >= counts[0] * 2, "{counts:?}; at least 40 % expected");
}

/// Fault: a member that delayed all writes of a busy mirror was given as much time as a slow disk
/// with many writes: 192 writes at a time were always 1.5 s late, and so was each write of another
/// host. Goal: the member is left out.
#[tokio::test(start_paused = true)]
async fn a_delay_of_all_writes_is_no_queue() {
    let mirror = DistantMirror::new().await;
    let (owners, counts): ([_; 3], [_; 3]) = Default::default();
    let mut writes = Vec::new();
    for at in 0..64 {
        for (host, count) in (1..).zip(&counts) {
            let owner = &owners[host as usize - 1];
            writes.push(mirror.repeat(owner, count, move |shared, number| async move {
                // Writes begin at different times, so that they do not end together.
                tokio::time::sleep(Duration::from_millis((number * 7 + at) % 64 * 23)).await;
                shared.write(BlockRange::new(host * REGION + at, 1), filled(2, 1), false).await
            }));
        }
    }
    mirror.victim(|_| 0).await;
    mirror.rig.faults[1].heal();
    mirror.rig.inject(1, Effect::Delay(Duration::from_millis(1500)), FaultOperation::Write);
    mirror.victim(|_| 0).await;
    assert_ne!(mirror.rig.state(1), MemberState::Current);
    assert_ne!(mirror.rig.pool.status().members[1].last_failure, "");
    let after = mirror.victim(|_| 0).await;
    assert!(after > 100, "{after} writes");
    writes.iter().for_each(|write| write.abort());
}

/// Fault: a healthy disk of 62 writes a second was left out of a mirror with 64 short writes at a
/// time, because each write took a second. Goal: the disk stays a member, also under bursts of
/// writes.
#[tokio::test(start_paused = true)]
async fn a_slow_disk_with_a_queue_stays() {
    for pause in [0, 3] {
        let mirror = DistantMirror::new().await;
        mirror.rig.faults.iter().for_each(|fault| fault.heal());
        let disk = SlowDisk::new(memory(BLOCKS * 512, 512, 512), Duration::from_millis(16));
        let pool = &mirror.rig.pool;
        pool.add(Arc::clone(&disk) as Device).await.unwrap();
        mirror.rig.until_healthy().await;
        let end = Instant::now() + Duration::from_secs(60);
        while Instant::now() < end {
            let writes = (0..64).map(|at| {
                let range = BlockRange::new(at * 7 % REGION, 1);
                pool.write(range, filled(3, 1), false)
            });
            for written in join_all(writes).await {
                written.unwrap();
            }
            tokio::time::sleep(Duration::from_secs(pause)).await;
        }
        let status = pool.status();
        assert_eq!(status.members[2].state, MemberState::Current);
        assert_eq!(status.members[2].last_failure, "");
    }
}

/// Fault: after each flush, marks were removed with a page, and the next change of such a region
/// waited for this page and for another one. While a host flushed all the time, the write rate of
/// other hosts fell to 25 %. Goal: it stays above 90 %.
#[tokio::test(start_paused = true)]
async fn flushes_of_a_host_do_not_slow_the_writes_of_others() {
    let regions = BLOCKS / REGION;
    let mut counts = Vec::new();
    for is_flushing in [false, true] {
        let mirror = DistantMirror::new().await;
        let (owner, count) = (Arc::default(), Arc::default());
        let flushes = mirror.repeat(&owner, &count, move |shared, _| async move {
            if is_flushing { shared.flush().await } else { std::future::pending().await }
        });
        counts.push(mirror.victim(move |number| number * 7 % regions * REGION).await);
        flushes.abort();
        mirror.rig.pool.close().await.unwrap();
    }
    println!("writes of the host: {} without flushes, {} beside flushes", counts[0], counts[1]);
    assert!(counts[1] * 10 >= counts[0] * 9, "{counts:?}; at least 90 % expected");
}

/// Goal: marks of regions that are not changed any more are removed without a further operation, by
/// a page of their own; then a crash makes the next opening copy nothing.
#[tokio::test(start_paused = true)]
async fn marks_of_an_idle_mirror_go() {
    const MARK_TIME: Duration = Duration::from_secs(5);
    for (idle, copied) in [(MARK_TIME / 2, REGION * 512), (2 * MARK_TIME, 0)] {
        let rig = Rig::with_options(2, with_mark_time(MARK_TIME)).await;
        rig.write(0, 1).await;
        rig.pool.flush().await.unwrap();
        tokio::time::sleep(idle).await;
        let writes = rig.faults[0].seen(FaultOperation::Write);
        let rig = rig.crash_and_reopen(with_mark_time(MARK_TIME)).await.unwrap();
        assert_eq!(writes, if copied == 0 { 3 } else { 2 }, "the page, the block, another page");
        rig.until_healthy().await;
        assert_eq!(rig.pool.status().copied_bytes, copied);
    }
}
