//! Members that fail, and reads that are repaired.

use super::rig::{BLOCKS, REGION, Rig, without_recovery};
use crate::common::{DATA_START, filled};
use lunar_block::{BlockDevice, BlockRange, BufferPool, Effect, ErrorKind, Fault, FaultOperation};
use lunar_pool::{MemberState, PoolHealth};
use std::time::Duration;
use tokio::time::Instant;

/// Goal: a write that one member fails succeeds; the member is stale on the label of the other
/// before that, and is recovered later with what it missed.
#[tokio::test(start_paused = true)]
async fn a_failed_member_is_left_out_and_recovered() {
    for member in 0..2 {
        let rig = Rig::new(2).await;
        rig.write(0, 1).await;
        rig.fail_write(member, 0);
        rig.write(0, 2).await;
        assert_eq!(rig.state(member), MemberState::Stale);
        assert_eq!(rig.pool.status().health, PoolHealth::Degraded);
        rig.write(5 * REGION, 3).await;
        for _ in 0..20 {
            assert_eq!((rig.byte(0).await, rig.byte(5 * REGION).await), (2, 3));
        }
        rig.until_healthy().await;
        rig.assert_same().await;
        let copied = rig.pool.status().copied_bytes;
        assert_eq!(copied, 2 * REGION * 512, "only the regions that it missed");
        rig.pool.flush().await.unwrap();
        assert_eq!(rig.pool.cache_losses(), Some(0));
    }
}

/// Goal: a crash right after the write that one member failed leaves that member stale.
#[tokio::test(start_paused = true)]
async fn a_missed_write_is_recorded_durably() {
    for member in 0..2 {
        let rig = Rig::new(2).await;
        rig.fail_write(member, 0);
        rig.write(0, 2).await;
        let rig = rig.crash_and_reopen(without_recovery()).await.unwrap();
        assert_eq!(rig.byte(0).await, 2, "member {member}");
        rig.until_healthy().await;
        rig.assert_same().await;
    }
}

/// Goal: no write is acknowledged that a member misses before the labels record this, also if
/// another write has found the failure first and could not record it: after a crash both members
/// would count as current.
#[tokio::test(start_paused = true)]
async fn writes_at_once_wait_for_the_record() {
    let rig = Rig::new(2).await;
    for lba in [0, 1] {
        rig.write(lba, 1).await;
        rig.fail_write(1, lba);
    }
    // Both writes are in flight when the first one notices the failure.
    let delay = Fault::new(Effect::Delay(Duration::from_millis(10))).on(FaultOperation::Write);
    rig.faults[0].inject(delay.at(BlockRange::new(DATA_START, 2)).times(2));
    for label in [0, DATA_START + BLOCKS] {
        let fails = Fault::new(Effect::Fail(ErrorKind::Disconnected)).on(FaultOperation::Write);
        rig.faults[0].inject(fails.at(BlockRange::new(label, 8)));
    }
    let (one, other) = tokio::join!(rig.try_write(0, 2), rig.try_write(1, 2));
    let kinds = [one, other].map(|written| written.map_err(|error| error.kind));
    assert_eq!(kinds, [Err(ErrorKind::Disconnected); 2]);
    rig.faults[0].heal();
    rig.write(0, 3).await;
    rig.until_healthy().await;
    assert_eq!((rig.byte(0).await, rig.byte_on(1, 0).await), (3, 3));
    rig.assert_same().await;
}

/// Goal: a write that all members fail is an error, and one of them stays; the last member is never
/// dropped.
#[tokio::test(start_paused = true)]
async fn the_last_member_stays() {
    let rig = Rig::new(2).await;
    rig.write(0, 1).await;
    rig.fail_write(0, 0);
    rig.fail_write(1, 0);
    let kind = rig.try_write(0, 2).await.map_err(|error| error.kind);
    assert_eq!(kind, Err(ErrorKind::Disconnected));
    assert_eq!(rig.state(0), MemberState::Current);
    for _ in 0..3 {
        rig.fail_write(0, 0);
        assert!(rig.try_write(0, 3).await.is_err());
        assert_eq!(rig.byte(0).await, 1);
    }
    rig.write(0, 4).await;
    rig.until_healthy().await;
    rig.assert_same().await;
}

/// Goal: while the failure of a member cannot be recorded on the label of the last one, nothing is
/// acknowledged; later it is.
#[tokio::test(start_paused = true)]
async fn nothing_is_acknowledged_before_the_label() {
    let rig = Rig::new(2).await;
    rig.write(0, 1).await;
    let label = Fault::new(Effect::Fail(ErrorKind::Disconnected)).on(FaultOperation::Write);
    rig.faults[0].inject(label.at(BlockRange::new(0, 8)));
    rig.faults[0].inject(label.at(BlockRange::new(rig.disks[0].geometry().block_count - 8, 8)));
    rig.fail_write(1, 0);
    assert!(rig.try_write(0, 2).await.is_err());
    assert!(rig.try_write(0, 3).await.is_err());
    assert!(rig.pool.flush().await.is_err());
    rig.faults[0].heal();
    rig.write(0, 4).await;
    let rig = rig.crash_and_reopen(without_recovery()).await.unwrap();
    assert_eq!(rig.byte(0).await, 4);
    rig.until_healthy().await;
    rig.assert_same().await;
}

