//! Losses of acknowledged writes.

use super::rig::{REGION, Rig, marks_go, without_recovery};
use crate::common::{DATA_START, Device, VolatileDevice, filled, first_byte, memories};
use lunar_block::{BlockDevice, BlockRange, Effect, ErrorKind, Fault, FaultOperation};
use lunar_pool::{MemberState, OpenOptions, Pool, PoolSpec};
use std::sync::Arc;
use std::time::Duration;

const ALL: u64 = 1;

/// A mirror in which block 0 is 1, flushed, and then 2, not flushed.
async fn rig() -> Rig {
    let rig = Rig::new(2).await;
    rig.write(0, 1).await;
    rig.pool.flush().await.unwrap();
    rig.write(0, 2).await;
    rig
}

impl Rig {
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
    let rig = rig().await;
    rig.cut_power().await;
    assert!(rig.try_write(5 * REGION, 4).await.is_err());
    rig.assert_reported_once().await;
}

/// Goal: the same if a read, a flush of another user of the members, or nothing comes first.
#[tokio::test(start_paused = true)]
async fn other_calls_hide_no_loss() {
    for first in 0..4 {
        let rig = rig().await;
        rig.cut_power().await;
        match first {
            0 => assert_eq!(rig.byte(0).await, 1),
            1 => {
                for cache in &rig.caches {
                    assert!(cache.flush().await.is_err(), "another user of the member");
                }
            }
            2 => drop(rig.try_write(1, 5).await),
            _ => {}
        }
        rig.assert_reported_once().await;
    }
}

/// Goal: the label that records the failure of another member hides no loss.
#[tokio::test(start_paused = true)]
async fn the_label_hides_no_loss() {
    let rig = rig().await;
    rig.caches[1].cut_power(&mut 0, ALL).await;
    rig.fail_write(0, 8);
    let _ = rig.try_write(8, 4).await;
    let losses = rig.pool.cache_losses().unwrap();
    let flushed = rig.pool.flush().await;
    assert!(losses == 0 || flushed.is_err());
    if flushed.is_ok() {
        assert_eq!(rig.byte(0).await, 2);
    }
    rig.pool.flush().await.unwrap();
}

/// Goal: a loss of one member is none of the pool: reads return the acknowledged data at once.
#[tokio::test(start_paused = true)]
async fn a_loss_of_one_member_is_none_of_the_pool() {
    for member in 0..2 {
        let rig = rig().await;
        rig.caches[member].cut_power(&mut 0, ALL).await;
        for _ in 0..20 {
            assert_eq!(rig.byte(0).await, 2, "member {member}");
        }
        rig.pool.flush().await.unwrap();
        assert_eq!(rig.pool.cache_losses(), Some(0));
        rig.until_healthy().await;
        assert_eq!(rig.byte_on(member, 0).await, 2);
    }
}

/// Goal: a copy from the only member, which has lost its last write, hides no loss.
#[tokio::test(start_paused = true)]
async fn a_copy_hides_no_loss() {
    let rig = Rig::new(2).await;
    rig.fail_write(1, 8);
    rig.write(8, 4).await;
    rig.write(0, 1).await;
    rig.pool.flush().await.unwrap();
    rig.write(0, 2).await;
    rig.caches[0].cut_power(&mut 0, ALL).await;
    rig.until_healthy().await;
    rig.assert_reported_once().await;
}

/// Goal: all flushes that began before a loss was reported fail, and no later one.
#[tokio::test(start_paused = true)]
async fn every_earlier_flush_fails() {
    let rig = rig().await;
    for member in 0..2 {
        rig.inject(member, Effect::Hang, FaultOperation::Flush);
    }
    let (mut one, mut two) = (rig.pool.flush(), rig.pool.flush());
    for flush in [&mut one, &mut two] {
        assert!(futures_util::poll!(flush).is_pending());
    }
    rig.cut_power().await;
    rig.faults.iter().for_each(|fault| {
        fault.heal();
        fault.release();
    });
    let (one, two) = futures_util::future::join(one, two).await;
    assert!(one.is_err() && two.is_err());
    rig.pool.flush().await.unwrap();
}

/// Goal: closing reports a loss that no flush has reported, and leaves a member out that lost data.
#[tokio::test(start_paused = true)]
async fn closing_hides_no_loss() {
    let both = rig().await;
    both.cut_power().await;
    let error = both.pool.close().await.unwrap_err();
    assert!(error.to_string().contains("may be lost"), "{error}");
    for member in 0..2 {
        let one = rig().await;
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
    let rig = rig().await;
    let fault = Fault::new(Effect::Fail(ErrorKind::Medium)).on(FaultOperation::Flush);
    rig.faults.iter().for_each(|member| member.inject(fault.times(1)));
    assert!(rig.pool.flush().await.is_err());
    assert!(rig.pool.flush().await.is_err(), "the member refuses writes");
    rig.pool.recover().await.unwrap();
    // This fault only counts the writes of the block.
    let counter = Fault::new(Effect::Delay(Duration::ZERO)).on(FaultOperation::Write);
    rig.faults[0].inject(counter.at(BlockRange::new(DATA_START, 1)));
    let written = rig.faults[0].fired();
    while rig.pool.flush().await.is_err() {}
    assert!(rig.faults[0].fired() > written, "the block is written again");
    assert_eq!(rig.byte(0).await, 2);
    rig.until_healthy().await;
    rig.assert_same().await;
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
