//! The time for which a migration makes hosts wait, with storages that are slow in ways that no
//! limit of a single operation catches.

use super::{BLOCK, EXTENT, FROM, HeldRecord, REGION, Rig, STORAGE_BLOCKS, runtime};
use crate::storage::{Faults, Steps, bytes_of};
use lunar_block::{BlockDevice, BlockRange};
use lunar_switch::{
    Migration, MigrationEnd, MigrationOptions, MigrationPhase, MigrationProgress, VirtualDisk,
};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::Instant;

/// The last block of the moving extent of a linear disk.
const LAST: u64 = 2 * EXTENT - 1;

/// Pause of a host between its writes.
const PAUSE: Duration = Duration::from_millis(40);

/// A disk whose extent moves with the default options; the record is in use by others.
struct Moving {
    rig: Rig,
    disk: Arc<VirtualDisk>,
    migration: Arc<Migration>,
    record: Arc<HeldRecord>,
    run: JoinHandle<Result<MigrationEnd, lunar_block::Error>>,
}

impl Moving {
    fn start(rig: Rig, faults: [Faults; 2]) -> Self {
        let disk = rig.disk();
        let options =
            MigrationOptions { region_bytes: REGION * BLOCK as u64, ..MigrationOptions::default() };
        let migration = disk.prepare_migration(1, rig.extent(1, super::TO), options).unwrap();
        let (migration, record) = (Arc::new(migration), Arc::<HeldRecord>::default());
        for (storage, faults) in rig.storages.iter().zip(faults) {
            *storage.faults.lock().unwrap() = faults;
        }
        let (moving, held) = (Arc::clone(&migration), Arc::clone(&record));
        let run = tokio::spawn(async move { moving.run(&*held).await });
        Self { rig, disk, migration, record, run }
    }

    async fn write(&self, lba: u64) {
        write(&self.disk, lba).await;
    }

    /// Writes a block again and again for some time. Returns the part of the time that writes took
    /// which were late, and the longest one.
    async fn late_share(&self, lba: u64, time: Duration) -> (f64, Duration) {
        let (end, mut late, mut worst) = (Instant::now() + time, Duration::ZERO, Duration::ZERO);
        while Instant::now() < end {
            let before = Instant::now();
            self.write(lba).await;
            let took = before.elapsed();
            worst = worst.max(took);
            if took > Duration::from_millis(100) {
                late += took;
            }
            tokio::time::sleep(PAUSE).await;
        }
        (late.as_secs_f64() / time.as_secs_f64(), worst)
    }

