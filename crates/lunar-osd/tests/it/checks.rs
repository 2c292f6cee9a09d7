//! Checks find each kind of contradiction, and change nothing.

use crate::device::RecordingDevice;
use crate::model::data;
use crate::stores::create;
use lunar_osd::{CheckProblem, StoreError};

#[tokio::test]
async fn a_flipped_bit_of_data_is_reported_with_its_block() {
    let device = RecordingDevice::new(vec![0; 8 << 20]);
    let store = create(device.clone()).await;
    let partition = store.create_partition(None).await.unwrap();
    let object = store.create(partition, None).await.unwrap();
    let bytes = data(77, 100_000);
    store.write(object, 0, bytes.clone()).await.unwrap();
    store.close().await.unwrap();
    let image = device.image();
    let at = image.windows(64).position(|window| window == &bytes[..64]).unwrap();
    device.flip(at + 5000, 4);
    let report = lunar_osd::check(device.clone()).await.unwrap();
    let block = (at + 5000) as u64 / 4096;
    assert_eq!(report.problems, [CheckProblem::DamagedBlock(block)]);
    assert_eq!((report.problem_count, report.objects, report.data_bytes), (1, 1, 102_400));
    device.flip(at + 5000, 4);
    assert_eq!(device.image(), image);
}

#[tokio::test]
async fn other_bytes_are_no_store() {
    let device = RecordingDevice::new(vec![0; 8 << 20]);
    assert!(matches!(lunar_osd::check(device).await, Err(StoreError::NotAStore(_))));
}
