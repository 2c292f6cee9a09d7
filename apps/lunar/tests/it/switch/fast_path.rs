//! The fast path: commands are relayed between hosts and storages.

use super::hosts::reserve;
use super::loss::synchronize;
use super::{
    MIB, Rig, RigOptions, block_on, command, extent, extents, lun, read, try_write, write,
};
use crate::common::{TEST_TIMEOUT, get, pattern, signal};
use futures_util::FutureExt;
use lunar_initiator::blocking::Connector;
use lunar_initiator::{RemoteDisk, SessionOptions};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

pub(super) const FAST: &[&str] = &["--path", "fast"];

/// Number of commands of a LUN with this result: `relayed` or `taken_over`.
pub(super) fn count(rig: &Rig, lun: u16, result: &str) -> u64 {
    let page = get(rig.switch.report["metrics"].as_str().unwrap());
    let line = format!("lun=\"{lun}\",result=\"{result}\"}} ");
    let mut lines = page.lines().filter(|line| line.starts_with("lunar_relayed_commands_total"));
    let value = lines.find_map(|found| Some(found.split_once(&line)?.1.to_owned()));
    value.unwrap_or_else(|| panic!("{page}")).parse().unwrap()
}

/// Reads until a READ of these blocks is relayed: the relay logs in when it is first needed.
pub(super) fn until_relayed(rig: &Rig, disk: &RemoteDisk, lun: u16, offset: u64, bytes: usize) {
    let end = Instant::now() + TEST_TIMEOUT;
    let before = count(rig, lun, "relayed");
    while count(rig, lun, "relayed") == before {
        assert!(Instant::now() < end, "no READ is relayed");
        block_on(read(disk, offset, bytes));
    }
}

/// Writes the data of these blocks again until a WRITE is relayed: WRITEs have a session of their
/// own.
fn until_writes_are_relayed(rig: &Rig, disk: &RemoteDisk, lun: u16, offset: u64, bytes: usize) {
    let end = Instant::now() + TEST_TIMEOUT;
    let data = block_on(read(disk, offset, bytes));
    let before = count(rig, lun, "relayed");
    while count(rig, lun, "relayed") == before {
        assert!(Instant::now() < end, "no WRITE is relayed");
        block_on(write(disk, offset, &data));
    }
}

/// Goal: READs of every length are relayed, and return what the storage has. Method: lengths from
/// one block to more than all that a relay holds; the counts of the metrics.
#[test]
fn reads_are_relayed() {
    let luns = lun(0, &extents(&[extent("a", 1, 20)]));
    let options = RigOptions { luns: &luns, switch: FAST, ..RigOptions::default() };
    let rig = Rig::new("switch-fast-reads", options);
    let connector = Connector::start().unwrap();
    let disk = rig.open(&connector, 1, 0);
    let data = pattern(1, 16 << 20);
    block_on(write(&disk, 0, &data));
    until_relayed(&rig, &disk, 0, 0, 4096);
    let (before, mut reads) = (count(&rig, 0, "relayed"), 0);
    let lengths = [512, 4096, 65536, 65536 + 512, 1 << 20, 8 << 20];
    for bytes in lengths {
        for offset in [0, 512, 3 * MIB] {
            let back = block_on(read(&disk, offset, bytes));
            assert!(back == data[offset as usize..][..bytes], "{bytes} bytes at {offset}");
            reads += 1;
        }
    }
    assert_eq!(count(&rig, 0, "relayed"), before + reads);
    assert_eq!(count(&rig, 0, "taken_over"), 0);
}

/// Goal: WRITEs of every length are relayed, to one extent, across two, and to a stripe: the data
/// is what a model says, at the hosts and at the storages. Method: random transfers by seed.
#[test]
fn writes_reach_every_part() {
    let stripe = format!(
        "stripe = {{ unit = \"64KiB\", over = [{}, {}] }}",
        extent("b", 16, 4),
        extent("a", 8, 4)
    );
    let luns = lun(0, &extents(&[extent("a", 1, 3), extent("b", 4, 3)])) + &lun(1, &stripe);
    let options = RigOptions { luns: &luns, switch: FAST, ..RigOptions::default() };
    let rig = Rig::new("switch-fast-writes", options);
    let connector = Connector::start().unwrap();
    for (id, size) in [(0, 6 * MIB), (1, 8 * MIB)] {
        let disk = rig.open(&connector, 1, id);
        let mut model = vec![0; size as usize];
        until_relayed(&rig, &disk, id, 0, 4096);
        until_relayed(&rig, &disk, id, size - 4096, 4096);
        until_relayed(&rig, &disk, id, 60 << 10, 8192);
        until_writes_are_relayed(&rig, &disk, id, 0, 4096);
        until_writes_are_relayed(&rig, &disk, id, size - 4096, 4096);
        until_writes_are_relayed(&rig, &disk, id, 60 << 10, 8192);
        let before = count(&rig, id, "relayed");
        let mut random = Random(7 + u64::from(id));
        let mut transfers = 0;
        for round in 0..30 {
            let blocks = size / 512;
            let lengths = [1, 7, 8, 64, 129, 600, 4096, 9000];
            let count = lengths[random.below(lengths.len() as u64) as usize].min(blocks);
            let first = random.below(blocks - count + 1) as usize * 512;
            let data = pattern(1000 + round, count as usize * 512);
            block_on(write(&disk, first as u64, &data));
            model[first..][..data.len()].copy_from_slice(&data);
            let (from, bytes) = (first.saturating_sub(512), data.len());
            let back = block_on(read(&disk, from as u64, bytes));
            assert!(back == model[from..][..bytes], "LUN {id}, round {round}");
            transfers += 2;
        }
        assert!(block_on(read(&disk, 0, size as usize)) == model, "LUN {id}");
        assert_eq!(count(&rig, id, "taken_over"), 0);
        assert_eq!(count(&rig, id, "relayed"), before + transfers + 1);
    }
}

