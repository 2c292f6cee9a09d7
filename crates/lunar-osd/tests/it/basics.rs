//! Commands, one by one.

use crate::model::data;
use lunar_block::{Effect, Fault, FaultDevice, FaultOperation, MemoryDevice};
use lunar_osd::{
    AttributeId, ChangeOptions, FIRST_ID, FormatOptions, ObjectCommand, ObjectCommandResult,
    ObjectId, ObjectStore, StoreError, StoreOptions,
};
use std::sync::Arc;

type Device = Arc<MemoryDevice>;

async fn store() -> (Device, ObjectStore) {
    let device = Arc::new(MemoryDevice::new(16 << 20, 512, 4096).unwrap());
    ObjectStore::format(device.clone(), FormatOptions::default()).await.unwrap();
    let store = open(&device).await;
    (device, store)
}

async fn open(device: &Device) -> ObjectStore {
    ObjectStore::open(device.clone(), StoreOptions::default()).await.unwrap()
}

/// Goal: attributes are listed in order, those of one page and those of all. Method: two pages, of
/// two objects.
#[tokio::test]
async fn attributes_are_listed_over_pages() {
    let (_, store) = store().await;
    let partition = store.create_partition(None).await.unwrap();
    let first = store.create(partition, None).await.unwrap();
    let second = store.create(partition, None).await.unwrap();
    let ids = [(1, 2), (1, 9), (5, 0)].map(|(page, number)| AttributeId::new(page, number));
    for id in ids {
        store.set_attribute(first, id, Some(data(1, 3))).await.unwrap();
        store.set_attribute(second, id, Some(data(2, 3))).await.unwrap();
    }
    let page = store.attributes(first, AttributeId::new(1, 0), 9).await.unwrap();
    assert_eq!(page, [(ids[0], data(1, 3)), (ids[1], data(1, 3))]);
    for from in 0..ids.len() {
        let all = store.attributes_of_pages(first, ids[from], 2).await.unwrap();
        let expected: Vec<_> = ids[from..].iter().take(2).map(|id| (*id, data(1, 3))).collect();
        assert_eq!(all, expected);
    }
}

#[tokio::test]
async fn data_and_attributes_return_after_a_reopen() {
    let (device, store) = store().await;
    let partition = store.create_partition(None).await.unwrap();
    let object = store.create(partition, None).await.unwrap();
    let large = data(3, 300_000);
    store.write(object, 10, large.clone()).await.unwrap();
    assert_eq!(store.append(object, data(4, 5)).await.unwrap(), 300_010);
    let id = AttributeId::new(1, 9);
    for owner in [ObjectId::ROOT, ObjectId::of_partition(partition), object] {
        store.set_attribute(owner, id, Some(data(owner.object as u8, 20))).await.unwrap();
    }
    store.close().await.unwrap();
    let store = open(&device).await;
    assert_eq!(store.read(object, 10, 300_000).await.unwrap(), large);
    assert_eq!(store.read(object, 300_010, 99).await.unwrap(), data(4, 5));
    assert_eq!(&store.read(object, 0, 10).await.unwrap()[..], [0; 10]);
    assert_eq!(store.read(object, 400_000, 1).await.unwrap().len(), 0);
    assert_eq!(store.attribute(object, id).await.unwrap(), Some(data(object.object as u8, 20)));
    assert_eq!(store.attribute(ObjectId::ROOT, id).await.unwrap(), Some(data(0, 20)));
    assert_eq!(store.list(partition, 0, 10).await.unwrap(), [object.object]);
    assert_eq!(store.list_partitions(0, 10).await.unwrap(), [partition]);
    store.close().await.unwrap();
}

