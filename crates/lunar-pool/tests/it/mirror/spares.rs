//! Spare devices.

use super::rig::{BLOCKS, Rig, degraded};
use crate::common::{DATA_START, Device, first_byte, memories};
use bytes::Bytes;
use lunar_block::{
    BlockDevice, BlockRange, BoxFuture, Buffer, DeviceLink, Effect, Error, ErrorKind, Fault,
    FaultDevice, FaultOperation, Geometry, Sparse,
};
use lunar_pool::{
    MemberState, OpenOptions, Pool, PoolError, PoolHealth, PoolSpec, PoolStatus, UnusedState,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;
use tokio::time::Instant;

const MINUTE: Duration = Duration::from_secs(60);

fn new_disk() -> Device {
    memories(1, BLOCKS * 512).remove(0)
}

fn with(spares: Vec<Device>) -> OpenOptions {
    OpenOptions { spares, ..OpenOptions::default() }
}

async fn rig(count: usize, spares: Vec<Device>) -> Rig {
    let disks = memories(count, BLOCKS * 512);
    Pool::create(PoolSpec::Mirror { erase: true }, disks.clone()).await.unwrap();
    Rig::open(disks, 1, with(spares)).await.unwrap()
}

fn unused(status: &PoolStatus) -> Vec<UnusedState> {
    status.unused.iter().map(|unused| unused.state).collect()
}

fn fail_writes(rig: &Rig, member: usize) {
    rig.inject(member, Effect::Fail(ErrorKind::Disconnected), FaultOperation::Write);
}

/// Goal: a member that is left out for five minutes is replaced, and not before; the status shows
/// the spare device, then the replaced one. A later opening finds the new member among the spare
/// devices, and uses neither the old one nor a spare device more.
#[tokio::test(start_paused = true)]
async fn a_member_that_stays_out_is_replaced() {
    let spare = new_disk();
    let rig = rig(2, vec![spare.clone()]).await;
    rig.write(0, 1).await;
    assert_eq!(unused(&rig.pool.status()), [UnusedState::Spare]);
    fail_writes(&rig, 1);
    let begun = Instant::now();
    rig.write(0, 2).await;
    let is_replaced =
        |status: &PoolStatus| unused(status).as_slice() == [UnusedState::Replaced].as_slice();
    rig.until("replaced", is_replaced).await;
    let elapsed = begun.elapsed();
    assert!((5 * MINUTE..6 * MINUTE).contains(&elapsed), "{elapsed:?}");
    rig.write(0, 3).await;
    rig.until_healthy().await;
    assert_eq!(first_byte(&*spare, DATA_START).await, 3);
    let replaced = rig.pool.status().unused.remove(0);
    assert!(replaced.last_failure.contains("a fault was injected"), "{replaced:?}");
    rig.pool.close().await.unwrap();
    let (disks, more) = (rig.disks.clone(), new_disk());
    drop(rig);
    let rig = Rig::open(disks, 1, with(vec![more, spare])).await.unwrap();
    let status = rig.pool.status();
    assert_eq!((status.health, status.copied_bytes), (PoolHealth::Healthy, 0));
    assert_eq!(unused(&status), [UnusedState::Spare, UnusedState::Replaced]);
    assert_eq!(rig.byte(0).await, 3);
}

/// Goal: a member that is recovered in time keeps its slot.
#[tokio::test(start_paused = true)]
async fn a_member_that_returns_is_not_replaced() {
    let rig = rig(2, vec![new_disk()]).await;
    for _ in 0..5 {
        fail_writes(&rig, 1);
        rig.write(0, 1).await;
        tokio::time::sleep(3 * MINUTE).await;
        rig.faults[1].heal();
        rig.until_healthy().await;
        tokio::time::sleep(3 * MINUTE).await;
    }
    assert_eq!(unused(&rig.pool.status()), [UnusedState::Spare]);
    rig.assert_same().await;
}

/// Goal: a missing member is replaced at once, and so is one whose device is gone.
#[tokio::test(start_paused = true)]
async fn devices_that_are_gone() {
    let closed = rig(2, Vec::new()).await;
    closed.write(0, 1).await;
    closed.pool.close().await.unwrap();
    let disk = closed.disks[0].clone();
    drop(closed);
    let options = OpenOptions { spares: vec![new_disk()], ..degraded() };
    let rig = Rig::open(vec![disk.clone()], 1, options).await.unwrap();
    let begun = Instant::now();
    rig.until_healthy().await;
    assert!(begun.elapsed() < MINUTE, "{:?}", begun.elapsed());

    let disks = memories(2, BLOCKS * 512);
    Pool::create(PoolSpec::Mirror { erase: true }, disks.clone()).await.unwrap();
    let linked = Arc::new(Linked { disk: disks[1].clone(), is_gone: AtomicBool::new(false) });
    let members: Vec<Device> = vec![disks[0].clone(), linked.clone()];
    let spare = new_disk();
    let pool = Pool::open("pool", members, with(vec![spare.clone()])).await.unwrap();
    linked.is_gone.store(true, SeqCst);
    let begun = Instant::now();
    pool.write(BlockRange::new(0, 1), vec![4; 512].into(), false).await.unwrap();
    assert_eq!(pool.status().health, PoolHealth::Degraded);
    while pool.status().health != PoolHealth::Healthy {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(begun.elapsed() < MINUTE, "{:?}", begun.elapsed());
    assert_eq!(first_byte(&*spare, DATA_START).await, 4);
}

/// Goal: a spare device that fails is shown with its failure, another one is used, and the failed
/// one is tried again later.
#[tokio::test(start_paused = true)]
async fn spare_devices_that_fail() {
    let broken = FaultDevice::new(new_disk(), 1);
    broken.inject(Fault::new(Effect::Fail(ErrorKind::Medium)).on(FaultOperation::Write));
    let small = memories(1, 512).remove(0);
    let good = new_disk();
    let spares: Vec<Device> = vec![broken.clone(), small, good];
    let rig = rig(3, spares).await;
    fail_writes(&rig, 1);
    rig.write(0, 1).await;
    rig.until("replaced", |status| unused(status).contains(&UnusedState::Replaced)).await;
    let status = rig.pool.status();
    assert_eq!(unused(&status), [UnusedState::Spare, UnusedState::Spare, UnusedState::Replaced]);
    assert!(status.unused[0].last_failure.contains("a fault was injected"), "{status:?}");
    assert!(status.unused[1].last_failure.contains("too small"), "{status:?}");
    rig.until_healthy().await;
    fail_writes(&rig, 2);
    rig.write(0, 2).await;
    tokio::time::sleep(10 * MINUTE).await;
    assert_eq!(rig.state(2), MemberState::Stale);
    broken.heal();
    rig.until_healthy().await;
    assert_eq!(first_byte(&*broken, DATA_START).await, 2);
}

/// Goal: a spare device of another pool is never used, and only mirrors have spare devices.
#[tokio::test(start_paused = true)]
async fn spare_devices_that_are_in_use() {
    let others = memories(2, BLOCKS * 512);
    Pool::create(PoolSpec::Concat, others.clone()).await.unwrap();
    let rig = rig(2, vec![others[0].clone()]).await;
    let why = rig.pool.status().unused.remove(0).last_failure;
    assert!(why.contains("is a member of pool"), "{why}");
    fail_writes(&rig, 1);
    rig.write(0, 1).await;
    tokio::time::sleep(30 * MINUTE).await;
    assert_eq!(rig.state(1), MemberState::Stale);
    drop(rig);
    let again = Pool::open("concat", others.clone(), with(vec![new_disk()])).await;
    assert!(matches!(again, Err(PoolError::NotAMirror { .. })), "{again:?}");
    let twice = Pool::open("concat", others.clone(), with(vec![others[0].clone()])).await;
    assert!(matches!(twice, Err(PoolError::NamedTwice { .. })), "{twice:?}");
}

/// A disk of another machine, which may be gone.
#[derive(Debug)]
struct Linked {
    disk: Device,
    is_gone: AtomicBool,
}

impl Linked {
    fn check(&self) -> Result<(), Error> {
        match self.is_gone.load(SeqCst) {
            true => Err(Error::new(ErrorKind::Disconnected, self.name(), "it is gone")),
            false => Ok(()),
        }
    }
}

impl BlockDevice for Linked {
    fn name(&self) -> &str {
        self.disk.name()
    }

    fn geometry(&self) -> Geometry {
        self.disk.geometry()
    }

    fn read(&self, range: BlockRange, into: Buffer) -> BoxFuture<'_, Result<Buffer, Error>> {
        Box::pin(async move {
            self.check()?;
            self.disk.read(range, into).await
        })
    }

    fn write(
        &self,
        range: BlockRange,
        from: Bytes,
        durable: bool,
    ) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            self.check()?;
            self.disk.write(range, from, durable).await
        })
    }

    fn flush(&self) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            self.check()?;
            self.disk.flush().await
        })
    }

    fn sparse(&self) -> Option<&dyn Sparse> {
        self.disk.sparse()
    }

    fn link(&self) -> Option<DeviceLink> {
        let is_gone = self.is_gone.load(SeqCst);
        Some(if is_gone { DeviceLink::Failed } else { DeviceLink::Connected })
    }

    fn io_tier(&self) -> String {
        self.disk.io_tier()
    }
}
