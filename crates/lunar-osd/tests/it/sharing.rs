//! Copies, snapshots and clones.

use crate::device::{DiskEvent, RecordingDevice, image_after_cut};
use crate::model::data;
use crate::stores::{DURABLE, assert_sound, create, memory, open, reclaim_all};
use lunar_osd::{
    AttributeId, ObjectCommand, ObjectId, ObjectStore, PartitionCopyTarget, PartitionKind,
    QuotaKind, StoreError,
};
use std::sync::Arc;

const ID: AttributeId = AttributeId::new(1, 1);

#[tokio::test]
async fn a_copy_shares_space_until_one_of_both_changes() {
    let device = memory(32 << 20);
    let store = create(device.clone()).await;
    let partition = store.create_partition(None).await.unwrap();
    let object = store.create(partition, None).await.unwrap();
    store.write(object, 0, data(1, 4 << 20)).await.unwrap();
    store.set_attribute(object, ID, Some(data(1, 9))).await.unwrap();
    let free = store.free_bytes();
    let copy = store.copy(object, partition, None).await.unwrap();
    assert_eq!(store.free_bytes(), free);
    store.write(copy, 10, data(2, 100)).await.unwrap();
    store.set_attribute(copy, ID, Some(data(2, 9))).await.unwrap();
    assert!(free - store.free_bytes() <= 4096);
    assert_eq!(store.read(object, 0, 4 << 20).await.unwrap(), data(1, 4 << 20));
    assert_eq!(store.attribute(object, ID).await.unwrap(), Some(data(1, 9)));
    store.remove(object).await.unwrap();
    reclaim_all(&store).await;
    assert_eq!(store.read(copy, 10, 100).await.unwrap(), data(2, 100));
    assert_eq!(store.read(copy, 4096, 4 << 20).await.unwrap(), data(1, 4 << 20)[4096..]);
    assert_eq!(store.attribute(copy, ID).await.unwrap(), Some(data(2, 9)));
    store.close().await.unwrap();
    assert_sound(device.clone()).await;
    let store = open(device.clone()).await;
    store.remove(copy).await.unwrap();
    reclaim_all(&store).await;
    store.close().await.unwrap();
    let report = lunar_osd::check(device).await.unwrap();
    assert_eq!((report.blobs, report.extents, report.attributes), (0, 0, 0));
}

/// Returns the number of bytes that a snapshot writes.
async fn snapshot_bytes(len: usize) -> usize {
    let device = RecordingDevice::new(vec![0; 24 << 20]);
    let store = create(device.clone()).await;
    let partition = store.create_partition(None).await.unwrap();
    let object = store.create(partition, None).await.unwrap();
    // Many extents.
    for round in (0..len).step_by(8192) {
        store.write(object, round as u64, data(1, 4096)).await.unwrap();
    }
    store.checkpoint().await.unwrap();
    let before = device.events().len();
    let target = PartitionCopyTarget::Snapshot(None);
    store.copy_partition(partition, target, DURABLE).await.unwrap();
    let written = device.events().split_off(before);
    written.iter().map(|e| if let DiskEvent::Write(_, data) = e { data.len() } else { 0 }).sum()
}

#[tokio::test]
async fn the_cost_of_a_snapshot_does_not_depend_on_data() {
    let (small, large) = (snapshot_bytes(8192).await, snapshot_bytes(4 << 20).await);
    assert_eq!(small, large);
}

async fn store_with_snapshot() -> (Arc<lunar_block::MemoryDevice>, ObjectStore, ObjectId, u64) {
    let device = memory(32 << 20);
    let store = create(device.clone()).await;
    let partition = store.create_partition(None).await.unwrap();
    let object = store.create(partition, None).await.unwrap();
    let collection = store.create_collection(partition, None).await.unwrap();
    store.write(object, 0, data(1, 100_000)).await.unwrap();
    store.set_membership(object, 1, Some(collection.object)).await.unwrap();
    store.set_attribute(ObjectId::of_partition(partition), ID, Some(data(1, 9))).await.unwrap();
    let target = PartitionCopyTarget::Snapshot(None);
    let snapshot = store.copy_partition(partition, target, DURABLE).await.unwrap();
    (device, store, object, snapshot)
}

