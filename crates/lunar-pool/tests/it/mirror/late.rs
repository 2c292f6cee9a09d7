//! Members that do not answer.

use super::rig::{BLOCKS, REGION, Rig, WAIT, without_recovery};
use crate::common::DATA_START;
use futures_util::poll;
use lunar_block::{BlockDevice, BlockRange, Effect, Fault, FaultOperation};
use lunar_pool::MemberState;
use std::time::Duration;
use tokio::time::Instant;

/// Goal: a member that does not answer a write is left out within the bound, durably; it is not
/// current again until its write has ended, and then has all data.
#[tokio::test(start_paused = true)]
async fn a_silent_member_is_left_out_and_returns() {
    for member in 0..2 {
        let rig = Rig::new(2).await;
        rig.write(0, 1).await;
        rig.faults[member].inject(
            Fault::new(Effect::Hang)
                .on(FaultOperation::Write)
                .at(BlockRange::new(DATA_START, 1))
                .times(1),
        );
        let begun = Instant::now();
        rig.write(0, 2).await;
        assert_eq!(begun.elapsed(), WAIT);
        assert_eq!(rig.state(member), MemberState::Stale);
        rig.write(0, 3).await;
        tokio::time::sleep(Duration::from_secs(600)).await;
        assert_eq!(rig.state(member), MemberState::Stale, "its write has not ended");
        assert_eq!(rig.faults[member].hanging(), 1);
        rig.faults[member].release();
        rig.until_healthy().await;
        rig.assert_same().await;
        assert_eq!(rig.byte_on(member, 0).await, 3);
    }
}

/// Goal: the states on the labels do not name a silent member when a write that it misses is
/// acknowledged.
#[tokio::test(start_paused = true)]
async fn a_silent_member_is_stale_after_a_crash() {
    let rig = Rig::new(2).await;
    rig.inject(1, Effect::Hang, FaultOperation::Write);
    rig.write(0, 2).await;
    let rig = rig.crash_and_reopen(without_recovery()).await.unwrap();
    assert_eq!(rig.byte(0).await, 2);
    rig.until_healthy().await;
    assert_eq!(rig.byte_on(1, 0).await, 2);
}

/// Goal: a read that is not answered is sent to the other member; the silent one is left out, and
/// recovered.
#[tokio::test(start_paused = true)]
async fn a_silent_read_is_answered_by_the_other_member() {
    let rig = Rig::new(2).await;
    rig.write(0, 1).await;
    rig.faults[0].inject(Fault::new(Effect::Hang).on(FaultOperation::Read).times(1));
    let begun = Instant::now();
    while rig.faults[0].fired() == 0 {
        assert_eq!(rig.byte(0).await, 1);
    }
    assert_eq!(begun.elapsed(), WAIT);
    rig.until("left out", |status| status.members[0].state != MemberState::Current).await;
    rig.faults[0].release();
    rig.until_healthy().await;
}

/// Goal: while no member answers, all are waited for, and none is left out.
#[tokio::test(start_paused = true)]
async fn all_silent_members_are_waited_for() {
    let rig = Rig::new(2).await;
    rig.write(0, 1).await;
    for member in 0..2 {
        rig.inject(member, Effect::Hang, FaultOperation::Write);
    }
    let mut write = std::pin::pin!(rig.write(0, 2));
    assert!(poll!(&mut write).is_pending());
    let waited = tokio::time::timeout(Duration::from_secs(3600), &mut write).await;
    assert!(waited.is_err(), "nobody has answered");
    assert_eq!(rig.faults[0].hanging() + rig.faults[1].hanging(), 2);
    rig.faults.iter().for_each(|fault| {
        fault.heal();
        fault.release();
    });
    write.await;
    assert!((0..2).all(|member| rig.state(member) == MemberState::Current));
    rig.assert_same().await;
}

