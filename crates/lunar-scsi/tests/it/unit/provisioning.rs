//! UNMAP, WRITE SAME, GET LBA STATUS.

use crate::unit::support::{COUNT, Rig, blocks, options};
use lunar_scsi::plan::{LbaRange, Pattern, Plan, Refusal};
use lunar_scsi::sense::Sense;
use lunar_scsi::unit::{UnitOptions, lba_status_reply};

fn range(lba: u64, count: u64) -> LbaRange {
    LbaRange { lba, count }
}

fn unmap_cdb(list: &[u8]) -> [u8; 10] {
    let [high, low] = (list.len() as u16).to_be_bytes();
    [0x42, 0, 0, 0, 0, 0, 0, high, low, 0]
}

fn unmap_list(ranges: &[(u64, u32)]) -> Vec<u8> {
    let bytes = 16 * ranges.len() as u16;
    let mut list = Vec::from((bytes + 6).to_be_bytes());
    list.extend_from_slice(&bytes.to_be_bytes());
    list.extend_from_slice(&[0; 4]);
    for (lba, count) in ranges {
        list.extend_from_slice(&lba.to_be_bytes());
        list.extend_from_slice(&count.to_be_bytes());
        list.extend_from_slice(&[0; 4]);
    }
    list
}

fn unmap(rig: &mut Rig, list: &[u8]) -> Result<Plan, Refusal> {
    rig.send(&unmap_cdb(list), list)
}

fn unmapped(ranges: &[LbaRange]) -> Plan {
    Plan::Unmap { ranges: ranges.to_vec(), durable: false }
}

#[test]
fn unmap_keeps_the_order() {
    let mut rig = Rig::thin();
    let list = unmap_list(&[(100, 8), (0, 0), (COUNT, 0), (COUNT - 1, 1), (100, 8)]);
    let ranges = [range(100, 8), range(0, 0), range(COUNT, 0), range(COUNT - 1, 1), range(100, 8)];
    assert_eq!(unmap(&mut rig, &list), Ok(unmapped(&ranges)));
}

#[test]
fn unmap_of_no_blocks_is_no_error() {
    let mut rig = Rig::thin();
    assert_eq!(rig.plan(&unmap_cdb(&[])), unmapped(&[]));
    assert_eq!(unmap(&mut rig, &unmap_list(&[])), Ok(unmapped(&[])));
    for short in 1..8 {
        let sense = rig.sense(&unmap_cdb(&vec![0; short]));
        assert_eq!(sense, Sense::PARAMETER_LIST_LENGTH_ERROR);
    }
}

/// Goal: a truncated descriptor, by its list or by the CDB, is ignored.
#[test]
fn unmap_ignores_a_truncated_descriptor() {
    let mut rig = Rig::thin();
    let mut list = unmap_list(&[(1, 1), (2, 2)]);
    list.truncate(8 + 31);
    assert_eq!(unmap(&mut rig, &list), Ok(unmapped(&[range(1, 1)])));
    let mut list = unmap_list(&[(1, 1), (2, 2)]);
    list[3] = 17;
    assert_eq!(unmap(&mut rig, &list), Ok(unmapped(&[range(1, 1)])));
}

#[test]
fn unmap_has_limits() {
    let mut rig = Rig::thin();
    let wrong = |byte| Err(Sense::invalid_field_in_parameter_list(byte, None).into());
    let many: Vec<(u64, u32)> = (0..257).map(|lba| (lba, 1)).collect();
    assert!(unmap(&mut rig, &unmap_list(&many[..256])).is_ok());
    assert_eq!(unmap(&mut rig, &unmap_list(&many)), wrong(2));
    assert!(unmap(&mut rig, &unmap_list(&[(0, 1 << 19), (0, 1 << 19)])).is_ok());
    assert_eq!(unmap(&mut rig, &unmap_list(&[(0, 1 << 20), (0, 1)])), wrong(8 + 16 + 8));
    for (lba, count) in [(COUNT, 1), (COUNT - 1, 2), (u64::MAX, 1), (u64::MAX, u32::MAX)] {
        let sense = Sense::LBA_OUT_OF_RANGE.with_information(lba.max(COUNT));
        assert_eq!(unmap(&mut rig, &unmap_list(&[(0, 1), (lba, count)])), Err(sense.into()));
    }
}

#[test]
fn anchored_unmap_is_refused() {
    let mut rig = Rig::thin();
    let mut cdb = unmap_cdb(&unmap_list(&[(0, 1)]));
    cdb[1] = 1;
    assert_eq!(rig.sense(&cdb), Sense::invalid_field_in_cdb(1, Some(0)));
    for opcode in [0x41, 0x93] {
        for flags in [0x10, 0x18] {
            let sense = rig.sense(&blocks(opcode, flags, 0, 1));
            assert_eq!(sense, Sense::invalid_field_in_cdb(1, Some(4)));
        }
    }
}

