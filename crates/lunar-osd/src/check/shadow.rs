//! A device in front of another one, which it never writes.

use bytes::Bytes;
use lunar_block::{BlockDevice, BlockRange, BoxFuture, Buffer, Error, Geometry};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Keeps written blocks in memory, and reads the others from a device.
#[derive(Debug)]
pub(super) struct ShadowDevice {
    below: Arc<dyn BlockDevice>,
    written: Mutex<HashMap<u64, Bytes>>,
}

impl ShadowDevice {
    pub(super) fn new(below: Arc<dyn BlockDevice>) -> Arc<Self> {
        Arc::new(Self { below, written: Mutex::default() })
    }

    fn written(&self) -> MutexGuard<'_, HashMap<u64, Bytes>> {
        self.written.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl BlockDevice for ShadowDevice {
    fn name(&self) -> &str {
        self.below.name()
    }

    fn geometry(&self) -> Geometry {
        self.below.geometry()
    }

    fn read(&self, range: BlockRange, into: Buffer) -> BoxFuture<'_, Result<Buffer, Error>> {
        Box::pin(async move {
            let mut data = self.below.read(range, into).await?;
            let block_bytes = self.geometry().block_bytes as usize;
            let written = self.written();
            for (lba, block) in
                (range.lba..range.lba + range.count).zip(data.chunks_mut(block_bytes))
            {
                if let Some(bytes) = written.get(&lba) {
                    block.copy_from_slice(bytes);
                }
            }
            drop(written);
            Ok(data)
        })
    }

    fn write(
        &self,
        range: BlockRange,
        from: Bytes,
        _durable: bool,
    ) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            let geometry = self.geometry();
            geometry.checked(self.name(), range, from.len(), true)?;
            let block_bytes = geometry.block_bytes as usize;
            let mut written = self.written();
            for (at, lba) in (range.lba..range.lba + range.count).enumerate() {
                let block = from.slice(at * block_bytes..(at + 1) * block_bytes);
                written.insert(lba, block);
            }
            Ok(())
        })
    }

    fn flush(&self) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(async { Ok(()) })
    }

    fn io_tier(&self) -> String {
        self.below.io_tier()
    }
}
