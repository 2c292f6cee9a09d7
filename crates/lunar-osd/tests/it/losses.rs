//! Writes that the device has lost.

use crate::device::{DiskEvent, RecordingDevice, image_after_cut};
use crate::model::data;
use crate::stores::{WRITE_BACK, assert_sound, create, open};
use lunar_osd::{AttributeId, ObjectId, ObjectStore, StoreError};

const ID: AttributeId = AttributeId::new(1, 1);

/// The flush that failed for the loss was that of another user of the device: only the count says
/// that the records since the last flush may be gone.
#[tokio::test]
async fn a_loss_ends_the_changes_of_all_users() {
    let device = RecordingDevice::new(vec![0; 8 << 20]);
    create(device.clone()).await.close().await.unwrap();
    let store = ObjectStore::open(device.clone(), WRITE_BACK).await.unwrap();
    let before = device.image();
    let skipped = device.events().len();
    store.set_attribute(ObjectId::ROOT, ID, Some(data(1, 9))).await.unwrap();
    store.flush().await.unwrap();
    store.set_attribute(ObjectId::ROOT, ID, Some(data(2, 9))).await.unwrap();
    device.lose();
    assert!(matches!(store.flush().await, Err(StoreError::CacheLost)));
    assert!(matches!(store.flush().await, Err(StoreError::Stopped(_))));
    let refused = store.set_attribute(ObjectId::ROOT, ID, None).await;
    assert!(matches!(refused, Err(StoreError::Stopped(_))));
    assert!(matches!(store.checkpoint().await, Err(StoreError::Stopped(_))));
    assert!(matches!(store.close().await, Err(StoreError::Stopped(_))));

    // The device lost all that the first flush had not made durable.
    let mut events = device.events().split_off(skipped);
    let is_flush = |(_, event): &(usize, &DiskEvent)| matches!(event, DiskEvent::Flush);
    let lost = events.iter().enumerate().filter(is_flush).nth(1).unwrap().0;
    events.truncate(lost);
    let device = RecordingDevice::new(image_after_cut(before, &events, || false));
    let store = open(device.clone()).await;
    assert_eq!(store.attribute(ObjectId::ROOT, ID).await.unwrap(), Some(data(1, 9)));
    store.close().await.unwrap();
    assert_sound(device).await;
}

#[tokio::test]
async fn a_durable_command_after_a_loss_is_refused() {
    let device = RecordingDevice::new(vec![0; 8 << 20]);
    let store = create(device.clone()).await;
    device.lose();
    let refused = store.set_attribute(ObjectId::ROOT, ID, Some(data(1, 9))).await;
    assert!(matches!(refused, Err(StoreError::CacheLost)));
    assert_eq!(store.attribute(ObjectId::ROOT, ID).await.unwrap(), None);
    // The loss was before this opening.
    let store = open(device).await;
    store.set_attribute(ObjectId::ROOT, ID, Some(data(1, 9))).await.unwrap();
}

#[tokio::test]
async fn a_checkpoint_notices_a_loss() {
    let device = RecordingDevice::new(vec![0; 8 << 20]);
    create(device.clone()).await.close().await.unwrap();
    let store = ObjectStore::open(device.clone(), WRITE_BACK).await.unwrap();
    store.set_attribute(ObjectId::ROOT, ID, Some(data(1, 9))).await.unwrap();
    device.lose();
    assert!(store.checkpoint().await.is_err());
    assert!(matches!(store.flush().await, Err(StoreError::Stopped(_))));
}
