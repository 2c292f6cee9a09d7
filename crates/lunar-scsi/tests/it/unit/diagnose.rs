//! READ DEFECT DATA, SEND DIAGNOSTIC, LOG SENSE, REPORT TIMESTAMP.

use crate::unit::support::{A, COUNT, Rig, port};
use lunar_scsi::plan::Plan;
use lunar_scsi::sense::Sense;
use lunar_scsi::unit::Context;

/// Goal: PLISTV and GLISTV report which lists follow (SBC-3 §5.18); both are present and empty.
#[test]
fn defect_lists_are_empty() {
    let mut rig = Rig::thin();
    for lists in [0, 0x08, 0x10, 0x18] {
        for format in 0..6 {
            let asked = lists | format;
            let ten = [0x37, 0, asked, 0, 0, 0, 0, 0, 255, 0];
            assert_eq!(rig.reply(&ten), [0, asked, 0, 0]);
            let twelve = [0xb7, asked, 0, 0, 0, 9, 0, 0, 0, 255, 0, 0];
            assert_eq!(rig.reply(&twelve), [0, asked, 0, 0, 0, 0, 0, 0]);
        }
        for format in [6, 7] {
            let refused = rig.sense(&[0x37, 0, lists | format, 0, 0, 0, 0, 0, 255, 0]);
            assert_eq!(refused, Sense::invalid_field_in_cdb(2, Some(2)));
            let refused = rig.sense(&[0xb7, lists | format, 0, 0, 0, 0, 0, 0, 0, 255, 0, 0]);
            assert_eq!(refused, Sense::invalid_field_in_cdb(1, Some(2)));
        }
    }
    assert_eq!(rig.reply(&[0x37, 0, 0x18, 0, 0, 0, 0, 0, 2, 0]), [0, 0x18]);
    assert_eq!(rig.reply(&[0xb7, 0x18, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]), []);
}

#[test]
fn the_default_self_test_reads_blocks() {
    let mut rig = Rig::thin();
    let Plan::SelfTest { reads } = rig.plan(&[0x1d, 0x04, 0, 0, 0, 0]) else { panic!("a plan") };
    assert_eq!(reads.first().map(|range| range.lba), Some(0));
    assert_eq!(reads.last().map(|range| range.lba), Some(COUNT - 1));
    assert_eq!(rig.reply(&[0x1d, 0x13, 0, 0, 0, 0]), [], "no test, no page");
    for code in 1..8 {
        let refused = rig.sense(&[0x1d, code << 5, 0, 0, 0, 0]);
        assert_eq!(refused, Sense::invalid_field_in_cdb(1, Some(7)));
    }
    for flags in [0x10, 0x14] {
        let refused = rig.sense(&[0x1d, flags, 0, 0, 4, 0]);
        assert_eq!(refused, Sense::invalid_field_in_cdb(3, None), "there are no pages");
    }
    rig.plan(&[0x1b, 0, 0, 0, 0, 0]);
    let stopped = Sense::NOT_READY_INITIALIZING_COMMAND_REQUIRED;
    assert_eq!(rig.sense(&[0x1d, 0x04, 0, 0, 0, 0]), stopped);
}

#[test]
fn log_pages() {
    let mut rig = Rig::thin();
    let sense = |page: u8, flags: u8, bytes: u8| [0x4d, flags, page, 0, 0, 0, 0, 0, bytes, 0];
    assert_eq!(rig.reply(&sense(0x40, 0, 255)), [0, 0, 0, 2, 0x00, 0x18]);
    assert_eq!(rig.reply(&sense(0x00, 0, 4)), [0, 0, 0, 2], "whatever the kind of values");
    let ports = [0x98, 0, 0, 8, 0, 1, 3, 4, 5, 0, 0, 0];
    assert_eq!(rig.reply(&sense(0x58, 0, 255)), ports);
    assert_eq!(rig.reply(&sense(0x58, 0, 0)), []);
    assert_eq!(rig.sense(&sense(0x4d, 0, 255)), Sense::invalid_field_in_cdb(2, Some(5)));
    assert_eq!(rig.sense(&sense(0x58, 1, 255)), Sense::invalid_field_in_cdb(1, Some(0)));
    assert_eq!(rig.sense(&sense(0x58, 2, 255)), Sense::invalid_field_in_cdb(1, Some(1)));
}

/// Goal: the timestamp is the time of day in milliseconds, as 48 bits.
#[test]
fn the_timestamp_is_the_time_of_day() {
    let mut rig = Rig::thin();
    let (port, luns) = (port(), rig.luns.clone());
    let mut report = |now_milliseconds: fn() -> u64, bytes| {
        let context = Context { now_milliseconds, ..Context::new(&luns, &port) };
        let cdb = [0xa3, 0x0f, 0, 0, 0, 0, 0, 0, 0, bytes, 0, 0];
        match rig.unit.plan(A, &context, &cdb) {
            Ok(Plan::Reply(reply)) => reply,
            other => panic!("{other:?}"),
        }
    };
    let expected = [0, 10, 3, 0, 0x01, 0x9a, 0xbc, 0xde, 0xf0, 0x12, 0, 0];
    assert_eq!(report(|| 0x019a_bcde_f012, 255), expected);
    assert_eq!(report(|| 0xffff_019a_bcde_f012, 255), expected);
    assert_eq!(report(|| 0x019a_bcde_f012, 5), expected[..5]);
}
