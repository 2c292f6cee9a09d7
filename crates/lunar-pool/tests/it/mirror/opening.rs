//! Opening mirrors: stale, missing and split members, and marked regions.

use super::rig::{BLOCKS, REGION, Rig, WAIT, degraded, without_recovery};
use crate::common::{DATA_START, Device, filled, memories, read};
use lunar_block::{BlockDevice, BlockRange, Effect, ErrorKind, Fault, FaultDevice, FaultOperation};
use lunar_pool::format::Label;
use lunar_pool::{MemberState, OpenOptions, Pool, PoolError, PoolHealth, PoolSpec};
use tokio::time::Instant;

/// Goal: the first opening of a new mirror copies the first member to the others; a later opening
/// after an orderly end copies nothing.
#[tokio::test(start_paused = true)]
async fn a_new_mirror_is_copied_once() {
    let disks = memories(3, BLOCKS * 512);
    let junk = BlockRange::new(DATA_START + 5, 1);
    disks[0].write(junk, filled(7, 1), false).await.unwrap();
    disks[1].write(junk, filled(8, 1), false).await.unwrap();
    Pool::create(PoolSpec::Mirror { erase: false }, disks.clone()).await.unwrap();
    let mut reversed = disks.clone();
    reversed.reverse();
    let rig = Rig::open(reversed, 1, OpenOptions::default()).await.unwrap();
    assert_eq!(rig.byte(5).await, 7, "the first member counts from the beginning");
    rig.until_healthy().await;
    rig.assert_same().await;
    rig.pool.flush().await.unwrap();
    rig.pool.close().await.unwrap();
    let rig = Rig::open(disks, 1, OpenOptions::default()).await.unwrap();
    assert_eq!(rig.pool.status().health, PoolHealth::Healthy);
    assert_eq!(rig.pool.status().copied_bytes, 0);
}

/// Goal: after a crash only the marked regions are copied, and they are read from one member until
/// then.
#[tokio::test(start_paused = true)]
async fn only_marked_regions_are_copied_after_a_crash() {
    let rig = Rig::new(2).await;
    rig.write(0, 1).await;
    rig.write(3 * REGION, 2).await;
    // The second member loses the block: the power was cut before it was written.
    let block = BlockRange::new(DATA_START, 1);
    rig.disks[1].write(block, filled(0, 1), false).await.unwrap();
    let rig = rig.crash_and_reopen(OpenOptions::default()).await.unwrap();
    assert_eq!(rig.pool.status().members[1].missing_bytes, 2 * REGION * 512);
    for _ in 0..20 {
        assert_eq!(rig.byte(0).await, 1);
    }
    assert_eq!(read(&*rig.pool, 0, BLOCKS).await[..512], filled(1, 1)[..]);
    rig.until_healthy().await;
    assert_eq!(rig.pool.status().copied_bytes, 2 * REGION * 512);
    rig.assert_same().await;
}

/// Goal: after a crash, a read of a block in which the members differ decides which version counts:
/// the other member has it before the read returns, and keeps it if the source is lost.
#[tokio::test(start_paused = true)]
async fn a_read_decides_which_version_counts() {
    let rig = Rig::new(2).await;
    // The copy begins with the first of the marked regions, and pauses for a long time then.
    const LBA: u64 = 5 * REGION;
    rig.write(0, 1).await;
    rig.write(LBA, 1).await;
    let block = BlockRange::new(DATA_START + LBA, 1);
    rig.disks[1].write(block, filled(9, 1), false).await.unwrap();
    let rate = std::num::NonZeroU64::new(1);
    let mut options = without_recovery();
    options.mirror.resync_bytes_per_second_max = rate;
    options.mirror.resync_busy_bytes_per_second_max = rate;
    let rig = rig.crash_and_reopen(options).await.unwrap();
    let mut into = vec![0; 512];
    assert!(!rig.pool.try_read_now(BlockRange::new(LBA, 1), &mut into));
    assert_eq!(rig.byte_on(1, LBA).await, 9);
    assert_eq!(rig.byte(LBA).await, 1);
    assert_eq!(rig.byte_on(1, LBA).await, 1);
    rig.fail_write(0, REGION);
    rig.write(REGION, 2).await;
    assert_eq!(rig.state(0), MemberState::Stale);
    assert_eq!(rig.byte(LBA).await, 1);
}

