//! Each contradiction is found.

use super::{CheckProblem, CheckReport, CheckedSum, check};
use crate::block_io::BlockIo;
use crate::format::{
    BlobRow, MemberRow, ObjectRow, PartitionRow, RemovedRows, RootRow, RowKey, SharedRow,
};
use crate::store::recovery;
use crate::{AttributeId, FIRST_ID, FormatOptions, ObjectId, ObjectStore, StoreOptions};
use bytes::Bytes;
use lunar_block::MemoryDevice;
use std::sync::Arc;

const ID: ObjectId = ObjectId::new(FIRST_ID, FIRST_ID);

/// A store with an object that has a copy and is a member of a collection.
async fn device() -> Arc<MemoryDevice> {
    let device = Arc::new(MemoryDevice::new(8 << 20, 512, 4096).unwrap());
    ObjectStore::format(device.clone(), FormatOptions::default()).await.unwrap();
    let store = ObjectStore::open(device.clone(), StoreOptions::default()).await.unwrap();
    let partition = store.create_partition(Some(FIRST_ID)).await.unwrap();
    let object = store.create(partition, Some(FIRST_ID)).await.unwrap();
    store.write(object, 0, vec![1; 9000].into()).await.unwrap();
    store.set_attribute(object, AttributeId::new(1, 1), Some(b"1"[..].into())).await.unwrap();
    let collection = store.create_collection(partition, None).await.unwrap();
    store.set_membership(object, 1, Some(collection.object)).await.unwrap();
    store.copy(object, partition, None).await.unwrap();
    store.close().await.unwrap();
    device
}

/// Changes the first row from `from` to `to`, and checks the store.
async fn report(
    from: RowKey,
    to: RowKey,
    change: impl FnOnce(RowKey, &[u8]) -> Vec<(RowKey, Option<Bytes>)> + Send + 'static,
) -> CheckReport {
    let device = device().await;
    let io = BlockIo::new(device.clone());
    let changed = tokio::task::spawn_blocking(move || {
        let shared = recovery::open_only(io, 1 << 20).unwrap();
        let index = shared.index().unwrap();
        let found = index.rows().unwrap().find(&from.encode(), &to.encode(), false).unwrap();
        let (key, value) = found.unwrap();
        let rows = change(RowKey::decode(&key).unwrap(), &value);
        let rows: Vec<_> = rows.iter().map(|(key, value)| (key.encode(), value)).collect();
        index.apply(rows.iter().map(|(key, value)| (&key[..], value.as_deref()))).unwrap();
        drop(index);
        shared.close();
    });
    changed.await.unwrap();
    check(device).await.unwrap()
}

fn sum_of(report: &CheckReport) -> (ObjectId, CheckedSum) {
    match report.problems[..] {
        [CheckProblem::WrongSum { owner, what, counted, stored }] => {
            assert_ne!(counted, stored);
            (owner, what)
        }
        _ => panic!("{:?}", report.problems),
    }
}

#[tokio::test]
async fn an_unchanged_store_has_no_problem() {
    let report = check(device().await).await.unwrap();
    assert_eq!(report.problems, []);
    let counts = (report.partitions, report.objects, report.collections, report.blobs);
    assert_eq!(counts, (1, 2, 1, 1));
    assert_eq!((report.extents, report.attributes, report.data_bytes), (1, 1, 12_288));
}

#[tokio::test]
async fn wrong_sums_are_found() {
    let partitions = (RowKey::Partition(0, 0), RowKey::Partition(u64::MAX, 0));
    let partition = ObjectId::of_partition(FIRST_ID);
    let found = report(partitions.0, partitions.1, |key, value| {
        let row = PartitionRow::decode(value).unwrap();
        vec![(key, Some(PartitionRow { used: row.used + 1, ..row }.encode()))]
    });
    assert_eq!(sum_of(&found.await), (partition, CheckedSum::UsedBytes));
    let found = report(partitions.0, partitions.1, |key, value| {
        let row = PartitionRow::decode(value).unwrap();
        vec![(key, Some(PartitionRow { objects: row.objects - 1, ..row }.encode()))]
    });
    assert_eq!(sum_of(&found.await), (partition, CheckedSum::ObjectCount));
    let found = report(RowKey::Root, partitions.0, |key, value| {
        let row = RootRow::decode(value).unwrap();
        vec![(key, Some(RootRow { partitions: 2, ..row }.encode()))]
    });
    assert_eq!(sum_of(&found.await), (ObjectId::ROOT, CheckedSum::PartitionCount));
    let objects = (RowKey::Object(0, 0), RowKey::Object(u64::MAX, 0));
    let found = report(objects.0, objects.1, |key, value| {
        let row = ObjectRow::decode(value).unwrap();
        vec![(key, Some(ObjectRow { used: row.used - 4096, ..row }.encode()))]
    });
    let wrong = found.await.problems;
    let is_object = |problem: &CheckProblem| {
        matches!(problem, CheckProblem::WrongSum { owner, counted: 12_288, stored: 8192, .. }
            if *owner == ID)
    };
    assert!(wrong.iter().any(is_object), "{wrong:?}");
}