#[test]
fn write_same_writes_one_block_over_all() {
    let mut rig = Rig::thin();
    for opcode in [0x41, 0x93] {
        for (flags, may_unmap) in [(0, false), (0x08, true)] {
            let plan = rig.plan(&blocks(opcode, flags, 10, 20));
            let pattern = Pattern::DataOut;
            let expected =
                Plan::WriteSame { range: range(10, 20), pattern, may_unmap, durable: false };
            assert_eq!(plan, expected);
            assert_eq!(plan.data_out_bytes(512), 512);
        }
    }
    let plan = rig.plan(&blocks(0x93, 0x09, 10, 20));
    let pattern = Pattern::Zeroes;
    let expected =
        Plan::WriteSame { range: range(10, 20), pattern, may_unmap: true, durable: false };
    assert_eq!(plan, expected, "NDOB");
    assert_eq!(plan.data_out_bytes(512), 0);
    let sense = rig.sense(&blocks(0x41, 0x09, 10, 20));
    assert_eq!(sense, Sense::invalid_field_in_cdb(1, Some(0)), "(10) has no NDOB");
}

#[test]
fn write_same_has_limits() {
    let mut rig = Rig::thin();
    for (opcode, count_at) in [(0x41, 7), (0x93, 10)] {
        let too_few = rig.sense(&blocks(opcode, 0, 0, 0));
        assert_eq!(too_few, Sense::invalid_field_in_cdb(count_at, None), "WSNZ");
        let sense = rig.sense(&blocks(opcode, 0, COUNT - 1, 2));
        assert_eq!(sense, Sense::LBA_OUT_OF_RANGE.with_information(COUNT));
        let sense = rig.sense(&blocks(opcode, 0x04, 0, 1));
        assert_eq!(sense, Sense::invalid_field_in_cdb(1, Some(2)), "PBDATA");
    }
    let longest = 0xffff;
    rig.plan(&blocks(0x93, 0, 0, longest));
    let sense = rig.sense(&blocks(0x93, 0, 0, longest + 1));
    assert_eq!(sense, Sense::invalid_field_in_cdb(10, None));
}

#[test]
fn a_thick_unit_deallocates_nothing() {
    let mut rig = Rig::new(UnitOptions { unmap_granularity_blocks: None, ..options() });
    assert_eq!(rig.sense(&unmap_cdb(&[0; 24])), Sense::INVALID_OPERATION_CODE);
    let sense = rig.sense(&blocks(0x93, 0x08, 0, 1));
    assert_eq!(sense, Sense::invalid_field_in_cdb(1, Some(3)));
    rig.plan(&blocks(0x93, 0, 0, 1));
    let sense = rig.sense(&[0x9e, 0x12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 24, 0, 0]);
    assert_eq!(sense, Sense::invalid_field_in_cdb(1, Some(4)));
}

fn lba_status(lba: u64, allocation: u32) -> Vec<u8> {
    let mut cdb = blocks(0x9e, 0x12, lba, allocation.into());
    cdb[14] = 0;
    cdb
}

#[test]
fn status_reaches_to_the_end() {
    let mut rig = Rig::thin();
    for (allocation, extents) in [(0, 1), (8, 1), (24, 1), (40, 2), (255, 15), (u32::MAX, 4096)] {
        let plan = rig.plan(&lba_status(7, allocation));
        let Plan::MapStatus { range: asked, extents_max, allocation_bytes } = plan else {
            panic!("{plan:?}");
        };
        assert_eq!((asked, allocation_bytes), (range(7, COUNT - 7), allocation));
        assert_eq!(extents_max, extents);
    }
    for lba in [COUNT, COUNT + 1, 1 << 63, u64::MAX] {
        let sense = rig.sense(&lba_status(lba, 24));
        assert_eq!(sense, Sense::LBA_OUT_OF_RANGE.with_information(lba));
    }
}

#[test]
fn status_descriptors() {
    let extents = [(range(0x10, 8), true), (range(0x18, 0x1_0000_0001), false)];
    let whole = lba_status_reply(&extents, 1000);
    assert_eq!(whole.len(), 8 + 3 * 16);
    assert_eq!(whole[..8], [0, 0, 0, 4 + 48, 0, 0, 0, 0]);
    assert_eq!(whole[8..24], [0, 0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 8, 0, 0, 0, 0]);
    let long = [0, 0, 0, 0, 0, 0, 0, 0x18, 0xff, 0xff, 0xff, 0xff, 1, 0, 0, 0];
    assert_eq!(whole[24..40], long);
    assert_eq!(whole[40..], [0, 0, 0, 1, 0, 0, 0, 0x17, 0, 0, 0, 2, 1, 0, 0, 0]);
    for allocation in 0..60 {
        let cut = lba_status_reply(&extents, allocation);
        assert_eq!(cut.len(), (allocation as usize).min(whole.len()));
    }
    assert_eq!(lba_status_reply(&[], 100), [0, 0, 0, 4, 0, 0, 0, 0]);
}
