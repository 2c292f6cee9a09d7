//! Tests that GOOD has the meaning of the advertised cache mode.

use crate::common::*;
use lunar_block::{
    AtomicLimits, AtomicWrite, BlockDevice, BlockRange, BoxFuture, Buffer, Error, Extent, Geometry,
    MemoryDevice, Sparse,
};
use lunar_target::{CacheMode, DiskUnit, DiskUnitOptions};
use lunar_testkit::raw::RawClient;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

/// A disk that records whether a power cut would lose data.
#[derive(Debug)]
struct Volatile {
    memory: MemoryDevice,
    dirty: AtomicBool,
    sparse: bool,
}

impl Volatile {
    fn changed(&self, durable: bool) {
        self.dirty.store(!durable, SeqCst); // a durable change covers all earlier ones
    }
}

impl BlockDevice for Volatile {
    fn name(&self) -> &str {
        "volatile"
    }
    fn geometry(&self) -> Geometry {
        self.memory.geometry()
    }
    fn read(&self, range: BlockRange, into: Buffer) -> BoxFuture<'_, Result<Buffer, Error>> {
        self.memory.read(range, into)
    }
    fn write(
        &self,
        range: BlockRange,
        from: bytes::Bytes,
        durable: bool,
    ) -> BoxFuture<'_, Result<(), Error>> {
        self.changed(durable);
        self.memory.write(range, from, durable)
    }
    fn flush(&self) -> BoxFuture<'_, Result<(), Error>> {
        self.changed(true);
        self.memory.flush()
    }
    fn sparse(&self) -> Option<&dyn Sparse> {
        self.sparse.then_some(self)
    }
    fn atomic(&self) -> Option<&dyn AtomicWrite> {
        Some(self)
    }
    fn io_tier(&self) -> String {
        self.memory.io_tier()
    }
}

impl AtomicWrite for Volatile {
    fn limits(&self) -> AtomicLimits {
        self.memory.atomic().unwrap().limits()
    }
    fn write_atomic(
        &self,
        range: BlockRange,
        from: bytes::Bytes,
        durable: bool,
    ) -> BoxFuture<'_, Result<(), Error>> {
        self.changed(durable);
        self.memory.atomic().unwrap().write_atomic(range, from, durable)
    }
}

impl Sparse for Volatile {
    fn unmap(&self, range: BlockRange, durable: bool) -> BoxFuture<'_, Result<(), Error>> {
        self.changed(durable);
        self.memory.sparse().unwrap().unmap(range, durable)
    }
    fn write_zeroes(
        &self,
        range: BlockRange,
        may_unmap: bool,
        durable: bool,
    ) -> BoxFuture<'_, Result<(), Error>> {
        self.changed(durable);
        self.memory.sparse().unwrap().write_zeroes(range, may_unmap, durable)
    }
    fn status(
        &self,
        range: BlockRange,
        extents_max: usize,
    ) -> BoxFuture<'_, Result<Vec<Extent>, Error>> {
        self.memory.sparse().unwrap().status(range, extents_max)
    }
    fn granularity_bytes(&self) -> u32 {
        4096
    }
}

fn rig(cache: CacheMode, sparse: bool) -> (Rig, Arc<Volatile>) {
    let memory = MemoryDevice::new(1 << 20, 512, 4096).unwrap();
    let device = Arc::new(Volatile { memory, dirty: AtomicBool::new(false), sparse });
    let unit = DiskUnit::open(DiskUnitOptions {
        cache,
        thin: sparse,
        ..DiskUnitOptions::new(uuid::Uuid::from_u128(1), Arc::<Volatile>::clone(&device))
    });
    let rig = Rig::with(|options| options.targets = vec![target(TARGET, unit.unwrap())]);
    (rig, device)
}

/// Sends a writing command; returns its status.
fn put(raw: &mut RawClient, cdb: &[u8], data: Vec<u8>) -> u8 {
    let pdu = raw.command(0xa1, cdb, data.len() as u32).with_data(data);
    raw.send(&pdu).unwrap();
    answer_to(raw, pdu.u32_at(16)).header[3]
}

fn sixteen(operation: u8, flags: u8, lba: u8, blocks: u8) -> Vec<u8> {
    let mut cdb = vec![0; 16];
    (cdb[0], cdb[1], cdb[9], cdb[13]) = (operation, flags, lba, blocks);
    cdb
}