    async fn until(&self, condition: impl Fn(&MigrationProgress) -> bool) {
        while !condition(&self.migration.progress()) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// The storages are well again, and the record is free: the extent moves.
    async fn finish_move(self) {
        for storage in &self.rig.storages {
            *storage.faults.lock().unwrap() = Faults::default();
        }
        self.record.is_released.store(true, SeqCst);
        assert_eq!(self.run.await.unwrap().unwrap(), MigrationEnd::Moved);
        assert_eq!(self.migration.progress().last_failure, "");
    }
}

fn linear_rig() -> Rig {
    let mut rig = Rig::new(&Steps::new(21, u64::MAX));
    rig.is_striped = false;
    rig
}

async fn write(disk: &VirtualDisk, lba: u64) {
    disk.write(BlockRange::new(lba, 1), bytes_of(&[1 << 40]).into(), false).await.unwrap();
}

/// Fault: blocks whose writes take three seconds stopped all writes of the extent for two seconds
/// of each 2.1, for ever: the end of the move waited for them with the turn of the whole extent.
#[test]
fn slow_changes_do_not_stop_others_at_the_end() {
    let rig = linear_rig();
    runtime().block_on(async {
        let slow_changes = Some((BlockRange::new(FROM.lba, 8), Duration::from_secs(3)));
        let moving =
            Moving::start(rig, [Faults { slow_changes, ..Faults::default() }, Faults::default()]);
        moving.until(|progress| progress.missing_bytes == 0).await;
        let mut writers = JoinSet::new();
        for at in 0..8 {
            let disk = Arc::clone(&moving.disk);
            writers.spawn(async move {
                tokio::time::sleep(Duration::from_millis(375 * at)).await;
                loop {
                    write(&disk, EXTENT + at).await;
                }
            });
        }
        tokio::time::sleep(Duration::from_secs(3)).await;
        let (share, worst) = moving.late_share(LAST, Duration::from_secs(300)).await;
        assert!(share < 0.02 && worst < Duration::from_secs(1), "{share}, {worst:?}");
        let MigrationProgress { phase, last_failure, .. } = moving.migration.progress();
        assert_eq!(phase, MigrationPhase::Copying);
        assert!(last_failure.contains("changes of hosts take longer than 2 s"), "{last_failure}");
        writers.shutdown().await;
        moving.finish_move().await;
    });
}

/// Goal: changes that take 1.5 seconds all the time do not keep an extent from moving.
#[test]
fn an_extent_with_slow_changes_moves() {
    let rig = linear_rig();
    runtime().block_on(async {
        let slow_changes = Some((BlockRange::new(FROM.lba, 8), Duration::from_millis(1500)));
        let moving =
            Moving::start(rig, [Faults { slow_changes, ..Faults::default() }, Faults::default()]);
        let mut writers = JoinSet::new();
        for at in 0..8 {
            let disk = Arc::clone(&moving.disk);
            writers.spawn(async move {
                tokio::time::sleep(Duration::from_millis(187 * at)).await;
                loop {
                    write(&disk, EXTENT + at).await;
                }
            });
        }
        moving.record.is_released.store(true, SeqCst);
        moving.until(|progress| progress.phase == MigrationPhase::Moved).await;
        writers.shutdown().await;
        moving.finish_move().await;
    });
}

/// Fault: attempts to end a move followed each other after 0.1 seconds, so a flush of 1.9 seconds
/// at the destination stopped the writes of the extent for half of the time.
#[test]
fn attempts_to_end_are_rare() {
    let rig = linear_rig();
    runtime().block_on(async {
        let slow_flush = Duration::from_millis(1900);
        let moving =
            Moving::start(rig, [Faults::default(), Faults { slow_flush, ..Faults::default() }]);
        let (share, worst) = moving.late_share(LAST, Duration::from_secs(300)).await;
        assert!(moving.record.is_wanted.load(SeqCst));
        assert!(share < 0.1 && worst < Duration::from_secs(2), "{share}, {worst:?}");
        moving.finish_move().await;
    });
}

/// Fault: a destination that was late by less than the wait for it held up all writes to copied
/// blocks during the whole move.
#[test]
fn a_destination_that_is_always_late_is_left_alone() {
    let rig = linear_rig();
    runtime().block_on(async {
        let all = BlockRange::new(0, STORAGE_BLOCKS);
        let slow_changes = Some((all, Duration::from_millis(1900)));
        let moving =
            Moving::start(rig, [Faults::default(), Faults { slow_changes, ..Faults::default() }]);
        let (share, worst) = moving.late_share(EXTENT, Duration::from_secs(300)).await;
        assert!(share < 0.1 && worst < Duration::from_secs(4), "{share}, {worst:?}");
        moving.until(|progress| progress.phase == MigrationPhase::Paused).await;
        let failure = moving.migration.progress().last_failure;
        assert!(failure.contains("has held up changes for more than 5 of 10 s"), "{failure}");
        moving.finish_move().await;
    });
}

/// Fault: changes waited for the copy of their region, however long the destination took for it.
#[test]
fn a_change_waits_shortly_for_the_copy_of_its_region() {
    let rig = linear_rig();
    runtime().block_on(async {
        let slow_long_changes = Some((REGION as usize, Duration::from_millis(1900)));
        let faults = Faults { slow_long_changes, ..Faults::default() };
        let moving = Moving::start(rig, [Faults::default(), faults]);
        tokio::time::sleep(Duration::from_millis(100)).await;
        let before = Instant::now();
        moving.write(EXTENT).await;
        let (took, progress) = (before.elapsed(), moving.migration.progress());
        assert!(took > Duration::from_millis(100), "the region is being copied: {took:?}");
        assert!(took < Duration::from_millis(500), "{took:?}");
        assert_eq!(progress.missing_bytes, EXTENT * BLOCK as u64, "no region is copied");
        // The copy was in vain: the destination gets the change with the next one.
        let disk = Arc::clone(&moving.disk);
        moving.finish_move().await;
        let buffer = lunar_block::BufferPool::default().take(BLOCK);
        let data = disk.read(BlockRange::new(EXTENT, 1), buffer).await.unwrap();
        assert_eq!(data[..], bytes_of(&[1 << 40])[..]);
    });
}

/// Goal: a region that is changed all the time is copied in the end, also if that takes long.
#[test]
fn a_region_that_is_changed_all_the_time_moves() {
    let rig = linear_rig();
    runtime().block_on(async {
        let slow_long_changes = Some((REGION as usize, Duration::from_millis(1900)));
        let faults = Faults { slow_long_changes, ..Faults::default() };
        let moving = Moving::start(rig, [Faults::default(), faults]);
        let (share, worst) = moving.late_share(EXTENT, Duration::from_secs(30)).await;
        assert!(share < 0.2 && worst < Duration::from_secs(2), "{share}, {worst:?}");
        assert_eq!(moving.migration.progress().missing_bytes, 0);
        moving.finish_move().await;
    });
}