/// Goal: a mirror opens without a member only if it is told to; the member is stale from then on.
#[tokio::test(start_paused = true)]
async fn degraded_openings() {
    let rig = Rig::new(2).await;
    rig.write(0, 1).await;
    rig.pool.close().await.unwrap();
    let disks = rig.disks.clone();
    let one = Rig::open(vec![disks[0].clone()], 1, OpenOptions::default()).await;
    assert!(matches!(one.err(), Some(PoolError::Missing { slots, .. }) if slots == [1]));
    let one = Rig::open(vec![disks[0].clone()], 1, degraded()).await.unwrap();
    assert_eq!(one.state(0), MemberState::Current);
    assert_eq!(one.pool.status().members[1].state, MemberState::Missing);
    one.write(0, 2).await;
    one.pool.close().await.unwrap();
    let stale = Rig::open(vec![disks[1].clone()], 1, degraded()).await;
    assert!(stale.is_ok(), "nobody can know that the other side was written");
    drop(stale);
    let both = Rig::open(disks, 1, OpenOptions::default()).await;
    let Some(PoolError::Split(split)) = both.err() else { panic!("it is split") };
    assert_eq!(split.common_generation, 1);
    assert!(split.sides.iter().all(|side| side.generation == 2 && side.devices.len() == 1));
    assert_ne!(split.sides[0].history, split.sides[1].history);
    let text = split.to_string();
    assert!(text.contains("written without the other since generation 1"), "{text}");
}

/// Goal: a copy of a member that was written alone does not replace the member: the others may have
/// been written with the member since.
#[tokio::test(start_paused = true)]
async fn copies_of_members_are_refused() {
    let rig = Rig::new(2).await;
    rig.write(0, 1).await;
    rig.pool.close().await.unwrap();
    let disks = rig.disks.clone();
    drop(rig);
    let copy = crate::common::snapshots(&disks).await.remove(0);
    let alone = Rig::open(vec![copy.clone()], 1, degraded()).await.unwrap();
    alone.write(0, 9).await;
    drop(alone);
    let both = Rig::open(disks.clone(), 1, OpenOptions::default()).await.unwrap();
    both.write(0, 2).await;
    both.pool.close().await.unwrap();
    drop(both);
    let all = vec![copy, disks[0].clone(), disks[1].clone()];
    let opened = Rig::open(all, 1, OpenOptions::default()).await.map(drop);
    assert!(matches!(opened, Err(PoolError::Cloned { slot: 0, .. })), "{opened:?}");
}

/// Goal: a stale member is never read, and gets everything before it is current.
#[tokio::test(start_paused = true)]
async fn stale_members_are_copied_completely() {
    let rig = Rig::new(2).await;
    rig.write(0, 1).await;
    rig.fail_write(1, 0);
    rig.write(0, 2).await;
    let rig = rig.crash_and_reopen(without_recovery()).await.unwrap();
    assert_eq!(rig.pool.status().members[1].missing_bytes, BLOCKS * 512);
    for _ in 0..20 {
        assert_eq!(rig.byte(0).await, 2);
    }
    rig.until_healthy().await;
    rig.assert_same().await;
    rig.pool.close().await.unwrap();
    let only_stale = rig.disks[1].clone();
    drop(rig);
    let now_current = Rig::open(vec![only_stale], 1, degraded()).await.unwrap();
    assert_eq!(now_current.byte(0).await, 2);
}

/// Goal: a mirror without a current member does not open, also if it is told to open degraded.
#[tokio::test(start_paused = true)]
async fn stale_members_alone_do_not_open() {
    let rig = Rig::new(3).await;
    rig.fail_write(1, 0);
    rig.fail_write(2, 0);
    rig.write(0, 2).await;
    rig.fail_write(0, 0);
    let disks = rig.disks.clone();
    drop(rig);
    // The labels of the stale ones are of one generation: together they are a mirror of their own.
    let stale = vec![disks[1].clone(), disks[2].clone()];
    let opened = Rig::open(stale, 1, OpenOptions::default()).await;
    assert!(matches!(opened.err(), Some(PoolError::Missing { slots, .. }) if slots == [0]));
}

/// Goal: nothing is written through a mirror with a read-only member, and marked regions are read
/// from one member.
#[tokio::test(start_paused = true)]
async fn read_only_mirrors() {
    let rig = Rig::new(2).await;
    rig.write(0, 1).await;
    let disks = rig.disks.clone();
    drop(rig);
    disks[1].write(BlockRange::new(DATA_START, 1), filled(9, 1), false).await.unwrap();
    let before = read(&*disks[0], 0, DATA_START).await;
    let members = vec![disks[0].clone(), crate::common::read_only(disks[1].clone())];
    let pool = Pool::open("pool", members, OpenOptions::default()).await.unwrap();
    assert!(pool.is_read_only());
    for _ in 0..20 {
        assert_eq!(read(&*pool, 0, 1).await, filled(1, 1));
    }
    let kind = pool.write(BlockRange::new(0, 1), filled(2, 1), false).await.map_err(|e| e.kind);
    assert_eq!(kind, Err(ErrorKind::ReadOnly));
    assert!(!pool.try_write_now(BlockRange::new(0, 1), &filled(2, 1), false));
    pool.flush().await.unwrap();
    pool.close().await.unwrap();
    assert_eq!(read(&*disks[0], 0, DATA_START).await, before, "no label and no mark");
    let rig = Rig::open(disks, 1, OpenOptions::default()).await.unwrap();
    rig.until_healthy().await;
    assert_eq!(rig.byte_on(1, 0).await, 1);
}