/// Returns every command that changes blocks: its name, CDB and data-out.
fn changes(sparse: bool) -> Vec<(&'static str, Vec<u8>, Vec<u8>)> {
    let ones = |blocks: usize| vec![1; blocks * 512];
    let mut compare = sixteen(0x89, 0, 40, 0);
    compare[13] = 1;
    let mut list = vec![0, 38, 0, 32, 0, 0, 0, 0];
    list.extend([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0]);
    list.extend([0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0]); // a range of 0 blocks; the last
    let mut all = vec![
        ("WRITE (6)", vec![0x0a, 0, 0, 0, 1, 0], ones(1)),
        ("WRITE (10)", ten(0x2a, 0, 2).to_vec(), ones(2)),
        ("WRITE (16)", sixteen(0x8a, 0, 0, 2), ones(2)),
        ("WRITE ATOMIC (16)", sixteen(0x9c, 0, 0, 8), ones(8)),
        ("ORWRITE", sixteen(0x8b, 0, 8, 2), ones(2)),
        ("COMPARE AND WRITE", compare, [vec![0; 512], ones(1)].concat()),
        ("WRITE SAME (10)", ten(0x41, 16, 8).to_vec(), ones(1)),
        ("WRITE SAME (16) of zeroes", sixteen(0x93, 0, 16, 8), vec![0; 512]),
        ("WRITE SAME (16) without data", sixteen(0x93, 1, 16, 8), vec![]),
    ];
    let segment = copy::Segment { from: 0, to: 0, blocks: 8, source_lba: 0, destination_lba: 16 };
    let list_of_copy = copy::list(1, &[copy::cscd(1, 512)], &[segment]);
    all.push(("EXTENDED COPY", copy::copy_cdb(list_of_copy.len()), list_of_copy));
    if sparse {
        all.push(("WRITE SAME (16) that unmaps", sixteen(0x93, 8, 16, 8), vec![0; 512]));
        all.push(("UNMAP", vec![0x42, 0, 0, 0, 0, 0, 0, 0, 40, 0], list));
    }
    all
}

/// Goal: after GOOD from a write-through unit no data can be lost.
#[test]
fn write_through_is_durable() {
    for sparse in [true, false] {
        let (rig, device) = rig(CacheMode::WriteThrough, sparse);
        let mut raw = rig.log_in(1);
        for (name, cdb, data) in changes(sparse) {
            device.dirty.store(true, SeqCst);
            assert_eq!(put(&mut raw, &cdb, data), 0, "{name}");
            assert!(!device.dirty.load(SeqCst), "{name} was not durable, sparse: {sparse}");
        }
        log_out(raw);
        rig.stop_cleanly();
    }
}

/// Goal: a write-back unit makes data durable on request: FUA, WRITE AND VERIFY, SYNCHRONIZE CACHE,
/// a stop; the rest when the server ends.
#[test]
fn write_back_is_durable_when_asked() {
    let (rig, device) = rig(CacheMode::WriteBack, true);
    let mut raw = rig.log_in(1);
    for (name, cdb, data) in changes(true) {
        device.dirty.store(false, SeqCst);
        assert_eq!(put(&mut raw, &cdb, data), 0, "{name}");
        assert!(device.dirty.load(SeqCst), "{name} was durable though it need not");
    }
    let fua = |operation: u8| {
        let mut cdb = ten(operation, 0, 1).to_vec();
        cdb[1] = 8;
        cdb
    };
    let asked = [
        ("WRITE with FUA", fua(0x2a), vec![1; 512]),
        ("WRITE ATOMIC with FUA", sixteen(0x9c, 8, 0, 8), vec![1; 8 * 512]),
        ("WRITE AND VERIFY", ten(0x2e, 0, 1).to_vec(), vec![1; 512]),
        ("SYNCHRONIZE CACHE", ten(0x35, 0, 0).to_vec(), vec![]),
        ("START STOP UNIT: stop", vec![0x1b, 0, 0, 0, 0, 0], vec![]),
        ("START STOP UNIT: start", vec![0x1b, 0, 0, 0, 1, 0], vec![]),
    ];
    for (name, cdb, data) in asked {
        device.dirty.store(true, SeqCst);
        assert_eq!(put(&mut raw, &cdb, data), 0, "{name}");
        let start = name.ends_with("start");
        assert_eq!(device.dirty.load(SeqCst), start, "{name}");
    }
    device.dirty.store(true, SeqCst);
    assert_eq!(raw.execute(&fua(0x28), 512).unwrap().0, 0);
    assert!(!device.dirty.load(SeqCst), "READ with FUA");
    device.dirty.store(true, SeqCst);
    log_out(raw);
    rig.stop_cleanly();
    assert!(!device.dirty.load(SeqCst), "the final sync");
}
