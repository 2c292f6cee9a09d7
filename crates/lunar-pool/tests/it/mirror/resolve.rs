//! Split mirrors, and the decision which side is kept.

use super::rig::{BLOCKS, Rig, degraded};
use crate::common::{Device, LineDevice, PowerLine, filled, memories, memory, read_only};
use lunar_block::{BlockDevice, BlockRange};
use lunar_pool::{MirrorSide, OpenOptions, Pool, PoolError, PoolHealth, PoolSpec, SplitMirror};

/// Creates a mirror of three whose first two members, and whose last one, were written apart. The
/// contents of block 0 are 1 and 2. The last one has `more` generations more.
async fn split(more: u64) -> Vec<Device> {
    let disks = memories(3, BLOCKS * 512);
    Pool::create(PoolSpec::Mirror { erase: true }, disks.clone()).await.unwrap();
    let common = Rig::open(disks.clone(), 1, OpenOptions::default()).await.unwrap();
    common.write(8, 7).await;
    common.pool.close().await.unwrap();
    drop(common);
    for (value, side) in [(1, &disks[..2]), (2, &disks[2..])] {
        let side = Rig::open(side.to_vec(), 1, degraded()).await.unwrap();
        side.write(0, value).await;
        for _ in 0..if value == 2 { more } else { 0 } {
            let new = memory(BLOCKS * 512, 512, 512);
            let slot = side.pool.add(new).await.unwrap();
            side.pool.remove(slot).await.unwrap();
        }
        side.pool.close().await.unwrap();
    }
    disks
}

async fn sides(disks: &[Device]) -> SplitMirror {
    match Rig::open(disks.to_vec(), 1, OpenOptions::default()).await.map(drop) {
        Err(PoolError::Split(split)) => *split,
        other => panic!("{other:?}"),
    }
}

/// Returns the side of the last disk, or that of the others.
async fn side(disks: &[Device], is_last: bool) -> MirrorSide {
    let sides = sides(disks).await.sides;
    let side = sides.into_iter().find(|side| (side.devices.len() == 1) == is_last);
    side.unwrap()
}

/// Goal: the kept side keeps its content, and the members of the other one get it, completely, also
/// if the other one has more generations.
#[tokio::test(start_paused = true)]
async fn one_side_is_kept() {
    for (is_last, more) in [(false, 0), (true, 0), (false, 3), (true, 3), (false, 8), (true, 8)] {
        let disks = split(more).await;
        let keep = side(&disks, is_last).await;
        assert!(matches!(Pool::check(disks.clone()).await, Err(PoolError::Split(_))));
        Pool::resolve(disks.clone(), &keep).await.unwrap();
        Pool::check(disks.clone()).await.unwrap();
        Pool::resolve(disks.clone(), &keep).await.expect("it is decided already");
        let rig = Rig::open(disks, 1, OpenOptions::default()).await.unwrap();
        let value = if is_last { 2 } else { 1 };
        let missing: Vec<u64> =
            rig.pool.status().members.iter().map(|member| member.missing_bytes).collect();
        let all = BLOCKS * 512;
        assert_eq!(missing, if is_last { [all, all, 0] } else { [0, 0, all] });
        assert_eq!((rig.byte(0).await, rig.byte(8).await), (value, 7));
        rig.until_healthy().await;
        rig.assert_same().await;
        assert_eq!(rig.byte(0).await, value);
    }
}

/// Goal: three members that were each written alone are decided, too.
#[tokio::test(start_paused = true)]
async fn three_sides() {
    let disks = memories(3, BLOCKS * 512);
    Pool::create(PoolSpec::Mirror { erase: true }, disks.clone()).await.unwrap();
    for (value, disk) in (1..).zip(&disks) {
        let side = Rig::open(vec![disk.clone()], 1, degraded()).await.unwrap();
        side.write(0, value).await;
    }
    let keep = sides(&disks).await.sides[1].clone();
    Pool::resolve(disks.clone(), &keep).await.unwrap();
    let rig = Rig::open(disks, 1, OpenOptions::default()).await.unwrap();
    rig.until_healthy().await;
    rig.assert_same().await;
    assert!((1..=3).contains(&rig.byte(0).await));
}

