//! The engine of `lunar copy`: many concurrent transfers, part by part.

use super::super::progress::ProgressMeter;
use super::super::transfer::ByteSpan;
use super::spans::{SpanRun, Walk};
use crate::output::Failure;
use bytes::Bytes;
use futures_util::stream::{FuturesUnordered, StreamExt};
use lunar_block::{BlockDevice, BufferPool, Error};
use lunar_initiator::ErrorKind;

/// Size of a part. Each part ends with a flush; data lost by a target's volatile cache since the
/// last flush is copied again.
const PART_BYTES: u64 = 1 << 30;
/// Maximum number of attempts for a part.
const TRIES_MAX: u32 = 8;
/// Maximum size of a write of zeroes, on disks without a command for it.
const ZEROES_BYTES_MAX: u64 = 1 << 20;

/// A copy from the beginning of one disk to the beginning of another.
pub struct Engine<'d> {
    /// The source disk.
    pub source: &'d dyn BlockDevice,
    /// The destination disk.
    pub destination: &'d dyn BlockDevice,
    /// Whether the destination holds zeroes only.
    pub is_new_file: bool,
    /// Number of concurrent transfers.
    pub depth: usize,
}

/// Counts of copied bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct CopyCounts {
    /// Bytes written as data.
    pub data_bytes: u64,
    /// Bytes that are zero: holes of the source, and data found to be zero.
    pub zero_bytes: u64,
}

impl Engine<'_> {
    /// Copies all of the source, and makes the copy durable.
    ///
    /// # Errors
    /// Returns errors of the disks.
    pub async fn copy(&self) -> Result<CopyCounts, Failure> {
        let progress = ProgressMeter::begin("copying", self.size_bytes());
        let mut counts = CopyCounts::default();
        for part in self.parts() {
            let mut tries = 1;
            loop {
                match self.copy_part(part, &progress).await {
                    Ok(CopyCounts { data_bytes, zero_bytes }) => {
                        counts.data_bytes += data_bytes;
                        counts.zero_bytes += zero_bytes;
                        break;
                    }
                    Err(error) if is_cache_lost(&error) && tries < TRIES_MAX => {
                        tracing::warn!(
                            %error,
                            "data not yet flushed may be lost: copying it again"
                        );
                        progress.reset_to(part.start);
                        tries += 1;
                    }
                    Err(error) => return Err(error.into()),
                }
            }
        }
        Ok(counts)
    }

    /// Reads both disks and compares them.
    ///
    /// # Errors
    /// Returns errors of the disks, or the first difference found.
    pub async fn verify(&self) -> Result<(), Failure> {
        let progress = ProgressMeter::begin("comparing", self.size_bytes());
        let mut walk = Walk::over(self.source, self.whole(), self.align_bytes());
        let mut under_way = FuturesUnordered::new();
        loop {
            while under_way.len() < self.depth
                && let Some(run) = walk.next().await?
            {
                under_way.push(self.compare(run));
            }
            let Some(compared) = under_way.next().await else { return Ok(()) };
            progress.add(compared?);
        }
    }

    fn size_bytes(&self) -> u64 {
        self.source.geometry().size_bytes()
    }

    fn whole(&self) -> ByteSpan {
        ByteSpan { start: 0, end: self.size_bytes() }
    }

    /// Alignment that fits the blocks of both disks, whose sizes are powers of two.
    fn align_bytes(&self) -> u64 {
        let blocks = [self.source, self.destination].map(|disk| disk.geometry().block_bytes);
        blocks.into_iter().max().map_or(512, u64::from)
    }

    fn parts(&self) -> impl Iterator<Item = ByteSpan> {
        let end = self.size_bytes();
        (0..end)
            .step_by(PART_BYTES as usize)
            .map(move |start| ByteSpan { start, end: (start + PART_BYTES).min(end) })
    }

    async fn copy_part(
        &self,
        part: ByteSpan,
        progress: &ProgressMeter,
    ) -> Result<CopyCounts, Error> {
        let mut counts = CopyCounts::default();
        let mut walk = Walk::over(self.source, part, self.align_bytes());
        let mut under_way = FuturesUnordered::new();
        loop {
            while under_way.len() < self.depth
                && let Some(run) = walk.next().await?
            {
                under_way.push(self.copy_run(run));
            }
            let Some(copied) = under_way.next().await else { break };
            let CopyCounts { data_bytes, zero_bytes } = copied?;
            counts.data_bytes += data_bytes;
            counts.zero_bytes += zero_bytes;
            progress.add(data_bytes + zero_bytes);
        }
        self.destination.flush().await?;
        Ok(counts)
    }

    async fn copy_run(&self, run: SpanRun) -> Result<CopyCounts, Error> {
        let bytes = run.span.end - run.span.start;
        let data = if run.hole { None } else { Some(read(self.source, run.span).await?) };
        match data.filter(|data| !is_zero(data)) {
            Some(data) => {
                let range = run.span.blocks(self.destination.geometry().block_bytes.into());
                self.destination.write(range, data, false).await?;
                Ok(CopyCounts { data_bytes: bytes, zero_bytes: 0 })
            }
            None => {
                if !self.is_new_file {
                    self.write_zeroes(run.span).await?;
                }
                Ok(CopyCounts { data_bytes: 0, zero_bytes: bytes })
            }
        }
    }

    async fn write_zeroes(&self, span: ByteSpan) -> Result<(), Error> {
        let block_bytes = self.destination.geometry().block_bytes.into();
        if let Some(sparse) = self.destination.sparse() {
            return sparse.write_zeroes(span.blocks(block_bytes), true, false).await;
        }
        let zeroes = Bytes::from(vec![0; ZEROES_BYTES_MAX.min(span.end - span.start) as usize]);
        let mut start = span.start;
        while start < span.end {
            let end = (start + zeroes.len() as u64).min(span.end);
            let piece = zeroes.slice(..(end - start) as usize);
            self.destination
                .write(ByteSpan { start, end }.blocks(block_bytes), piece, false)
                .await?;
            start = end;
        }
        Ok(())
    }

    /// Returns the number of bytes that were equal.
    async fn compare(&self, run: SpanRun) -> Result<u64, Failure> {
        let mut start = run.span.start;
        while start < run.span.end {
            let piece = ByteSpan { start, end: (start + ZEROES_BYTES_MAX).min(run.span.end) };
            // Holes are compared too: the source only claims that they read as zeroes.
            let here = read(self.source, piece).await?;
            let there = read(self.destination, piece).await?;
            let different =
                || here.iter().zip(&there[..]).position(|(ours, theirs)| ours != theirs);
            if here != there
                && let Some(at) = different()
            {
                let name = self.destination.name();
                let what = format!("{name} differs from the source at byte {}", start + at as u64);
                return Err(Failure::new(what).hint(
                    "make sure that nothing else writes to the disks, copy again, and check the \
                     logs of their servers",
                ));
            }
            start = piece.end;
        }
        Ok(run.span.end - run.span.start)
    }
}

