//! Images of each version of the format, as files of their sectors that are not zero.
//!
//! `LUNAR_WRITE_FIXTURES=1 cargo test -p lunar-osd fixtures` writes the file of the present version
//! anew. An old version never changes.

use crate::device::RecordingDevice;
use crate::model::data;
use crate::stores::{DURABLE, assert_sound, create, open};
use lunar_osd::{AttributeId, ObjectId, PartitionCopyTarget, QuotaKind};
use std::path::PathBuf;

const SECTOR_BYTES: usize = 512;
const DISK_BYTES: usize = 8 << 20;
const ID: AttributeId = AttributeId::new(0x1_0000, 1);

fn path(version: u32) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("tests/fixtures/osd-{version}.sectors"))
}

/// Encodes the sectors of an image: number (4 bytes), contents.
fn to_sectors(image: &[u8]) -> Vec<u8> {
    let sectors = (0_u32..).zip(image.chunks(SECTOR_BYTES));
    let used = sectors.filter(|(_, sector)| sector.iter().any(|byte| *byte != 0));
    used.flat_map(|(number, sector)| [&number.to_be_bytes()[..], sector].concat()).collect()
}

pub fn from_sectors(sectors: &[u8]) -> Vec<u8> {
    let mut image = vec![0; DISK_BYTES];
    for entry in sectors.chunks_exact(4 + SECTOR_BYTES) {
        let number = u32::from_be_bytes(entry[..4].try_into().unwrap()) as usize;
        image[number * SECTOR_BYTES..][..SECTOR_BYTES].copy_from_slice(&entry[4..]);
    }
    image
}

/// Makes a store with all kinds of rows, some of them in the log only.
async fn image() -> Vec<u8> {
    let device = RecordingDevice::new(vec![0; DISK_BYTES]);
    let store = create(device.clone()).await;
    let partition = store.create_partition(Some(0x1_0000)).await.unwrap();
    let object = store.create(partition, Some(0x1_0000)).await.unwrap();
    let collection = store.create_collection(partition, Some(0x1_0001)).await.unwrap();
    store.write(object, 5000, data(1, 20_000)).await.unwrap();
    store.set_attribute(object, ID, Some(data(2, 30))).await.unwrap();
    store.set_membership(object, 1, Some(collection.object)).await.unwrap();
    store.set_quota(ObjectId::ROOT, QuotaKind::PartitionCount, 9).await.unwrap();
    store.copy(object, partition, Some(0x1_0002)).await.unwrap();
    store.checkpoint().await.unwrap();
    let target = PartitionCopyTarget::Snapshot(Some(0x2_0000));
    store.copy_partition(partition, target, DURABLE).await.unwrap();
    store.write(object, 0, data(3, 100)).await.unwrap();
    device.image()
}

#[tokio::test]
async fn version_1_can_be_read() {
    if std::env::var_os("LUNAR_WRITE_FIXTURES").is_some() {
        std::fs::create_dir_all(path(1).parent().unwrap()).unwrap();
        std::fs::write(path(1), to_sectors(&image().await)).unwrap();
    }
    let image = from_sectors(&std::fs::read(path(1)).unwrap());
    let device = RecordingDevice::new(image.clone());
    assert_sound(device.clone()).await;
    assert_eq!(device.image(), image, "a check must not write");
    let store = open(device.clone()).await;
    assert_eq!(store.list_partitions(0, 10).await.unwrap(), [0x1_0000, 0x2_0000]);
    for partition in [0x1_0000, 0x2_0000] {
        let object = ObjectId::new(partition, 0x1_0000);
        assert_eq!(store.list(partition, 0, 10).await.unwrap(), [0x1_0000, 0x1_0002]);
        assert_eq!(store.read(object, 5000, 1 << 20).await.unwrap(), data(1, 20_000));
        assert_eq!(store.attribute(object, ID).await.unwrap(), Some(data(2, 30)));
        assert_eq!(store.memberships(object).await.unwrap(), [(1, 0x1_0001)]);
    }
    let changed = ObjectId::new(0x1_0000, 0x1_0000);
    assert_eq!(store.read(changed, 0, 100).await.unwrap(), data(3, 100));
    let root = store.information(ObjectId::ROOT).await.unwrap();
    assert_eq!(root.quotas.partition_count, 9);
    store.close().await.unwrap();
    assert_sound(device).await;
}
