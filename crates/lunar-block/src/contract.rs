//! The contract of a disk, as a test suite. Every implementation and decorator runs it:
//!
//! ```
//! use lunar_block::{BlockDevice, MemoryDevice, contract::Contract};
//! use std::sync::Arc;
//!
//! Contract::new(&|geometry| {
//!     let (size, physical) = (geometry.size_bytes(), geometry.physical_block_bytes);
//!     Arc::new(MemoryDevice::new(size, geometry.block_bytes, physical).unwrap())
//! })
//! .run();
//! ```
//!
//! The suite panics at the first breach, after it has printed the seed. `LUNAR_TEST_SEED` repeats a
//! run.
// In a test suite a panic reports the result.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod atomic;
mod concurrent;
mod model;
mod resize;

use crate::{BlockDevice, BlockRange, BufferPool, Error, ErrorKind, Geometry, random};
use bytes::Bytes;
use model::Model;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time after which a test counts as hanging.
const TEST_TIME_MAX: Duration = Duration::from_secs(120);

/// Number of random operations per geometry.
const OPERATIONS: u32 = 300;

/// Creates a new disk of the given geometry.
pub type Make<'a> = &'a dyn Fn(Geometry) -> Arc<dyn BlockDevice>;

/// Closes a disk and opens it again.
pub type Reopen<'a> = &'a dyn Fn(Arc<dyn BlockDevice>) -> Arc<dyn BlockDevice>;

/// The test suite for one kind of disk.
pub struct Contract<'a> {
    make: Make<'a>,
    reopen: Option<Reopen<'a>>,
    size_unit_bytes: u32,
}

/// A disk under test, with the buffers and the seed of its tests.
struct Subject {
    device: Arc<dyn BlockDevice>,
    pool: BufferPool,
    seed: u64,
}

/// Runs the suite; short for `Contract::new(make).run()`.
pub fn run(make: Make<'_>) {
    Contract::new(make).run();
}

impl<'a> Contract<'a> {
    /// Creates the suite for disks that `make` creates. `make` is called inside a tokio runtime
    /// that runs as long as the disk is used.
    pub fn new(make: Make<'a>) -> Self {
        Self { make, reopen: None, size_unit_bytes: 512 }
    }

    /// Sets a function that closes and reopens a disk; durable data must survive it.
    pub fn reopening(mut self, reopen: Reopen<'a>) -> Self {
        self.reopen = Some(reopen);
        self
    }

    /// Restricts the sizes of test disks to multiples of `bytes`.
    pub fn size_multiple_of(mut self, bytes: u32) -> Self {
        self.size_unit_bytes = bytes;
        self
    }

    /// Runs the whole suite for all block lengths.
    ///
    /// # Panics
    /// When the disk breaks the contract.
    pub fn run(&self) {
        let seed = match std::env::var("LUNAR_TEST_SEED") {
            Ok(seed) => seed.parse().expect("LUNAR_TEST_SEED is a number"),
            Err(_) => RandomState::new().hash_one(0u8),
        };
        eprintln!("contract of a disk: LUNAR_TEST_SEED={seed}");
        let block_sizes = [(512, 512), (512, 4096), (1024, 4096), (2048, 2048), (4096, 4096)];
        for (block_bytes, physical_block_bytes) in block_sizes {
            for size_bytes in [1, 9 * u64::from(block_bytes), 3 << 20] {
                let size_bytes = size_bytes
                    .next_multiple_of(u64::from(block_bytes))
                    .next_multiple_of(u64::from(self.size_unit_bytes));
                let geometry =
                    Geometry::new("contract", size_bytes, block_bytes, physical_block_bytes);
                self.run_geometry(geometry.unwrap(), seed);
            }
        }
    }

    fn run_geometry(&self, geometry: Geometry, seed: u64) {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        runtime.enable_all().build().unwrap().block_on(crate::with_ring(async {
            let suite = self.suite(geometry, seed);
            tokio::time::timeout(TEST_TIME_MAX, suite).await.expect("the disk does not hang");
        }));
    }

    async fn suite(&self, geometry: Geometry, seed: u64) {
        let device = (self.make)(geometry);
        let mut subject = Subject { device, pool: BufferPool::new(64 << 20), seed };
        subject.check_geometry(geometry);
        let mut model = subject.model().await;
        subject.read_back(&mut model).await;
        subject.refusals(&model).await;
        subject.empty_ranges().await;
        subject.random_operations(&mut model).await;
        if let Some(reopen) = self.reopen {
            subject.device.flush().await.unwrap();
            subject.device = reopen(subject.device);
            subject.check_geometry(geometry);
            model.compare(&subject.read_all().await, "after it was opened again");
        }
        subject.disjoint().await;
        subject.same_blocks().await;
        subject.atomic_writes().await;
        subject.size_changes().await;
        subject.all_buffers_returned().await;
    }
}