/// Goal: the last member is waited for, for reads, writes and flushes.
#[tokio::test(start_paused = true)]
async fn the_last_member_is_waited_for() {
    let rig = Rig::new(2).await;
    rig.fail_write(1, 0);
    rig.write(0, 1).await;
    rig.inject(1, Effect::Hang, FaultOperation::Write);
    for operation in [FaultOperation::Read, FaultOperation::Write, FaultOperation::Flush] {
        rig.faults[0].inject(Fault::new(Effect::Hang).on(operation).times(1));
        let work = async {
            match operation {
                FaultOperation::Read => assert_eq!(rig.byte(0).await, 1),
                FaultOperation::Write => rig.write(0, 1).await,
                _ => rig.pool.flush().await.unwrap(),
            }
        };
        let mut work = std::pin::pin!(work);
        assert!(tokio::time::timeout(Duration::from_secs(100), &mut work).await.is_err());
        assert_eq!(rig.state(0), MemberState::Current, "{operation:?}");
        rig.faults[0].release();
        work.await;
    }
}

/// Goal: a write whose future is dropped is completed on all members, before later writes of the
/// same blocks.
#[tokio::test(start_paused = true)]
async fn a_dropped_write_is_completed() {
    let rig = Rig::new(2).await;
    rig.write(0, 1).await;
    rig.faults[1].inject(
        Fault::new(Effect::Delay(Duration::from_secs(1))).on(FaultOperation::Write).times(1),
    );
    {
        let mut write = std::pin::pin!(rig.write(0, 2));
        assert!(poll!(&mut write).is_pending());
    }
    rig.write(0, 3).await;
    assert_eq!((rig.byte_on(0, 0).await, rig.byte_on(1, 0).await), (3, 3));
    assert!((0..2).all(|member| rig.state(member) == MemberState::Current));
}

/// Goal: a silent member holds up writes of other blocks for no longer than the bound, and not at
/// all once it is left out.
#[tokio::test(start_paused = true)]
async fn other_writes_continue() {
    let rig = Rig::new(3).await;
    rig.inject(2, Effect::Hang, FaultOperation::Write);
    let begun = Instant::now();
    let writes = (0..10).map(|region| rig.write(region * REGION, 7));
    futures_util::future::join_all(writes).await;
    assert!(begun.elapsed() <= 2 * WAIT, "{:?}", begun.elapsed());
    let begun = Instant::now();
    for lba in (0..BLOCKS).step_by(100) {
        rig.write(lba, 8).await;
    }
    assert_eq!(begun.elapsed(), Duration::ZERO);
    assert_eq!(rig.pool.status().members[2].state, MemberState::Stale);
    rig.faults[2].heal();
    rig.faults[2].release();
    rig.until_healthy().await;
    rig.assert_same().await;
}

/// Fault: of two members one had a detached write, and the other one failed another write.
/// The member with the detached write stayed, and its old write later replaced a newer one.
#[tokio::test(start_paused = true)]
async fn a_member_with_an_old_write_is_not_kept() {
    let rig = Rig::new(2).await;
    rig.write(0, 1).await;
    rig.write(REGION, 1).await;
    let block = BlockRange::new(DATA_START, 1);
    rig.faults[0].inject(Fault::new(Effect::Hang).on(FaultOperation::Write).at(block).times(1));
    let late = rig.write(0, 2);
    let failing = async {
        tokio::time::sleep(WAIT / 2).await;
        rig.fail_write(1, REGION);
        rig.try_write(REGION, 3).await
    };
    let begun = Instant::now();
    let ((), failed) = futures_util::future::join(late, failing).await;
    assert!(failed.is_err(), "no member that is kept has it");
    assert!(begun.elapsed() <= 2 * WAIT, "{:?}", begun.elapsed());
    assert_eq!(rig.state(1), MemberState::Current);
    rig.write(0, 4).await;
    rig.faults[0].release();
    rig.until_healthy().await;
    assert_eq!(rig.byte(0).await, 4);
    rig.assert_same().await;
}

/// Goal: if all members have a detached change, the pool waits for one of them before it
/// sends anything else.
#[tokio::test(start_paused = true)]
async fn old_writes_of_the_last_member_are_waited_for() {
    let rig = Rig::new(2).await;
    for region in 0..3 {
        rig.write(region * REGION, 1).await;
    }
    for member in 0..2 {
        let block = BlockRange::new(DATA_START + member as u64 * REGION, 1);
        let hang = Fault::new(Effect::Hang).on(FaultOperation::Write).at(block);
        rig.faults[member].inject(hang.times(1));
    }
    let writes = futures_util::future::join(rig.try_write(0, 2), rig.try_write(REGION, 2));
    let mut writes = std::pin::pin!(writes);
    assert!(tokio::time::timeout(100 * WAIT, &mut writes).await.is_err(), "nobody has all");
    rig.faults.iter().for_each(|fault| fault.release());
    let (first, second) = writes.await;
    first.and(second).unwrap();
    rig.write(0, 4).await;
    rig.write(REGION, 5).await;
    rig.until_healthy().await;
    assert_eq!((rig.byte(0).await, rig.byte(REGION).await), (4, 5));
    rig.assert_same().await;
}

