//! Mirrors that grow.

use super::rig::{BLOCKS, REGION, Rig, WAIT, degraded, marks_go, without_recovery};
use crate::common::{
    DATA_START, Device, LineDevice, OVERHEAD_BYTES, PowerLine, filled, first_byte, memories, read,
};
use lunar_block::{BlockDevice, BlockRange, Effect, Error, ErrorKind, Fault, FaultOperation};
use lunar_pool::{MemberState, OpenOptions, Pool, PoolHealth, PoolSpec};
use std::cell::Cell;
use std::time::Duration;
use tokio::time::Instant;

/// Number of blocks of the grown mirrors.
const MORE: u64 = BLOCKS + 5 * REGION + 7;

async fn resize(device: &dyn BlockDevice, blocks: u64) -> Result<(), Error> {
    device.resize().unwrap().resize(blocks * 512).await
}

/// Makes disks longer, with other bytes than zeroes behind their old ends.
async fn grow(disks: &[Device], data_blocks: u64) {
    for disk in disks {
        let before = disk.geometry().block_count;
        let blocks = data_blocks + OVERHEAD_BYTES / 512;
        resize(&**disk, blocks).await.unwrap();
        let junk = BlockRange::new(before, blocks - before);
        disk.write(junk, filled(0xee, blocks - before), true).await.unwrap();
    }
}

async fn assert_same(disks: &[Device], data_blocks: u64) {
    let first = read(&*disks[0], DATA_START, data_blocks).await;
    for disk in &disks[1..] {
        assert!(read(&**disk, DATA_START, data_blocks).await == first, "members differ");
    }
}

/// Goal: a mirror whose disks have grown grows while it is in use: new blocks are zero, old ones
/// stay, and the next opening has all of it without a copy.
#[tokio::test(start_paused = true)]
async fn a_mirror_grows() {
    let rig = Rig::new(2).await;
    rig.write(BLOCKS - 1, 1).await;
    grow(&rig.disks, MORE).await;
    assert_eq!(rig.pool.geometry().block_count, BLOCKS);
    resize(&*rig.pool, MORE).await.unwrap();
    assert_eq!(rig.pool.geometry().block_count, MORE);
    assert_eq!(read(&*rig.pool, BLOCKS, MORE - BLOCKS).await, filled(0, MORE - BLOCKS));
    rig.write(MORE - 1, 2).await;
    assert_eq!((rig.byte(BLOCKS - 1).await, rig.byte(MORE - 1).await), (1, 2));
    resize(&*rig.pool, MORE).await.expect("nothing to do");
    let disks = rig.disks.clone();
    rig.pool.flush().await.unwrap();
    rig.pool.close().await.unwrap();
    let rig = Rig::open(disks.clone(), 1, OpenOptions::default()).await.unwrap();
    let status = rig.pool.status();
    assert_eq!((status.health, status.copied_bytes), (PoolHealth::Healthy, 0));
    assert_eq!((rig.pool.geometry().block_count, rig.byte(MORE - 1).await), (MORE, 2));
    assert_same(&disks, MORE).await;
}

