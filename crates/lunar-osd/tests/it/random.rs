//! The store does what the model does.

use crate::model::{ModelStore, commands, contents, first_commands, partition_copies};
use lunar_block::MemoryDevice;
use lunar_osd::{
    ChangeOptions, FormatOptions, ObjectCommand, ObjectStore, PartitionCopyTarget, StoreOptions,
};
use proptest::prelude::*;
use std::sync::Arc;

/// A step of a test.
#[derive(Clone, Debug)]
enum StoreStep {
    Execute(ObjectCommand),
    CopyPartition(u64, PartitionCopyTarget),
    Flush,
    Checkpoint,
    Reopen,
}

fn steps() -> impl Strategy<Value = Vec<StoreStep>> {
    let step = prop_oneof![
        20 => commands().prop_map(StoreStep::Execute),
        1 => partition_copies()
            .prop_map(|(source, target)| StoreStep::CopyPartition(source, target)),
        1 => Just(StoreStep::Flush),
        1 => Just(StoreStep::Checkpoint),
        1 => Just(StoreStep::Reopen),
    ];
    proptest::collection::vec(step, 1..60)
}

async fn check(steps: Vec<StoreStep>, write_back: bool) {
    let device = Arc::new(MemoryDevice::new(16 << 20, 512, 4096).unwrap());
    ObjectStore::format(device.clone(), FormatOptions::default()).await.unwrap();
    let options = StoreOptions { write_back, cache_bytes: 1 << 20 };
    let mut store = ObjectStore::open(device.clone(), options).await.unwrap();
    let empty = store.free_bytes();
    let changes = ChangeOptions { durable: !write_back, time: Some(1) };
    let mut model = ModelStore::default();
    let first = first_commands().into_iter().map(StoreStep::Execute);
    for step in first.chain(steps) {
        match step {
            StoreStep::Execute(command) => {
                let result = store.execute(vec![command.clone()], changes).await;
                assert_eq!(result.is_ok(), model.apply(&command), "{command:?}: {result:?}");
            }
            StoreStep::CopyPartition(source, target) => {
                let result = store.copy_partition(source, target, changes).await;
                let is_possible = model.copy_partition(source, target);
                assert_eq!(result.is_ok(), is_possible, "{source:#x}, {target:?}: {result:?}");
            }
            StoreStep::Flush => store.flush().await.unwrap(),
            StoreStep::Checkpoint => store.checkpoint().await.unwrap(),
            StoreStep::Reopen => {
                assert_eq!(contents(&store).await.unwrap(), model);
                store.close().await.unwrap();
                let report = lunar_osd::check(device.clone()).await.unwrap();
                assert_eq!(report.problems, []);
                store = ObjectStore::open(device.clone(), options).await.unwrap();
            }
        }
    }
    assert_eq!(contents(&store).await.unwrap(), model);
    store.close().await.unwrap();
    let objects = model.0.keys().filter(|id| id.object != 0).count() as u64;
    let report = lunar_osd::check(device.clone()).await.unwrap();
    assert_eq!((report.objects + report.collections, report.problems), (objects, vec![]));
    let store = ObjectStore::open(device.clone(), options).await.unwrap();
    store.execute(vec![ObjectCommand::RemoveAll], changes).await.unwrap();
    store.close().await.unwrap();
    // The first opening reclaims what was removed, and the close frees it.
    let store = ObjectStore::open(device.clone(), options).await.unwrap();
    while store.reclaim().await.unwrap() {}
    store.close().await.unwrap();
    let store = ObjectStore::open(device, options).await.unwrap();
    // Chunks of the index stay.
    assert!(empty - store.free_bytes() <= 2 << 20, "{} bytes are lost", empty - store.free_bytes());
    store.close().await.unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn the_store_behaves_like_the_model(steps in steps(), write_back: bool) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(check(steps, write_back));
    }
}
