//! Tests of transfers by a ring: the contract of a disk, and transfers whose futures were dropped.
//! If the kernel permits no ring, workers pass the same tests.

use super::*;
use crate::contract::Contract;
use crate::file::tests::{Scratch, closes, open_disk};
use crate::file::{FileDevice, FileOptions};
use crate::{BlockDevice, BlockRange, BufferPool, ErrorKind, Geometry};
use bytes::Bytes;
use std::fs::File;
use std::io::{self, Write as _};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Block length of the disks here: a unit of direct I/O, so that all transfers can go by the ring.
const BLOCK: usize = 4096;

/// Time limit for events that must happen eventually.
const SOON: Duration = Duration::from_secs(20);

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

fn options(scratch: &Scratch, blocks: u64) -> FileOptions {
    FileOptions {
        block_bytes: BLOCK as u32,
        direct: true,
        io_uring: true,
        ..scratch.options(blocks * BLOCK as u64)
    }
}

/// Returns true when there are no rings for the files of `scratch`, after it has printed a note.
fn skipped(scratch: &Scratch, test: &str) -> bool {
    let options = FileOptions { path: scratch.0.join("probe.img"), ..options(scratch, 1) };
    let by_ring = open_disk(&options).by_ring;
    if !by_ring {
        eprintln!("SKIPPED: {test}: no io_uring, or none for files of {}", scratch.0.display());
    }
    !by_ring
}

fn eventually(what: &str, mut is: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is() {
        assert!(begin.elapsed() < SOON, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Files created for a contract, and the number of their transfers by rings.
struct CountedFiles<'a> {
    scratch: &'a Scratch,
    next: AtomicU32,
    last: Mutex<Option<FileOptions>>,
    in_flight: Mutex<Vec<Arc<TransfersInFlight>>>,
}

impl<'a> CountedFiles<'a> {
    fn new(scratch: &'a Scratch) -> Self {
        let (next, last, in_flight) = Default::default();
        Self { scratch, next, last, in_flight }
    }

    fn make(&self, limits: Geometry, direct: bool) -> Arc<FileDevice> {
        let number = self.next.fetch_add(1, Relaxed);
        let options = FileOptions {
            path: self.scratch.0.join(format!("{number}.img")),
            block_bytes: limits.block_bytes,
            physical_block_bytes: limits.physical_block_bytes,
            direct,
            io_uring: true,
            ..self.scratch.options(limits.size_bytes())
        };
        *self.last.lock().unwrap() =
            Some(FileOptions { create_size_bytes: None, ..options.clone() });
        self.open(options)
    }

    fn reopen(&self, device: Arc<dyn BlockDevice>) -> Arc<FileDevice> {
        drop(device);
        let options = self.last.lock().unwrap().clone();
        self.open(options.unwrap())
    }

    fn open(&self, options: FileOptions) -> Arc<FileDevice> {
        let device = FileDevice::open(options).unwrap();
        self.in_flight.lock().unwrap().push(Arc::clone(&device.in_flight));
        device
    }

    /// Asserts that rings did the work, and that no transfer is left.
    fn by_rings(&self) {
        let in_flight = self.in_flight.lock().unwrap();
        let begun: usize = in_flight.iter().map(|in_flight| in_flight.begun()).sum();
        assert!(skipped(self.scratch, "contract") || begun > 500, "{begun} transfers by rings");
        assert!(in_flight.iter().all(|in_flight| in_flight.now() == 0));
    }
}

/// Goal: the contract holds with direct I/O by the rings of the contract's threads.
#[test]
fn contract_direct_by_ring() {
    let scratch = Scratch::new();
    let made = CountedFiles::new(&scratch);
    Contract::new(&|limits| made.make(limits, true))
        .reopening(&|device| made.reopen(device))
        .size_multiple_of(4096)
        .run();
    made.by_rings();
}

/// Goal: the contract holds with reads of uncached data by rings and inline writes.
#[test]
fn contract_of_cache_misses() {
    let scratch = Scratch::new();
    let made = CountedFiles::new(&scratch);
    let forgetful = |device| -> Arc<dyn BlockDevice> { Arc::new(UncachedFile::new(device)) };
    Contract::new(&|limits| forgetful(made.make(limits, false)))
        .reopening(&|device| forgetful(made.reopen(device)))
        .run();
    made.by_rings();
}

/// A file whose pages are dropped from the cache before every fourth read.
#[derive(Debug)]
struct UncachedFile {
    file: Arc<FileDevice>,
    reads: AtomicU32,
}

impl UncachedFile {
    fn new(file: Arc<FileDevice>) -> Self {
        Self { file, reads: AtomicU32::new(0) }
    }
}

impl BlockDevice for UncachedFile {
    fn name(&self) -> &str {
        self.file.name()
    }

    fn geometry(&self) -> Geometry {
        self.file.geometry()
    }

    fn read(
        &self,
        range: BlockRange,
        into: crate::Buffer,
    ) -> crate::BoxFuture<'_, Result<crate::Buffer, crate::Error>> {
        if self.reads.fetch_add(1, Relaxed).is_multiple_of(4) {
            // Dirty pages stay in the cache, so they are written back first.
            let file = &self.file.disk.file;
            rustix::fs::fdatasync(file).unwrap();
            self.file.disk.drop_cache().unwrap();
        }
        self.file.read(range, into)
    }

    fn write(
        &self,
        range: BlockRange,
        from: Bytes,
        durable: bool,
    ) -> crate::BoxFuture<'_, Result<(), crate::Error>> {
        self.file.write(range, from, durable)
    }

    fn flush(&self) -> crate::BoxFuture<'_, Result<(), crate::Error>> {
        self.file.flush()
    }

    fn sparse(&self) -> Option<&dyn crate::Sparse> {
        self.file.sparse()
    }

    fn resize(&self) -> Option<&dyn crate::Resize> {
        self.file.resize()
    }

    fn is_read_only(&self) -> bool {
        self.file.is_read_only()
    }

    fn io_tier(&self) -> String {
        self.file.io_tier()
    }
}

