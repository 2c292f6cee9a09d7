//! Members of pools that Java and Rust have written, in `testdata/pools/`. Java's tests open the
//! same files.
//!
//! A file has the members of one pool: a line `disk NAME BLOCK_BYTES BLOCK_COUNT` begins each, and
//! a line `OFFSET LENGTH HEX` fills LENGTH bytes with repetitions of HEX. All other bytes are 0.
//! `LUNAR_WRITE_POOL_FIXTURES=1 cargo test -p lunar-pool fixtures::written` writes those of Rust.

use crate::common::{DATA_START, Device, filled, first_byte, memories, read, snapshots};
use lunar_block::{
    BlockDevice, BlockRange, Effect, ErrorKind, Fault, FaultDevice, FaultOperation, MemoryDevice,
};
use lunar_pool::{MemberState, OpenOptions, Pool, PoolError, PoolHealth, PoolSpec};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Length of a line of bytes; equal bytes are joined over lines.
const LINE_BYTES: usize = 16;

fn path(pool: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../testdata/pools");
    folder.join(format!("{pool}.txt"))
}

/// Returns the members of a pool.
async fn members(pool: &str) -> Vec<Device> {
    let text = std::fs::read_to_string(path(pool)).unwrap();
    let mut disks: Vec<Device> = Vec::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let words: Vec<&str> = line.split(' ').collect();
        if words[0] == "disk" {
            let (block, count): (u32, u64) = (words[2].parse().unwrap(), words[3].parse().unwrap());
            let disk = MemoryDevice::new(count * u64::from(block), block, block).unwrap();
            disks.push(Arc::new(disk));
            continue;
        }
        let (offset, len) = (words[0].parse::<u64>().unwrap(), words[1].parse::<usize>().unwrap());
        let digits = words[2].as_bytes().chunks(2);
        let pattern: Vec<u8> = digits
            .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
            .collect();
        fill(&**disks.last().unwrap(), offset, len, &pattern).await;
    }
    disks
}

async fn fill(disk: &dyn BlockDevice, offset: u64, len: usize, pattern: &[u8]) {
    let block = u64::from(disk.geometry().block_bytes);
    let first = offset / block;
    let count = (offset + len as u64 - 1) / block - first + 1;
    let mut bytes = read(disk, first, count).await.to_vec();
    let start = (offset % block) as usize;
    for at in 0..len {
        bytes[start + at] = pattern[at % pattern.len()];
    }
    disk.write(BlockRange::new(first, count), bytes.into(), true).await.unwrap();
}

/// Returns the text of a file for these members.
async fn text(disks: &[Device]) -> String {
    let mut text = "# Written by tests/it/fixtures.rs of lunar-pool.\n".to_owned();
    for (index, disk) in disks.iter().enumerate() {
        let geometry = disk.geometry();
        let (block, count) = (geometry.block_bytes, geometry.block_count);
        text += &format!("disk disk{index} {block} {count}\n");
        let all = read(&**disk, 0, count).await;
        let is_filled = |line: &[u8], value: u8| line.iter().all(|byte| *byte == value);
        let mut at = 0;
        while at < all.len() {
            let line = &all[at..at + LINE_BYTES];
            let same = |line: &&[u8]| is_filled(line, all[at]);
            let lines = all[at..].chunks(LINE_BYTES).take_while(same).count().max(1);
            if is_filled(line, line[0]) {
                if line[0] != 0 {
                    text += &format!("{at} {} {:02x}\n", lines * LINE_BYTES, line[0]);
                }
            } else {
                let hex: String = line.iter().map(|byte| format!("{byte:02x}")).collect();
                text += &format!("{at} {LINE_BYTES} {hex}\n");
            }
            at += lines * LINE_BYTES;
        }
    }
    text
}

async fn open(members: Vec<Device>) -> Arc<Pool> {
    Pool::open("fixture", members, OpenOptions::default()).await.unwrap()
}

