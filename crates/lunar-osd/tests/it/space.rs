//! Space: what is given back, and commands on a full store.

use crate::device::RecordingDevice;
use crate::model::data;
use crate::stores::{DURABLE, WRITE_BACK, assert_sound, create, memory, open, reclaim_all};
use lunar_block::{Effect, Fault, FaultDevice, FaultOperation};
use lunar_osd::{
    AttributeId, ChangeOptions, FIRST_ID, ObjectCommand, ObjectId, ObjectStore, StoreError,
};
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
    let device = RecordingDevice::new(vec![0; 32 << 20]);
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
    // The image is the state after a crash: the log has the removal, and perhaps the first steps of
    // the reclaim.
    let device = RecordingDevice::new(device.image());
    let store = open(device.clone()).await;
    assert_eq!(store.list(partition, 0, 10).await.unwrap(), []);
    reclaim_all(&store).await;
    store.remove_partition(partition).await.unwrap();
    store.close().await.unwrap();
    let report = lunar_osd::check(device.clone()).await.unwrap();
    assert_eq!((report.removals, report.blobs, report.problems), (0, 0, vec![]));
    let store = open(device).await;
    let lost = empty - store.free_bytes();
    assert!(lost < 3 << 20, "{lost} bytes are lost");
}

/// Blocks that only a reader keeps from being used again are free after a crash.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crash_during_a_slow_read_loses_no_space() {
    let disk = RecordingDevice::new(vec![0; 16 << 20]);
    let device = FaultDevice::new(disk.clone(), 1);
    let store = Arc::new(create(device.clone()).await);
    let partition = store.create_partition(None).await.unwrap();
    let object = store.create(partition, None).await.unwrap();
    store.write(object, 0, data(0, 400_000)).await.unwrap();
    assert_eq!(store.read(object, 0, 400_000).await.unwrap(), data(0, 400_000));
    device.inject(Fault::new(Effect::Hang).on(FaultOperation::Read).times(1));
    let reader = Arc::clone(&store);
    let reading = tokio::spawn(async move { reader.read(object, 0, 400_000).await });
    while device.hanging() == 0 {
        tokio::task::yield_now().await;
    }
    for round in 1..4 {
        store.write(object, 0, data(round, 400_000)).await.unwrap();
        store.checkpoint().await.unwrap();
    }
    assert_sound(RecordingDevice::new(disk.image())).await;
    device.release();
    assert_eq!(reading.await.unwrap().unwrap(), data(0, 400_000));
}

/// Random commands on a store that is always full: none stops it.
#[tokio::test]
async fn a_full_store_still_serves_commands() {
    let seeds: u64 = std::env::var("LUNAR_SEEDS").map_or(1, |seeds| seeds.parse().unwrap());
    for seed in 1..=seeds {
        stay_full(seed).await;
    }
}

async fn stay_full(seed: u64) {
    let device = memory(8 << 20);
    create(device.clone()).await.close().await.unwrap();
    let store = ObjectStore::open(device.clone(), WRITE_BACK).await.unwrap();
    let partition = store.create_partition(None).await.unwrap();
    let mut random = seed;
    let mut next = move |below: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        (random >> 8) % below
    };
    let (mut refused, mut removed) = (0, 0);
    for step in 0..1500_u32 {
        let object = ObjectId::new(partition, FIRST_ID + next(200));
        let bytes = data(step as u8, next(60_000) as usize);
        let id = AttributeId::new(1, next(5) as u32);
        let command = match next(12) {
            0..=2 => ObjectCommand::Create { partition, id: Some(object.object) },
            3..=5 => ObjectCommand::Write { object, offset: next(100_000), data: bytes },
            6 => ObjectCommand::SetAttribute { owner: object, id, value: Some(bytes) },
            7 => ObjectCommand::Punch { object, offset: next(1000), len: next(50_000) },
            8 => ObjectCommand::Clear { object, offset: next(1000), len: next(50_000) },
            9 => ObjectCommand::Copy {
                source: object,
                partition,
                id: Some(FIRST_ID + next(200)),
                with_attributes: true,
            },
            10 if refused > removed => ObjectCommand::Remove(object),
            _ => continue,
        };
        removed += u32::from(matches!(command, ObjectCommand::Remove(_)));
        let frees = matches!(
            command,
            ObjectCommand::Remove(_) | ObjectCommand::Punch { .. } | ObjectCommand::Clear { .. }
        );
        match store.execute(vec![command], ChangeOptions::default()).await {
            Ok(_) => {}
            Err(StoreError::NoSpace) if !frees => refused += 1,
            Err(
                StoreError::NoSuchObject(_)
                | StoreError::IdInUse(_)
                | StoreError::OutOfRange { .. },
            ) => {}
            Err(error) => panic!("seed {seed}, step {step}: {error}"),
        }
    }
    assert!(refused > 0, "seed {seed}: the store was never full");
    store.close().await.unwrap();
    assert_sound(device).await;
}
