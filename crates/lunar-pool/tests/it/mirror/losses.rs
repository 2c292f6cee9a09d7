//! Losses of acknowledged writes.

use super::bench::{Bench, REGION, marks_go, without_recovery};
use crate::common::{DATA_START, Device, VolatileDevice, filled, first_byte, memories};
use lunar_block::{BlockDevice, BlockRange, Effect, ErrorKind, Fault, FaultOperation};
use lunar_pool::{MemberState, OpenOptions, Pool, PoolSpec};
use std::sync::Arc;
use std::time::Duration;

const ALL: u64 = 1;

/// A mirror in which block 0 is 1, flushed, and then 2, not flushed.
async fn bench() -> Bench {
    let bench = Bench::new(2).await;
    bench.write(0, 1).await;
    bench.pool.flush().await.unwrap();
    bench.write(0, 2).await;
    bench
}

impl Bench {
    async fn cut_power(&self) {
        for cache in &self.caches {
            cache.cut_power(&mut 0, ALL).await;
        }
    }

    /// Checks that exactly one flush reports a loss, and that the pool works after it.
    async fn assert_reported_once(&self) {
        assert!(self.pool.cache_losses().unwrap() > 0, "the loss is counted");
        assert_eq!(self.byte(0).await, 1, "the content of a member");
        assert!(self.pool.flush().await.is_err());
        self.pool.flush().await.unwrap();
        self.write(0, 3).await;
        self.pool.flush().await.unwrap();
        assert_eq!(self.byte(0).await, 3);
        self.until_healthy().await;
        self.assert_same().await;
    }
}

/// Fault of the Java pool: both members lost power; the first call afterwards was a write to an
/// unmarked region, whose intent page consumed the reports of the loss. The flush then succeeded,
/// and acknowledged data was gone.
#[tokio::test(start_paused = true)]
async fn the_intent_page_hides_no_loss() {
    let bench = bench().await;
    bench.cut_power().await;
    assert!(bench.try_write(5 * REGION, 4).await.is_err());
    bench.assert_reported_once().await;
}

/// Goal: the same if a read, a flush of another user of the members, or nothing comes first.
#[tokio::test(start_paused = true)]
async fn other_calls_hide_no_loss() {
    for first in 0..4 {
        let bench = bench().await;
        bench.cut_power().await;
        match first {
            0 => assert_eq!(bench.byte(0).await, 1),
            1 => {
                for cache in &bench.caches {
                    assert!(cache.flush().await.is_err(), "another user of the member");
                }
            }
            2 => drop(bench.try_write(1, 5).await),
            _ => {}
        }
        bench.assert_reported_once().await;
    }
}

/// Goal: the label that records the failure of another member hides no loss.
#[tokio::test(start_paused = true)]
async fn the_label_hides_no_loss() {
    let bench = bench().await;
    bench.caches[1].cut_power(&mut 0, ALL).await;
    bench.fail_write(0, 8);
    let _ = bench.try_write(8, 4).await;
    let losses = bench.pool.cache_losses().unwrap();
    let flushed = bench.pool.flush().await;
    assert!(losses == 0 || flushed.is_err());
    if flushed.is_ok() {
        assert_eq!(bench.byte(0).await, 2);
    }
    bench.pool.flush().await.unwrap();
}

/// Goal: a loss of one member is none of the pool: reads return the acknowledged data at once.
#[tokio::test(start_paused = true)]
async fn a_loss_of_one_member_is_none_of_the_pool() {
    for member in 0..2 {
        let bench = bench().await;
        bench.caches[member].cut_power(&mut 0, ALL).await;
        for _ in 0..20 {
            assert_eq!(bench.byte(0).await, 2, "member {member}");
        }
        bench.pool.flush().await.unwrap();
        assert_eq!(bench.pool.cache_losses(), Some(0));
        bench.until_healthy().await;
        assert_eq!(bench.byte_on(member, 0).await, 2);
    }
}

/// Goal: a copy from the only member, which has lost its last write, hides no loss.
#[tokio::test(start_paused = true)]
async fn a_copy_hides_no_loss() {
    let bench = Bench::new(2).await;
    bench.fail_write(1, 8);
    bench.write(8, 4).await;
    bench.write(0, 1).await;
    bench.pool.flush().await.unwrap();
    bench.write(0, 2).await;
    bench.caches[0].cut_power(&mut 0, ALL).await;
    bench.until_healthy().await;
    bench.assert_reported_once().await;
}

