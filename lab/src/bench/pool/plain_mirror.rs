//! Two disks that are written together, without any record: what a mirror can reach at most.

use super::Device;
use bytes::Bytes;
use lunar_block::{BlockDevice, BlockRange, BoxFuture, Buffer, Error, Geometry};

/// Writes go to both disks at once, reads to the first one.
#[derive(Debug)]
pub struct PlainMirror(pub [Device; 2]);

impl BlockDevice for PlainMirror {
    fn name(&self) -> &str {
        self.0[0].name()
    }

    fn geometry(&self) -> Geometry {
        self.0[0].geometry()
    }

    fn read(&self, range: BlockRange, into: Buffer) -> BoxFuture<'_, Result<Buffer, Error>> {
        self.0[0].read(range, into)
    }

    fn write(
        &self,
        range: BlockRange,
        from: Bytes,
        durable: bool,
    ) -> BoxFuture<'_, Result<(), Error>> {
        let [one, other] = &self.0;
        let work = (one.write(range, from.clone(), durable), other.write(range, from, durable));
        Box::pin(async move {
            let (one, other) = tokio::join!(work.0, work.1);
            one.and(other)
        })
    }

    fn flush(&self) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            let (one, other) = tokio::join!(self.0[0].flush(), self.0[1].flush());
            one.and(other)
        })
    }

    fn io_tier(&self) -> String {
        self.0[0].io_tier()
    }
}
