//! Comparison of members.

use super::rig::{BLOCKS, REGION, Rig, without_recovery};
use crate::common::{DATA_START, filled, memories};
use futures_util::poll;
use lunar_block::{BlockDevice, BlockRange, BufferPool, Effect, ErrorKind, Fault, FaultOperation};
use lunar_pool::{
    MemberState, OpenOptions, Pool, PoolError, PoolHealth, PoolSpec, ScrubOptions, ScrubReport,
    ScrubbedMember,
};
use std::num::NonZeroU64;
use std::time::Duration;
use tokio::time::Instant;

const ALL_BYTES: u64 = BLOCKS * 512;

impl Rig {
    async fn scrub(&self) -> ScrubReport {
        self.pool.scrub(ScrubOptions::default()).await.unwrap()
    }

    /// Changes blocks on the disk of a member, as silent corruption.
    async fn corrupt(&self, member: usize, lba: u64, blocks: u64, value: u8) {
        let range = BlockRange::new(DATA_START + lba, blocks);
        self.disks[member].write(range, filled(value, blocks), true).await.unwrap();
    }
}

/// Goal: members that are equal stay as they are; a second scrub at the same time is refused, and
/// one that is dropped stops; progress is shown.
#[tokio::test(start_paused = true)]
async fn progress_and_rates() {
    let rig = Rig::new(2).await;
    rig.write(0, 1).await;
    assert_eq!(rig.pool.status().scrub, None);
    let rate = NonZeroU64::new(REGION * 512);
    let options = ScrubOptions { bytes_per_second_max: rate, busy_bytes_per_second_max: rate };
    let begun = Instant::now();
    let mut scrub = Box::pin(rig.pool.scrub(options));
    let stopped = tokio::time::timeout(Duration::from_millis(4500), &mut scrub).await;
    assert!(stopped.is_err(), "{stopped:?}");
    let progress = rig.pool.status().scrub.unwrap();
    assert_eq!((progress.is_running, progress.total_bytes), (true, ALL_BYTES));
    assert_eq!(progress.report.checked_bytes, 5 * REGION * 512, "of ten regions");
    let second = rig.pool.scrub(options).await;
    assert!(matches!(second, Err(PoolError::ScrubRuns)), "{second:?}");
    let report = scrub.await.unwrap();
    assert_eq!(report, ScrubReport { checked_bytes: ALL_BYTES, ..ScrubReport::default() });
    assert!(begun.elapsed() >= Duration::from_secs(9), "{:?}", begun.elapsed());
    assert!(!rig.pool.status().scrub.unwrap().is_running);
    let mut scrub = Box::pin(rig.pool.scrub(options));
    assert!(poll!(&mut scrub).is_pending());
    drop(scrub);
    assert!(!rig.pool.status().scrub.unwrap().is_running);
    rig.pool.close().await.unwrap();
    assert!(rig.pool.scrub(options).await.is_err());
    let members = memories(2, 1 << 20);
    Pool::create(PoolSpec::Concat, members.clone()).await.unwrap();
    let concat = Pool::open("concat", members, OpenOptions::default()).await.unwrap();
    assert!(matches!(concat.scrub(options).await, Err(PoolError::NotAMirror { .. })));
}

/// Fault: the contents that a scrub compares were copies outside of the buffer pool. Method: the
/// second reading of a member hangs.
#[tokio::test(start_paused = true)]
async fn contents_are_charged() {
    let rig = Rig::new(2).await;
    let buffers = BufferPool::default();
    rig.pool.set_buffers(&buffers);
    rig.write(0, 1).await;
    rig.corrupt(1, 0, 1, 9).await;
    let hang = Fault::new(Effect::Hang).on(FaultOperation::Read).after(1);
    rig.faults[1].inject(hang.times(1));
    let mut scrub = Box::pin(rig.scrub());
    while rig.faults[1].hanging() == 0 {
        assert!(poll!(&mut scrub).is_pending());
        tokio::task::yield_now().await;
    }
    // Both contents, and the data that is being read.
    let region = REGION as usize * 512;
    assert!(buffers.in_use_bytes() >= 3 * region, "{}", buffers.in_use_bytes());
    rig.faults[1].release();
    assert_eq!(scrub.await.different_blocks, 1);
    assert_eq!(buffers.in_use_bytes(), 0);
}

