//! Creating and opening pools: members in any order, and those that do not belong.

use crate::common::{Device, memories, memory, read};
use lunar_block::{BlockDevice, BlockRange};
use lunar_pool::format::PoolKind;
use lunar_pool::{OpenOptions, Pool, PoolError, PoolSpec};
use std::sync::Arc;

const STRIPE: PoolSpec = PoolSpec::Stripe { unit_bytes: 4096 };

async fn try_open(members: &[Device]) -> Result<Arc<Pool>, PoolError> {
    Pool::open("pool", members.to_vec(), OpenOptions::default()).await
}

/// Copies a disk, as a backup program would.
async fn clone_of(disk: &Device) -> Device {
    let geometry = disk.geometry();
    let copy = lunar_block::MemoryDevice::new(geometry.size_bytes(), 512, 512).unwrap();
    let all = read(&**disk, 0, geometry.block_count).await;
    let range = BlockRange::new(0, geometry.block_count);
    copy.write(range, all, false).await.unwrap();
    Arc::new(copy)
}

/// Goal: members are found in any order, and the pool is the same.
#[tokio::test]
async fn any_order() {
    for spec in [PoolSpec::Concat, STRIPE] {
        let mut members = memories(3, 1 << 20);
        let id = Pool::create(spec, members.clone()).await.unwrap();
        for _ in 0..3 {
            members.rotate_left(1);
            let pool = try_open(&members).await.unwrap();
            assert_eq!(pool.id(), id);
            let status = pool.status();
            assert_eq!(status.members.len(), 3);
            assert!(matches!(pool.kind(), PoolKind::CONCAT | PoolKind::STRIPE));
        }
    }
}

/// Goal: each device that does not belong is refused with its reason.
#[tokio::test]
async fn devices_that_do_not_belong() {
    let members = memories(3, 1 << 20);
    let id = Pool::create(STRIPE, members.clone()).await.unwrap();
    let others = memories(2, 1 << 20);
    let other_id = Pool::create(PoolSpec::Concat, others.clone()).await.unwrap();
    let with = |slot: usize, device: &Device| {
        let mut changed = members.clone();
        changed[slot] = Arc::clone(device);
        changed
    };
    let refused = try_open(&with(1, &others[0])).await;
    assert!(matches!(refused, Err(PoolError::Foreign { pool, other_pool, .. })
        if (pool, other_pool) == (other_id, id)));
    let refused = try_open(&with(1, &memory(1 << 20, 512, 512))).await;
    assert!(matches!(refused, Err(PoolError::NotAMember { .. })));
    let refused = try_open(&with(1, &members[0])).await;
    assert!(matches!(refused, Err(PoolError::NamedTwice { .. })));
    let refused = try_open(&with(1, &clone_of(&members[0]).await)).await;
    assert!(matches!(refused, Err(PoolError::Cloned { slot: 0, .. })));
    let refused = try_open(&members[..2]).await.unwrap_err();
    assert!(matches!(&refused, PoolError::Missing { slots, .. } if *slots == [2]));
    assert_eq!(refused.to_string(), "member 2 of 3 missing");
    assert!(matches!(try_open(&[]).await, Err(PoolError::MemberCount(0))));
    let damaged = clone_of(&members[1]).await;
    for lba in [0, damaged.geometry().block_count - 8] {
        let mut label = read(&*damaged, lba, 8).await.to_vec();
        label[100] ^= 1;
        damaged.write(BlockRange::new(lba, 8), label.into(), true).await.unwrap();
    }
    let refused = try_open(&with(1, &damaged)).await.unwrap_err();
    assert!(refused.to_string().contains("its checksum is wrong"), "{refused}");
    try_open(&members).await.unwrap();
}

/// Goal: devices that cannot be members are refused, and nothing is written to any.
#[tokio::test]
async fn devices_that_cannot_be_members() {
    let good = memories(2, 1 << 20);
    let create = async |devices: Vec<Device>| Pool::create(STRIPE, devices).await.unwrap_err();
    let good_and = |device: Device| vec![Arc::clone(&good[0]), device];
    let small = Arc::new(lunar_block::MemoryDevice::new(1 << 20, 512, 512).unwrap());
    assert!(matches!(create(good_and(small)).await, PoolError::TooSmall { .. }));
    let no_unit = memory(512, 512, 512);
    assert!(matches!(create(good_and(no_unit)).await, PoolError::TooSmall { .. }));
    let blocks = memory(1 << 20, 4096, 4096);
    assert!(matches!(create(good_and(blocks)).await, PoolError::BlockLength { .. }));
    assert!(matches!(create(good[..1].to_vec()).await, PoolError::MemberCount(1)));
    let twice = good_and(Arc::clone(&good[0]));
    assert!(matches!(create(twice).await, PoolError::NamedTwice { .. }));
    for unit_bytes in [0, 100, 768, u32::MAX] {
        let spec = PoolSpec::Stripe { unit_bytes };
        let refused = Pool::create(spec, good.clone()).await;
        assert!(matches!(refused, Err(PoolError::Unit { .. })), "{unit_bytes}");
    }
    Pool::create(STRIPE, good.clone()).await.unwrap();
    assert!(matches!(create(good.clone()).await, PoolError::InUse { .. }));
    for member in &good {
        Pool::clear_label(Arc::clone(member)).await.unwrap();
        assert!(matches!(try_open(&good).await, Err(PoolError::NotAMember { .. })));
    }
    Pool::create(PoolSpec::Concat, good.clone()).await.unwrap();
}