/// Fault: if all members have a detached change, the pool waited for the first one, also
/// when another one had ended its changes.
#[tokio::test(start_paused = true)]
async fn the_first_member_without_old_writes_is_kept() {
    let rig = Rig::new(2).await;
    for region in 0..3 {
        rig.write(region * REGION, 1).await;
    }
    for member in 0..2 {
        let block = BlockRange::new(DATA_START + member as u64 * REGION, 1);
        let hang = Fault::new(Effect::Hang).on(FaultOperation::Write).at(block);
        rig.faults[member].inject(hang.times(1));
    }
    let writes = futures_util::future::join(rig.try_write(0, 2), rig.try_write(REGION, 2));
    let mut writes = std::pin::pin!(writes);
    assert!(tokio::time::timeout(100 * WAIT, &mut writes).await.is_err(), "nobody has all");
    assert_eq!(rig.byte(2 * REGION).await, 1, "reads continue");
    rig.faults[1].release();
    let (first, second) =
        tokio::time::timeout(WAIT, writes).await.expect("the second member has all");
    first.and(second).unwrap();
    assert_eq!((rig.state(0), rig.state(1)), (MemberState::Stale, MemberState::Current));
    rig.write(0, 4).await;
    rig.write(REGION, 5).await;
    rig.faults[0].release();
    rig.until_healthy().await;
    assert_eq!((rig.byte(0).await, rig.byte(REGION).await), (4, 5));
    rig.assert_same().await;
}

/// Goal: a pool whose members all have detached changes can be closed.
#[tokio::test(start_paused = true)]
async fn a_pool_of_silent_members_is_closed() {
    let rig = Rig::new(2).await;
    rig.write(0, 1).await;
    rig.write(REGION, 1).await;
    for member in 0..2 {
        let block = BlockRange::new(DATA_START + member as u64 * REGION, 1);
        let hang = Fault::new(Effect::Hang).on(FaultOperation::Write).at(block);
        rig.faults[member].inject(hang.times(1));
    }
    let writes = futures_util::future::join(rig.try_write(0, 2), rig.try_write(REGION, 2));
    let mut writes = std::pin::pin!(writes);
    assert!(tokio::time::timeout(100 * WAIT, &mut writes).await.is_err(), "nobody has all");
    let begun = Instant::now();
    assert!(rig.pool.close().await.is_err());
    assert!(begun.elapsed() <= Duration::from_secs(10), "{:?}", begun.elapsed());
}

/// Fault: while one member was late with a flush, and the other one with a write, the member whose
/// work ended first was kept; if that was the second one, the write failed with "no answer"
/// although this member had answered.
#[tokio::test(start_paused = true)]
async fn members_that_are_late_with_different_commands_fail_none() {
    for first in 0..2 {
        let rig = Rig::new(2).await;
        rig.write(0, 1).await;
        rig.faults[0].inject(Fault::new(Effect::Hang).on(FaultOperation::Flush).times(1));
        let block = BlockRange::new(DATA_START, 1);
        rig.faults[1].inject(Fault::new(Effect::Hang).on(FaultOperation::Write).at(block).times(1));
        let mut both =
            std::pin::pin!(futures_util::future::join(rig.pool.flush(), rig.try_write(0, 2)));
        assert!(tokio::time::timeout(10 * WAIT, &mut both).await.is_err(), "no member is settled");
        rig.faults[first].release();
        let (flushed, written) = both.await;
        flushed.unwrap();
        written.unwrap();
        rig.faults[1 - first].release();
        rig.until_healthy().await;
        rig.assert_same().await;
        assert_eq!(rig.byte(0).await, 2);
    }
}
