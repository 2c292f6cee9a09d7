//! Members of pools that Java and Rust have written, in `testdata/pools/`. Java's tests open the
//! same files.
//!
//! A file has the members of one pool: a line `disk NAME BLOCK_BYTES BLOCK_COUNT` begins each, and a
//! line `OFFSET LENGTH HEX` fills LENGTH bytes with repetitions of HEX. All other bytes are 0.
//! `LUNAR_WRITE_POOL_FIXTURES=1 cargo test -p lunar-pool fixtures::written` writes those of Rust.

use crate::common::{Device, filled, first_byte, memories, read};
use lunar_block::{BlockDevice, BlockRange, MemoryDevice};
use lunar_pool::{OpenOptions, Pool, PoolSpec};
use std::path::PathBuf;
use std::sync::Arc;

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
    let mut bytes = read(disk, first, count).await;
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
