//! READ, WRITE, VERIFY, WRITE AND VERIFY, COMPARE AND WRITE, ORWRITE, the cache commands and
//! READ CAPACITY.

use crate::unit::support::{A, B, COUNT, Rig, blocks, options};
use lunar_scsi::plan::{Compare, LbaRange, Plan};
use lunar_scsi::sense::Sense;
use lunar_scsi::unit::UnitOptions;

const READS: [u8; 4] = [0x08, 0x28, 0xa8, 0x88];
const WRITES: [u8; 4] = [0x0a, 0x2a, 0xaa, 0x8a];
const VERIFIES: [u8; 3] = [0x2f, 0xaf, 0x8f];
const WRITE_VERIFIES: [u8; 3] = [0x2e, 0xae, 0x8e];
const OR_WRITE: u8 = 0x8b;
const PROTECTED: [u8; 13] =
    [0x28, 0xa8, 0x88, 0x2a, 0xaa, 0x8a, 0x2f, 0xaf, 0x8f, 0x2e, 0xae, 0x8e, OR_WRITE];

fn range(lba: u64, count: u64) -> LbaRange {
    LbaRange { lba, count }
}

#[test]
fn reads_of_all_lengths() {
    let mut rig = Rig::thin();
    for opcode in READS {
        let plan = rig.plan(&blocks(opcode, 0, 0x1234, 7));
        assert_eq!(plan, Plan::Read { range: range(0x1234, 7), from_medium: false });
    }
    for opcode in &READS[1..] {
        let plan = rig.plan(&blocks(*opcode, 0x18, 1, 2));
        assert_eq!(plan, Plan::Read { range: range(1, 2), from_medium: true }, "DPO and FUA");
    }
}

#[test]
fn writes_of_all_lengths() {
    let mut rig = Rig::thin();
    for opcode in WRITES {
        let plan = rig.plan(&blocks(opcode, 0, 0x1234, 7));
        assert_eq!(plan, Plan::Write { range: range(0x1234, 7), durable: false });
        assert_eq!(plan.data_out_bytes(512), 7 * 512);
    }
    for opcode in &WRITES[1..] {
        let plan = rig.plan(&blocks(*opcode, 0x08, 1, 2));
        assert_eq!(plan, Plan::Write { range: range(1, 2), durable: true });
    }
    let mut through = Rig::new(UnitOptions { write_back: false, ..options() });
    let plan = through.plan(&blocks(0x2a, 0, 0, 1));
    assert_eq!(plan, Plan::Write { range: range(0, 1), durable: true }, "write-through");
}

/// Goal: READ (6) has an address of 21 bits, and a count of 0 means 256.
#[test]
fn six_byte_commands_have_their_own_rules() {
    let mut rig = Rig::thin();
    let plan = rig.plan(&[0x08, 0xe0, 0, 1, 0, 0]);
    assert_eq!(plan, Plan::Read { range: range(1, 256), from_medium: false });
    let plan = rig.plan(&[0x0a, 0, 0, 0, 0, 0]);
    assert_eq!(plan, Plan::Write { range: range(0, 256), durable: false });
    let end = rig.sense(&[0x08, 0x1f, 0xff, 0xff, 2, 0]);
    assert_eq!(end, Sense::LBA_OUT_OF_RANGE.with_information(COUNT));
}

/// Goal: no block past the end is ever planned, and no arithmetic wraps. Method: every command with
/// a range, at and around the end and at the largest addresses.
#[test]
fn ranges_end_where_the_unit_ends() {
    let mut rig = Rig::thin();
    let counted = [&READS[1..], &WRITES[1..], &VERIFIES, &WRITE_VERIFIES, &[OR_WRITE]].concat();
    for opcode in counted {
        rig.plan(&blocks(opcode, 0, COUNT - 4, 4));
        rig.plan(&blocks(opcode, 0, COUNT, 0));
        for (lba, count) in [(COUNT - 3, 4), (COUNT, 1), (COUNT + 1, 0), (1 << 31, 0)] {
            let sense = rig.sense(&blocks(opcode, 0, lba, count));
            let first = lba.max(COUNT);
            assert_eq!(sense, Sense::LBA_OUT_OF_RANGE.with_information(first), "{opcode:#x}");
        }
        let last = if opcode >> 5 == 4 { u64::MAX } else { u64::from(u32::MAX) };
        for count in [0, 1, 0xffff] {
            let sense = rig.sense(&blocks(opcode, 0, last, count));
            assert_eq!(sense, Sense::LBA_OUT_OF_RANGE.with_information(last), "{opcode:#x}");
        }
    }
}