#[tokio::test]
async fn a_snapshot_stays_and_restores_its_source() {
    let (device, store, object, snapshot) = store_with_snapshot().await;
    let kept = ObjectId { partition: snapshot, ..object };
    let found = store.information(ObjectId::of_partition(snapshot)).await.unwrap();
    assert_eq!(found.partition_kind, PartitionKind::Snapshot);
    assert_eq!(found.source, Some(object.partition));
    store.write(object, 0, data(2, 50_000)).await.unwrap();
    store.set_attribute(ObjectId::of_partition(object.partition), ID, None).await.unwrap();
    assert_eq!(store.read(kept, 0, 100_000).await.unwrap(), data(1, 100_000));
    let attribute = store.attribute(ObjectId::of_partition(snapshot), ID).await.unwrap();
    assert_eq!(attribute, Some(data(1, 9)));
    let collection = store.list_collections(snapshot, 0, 10).await.unwrap()[0];
    let members = store.list_members(ObjectId::new(snapshot, collection), 0, 10).await.unwrap();
    assert_eq!(members, [object.object]);
    let read_only =
        |result: Result<(), StoreError>| matches!(result, Err(StoreError::ReadOnlySnapshot(_)));
    assert!(read_only(store.write(kept, 0, data(1, 1)).await));
    assert!(read_only(store.remove(kept).await));
    assert!(read_only(store.create(snapshot, None).await.map(drop)));
    assert!(read_only(store.set_attribute(kept, ID, None).await));
    assert!(read_only(store.set_quota(kept, QuotaKind::ObjectLength, 1).await));
    let restore = PartitionCopyTarget::Existing(object.partition);
    store.copy_partition(snapshot, restore, DURABLE).await.unwrap();
    assert_eq!(store.read(object, 0, 100_000).await.unwrap(), data(1, 100_000));
    store.write(object, 0, data(3, 10)).await.unwrap();
    let remove = ObjectCommand::RemovePartition { id: snapshot, with_contents: true };
    store.execute(vec![remove], DURABLE).await.unwrap();
    reclaim_all(&store).await;
    assert_eq!(store.read(object, 0, 10).await.unwrap(), data(3, 10));
    store.close().await.unwrap();
    assert_sound(device).await;
}

#[tokio::test]
async fn a_clone_changes_and_can_be_detached() {
    let (device, store, object, snapshot) = store_with_snapshot().await;
    let target = PartitionCopyTarget::Clone(Some(0x7_0000));
    let clone = store.copy_partition(snapshot, target, DURABLE).await.unwrap();
    let changed = ObjectId { partition: clone, ..object };
    store.write(changed, 0, data(5, 10)).await.unwrap();
    assert_eq!(store.read(changed, 10, 99_990).await.unwrap(), data(1, 100_000)[10..]);
    assert_eq!(store.read(object, 0, 100_000).await.unwrap(), data(1, 100_000));
    let detach = |id| store.execute(vec![ObjectCommand::DetachClone(id)], DURABLE);
    assert!(matches!(detach(snapshot).await, Err(StoreError::WrongObjectKind(_))));
    detach(clone).await.unwrap();
    let found = store.information(ObjectId::of_partition(clone)).await.unwrap();
    assert_eq!((found.partition_kind, found.source), (PartitionKind::Primary, None));
    for target in [PartitionCopyTarget::Clone(Some(clone)), PartitionCopyTarget::Snapshot(Some(7))]
    {
        assert!(store.copy_partition(snapshot, target, DURABLE).await.is_err());
    }
    let itself = PartitionCopyTarget::Existing(clone);
    assert!(store.copy_partition(clone, itself, DURABLE).await.is_err());
    store.close().await.unwrap();
    assert_sound(device).await;
}

/// Its extents do not fit a record, so several records copy them.
#[tokio::test]
async fn a_copy_with_many_extents_can_be_changed() {
    let image = vec![0; 64 << 20];
    let device = RecordingDevice::new(image.clone());
    let store = create(device.clone()).await;
    let partition = store.create_partition(None).await.unwrap();
    let object = store.create(partition, None).await.unwrap();
    let count = 6000;
    for at in 0..count / 100 {
        let write = |n: u64| ObjectCommand::Write {
            object,
            offset: (at * 100 + n) * 8192,
            data: data((at * 100 + n) as u8, 100),
        };
        let commands = (0..100).map(write).collect();
        store.execute(commands, DURABLE).await.unwrap();
    }
    for number in 0..40 {
        let id = AttributeId::new(1, number);
        store.set_attribute(object, id, Some(data(number as u8, 60_000))).await.unwrap();
    }
    let copy = store.copy(object, partition, None).await.unwrap();
    let before = device.events().len();
    store.write(copy, 8192, data(200, 100)).await.unwrap();
    store.set_attribute(copy, ID, Some(data(9, 9))).await.unwrap();
    let events = device.events();
    for at in [0, 1, 2, count - 1] {
        let want = |id| data(if id == copy && at == 1 { 200 } else { at as u8 }, 100);
        for id in [object, copy] {
            assert_eq!(store.read(id, at * 8192, 100).await.unwrap(), want(id), "{at}");
        }
    }
    assert_eq!(store.attribute(copy, ID).await.unwrap(), Some(data(9, 9)));
    assert_eq!(store.attribute(object, ID).await.unwrap(), Some(data(1, 60_000)));
    store.close().await.unwrap();
    assert_sound(device).await;
    // A power cut between the records of the copies.
    for part in 1..4 {
        let cut = before + (events.len() - before) * part / 4;
        let image = image_after_cut(image.clone(), &events[..cut], || true);
        let device = RecordingDevice::new(image);
        assert_sound(device.clone()).await;
        let store = open(device).await;
        let found = store.read(copy, 8192, 100).await.unwrap();
        assert!(found == data(1, 100) || found == data(200, 100), "cut after {cut}");
    }
}