/// Goal: a transfer whose future is dropped at any point leaks nothing, and writes to no buffer
/// that has another owner. Method: random transfers of a few tasks, each on blocks of its own, on
/// rings that are too small for them and split them; a third of the futures is dropped after one
/// poll. If a buffer returned to the pool too early, it would be reused and seen to change.
#[test]
fn abandoned() {
    let seed = match std::env::var("LUNAR_TEST_SEED") {
        Ok(seed) => seed.parse().unwrap(),
        Err(_) => std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), 0u8),
    };
    eprintln!("abandoned: LUNAR_TEST_SEED={seed}");
    let scratch = Scratch::new();
    let device = FileDevice::open(options(&scratch, TASKS * SHARE)).unwrap();
    let pool = BufferPool::new(64 << 20);
    for (transfers_max, request_bytes_max) in
        [(2, BLOCK as u32), (8, 2 * BLOCK as u32), (256, 1 << 30)]
    {
        let limits = RingLimits { transfers_max, request_bytes_max };
        runtime().block_on(with_ring_of(limits, async {
            let tasks = (0..TASKS).map(|task| transfer_and_abandon(&device, &pool, task, seed));
            futures_util::future::join_all(tasks).await;
        }));
    }
    assert!(device.in_flight.begun() > 100 || skipped(&scratch, "abandoned"));
    let in_flight = Arc::clone(&device.in_flight);
    closes(|| drop(device), || (in_flight.now(), pool.in_use_bytes()) == (0, 0));
}

const TASKS: u64 = 6;
const SHARE: u64 = 8;

async fn transfer_and_abandon(device: &FileDevice, pool: &BufferPool, task: u64, seed: u64) {
    let mut random = seed ^ (task << 32);
    let (kept, abandoned) =
        (BlockRange::new(task * SHARE, SHARE / 2), BlockRange::new(task * SHARE + 4, SHARE / 2));
    let len = SHARE as usize / 2 * BLOCK;
    for _ in 0..60 {
        let draw = crate::random::next(&mut random);
        let mut data = pool.take(len);
        data.fill(draw as u8);
        let data = data.freeze();
        if draw & 0x300 == 0 {
            // The write may happen at any time, but only as a whole.
            let _ = futures_util::poll!(&mut device.write(abandoned, data.clone(), false));
        }
        device.write(kept, data.clone(), false).await.unwrap();
        if draw & 0xc00 == 0 {
            let _ = futures_util::poll!(&mut device.read(kept, pool.take(len)));
        }
        // If the memory of that read were free already, this buffer would reuse it.
        let mut mine = pool.take(len);
        mine.fill(0xEE);
        let read = device.read(kept, pool.take(len)).await.unwrap();
        assert!(read[..] == data[..], "task {task}: other data than was written last");
        let read = device.read(abandoned, read).await.unwrap();
        let torn = |block: &[u8]| block.iter().any(|byte| *byte != block[0]);
        assert!(!read.chunks(BLOCK).any(torn), "task {task}: a block is torn");
        assert!(
            mine.iter().all(|byte| *byte == 0xEE),
            "task {task}: memory of another buffer was written"
        );
    }
}

