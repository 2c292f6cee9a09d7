//! Kinds of objects, quotas and times.

use crate::model::data;
use crate::stores::{DURABLE, assert_sound, create, memory, open};
use lunar_block::MemoryDevice;
use lunar_osd::{
    AccessKind, AttributeId, ChangeOptions, ObjectCommand, ObjectId, ObjectKind, ObjectStore,
    QuotaKind, StoreError,
};
use std::sync::Arc;

async fn store_with_object() -> (Arc<MemoryDevice>, ObjectStore, ObjectId) {
    let device = memory(16 << 20);
    let store = create(device.clone()).await;
    let partition = store.create_partition(None).await.unwrap();
    let object = store.create(partition, None).await.unwrap();
    (device, store, object)
}

#[tokio::test]
async fn objects_and_collections_refer_to_each_other() {
    let (device, store, object) = store_with_object().await;
    let partition = object.partition;
    let first = store.create_collection(partition, None).await.unwrap();
    let second = store.create_collection(partition, None).await.unwrap();
    assert_eq!(store.information(first).await.unwrap().kind, ObjectKind::Collection);
    store.set_membership(object, 1, Some(first.object)).await.unwrap();
    store.set_membership(object, 7, Some(second.object)).await.unwrap();
    let other = store.create(partition, None).await.unwrap();
    store.set_membership(other, 1, Some(first.object)).await.unwrap();
    let found = store.memberships(object).await.unwrap();
    assert_eq!(found, [(1, first.object), (7, second.object)]);
    let members = store.list_members(first, 0, 10).await.unwrap();
    assert_eq!(members, [object.object, other.object]);
    assert_eq!(store.list_members(first, object.object + 1, 10).await.unwrap(), [other.object]);
    assert_eq!(store.list(partition, 0, 10).await.unwrap(), members);
    assert_eq!(
        store.list_collections(partition, 0, 10).await.unwrap(),
        [first.object, second.object]
    );
    // A collection is no user object, and the other way round.
    let wrong =
        |result: Result<(), StoreError>| matches!(result, Err(StoreError::WrongObjectKind(_)));
    assert!(wrong(store.write(first, 0, data(1, 1)).await));
    assert!(wrong(store.remove(first).await));
    assert!(wrong(store.set_membership(first, 1, Some(second.object)).await));
    assert!(wrong(store.set_membership(object, 1, Some(other.object)).await));
    for number in [0, 0xffff_ff01] {
        let refused = store.set_membership(object, number, Some(first.object)).await;
        assert!(matches!(refused, Err(StoreError::InvalidNumber(_))));
    }
    // The end of a collection, and of a member.
    let remove = |with_members| ObjectCommand::RemoveCollection { id: first, with_members };
    let refused = store.execute(vec![remove(false)], DURABLE).await;
    assert!(matches!(refused, Err(StoreError::CollectionNotEmpty(_))));
    store.execute(vec![remove(true)], DURABLE).await.unwrap();
    assert_eq!(store.memberships(object).await.unwrap(), [(7, second.object)]);
    // A new collection with the id does not get the old members.
    store.create_collection(partition, Some(first.object)).await.unwrap();
    assert_eq!(store.memberships(object).await.unwrap(), [(7, second.object)]);
    store.remove(object).await.unwrap();
    assert_eq!(store.list_members(second, 0, 10).await.unwrap(), []);
    store.close().await.unwrap();
    assert_sound(device).await;
}