/// Goal: all flushes that began before a loss was reported fail, and no later one.
#[tokio::test(start_paused = true)]
async fn every_earlier_flush_fails() {
    let bench = bench().await;
    for member in 0..2 {
        bench.inject(member, Effect::Hang, FaultOperation::Flush);
    }
    let (mut one, mut two) = (bench.pool.flush(), bench.pool.flush());
    for flush in [&mut one, &mut two] {
        assert!(futures_util::poll!(flush).is_pending());
    }
    bench.cut_power().await;
    bench.faults.iter().for_each(|fault| {
        fault.heal();
        fault.release();
    });
    let (one, two) = futures_util::future::join(one, two).await;
    assert!(one.is_err() && two.is_err());
    bench.pool.flush().await.unwrap();
}

/// Goal: closing reports a loss that no flush has reported, and leaves a member out that lost data.
#[tokio::test(start_paused = true)]
async fn closing_hides_no_loss() {
    let both = bench().await;
    both.cut_power().await;
    let error = both.pool.close().await.unwrap_err();
    assert!(error.to_string().contains("may be lost"), "{error}");
    for member in 0..2 {
        let one = bench().await;
        one.caches[member].cut_power(&mut 0, ALL).await;
        let error = one.pool.close().await.unwrap_err();
        assert!(error.to_string().contains("it is left out"), "{error}");
        let one = one.crash_and_reopen(without_recovery()).await.unwrap();
        assert_eq!(one.byte(0).await, 2, "member {member}");
        one.until_healthy().await;
        one.assert_same().await;
    }
}

/// Goal: the regions of the last writes are written again before a flush succeeds after a loss: a
/// failed flush may have left them in a cache that counts them as clean.
#[tokio::test(start_paused = true)]
async fn unflushed_regions_are_written_again() {
    let bench = bench().await;
    let fault = Fault::new(Effect::Fail(ErrorKind::Medium)).on(FaultOperation::Flush);
    bench.faults.iter().for_each(|member| member.inject(fault.times(1)));
    assert!(bench.pool.flush().await.is_err());
    assert!(bench.pool.flush().await.is_err(), "the member refuses writes");
    bench.pool.recover().await.unwrap();
    // This fault only counts the writes of the block.
    let counter = Fault::new(Effect::Delay(Duration::ZERO)).on(FaultOperation::Write);
    bench.faults[0].inject(counter.at(BlockRange::new(DATA_START, 1)));
    let written = bench.faults[0].fired();
    while bench.pool.flush().await.is_err() {}
    assert!(bench.faults[0].fired() > written, "the block is written again");
    assert_eq!(bench.byte(0).await, 2);
    bench.until_healthy().await;
    bench.assert_same().await;
}

/// Goal: a stripe of mirrors passes the loss of a mirror on, once, and the other mirror has its
/// data.
#[tokio::test(start_paused = true)]
async fn stripes_of_mirrors_pass_losses_on() {
    let mut caches = Vec::new();
    let mut mirrors: Vec<Device> = Vec::new();
    for _ in 0..2 {
        let pair: Vec<_> = memories(2, 4 << 20).into_iter().map(VolatileDevice::new).collect();
        let members: Vec<Device> = pair.iter().map(|cache| Arc::clone(cache) as Device).collect();
        Pool::create(PoolSpec::Mirror { erase: false }, members.clone()).await.unwrap();
        let mirror = Pool::open("half", members, OpenOptions::default()).await.unwrap();
        while mirror.status().members[1].state != MemberState::Current {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        mirrors.push(mirror);
        caches.extend(pair);
    }
    let spec = PoolSpec::Stripe { unit_bytes: 4096 };
    Pool::create(spec, mirrors.clone()).await.unwrap();
    let pool = Pool::open("pool", mirrors, OpenOptions::default()).await.unwrap();
    let range = BlockRange::new(0, 16);
    pool.write(range, filled(1, 16), false).await.unwrap();
    pool.flush().await.unwrap();
    marks_go().await;
    pool.write(range, filled(2, 16), false).await.unwrap();
    for cache in &caches[..2] {
        cache.cut_power(&mut 0, ALL).await;
    }
    let unmarked = BlockRange::new(20 * REGION, 1);
    assert!(pool.write(unmarked, filled(4, 1), false).await.is_err());
    assert_eq!(first_byte(&*pool, 0).await, 1);
    assert_eq!(first_byte(&*pool, 8).await, 2, "of the other mirror");
    assert!(pool.flush().await.is_err());
    pool.flush().await.unwrap();
}
