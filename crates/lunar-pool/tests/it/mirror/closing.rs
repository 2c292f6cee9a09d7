//! The end of a mirror.

use super::bench::{Bench, REGION, without_recovery};
use lunar_block::{BlockDevice, BlockRange, Effect, ErrorKind, FaultOperation};
use lunar_pool::{OpenOptions, PoolHealth};
use std::sync::Arc;
use std::time::Duration;

/// Goal: a closed mirror refuses calls, holds nothing of its members when it is dropped, and opens
/// without copies.
#[tokio::test(start_paused = true)]
async fn closed_mirrors() {
    let bench = Bench::new(2).await;
    bench.write(0, 1).await;
    bench.pool.close().await.unwrap();
    bench.pool.close().await.unwrap();
    assert_eq!(bench.try_write(0, 2).await.map_err(|error| error.kind), Err(ErrorKind::Open));
    assert!(bench.pool.flush().await.is_err());
    let mut into = vec![0; 512];
    assert!(!bench.pool.try_read_now(BlockRange::new(0, 1), &mut into));
    let (disks, faults) = (bench.disks.clone(), bench.faults.clone());
    drop(bench);
    assert!(faults.iter().all(|fault| Arc::strong_count(fault) == 1), "a task holds a member");
    let bench = Bench::open(disks, 1, OpenOptions::default()).await.unwrap();
    assert_eq!(bench.pool.status().health, PoolHealth::Healthy);
}

/// Goal: a mirror that is dropped while it waits for a recovery ends its tasks.
#[tokio::test(start_paused = true)]
async fn dropped_mirrors_end_their_tasks() {
    let bench = Bench::new(2).await;
    bench.fail_write(1, 0);
    bench.write(0, 1).await;
    let faults = bench.faults.clone();
    tokio::task::yield_now().await;
    drop(bench);
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert!(faults.iter().all(|fault| Arc::strong_count(fault) == 1), "a task holds a member");
}

/// Goal: closing ends in bounded time although a change hangs, and the next opening copies what may
/// differ.
#[tokio::test(start_paused = true)]
async fn closing_does_not_wait_for_ever() {
    let bench = Bench::new(2).await;
    bench.write(0, 1).await;
    bench.faults.iter().enumerate().for_each(|(member, _)| {
        bench.inject(member, Effect::Hang, FaultOperation::Write);
    });
    {
        let mut write = std::pin::pin!(bench.write(0, 2));
        assert!(futures_util::poll!(&mut write).is_pending());
    }
    let error = bench.pool.close().await.unwrap_err();
    assert!(error.to_string().contains("did not end in time"), "{error}");
    let bench = bench.crash_and_reopen(without_recovery()).await.unwrap();
    assert_eq!(bench.pool.status().members[1].missing_bytes, REGION * 512);
    bench.until_healthy().await;
    bench.assert_same().await;
}