fn quota_of(result: Result<(), StoreError>) -> QuotaKind {
    match result {
        Err(StoreError::QuotaExceeded { quota, .. }) => quota,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn quotas_forbid_growth_only() {
    let (device, store, object) = store_with_object().await;
    let partition = ObjectId::of_partition(object.partition);
    store.write(object, 0, data(1, 10_000)).await.unwrap();
    assert_eq!(store.information(partition).await.unwrap().used_bytes, 12_288);

    store.set_quota(object, QuotaKind::ObjectLength, 5000).await.unwrap();
    store.write(object, 0, data(2, 10_000)).await.unwrap();
    let grown = store.append(object, data(1, 1)).await.map(drop);
    assert_eq!(quota_of(grown), QuotaKind::ObjectLength);
    let grown = store.clear(object, 10_000, 1).await;
    assert_eq!(quota_of(grown), QuotaKind::ObjectLength);
    assert_eq!(store.length(object).await.unwrap(), 10_000);
    store.set_length(object, 3000).await.unwrap();
    store.set_length(object, 5000).await.unwrap();
    assert_eq!(quota_of(store.set_length(object, 5001).await), QuotaKind::ObjectLength);

    store.set_quota(partition, QuotaKind::Capacity, 12_288).await.unwrap();
    store.set_quota(partition, QuotaKind::ObjectLength, 1 << 40).await.unwrap();
    let other = store.create(object.partition, None).await.unwrap();
    store.write(other, 1 << 39, data(1, 8192)).await.unwrap();
    let grown = store.write(other, 0, data(1, 1)).await;
    assert_eq!(quota_of(grown), QuotaKind::Capacity);
    let copied = store.copy(other, object.partition, None).await.map(drop);
    assert_eq!(quota_of(copied), QuotaKind::Capacity);
    store.clear(object, 0, 5000).await.unwrap();
    store.write(other, 0, data(1, 1)).await.unwrap();

    store.set_quota(partition, QuotaKind::ObjectCount, 3).await.unwrap();
    let collection = store.create_collection(object.partition, None).await.unwrap();
    let created = store.create(object.partition, None).await.map(drop);
    assert_eq!(quota_of(created), QuotaKind::ObjectCount);

    store.set_quota(partition, QuotaKind::Memberships, 1).await.unwrap();
    store.set_membership(object, 1, Some(collection.object)).await.unwrap();
    store.set_membership(object, 1, Some(collection.object)).await.unwrap();
    let joined = store.set_membership(object, 2, Some(collection.object)).await;
    assert_eq!(quota_of(joined), QuotaKind::Memberships);

    // Limits of the root are those of new partitions.
    store.set_quota(ObjectId::ROOT, QuotaKind::ObjectCount, 0).await.unwrap();
    store.set_quota(ObjectId::ROOT, QuotaKind::PartitionCount, 2).await.unwrap();
    let second = store.create_partition(None).await.unwrap();
    assert_eq!(quota_of(store.create(second, None).await.map(drop)), QuotaKind::ObjectCount);
    let third = store.create_partition(None).await.map(drop);
    assert_eq!(quota_of(third), QuotaKind::PartitionCount);
    for (owner, quota) in [
        (object, QuotaKind::Capacity),
        (collection, QuotaKind::ObjectLength),
        (partition, QuotaKind::PartitionCount),
    ] {
        let refused = store.set_quota(owner, quota, 1).await;
        assert!(matches!(refused, Err(StoreError::WrongObjectKind(_))), "{owner:?}");
    }
    store.close().await.unwrap();
    assert_sound(device.clone()).await;
    let store = open(device).await;
    let found = store.information(partition).await.unwrap();
    assert_eq!((found.used_bytes, found.contained), (12_288, 3));
    assert_eq!((found.quotas.capacity, found.quotas.memberships), (12_288, 1));
    assert_eq!(store.information(ObjectId::ROOT).await.unwrap().contained, 2);
}

#[tokio::test]
async fn changes_have_times_unless_they_bypass_them() {
    let (_, store, object) = store_with_object().await;
    let at = |time| ChangeOptions { durable: true, time };
    let create = ObjectCommand::Create { partition: object.partition, id: Some(0x9_0000) };
    store.execute(vec![create], at(Some(1000))).await.unwrap();
    let object = ObjectId { object: 0x9_0000, ..object };
    let write = ObjectCommand::Append { object, data: data(1, 3) };
    let id = AttributeId::new(1, 1);
    let set = ObjectCommand::SetAttribute { owner: object, id, value: Some(data(1, 3)) };
    store.execute(vec![write.clone()], at(Some(2000))).await.unwrap();
    store.execute(vec![set.clone()], at(Some(3000))).await.unwrap();
    store.execute(vec![write, set], at(None)).await.unwrap();
    let times = store.information(object).await.unwrap().times;
    assert_eq!((times.created, times.data_modified, times.attributes_modified), (1000, 2000, 3000));
    let partition = store.information(ObjectId::of_partition(object.partition)).await.unwrap();
    assert_eq!(partition.times.data_modified, 1000);
}

#[tokio::test]
async fn times_of_access_are_stored_without_writes_of_their_own() {
    let device = crate::device::RecordingDevice::new(vec![0; 8 << 20]);
    let store = create(device.clone()).await;
    let partition = store.create_partition(None).await.unwrap();
    let object = store.create(partition, None).await.unwrap();
    let removed = store.create(partition, None).await.unwrap();
    let written = device.events().len();
    for id in [object, removed, ObjectId::ROOT, ObjectId::of_partition(partition)] {
        store.record_access(id, AccessKind::Data, 5000).await.unwrap();
        store.record_access(id, AccessKind::Attributes, 6000).await.unwrap();
    }
    store.flush().await.unwrap();
    assert_eq!(device.events().len(), written);
    let times = |found: lunar_osd::ObjectInformation| {
        (found.times.data_accessed, found.times.attributes_accessed)
    };
    assert_eq!(times(store.information(object).await.unwrap()), (5000, 6000));
    store.remove(removed).await.unwrap();
    store.close().await.unwrap();
    assert_sound(device.clone()).await;
    let store = open(device.clone()).await;
    assert_eq!(times(store.information(object).await.unwrap()), (5000, 6000));
    assert_eq!(times(store.information(ObjectId::ROOT).await.unwrap()), (5000, 6000));
    // Without other changes a close stores them too.
    store.record_access(object, AccessKind::Data, 7000).await.unwrap();
    store.close().await.unwrap();
    let store = open(device.clone()).await;
    assert_eq!(times(store.information(object).await.unwrap()), (7000, 6000));
    store.remove(object).await.unwrap();
    store.close().await.unwrap();
    assert_sound(device).await;
}

#[tokio::test]
async fn a_format_of_the_root_removes_everything() {
    let (device, store, object) = store_with_object().await;
    let id = AttributeId::new(1, 1);
    store.write(object, 0, data(1, 100_000)).await.unwrap();
    store.set_attribute(ObjectId::ROOT, id, Some(data(1, 3))).await.unwrap();
    store.set_quota(ObjectId::ROOT, QuotaKind::PartitionCount, 1).await.unwrap();
    store.execute(vec![ObjectCommand::RemoveAll], DURABLE).await.unwrap();
    assert_eq!(store.list_partitions(0, 10).await.unwrap(), []);
    assert_eq!(store.attribute(ObjectId::ROOT, id).await.unwrap(), None);
    assert_eq!(store.create_partition(None).await.unwrap(), object.partition);
    assert_eq!(store.list(object.partition, 0, 10).await.unwrap(), []);
    store.create_partition(None).await.unwrap();
    crate::stores::reclaim_all(&store).await;
    store.close().await.unwrap();
    let report = lunar_osd::check(device).await.unwrap();
    assert_eq!((report.blobs, report.attributes, report.problems), (0, 0, vec![]));
}
