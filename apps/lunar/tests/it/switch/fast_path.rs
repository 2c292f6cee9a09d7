//! The fast path: commands are relayed between hosts and storages.

use super::{MIB, Rig, RigOptions, block_on, extent, extents, lun, read, write};
use crate::common::{TEST_TIMEOUT, get, pattern};
use lunar_initiator::RemoteDisk;
use lunar_initiator::blocking::Connector;
use std::time::Instant;

const FAST: &[&str] = &["--path", "fast"];

/// Number of commands of a LUN with this result: `relayed` or `taken_over`.
fn count(rig: &Rig, lun: u16, result: &str) -> u64 {
    let page = get(rig.switch.report["metrics"].as_str().unwrap());
    let line = format!("lun=\"{lun}\",result=\"{result}\"}} ");
    let mut lines = page.lines().filter(|line| line.starts_with("lunar_relayed_commands_total"));
    let value = lines.find_map(|found| Some(found.split_once(&line)?.1.to_owned()));
    value.unwrap_or_else(|| panic!("{page}")).parse().unwrap()
}

/// Reads until a READ of these blocks is relayed: the relay logs in when it is first needed.
fn until_relayed(rig: &Rig, disk: &RemoteDisk, lun: u16, offset: u64, bytes: usize) {
    let end = Instant::now() + TEST_TIMEOUT;
    let before = count(rig, lun, "relayed");
    while count(rig, lun, "relayed") == before {
        assert!(Instant::now() < end, "no READ is relayed");
        block_on(read(disk, offset, bytes));
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

/// Numbers of a linear congruential generator.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) % bound
    }
}