impl Subject {
    /// Checks that the disk has the geometry it was created with, and a name.
    fn check_geometry(&self, geometry: Geometry) {
        let got = self.device.geometry();
        assert_eq!(got.block_bytes, geometry.block_bytes);
        assert_eq!(got.block_count, geometry.block_count);
        assert_eq!(got.physical_block_bytes, geometry.physical_block_bytes);
        assert!(got.optimal_transfer_bytes.is_multiple_of(got.physical_block_bytes));
        assert!(!self.device.name().is_empty());
        assert!(!self.device.io_tier().is_empty());
        assert!(!self.device.is_read_only());
        if let Some(sparse) = self.device.sparse() {
            assert!(sparse.granularity_bytes().is_multiple_of(got.block_bytes));
            assert_ne!(sparse.granularity_bytes(), 0);
        }
    }

    fn blocks(&self) -> u64 {
        self.device.geometry().block_count
    }

    fn block_bytes(&self) -> usize {
        self.device.geometry().block_bytes as usize
    }

    /// Reads `range` and returns its bytes.
    async fn read(&self, range: BlockRange) -> Vec<u8> {
        let len = range.count as usize * self.block_bytes();
        let mut buffer = self.pool.take(len);
        // The comparison finds bytes that the disk does not fill.
        buffer.fill(0x5A);
        // Reads some ranges without waiting, if possible.
        if (range.lba ^ range.count) & 1 == 0 && self.device.try_read_now(range, &mut buffer) {
            return buffer.to_vec();
        }
        let buffer = self.device.read(range, buffer).await.unwrap();
        assert_eq!(buffer.len(), len, "the same buffer is returned");
        buffer.to_vec()
    }

    async fn read_all(&self) -> Vec<u8> {
        self.read(BlockRange::new(0, self.blocks())).await
    }

    /// Creates a model that starts with the contents of the disk.
    async fn model(&self) -> Model {
        Model::new(self.read_all().await, self.block_bytes())
    }

    /// Returns random data: each stretch of 512 bytes is a part of a random table and begins with a
    /// number of its own. In debug builds 8 bytes at a time would take most of the time of the
    /// contract.
    fn random_data(&self, len: usize, seed: u64) -> Bytes {
        let mut buffer = self.pool.take(len);
        let mut random = seed;
        let table: Vec<u8> =
            (0..128).flat_map(|_| random::next(&mut random).to_be_bytes()).collect();
        for chunk in buffer.chunks_mut(512) {
            let number = random::next(&mut random);
            let at = number as usize % 512;
            chunk.copy_from_slice(&table[at..at + chunk.len()]);
            let start = chunk.len().min(8);
            chunk[..start].copy_from_slice(&number.to_be_bytes()[..start]);
        }
        buffer.freeze()
    }

    async fn write(&self, model: &mut Model, range: BlockRange, durable: bool, seed: u64) {
        let data = self.random_data(range.count as usize * self.block_bytes(), seed);
        let written_now = seed & 1 == 0 && self.device.try_write_now(range, &data, durable);
        if !written_now {
            self.device.write(range, data.clone(), durable).await.unwrap();
        }
        model.write(range, &data);
    }

    /// Checks that data written at the beginning, in the middle, in the last block and everywhere
    /// is read back, also into a longer buffer and from an unaligned buffer.
    async fn read_back(&self, model: &mut Model) {
        let blocks = self.blocks();
        let ranges =
            [(0, 1), (blocks / 2, 1), (blocks - 1, 1), (0, blocks), (blocks / 3, blocks / 2)];
        for (index, (lba, count)) in ranges.into_iter().enumerate() {
            let range = BlockRange::new(lba, count);
            self.write(model, range, index % 2 == 0, self.seed + index as u64).await;
            assert_eq!(self.read(range).await, model.bytes(range), "{range:?}");
        }
        let last = BlockRange::new(blocks - 1, 1);
        let mut longer = self.pool.take(self.block_bytes() + 100);
        longer.fill(0x5A);
        let longer = self.device.read(last, longer).await.unwrap();
        assert_eq!(longer.len(), self.block_bytes() + 100);
        assert_eq!(&longer[..self.block_bytes()], model.bytes(last));
        let odd = self.random_data(self.block_bytes() + 1, self.seed).slice(1..);
        self.device.write(last, odd.clone(), false).await.unwrap();
        model.write(last, &odd);
        model.compare(&self.read_all().await, "after all ranges");
    }