#[tokio::test]
async fn wrong_counts_of_users_are_found() {
    let blobs = (RowKey::Blob(0), RowKey::Blob(u64::MAX));
    let found = report(blobs.0, blobs.1, |key, value| {
        let row = BlobRow::decode(value).unwrap();
        vec![(key, Some(BlobRow { references: 2, ..row }.encode()))]
    });
    let found = found.await.problems;
    assert!(
        matches!(found[..], [CheckProblem::WrongReferences { counted: 1, stored: 2, .. }]),
        "{found:?}"
    );
    for first in [RowKey::SharedAttributes(0), RowKey::SharedData(0)] {
        for (users, stored) in [(Some(3), 3), (None, 1)] {
            let value = users.map(|users| SharedRow { users }.encode());
            let found = report(first, RowKey::Membership(0, 0), move |key, _| vec![(key, value)]);
            let found = found.await.problems;
            let [CheckProblem::WrongUsers { counted: 2, stored: found, .. }] = found[..] else {
                panic!("{found:?}");
            };
            assert_eq!(found, stored);
        }
    }
}

#[tokio::test]
async fn rows_without_their_counterparts_are_found() {
    let orphan = |found: &[CheckProblem]| matches!(found[..], [CheckProblem::OrphanRow(_)]);
    let attributes = RowKey::Attribute(0, AttributeId::new(0, 0));
    let found = report(attributes, RowKey::Extent(0, 0), |_, value| {
        let key = RowKey::Attribute(999, AttributeId::new(1, 1));
        vec![(key, Some(Bytes::copy_from_slice(value)))]
    });
    assert!(orphan(&found.await.problems));
    // The same row is right when it waits for its removal.
    let found = report(attributes, RowKey::Extent(0, 0), |_, value| {
        let key = RowKey::Attribute(999, AttributeId::new(1, 1));
        let removed = RowKey::Removed(RemovedRows::Attributes, 999);
        vec![(key, Some(Bytes::copy_from_slice(value))), (removed, Some(Bytes::new()))]
    });
    assert_eq!(found.await.problems, []);
    let found = report(RowKey::Object(0, 0), RowKey::Object(u64::MAX, 0), |_, value| {
        let row = ObjectRow::decode(value).unwrap();
        let row = ObjectRow { serial: 999, attributes: 999, data: 999, used: 0, ..row };
        vec![(RowKey::Object(888, FIRST_ID), Some(row.encode()))]
    });
    assert!(orphan(&found.await.problems));
    let found = report(RowKey::Member(0, 0), RowKey::Member(u64::MAX, 0), |key, value| {
        let row = MemberRow::decode(value).unwrap();
        vec![(key, Some(MemberRow { count: 2, ..row }.encode()))]
    });
    assert!(matches!(found.await.problems[..], [CheckProblem::WrongMembership { .. }]));
    let found =
        report(RowKey::Member(0, 0), RowKey::Member(u64::MAX, 0), |key, _| vec![(key, None)]);
    assert!(matches!(found.await.problems[..], [CheckProblem::WrongMembership { .. }]));
}

#[tokio::test]
async fn wrong_extents_and_blocks_are_found() {
    let extents = (RowKey::Extent(0, 0), RowKey::Extent(u64::MAX, 0));
    let found = report(extents.0, extents.1, |key, value| {
        let RowKey::Extent(map, _) = key else { panic!("{key:?}") };
        let value = Bytes::copy_from_slice(value);
        vec![(key, None), (RowKey::Extent(map, 1 << 40), Some(value))]
    });
    let found = found.await.problems;
    assert!(matches!(found[..], [CheckProblem::WrongExtent { .. }]), "{found:?}");
    let found = report(RowKey::BitmapPage(0), RowKey::BitmapPage(1), |key, value| {
        let mut bits = value.to_vec();
        // Blocks 1600 to 1607 are neither used nor of the fixed areas.
        bits[1600 / 8 + 7] ^= 0xff;
        vec![(key, Some(bits.into()))]
    });
    let found = found.await.problems;
    assert_eq!(found, [CheckProblem::WrongBitmap { first: 1600, count: 8 }]);
    let found = report(RowKey::Blob(0), RowKey::Blob(u64::MAX), |key, value| {
        let RowKey::Blob(start) = key else { panic!("{key:?}") };
        vec![(RowKey::Blob(start + 1), Some(Bytes::copy_from_slice(value)))]
    });
    let found = found.await.problems;
    assert!(found.iter().any(|p| matches!(p, CheckProblem::OverlappingBlob(_))), "{found:?}");
    let found = report(RowKey::Blob(0), RowKey::Blob(u64::MAX), |_, _| {
        vec![(RowKey::Blob(1), Some(Bytes::from_static(b"no row")))]
    });
    assert!(matches!(found.await.problems[..], [CheckProblem::InvalidRow(_)]));
}
