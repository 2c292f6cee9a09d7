//! Commands and reads during checkpoints.

use crate::device::RecordingDevice;
use crate::model::data;
use crate::stores::{DURABLE, assert_sound, create, open};
use lunar_block::{BlockRange, Effect, Fault, FaultDevice, FaultOperation};
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
    // The image is the state of the device after a power cut at this moment.
    let cut = open(RecordingDevice::new(disk.image())).await;
    let found = cut.attributes(ObjectId::ROOT, AttributeId::new(1, 0), 1000).await.unwrap();
    assert_eq!(found.len(), 500);
}

/// A replay makes checkpoints, which take blocks for the index: never those of records that are
/// replayed later.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_log_is_replayed_as_a_whole() {
    let HangingCheckpoint { disk, device, store, object, checkpoint } =
        hang(FaultOperation::Write).await;
    for round in 0..150 {
        // The attribute lets the index grow.
        let id = AttributeId::new(1, round as u32);
        let value = Some(data(1, 2900));
        let commands = vec![
            ObjectCommand::Write { object, offset: round * 8192, data: data(round as u8, 100) },
            ObjectCommand::SetAttribute { owner: object, id, value },
        ];
        store.execute(commands, DURABLE).await.unwrap();
    }
    let large = store.create(object.partition, None).await.unwrap();
    store.write(large, 0, data(9, 100_000)).await.unwrap();
    let cut = FaultDevice::new(RecordingDevice::new(disk.image()), 1);
    assert_sound(cut.clone()).await;
    // The replay stops behind the half of the log until its first checkpoint has made progress. It
    // has read the record twice before.
    let late = BlockRange::new((32 + 140) * 8, 8);
    cut.inject(Fault::new(Effect::Hang).on(FaultOperation::Read).at(late).after(2).times(1));
    let opening = tokio::spawn(open(cut.clone()));
    while cut.hanging() == 0 && !opening.is_finished() {
        yield_now().await;
    }
    while cut.seen(FaultOperation::Flush) < 2 && !opening.is_finished() {
        yield_now().await;
    }
    cut.release();
    let after_cut = opening.await.unwrap();
    for round in 0..150 {
        let found = after_cut.read(object, round * 8192, 100).await.unwrap();
        assert_eq!(found, data(round as u8, 100), "{round}");
    }
    assert_eq!(after_cut.read(large, 0, 1 << 20).await.unwrap(), data(9, 100_000));
    device.release();
    checkpoint.await.unwrap();
}
