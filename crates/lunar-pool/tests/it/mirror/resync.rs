//! Copies: progress, rate, and changes during them.

use super::rig::{BLOCKS, REGION, Rig};
use crate::common::{filled, memories};
use lunar_block::{BlockDevice, BlockRange, Effect, Fault, FaultOperation};
use lunar_pool::{MemberState, MirrorOptions, OpenOptions, Pool, PoolSpec};
use std::num::NonZeroU64;
use std::time::Duration;
use tokio::time::Instant;

/// Opens a new mirror, whose first copy is of everything.
async fn copying(mirror: MirrorOptions) -> Rig {
    let disks = memories(2, BLOCKS * 512);
    Pool::create(PoolSpec::Mirror { erase: false }, disks.clone()).await.unwrap();
    let options = OpenOptions { mirror, ..OpenOptions::default() };
    Rig::open(disks, 1, options).await.unwrap()
}

/// Goal: the copy keeps its rate, and its progress is shown.
#[tokio::test(start_paused = true)]
async fn rates_and_progress() {
    let rate = NonZeroU64::new(REGION * 512);
    let options = MirrorOptions { resync_bytes_per_second_max: rate, ..MirrorOptions::default() };
    let rig = copying(options).await;
    let begun = Instant::now();
    tokio::time::sleep(Duration::from_millis(4500)).await;
    let member = rig.pool.status().members[1].clone();
    assert_eq!(member.state, MemberState::Syncing);
    assert_eq!(member.missing_bytes, 5 * REGION * 512, "of ten regions");
    rig.until_healthy().await;
    assert!(begun.elapsed() >= Duration::from_secs(9), "{:?}", begun.elapsed());
}

/// Goal: without users a copy runs at the members' speed; while they have operations it keeps its
/// lower rate.
#[tokio::test(start_paused = true)]
async fn users_come_first() {
    let busy = NonZeroU64::new(REGION * 512 / 10);
    let options =
        MirrorOptions { resync_busy_bytes_per_second_max: busy, ..MirrorOptions::default() };
    let rig = copying(options).await;
    rig.inject(1, Effect::Delay(Duration::from_millis(50)), FaultOperation::Write);
    let begun = Instant::now();
    while rig.state(1) != MemberState::Current {
        rig.byte(0).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(begun.elapsed() > Duration::from_secs(80), "{:?}", begun.elapsed());
    let rig = copying(options).await;
    let begun = Instant::now();
    rig.until_healthy().await;
    assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
}

/// Goal: a copy without users has several pieces in flight, so that both members always have work;
/// alongside users it has one.
#[tokio::test(start_paused = true)]
async fn pieces_of_an_idle_copy_overlap() {
    let delay = Effect::Delay(Duration::from_millis(100));
    for (is_limited, least_millis, most_millis) in [(false, 200, 1200), (true, 2000, 4000)] {
        let rate = NonZeroU64::new(1 << 30).filter(|_| is_limited);
        let options =
            MirrorOptions { resync_bytes_per_second_max: rate, ..MirrorOptions::default() };
        let rig = copying(options).await;
        rig.inject(0, delay, FaultOperation::Read);
        rig.inject(1, delay, FaultOperation::Write);
        let begun = Instant::now();
        rig.until_healthy().await;
        let took = begun.elapsed().as_millis();
        assert!((least_millis..most_millis).contains(&took), "{is_limited}: {took} ms");
        rig.assert_same().await;
    }
}

/// Goal: a piece that fails does not keep the pieces alongside it open: the copy begins again.
#[tokio::test(start_paused = true)]
async fn a_piece_fails_beside_others() {
    for region in 0..10 {
        let rig = copying(MirrorOptions::default()).await;
        rig.inject(1, Effect::Delay(Duration::from_millis(5)), FaultOperation::Write);
        rig.fail_write(1, region * REGION);
        rig.until_healthy().await;
        assert!(rig.pool.status().copied_bytes >= BLOCKS * 512, "region {region}");
        rig.assert_same().await;
    }
}

/// Goal: writes during a copy are on both members at its end, wherever the copy is.
#[tokio::test(start_paused = true)]
async fn writes_beside_a_copy() {
    for millis in 0..20 {
        let rig = copying(MirrorOptions::default()).await;
        for member in 0..2 {
            let delay = Effect::Delay(Duration::from_millis(3 + member as u64));
            rig.inject(member, delay, FaultOperation::Read);
            rig.inject(member, delay, FaultOperation::Write);
        }
        tokio::time::sleep(Duration::from_millis(millis)).await;
        let writes = (0..BLOCKS).step_by(61).map(|lba| async move { (lba, lba as u8) });
        for (lba, value) in futures_util::future::join_all(writes).await {
            rig.write(lba, value).await;
        }
        rig.until_healthy().await;
        rig.assert_same().await;
    }
}

/// Goal: a copy whose target fails begins again, and counts nothing that was not durable.
#[tokio::test(start_paused = true)]
async fn a_failed_copy_begins_again() {
    let rig = Rig::new(2).await;
    for region in 0..10 {
        rig.write(region * REGION, 1).await;
    }
    rig.pool.flush().await.unwrap();
    rig.fail_write(1, 0);
    rig.write(0, 2).await;
    rig.fail_write(1, 7 * REGION);
    rig.until("copying", |status| status.copied_bytes > 0).await;
    rig.caches[1].cut_power(&mut 0, 1).await;
    rig.until_healthy().await;
    rig.assert_same().await;
}

/// Goal: a member that is silent during a copy is left out again, and recovered after that.
#[tokio::test(start_paused = true)]
async fn a_silent_target() {
    let rig = Rig::new(2).await;
    rig.fail_write(1, 0);
    rig.write(0, 2).await;
    rig.faults[1].inject(Fault::new(Effect::Hang).on(FaultOperation::Write).times(1));
    rig.until("hanging", |_| rig.faults[1].hanging() == 1).await;
    let range = BlockRange::new(0, 1);
    let begun = Instant::now();
    rig.pool.write(range, filled(3, 1), false).await.unwrap();
    assert!(begun.elapsed() <= Duration::from_secs(4), "{:?}", begun.elapsed());
    rig.until("left out", |status| status.members[1].state == MemberState::Stale).await;
    rig.faults[1].release();
    rig.until_healthy().await;
    rig.assert_same().await;
}
