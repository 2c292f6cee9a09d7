//! Space: what is given back, and commands on a full store.

use crate::model::data;
use crate::stores::{DURABLE, assert_sound, create, memory, open, reclaim_all};
use lunar_osd::{AttributeId, ChangeOptions, ObjectCommand, ObjectId, ObjectStore, StoreError};
use std::sync::Arc;

#[tokio::test]
async fn freed_space_is_given_back_to_the_device() {
    let device = memory(32 << 20);
    let store = create(device.clone()).await;
    let partition = store.create_partition(None).await.unwrap();
    let object = store.create(partition, None).await.unwrap();
    store.write(object, 0, data(1, 12 << 20)).await.unwrap();
    store.checkpoint().await.unwrap();
    let full = device.allocated_bytes();
    store.punch(object, 0, 4 << 20).await.unwrap();
    store.close().await.unwrap();
    let punched = device.allocated_bytes();
    assert!(full - punched > (4 << 20) - (1 << 20), "{full} to {punched} bytes");
    let store = open(device.clone()).await;
    assert_eq!(store.read(object, 0, 9 << 20).await.unwrap(), data(1, 12 << 20)[4 << 20..]);
    store.remove(object).await.unwrap();
    reclaim_all(&store).await;
    store.close().await.unwrap();
    let removed = device.allocated_bytes();
    assert!(punched - removed > (8 << 20) - (1 << 20), "{punched} to {removed} bytes");
    assert_sound(device).await;
}

/// Fills a store with data and then with attributes, until nothing can be added.
async fn fill(store: &ObjectStore, partition: u64) -> Vec<ObjectId> {
    let mut objects = Vec::new();
    for len in [1 << 20, 65_536, 4096] {
        loop {
            let Ok(object) = store.create(partition, None).await else { break };
            objects.push(object);
            match store.append(object, data(1, len)).await {
                Ok(_) => {}
                Err(StoreError::NoSpace) => break,
                Err(error) => panic!("{error}"),
            }
        }
    }
    for number in 0.. {
        let id = AttributeId::new(1, number);
        match store.set_attribute(objects[1], id, Some(data(1, 60_000))).await {
            Ok(()) => assert!(number < 1000),
            Err(StoreError::NoSpace) => break,
            Err(error) => panic!("{error}"),
        }
    }
    objects
}

#[tokio::test]
async fn commands_that_free_space_work_on_a_full_store() {
    let device = memory(16 << 20);
    let store = create(device.clone()).await;
    let partition = store.create_partition(None).await.unwrap();
    let objects = fill(&store, partition).await;
    let refused = store.create(partition, None).await;
    assert!(matches!(refused, Err(StoreError::NoSpace)), "{refused:?}");
    store.flush().await.unwrap();
    store.punch(objects[1], 5000, 300_000).await.unwrap();
    store.clear(objects[2], 5000, 300_000).await.unwrap();
    store.checkpoint().await.unwrap();
    for object in &objects[3..] {
        store.remove(*object).await.unwrap();
        store.checkpoint().await.unwrap();
    }
    assert_eq!(store.read(objects[0], 0, 2 << 20).await.unwrap(), data(1, 1 << 20));
    store.write(objects[2], 0, data(2, 1 << 20)).await.unwrap();
    store.create(partition, None).await.unwrap();
    store.close().await.unwrap();
    assert_sound(device).await;
}

/// A partition with many objects is removed by one short record; the rest happens later, also after
/// a crash.
#[tokio::test]
async fn a_partition_is_removed_at_once_and_reclaimed_after_a_crash() {
    let device = memory(32 << 20);
    let store = create(device.clone()).await;
    let empty = store.free_bytes();
    let partition = store.create_partition(None).await.unwrap();
    let object = store.create(partition, Some(0x1_0000)).await.unwrap();
    for _ in 0..2000 {
        let copy =
            ObjectCommand::Copy { source: object, partition, id: None, with_attributes: true };
        store.execute(vec![copy], ChangeOptions::default()).await.unwrap();
    }
    store.write(object, 0, data(1, 1 << 20)).await.unwrap();
    let remove = ObjectCommand::RemovePartition { id: partition, with_contents: true };
    store.execute(vec![remove], DURABLE).await.unwrap();
    // The id can be used again at once, and the old objects are not there.
    assert_eq!(store.create_partition(Some(partition)).await.unwrap(), partition);
    assert_eq!(store.list(partition, 0, 10).await.unwrap(), []);
    store.flush().await.unwrap();
    drop(store); // without a close

    let store = open(device.clone()).await;
    assert_eq!(store.list(partition, 0, 10).await.unwrap(), []);
    reclaim_all(&store).await;
    store.remove_partition(partition).await.unwrap();
    store.close().await.unwrap();
    let report = lunar_osd::check(device.clone()).await.unwrap();
    assert_eq!((report.removals, report.blobs, report.problems), (0, 0, vec![]));
    let store = Arc::new(open(device).await);
    let lost = empty - store.free_bytes();
    assert!(lost < 3 << 20, "{lost} bytes are lost");
}
