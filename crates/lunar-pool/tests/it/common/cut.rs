//! A power line: after a given number of writes and flushes all devices on it fail.

use super::{Device, VolatileDevice, next};
use bytes::Bytes;
use lunar_block::{BlockDevice, BlockRange, BoxFuture, Buffer, Error, ErrorKind, Geometry, Sparse};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// The power of some devices with volatile caches.
#[derive(Debug)]
pub struct PowerLine {
    steps: AtomicU64,
    /// The power is off after this step.
    last_step: AtomicU64,
}

impl PowerLine {
    pub fn new() -> Arc<Self> {
        Arc::new(Self { steps: AtomicU64::new(0), last_step: AtomicU64::new(u64::MAX) })
    }

    /// Counts writes and flushes from 0 again, and cuts the power after `steps` of them.
    pub fn cut_after(&self, steps: u64) {
        self.steps.store(0, SeqCst);
        self.last_step.store(steps, SeqCst);
    }

    pub fn is_off(&self) -> bool {
        self.steps.load(SeqCst) >= self.last_step.load(SeqCst)
    }

    fn check(&self, device: &str) -> Result<(), Error> {
        match self.is_off() {
            true => Err(Error::new(ErrorKind::Disconnected, device, "the power is off")),
            false => Ok(()),
        }
    }
}

/// A disk on a power line.
#[derive(Debug)]
pub struct LineDevice {
    cache: Arc<VolatileDevice>,
    line: Arc<PowerLine>,
}

impl LineDevice {
    /// Puts disks on a line, each behind a volatile cache.
    pub fn all(line: &Arc<PowerLine>, disks: &[Device]) -> Vec<Arc<Self>> {
        let cache = |disk: &Device| VolatileDevice::new(Arc::clone(disk));
        let on_line = |disk| Arc::new(Self { cache: cache(disk), line: Arc::clone(line) });
        disks.iter().map(on_line).collect()
    }

    /// Loses some of the blocks that were not flushed, by `random`.
    pub async fn lose_unflushed(&self, random: &mut u64) {
        let one_in = 1 + next(random) % 3;
        self.cache.cut_power(random, one_in).await;
    }
}

impl BlockDevice for LineDevice {
    fn name(&self) -> &str {
        self.cache.name()
    }

    fn geometry(&self) -> Geometry {
        self.cache.geometry()
    }

    fn read(&self, range: BlockRange, into: Buffer) -> BoxFuture<'_, Result<Buffer, Error>> {
        Box::pin(async move {
            self.line.check(self.name())?;
            self.cache.read(range, into).await
        })
    }

    fn write(
        &self,
        range: BlockRange,
        from: Bytes,
        durable: bool,
    ) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            self.line.check(self.name())?;
            let written = self.cache.write(range, from, durable).await;
            self.line.steps.fetch_add(1, SeqCst);
            written
        })
    }

    fn flush(&self) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            self.line.check(self.name())?;
            let flushed = self.cache.flush().await;
            self.line.steps.fetch_add(1, SeqCst);
            flushed
        })
    }

    fn cache_losses(&self) -> Option<u64> {
        self.cache.cache_losses()
    }

    fn sparse(&self) -> Option<&dyn Sparse> {
        self.cache.sparse()
    }

    fn io_tier(&self) -> String {
        "on a power line".into()
    }
}
