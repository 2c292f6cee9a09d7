//! Replacement of members.

use super::rig::{BLOCKS, REGION, Rig, WAIT, degraded};
use crate::common::{DATA_START, Device, filled, first_byte, memories, memory, read};
use lunar_block::{
    BlockDevice, BlockRange, Effect, ErrorKind, Fault, FaultDevice, FaultOperation, MemoryDevice,
};
use lunar_pool::{MemberState, OpenOptions, Pool, PoolError, PoolHealth, PoolSpec};
use std::sync::Arc;
use std::time::Duration;

impl Rig {
    /// Replaces the disk of a member by a new one with other contents.
    async fn replace_disk(&mut self, slot: u16) -> Result<Device, PoolError> {
        let disk = memories(1, BLOCKS * 512).remove(0);
        let junk = BlockRange::new(DATA_START, BLOCKS);
        disk.write(junk, filled(0xee, BLOCKS), false).await.unwrap();
        self.pool.replace(slot, Arc::clone(&disk)).await?;
        Ok(std::mem::replace(&mut self.disks[usize::from(slot)], disk))
    }
}

/// Goal: a current, a stale and a missing member are replaced; the new device gets everything,
/// also what is written meanwhile, and is a member at the next opening.
#[tokio::test(start_paused = true)]
async fn members_in_all_states_are_replaced() {
    for slot in 0..2 {
        for state in [MemberState::Current, MemberState::Stale, MemberState::Missing] {
            let mut rig = Rig::new(2).await;
            rig.write(0, 1).await;
            let member = usize::from(slot);
            match state {
                MemberState::Stale => {
                    rig.inject(member, Effect::Fail(ErrorKind::Medium), FaultOperation::Write);
                    rig.write(REGION, 2).await;
                }
                MemberState::Missing => {
                    rig.pool.close().await.unwrap();
                    let other = vec![rig.disks[1 - member].clone()];
                    let disks = rig.disks.clone();
                    rig = Rig::open(other, 1, degraded()).await.unwrap();
                    rig.disks = disks;
                }
                _ => {}
            }
            assert_eq!(rig.state(member), state);
            let old = rig.replace_disk(slot).await.unwrap();
            assert_ne!(rig.state(member), MemberState::Missing);
            rig.write(3, 3).await;
            rig.until_healthy().await;
            rig.assert_same().await;
            assert_eq!((rig.byte(0).await, rig.byte(3).await), (1, 3));
            rig.pool.close().await.unwrap();
            let disks = rig.disks.clone();
            let again = Rig::open(disks.clone(), 1, OpenOptions::default()).await.unwrap();
            assert_eq!(again.pool.status().health, PoolHealth::Healthy);
            drop(again);
            // The old device has a label of the same slot, which is older.
            let all = vec![old, disks[0].clone(), disks[1].clone()];
            let again = Rig::open(all, 1, OpenOptions::default()).await.unwrap();
            assert_eq!(again.pool.status().health, PoolHealth::Healthy);
            assert_eq!(again.byte(3).await, 3);
        }
    }
}

/// Goal: the only member with all data is not replaced, and neither are members of other pools;
/// devices that do not fit are refused before anything changes.
#[tokio::test(start_paused = true)]
async fn refused_replacements() {
    let rig = Rig::new(2).await;
    let generation = rig.pool.status().generation;
    let replace = async |slot, device| rig.pool.replace(slot, device).await.unwrap_err();
    let good = || memory(BLOCKS * 512, 512, 512);
    assert!(matches!(replace(2, good()).await, PoolError::NoSuchMember { slot: 2 }));
    let small = memory((BLOCKS - 1) * 512, 512, 512);
    assert!(matches!(replace(1, small).await, PoolError::TooSmall { .. }));
    let blocks = memory(BLOCKS * 512, 4096, 4096);
    assert!(matches!(replace(1, blocks).await, PoolError::BlockLength { .. }));
    let twice: Device = rig.faults[0].clone();
    assert!(matches!(replace(1, twice).await, PoolError::NamedTwice { .. }));
    assert!(matches!(replace(1, rig.disks[1].clone()).await, PoolError::InUse { .. }));
    let read_only = crate::common::read_only(good());
    assert!(matches!(replace(1, read_only).await, PoolError::ReadOnly { .. }));
    let broken = FaultDevice::new(good(), 1);
    broken.inject(Fault::new(Effect::Fail(ErrorKind::Medium)).on(FaultOperation::Write));
    assert!(matches!(replace(1, broken).await, PoolError::Device(_)));
    assert_eq!(rig.pool.status().generation, generation, "nothing has changed");
    assert_eq!(rig.pool.status().health, PoolHealth::Healthy);
    rig.fail_write(1, 0);
    rig.inject(1, Effect::Hang, FaultOperation::Write);
    rig.write(0, 1).await;
    assert!(matches!(replace(0, good()).await, PoolError::LastCurrent { slot: 0, .. }));
    let members = memories(2, 1 << 20);
    Pool::create(PoolSpec::Concat, members.clone()).await.unwrap();
    let concat = Pool::open("concat", members, OpenOptions::default()).await.unwrap();
    let error = concat.replace(0, good()).await.unwrap_err();
    assert_eq!(error.to_string(), "a concat cannot replace a member: only a mirror can");
}