/// Goal: with header and data digests on both sides, READs and WRITEs are relayed in both
/// directions, and their data is right. Method: lengths around those of segments and sequences, at
/// one extent and across two.
#[test]
fn digests_on_both_sides() {
    const DIGESTS: &str = "?header_digest=crc32c&data_digest=crc32c";
    const SEGMENT_BYTES: usize = 64 << 10;
    let luns = lun(0, &extents(&[extent("a", 1, 2), extent("b", 4, 2)]));
    let options =
        RigOptions { luns: &luns, storage_query: DIGESTS, switch: FAST, ..RigOptions::default() };
    let rig = Rig::new("switch-fast-digests", options);
    let connector = Connector::start().unwrap();
    let url = format!("{}{DIGESTS}", rig.switch.lun(0)).parse().unwrap();
    let host = SessionOptions::new("iqn.2026-11.org.lunarsan.test:host");
    let disk = Arc::clone(connector.open(&url, &host).unwrap().remote());
    let digests = disk.unit().initiator().established().connection.digests;
    assert!(digests.header && digests.data);
    for offset in [0, 3 * MIB] {
        until_relayed(&rig, &disk, 0, offset, 4096);
        until_writes_are_relayed(&rig, &disk, 0, offset, 4096);
    }
    let (before, mut transfers) = (count(&rig, 0, "relayed"), 0);
    let mut model = block_on(read(&disk, 0, 4 << 20));
    for whole in [0, 1, 2, 3, 4, 5, 8, 16].map(|segments| segments * SEGMENT_BYTES) {
        for bytes in [whole.saturating_sub(512), whole, whole + 512].map(|bytes| bytes.max(512)) {
            for offset in [0, 2 * MIB - bytes as u64 / 1024 * 512, 3 * MIB - 512] {
                let data = pattern(transfers, bytes);
                block_on(write(&disk, offset, &data));
                model[offset as usize..][..bytes].copy_from_slice(&data);
                let from = offset.saturating_sub(512);
                let back = block_on(read(&disk, from, bytes));
                assert!(back == model[from as usize..][..bytes], "{bytes} bytes at {offset}");
                transfers += 2;
            }
        }
    }
    assert!(block_on(read(&disk, 0, model.len())) == model);
    assert_eq!(count(&rig, 0, "taken_over"), 0);
    assert_eq!(count(&rig, 0, "relayed"), before + 2 + transfers);
}

/// A LUN of 1 MiB on each storage.
fn linear() -> String {
    lun(0, &extents(&[extent("a", 1, 1), extent("b", 4, 1)]))
}

/// Goal: while storages are killed and started again, READs and WRITEs of a host succeed, and no
/// data is lost or old. Method: a writer for each storage, which reads back what it wrote.
#[test]
fn storages_die_under_relayed_commands() {
    let luns = linear();
    let keys = "on_storage_loss = \"wait 60s\"";
    let options =
        RigOptions { luns: &luns, storage_keys: keys, switch: FAST, ..RigOptions::default() };
    let mut rig = Rig::new("switch-fast-deaths", options);
    let connector = Connector::start().unwrap();
    let disks = [0, MIB].map(|offset| {
        let disk = rig.open(&connector, 1 + u32::from(offset > 0), 0);
        until_relayed(&rig, &disk, 0, offset, 4096);
        (disk, offset)
    });
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let work = |disk: &RemoteDisk, offset| {
            let mut rounds = 0;
            while !is_over.load(SeqCst) || rounds < 3 {
                let data = pattern(rounds, 700 << 10);
                block_on(write(disk, offset, &data));
                assert!(block_on(read(disk, offset, data.len())) == data, "round {rounds}");
                rounds += 1;
            }
        };
        for (disk, offset) in &disks {
            scope.spawn(move || work(disk, *offset));
        }
        for _ in 0..2 {
            for storage in [1, 0] {
                let before = count(&rig, 0, "relayed");
                while count(&rig, 0, "relayed") < before + 3 {}
                rig.kill_storage(storage);
                rig.start_storage(storage, &[]);
            }
        }
        is_over.store(true, SeqCst);
    });
    for (disk, offset) in &disks {
        until_relayed(&rig, disk, 0, *offset, 4096);
    }
}

