//! Members that answer within the limit, but late: on purpose, or because they are far away.

use super::rig::{BLOCKS, REGION, Rig, WAIT, without_recovery};
use crate::common::read;
use lunar_block::{BlockDevice, Effect, Fault, FaultOperation};
use lunar_pool::MemberState;
use lunar_pool::format::{IntentPage, RegionSet};
use std::cell::Cell;
use std::time::Duration;
use tokio::time::Instant;

/// Time by which an operation of a member may be later than that of another one.
const GRACE: Duration = Duration::from_millis(500);

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// The writes of a client that writes a block of each region in turn.
#[derive(Debug, Default)]
struct Writes {
    count: u64,
    longest: Duration,
    /// Number of writes that were held up.
    slow: u64,
}

/// Writes for some time, and calls `each` before each write.
async fn write_for(rig: &Rig, time: Duration, mut each: impl FnMut()) -> Writes {
    let (mut writes, end) = (Writes::default(), Instant::now() + time);
    while Instant::now() < end {
        each();
        let begun = Instant::now();
        rig.write(writes.count * REGION % BLOCKS, writes.count as u8).await;
        let took = begun.elapsed();
        writes.count += 1;
        writes.longest = writes.longest.max(took);
        writes.slow += u64::from(took > millis(100));
        tokio::time::sleep(millis(50)).await;
    }
    writes
}

async fn heal(rig: &Rig) {
    rig.faults.iter().for_each(|fault| fault.heal());
    rig.until_healthy().await;
    rig.assert_same().await;
}

/// Fault: a copy held the membership lock while the target was flushed, and while its marks and its
/// label were written, each within a limit of its own: no write was possible for 12.9 s.
#[tokio::test(start_paused = true)]
async fn the_end_of_a_copy_does_not_hold_up_writes() {
    for late in [150, 450, 950, 1850] {
        let rig = Rig::new(2).await;
        rig.fail_write(1, 0);
        rig.write(0, 1).await;
        rig.inject(1, Effect::Delay(millis(late)), FaultOperation::Flush);
        let writes = write_for(&rig, Duration::from_secs(60), || {}).await;
        assert!(writes.longest <= GRACE + GRACE / 2, "{late} ms: {writes:?}");
        assert!(writes.count > 1000, "{late} ms: {writes:?}");
        heal(&rig).await;
    }
}

/// Returns the marks on the newest intent page of a member.
async fn marks(rig: &Rig, member: usize) -> RegionSet {
    let (pool, regions) = (rig.pool.status().pool, (BLOCKS / REGION) as u32);
    let mut pages = Vec::new();
    for lba in [128, 256] {
        let bytes = read(&*rig.caches[member], lba, 8).await;
        pages.extend(IntentPage::decode(bytes[..].try_into().unwrap(), pool, regions));
    }
    pages.into_iter().max_by_key(|page| page.sequence).unwrap().marked
}

/// Goal: regions that are marked while the pages of a target are written are on its pages when it
/// becomes current.
#[tokio::test(start_paused = true)]
async fn pages_of_a_target_have_later_marks() {
    let rig = Rig::new(2).await;
    rig.fail_write(1, 0);
    rig.write(0, 1).await;
    rig.inject(1, Effect::Delay(millis(50)), FaultOperation::Write);
    rig.until("copied to", |status| status.members[1].state == MemberState::Syncing).await;
    let written = Cell::new(0);
    let write = async {
        for region in 1..10 {
            rig.write(region * REGION, 2).await;
            written.set(region as u32);
        }
        panic!("the member is not current before all regions are marked");
    };
    let observe = async {
        while rig.state(1) != MemberState::Current {
            tokio::time::sleep(millis(1)).await;
        }
        let marks = marks(&rig, 1).await;
        assert!((0..=written.get()).all(|region| marks.contains(region)), "{written:?} {marks:?}");
    };
    tokio::select! { () = write => {}, () = observe => {} }
    heal(&rig).await;
}

/// Fault: each write waited for a member that was only copied to.
#[tokio::test(start_paused = true)]
async fn a_target_of_a_copy_does_not_hold_up_writes() {
    for late in [600, 1850, 3000] {
        let rig = Rig::new(3).await;
        rig.fail_write(1, 0);
        rig.write(0, 1).await;
        rig.inject(1, Effect::Delay(millis(late)), FaultOperation::Write);
        let writes = write_for(&rig, Duration::from_secs(120), || {}).await;
        assert!(writes.longest <= 2 * GRACE, "{late} ms: {writes:?}");
        assert!(writes.slow < 30 && writes.count > 2000, "{late} ms: {writes:?}");
        assert_ne!(rig.state(1), MemberState::Current);
        heal(&rig).await;
    }
}

/// Goal: a flush of a user does not wait longer for a member that is only copied to.
#[tokio::test(start_paused = true)]
async fn a_target_of_a_copy_does_not_hold_up_flushes() {
    let rig = Rig::new(2).await;
    rig.fail_write(1, 0);
    rig.write(0, 1).await;
    rig.inject(1, Effect::Delay(millis(1000)), FaultOperation::Write);
    rig.until("copied to", |status| status.members[1].state == MemberState::Syncing).await;
    rig.inject(1, Effect::Hang, FaultOperation::Flush);
    let begun = Instant::now();
    rig.pool.flush().await.unwrap();
    assert!(begun.elapsed() <= 2 * GRACE, "{:?}", begun.elapsed());
    assert_eq!(rig.state(1), MemberState::Stale);
    rig.faults[1].heal();
    rig.faults[1].release();
    heal(&rig).await;
}

