//! Commands of several callers at once.

use crate::model::data;
use crate::stores::{DURABLE, WRITE_BACK, assert_sound, create, memory};
use lunar_block::MemoryDevice;
use lunar_osd::{FIRST_ID, ObjectCommand, ObjectId, ObjectStore, StoreError};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

async fn store() -> (Arc<MemoryDevice>, Arc<ObjectStore>, u64) {
    let device = memory(24 << 20);
    create(device.clone()).await.close().await.unwrap();
    let store = ObjectStore::open(device.clone(), WRITE_BACK).await.unwrap();
    let partition = store.create_partition(None).await.unwrap();
    (device, Arc::new(store), partition)
}

async fn close(device: Arc<MemoryDevice>, store: Arc<ObjectStore>) {
    Arc::into_inner(store).unwrap().close().await.unwrap();
    assert_sound(device).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_id_is_created_once() {
    let (device, store, partition) = store().await;
    for id in FIRST_ID..FIRST_ID + 40 {
        let attempts = (0..8_u8).map(|caller| {
            let store = Arc::clone(&store);
            tokio::spawn(async move {
                let object = ObjectId::new(partition, id);
                let commands = match caller % 2 {
                    0 => vec![
                        ObjectCommand::Create { partition, id: Some(id) },
                        ObjectCommand::Append { object, data: data(caller, 50) },
                    ],
                    _ => vec![ObjectCommand::CreateCollection { partition, id: Some(id) }],
                };
                match store.execute(commands, DURABLE).await {
                    Ok(_) => Some(caller),
                    Err(StoreError::IdInUse(_)) => None,
                    Err(error) => panic!("{error}"),
                }
            })
        });
        let results = futures_util::future::join_all(attempts.collect::<Vec<_>>()).await;
        let winners: Vec<u8> = results.into_iter().filter_map(Result::unwrap).collect();
        let [winner] = winners[..] else { panic!("{winners:?}") };
        let object = ObjectId::new(partition, id);
        match winner % 2 {
            0 => assert_eq!(store.read(object, 0, 99).await.unwrap(), data(winner, 50)),
            _ => assert_eq!(store.list_members(object, 0, 1).await.unwrap(), []),
        }
    }
    close(device, store).await;
}

/// A reader gets all bytes of one version of the object, or the error that there is none. The
/// blocks of a removed object are soon in use again.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_read_during_removals_is_complete() {
    let (device, store, partition) = store().await;
    let object = ObjectId::new(partition, FIRST_ID);
    let ended = Arc::new(AtomicBool::new(false));
    let readers: Vec<_> = (0..3)
        .map(|_| {
            let (store, ended) = (Arc::clone(&store), Arc::clone(&ended));
            tokio::spawn(async move {
                let mut found = 0;
                while !ended.load(Ordering::SeqCst) || found == 0 {
                    match store.read(object, 0, 1 << 20).await {
                        Ok(bytes) => {
                            let seed = (0..=255).find(|seed| bytes == data(*seed, 300_000));
                            assert!(seed.is_some(), "{} bytes, mixed", bytes.len());
                            found += 1;
                        }
                        Err(StoreError::NoSuchObject(_)) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
            })
        })
        .collect();
    let create = |seed| {
        vec![
            ObjectCommand::Create { partition, id: Some(object.object) },
            ObjectCommand::Append { object, data: data(seed, 300_000) },
        ]
    };
    for seed in 0..=80 {
        store.execute(create(seed), DURABLE).await.unwrap();
        if seed % 8 == 0 {
            store.checkpoint().await.unwrap();
        }
        store.remove(object).await.unwrap();
    }
    store.execute(create(81), DURABLE).await.unwrap();
    ended.store(true, Ordering::SeqCst);
    for reader in readers {
        reader.await.unwrap();
    }
    close(device, store).await;
}

/// A list has all objects whose creation was acknowledged before it, and none whose creation began
/// after it.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_list_during_creations_has_all_acknowledged_objects() {
    let (device, store, partition) = store().await;
    let begun = Arc::new(Mutex::new(BTreeSet::new()));
    let acknowledged = Arc::new(Mutex::new(BTreeSet::new()));
    let creators: Vec<_> = (0..4)
        .map(|caller| {
            let store = Arc::clone(&store);
            let (begun, acknowledged) = (Arc::clone(&begun), Arc::clone(&acknowledged));
            tokio::spawn(async move {
                for at in 0..100 {
                    let id = FIRST_ID + at * 4 + caller;
                    begun.lock().unwrap().insert(id);
                    store.create(partition, Some(id)).await.unwrap();
                    acknowledged.lock().unwrap().insert(id);
                }
            })
        })
        .collect();
    loop {
        let before = acknowledged.lock().unwrap().clone();
        let listed = store.list(partition, 0, usize::MAX).await.unwrap();
        let after = begun.lock().unwrap().clone();
        assert!(listed.is_sorted());
        let listed: BTreeSet<u64> = listed.into_iter().collect();
        assert!(before.is_subset(&listed) && listed.is_subset(&after));
        if before.len() == 400 {
            break;
        }
    }
    for creator in creators {
        creator.await.unwrap();
    }
    close(device, store).await;
}

/// A read alongside writes of the whole object has the bytes of one write.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_read_has_the_bytes_of_one_write() {
    let (device, store, partition) = store().await;
    let object = store.create(partition, None).await.unwrap();
    store.write(object, 0, data(0, 150_000)).await.unwrap();
    let writers: Vec<_> = (0..3_u8)
        .map(|caller| {
            let store = Arc::clone(&store);
            tokio::spawn(async move {
                for round in 0..25 {
                    let bytes = data(caller * 25 + round, 150_000);
                    store.write(object, 0, bytes).await.unwrap();
                }
            })
        })
        .collect();
    loop {
        let is_last = writers.iter().all(tokio::task::JoinHandle::is_finished);
        let bytes = store.read(object, 0, 1 << 20).await.unwrap();
        assert!((0..75).any(|seed| bytes == data(seed, 150_000)));
        if is_last {
            break;
        }
    }
    for writer in writers {
        writer.await.unwrap();
    }
    close(device, store).await;
}