/// Goal: relayed WRITEs count among those that a storage may have lost: each host gets the loss
/// reported, once.
#[test]
fn losses_of_relayed_writes_are_reported() {
    let luns = lun(
        0,
        &format!("cache = \"write-back\"\n{}", extents(&[extent("a", 1, 1), extent("b", 4, 1)])),
    );
    let cached = ["--cache", "write-back"];
    let options =
        RigOptions { luns: &luns, storage: &cached, switch: FAST, ..RigOptions::default() };
    let mut rig = Rig::new("switch-fast-loss", options);
    let connector = Connector::start().unwrap();
    let hosts = [1, 2].map(|number| rig.open(&connector, number, 0));
    for (host, at) in hosts.iter().zip([0, 1]) {
        until_relayed(&rig, host, 0, MIB, 4096);
        until_writes_are_relayed(&rig, host, 0, MIB, 4096);
        assert!(block_on(synchronize(host)), "nothing is lost yet");
        let before = count(&rig, 0, "relayed");
        block_on(write(host, MIB + at * 4096, &pattern(at, 4096)));
        assert_eq!(count(&rig, 0, "relayed"), before + 1);
    }
    rig.kill_storage(1);
    rig.start_storage(1, &cached);
    block_on(async {
        for (number, host) in hosts.iter().enumerate() {
            assert!(!synchronize(host).await, "the write of host {number} may be lost");
            assert!(synchronize(host).await, "host {number}: reported once");
        }
    });
}

/// Goal: a storage that does not respond holds up only its own commands: these can be aborted, and
/// those to the other storage are answered within a second. Its blocks stay closed until it
/// responds, then the aborted WRITE is there or not, as a whole for each block, and later ones are.
#[test]
fn a_storage_that_hangs() {
    let luns = linear();
    let rig = Rig::new(
        "switch-fast-hang",
        RigOptions { luns: &luns, switch: FAST, ..RigOptions::default() },
    );
    let connector = Connector::start().unwrap();
    let disk = rig.open(&connector, 1, 0);
    until_relayed(&rig, &disk, 0, 0, 4096);
    until_relayed(&rig, &disk, 0, MIB, 4096);
    let old = pattern(1, 64 << 10);
    block_on(write(&disk, MIB, &old));
    let storage = rig.storages[1].as_ref().unwrap().pid();
    signal(storage, "STOP");
    let new = pattern(2, 64 << 10);
    block_on(async {
        // Sent, and then aborted.
        let mut hanging = Box::pin(try_write(&disk, MIB, &new));
        for _ in 0..20 {
            assert!(hanging.as_mut().now_or_never().is_none());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        drop(hanging);
        let began = Instant::now();
        for _ in 0..5 {
            write(&disk, 0, &old).await;
            read(&disk, 0, 64 << 10).await;
        }
        assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    });
    signal(storage, "CONT");
    let back = block_on(read(&disk, MIB, 64 << 10));
    let (blocks, _) = back.as_chunks::<512>();
    for (at, block) in blocks.iter().enumerate() {
        let is_of = |data: &[u8]| data[at * 512..][..512] == *block;
        assert!(is_of(&old) || is_of(&new), "block {at}");
    }
    block_on(write(&disk, MIB, &old));
    assert!(block_on(read(&disk, MIB, 64 << 10)) == old);
}

/// Goal: commands that a reservation forbids, and commands past the end, get the same answers when
/// the host has a relay.
#[test]
fn refused_commands_are_not_relayed() {
    let luns = linear();
    let rig = Rig::new(
        "switch-fast-refused",
        RigOptions { luns: &luns, switch: FAST, ..RigOptions::default() },
    );
    let connector = Connector::start().unwrap();
    let [holder, other] = [1, 2].map(|number| rig.open(&connector, number, 0));
    for disk in [&holder, &other] {
        until_relayed(&rig, disk, 0, 0, 4096);
    }
    let before = count(&rig, 0, "relayed");
    block_on(async {
        assert_eq!(reserve(&holder, 0, 7, 0).await, 0);
        assert_eq!(reserve(&holder, 1, 7, 0).await, 0);
        let write = [0x2a, 0, 0, 0, 0, 0, 0, 0, 1, 0];
        let (mut status, mut sense) = command(&other, &write, &[1; 512]).await;
        while status == 2 && sense[2] & 0x0f == 6 {
            (status, sense) = command(&other, &write, &[1; 512]).await;
        }
        assert_eq!(status, 0x18, "RESERVATION CONFLICT");
        let past = [0x2a, 0, 0, 0, 0x10, 0, 0, 0, 1, 0];
        let (status, sense) = command(&holder, &past, &[1; 512]).await;
        assert_eq!((status, sense[2] & 0x0f, sense[12]), (2, 5, 0x21), "out of range");
    });
    assert_eq!(count(&rig, 0, "relayed"), before);
    assert_eq!(block_on(read(&holder, 0, 512)), [0; 512]);
}

/// Numbers of a linear congruential generator.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) % bound
    }
}
