//! Tests of a unit whose size changes while it is in use.

use crate::common::{Rig, block_on, ten};
use lunar_target::{DiskUnit, Shrink};
use lunar_testkit::raw::{RawClient, RawOutcome};
use std::sync::Arc;

const MIB: u64 = 1 << 20;
const CAPACITY_CHANGED: (u8, u16) = (6, 0x2a09);
const OUT_OF_RANGE: (u8, u16) = (5, 0x2100);

fn unit(rig: &Rig) -> Arc<DiskUnit> {
    DiskUnit::of(&rig.server().catalogue().targets[0].luns[0].unit).unwrap()
}

/// Returns the sense key and code of a reading command, or zeroes for GOOD, and its data.
fn run(raw: &mut RawClient, cdb: &[u8], bytes: u32) -> ((u8, u16), Vec<u8>) {
    let command = raw.command(0xc0, cdb, bytes);
    raw.send(&command).unwrap();
    let (status, data, sense) = raw.outcome().unwrap();
    let sense = sense.get(2..).unwrap_or_default().to_vec();
    match status {
        0 => ((0, 0), data),
        _ => (RawOutcome { status, data: Vec::new(), sense }.sense_codes(), data),
    }
}

fn last_lba(raw: &mut RawClient) -> u32 {
    let (sense, data) = run(raw, &ten(0x25, 0, 0), 8);
    assert_eq!(sense, (0, 0));
    u32::from_be_bytes(data[..4].try_into().unwrap())
}

/// Goal: after growth every initiator is informed once, sees the new capacity, and can use the new
/// blocks.
#[test]
fn a_larger_unit_is_reported_and_used() {
    let rig = Rig::new();
    let (mut one, mut other) = (rig.log_in(1), rig.log_in(2));
    assert_eq!(run(&mut one, &ten(0x28, 131_072, 1), 512).0, OUT_OF_RANGE);
    block_on(unit(&rig).resize(128 * MIB, Shrink::Refused)).unwrap();
    for raw in [&mut one, &mut other] {
        assert_eq!(run(raw, &[0; 6], 0).0, CAPACITY_CHANGED);
        assert_eq!(last_lba(raw), 262_143);
    }
    one.write_blocks(262_143, &[7; 512]).unwrap();
    assert_eq!(other.read_block(262_143).unwrap(), [7; 512]);
    block_on(unit(&rig).resize(128 * MIB, Shrink::Refused)).unwrap();
    assert_eq!(run(&mut one, &[0; 6], 0).0, (0, 0), "the same size is no news");
    drop((one, other));
    rig.stop_cleanly();
}

/// Goal: a unit shrinks only on explicit request; removed blocks are refused at once, by block
/// address, and their data does not come back.
#[test]
fn a_shorter_unit_must_be_wanted() {
    let rig = Rig::new();
    let mut raw = rig.log_in(1);
    raw.write_blocks(100_000, &[7; 512]).unwrap();
    let refused = block_on(unit(&rig).resize(32 * MIB, Shrink::Refused)).unwrap_err();
    assert!(refused.to_string().contains("33554432 bytes would be lost"), "{refused}");
    assert_eq!(run(&mut raw, &[0; 6], 0).0, (0, 0), "nothing has changed");
    block_on(unit(&rig).resize(32 * MIB, Shrink::Allowed)).unwrap();
    assert_eq!(run(&mut raw, &[0; 6], 0).0, CAPACITY_CHANGED);
    assert_eq!(last_lba(&mut raw), 65_535);
    assert_eq!(run(&mut raw, &ten(0x28, 100_000, 1), 512).0, OUT_OF_RANGE);
    block_on(unit(&rig).resize(64 * MIB, Shrink::Refused)).unwrap();
    assert_eq!(run(&mut raw, &[0; 6], 0).0, CAPACITY_CHANGED);
    assert_eq!(raw.read_block(100_000).unwrap(), [0; 512]);
    drop(raw);
    rig.stop_cleanly();
}

/// Goal: an impossible size changes nothing.
#[test]
fn impossible_sizes_are_refused() {
    let rig = Rig::new();
    let mut raw = rig.log_in(1);
    for size in [0, 511, 64 * MIB + 1] {
        let refused = block_on(unit(&rig).resize(size, Shrink::Allowed));
        assert!(refused.is_err(), "{size}");
    }
    assert_eq!(run(&mut raw, &[0; 6], 0).0, (0, 0));
    assert_eq!(last_lba(&mut raw), 131_071);
    drop(raw);
    rig.stop_cleanly();
}