#[tokio::test]
async fn several_commands_apply_as_one_or_not_at_all() {
    let (_, store) = store().await;
    let partition = store.create_partition(None).await.unwrap();
    let object = ObjectId::new(partition, 0x2_0000);
    let durable = ChangeOptions { durable: true, time: None };
    let create = ObjectCommand::Create { partition, id: Some(object.object) };
    let write = ObjectCommand::Append { object, data: data(1, 100) };
    let fails = ObjectCommand::Remove(ObjectId::new(partition, 0x3_0000));
    let refused = store.execute(vec![create.clone(), write.clone(), fails], durable).await;
    assert!(matches!(refused, Err(StoreError::NoSuchObject(_))));
    assert!(matches!(store.length(object).await, Err(StoreError::NoSuchObject(_))));
    let results = store.execute(vec![create, write.clone(), write], durable).await.unwrap();
    assert_eq!(results[2], ObjectCommandResult::Offset(100));
    assert_eq!(store.length(object).await.unwrap(), 200);
}

#[tokio::test]
async fn impossible_commands_are_refused() {
    let (_, store) = store().await;
    let partition = store.create_partition(Some(FIRST_ID + 5)).await.unwrap();
    let object = store.create(partition, None).await.unwrap();
    let code = |result: Result<(), StoreError>| format!("{:?}", result.unwrap_err());
    assert!(code(store.create_partition(Some(partition)).await.map(drop)).starts_with("IdInUse"));
    assert!(code(store.create_partition(Some(7)).await.map(drop)).starts_with("InvalidId"));
    assert!(code(store.create(partition, Some(u64::MAX)).await.map(drop)).starts_with("InvalidId"));
    assert!(code(store.create(99, None).await.map(drop)).starts_with("NoSuchPartition"));
    assert!(code(store.remove_partition(partition).await).starts_with("PartitionNotEmpty"));
    let too_far = store.write(object, i64::MAX as u64, data(1, 1)).await;
    assert!(code(too_far).starts_with("OutOfRange"));
    assert!(code(store.clear(object, u64::MAX, u64::MAX).await).starts_with("OutOfRange"));
    assert!(code(store.punch(object, 1, 1).await).starts_with("OutOfRange"));
    let long = store.set_attribute(object, AttributeId::new(1, 1), Some(data(1, 65_537))).await;
    assert!(code(long).starts_with("AttributeTooLong"));
    store.remove(object).await.unwrap();
    assert!(code(store.remove(object).await).starts_with("NoSuchObject"));
    store.remove_partition(partition).await.unwrap();
    assert!(code(store.remove_partition(partition).await).starts_with("NoSuchPartition"));
}

#[tokio::test]
async fn an_object_can_end_at_the_last_byte() {
    let (_, store) = store().await;
    let partition = store.create_partition(None).await.unwrap();
    let object = store.create(partition, None).await.unwrap();
    let last = i64::MAX as u64 - 4;
    store.write(object, last, data(1, 4)).await.unwrap();
    assert_eq!(store.read(object, last - 4, 99).await.unwrap()[4..], data(1, 4));
    store.punch(object, 1, last - 1).await.unwrap();
    assert_eq!(store.read(object, 1, 99).await.unwrap(), data(1, 4));
}

#[tokio::test]
async fn holes_are_reported() {
    let (_, store) = store().await;
    let partition = store.create_partition(None).await.unwrap();
    let object = store.create(partition, None).await.unwrap();
    store.write(object, 8192, data(1, 100)).await.unwrap();
    store.write(object, 8292, data(1, 5000)).await.unwrap();
    store.write(object, 1 << 40, data(1, 10)).await.unwrap();
    store.clear(object, 9000, 500).await.unwrap();
    let end = 1 << 40;
    let all = [8192..9000, 9500..13_292, end..end + 10];
    assert_eq!(store.written_ranges(object, 0, 9).await.unwrap(), all);
    assert_eq!(store.written_ranges(object, 0, 2).await.unwrap(), all[..2]);
    let found = store.written_ranges(object, 10_000, 1).await.unwrap();
    assert_eq!(found.first(), Some(&(10_000..13_292)));
    assert_eq!(store.written_ranges(object, end + 10, 9).await.unwrap(), []);
}

