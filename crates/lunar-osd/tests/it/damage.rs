//! Damaged and hostile images.

use crate::device::RecordingDevice;
use crate::model::{contents, data};
use lunar_block::{Effect, ErrorKind, Fault, FaultDevice, FaultOperation};
use lunar_osd::{AttributeId, FormatOptions, ObjectStore, StoreError, StoreOptions};

async fn image_with_objects() -> Vec<u8> {
    let device = RecordingDevice::new(vec![0; 8 << 20]);
    ObjectStore::format(device.clone(), FormatOptions::default()).await.unwrap();
    let store = ObjectStore::open(device.clone(), StoreOptions::default()).await.unwrap();
    let partition = store.create_partition(None).await.unwrap();
    for n in 0..20 {
        let object = store.create(partition, None).await.unwrap();
        store.write(object, 0, data(n, 5000 * usize::from(n))).await.unwrap();
        let id = AttributeId::new(1, u32::from(n));
        store.set_attribute(object, id, Some(data(n, 30))).await.unwrap();
        if n == 12 {
            store.checkpoint().await.unwrap();
        }
    }
    // The image is the state after a crash: the log has records.
    device.image()
}

#[tokio::test]
async fn flipped_bits_give_errors_or_the_old_contents() {
    let image = image_with_objects().await;
    let open = |image| async {
        let device = RecordingDevice::new(image);
        let store = ObjectStore::open(device, StoreOptions::default()).await?;
        let found = contents(&store).await?;
        store.close().await?;
        Ok::<_, StoreError>(found)
    };
    let whole = open(image.clone()).await.unwrap();
    let used: Vec<usize> = (0..image.len() / 4096)
        .filter(|block| image[block * 4096..][..4096].iter().any(|byte| *byte != 0))
        .collect();
    let (mut random, mut refused) = (88172645463325252_u64, 0);
    for _ in 0..200 {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let block = used[(random >> 16) as usize % used.len()];
        let mut flipped = image.clone();
        flipped[block * 4096 + (random >> 40) as usize % 4096] ^= 1 << (random % 8);
        match open(flipped).await {
            Ok(found) => {
                // A damaged record ends the log: the objects are those of an earlier moment.
                for (id, object) in &found.0 {
                    let now = &whole.0[id];
                    let was_written = object.bytes.is_empty() || object.bytes == now.bytes;
                    assert!(was_written, "block {block}, object {id:?}");
                }
            }
            Err(_) => refused += 1,
        }
    }
    assert!(refused > 50, "{refused}");
}

#[tokio::test]
async fn a_flipped_bit_of_data_is_an_error_and_never_data() {
    let device = RecordingDevice::new(vec![0; 8 << 20]);
    ObjectStore::format(device.clone(), FormatOptions::default()).await.unwrap();
    let store = ObjectStore::open(device.clone(), StoreOptions::default()).await.unwrap();
    let partition = store.create_partition(None).await.unwrap();
    let object = store.create(partition, None).await.unwrap();
    let bytes = data(77, 100_000);
    store.write(object, 0, bytes.clone()).await.unwrap();
    store.checkpoint().await.unwrap();
    let image = device.image();
    let at = image.windows(64).position(|window| window == &bytes[..64]).unwrap();
    device.flip(at + 5000, 4);
    assert!(matches!(store.read(object, 0, 100_000).await, Err(StoreError::Damaged(_))));
    assert_eq!(store.read(object, 0, 4096).await.unwrap(), bytes[..4096]);
    // A write of a part of the block needs the rest of it.
    let refused = store.write(object, 4100, data(1, 3)).await;
    assert!(matches!(refused, Err(StoreError::Damaged(_))));
    store.write(object, 4096, data(1, 4096)).await.unwrap();
    assert_eq!(store.read(object, 4096, 4096).await.unwrap(), data(1, 4096));
}

#[tokio::test]
async fn other_bytes_are_no_store() {
    for bytes in [vec![0; 8 << 20], vec![0xff; 8 << 20], vec![0; 4096]] {
        let device = RecordingDevice::new(bytes);
        let opened = ObjectStore::open(device.clone(), StoreOptions::default()).await;
        assert!(matches!(opened, Err(StoreError::NotAStore(_))));
    }
    let small = RecordingDevice::new(vec![0; 1 << 20]);
    let formatted = ObjectStore::format(small, FormatOptions::default()).await;
    assert!(matches!(formatted, Err(StoreError::NotAStore(_))));
}

#[tokio::test]
async fn a_failed_flush_stops_changes_but_not_reads() {
    let disk = RecordingDevice::new(vec![0; 8 << 20]);
    ObjectStore::format(disk.clone(), FormatOptions::default()).await.unwrap();
    let device = FaultDevice::new(disk.clone(), 1);
    let store = ObjectStore::open(device.clone(), StoreOptions::default()).await.unwrap();
    let partition = store.create_partition(None).await.unwrap();
    let object = store.create(partition, None).await.unwrap();
    store.write(object, 0, data(1, 100)).await.unwrap();
    device.inject(Fault::new(Effect::Fail(ErrorKind::Medium)).on(FaultOperation::Flush).times(1));
    let failed = store.write(object, 0, data(2, 100)).await;
    assert!(matches!(failed, Err(StoreError::Device(_))));
    assert!(matches!(store.write(object, 0, data(3, 1)).await, Err(StoreError::Stopped(_))));
    assert!(matches!(store.checkpoint().await, Err(StoreError::Stopped(_))));
    assert_eq!(store.read(object, 0, 100).await.unwrap(), data(1, 100));
    assert!(matches!(store.close().await, Err(StoreError::Stopped(_))));
    // The failed write was not acknowledged: it may be there, but whole.
    let store = ObjectStore::open(disk, StoreOptions::default()).await.unwrap();
    let found = store.read(object, 0, 100).await.unwrap();
    assert!(found == data(1, 100) || found == data(2, 100));
}
