//! The return of members whose devices were missing at the opening.

use super::rig::{BLOCKS, Rig, degraded};
use crate::common::{DATA_START, Device, memories, read, snapshots};
use lunar_pool::{MemberState, OpenOptions, Pool, PoolError, PoolSpec};

/// Opens a mirror of two without its second member. Returns this, too.
async fn without_second() -> (Rig, Device) {
    let rig = Rig::new(2).await;
    rig.write(0, 1).await;
    rig.pool.close().await.unwrap();
    let disks = rig.disks.clone();
    drop(rig);
    let first = vec![disks[0].clone()];
    (Rig::open(first, 1, degraded()).await.unwrap(), disks[1].clone())
}

/// Goal: a member that returns gets everything, and is current after it; the next opening finds
/// both members.
#[tokio::test(start_paused = true)]
async fn a_member_returns() {
    let (rig, second) = without_second().await;
    rig.write(0, 2).await;
    rig.write(BLOCKS - 1, 3).await;
    assert_eq!(rig.state(1), MemberState::Missing);
    assert_eq!(rig.pool.rejoin(second.clone()).await.unwrap(), 1);
    rig.write(1, 4).await;
    rig.until_healthy().await;
    rig.pool.close().await.unwrap();
    let first = read(&*rig.disks[0], DATA_START, BLOCKS).await;
    assert!(first == read(&*second, DATA_START, BLOCKS).await);
    let both = vec![second, rig.disks[0].clone()];
    drop(rig);
    let both = Rig::open(both, 1, OpenOptions::default()).await.unwrap();
    assert_eq!(both.pool.status().copied_bytes, 0);
    assert_eq!((both.byte(0).await, both.byte(BLOCKS - 1).await), (2, 3));
}

/// Goal: a device is refused that has no label, belongs to another pool, was written without the
/// others, or whose slot is taken or vacant; nothing is written to it, and the mirror continues.
#[tokio::test(start_paused = true)]
async fn devices_that_do_not_belong() {
    let (rig, second) = without_second().await;
    let copy = snapshots(std::slice::from_ref(&second)).await.remove(0);
    let refused = async |device: &Device| {
        let before = read(&**device, 0, device.geometry().block_count).await;
        let error = rig.pool.rejoin(device.clone()).await.unwrap_err();
        assert!(before == read(&**device, 0, device.geometry().block_count).await, "{error}");
        error
    };
    let new = memories(3, BLOCKS * 512);
    assert!(matches!(refused(&new[0]).await, PoolError::NotAMember { .. }));
    Pool::create(PoolSpec::Mirror { erase: true }, new[1..].to_vec()).await.unwrap();
    assert!(matches!(refused(&new[1]).await, PoolError::Foreign { .. }));
    let alone = Rig::open(vec![copy.clone()], 1, degraded()).await.unwrap();
    alone.write(0, 9).await;
    alone.pool.close().await.unwrap();
    drop(alone);
    assert!(matches!(refused(&copy).await, PoolError::Split(_)));
    rig.pool.rejoin(second.clone()).await.unwrap();
    rig.until_healthy().await;
    let twin = snapshots(&[second]).await.remove(0);
    assert!(matches!(refused(&twin).await, PoolError::Cloned { slot: 1, .. }));
    rig.pool.add(new[0].clone()).await.unwrap();
    rig.until_healthy().await;
    rig.pool.remove(1).await.unwrap();
    assert!(matches!(refused(&twin).await, PoolError::NoSuchMember { slot: 1 }));
    assert_eq!(rig.byte(0).await, 1);
}