#[test]
fn transfers_are_no_longer_than_promised() {
    let mut rig = Rig::thin();
    for opcode in [0x28, 0x2a, 0x2f, 0x2e] {
        rig.plan(&blocks(opcode, 0, 0, 4096));
        let sense = rig.sense(&blocks(opcode, 0, 0, 4097));
        assert_eq!(sense, Sense::invalid_field_in_cdb(7, None));
    }
    let sense = rig.sense(&blocks(0xa8, 0, 0, 4097));
    assert_eq!(sense, Sense::invalid_field_in_cdb(6, None));
    let sense = rig.sense(&blocks(0x88, 0, 0, 4097));
    assert_eq!(sense, Sense::invalid_field_in_cdb(10, None));
}

#[test]
fn there_is_no_protection_information() {
    let mut rig = Rig::thin();
    for opcode in PROTECTED.iter().chain(&[0x41, 0x93, 0x89]) {
        for protect in 1..8 {
            let mut cdb = blocks(*opcode, protect << 5, 0, 1);
            if *opcode == 0x89 {
                cdb[10..14].copy_from_slice(&[0, 0, 0, 1]);
            }
            assert_eq!(rig.sense(&cdb), Sense::invalid_field_in_cdb(1, Some(7)), "{opcode:#x}");
        }
    }
}

#[test]
fn verify_compares_as_requested() {
    let mut rig = Rig::thin();
    for opcode in VERIFIES {
        for (check, compare, bytes) in [
            (0b00, Compare::Medium, 0),
            (0b01, Compare::Bytes, 3 * 512),
            (0b11, Compare::OneBlock, 512),
        ] {
            let plan = rig.plan(&blocks(opcode, 0x10 | (check << 1), 8, 3));
            assert_eq!(plan, Plan::Verify { range: range(8, 3), compare });
            assert_eq!(plan.data_out_bytes(512), bytes);
        }
        let sense = rig.sense(&blocks(opcode, 0b10 << 1, 8, 3));
        assert_eq!(sense, Sense::invalid_field_in_cdb(1, Some(2)));
        let nothing = rig.plan(&blocks(opcode, 0b11 << 1, 8, 0));
        assert_eq!(nothing.data_out_bytes(512), 0, "no block to compare, none to send");
    }
}

#[test]
fn write_and_verify_compares_as_requested() {
    let mut rig = Rig::thin();
    for opcode in WRITE_VERIFIES {
        for (check, compare) in [(0b00, Compare::Medium), (0b01, Compare::Bytes)] {
            let plan = rig.plan(&blocks(opcode, check << 1, 8, 3));
            assert_eq!(plan, Plan::WriteAndVerify { range: range(8, 3), compare });
            assert_eq!(plan.data_out_bytes(512), 3 * 512);
        }
        for check in [0b10, 0b11] {
            let sense = rig.sense(&blocks(opcode, check << 1, 8, 3));
            assert_eq!(sense, Sense::invalid_field_in_cdb(1, Some(2)));
        }
    }
}

fn compare_and_write(flags: u8, lba: u64, count: u8) -> Vec<u8> {
    let mut cdb = blocks(0x89, flags, lba, 0);
    cdb[13] = count;
    cdb
}

#[test]
fn compare_and_write_takes_two_buffers() {
    let mut rig = Rig::thin();
    let sense = rig.sense(&compare_and_write(0, 5, 0));
    assert_eq!(sense, Sense::invalid_field_in_cdb(13, None), "256, cut to eight bits");
    for count in [1, 255] {
        let plan = rig.plan(&compare_and_write(0, 5, count));
        let range = range(5, count.into());
        assert_eq!(plan, Plan::CompareAndWrite { range, durable: false });
        assert_eq!(plan.data_out_bytes(512), u64::from(count) * 1024);
    }
    let plan = rig.plan(&compare_and_write(0x18, 5, 1));
    assert_eq!(plan, Plan::CompareAndWrite { range: range(5, 1), durable: true });
    let sense = rig.sense(&compare_and_write(0, COUNT - 1, 2));
    assert_eq!(sense, Sense::LBA_OUT_OF_RANGE.with_information(COUNT));
    let mut short = Rig::new(UnitOptions { transfer_blocks_max: 16, ..options() });
    short.plan(&compare_and_write(0, 0, 16));
    let sense = short.sense(&compare_and_write(0, 0, 17));
    assert_eq!(sense, Sense::invalid_field_in_cdb(13, None));
}

#[test]
fn or_write_is_planned() {
    let mut rig = Rig::thin();
    let plan = rig.plan(&blocks(OR_WRITE, 0x08, 5, 6));
    assert_eq!(plan, Plan::OrWrite { range: range(5, 6), durable: true });
    assert_eq!(plan.data_out_bytes(512), 6 * 512);
}