#[tokio::test]
async fn a_full_store_takes_data_again_after_a_removal() {
    let (device, store) = store().await;
    let partition = store.create_partition(None).await.unwrap();
    let mut objects = Vec::new();
    let error = loop {
        let object = store.create(partition, None).await.unwrap();
        objects.push(object);
        if let Err(error) = store.append(object, data(1, 1 << 20)).await {
            break error;
        }
    };
    assert!(matches!(error, StoreError::NoSpace), "{error}");
    assert!(objects.len() > 10);
    store.remove(objects[0]).await.unwrap();
    store.write(objects[1], 0, data(2, 500_000)).await.unwrap();
    store.punch(objects[2], 0, 1 << 20).await.unwrap();
    store.write(objects[2], 0, data(3, 500_000)).await.unwrap();
    store.close().await.unwrap();
    let store = open(&device).await;
    assert_eq!(store.read(objects[2], 0, 500_000).await.unwrap(), data(3, 500_000));
    assert_eq!(store.read(objects[1], 0, 500_000).await.unwrap(), data(2, 500_000));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_of_many_callers_share_flushes() {
    let device = crate::device::RecordingDevice::new(vec![0; 16 << 20]);
    ObjectStore::format(device.clone(), FormatOptions::default()).await.unwrap();
    let store = ObjectStore::open(device.clone(), StoreOptions::default()).await.unwrap();
    let partition = store.create_partition(None).await.unwrap();
    let count = |device: &crate::device::RecordingDevice| {
        let is_flush = |event: &&_| matches!(event, crate::device::DiskEvent::Flush);
        device.events().iter().filter(is_flush).count()
    };
    let before = count(&device);
    let creations = (0..500).map(|_| store.create(partition, None));
    let created = futures_util::future::join_all(creations).await;
    let mut ids: Vec<_> = created.into_iter().map(|id| id.unwrap().object).collect();
    let flushes = count(&device) - before;
    assert!(flushes <= 250, "{flushes} flushes");
    ids.sort_unstable();
    assert_eq!(store.list(partition, 0, 1000).await.unwrap(), ids);
    store.close().await.unwrap();
}

/// Blocks that a reader still reads are not used again, also not after checkpoints.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_reader_gets_its_old_data() {
    let disk = Arc::new(MemoryDevice::new(16 << 20, 512, 4096).unwrap());
    let device = FaultDevice::new(disk, 1);
    ObjectStore::format(device.clone(), FormatOptions::default()).await.unwrap();
    let store = ObjectStore::open(device.clone(), StoreOptions::default()).await.unwrap();
    let store = Arc::new(store);
    let partition = store.create_partition(None).await.unwrap();
    let object = store.create(partition, None).await.unwrap();
    store.write(object, 0, data(0, 400_000)).await.unwrap();
    // The rows are in memory, so the next read of the device is that of the data.
    assert_eq!(store.read(object, 0, 400_000).await.unwrap(), data(0, 400_000));
    device.inject(Fault::new(Effect::Hang).on(FaultOperation::Read).times(1));
    let reader = Arc::clone(&store);
    let reading = tokio::spawn(async move { reader.read(object, 0, 400_000).await });
    while device.hanging() == 0 {
        tokio::task::yield_now().await;
    }
    // The old data of each round stays, so space runs out.
    for round in 1.. {
        match store.write(object, 0, data(round, 400_000)).await {
            Ok(()) => store.checkpoint().await.unwrap(),
            Err(error) => {
                assert!(matches!(error, StoreError::NoSpace), "{error}");
                break;
            }
        }
        assert!(round < 60);
    }
    device.release();
    assert_eq!(reading.await.unwrap().unwrap(), data(0, 400_000));
    store.write(object, 0, data(1, 400_000)).await.unwrap();
}
