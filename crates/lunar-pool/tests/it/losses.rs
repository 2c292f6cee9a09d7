//! Losses of acknowledged writes reach every user of a pool.

use crate::common::{Device, VolatileDevice, filled, first_byte, memories};
use lunar_block::{BlockDevice, BlockRange, Effect, ErrorKind, Fault, FaultDevice, FaultOperation};
use lunar_pool::{OpenOptions, Pool, PoolSpec};
use std::sync::Arc;

const ALL: u64 = 1;

fn volatile(count: usize) -> (Vec<Arc<VolatileDevice>>, Vec<Device>) {
    let members: Vec<_> = memories(count, 1 << 20).into_iter().map(VolatileDevice::new).collect();
    let devices = members.iter().map(|member| Arc::clone(member) as Device).collect();
    (members, devices)
}

async fn open(spec: PoolSpec, members: Vec<Device>) -> Arc<Pool> {
    Pool::create(spec, members.clone()).await.unwrap();
    Pool::open("pool", members, OpenOptions::default()).await.unwrap()
}

async fn write(pool: &dyn BlockDevice, lba: u64, value: u8) {
    pool.write(BlockRange::new(lba, 1), filled(value, 1), false).await.unwrap();
}

/// Goal: a loss of one member fails one flush of the pool, also if another flush of the member has
/// consumed its report; every user sees it in the count.
#[tokio::test]
async fn a_loss_of_one_member_is_a_loss_of_the_pool() {
    for spec in [PoolSpec::Concat, PoolSpec::Stripe { unit_bytes: 4096 }] {
        let (members, devices) = volatile(2);
        let pool = open(spec, devices).await;
        write(&*pool, 0, 1).await;
        pool.flush().await.unwrap();
        for is_consumed in [false, true] {
            write(&*pool, 0, 2).await;
            let before = pool.cache_losses().unwrap();
            members[0].cut_power(&mut 0, ALL).await;
            if is_consumed {
                assert!(members[0].flush().await.is_err(), "another user of the member");
            }
            assert_eq!(pool.cache_losses(), Some(before + 1));
            assert_eq!(first_byte(&*pool, 0).await, 1);
            let kind = pool.flush().await.map_err(|error| error.kind);
            assert_eq!(kind, Err(ErrorKind::Medium), "{spec:?} {is_consumed}");
            pool.flush().await.unwrap();
        }
    }
}

/// Goal: two flushes that began before a loss both fail.
#[tokio::test]
async fn every_earlier_flush_fails() {
    let (members, devices) = volatile(2);
    let faults = FaultDevice::new(Arc::clone(&devices[1]), 1);
    let devices = vec![Arc::clone(&devices[0]), Arc::clone(&faults) as Device];
    let pool = open(PoolSpec::Concat, devices).await;
    write(&*pool, 0, 1).await;
    faults.inject(Fault::new(Effect::Hang).on(FaultOperation::Flush).times(2));
    let (mut one, mut two) = (pool.flush(), pool.flush());
    for flush in [&mut one, &mut two] {
        assert!(futures_util::poll!(flush).is_pending());
    }
    write(&*pool, 0, 2).await;
    members[0].cut_power(&mut 0, ALL).await;
    faults.release();
    assert!(one.await.is_err() && two.await.is_err());
    assert!(members[0].flush().await.is_err());
    pool.flush().await.unwrap();
}

/// Goal: a stripe of concatenations passes the loss of the lowest member on: the labels fill the
/// first member of each half.
#[tokio::test]
async fn nested_pools_pass_losses_on() {
    let (members, devices) = volatile(4);
    let mut halves: Vec<Device> = Vec::new();
    for pair in devices.chunks(2) {
        halves.push(open(PoolSpec::Concat, pair.to_vec()).await);
    }
    let pool = open(PoolSpec::Stripe { unit_bytes: 4096 }, halves).await;
    write(&*pool, 8, 1).await;
    pool.flush().await.unwrap();
    write(&*pool, 8, 2).await;
    members[3].cut_power(&mut 0, ALL).await;
    assert!(pool.flush().await.is_err());
    pool.flush().await.unwrap();
    assert_eq!(first_byte(&*pool, 8).await, 1);
}

/// Goal: a member that refuses writes after a failed flush makes every flush of the pool fail until
/// it is recovered.
#[tokio::test]
async fn a_poisoned_member_poisons_the_pool() {
    let disks = memories(2, 1 << 20);
    let faults = FaultDevice::new(Arc::clone(&disks[0]), 1);
    let devices = vec![Arc::clone(&faults) as Device, Arc::clone(&disks[1])];
    let pool = open(PoolSpec::Stripe { unit_bytes: 4096 }, devices).await;
    assert_eq!(pool.cache_losses(), None);
    let fault = Fault::new(Effect::Fail(ErrorKind::Medium)).on(FaultOperation::Flush);
    faults.inject(fault.times(1));
    assert!(pool.flush().await.is_err() && pool.flush().await.is_err());
    assert!(pool.sync_counts().unwrap().poisoned);
    pool.recover().await.unwrap();
    pool.flush().await.unwrap();
    assert!(!pool.sync_counts().unwrap().poisoned);
}
