//! Images of object stores with hostile changes.

use bytes::Bytes;
use lunar_block::{BlockDevice, BlockRange, MemoryDevice};
use lunar_osd::{
    AttributeId, ChangeOptions, ObjectCommand, ObjectId, ObjectStore, StoreError, StoreOptions,
};
use lunar_wire::crc32c;
use std::sync::Arc;

/// An image of format version 1, as its sectors: number (4 bytes), contents.
const SECTORS: &[u8] = include_bytes!("../../crates/lunar-osd/tests/fixtures/osd-1.sectors");
const SECTOR_BYTES: usize = 512;
const DISK_BYTES: usize = 8 << 20;
const BLOCK_BYTES: usize = 4096;
/// Number of blocks of a copy of the superblock.
const SUPERBLOCK_BLOCKS: usize = 32;
/// Number of objects of a list, and of bytes of an object, that are read.
const READ_MAX: usize = 64;

/// Changes an image as the input says, gives its superblocks and records the right checksums, and
/// checks and uses the store: an error or a report of the check is the only allowed result.
///
/// The input is a list of changes: area (1 byte: the superblocks, the log, all), offset (4), length
/// (1), bytes.
pub fn run(input: &[u8]) {
    let mut image = base_image();
    let mut rest = input;
    while let Some((&[area, a, b, c, d, len], after)) = rest.split_first_chunk() {
        let (bytes, after) = after.split_at(after.len().min(usize::from(len)));
        let offset = u32::from_be_bytes([a, b, c, d]) as usize;
        let at = match area % 4 {
            0 => offset % (SUPERBLOCK_BLOCKS * BLOCK_BYTES),
            1 => image.len() - SUPERBLOCK_BLOCKS * BLOCK_BYTES + offset % BLOCK_BYTES,
            2 => SUPERBLOCK_BLOCKS * BLOCK_BYTES + offset % (64 * BLOCK_BYTES),
            _ => offset % image.len(),
        };
        let end = image.len().min(at + bytes.len());
        image[at..end].copy_from_slice(&bytes[..end - at]);
        rest = after;
    }
    mend_checksums(&mut image);
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let device: Arc<dyn BlockDevice> = device_with(image).await;
        // An error is as good as a report.
        drop(lunar_osd::check(device.clone()).await);
        drop(use_store(device).await);
    });
}

fn base_image() -> Vec<u8> {
    let mut image = vec![0; DISK_BYTES];
    for entry in SECTORS.chunks_exact(4 + SECTOR_BYTES) {
        let (number, sector) = entry.split_first_chunk().unwrap();
        let at = u32::from_be_bytes(*number) as usize * SECTOR_BYTES;
        image[at..at + SECTOR_BYTES].copy_from_slice(sector);
    }
    image
}

/// Returns a number of 4 or 8 bytes.
fn number(bytes: &[u8]) -> usize {
    bytes.iter().fold(0_usize, |value, byte| value << 8 | usize::from(*byte))
}

fn mend_checksums(image: &mut [u8]) {
    for block in [0, DISK_BYTES / BLOCK_BYTES - SUPERBLOCK_BLOCKS] {
        let copy = &mut image[block * BLOCK_BYTES..][..SUPERBLOCK_BLOCKS * BLOCK_BYTES];
        let end = number(&copy[72..80]).checked_mul(8).and_then(|bytes| bytes.checked_add(80));
        if let Some(covered) = end.and_then(|end| copy.get(16..end)) {
            let sum = crc32c(covered);
            copy[12..16].copy_from_slice(&sum.to_be_bytes());
        }
    }
    for block in SUPERBLOCK_BLOCKS..DISK_BYTES / BLOCK_BYTES - SUPERBLOCK_BLOCKS {
        let record = &mut image[block * BLOCK_BYTES..];
        if record.starts_with(b"LOGR")
            && let Some(covered) = record.get(8..48 + number(&record[40..44]))
        {
            let sum = crc32c(covered);
            record[4..8].copy_from_slice(&sum.to_be_bytes());
        }
    }
}

async fn device_with(image: Vec<u8>) -> Arc<MemoryDevice> {
    let device = MemoryDevice::new(DISK_BYTES as u64, SECTOR_BYTES as u32, 4096).unwrap();
    let range = BlockRange::new(0, (DISK_BYTES / SECTOR_BYTES) as u64);
    device.write(range, Bytes::from(image), false).await.unwrap();
    Arc::new(device)
}

/// Reads and changes the first objects.
async fn use_store(device: Arc<dyn BlockDevice>) -> Result<(), StoreError> {
    let store = ObjectStore::open(device, StoreOptions::default()).await?;
    for partition in store.list_partitions(0, READ_MAX).await? {
        drop(store.information(ObjectId::of_partition(partition)).await);
        for id in store.list(partition, 0, READ_MAX).await? {
            let object = ObjectId::new(partition, id);
            drop(store.information(object).await);
            drop(store.memberships(object).await);
            drop(store.attributes(object, AttributeId::new(0x1_0000, 0), READ_MAX).await);
            if let Ok(bytes) = store.read(object, 0, READ_MAX as u64).await {
                assert!(bytes.len() <= READ_MAX);
            }
            drop(store.write(object, 5, Bytes::from_static(b"data")).await);
            drop(store.punch(object, 0, 3).await);
        }
        let remove = ObjectCommand::RemovePartition { id: partition, with_contents: true };
        drop(store.execute(vec![remove], ChangeOptions::default()).await);
    }
    for _ in 0..READ_MAX {
        if !store.reclaim().await? {
            break;
        }
    }
    store.close().await
}
