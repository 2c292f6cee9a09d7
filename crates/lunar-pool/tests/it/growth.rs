//! Pools that grow, above all stripes and concatenations.

use crate::common::{
    Device, LineDevice, OVERHEAD_BYTES, PowerLine, VolatileDevice, filled, first_byte, memories,
    read,
};
use lunar_block::{BlockDevice, BlockRange, Error};
use lunar_pool::{OpenOptions, Pool, PoolError, PoolSpec};
use std::sync::Arc;

const STRIPE: PoolSpec = PoolSpec::Stripe { unit_bytes: 4096 };

/// Number of blocks of data of each member, and after its device has grown.
const BEFORE: u64 = 64;
const AFTER: u64 = 96;

async fn resize(device: &dyn BlockDevice, blocks: u64) -> Result<(), Error> {
    device.resize().unwrap().resize(blocks * 512).await
}

/// Makes disks longer, with other bytes than zeroes behind their old ends.
async fn grow(disks: &[Device]) {
    for disk in disks {
        let before = disk.geometry().block_count;
        let blocks = AFTER + OVERHEAD_BYTES / 512;
        resize(&**disk, blocks).await.unwrap();
        let junk = BlockRange::new(before, blocks - before);
        disk.write(junk, filled(0xee, blocks - before), true).await.unwrap();
    }
}

async fn try_open(members: Vec<Device>) -> Result<Arc<Pool>, PoolError> {
    Pool::open("pool", members, OpenOptions::default()).await
}

/// Number of blocks of a pool of three members before and after its growth.
fn sizes(spec: PoolSpec) -> (u64, u64) {
    if spec == PoolSpec::Concat {
        (3 * BEFORE, 2 * BEFORE + AFTER)
    } else {
        (3 * BEFORE, 3 * AFTER)
    }
}

/// Writes its own value to each block.
async fn fill(pool: &Pool, blocks: u64) {
    for lba in 0..blocks {
        let value = filled(lba as u8 + 1, 1);
        pool.write(BlockRange::new(lba, 1), value, false).await.unwrap();
    }
    pool.flush().await.unwrap();
}

async fn assert_filled(pool: &Pool, blocks: u64, when: &str) {
    for lba in 0..blocks {
        assert_eq!(first_byte(pool, lba).await, lba as u8 + 1, "{when}: {lba}");
    }
    let all = pool.geometry().block_count;
    let rest = read(pool, blocks, all - blocks).await;
    assert!(rest == filled(0, all - blocks), "{when}: new blocks are zero");
}

/// Goal: a stripe grows on all its members, a concatenation on its last one; blocks stay where they
/// are, new ones are zero, and the next opening has them.
#[tokio::test]
async fn pools_grow() {
    for spec in [STRIPE, PoolSpec::Concat] {
        let disks = memories(3, BEFORE * 512);
        Pool::create(spec, disks.clone()).await.unwrap();
        // These devices cannot be enlarged by the pool.
        let fixed = disks.iter().map(|disk| VolatileDevice::new(Arc::clone(disk)) as Device);
        let pool = try_open(fixed.collect()).await.unwrap();
        let (before, after) = sizes(spec);
        fill(&pool, before).await;
        let error = resize(&*pool, after).await.unwrap_err();
        assert!(error.to_string().contains("has room for 64"), "{error}");
        grow(&disks).await;
        resize(&*pool, before).await.expect("nothing to do");
        let error = resize(&*pool, before - 24).await.unwrap_err();
        assert!(error.to_string().contains("cannot become smaller"), "{error}");
        resize(&*pool, after).await.unwrap();
        assert_eq!(pool.geometry().block_count, after);
        assert_filled(&pool, before, "grown").await;
        pool.write(BlockRange::new(after - 1, 1), filled(7, 1), false).await.unwrap();
        pool.flush().await.unwrap();
        assert!(resize(&*pool, after + 24).await.is_err());
        drop(pool);
        let pool = try_open(disks).await.unwrap();
        assert_eq!((pool.geometry().block_count, pool.status().generation), (after, 2));
        assert_eq!(first_byte(&*pool, after - 1).await, 7);
        assert_eq!(read(&*pool, before - 1, 1).await, filled(before as u8, 1));
    }
}

