//! The rate of the copy, in virtual time.

use super::runtime;
use lunar_block::{BlockDevice, BlockRange, BufferPool, MemoryDevice};
use lunar_switch::{
    DeviceExtent, ExtentOrder, Migration, MigrationEnd, MigrationOptions, MigrationRecord,
    RecordOutcome, VirtualDisk,
};
use std::io;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

const MIB: u64 = 1 << 20;
/// Length of the extent.
const EXTENT_BYTES: u64 = 8 * MIB;
const EXTENT: BlockRange = BlockRange::new(0, EXTENT_BYTES / 512);
const RATE: Option<NonZeroU64> = NonZeroU64::new(MIB);
/// Time to copy the whole extent at [`RATE`].
const COPY_TIME: Duration = Duration::from_secs(8);
/// Interval of the transfers of a host: several for each region.
const HOST_PAUSE: Duration = Duration::from_millis(20);

#[derive(Debug)]
struct AlwaysCommitted;

impl MigrationRecord for AlwaysCommitted {
    fn commit(&self) -> RecordOutcome {
        RecordOutcome::Committed
    }

    fn revert(&self) -> io::Result<()> {
        Ok(())
    }
}

/// A disk of one extent that is to be moved.
fn migration(options: MigrationOptions) -> (VirtualDisk, Migration) {
    let [from, to] = [(); 2].map(|()| DeviceExtent {
        device: Arc::new(MemoryDevice::new(EXTENT_BYTES, 512, 4096).unwrap()),
        blocks: EXTENT,
    });
    let disk = VirtualDisk::new("virtual", &[from], ExtentOrder::Linear).unwrap();
    let migration = disk.prepare_migration(0, to, options).unwrap();
    (disk, migration)
}

/// Moves the extent while a host reads for this long; returns the time of the move.
fn move_time(options: MigrationOptions, host_time: Duration) -> Duration {
    runtime().block_on(async {
        let (disk, migration) = migration(options);
        let begin = Instant::now();
        let host = async {
            let buffers = BufferPool::default();
            while begin.elapsed() < host_time {
                disk.read(BlockRange::new(0, 8), buffers.take(4096)).await.unwrap();
                tokio::time::sleep(HOST_PAUSE).await;
            }
            std::future::pending::<()>().await;
        };
        let ended = tokio::select! {
            ended = migration.run(&AlwaysCommitted) => ended.unwrap(),
            () = host => unreachable!("the move is pending"),
        };
        assert_eq!(ended, MigrationEnd::Moved);
        begin.elapsed()
    })
}

/// True if a time is `wanted`, or up to a tenth above it.
fn is_about(time: Duration, wanted: Duration) -> bool {
    time >= wanted && time <= wanted.mul_f64(1.1)
}

/// Time to copy a region at [`RATE`].
const REGION_TIME: Duration = Duration::from_millis(500);

/// Goal: while a host uses the disk, the copy keeps to the limit for a disk in use; while no host
/// uses the disk, the copy is not limited after the first region. Fault: the rate did not hold
/// while regions were copied faster than a host made requests.
#[test]
fn the_rate_holds_while_hosts_use_the_disk() {
    let options =
        MigrationOptions { busy_bytes_per_second_max: RATE, ..MigrationOptions::default() };
    let busy = move_time(options, Duration::MAX);
    assert!(is_about(busy, COPY_TIME), "{busy:?}");
    let idle = move_time(options, Duration::ZERO);
    assert!(idle < REGION_TIME + HOST_PAUSE, "{idle:?}");
    // The copy is not limited any more when the host has stopped.
    let half = move_time(options, COPY_TIME / 2);
    assert!(half >= COPY_TIME / 2 && half < COPY_TIME / 2 + 2 * REGION_TIME, "{half:?}");
}

/// Goal: a rate for an unused disk holds without hosts, too.
#[test]
fn the_rate_holds_without_hosts() {
    let options = MigrationOptions {
        busy_bytes_per_second_max: RATE,
        bytes_per_second_max: RATE,
        ..MigrationOptions::default()
    };
    for host_time in [Duration::ZERO, Duration::MAX] {
        let time = move_time(options, host_time);
        assert!(is_about(time, COPY_TIME), "{time:?}");
    }
}