/// Goal: a block that one member cannot read is read from the other, and rewritten.
#[tokio::test(start_paused = true)]
async fn bad_blocks_are_repaired() {
    let rig = Rig::new(2).await;
    rig.write(7, 1).await;
    for member in 0..2 {
        let fault = Fault::new(Effect::Fail(ErrorKind::Medium)).on(FaultOperation::Read);
        rig.faults[member].inject(fault.at(BlockRange::new(DATA_START + 7, 1)).times(1));
        while rig.faults[member].fired() == 0 {
            assert_eq!(rig.byte(7).await, 1);
        }
        rig.until("repaired", |status| status.repairs == member as u64 + 1).await;
    }
    assert_eq!(rig.pool.status().health, PoolHealth::Healthy);
    assert!(rig.pool.status().members.iter().all(|member| !member.last_failure.is_empty()));
}

/// Fault: a member that failed all its reads had a repair in progress for each of them. Goal: a few
/// run at a time, and the others are found again by later reads.
#[tokio::test(start_paused = true)]
async fn few_repairs_run_at_a_time() {
    const READS: u64 = 100;
    let rig = Rig::new(2).await;
    let buffers = BufferPool::default();
    rig.pool.set_buffers(&buffers);
    for lba in 0..READS {
        rig.write(lba, 1).await;
    }
    rig.inject(0, Effect::Fail(ErrorKind::Medium), FaultOperation::Read);
    rig.inject(0, Effect::Hang, FaultOperation::Write);
    for lba in 0..READS {
        let fired = rig.faults[0].fired();
        while rig.faults[0].fired() == fired {
            assert_eq!(rig.byte(lba).await, 1);
        }
    }
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!(rig.faults[0].hanging(), 16);
    rig.faults[0].heal();
    rig.faults[0].release();
    rig.until("repaired", |status| status.repairs == 16).await;
    assert_eq!(rig.state(0), MemberState::Current);
    assert_eq!(buffers.in_use_bytes(), 0);
}

/// Goal: a block that cannot be rewritten leaves its member out.
#[tokio::test(start_paused = true)]
async fn a_block_that_stays_bad_leaves_its_member_out() {
    let rig = Rig::new(2).await;
    rig.write(7, 1).await;
    let fault = Fault::new(Effect::Fail(ErrorKind::Medium)).on(FaultOperation::Read);
    rig.faults[0].inject(fault.at(BlockRange::new(DATA_START + 7, 1)));
    while rig.faults[0].fired() == 0 {
        assert_eq!(rig.byte(7).await, 1);
    }
    rig.until("left out", |status| status.members[0].state == MemberState::Stale).await;
    assert_eq!(rig.byte(7).await, 1);
}

/// Goal: a block that no member can read is an error, and nobody is left out for it.
#[tokio::test(start_paused = true)]
async fn a_block_that_nobody_can_read() {
    let rig = Rig::new(2).await;
    let fault = Fault::new(Effect::Fail(ErrorKind::Medium)).on(FaultOperation::Read);
    for member in 0..2 {
        rig.faults[member].inject(fault.at(BlockRange::new(DATA_START + 7, 1)));
    }
    let buffer = BufferPool::default().take(512);
    let error = rig.pool.read(BlockRange::new(7, 1), buffer).await.unwrap_err();
    assert_eq!((error.kind, error.range), (ErrorKind::Medium, Some(BlockRange::new(7, 1))));
    assert_eq!(rig.pool.status().health, PoolHealth::Healthy);
}

/// Goal: reads go to the faster member, and the slower one gets its share when the faster is busy.
#[tokio::test(start_paused = true)]
async fn reads_go_where_they_are_fast() {
    let rig = Rig::new(2).await;
    for (member, millis) in [(0, 40), (1, 10)] {
        rig.inject(member, Effect::Delay(Duration::from_millis(millis)), FaultOperation::Read);
    }
    for lba in 0..100 {
        rig.byte(lba).await;
    }
    let seen = |member: usize| rig.faults[member].seen(FaultOperation::Read);
    // One read of each member is for its label.
    assert!(seen(1) > 90, "{} and {}", seen(0), seen(1));
    let before = [seen(0), seen(1)];
    let begun = Instant::now();
    futures_util::future::join_all((0..50).map(|lba| rig.byte(lba))).await;
    let slow = seen(0) - before[0];
    assert!((5..20).contains(&slow), "{slow} of 50 go to the member that is four times slower");
    assert_eq!(begun.elapsed(), Duration::from_millis(40));
}

/// Fault: a write that a mirror was asked to do at once went to its members in a task when one of
/// them had to wait, and a second time by the caller: each write of a mirror of remote LUNs was
/// sent twice. Goal: nothing is written at once.
#[tokio::test(start_paused = true)]
async fn no_write_is_done_at_once() {
    let rig = Rig::new(2).await;
    let data = filled(9, 4);
    let range = BlockRange::new(0, 4);
    rig.write(0, 1).await;
    let seen = || [0, 1].map(|member: usize| rig.faults[member].seen(FaultOperation::Write));
    let before = seen();
    assert!(!rig.pool.try_write_now(range, &data, false));
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(seen(), before, "no member has a write");
    rig.pool.write(range, data, false).await.unwrap();
    rig.assert_same().await;
}
