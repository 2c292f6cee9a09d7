//! I/O in blocks of the store.

use crate::StoreError;
use bytes::Bytes;
use lunar_block::{BlockDevice, BlockRange, BufferPool};
use std::sync::Arc;
use tokio::runtime::Handle;

/// Length of a block of the store: the unit of allocation and of checksums.
pub(crate) const BLOCK_BYTES: u64 = 4096;

/// Rounds `bytes` up to blocks.
pub(crate) const fn blocks_of(bytes: u64) -> u64 {
    bytes.div_ceil(BLOCK_BYTES)
}

/// A device, addressed in blocks of [`BLOCK_BYTES`].
#[derive(Clone, Debug)]
pub(crate) struct BlockIo {
    device: Arc<dyn BlockDevice>,
    pool: BufferPool,
    /// Runs the futures of the device for callers that may block.
    runtime: Handle,
}

impl BlockIo {
    /// Wraps `device`; the caller is in a tokio runtime.
    pub(crate) fn new(device: Arc<dyn BlockDevice>) -> Self {
        Self { device, pool: BufferPool::default(), runtime: Handle::current() }
    }

    /// Returns the number of whole blocks of the device.
    pub(crate) fn block_count(&self) -> u64 {
        self.device.geometry().size_bytes() / BLOCK_BYTES
    }

    fn range(&self, block: u64, count: u64) -> BlockRange {
        let factor = BLOCK_BYTES / u64::from(self.device.geometry().block_bytes);
        BlockRange::new(block.saturating_mul(factor), count.saturating_mul(factor))
    }

    pub(crate) async fn read(&self, block: u64, count: u64) -> Result<Bytes, StoreError> {
        let buffer = self.pool.take((count * BLOCK_BYTES) as usize);
        Ok(self.device.read(self.range(block, count), buffer).await?.freeze())
    }

    /// Reads and waits: not for a thread that drives futures.
    pub(crate) fn read_blocking(&self, block: u64, count: u64) -> Result<Bytes, StoreError> {
        self.runtime.block_on(self.read(block, count))
    }

    /// Writes whole blocks, without a flush, and waits.
    pub(crate) fn write_blocking(&self, block: u64, from: Bytes) -> Result<(), StoreError> {
        let count = from.len() as u64 / BLOCK_BYTES;
        let range = self.range(block, count);
        Ok(self.runtime.block_on(self.device.write(range, from, false))?)
    }

    /// Makes all earlier writes durable, and waits.
    pub(crate) fn flush_blocking(&self) -> Result<(), StoreError> {
        Ok(self.runtime.block_on(self.device.flush())?)
    }
}