/// Creates a device whose file is one end of a pipe, so that the test decides how long a transfer
/// takes.
fn piped(scratch: &Scratch, blocks: u64) -> (Arc<FileDevice>, File) {
    let mut disk = open_disk(&options(scratch, blocks));
    let (reader, writer) = std::io::pipe().unwrap();
    disk.file = File::from(OwnedFd::from(reader));
    (FileDevice::with_sync(Arc::new(disk), || Ok(())), File::from(OwnedFd::from(writer)))
}

/// Goal: dropping a future frees neither the memory nor the range of its transfer. Method: a read
/// from a pipe ends only when data is written to it.
#[test]
fn held_until_completed() {
    let scratch = Scratch::new();
    if skipped(&scratch, "held_until_completed") {
        return;
    }
    let (device, mut pipe) = piped(&scratch, 8);
    let pool = BufferPool::default();
    let one = BlockRange::new(1, 1);
    runtime().block_on(with_ring(async {
        let mut read = device.read(one, pool.take(BLOCK));
        assert!(futures_util::poll!(&mut read).is_pending());
        drop(read);
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert_eq!(device.in_flight.now(), 1);
        assert!(pool.in_use_bytes() > 0, "the kernel may still write to it");
        assert!(device.disk.try_hold(&(4096..8192), true).is_none(), "its range is free");
        assert!(device.disk.try_hold(&(8192..12288), true).is_some(), "its neighbour is not");
        pipe.write_all(&[7; BLOCK]).unwrap();
        while device.in_flight.now() > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(pool.in_use_bytes(), 0);
        assert!(device.disk.try_hold(&(4096..8192), true).is_some());
    }));
}

/// Goal: a core that does a worker's job because no thread is available, and that waits for a range
/// held by its own ring, processes completions of the ring meanwhile; otherwise it would wait
/// forever.
#[test]
fn a_waiting_core_processes_its_ring() {
    let scratch = Scratch::new();
    if skipped(&scratch, "a_waiting_core_processes_its_ring") {
        return;
    }
    let (device, mut pipe) = piped(&scratch, 8);
    let pool = BufferPool::default();
    runtime().block_on(with_ring(async {
        let mut read = device.read(BlockRange::new(1, 1), pool.take(BLOCK));
        assert!(futures_util::poll!(&mut read).is_pending());
        let later = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(20));
            pipe.write_all(&[7; BLOCK]).unwrap();
        });
        drop(device.disk.ranges.lock(&(4096..8192), true));
        assert_eq!(read.await.unwrap()[..], [7; BLOCK]);
        later.join().unwrap();
    }));
    assert_eq!(pool.in_use_bytes(), 0);
}

/// Goal: data that arrives in parts is put together, and an early end of the file gives the same
/// error as without a ring.
#[test]
fn in_parts() {
    let scratch = Scratch::new();
    if skipped(&scratch, "in_parts") {
        return;
    }
    let (device, mut pipe) = piped(&scratch, 8);
    let pool = BufferPool::default();
    let range = BlockRange::new(2, 3);
    let expected: Vec<u8> = (0..3 * BLOCK).map(|n| (n % 251) as u8).collect();
    runtime().block_on(with_ring(async {
        let mut read = device.read(range, pool.take(3 * BLOCK));
        for part in expected.chunks(1000) {
            assert!(futures_util::poll!(&mut read).is_pending());
            pipe.write_all(part).unwrap();
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(read.await.unwrap()[..], expected);
        let mut read = device.read(range, pool.take(3 * BLOCK));
        assert!(futures_util::poll!(&mut read).is_pending());
        pipe.write_all(&[1; 100]).unwrap();
        drop(pipe);
        let error = read.await.unwrap_err();
        assert_eq!((error.kind, error.range), (ErrorKind::Medium, Some(range)));
        let text = format!("{error}: {}", std::error::Error::source(&error).unwrap());
        assert!(text.contains("reading failed") && text.contains("shorter"), "{text}");
    }));
    assert_eq!(pool.in_use_bytes(), 0);
}

/// Goal: an interrupted transfer is retried, but not forever; other errors are final.
#[test]
fn tried_again() {
    let scratch = Scratch::new();
    let disk = Arc::new(open_disk(&options(&scratch, 8)));
    let transfer = || {
        let hold = disk.try_hold(&(0..8192), false).unwrap();
        let (answer, _) = tokio::sync::oneshot::channel();
        let memory = Memory::Write { bytes: Bytes::from_static(&[0; 8192]), answer };
        Transfer::new(hold, &(0..8192), memory, &Arc::default())
    };
    let mut interrupted = transfer();
    assert!(interrupted.completed(4096).is_none());
    for errno in [libc::EINTR, libc::EAGAIN].into_iter().cycle().take(64) {
        assert!(interrupted.completed(-errno).is_none());
    }
    assert_eq!((interrupted.offset(), interrupted.rest()), (4096, 4096..8192));
    let error = interrupted.completed(-libc::EINTR).unwrap().unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EINTR));
    assert_eq!(
        transfer().completed(-libc::EIO).unwrap().unwrap_err().raw_os_error(),
        Some(libc::EIO)
    );
    let none = transfer().completed(0).unwrap().unwrap_err();
    assert_eq!(none.kind(), io::ErrorKind::WriteZero);
    assert!(transfer().completed(8192).unwrap().is_ok());
}

