//! Two disks that are used together, without any record: what a mirror can reach at most.

use super::Device;
use bytes::Bytes;
use lunar_block::{BlockDevice, BlockRange, BoxFuture, Buffer, Error, Geometry};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

/// Writes go to both disks at once, reads to one after the other.
#[derive(Debug)]
pub struct PlainMirror {
    disks: [Device; 2],
    reads: AtomicUsize,
}

impl PlainMirror {
    /// Creates a mirror of these disks.
    pub fn new(disks: [Device; 2]) -> Self {
        Self { disks, reads: AtomicUsize::new(0) }
    }
}

impl BlockDevice for PlainMirror {
    fn name(&self) -> &str {
        self.disks[0].name()
    }

    fn geometry(&self) -> Geometry {
        self.disks[0].geometry()
    }

    fn read(&self, range: BlockRange, into: Buffer) -> BoxFuture<'_, Result<Buffer, Error>> {
        self.disks[self.reads.fetch_add(1, SeqCst) % 2].read(range, into)
    }

    fn write(
        &self,
        range: BlockRange,
        from: Bytes,
        durable: bool,
    ) -> BoxFuture<'_, Result<(), Error>> {
        let [one, other] = &self.disks;
        let work = (one.write(range, from.clone(), durable), other.write(range, from, durable));
        Box::pin(async move {
            let (one, other) = tokio::join!(work.0, work.1);
            one.and(other)
        })
    }

    fn flush(&self) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            let (one, other) = tokio::join!(self.disks[0].flush(), self.disks[1].flush());
            one.and(other)
        })
    }

    fn io_tier(&self) -> String {
        self.disks[0].io_tier()
    }
}
