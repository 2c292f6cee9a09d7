//! Mirrors that get more or fewer members.

use super::rig::{BLOCKS, REGION, Rig, without_recovery};
use crate::common::{DATA_START, Device, filled, memories, memory};
use lunar_block::{BlockDevice, BlockRange, Effect, ErrorKind, Fault, FaultDevice, FaultOperation};
use lunar_pool::{MemberState, OpenOptions, Pool, PoolError, PoolHealth, PoolSpec};

fn new_disk() -> Device {
    memories(1, BLOCKS * 512).remove(0)
}

impl Rig {
    async fn add_disk(&mut self) -> u16 {
        let disk = new_disk();
        let junk = BlockRange::new(DATA_START, BLOCKS);
        disk.write(junk, filled(0xee, BLOCKS), false).await.unwrap();
        self.disks.push(disk.clone());
        self.pool.add(disk).await.unwrap()
    }

    fn slots(&self) -> Vec<u16> {
        self.pool.status().members.iter().map(|member| member.slot).collect()
    }

    /// Closes the pool and opens it with the same disks.
    async fn reopen(self) -> Self {
        self.pool.close().await.unwrap();
        let disks = self.disks.clone();
        drop(self);
        Self::open(disks, 1, OpenOptions::default()).await.unwrap()
    }
}

/// Goal: members come and go while the mirror is in use; what is written meanwhile is on all of
/// them, and the next opening needs and copies nothing more.
#[tokio::test(start_paused = true)]
async fn members_come_and_go() {
    let mut rig = Rig::new(2).await;
    rig.write(0, 1).await;
    assert_eq!(rig.add_disk().await, 2);
    assert_eq!(rig.pool.status().health, PoolHealth::Degraded);
    rig.write(REGION, 2).await;
    rig.until_healthy().await;
    rig.assert_same().await;
    let mut rig = rig.reopen().await;
    assert_eq!(rig.pool.status().copied_bytes, 0);
    assert_eq!(rig.add_disk().await, 3);
    rig.until_healthy().await;
    rig.pool.remove(1).await.unwrap();
    let removed = rig.disks.remove(1);
    assert_eq!((rig.slots(), rig.pool.status().health), (vec![0, 2, 3], PoolHealth::Healthy));
    rig.write(REGION, 3).await;
    rig.assert_same().await;
    assert!(matches!(rig.pool.replace(1, new_disk()).await, Err(PoolError::NoSuchMember { .. })));
    let mut rig = rig.reopen().await;
    assert_eq!((rig.slots(), rig.pool.status().copied_bytes), (vec![0, 2, 3], 0));
    Pool::create(PoolSpec::Concat, vec![removed, new_disk()]).await.expect("its label is gone");
    assert_eq!(rig.add_disk().await, 1, "the first vacant slot");
    rig.until_healthy().await;
    rig.pool.remove(3).await.unwrap();
    rig.disks.remove(2);
    rig.pool.remove(2).await.unwrap();
    rig.disks.remove(1);
    let rig = rig.reopen().await;
    assert_eq!((rig.slots(), rig.byte(REGION).await), (vec![0, 1], 3));
    rig.assert_same().await;
    assert!(matches!(rig.pool.remove(1).await, Err(PoolError::TooFewMembers)));
}