/// Goal: a runtime that ends waits for its transfers in progress, submitted or not; nothing is
/// left, and the file can be opened again at once.
#[test]
fn the_runtime_ends() {
    let scratch = Scratch::new();
    let pool = BufferPool::default();
    for round in 0..20 {
        let device = FileDevice::open(options(&scratch, 64)).unwrap();
        let main = with_ring(async {
            for lba in 0..32 {
                let mut read = device.read(BlockRange::new(lba, 1), pool.take(BLOCK));
                let _ = futures_util::poll!(&mut read);
                let data = pool.take_zeroed(BLOCK).freeze();
                let mut write = device.write(BlockRange::new(32 + lba, 1), data, false);
                let _ = futures_util::poll!(&mut write);
            }
            if round % 2 == 0 {
                tokio::task::yield_now().await;
            }
        });
        closes(|| runtime().block_on(main), || device.in_flight.now() == 0);
        let opens = || FileDevice::open(options(&scratch, 64)).is_ok();
        closes(|| drop(device), || pool.in_use_bytes() == 0 && opens());
    }
}

/// Goal: a transfer that takes longer than the time limit of an ending core keeps its memory, range
/// and file until it has completed. Method: a pipe.
#[test]
fn longer_than_the_core() {
    let scratch = Scratch::new();
    if skipped(&scratch, "longer_than_the_core") {
        return;
    }
    let (device, mut pipe) = piped(&scratch, 8);
    let pool = BufferPool::default();
    let in_flight = Arc::clone(&device.in_flight);
    runtime().block_on(with_ring(async {
        let mut read = device.read(BlockRange::new(0, 1), pool.take(BLOCK));
        assert!(futures_util::poll!(&mut read).is_pending());
    }));
    assert_eq!(in_flight.now(), 1);
    assert!(pool.in_use_bytes() > 0);
    assert!(device.disk.try_hold(&(0..4096), false).is_some(), "it is only read");
    assert!(device.disk.try_hold(&(0..4096), true).is_none());
    drop(device);
    pipe.write_all(&[7; BLOCK]).unwrap();
    eventually("the transfer ends", || in_flight.now() == 0);
    eventually("its memory is free", || pool.in_use_bytes() == 0);
    let error = pipe.write_all(&[7]).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::BrokenPipe, "its file is closed");
}

/// Goal: a full ring leaves further transfers to workers, and none waits forever. Method: reads of
/// a pipe fill the ring; a worker reads a file meanwhile.
#[test]
fn full() {
    let scratch = Scratch::new();
    if skipped(&scratch, "full") {
        return;
    }
    let (slow, mut pipe) = piped(&scratch, 8);
    let path = scratch.0.join("other.img");
    let device = FileDevice::open(FileOptions { path, ..options(&scratch, 64) }).unwrap();
    let pool = BufferPool::default();
    let limits = RingLimits { transfers_max: 2, ..RingLimits::default() };
    runtime().block_on(with_ring_of(limits, async {
        let mut reads: Vec<_> =
            (0..2).map(|lba| slow.read(BlockRange::new(lba, 1), pool.take(BLOCK))).collect();
        for read in &mut reads {
            assert!(futures_util::poll!(read).is_pending());
        }
        let others = (0..64).map(|lba| device.read(BlockRange::new(lba, 1), pool.take(BLOCK)));
        for read in futures_util::future::join_all(others).await {
            assert!(read.unwrap().iter().all(|byte| *byte == 0));
        }
        assert_eq!((slow.in_flight.begun(), device.in_flight.begun()), (2, 0));
        pipe.write_all(&[7; 2 * BLOCK]).unwrap();
        futures_util::future::try_join_all(reads).await.unwrap();
        device.read(BlockRange::new(0, 1), pool.take(BLOCK)).await.unwrap();
        assert_eq!(device.in_flight.begun(), 1, "there is room again");
    }));
}

