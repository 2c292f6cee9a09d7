//! I/O in blocks of the store.

use crate::StoreError;
use bytes::Bytes;
use lunar_block::{BlockDevice, BlockRange, BufferPool};
use std::ops::Range;
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
    /// Losses of the device before the first use.
    losses: Option<u64>,
}

impl BlockIo {
    /// Wraps `device`; the caller is in a tokio runtime.
    pub(crate) fn new(device: Arc<dyn BlockDevice>) -> Self {
        let losses = device.cache_losses();
        Self { device, pool: BufferPool::default(), runtime: Handle::current(), losses }
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
    ///
    /// # Errors
    /// `CacheLost` if the device has lost writes since the store uses it. The flush that failed for
    /// the loss may have been that of another user of the device, so the count is compared.
    pub(crate) fn flush_blocking(&self) -> Result<(), StoreError> {
        self.runtime.block_on(self.device.flush())?;
        self.check_losses()
    }

    /// Refuses to continue after a loss of writes.
    pub(crate) fn check_losses(&self) -> Result<(), StoreError> {
        match self.device.cache_losses() == self.losses {
            true => Ok(()),
            false => Err(StoreError::CacheLost),
        }
    }

    /// Returns true if the device takes back space.
    pub(crate) fn can_unmap(&self) -> bool {
        self.device.sparse().is_some()
    }

    /// Gives the space of blocks back to the device, and waits.
    pub(crate) fn unmap_blocking(&self, blocks: &Range<u64>) -> Result<(), StoreError> {
        let Some(sparse) = self.device.sparse() else { return Ok(()) };
        let range = self.range(blocks.start, blocks.end - blocks.start);
        Ok(self.runtime.block_on(sparse.unmap(range, false))?)
    }
}
