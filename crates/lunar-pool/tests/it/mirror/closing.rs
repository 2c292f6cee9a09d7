//! The end of a mirror.

use super::rig::{BLOCKS, REGION, Rig, without_recovery};
use crate::common::filled;
use lunar_block::{
    BlockDevice, BlockRange, Effect, ErrorKind, FairDevice, FaultOperation, IoContext, MemoryOwner,
};
use lunar_pool::{OpenOptions, PoolHealth};
use std::sync::Arc;
use std::time::Duration;

/// Goal: a closed mirror refuses calls, holds nothing of its members when it is dropped, and opens
/// without copies.
#[tokio::test(start_paused = true)]
async fn closed_mirrors() {
    let rig = Rig::new(2).await;
    rig.write(0, 1).await;
    rig.pool.close().await.unwrap();
    rig.pool.close().await.unwrap();
    assert_eq!(rig.try_write(0, 2).await.map_err(|error| error.kind), Err(ErrorKind::Open));
    assert!(rig.pool.flush().await.is_err());
    let mut into = vec![0; 512];
    assert!(!rig.pool.try_read_now(BlockRange::new(0, 1), &mut into));
    let (disks, faults) = (rig.disks.clone(), rig.faults.clone());
    drop(rig);
    assert!(faults.iter().all(|fault| Arc::strong_count(fault) == 1), "a task holds a member");
    let rig = Rig::open(disks, 1, OpenOptions::default()).await.unwrap();
    assert_eq!(rig.pool.status().health, PoolHealth::Healthy);
}

/// Goal: a mirror that is dropped while it waits for a recovery ends its tasks.
#[tokio::test(start_paused = true)]
async fn dropped_mirrors_end_their_tasks() {
    let rig = Rig::new(2).await;
    rig.fail_write(1, 0);
    rig.write(0, 1).await;
    let faults = rig.faults.clone();
    tokio::task::yield_now().await;
    drop(rig);
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert!(faults.iter().all(|fault| Arc::strong_count(fault) == 1), "a task holds a member");
}

/// Goal: closing ends in bounded time although a change hangs, and the next opening copies what may
/// differ.
#[tokio::test(start_paused = true)]
async fn closing_does_not_wait_for_ever() {
    let rig = Rig::new(2).await;
    rig.write(0, 1).await;
    rig.faults.iter().enumerate().for_each(|(member, _)| {
        rig.inject(member, Effect::Hang, FaultOperation::Write);
    });
    {
        let mut write = std::pin::pin!(rig.write(0, 2));
        assert!(futures_util::poll!(&mut write).is_pending());
    }
    let error = rig.pool.close().await.unwrap_err();
    assert!(error.to_string().contains("did not end in time"), "{error}");
    let rig = rig.crash_and_reopen(without_recovery()).await.unwrap();
    assert_eq!(rig.pool.status().members[1].missing_bytes, REGION * 512);
    rig.until_healthy().await;
    rig.assert_same().await;
}

/// Goal: a stop alongside many writes at slow members waits for those that the members have, at
/// most for the limit of a closing; the others, whose sessions are gone, are not sent. What was
/// acknowledged is on the disks.
#[tokio::test(start_paused = true)]
async fn closing_beside_many_writes() {
    const MEMBER_TIME: Duration = Duration::from_millis(1500);
    const WRITES: u64 = 1300;
    const HOSTS: usize = 11;
    let rig = Rig::new(2).await;
    for member in 0..2 {
        rig.inject(member, Effect::Delay(MEMBER_TIME), FaultOperation::Write);
    }
    let served = FairDevice::new(Arc::clone(&rig.pool) as Arc<dyn BlockDevice>);
    let hosts: Vec<Arc<MemoryOwner>> = (0..HOSTS).map(|_| Arc::default()).collect();
    let write = |number: u64| {
        let (served, context) =
            (Arc::clone(&served), IoContext::new(&hosts[number as usize % HOSTS]));
        Box::pin(async move {
            let range = BlockRange::new(number.min(BLOCKS - 1), 1);
            context.scope(served.write(range, filled(7, 1), false)).await
        })
    };
    write(0).await.unwrap();
    let before = rig.faults[0].seen(FaultOperation::Write);
    let mut writes: Vec<_> = (1..=WRITES).map(write).collect();
    for write in &mut writes {
        assert!(futures_util::poll!(write).is_pending());
    }
    tokio::time::sleep(MEMBER_TIME / 2).await;
    drop(writes);
    let begun = tokio::time::Instant::now();
    rig.pool.close().await.unwrap();
    assert!(begun.elapsed() <= Duration::from_secs(10), "{:?}", begun.elapsed());
    let sent = rig.faults[0].seen(FaultOperation::Write) - before;
    assert!(sent < WRITES / 4, "{sent} writes were sent");
    assert_eq!([rig.byte_on(0, 0).await, rig.byte_on(1, 0).await], [7, 7]);
    rig.assert_same().await;
}
