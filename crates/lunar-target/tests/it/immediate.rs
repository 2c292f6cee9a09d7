//! Tests that transfers without waiting are tried once on a disk.

use crate::common::*;
use bytes::Bytes;
use lunar_block::{BlockDevice, BlockRange, BoxFuture, Buffer, Error, Geometry, MemoryDevice};
use lunar_target::LunOptions;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

/// A disk in memory that counts its operations; `is_immediate` selects whether it completes them
/// without waiting.
#[derive(Debug)]
struct CountedDisk {
    memory: MemoryDevice,
    is_immediate: AtomicBool,
    immediate: AtomicUsize,
    waiting: AtomicUsize,
}

impl BlockDevice for CountedDisk {
    fn name(&self) -> &str {
        self.memory.name()
    }
    fn geometry(&self) -> Geometry {
        self.memory.geometry()
    }
    fn read(&self, range: BlockRange, into: Buffer) -> BoxFuture<'_, Result<Buffer, Error>> {
        self.waiting.fetch_add(1, SeqCst);
        self.memory.read(range, into)
    }
    fn try_read_now(&self, range: BlockRange, into: &mut [u8]) -> bool {
        self.immediate.fetch_add(1, SeqCst);
        self.is_immediate.load(SeqCst) && self.memory.try_read_now(range, into)
    }
    fn write(&self, at: BlockRange, from: Bytes, fua: bool) -> BoxFuture<'_, Result<(), Error>> {
        self.waiting.fetch_add(1, SeqCst);
        self.memory.write(at, from, fua)
    }
    fn try_write_now(&self, range: BlockRange, from: &[u8], durable: bool) -> bool {
        self.immediate.fetch_add(1, SeqCst);
        self.is_immediate.load(SeqCst) && self.memory.try_write_now(range, from, durable)
    }
    fn flush(&self) -> BoxFuture<'_, Result<(), Error>> {
        self.memory.flush()
    }
    fn io_tier(&self) -> String {
        self.memory.io_tier()
    }
}

/// Goal: a read or write is tried without waiting once, and then waits only if that failed. A
/// disk may need a system call for each try.
#[test]
fn an_immediate_transfer_is_tried_once() {
    let device = Arc::new(CountedDisk {
        memory: MemoryDevice::new(1 << 20, 512, 4096).unwrap(),
        is_immediate: AtomicBool::new(true),
        immediate: AtomicUsize::new(0),
        waiting: AtomicUsize::new(0),
    });
    let disk = Arc::<CountedDisk>::clone(&device);
    let options = lunar_target::DiskUnitOptions::new(uuid::Uuid::from_u128(7), disk);
    let unit = lunar_target::DiskUnit::open(options).unwrap();
    let rig = Rig::with(|options| {
        options.targets[0].luns = vec![LunOptions::new(0, unit)];
    });
    let mut raw = rig.log_in(1);
    for (is_immediate, waiting) in [(true, 0), (false, 1)] {
        device.is_immediate.store(is_immediate, SeqCst);
        let asked = || (device.immediate.swap(0, SeqCst), device.waiting.swap(0, SeqCst));
        raw.write_blocks(9, &[0x5a; 512]).unwrap();
        assert_eq!(asked(), (1, waiting), "a write");
        assert_eq!(raw.read_block(9).unwrap(), [0x5a; 512]);
        assert_eq!(asked(), (1, waiting), "a read");
    }
    log_out(raw);
    rig.stop_cleanly();
}