/// Goal: of two members that differ, nobody is blamed, and the first one counts.
#[tokio::test(start_paused = true)]
async fn two_members_that_differ() {
    for wrong in 0..2 {
        let rig = Rig::new(2).await;
        rig.write(5, 1).await;
        rig.corrupt(wrong, 5, 3, 9).await;
        let report = rig.scrub().await;
        assert_eq!((report.different_blocks, report.undecided_blocks), (3, 3));
        assert_eq!((report.members.len(), report.checked_bytes), (0, ALL_BYTES));
        assert_eq!(rig.byte(5).await, if wrong == 0 { 9 } else { 1 });
        rig.assert_same().await;
        assert_eq!(rig.scrub().await.different_blocks, 0);
        rig.pool.flush().await.unwrap();
    }
}

/// Goal: of three members the one that is alone is wrong, also if it is the first.
#[tokio::test(start_paused = true)]
async fn the_majority_counts() {
    for wrong in 0..3 {
        let rig = Rig::new(3).await;
        rig.write(REGION, 1).await;
        rig.corrupt(wrong, REGION, 2, 9).await;
        let report = rig.scrub().await;
        assert_eq!((report.different_blocks, report.undecided_blocks), (2, 0));
        let slot = wrong as u16;
        let want = ScrubbedMember { slot, unreadable_blocks: 0, outvoted_blocks: 2 };
        assert_eq!(report.members, [want]);
        assert_eq!((rig.byte(REGION).await, rig.byte(REGION + 1).await), (1, 0));
        rig.assert_same().await;
    }
}

/// Goal: a block that a member cannot read is written to it again from the other one.
#[tokio::test(start_paused = true)]
async fn unreadable_blocks_are_repaired() {
    for member in 0..2 {
        let rig = Rig::new(2).await;
        rig.write(7, 1).await;
        // The whole region cannot be read, once without and eight times with its halves.
        let fault = Fault::new(Effect::Fail(ErrorKind::Medium)).on(FaultOperation::Read);
        let at = BlockRange::new(DATA_START + 7, 1);
        rig.faults[member].inject(fault.at(at).times(9));
        let report = rig.scrub().await;
        let slot = member as u16;
        let want = ScrubbedMember { slot, unreadable_blocks: 1, outvoted_blocks: 0 };
        assert_eq!((report.members, report.different_blocks), (vec![want], 0));
        let status = rig.pool.status();
        assert_eq!((status.repairs, status.health), (1, PoolHealth::Healthy));
        assert_eq!(rig.byte(7).await, 1);
    }
}

/// Goal: a block that cannot be repaired leaves its member out; one that nobody can read is
/// counted, and no member is.
#[tokio::test(start_paused = true)]
async fn blocks_that_stay_unreadable() {
    let fault = Fault::new(Effect::Fail(ErrorKind::Medium)).on(FaultOperation::Read);
    let fault = fault.at(BlockRange::new(DATA_START + 7, 1));
    let rig = Rig::new(2).await;
    rig.faults[1].inject(fault);
    assert_eq!(rig.scrub().await.members[0].unreadable_blocks, 1);
    assert_ne!(rig.state(1), MemberState::Current);
    let rig = Rig::new(2).await;
    rig.faults.iter().for_each(|member| member.inject(fault));
    let report = rig.scrub().await;
    assert_eq!((report.unreadable_blocks, report.members.len()), (1, 0));
    assert_eq!(rig.pool.status().health, PoolHealth::Healthy);
}

/// Goal: a member that is gone or silent is left out, and what only one member has is not compared.
#[tokio::test(start_paused = true)]
async fn members_that_fail() {
    for effect in [Effect::Fail(ErrorKind::Disconnected), Effect::Hang] {
        let disks = memories(2, ALL_BYTES);
        Pool::create(PoolSpec::Mirror { erase: true }, disks.clone()).await.unwrap();
        let rig = Rig::open(disks, 1, without_recovery()).await.unwrap();
        rig.faults[1].inject(Fault::new(effect).on(FaultOperation::Read).after(3));
        let report = rig.scrub().await;
        assert_eq!((report.checked_bytes, report.skipped_bytes), (3 * 65_536, 7 * 65_536));
        assert_eq!(rig.state(1), MemberState::Stale);
        rig.write(0, 1).await;
        assert_eq!(rig.byte(0).await, 1);
    }
}

/// Goal: a member that has lost writes is no witness: the acknowledged content counts.
#[tokio::test(start_paused = true)]
async fn lost_writes_have_no_vote() {
    for member in 0..2 {
        let rig = Rig::new(2).await;
        rig.write(0, 1).await;
        rig.pool.flush().await.unwrap();
        rig.write(0, 2).await;
        rig.caches[member].cut_power(&mut 0, 1).await;
        let report = rig.scrub().await;
        assert_eq!(report.different_blocks, 0, "{report:?}");
        rig.until_healthy().await;
        assert_eq!(rig.byte(0).await, 2);
        rig.assert_same().await;
    }
}