/// Fault: all changes waited while the pages of one member after the other were written, twice the
/// limit for each. Goal: they have one limit together.
#[tokio::test(start_paused = true)]
async fn pages_of_a_late_member_hold_up_changes_once() {
    const LATE: Duration = Duration::from_millis(1900);
    let rig = Rig::with_options(3, without_recovery()).await;
    grow(&rig.disks, MORE).await;
    for member in 1..3 {
        for page in [128, 256] {
            let late = Fault::new(Effect::Delay(LATE)).on(FaultOperation::Write);
            rig.faults[member].inject(late.at(BlockRange::new(page, 8)));
        }
    }
    let grown = Cell::new(false);
    let resize = async {
        resize(&*rig.pool, MORE).await.unwrap();
        grown.set(true);
    };
    let write = async {
        let mut longest = Duration::ZERO;
        while !grown.get() {
            let begun = Instant::now();
            rig.write(0, 1).await;
            longest = longest.max(begun.elapsed());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        longest
    };
    rig.write(0, 1).await;
    let ((), longest) = tokio::join!(resize, write);
    assert!(longest <= WAIT, "{longest:?}");
    let states = [0, 1, 2].map(|member| rig.state(member));
    assert_eq!(states, [MemberState::Current, MemberState::Stale, MemberState::Stale]);
}

/// Goal: a mirror grows only if every member has all data and room; it never shrinks.
#[tokio::test(start_paused = true)]
async fn refused_sizes() {
    let disks = memories(2, BLOCKS * 512);
    Pool::create(PoolSpec::Mirror { erase: true }, disks.clone()).await.unwrap();
    let rig = Rig::open(disks, 1, without_recovery()).await.unwrap();
    let refused = async |blocks| resize(&*rig.pool, blocks).await.unwrap_err();
    let error = refused(MORE).await;
    assert_eq!(error.kind, ErrorKind::Open);
    assert!(error.to_string().contains("has room for 1280 blocks"), "{error}");
    grow(&rig.disks[..1], MORE).await;
    assert!(refused(MORE).await.to_string().contains("has room for 1280 blocks"));
    assert!(refused(BLOCKS - 1).await.to_string().contains("cannot become smaller"));
    grow(&rig.disks[1..], MORE).await;
    assert!(refused(MORE + 1).await.to_string().contains("has room for"));
    rig.fail_write(1, 0);
    rig.write(0, 1).await;
    assert!(refused(MORE).await.to_string().contains("does not have all data"));
    let one = rig.disks[0].clone();
    drop(rig);
    let rig = Rig::open(vec![one], 1, degraded()).await.unwrap();
    let error = resize(&*rig.pool, MORE).await.unwrap_err();
    assert!(error.to_string().contains("member 1 is missing"), "{error}");
    assert_eq!(rig.pool.geometry().block_count, BLOCKS);
}

/// Goal: regions become larger when one page has not enough bits for more of them; marks stay with
/// their blocks.
#[tokio::test(start_paused = true)]
async fn regions_become_larger() {
    let (before, after) = (32_000 * REGION, 70_000 * REGION);
    // Nearly all of these disks is deallocated.
    let disks = memories(2, before * 512);
    Pool::create(PoolSpec::Mirror { erase: true }, disks.clone()).await.unwrap();
    let open = async || Pool::open("pool", disks.clone(), OpenOptions::default()).await.unwrap();
    let pool = open().await;
    let write = async |pool: &Pool, lba, value| {
        pool.write(BlockRange::new(lba, 1), filled(value, 1), false).await.unwrap();
    };
    write(&pool, 31_999 * REGION, 1).await;
    for disk in &disks {
        resize(&**disk, after + OVERHEAD_BYTES / 512).await.unwrap();
    }
    resize(&*pool, after).await.unwrap();
    pool.flush().await.unwrap();
    marks_go().await;
    write(&pool, 5 * REGION, 2).await;
    write(&pool, after - 1, 3).await;
    drop(pool);
    let pool = open().await;
    let missing = pool.status().members[1].missing_bytes;
    assert_eq!(missing, 2 * 4 * REGION * 512, "two regions, four times as large");
    while pool.status().health != PoolHealth::Healthy {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    for (lba, value) in [(31_999 * REGION, 1), (5 * REGION, 2), (after - 1, 3)] {
        assert_eq!(first_byte(&*pool, lba).await, value, "{lba}");
    }
}

/// Goal: wherever the power fails in a resize, the mirror opens with the old size or the new one,
/// with all data, and can be resized. Method: the power fails after each write and each flush of
/// the resize and of the writes alongside it; each device loses some of its unflushed blocks, by
/// seed.
#[tokio::test(start_paused = true)]
async fn power_cuts() {
    let mut steps = 0;
    loop {
        let when = format!("step {steps}");
        let disks = memories(2, BLOCKS * 512);
        Pool::create(PoolSpec::Mirror { erase: true }, disks.clone()).await.unwrap();
        let line = PowerLine::new();
        let devices = LineDevice::all(&line, &disks);
        let members = devices.iter().map(|device| device.clone() as Device).collect();
        let pool = Pool::open("pool", members, without_recovery()).await.unwrap();
        let write = async |value: u8| {
            let range = BlockRange::new(BLOCKS - 1, 1);
            pool.write(range, filled(value, 1), false).await?;
            pool.flush().await
        };
        write(1).await.unwrap();
        grow(&disks, MORE).await;
        line.cut_after(steps);
        let mut durable = 1;
        let writes = async {
            for value in 2..6 {
                if write(value).await.is_ok() && !line.is_off() {
                    durable = value;
                }
            }
        };
        let (resized, ()) = futures_util::future::join(resize(&*pool, MORE), writes).await;
        let was_cut = line.is_off();
        assert!(resized.is_ok() || was_cut, "{when}: {resized:?}");
        let is_grown = resized.is_ok() && !was_cut;
        drop(pool);
        let mut random = steps;
        for device in &devices {
            device.lose_unflushed(&mut random).await;
        }
        let opened = Rig::open(disks.clone(), 1, OpenOptions::default()).await;
        let rig = opened.unwrap_or_else(|error| panic!("{when}: {error}"));
        let blocks = rig.pool.geometry().block_count;
        assert!(blocks == MORE || (blocks == BLOCKS && !is_grown), "{when}: {blocks}");
        let value = rig.byte(BLOCKS - 1).await;
        assert!((durable..6).contains(&value), "{when}: {value} after {durable}");
        rig.until_healthy().await;
        resize(&*rig.pool, MORE).await.unwrap_or_else(|error| panic!("{when}: {error}"));
        assert_eq!(read(&*rig.pool, BLOCKS, MORE - BLOCKS).await, filled(0, MORE - BLOCKS));
        assert_eq!(rig.byte(BLOCKS - 1).await, value, "{when}");
        assert_same(&disks, MORE).await;
        if !was_cut {
            assert!(steps > 30, "{when}: there are more writes and flushes");
            break;
        }
        steps += 1;
    }
}