/// Goal: a stripe has its blocks where the other language has put them.
#[tokio::test]
async fn stripes() {
    for name in ["java-stripe", "rust-stripe"] {
        let mut members = members(name).await;
        members.reverse();
        let pool = open(members).await;
        for unit in 0..7 {
            assert_eq!(read(&*pool, unit * 8, 8).await, filled(unit as u8 + 1, 8), "{name}");
        }
    }
}

/// Goal: a concatenation has its blocks where an earlier build has put them.
#[tokio::test]
async fn concatenations() {
    let mut members = members("rust-concat").await;
    members.rotate_left(1);
    let pool = open(members).await;
    assert_eq!(pool.geometry().block_count, 64 + 128 + 32);
    for (lba, value) in [(0, 1), (63, 2), (64, 3), (191, 4), (192, 5), (223, 6)] {
        assert_eq!(first_byte(&*pool, lba).await, value, "block {lba}");
    }
}

/// Opens members, and waits until their copies are complete.
async fn copied(disks: &[Device]) -> Arc<Pool> {
    let pool = open(disks.to_vec()).await;
    while pool.status().health != PoolHealth::Healthy {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    pool
}

async fn assert_same(disks: &[Device], name: &str) {
    let first = read(&*disks[0], DATA_START, 1024).await;
    assert!(read(&*disks[1], DATA_START, 1024).await == first, "{name}: members differ");
}

/// Goal: closed mirrors have all data, and nothing is copied.
#[tokio::test(start_paused = true)]
async fn mirrors() {
    for name in ["java-mirror", "rust-mirror"] {
        let mut members = members(name).await;
        members.reverse();
        let pool = open(members).await;
        assert_eq!(pool.status().health, PoolHealth::Healthy, "{name}");
        for lba in 0..4 {
            assert_eq!(first_byte(&*pool, lba).await, lba as u8 + 1, "{name}");
        }
        assert_eq!(first_byte(&*pool, 700).await, 9, "{name}");
    }
}

/// Goal: in a marked region the first member counts.
#[tokio::test(start_paused = true)]
async fn marked_mirrors() {
    for name in ["java-marked", "rust-marked"] {
        let disks = members(name).await;
        let pool = open(disks.clone()).await;
        assert_eq!((first_byte(&*pool, 0).await, first_byte(&*pool, 300).await), (1, 5), "{name}");
        drop(pool);
        copied(&disks).await.close().await.unwrap();
        assert_same(&disks, name).await;
    }
}

/// Goal: a member that was left out is stale, and gets everything.
#[tokio::test(start_paused = true)]
async fn stale_members() {
    for name in ["java-stale", "rust-stale"] {
        let disks = members(name).await;
        let pool = open(disks.clone()).await;
        let member = &pool.status().members[1];
        assert_ne!(member.state, MemberState::Current, "{name}");
        assert_eq!(first_byte(&*pool, 0).await, 7, "{name}");
        drop(pool);
        copied(&disks).await.close().await.unwrap();
        assert_same(&disks, name).await;
    }
}

/// Goal: a removed member is ignored, and missing to nobody.
#[tokio::test(start_paused = true)]
async fn removed_members() {
    let disks = members("rust-vacant").await;
    for members in [disks.clone(), vec![disks[2].clone(), disks[0].clone()]] {
        let pool = open(members).await;
        let status = pool.status();
        let slots: Vec<u16> = status.members.iter().map(|member| member.slot).collect();
        assert_eq!((status.health, slots), (PoolHealth::Healthy, vec![0, 2]));
        assert_eq!(first_byte(&*pool, 0).await, 4);
    }
}

/// Goal: a mirror of which both sides were written apart is refused.
#[tokio::test]
async fn split_mirrors() {
    for name in ["java-split", "rust-split"] {
        let opened = Pool::open("fixture", members(name).await, OpenOptions::default()).await;
        assert!(matches!(opened, Err(PoolError::Split(_))), "{name}: {opened:?}");
    }
}

async fn new_mirror() -> Vec<Device> {
    let disks = memories(2, 1024 * 512);
    Pool::create(PoolSpec::Mirror { erase: true }, disks.clone()).await.unwrap();
    disks
}

async fn write(pool: &Pool, lba: u64, value: u8) {
    pool.write(BlockRange::new(lba, 1), filled(value, 1), false).await.unwrap();
}

/// Writes the mirrors of this build, if it is told to.
#[tokio::test(start_paused = true)]
async fn written_mirrors() {
    if std::env::var_os("LUNAR_WRITE_POOL_FIXTURES").is_none() {
        return;
    }
    let disks = new_mirror().await;
    let pool = open(disks.clone()).await;
    for lba in 0..4 {
        write(&pool, lba, lba as u8 + 1).await;
    }
    write(&pool, 700, 9).await;
    pool.close().await.unwrap();
    std::fs::write(path("rust-mirror"), text(&disks).await).unwrap();

    let disks = new_mirror().await;
    let pool = open(disks.clone()).await;
    write(&pool, 0, 1).await;
    pool.flush().await.unwrap();
    write(&pool, 300, 5).await;
    // The power was cut before the second member had written the block.
    let crashed = snapshots(&disks).await;
    let block = BlockRange::new(DATA_START + 300, 1);
    crashed[1].write(block, filled(0, 1), false).await.unwrap();
    std::fs::write(path("rust-marked"), text(&crashed).await).unwrap();

    let disks = new_mirror().await;
    let faults = FaultDevice::new(Arc::clone(&disks[1]), 1);
    let pool = open(vec![Arc::clone(&disks[0]), Arc::clone(&faults) as Device]).await;
    write(&pool, 0, 6).await;
    let fault = Fault::new(Effect::Fail(ErrorKind::Medium)).on(FaultOperation::Write);
    faults.inject(fault);
    write(&pool, 0, 7).await;
    pool.close().await.unwrap();
    std::fs::write(path("rust-stale"), text(&disks).await).unwrap();

    let disks = memories(3, 1024 * 512);
    Pool::create(PoolSpec::Mirror { erase: true }, disks.clone()).await.unwrap();
    let pool = open(disks.clone()).await;
    write(&pool, 0, 3).await;
    pool.flush().await.unwrap();
    // The removed device keeps its label, as if it could not be reached.
    let mut vacant = snapshots(&disks).await;
    pool.remove(1).await.unwrap();
    write(&pool, 0, 4).await;
    pool.close().await.unwrap();
    for at in [0, 2] {
        vacant[at] = disks[at].clone();
    }
    std::fs::write(path("rust-vacant"), text(&vacant).await).unwrap();

    let disks = new_mirror().await;
    for disk in &disks {
        let options = OpenOptions { is_degraded: true, ..OpenOptions::default() };
        let pool = Pool::open("side", vec![Arc::clone(disk)], options).await.unwrap();
        write(&pool, 0, 8).await;
        pool.close().await.unwrap();
    }
    std::fs::write(path("rust-split"), text(&disks).await).unwrap();
}

/// Writes the files of this build, if it is told to.
#[tokio::test]
async fn written() {
    if std::env::var_os("LUNAR_WRITE_POOL_FIXTURES").is_none() {
        return;
    }
    let disks = memories(3, 1024 * 512);
    Pool::create(PoolSpec::Stripe { unit_bytes: 4096 }, disks.clone()).await.unwrap();
    let pool = open(disks.clone()).await;
    for unit in 0..7 {
        let range = BlockRange::new(unit * 8, 8);
        pool.write(range, filled(unit as u8 + 1, 8), false).await.unwrap();
    }
    std::fs::write(path("rust-stripe"), text(&disks).await).unwrap();
    let sizes = [64, 128, 32];
    let disks: Vec<Device> = sizes.map(|blocks| memories(1, blocks * 512).remove(0)).into();
    Pool::create(PoolSpec::Concat, disks.clone()).await.unwrap();
    let pool = open(disks.clone()).await;
    for (lba, value) in [(0, 1), (63, 2), (64, 3), (191, 4), (192, 5), (223, 6)] {
        pool.write(BlockRange::new(lba, 1), filled(value, 1), false).await.unwrap();
    }
    std::fs::write(path("rust-concat"), text(&disks).await).unwrap();
}