/// Goal: a pool enlarges devices that can be enlarged, each as far as it needs it.
#[tokio::test]
async fn devices_are_enlarged() {
    for spec in [STRIPE, PoolSpec::Concat, PoolSpec::Mirror { erase: true }] {
        let disks = memories(3, BEFORE * 512);
        Pool::create(spec, disks.clone()).await.unwrap();
        let pool = try_open(disks.clone()).await.unwrap();
        let before = pool.geometry().block_count;
        pool.write(BlockRange::new(before - 1, 1), filled(7, 1), false).await.unwrap();
        pool.flush().await.unwrap();
        resize(&*pool, 2 * before).await.unwrap();
        assert_eq!(pool.geometry().block_count, 2 * before);
        drop(pool);
        let pool = try_open(disks.clone()).await.unwrap();
        assert_eq!(pool.geometry().block_count, 2 * before);
        assert_eq!(first_byte(&*pool, before - 1).await, 7);
        assert_eq!(first_byte(&*pool, 2 * before - 1).await, 0);
        let grown = disks
            .iter()
            .filter(|disk| disk.geometry().block_count > BEFORE + OVERHEAD_BYTES / 512)
            .count();
        assert_eq!(grown, if spec == PoolSpec::Concat { 1 } else { 3 });
    }
}

/// Goal: a stripe has whole rows of units.
#[tokio::test]
async fn sizes_of_stripes() {
    let disks = memories(3, BEFORE * 512);
    Pool::create(STRIPE, disks.clone()).await.unwrap();
    let pool = try_open(disks.clone()).await.unwrap();
    grow(&disks).await;
    let error = resize(&*pool, 3 * AFTER - 8).await.unwrap_err();
    assert!(error.to_string().contains("must be a multiple of 24 blocks"), "{error}");
    resize(&*pool, 3 * AFTER - 24).await.unwrap();
    resize(&*pool, 3 * AFTER).await.unwrap();
}

/// Goal: wherever the power fails in a resize, the pool opens with the old size or the new one,
/// with all data, and can be resized.
/// Method: the power fails after each write and each flush; each device loses some of its unflushed
/// blocks, by seed.
#[tokio::test]
async fn power_cuts() {
    for spec in [STRIPE, PoolSpec::Concat] {
        let (before, after) = sizes(spec);
        let mut steps = 0;
        loop {
            let when = format!("{spec:?}, step {steps}");
            let disks = memories(3, BEFORE * 512);
            Pool::create(spec, disks.clone()).await.unwrap();
            let line = PowerLine::new();
            let devices = LineDevice::all(&line, &disks);
            let members = devices.iter().map(|device| device.clone() as Device).collect();
            let pool = try_open(members).await.unwrap();
            fill(&pool, before).await;
            grow(&disks).await;
            line.cut_after(steps);
            let resized = resize(&*pool, after).await;
            let was_cut = line.is_off();
            assert!(resized.is_ok() || was_cut, "{when}: {resized:?}");
            drop(pool);
            let mut random = steps;
            for device in &devices {
                device.lose_unflushed(&mut random).await;
            }
            let pool = try_open(disks).await.unwrap_or_else(|error| panic!("{when}: {error}"));
            let blocks = pool.geometry().block_count;
            let is_possible = blocks == after || (blocks == before && was_cut);
            assert!(is_possible, "{when}: {blocks}");
            assert_filled(&pool, before, &when).await;
            resize(&*pool, after).await.unwrap_or_else(|error| panic!("{when}: {error}"));
            assert_filled(&pool, before, &when).await;
            if !was_cut {
                assert!(steps > 16, "{when}: there are more writes and flushes");
                break;
            }
            steps += 1;
        }
    }
}