    /// Checks that ranges past the end and buffers of the wrong length are refused and change
    /// nothing.
    async fn refusals(&self, model: &Model) {
        let blocks = self.blocks();
        let block = self.block_bytes();
        let outside = [(blocks, 1), (blocks - 1, 2), (0, blocks + 1), (u64::MAX, 1), (1, u64::MAX)];
        for (lba, count) in outside {
            let range = BlockRange::new(lba, count);
            let len = usize::try_from(count).unwrap().saturating_mul(block).min(4 << 20);
            let read = self.device.read(range, self.pool.take(len)).await.map(drop);
            expect(read, ErrorKind::OutOfRange, range);
            assert!(!self.device.try_read_now(range, &mut self.pool.take(len)), "{range:?}");
            let data = self.random_data(len, self.seed);
            assert!(!self.device.try_write_now(range, &data, false), "{range:?}");
            expect(self.device.write(range, data, true).await, ErrorKind::OutOfRange, range);
            if let Some(sparse) = self.device.sparse() {
                expect(sparse.unmap(range, false).await, ErrorKind::OutOfRange, range);
                let zeroed = sparse.write_zeroes(range, false, false).await;
                expect(zeroed, ErrorKind::OutOfRange, range);
                let status = sparse.status(range, 1).await.map(drop);
                expect(status, ErrorKind::OutOfRange, range);
            }
        }
        let range = BlockRange::new(0, 1);
        for len in [0, 1, block - 1] {
            let read = self.device.read(range, self.pool.take(len)).await.map(drop);
            expect(read, ErrorKind::Unaligned, range);
            assert!(!self.device.try_read_now(range, &mut self.pool.take(len)), "{len} bytes");
        }
        for len in [0, 1, block - 1, block + 1, 2 * block] {
            let data = self.random_data(len, self.seed);
            assert!(!self.device.try_write_now(range, &data, false), "{len} bytes");
            let written = self.device.write(range, data, false).await;
            expect(written, ErrorKind::Unaligned, range);
        }
        model.compare(&self.read_all().await, "after refusals");
    }

    /// Checks that operations on zero blocks succeed, also at the end of the disk.
    async fn empty_ranges(&self) {
        for lba in [0, self.blocks() - 1, self.blocks()] {
            let range = BlockRange::new(lba, 0);
            let buffer = self.device.read(range, self.pool.take(0)).await.unwrap();
            assert!(buffer.is_empty());
            for durable in [false, true] {
                self.device.write(range, Bytes::new(), durable).await.unwrap();
            }
            self.device.prefetch(range);
            if let Some(sparse) = self.device.sparse() {
                sparse.unmap(range, true).await.unwrap();
                sparse.write_zeroes(range, true, false).await.unwrap();
                assert_eq!(sparse.status(range, 8).await.unwrap(), []);
            }
        }
        // A hint may be out of range.
        self.device.prefetch(BlockRange::new(u64::MAX, u64::MAX));
        self.device.flush().await.unwrap();
    }

    /// Checks that every buffer was returned. A device may hold one a moment longer than the
    /// operation.
    async fn all_buffers_returned(&self) {
        let begin = Instant::now();
        while self.pool.in_use_bytes() > 0 && begin.elapsed() < Duration::from_secs(5) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(self.pool.in_use_bytes(), 0, "buffers are left");
    }
}

/// Returns true if all bytes have the same value. In debug builds a loop over the bytes would take
/// most of the time of the contract; this compares each byte with the next one in a single call.
pub(crate) fn are_equal(bytes: &[u8]) -> bool {
    bytes.len() < 2 || bytes[1..] == bytes[..bytes.len() - 1]
}

/// Returns true if all bytes are zero.
pub(crate) fn are_zeroes(bytes: &[u8]) -> bool {
    bytes.first().is_none_or(|byte| *byte == 0) && are_equal(bytes)
}

fn expect(result: Result<(), Error>, kind: ErrorKind, range: BlockRange) {
    match result {
        Err(error) if error.kind == kind => {}
        other => panic!("{range:?}: {kind:?} was to be expected, not {other:?}"),
    }
}
