//! A disk in memory that records writes, flushes and acknowledgements.

use bytes::Bytes;
use lunar_block::{BlockDevice, BlockRange, BoxFuture, Buffer, Error, ErrorKind, Geometry};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

const SECTOR_BYTES: usize = 512;

/// A change of the disk, or a mark of the test.
#[derive(Clone, Debug)]
pub enum DiskEvent {
    Write(usize, Bytes),
    Flush,
    /// Number of commands that were acknowledged as durable.
    Acknowledged(usize),
    /// Number of commands that were begun.
    Begun(usize),
}

/// A disk whose history is known.
#[derive(Debug)]
pub struct RecordingDevice {
    bytes: Mutex<Vec<u8>>,
    events: Mutex<Vec<DiskEvent>>,
    losses: AtomicU64,
}

impl RecordingDevice {
    pub fn new(bytes: Vec<u8>) -> Arc<Self> {
        Arc::new(Self {
            bytes: Mutex::new(bytes),
            events: Mutex::default(),
            losses: AtomicU64::new(0),
        })
    }

    pub fn image(&self) -> Vec<u8> {
        self.bytes.lock().unwrap().clone()
    }

    pub fn push(&self, event: DiskEvent) {
        self.events.lock().unwrap().push(event);
    }

    pub fn events(&self) -> Vec<DiskEvent> {
        self.events.lock().unwrap().clone()
    }

    pub fn flip(&self, byte: usize, bits: u8) {
        self.bytes.lock().unwrap()[byte] ^= bits;
    }

    /// Says that writes were lost; the flush that fails for it is that of somebody else.
    pub fn lose(&self) {
        self.losses.fetch_add(1, Ordering::SeqCst);
    }

    fn range(&self, range: BlockRange) -> Result<std::ops::Range<usize>, Error> {
        let bytes = self.geometry().checked_range(self.name(), range)?;
        Ok(bytes.start as usize..bytes.end as usize)
    }
}

/// Loses some sectors of the writes since the last flush: those for which `survives` is false.
pub fn image_after_cut(
    mut image: Vec<u8>,
    events: &[DiskEvent],
    mut survives: impl FnMut() -> bool,
) -> Vec<u8> {
    let flushed = events.iter().rposition(|event| matches!(event, DiskEvent::Flush)).unwrap_or(0);
    for (at, event) in events.iter().enumerate() {
        let DiskEvent::Write(start, data) = event else { continue };
        for (number, sector) in data.chunks(SECTOR_BYTES).enumerate() {
            if at < flushed || survives() {
                let start = start + number * SECTOR_BYTES;
                image[start..start + sector.len()].copy_from_slice(sector);
            }
        }
    }
    image
}

impl BlockDevice for RecordingDevice {
    fn name(&self) -> &str {
        "recording"
    }

    fn geometry(&self) -> Geometry {
        let bytes = self.bytes.lock().unwrap().len() as u64;
        Geometry::new("recording", bytes, SECTOR_BYTES as u32, 4096).unwrap()
    }

    fn read(&self, range: BlockRange, mut into: Buffer) -> BoxFuture<'_, Result<Buffer, Error>> {
        Box::pin(async move {
            let range = self.range(range)?;
            let len = range.len();
            into[..len].copy_from_slice(&self.bytes.lock().unwrap()[range]);
            Ok(into)
        })
    }

    fn write(
        &self,
        range: BlockRange,
        from: Bytes,
        durable: bool,
    ) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            let range = self.range(range)?;
            if range.len() != from.len() || durable {
                return Err(Error::new(ErrorKind::Unaligned, self.name(), "not for this test"));
            }
            self.bytes.lock().unwrap()[range.clone()].copy_from_slice(&from);
            self.push(DiskEvent::Write(range.start, from));
            Ok(())
        })
    }

    fn flush(&self) -> BoxFuture<'_, Result<(), Error>> {
        self.push(DiskEvent::Flush);
        Box::pin(async { Ok(()) })
    }

    fn cache_losses(&self) -> Option<u64> {
        Some(self.losses.load(Ordering::SeqCst))
    }

    fn io_tier(&self) -> String {
        "recording".into()
    }
}