/// Goal: a removed device whose label could not be cleared is ignored at later openings, also when
/// another device has its slot; it is neither read nor written.
#[tokio::test(start_paused = true)]
async fn removed_devices_do_not_return() {
    for slot in [1, 2] {
        let rig = Rig::new(3).await;
        rig.write(0, 1).await;
        rig.pool.flush().await.unwrap();
        rig.inject(slot, Effect::Fail(ErrorKind::Disconnected), FaultOperation::Write);
        rig.pool.remove(slot as u16).await.unwrap();
        rig.write(0, 2).await;
        let mut rig = rig.reopen().await;
        let rest: Vec<u16> = (0..3).filter(|other| usize::from(*other) != slot).collect();
        assert_eq!(rig.slots(), rest);
        rig.write(0, 3).await;
        tokio::time::sleep(std::time::Duration::from_secs(600)).await;
        assert_eq!(rig.byte_on(slot, 0).await, 1);
        assert_eq!(rig.add_disk().await, slot as u16);
        rig.until_healthy().await;
        let rig = rig.reopen().await;
        assert_eq!(rig.byte(0).await, 3);
        assert_eq!(rig.byte_on(slot, 0).await, 1);
        assert_eq!(rig.pool.status().health, PoolHealth::Healthy);
        let error = Pool::create(PoolSpec::Concat, vec![rig.disks[slot].clone(), new_disk()]);
        assert!(matches!(error.await, Err(PoolError::InUse { .. })));
    }
}

/// Goal: stale and missing members are removed, too; one with data that no other has is not.
#[tokio::test(start_paused = true)]
async fn members_that_are_out() {
    let rig = Rig::new(4).await;
    rig.fail_write(3, 0);
    rig.write(0, 1).await;
    let disks = rig.disks[1..].to_vec();
    rig.pool.close().await.unwrap();
    drop(rig);
    let options = OpenOptions { is_degraded: true, ..without_recovery() };
    let rig = Rig::open(disks, 1, options).await.unwrap();
    assert_eq!((rig.state(0), rig.state(3)), (MemberState::Missing, MemberState::Stale));
    rig.pool.remove(0).await.unwrap();
    assert_eq!(rig.slots(), [1, 2, 3]);
    rig.inject(1, Effect::Fail(ErrorKind::Medium), FaultOperation::Write);
    rig.write(REGION, 2).await;
    let error = rig.pool.remove(1).await.unwrap_err();
    assert!(matches!(error, PoolError::LastCurrent { slot: 1, .. }), "{error}");
    rig.pool.remove(3).await.unwrap();
    assert_eq!(rig.slots(), [1, 2]);
    assert_eq!((rig.byte(0).await, rig.byte(REGION).await), (1, 2));
}

/// Goal: a device that does not fit, or fails, changes nothing.
#[tokio::test(start_paused = true)]
async fn refused_additions() {
    let rig = Rig::new(2).await;
    rig.write(0, 1).await;
    let generation = rig.pool.status().generation;
    for passes in 0..6 {
        let broken = FaultDevice::new(new_disk(), 1);
        let fault = Fault::new(Effect::Fail(ErrorKind::Medium)).on(FaultOperation::Write);
        broken.inject(fault.after(passes));
        let error = rig.pool.add(broken).await.unwrap_err();
        assert!(matches!(error, PoolError::Device(_)), "{passes}: {error}");
        assert_eq!(rig.slots(), [0, 1]);
    }
    let small = memory((BLOCKS - 1) * 512, 512, 512);
    assert!(matches!(rig.pool.add(small).await, Err(PoolError::TooSmall { .. })));
    assert_eq!(rig.pool.status().generation, generation);
    for spec in [PoolSpec::Concat, PoolSpec::Stripe { unit_bytes: 4096 }] {
        let members = memories(2, 1 << 20);
        Pool::create(spec, members.clone()).await.unwrap();
        let pool = Pool::open("pool", members, OpenOptions::default()).await.unwrap();
        let error = pool.add(new_disk()).await.unwrap_err();
        assert!(error.to_string().contains("cannot add a member: only a mirror can"), "{error}");
        assert!(matches!(pool.remove(1).await, Err(PoolError::NotAMirror { .. })));
    }
}

/// Goal: a mirror has at most 64 members.
#[tokio::test(start_paused = true)]
async fn no_more_than_64() {
    let mut rig = Rig::new(63).await;
    assert_eq!(rig.add_disk().await, 63);
    rig.until_healthy().await;
    assert!(matches!(rig.pool.add(new_disk()).await, Err(PoolError::MemberCount(65))));
    rig.pool.remove(5).await.unwrap();
    assert_eq!(rig.add_disk().await, 5);
}