/// Goal: a write that a target of a copy did not do in time reaches it before newer data only.
#[tokio::test(start_paused = true)]
async fn a_late_write_of_a_target_is_not_the_last() {
    let rig = Rig::new(2).await;
    rig.fail_write(1, 0);
    rig.write(0, 1).await;
    rig.inject(1, Effect::Delay(millis(400)), FaultOperation::Write);
    rig.until("copied to", |status| status.members[1].state == MemberState::Syncing).await;
    rig.faults[1].heal();
    rig.inject(1, Effect::Hang, FaultOperation::Write);
    rig.write(3 * REGION, 2).await;
    assert_eq!(rig.state(1), MemberState::Stale);
    assert!(rig.faults[1].hanging() > 0);
    rig.write(3 * REGION, 3).await;
    rig.faults[1].heal();
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(rig.state(1), MemberState::Stale, "its write has not ended");
    rig.faults[1].release();
    heal(&rig).await;
    assert_eq!(rig.byte_on(1, 3 * REGION).await, 3);
}

/// Fault: a current member that was always just within the limit slowed down all writes for ever.
#[tokio::test(start_paused = true)]
async fn a_member_that_is_always_late_is_left_out() {
    for operation in [FaultOperation::Write, FaultOperation::Flush] {
        for late in [600, 1850] {
            let rig = Rig::new(2).await;
            rig.inject(1, Effect::Delay(millis(late)), operation);
            let begun = Instant::now();
            while rig.state(1) == MemberState::Current {
                assert!(begun.elapsed() < Duration::from_secs(12), "{operation:?} {late} ms");
                rig.write(0, 2).await;
                rig.pool.flush().await.unwrap();
            }
            let failure = rig.pool.status().members[1].last_failure.clone();
            assert_eq!(failure, "it held up the others for more than 5 of 10 s");
            let writes = write_for(&rig, Duration::from_secs(120), || {}).await;
            assert!(writes.longest <= 2 * GRACE, "{operation:?} {late} ms: {writes:?}");
            assert!(writes.slow < 30, "{operation:?} {late} ms: {writes:?}");
            heal(&rig).await;
        }
    }
}

/// Goal: a member that is late for less than half of the time stays.
#[tokio::test(start_paused = true)]
async fn a_member_that_is_late_at_times_stays() {
    let rig = Rig::new(2).await;
    rig.write(0, 1).await;
    for _ in 0..30 {
        let delay = Fault::new(Effect::Delay(millis(1500))).on(FaultOperation::Write);
        rig.faults[1].inject(delay.times(1));
        rig.write(0, 2).await;
        tokio::time::sleep(millis(2000)).await;
    }
    assert_eq!(rig.pool.status().members[1].last_failure, "");
}

/// Goal: the last member with all data stays, however slow it was.
#[tokio::test(start_paused = true)]
async fn the_last_member_may_be_late() {
    let rig = Rig::new(2).await;
    let rig = rig.crash_and_reopen(without_recovery()).await.unwrap();
    rig.write(0, 1).await;
    rig.inject(1, Effect::Delay(millis(1850)), FaultOperation::Write);
    for _ in 0..3 {
        assert_eq!(rig.state(1), MemberState::Current);
        rig.write(0, 2).await;
    }
    // The member has been too late now, but the other one has lost data.
    rig.caches[0].cut_power(&mut 0, 1).await;
    for value in 3..10 {
        rig.write(0, value).await;
        assert_eq!(rig.state(1), MemberState::Current);
        rig.pool.flush().await.unwrap();
        assert_eq!((rig.state(0), rig.state(1)), (MemberState::Stale, MemberState::Current));
    }
}

/// Goal: a member that is only far away is copied to at the first attempt alongside writes that
/// mark regions, and is never left out, with one write or many at a time.
#[tokio::test(start_paused = true)]
async fn a_distant_member_stays() {
    let rig = Rig::new(2).await;
    rig.fail_write(1, 0);
    rig.write(0, 1).await;
    let failure = rig.pool.status().members[1].last_failure.clone();
    rig.faults[1].inject(Fault::new(Effect::Delay(millis(50))));
    let flushes = async {
        for _ in 0..100 {
            rig.pool.flush().await.unwrap();
        }
    };
    futures_util::future::join(write_for(&rig, Duration::from_secs(30), || {}), flushes).await;
    for round in 0..150 {
        let writes = (0..32).map(|at| rig.write((at * 97 + round) % BLOCKS, round as u8));
        futures_util::future::join_all(writes).await;
        rig.pool.flush().await.unwrap();
        assert_eq!(rig.state(1), MemberState::Current, "round {round}");
    }
    assert_eq!(rig.pool.status().members[1].last_failure, failure);
    heal(&rig).await;
}

/// Fault: the pause before a recovery doubled only until the copy had succeeded, so a member that
/// was late with its first write as a current one froze the mirror again and again.
#[tokio::test(start_paused = true)]
async fn a_member_that_fails_after_each_copy_returns_less_often() {
    let rig = Rig::new(2).await;
    let mut freezes = 0;
    let writes = write_for(&rig, Duration::from_secs(600), || {
        if rig.state(1) == MemberState::Current && rig.faults[1].fired() == freezes {
            freezes += 1;
            let late = Fault::new(Effect::Delay(millis(2200))).on(FaultOperation::Write);
            rig.faults[1].inject(late.times(1));
        }
    });
    let writes = writes.await;
    assert!((8..20).contains(&freezes), "{freezes}: {writes:?}");
    assert!(writes.longest <= WAIT + GRACE, "{writes:?}");
    heal(&rig).await;
}
