//! A device with a volatile cache that can lose power while it stays open.

use bytes::Bytes;
use lunar_block::{
    BlockDevice, BlockRange, BoxFuture, Buffer, BufferPool, Error, ErrorKind, Geometry,
};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// A device whose writes are volatile until a flush, like a LUN with a write-back cache. After a
/// power cut it stays open, counts a loss, and fails one flush.
#[derive(Debug)]
pub struct VolatileDevice {
    inner: Arc<dyn BlockDevice>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Content of blocks before the writes that were not flushed.
    before: BTreeMap<u64, Bytes>,
    losses: u64,
    is_unreported: bool,
}

impl VolatileDevice {
    pub fn new(inner: Arc<dyn BlockDevice>) -> Arc<Self> {
        Arc::new(Self { inner, state: Mutex::default() })
    }

    /// Returns the disk below the cache.
    pub fn disk(&self) -> Arc<dyn BlockDevice> {
        Arc::clone(&self.inner)
    }

    /// Loses each unflushed block with a chance of one in `one_in`.
    pub async fn cut_power(&self, random: &mut u64, one_in: u64) {
        let before = std::mem::take(&mut self.state.lock().unwrap().before);
        if before.is_empty() {
            return;
        }
        for (lba, old) in before {
            if super::next(random).is_multiple_of(one_in) {
                self.inner.write(BlockRange::new(lba, 1), old, false).await.unwrap();
            }
        }
        let mut state = self.state.lock().unwrap();
        state.losses += 1;
        state.is_unreported = true;
    }
}

impl BlockDevice for VolatileDevice {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn read(&self, range: BlockRange, into: Buffer) -> BoxFuture<'_, Result<Buffer, Error>> {
        self.inner.read(range, into)
    }

    fn write(
        &self,
        range: BlockRange,
        from: Bytes,
        durable: bool,
    ) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            let block = self.geometry().block_bytes as usize;
            let buffer = BufferPool::default().take(range.count as usize * block);
            let mut old = self.inner.read(range, buffer).await?.freeze();
            for lba in range.lba..range.lba + range.count {
                let old = old.split_to(block);
                let mut state = self.state.lock().unwrap();
                match durable {
                    true => drop(state.before.remove(&lba)),
                    false => drop(state.before.entry(lba).or_insert(old)),
                }
            }
            self.inner.write(range, from, durable).await
        })
    }

    fn flush(&self) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            let mut state = self.state.lock().unwrap();
            if std::mem::take(&mut state.is_unreported) {
                return Err(Error::new(ErrorKind::Medium, self.name(), "writes were lost"));
            }
            state.before.clear();
            Ok(())
        })
    }

    fn cache_losses(&self) -> Option<u64> {
        Some(self.state.lock().unwrap().losses)
    }

    fn io_tier(&self) -> String {
        "volatile".into()
    }
}