/// Goal: what cannot be decided is refused, and changes nothing.
#[tokio::test(start_paused = true)]
async fn refused_decisions() {
    let disks = split(0).await;
    let keep = side(&disks, false).await;
    let last = vec![disks[2].clone()];
    assert!(matches!(Pool::resolve(last, &keep).await, Err(PoolError::NoSuchSide)));
    let one_read_only = vec![disks[0].clone(), disks[1].clone(), read_only(disks[2].clone())];
    let refused = Pool::resolve(one_read_only, &keep).await;
    assert!(matches!(refused, Err(PoolError::ReadOnly { .. })));
    let unlabelled = vec![disks[0].clone(), memory(BLOCKS * 512, 512, 512)];
    assert!(matches!(Pool::resolve(unlabelled, &keep).await, Err(PoolError::NotAMember { .. })));
    let mut twice = disks.clone();
    twice.push(disks[0].clone());
    assert!(matches!(Pool::resolve(twice, &keep).await, Err(PoolError::NamedTwice { .. })));
    let foreign = split(0).await;
    let mixed = vec![disks[0].clone(), foreign[2].clone()];
    assert!(matches!(Pool::resolve(mixed, &keep).await, Err(PoolError::Foreign { .. })));
    let stripe = memories(2, 1 << 20);
    Pool::create(PoolSpec::Concat, stripe.clone()).await.unwrap();
    assert!(matches!(Pool::resolve(stripe, &keep).await, Err(PoolError::NotAMirror { .. })));
    assert!(sides(&disks).await.sides.iter().any(|side| side.history == keep.history));
}

/// Goal: wherever the power fails in a decision, it can be repeated, with the same result.
#[tokio::test(start_paused = true)]
async fn power_cuts() {
    for (is_last, more) in [(false, 0), (true, 0), (false, 2), (true, 2)] {
        let mut steps = 0;
        loop {
            let when = format!("the last {is_last}, {more} generations more, step {steps}");
            let disks = split(more).await;
            let keep = side(&disks, is_last).await;
            let line = PowerLine::new();
            let devices = LineDevice::all(&line, &disks);
            line.cut_after(steps);
            let members: Vec<Device> =
                devices.iter().map(|device| device.clone() as Device).collect();
            let resolved = Pool::resolve(members, &keep).await;
            let was_cut = line.is_off();
            assert!(resolved.is_ok() || was_cut, "{when}: {resolved:?}");
            let mut random = steps;
            for device in &devices {
                device.lose_unflushed(&mut random).await;
            }
            Pool::resolve(disks.clone(), &keep).await.unwrap_or_else(|e| panic!("{when}: {e}"));
            let rig = Rig::open(disks, 1, OpenOptions::default()).await.unwrap();
            assert_eq!(rig.byte(0).await, if is_last { 2 } else { 1 }, "{when}");
            rig.until_healthy().await;
            rig.assert_same().await;
            assert_eq!(rig.pool.status().health, PoolHealth::Healthy);
            if !was_cut {
                assert!(steps >= 12, "{when}");
                break;
            }
            steps += 1;
        }
    }
}

/// Goal: a write to the side that is not kept is gone, and one to the kept side is not.
#[tokio::test(start_paused = true)]
async fn only_the_kept_side_counts() {
    let disks = split(0).await;
    let last = Rig::open(vec![disks[2].clone()], 1, degraded()).await.unwrap();
    let range = BlockRange::new(100, 1);
    last.pool.write(range, filled(5, 1), false).await.unwrap();
    last.pool.close().await.unwrap();
    drop(last);
    let keep = side(&disks, false).await;
    Pool::resolve(disks.clone(), &keep).await.unwrap();
    let rig = Rig::open(disks, 1, OpenOptions::default()).await.unwrap();
    assert_eq!((rig.byte(0).await, rig.byte(100).await), (1, 0));
    rig.until_healthy().await;
    rig.assert_same().await;
}