/// Goal: a device that does not answer is not waited for, and the old member continues; the device
/// is refused until its writes have ended.
#[tokio::test(start_paused = true)]
async fn a_silent_new_device() {
    for passes in 0..8 {
        let rig = Rig::new(2).await;
        rig.write(0, 1).await;
        let new = FaultDevice::new(memory(BLOCKS * 512, 512, 512), 1);
        new.inject(Fault::new(Effect::Hang).on(FaultOperation::Write).after(passes).times(1));
        let replaced = rig.pool.replace(1, new.clone()).await;
        assert_eq!(replaced.is_ok(), passes >= 6, "{passes}: {replaced:?}");
        if replaced.is_err() {
            rig.until_healthy().await;
            let again = rig.pool.replace(1, new.clone()).await.unwrap_err();
            assert!(matches!(again, PoolError::Unsettled { .. }), "{again}");
            new.release();
            tokio::time::sleep(WAIT).await;
            Pool::clear_label(new.clone()).await.unwrap();
            rig.pool.replace(1, new.clone()).await.unwrap();
        } else {
            rig.until("silent", |_| new.hanging() == 1).await;
            rig.until("left out", |status| status.members[1].state == MemberState::Stale).await;
            new.release();
        }
        rig.until_healthy().await;
        assert_eq!(first_byte(&*new, DATA_START).await, 1);
        rig.write(0, 2).await;
        assert_eq!(first_byte(&*new, DATA_START).await, 2);
    }
}

/// Goal: a late write to the old device is no write to the new one, and nobody waits for it.
#[tokio::test(start_paused = true)]
async fn a_silent_old_device() {
    let mut rig = Rig::new(2).await;
    rig.write(8, 1).await;
    rig.inject(1, Effect::Hang, FaultOperation::Write);
    rig.write(0, 1).await;
    assert_eq!(rig.state(1), MemberState::Stale);
    let old = rig.replace_disk(1).await.unwrap();
    rig.until_healthy().await;
    rig.write(0, 2).await;
    rig.faults[1].heal();
    rig.faults[1].release();
    tokio::time::sleep(Duration::from_secs(600)).await;
    rig.assert_same().await;
    assert_eq!(first_byte(&*old, DATA_START).await, 1, "the late write, and nothing else");
}

/// Goal: a device with a label, also a damaged one, is refused: its data may be needed.
#[tokio::test(start_paused = true)]
async fn a_device_with_a_foreign_label() {
    let rig = Rig::new(2).await;
    let others = memories(2, BLOCKS * 512);
    let id = Pool::create(PoolSpec::Concat, others.clone()).await.unwrap();
    let error = rig.pool.replace(0, others[0].clone()).await.unwrap_err();
    assert!(matches!(error, PoolError::InUse { pool, .. } if pool == id));
    let junk = Arc::new(MemoryDevice::new(2 << 20, 512, 512).unwrap());
    let mut label = read(&*others[0], 0, 8).await.to_vec();
    label[100] ^= 1;
    junk.write(BlockRange::new(0, 8), label.into(), true).await.unwrap();
    let error = rig.pool.replace(0, junk).await.unwrap_err();
    assert!(matches!(error, PoolError::InUnknownUse { .. }), "{error}");
}