#[test]
fn cache_commands_without_a_count_cover_the_rest() {
    let mut rig = Rig::thin();
    for opcode in [0x34, 0x90] {
        let all = range(COUNT - 100, 100);
        assert_eq!(rig.plan(&blocks(opcode, 0, COUNT - 100, 0)), Plan::Prefetch { range: all });
        let some = rig.plan(&blocks(opcode, 0x02, 1, 2));
        assert_eq!(some, Plan::Prefetch { range: range(1, 2) });
    }
    for opcode in [0x35, 0x91] {
        assert_eq!(rig.plan(&blocks(opcode, 0, 9, 0)), Plan::Flush { immediate: false });
        assert_eq!(rig.plan(&blocks(opcode, 2, 9, 4)), Plan::Flush { immediate: true });
    }
    for opcode in [0x34, 0x90, 0x35, 0x91] {
        rig.plan(&blocks(opcode, 0, COUNT, 0));
        for (lba, count) in [(COUNT + 1, 0), (COUNT, 1), (COUNT - 1, 2)] {
            let sense = rig.sense(&blocks(opcode, 0, lba, count));
            let first = lba.max(COUNT);
            assert_eq!(sense, Sense::LBA_OUT_OF_RANGE.with_information(first));
        }
    }
}

#[test]
fn capacity_in_ten_bytes() {
    let mut rig = Rig::thin();
    let capacity = [0, 0x1f, 0xff, 0xff, 0, 0, 2, 0];
    assert_eq!(rig.reply(&[0x25, 0, 0, 0, 0, 0, 0, 0, 0, 0]), capacity);
    let sense = rig.sense(&[0x25, 0, 0, 0, 0, 1, 0, 0, 0, 0]);
    assert_eq!(sense, Sense::invalid_field_in_cdb(2, None), "an LBA without PMI");
    assert_eq!(rig.reply(&[0x25, 0, 0, 0, 0, 1, 0, 0, 1, 0]), capacity, "with PMI");
    let sense = rig.sense(&[0x25, 0, 0, 0x20, 0, 0, 0, 0, 1, 0]);
    assert_eq!(sense, Sense::LBA_OUT_OF_RANGE.with_information(COUNT));
    for block_count in [1 << 32, (1 << 32) + 1, 1 << 40] {
        let mut large = Rig::new(UnitOptions { block_count, ..options() });
        assert_eq!(large.reply(&[0x25, 0, 0, 0, 0, 0, 0, 0, 0, 0])[..4], [0xff; 4]);
    }
}

#[test]
fn capacity_in_sixteen_bytes() {
    let cdb = |allocation: u8| [0x9e, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, allocation, 0, 0];
    let mut rig = Rig::thin();
    let mut expected = vec![0, 0, 0, 0, 0, 0x1f, 0xff, 0xff, 0, 0, 2, 0, 0, 3, 0xc0, 0];
    expected.resize(32, 0);
    assert_eq!(rig.reply(&cdb(32)), expected);
    for allocation in 0..32 {
        assert_eq!(rig.reply(&cdb(allocation)), expected[..usize::from(allocation)]);
    }
    let thick = UnitOptions { unmap_granularity_blocks: None, block_bytes: 4096, ..options() };
    let reply = Rig::new(thick).reply(&cdb(32));
    assert_eq!(reply[12..16], [0, 0, 0, 0], "one block a physical block, fully provisioned");
}

/// Goal: GROUP NUMBER and DPO have no effect.
#[test]
fn hints_change_nothing() {
    let mut rig = Rig::thin();
    let mut cdb = blocks(0x28, 0x10, 3, 4);
    cdb[6] = 0x1f;
    assert_eq!(rig.plan(&cdb), Plan::Read { range: range(3, 4), from_medium: false });
}

#[test]
fn a_protected_unit_is_read_only() {
    let mut rig = Rig::new(UnitOptions { read_only: true, ..options() });
    for opcode in READS.iter().chain(&VERIFIES).chain(&[0x34, 0x90, 0x35, 0x91]) {
        rig.plan(&blocks(*opcode, 0, 0, 1));
    }
    let writes = [0x41, 0x93, 0x42, 0x89, OR_WRITE];
    for opcode in WRITES.iter().chain(&WRITE_VERIFIES).chain(&writes) {
        let cdb = blocks(*opcode, 0, 0, 1);
        assert_eq!(rig.refusal(A, &cdb), Sense::WRITE_PROTECTED, "{opcode:#x}");
        assert_eq!(rig.refusal(B, &cdb), Sense::WRITE_PROTECTED, "{opcode:#x}");
    }
}