async fn read(device: &dyn BlockDevice, span: ByteSpan) -> Result<Bytes, Error> {
    let range = span.blocks(device.geometry().block_bytes.into());
    let buffer = POOL.take((span.end - span.start) as usize);
    Ok(device.read(range, buffer).await?.freeze())
}

/// Buffers for all transfers.
static POOL: std::sync::LazyLock<BufferPool> = std::sync::LazyLock::new(BufferPool::default);

fn is_zero(data: &[u8]) -> bool {
    data.iter().all(|byte| *byte == 0)
}

fn is_cache_lost(error: &Error) -> bool {
    let source = std::error::Error::source(error);
    source
        .and_then(|source| source.downcast_ref::<lunar_initiator::Error>())
        .is_some_and(|error| error.kind == ErrorKind::CacheLost)
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_block::{BlockRange, MemoryDevice};

    /// Goal: a comparison finds the first differing byte, both in data and where a hole should be.
    #[test]
    fn a_difference_is_found() {
        let runtime = crate::commands::runtime().unwrap();
        let make = || MemoryDevice::new(4 << 20, 512, 4096).unwrap();
        let (source, destination) = (make(), make());
        let data = |byte| Bytes::from(vec![byte; 512]);
        runtime.block_on(async {
            source.write(BlockRange::new(3000, 1), data(7), false).await.unwrap();
            let engine =
                Engine { source: &source, destination: &destination, is_new_file: true, depth: 4 };
            let counts = engine.copy().await.unwrap();
            assert_eq!(counts.data_bytes + counts.zero_bytes, 4 << 20);
            assert!(counts.zero_bytes >= 3 << 20, "{counts:?}");
            engine.verify().await.unwrap();
            let mut wrong = vec![7; 512];
            wrong[100] = 8;
            destination.write(BlockRange::new(3000, 1), wrong.into(), false).await.unwrap();
            let failure = engine.verify().await.unwrap_err();
            assert!(failure.what.contains("at byte 1536100"), "{failure}");
            destination.write(BlockRange::new(3000, 1), data(7), false).await.unwrap();
            destination.write(BlockRange::new(7000, 1), data(1), false).await.unwrap();
            let failure = engine.verify().await.unwrap_err();
            assert!(failure.what.contains("at byte 3584000"), "{failure}");
            // Old data of the destination is overwritten with zeroes where the source has a hole.
            let engine = Engine { is_new_file: false, ..engine };
            engine.copy().await.unwrap();
            engine.verify().await.unwrap();
        });
    }
}
