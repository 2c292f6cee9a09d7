//! Stores for tests.

use lunar_block::{BlockDevice, MemoryDevice};
use lunar_osd::{ChangeOptions, FormatOptions, ObjectStore, StoreOptions};
use std::sync::Arc;

/// Durable changes without a time.
pub const DURABLE: ChangeOptions = ChangeOptions { durable: true, time: None };

/// Changes that only a flush makes durable.
pub const WRITE_BACK: StoreOptions = StoreOptions { write_back: true, cache_bytes: 1 << 20 };

pub fn memory(bytes: u64) -> Arc<MemoryDevice> {
    Arc::new(MemoryDevice::new(bytes, 512, 4096).unwrap())
}

pub async fn open(device: Arc<dyn BlockDevice>) -> ObjectStore {
    ObjectStore::open(device, StoreOptions::default()).await.unwrap()
}

/// Formats and opens a device.
pub async fn create(device: Arc<dyn BlockDevice>) -> ObjectStore {
    ObjectStore::format(device.clone(), FormatOptions::default()).await.unwrap();
    open(device).await
}

/// Fails if the store on the device, which nobody uses, has a contradiction.
pub async fn assert_sound(device: Arc<dyn BlockDevice>) {
    let report = lunar_osd::check(device).await.unwrap();
    assert_eq!((report.problem_count, report.problems), (0, vec![]));
}

/// Removes all that removed objects have left.
pub async fn reclaim_all(store: &ObjectStore) {
    while store.reclaim().await.unwrap() {}
    store.checkpoint().await.unwrap();
}