/// Returns a mirror of two whose second member is stale, closed; and the label that was recorded.
async fn with_stale_member() -> (Vec<Device>, Label) {
    let rig = Rig::with_options(2, without_recovery()).await;
    rig.fail_write(1, 0);
    rig.write(0, 2).await;
    let recorded = rig.pool.label().unwrap().borrow().clone();
    assert_eq!(recorded.current.slots().collect::<Vec<_>>(), [0]);
    rig.pool.close().await.unwrap();
    (rig.disks.clone(), recorded)
}

/// Fault: a stale member that showed the label of another pool, or of a history of its own, kept
/// the mirror closed. Goal: with the recorded label it is left out, and nothing is written to it.
#[tokio::test(start_paused = true)]
async fn a_member_of_another_history_is_left_out() {
    let foreign = memories(2, BLOCKS * 512);
    Pool::create(PoolSpec::Mirror { erase: true }, foreign.clone()).await.unwrap();
    for is_foreign in [true, false] {
        let (mut disks, recorded) = with_stale_member().await;
        if is_foreign {
            disks[1] = foreign[0].clone();
        } else {
            let apart = Rig::open(vec![disks[1].clone()], 1, degraded()).await.unwrap();
            apart.write(0, 9).await;
            apart.pool.close().await.unwrap();
        }
        let before = read(&*disks[1], 0, DATA_START + BLOCKS).await;
        let refused = Rig::open(disks.clone(), 1, degraded()).await.map(drop);
        match is_foreign {
            true => assert!(matches!(refused, Err(PoolError::Foreign { .. })), "{refused:?}"),
            false => assert!(matches!(refused, Err(PoolError::Split(_))), "{refused:?}"),
        }
        for turn in 0..2 {
            let mut disks = disks.clone();
            disks.rotate_left(turn);
            let options = OpenOptions { recorded: Some(recorded.clone()), ..degraded() };
            let rig = Rig::open(disks, 1, options).await.unwrap();
            assert_eq!(rig.byte(0).await, 2);
            let left_out = rig.pool.take_left_out();
            assert_eq!(left_out.len(), 1);
            match (&left_out[0].error, is_foreign) {
                (PoolError::Foreign { .. }, true) | (PoolError::Split(_), false) => {}
                other => panic!("{other:?}"),
            }
            rig.write(0, 2).await;
            rig.pool.close().await.unwrap();
        }
        assert!(read(&*disks[1], 0, DATA_START + BLOCKS).await == before);
    }
}

/// Goal: a recorded label decides nothing while all members belong together, and does not make a
/// mirror open that lacks members with all data.
#[tokio::test(start_paused = true)]
async fn a_recorded_label_replaces_no_member() {
    let (disks, recorded) = with_stale_member().await;
    let options = || OpenOptions { recorded: Some(recorded.clone()), ..OpenOptions::default() };
    let rig = Rig::open(disks.clone(), 1, options()).await.unwrap();
    rig.until_healthy().await;
    assert!(rig.pool.take_left_out().is_empty());
    let both = rig.pool.label().unwrap().borrow().clone();
    assert!(both.generation > recorded.generation);
    rig.pool.close().await.unwrap();
    drop(rig);
    let foreign = memories(2, BLOCKS * 512);
    Pool::create(PoolSpec::Mirror { erase: true }, foreign.clone()).await.unwrap();
    let options = OpenOptions { recorded: Some(both), ..OpenOptions::default() };
    let opened = Rig::open(vec![foreign[0].clone(), disks[0].clone()], 1, options).await;
    assert!(matches!(opened.err(), Some(PoolError::Missing { slots, .. }) if slots == [1]));
}

/// Fault: a member that answered no READ kept the mirror closed for as long as its commands waited.
/// Goal: its label is waited for no longer than a member is behind another one.
#[tokio::test(start_paused = true)]
async fn a_silent_member_does_not_keep_a_mirror_closed() {
    let (disks, _) = with_stale_member().await;
    for silent in 0..2 {
        let fault = FaultDevice::new(disks[1].clone(), 1);
        fault.inject(Fault::new(Effect::Hang).on(FaultOperation::Read));
        let mut members = vec![disks[0].clone(), fault as Device];
        members.rotate_left(silent);
        let begun = Instant::now();
        let pool = Pool::open("pool", members, OpenOptions::default()).await.unwrap();
        assert_eq!(begun.elapsed(), WAIT);
        assert_eq!(read(&*pool, 0, 1).await, filled(2, 1));
        pool.close().await.unwrap();
    }
}