/// Goal: the transfers that the tasks of a core request in one pass of its runtime are submitted
/// with few system calls.
#[test]
fn a_call_for_a_batch() {
    let scratch = Scratch::new();
    if skipped(&scratch, "a_call_for_a_batch") {
        return;
    }
    let device = FileDevice::open(options(&scratch, 64)).unwrap();
    let pool = BufferPool::default();
    runtime().block_on(with_ring(async {
        let read = |lba| {
            let (device, pool) = (Arc::clone(&device), pool.clone());
            tokio::spawn(
                async move { device.read(BlockRange::new(lba, 1), pool.take(BLOCK)).await },
            )
        };
        let reads: Vec<_> = (0..30).map(read).collect();
        for read in reads {
            read.await.unwrap().unwrap();
        }
        let submissions = current_ring().unwrap().state.borrow_mut().queue().unwrap().submissions();
        assert_eq!((device.in_flight.begun(), submissions), (30, 8));
    }));
}

/// Goal: a sync begins only when the write that it is for has completed.
#[test]
fn syncs_come_after() {
    let scratch = Scratch::new();
    let disk = Arc::new(open_disk(&options(&scratch, 64)));
    let early = Arc::new(AtomicU32::new(0));
    let (path, seen) = (scratch.options(0).path, Arc::clone(&early));
    let pool = BufferPool::default();
    let written = Arc::new(AtomicU32::new(0));
    let wanted = Arc::clone(&written);
    let device = FileDevice::with_sync(disk, move || {
        let wanted = wanted.load(Relaxed) as u8;
        let bytes = std::fs::read(&path)?;
        seen.fetch_add(u32::from(bytes[..BLOCK] != [wanted; BLOCK]), Relaxed);
        Ok(())
    });
    runtime().block_on(with_ring(async {
        for value in 1..100 {
            written.store(value, Relaxed);
            let mut data = pool.take(BLOCK);
            data.fill(value as u8);
            device.write(BlockRange::new(0, 1), data.freeze(), true).await.unwrap();
        }
    }));
    assert_eq!(early.load(Relaxed), 0, "syncs before their writes");
    assert!(device.in_flight.begun() >= 99 || skipped(&scratch, "syncs_come_after"));
}

/// Goal: workers do the transfers on a thread without a ring, or of a file that was not opened for
/// rings, and the I/O tier shows it. A ring within another is the same ring.
#[test]
fn tiers() {
    let scratch = Scratch::new();
    let pool = BufferPool::default();
    let one = BlockRange::new(0, 1);
    let skipped = skipped(&scratch, "tiers");
    for (io_uring, tier) in [(true, "direct, io_uring"), (false, "direct, pool")] {
        let device = FileDevice::open(FileOptions { io_uring, ..options(&scratch, 8) }).unwrap();
        assert!(device.io_tier() == tier || skipped, "{}", device.io_tier());
        runtime().block_on(device.read(one, pool.take(BLOCK))).unwrap();
        assert_eq!(device.in_flight.begun(), 0);
        let read = || async { device.read(one, pool.take(BLOCK)).await.unwrap() };
        runtime().block_on(with_ring(async {
            with_ring(read()).await;
            tokio::spawn({
                let (device, pool) = (Arc::clone(&device), pool.clone());
                async move { device.read(one, pool.take(BLOCK)).await.unwrap() }
            })
            .await
            .unwrap();
        }));
        let by_ring = if io_uring && !skipped { 2 } else { 0 };
        assert_eq!(device.in_flight.begun(), by_ring);
    }
    for (io_uring, tier) in [(true, "inline + io_uring"), (false, "inline + pool")] {
        let options = FileOptions { direct: false, io_uring, ..options(&scratch, 8) };
        let device = FileDevice::open(options).unwrap();
        assert!(device.io_tier() == tier || skipped, "{}", device.io_tier());
    }
}
