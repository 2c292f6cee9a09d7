//! Commands and reads during checkpoints.

use crate::device::RecordingDevice;
use crate::model::data;
use crate::stores::{DURABLE, assert_sound, create, open};
use lunar_block::{Effect, Fault, FaultDevice, FaultOperation};
use lunar_osd::{AttributeId, ObjectCommand, ObjectId, ObjectStore};
use std::sync::Arc;
use tokio::task::{JoinHandle, yield_now};

fn attribute(number: u32) -> ObjectCommand {
    let (owner, id) = (ObjectId::ROOT, AttributeId::new(1, number));
    ObjectCommand::SetAttribute { owner, id, value: Some(data(number as u8, 20)) }
}

/// A store whose checkpoint hangs in an operation.
struct HangingCheckpoint {
    disk: Arc<RecordingDevice>,
    device: Arc<FaultDevice>,
    store: Arc<ObjectStore>,
    object: ObjectId,
    checkpoint: JoinHandle<()>,
}

async fn hang(operation: FaultOperation) -> HangingCheckpoint {
    let disk = RecordingDevice::new(vec![0; 16 << 20]);
    let device = FaultDevice::new(disk.clone(), 1);
    let store = Arc::new(create(device.clone()).await);
    let partition = store.create_partition(None).await.unwrap();
    let object = store.create(partition, None).await.unwrap();
    store.write(object, 0, data(1, 20_000)).await.unwrap();
    device.inject(Fault::new(Effect::Hang).on(operation).times(1));
    let checkpointed = Arc::clone(&store);
    let checkpoint = tokio::spawn(async move { checkpointed.checkpoint().await.unwrap() });
    while device.hanging() == 0 {
        yield_now().await;
    }
    HangingCheckpoint { disk, device, store, object, checkpoint }
}

/// Checks commands and reads while a checkpoint hangs, and the contents afterwards.
async fn commands_go_on(operation: FaultOperation) {
    let HangingCheckpoint { disk, device, store, object, checkpoint } = hang(operation).await;
    assert_eq!(store.read(object, 0, 20_000).await.unwrap(), data(1, 20_000));
    store.write(object, 100, data(2, 100_000)).await.unwrap();
    store.write(object, 0, data(3, 50)).await.unwrap();
    let other = store.create(object.partition, None).await.unwrap();
    store.remove(other).await.unwrap();
    assert_eq!(store.read(object, 100, 100_000).await.unwrap(), data(2, 100_000));
    assert_eq!(device.hanging(), 1);
    // A power cut during the checkpoint.
    let cut = RecordingDevice::new(disk.image());
    let after_cut = open(cut.clone()).await;
    assert_eq!(after_cut.read(object, 0, 50).await.unwrap(), data(3, 50));
    assert_eq!(after_cut.read(object, 100, 100_000).await.unwrap(), data(2, 100_000));
    after_cut.close().await.unwrap();
    assert_sound(cut).await;

    device.release();
    checkpoint.await.unwrap();
    assert_eq!(store.read(object, 100, 100_000).await.unwrap(), data(2, 100_000));
    Arc::into_inner(store).unwrap().close().await.unwrap();
    assert_sound(disk.clone()).await;
    let store = open(disk).await;
    assert_eq!(store.read(object, 0, 50).await.unwrap(), data(3, 50));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_go_on_while_a_checkpoint_writes() {
    commands_go_on(FaultOperation::Write).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_go_on_while_a_checkpoint_flushes() {
    commands_go_on(FaultOperation::Flush).await;
}

/// The log of 1 MiB has 256 blocks; each command takes one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_log_waits_for_the_checkpoint() {
    let HangingCheckpoint { disk, device, store, checkpoint, .. } =
        hang(FaultOperation::Write).await;
    for number in 0..150 {
        store.execute(vec![attribute(number)], DURABLE).await.unwrap();
    }
    let writers = (150..500).map(|number| {
        let store = Arc::clone(&store);
        async move { store.execute(vec![attribute(number)], DURABLE).await.unwrap() }
    });
    let mut writers: Vec<_> = writers.map(tokio::spawn).collect();
    assert_eq!(device.hanging(), 1);
    device.release();
    for writer in writers.drain(..) {
        writer.await.unwrap();
    }
    checkpoint.await.unwrap();
    // As after a power cut.
    let cut = open(RecordingDevice::new(disk.image())).await;
    let found = cut.attributes(ObjectId::ROOT, AttributeId::new(1, 0), 1000).await.unwrap();
    assert_eq!(found.len(), 500);
}
