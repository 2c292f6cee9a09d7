//! FORMAT UNIT.

use crate::unit::sanitize::begin;
use crate::unit::support::{A, Rig, blocks, options};
use lunar_scsi::commands::ListKind;
use lunar_scsi::long_operation::{LongOperation, OperationKind, OperationWork};
use lunar_scsi::plan::{Plan, Refusal};
use lunar_scsi::sense::Sense;
use lunar_scsi::unit::{Context, UnitOptions};

const READY: [u8; 6] = [0; 6];
const FMTDATA: u8 = 0x10;
const LONGLIST: u8 = 0x20;

fn plan(work: OperationWork, immediate: bool) -> Result<Plan, Refusal> {
    let kind = OperationKind::FORMAT;
    let operation = LongOperation { kind, unrestricted_exit: false, work };
    Ok(Plan::LongOperation { operation, by: A, immediate })
}

/// Sends a list, which contains its own length: the CDB has no field for it.
fn send(rig: &mut Rig, flags: u8, list: &[u8]) -> Result<Plan, Refusal> {
    match rig.plan(&[0x04, flags, 0, 0, 0, 0]) {
        Plan::Parameters { bytes, awaiting } => {
            assert!(bytes as usize >= list.len() && awaiting.kind == ListKind::OpenEnded);
            let port = crate::unit::support::port();
            rig.unit.resume(A, &Context::new(&[], &port), awaiting, list)
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn without_a_list_all_is_set_to_zeroes() {
    let mut rig = Rig::thin();
    assert_eq!(rig.run(A, &[0x04, 0, 0, 0, 0, 0]), plan(OperationWork::Deallocate, false));
    let mut rig = Rig::new(UnitOptions { unmap_granularity_blocks: None, ..options() });
    assert_eq!(rig.run(A, &[0x04, 0, 0, 0, 0, 0]), plan(OperationWork::Zero, false));
    for flags in [0x01, 0x08, 0x20] {
        let refused = rig.sense(&[0x04, flags, 0, 0, 0, 0]);
        assert_eq!(refused, Sense::invalid_field_in_cdb(1, Some(5)), "they are about the list");
    }
    for protection in [0x40, 0x80, 0xc0] {
        let refused = rig.sense(&[0x04, protection | FMTDATA, 0, 0, 0, 0]);
        assert_eq!(refused, Sense::invalid_field_in_cdb(1, Some(7)));
    }
    for format in [6, 7] {
        let refused = rig.sense(&[0x04, FMTDATA | format, 0, 0, 0, 0]);
        assert_eq!(refused, Sense::invalid_field_in_cdb(1, Some(2)));
    }
}

#[test]
fn headers_short_and_long() {
    let mut rig = Rig::thin();
    for (options, immediate) in [(0, false), (0x02, true), (0xf2, true), (0x80, false)] {
        let short = send(&mut rig, FMTDATA, &[0, options, 0, 0]);
        assert_eq!(short, plan(OperationWork::Deallocate, immediate));
        let long = send(&mut rig, FMTDATA | LONGLIST, &[0, options, 0, 0, 0, 0, 0, 0]);
        assert_eq!(long, plan(OperationWork::Deallocate, immediate));
    }
    let mut refuse = |flags, list: &[u8], byte, bit| {
        let sense = Sense::invalid_field_in_parameter_list(byte, bit);
        assert_eq!(send(&mut rig, flags, list), Err(sense.into()), "{list:x?}");
    };
    refuse(FMTDATA, &[1, 0, 0, 0], 0, Some(2));
    refuse(FMTDATA, &[0, 0x20, 0, 0], 1, Some(6));
    refuse(FMTDATA, &[0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0], 2, None);
    refuse(FMTDATA | LONGLIST, &[0, 0, 0, 0, 0, 0, 0, 1], 4, None);
    refuse(FMTDATA | LONGLIST, &[0, 0, 0, 0x10, 0, 0, 0, 0], 3, None);
    let short = Err(Sense::PARAMETER_LIST_LENGTH_ERROR.into());
    for (flags, list) in
        [(FMTDATA, vec![]), (FMTDATA, vec![0; 3]), (FMTDATA | LONGLIST, vec![0; 7])]
    {
        assert_eq!(send(&mut rig, flags, &list), short);
    }
}

#[test]
fn initialization_patterns() {
    let mut rig = Rig::thin();
    let head = [0, 0x88, 0, 0];
    let with = |descriptor: &[u8]| [&head, descriptor].concat();
    let pattern = OperationWork::Overwrite { pattern: vec![0xde, 0xad], passes: 1, invert: false };
    let repeated = send(&mut rig, FMTDATA, &with(&[0, 1, 0, 2, 0xde, 0xad]));
    assert_eq!(repeated, plan(pattern, false));
    assert_eq!(
        send(&mut rig, FMTDATA, &with(&[0, 0, 0, 0])),
        plan(OperationWork::Deallocate, false)
    );
    let block = with(&[&[0, 1, 2, 0][..], &[7; 512]].concat());
    assert!(send(&mut rig, FMTDATA, &block).is_ok());
    let mut refuse = |descriptor: &[u8], byte| {
        let sense = Sense::invalid_field_in_parameter_list(byte, None);
        assert_eq!(send(&mut rig, FMTDATA, &with(descriptor)), Err(sense.into()));
    };
    refuse(&[0x20, 1, 0, 1, 9], 4);
    refuse(&[0x40, 1, 0, 1, 9], 4);
    refuse(&[0, 2, 0, 1, 9], 5);
    refuse(&[0, 0x80, 0, 1, 9], 5);
    refuse(&[0, 0, 0, 1, 9], 6);
    refuse(&[0, 1, 0, 0], 6);
    refuse(&[0, 1, 2, 1, 9], 6);
    let short = Err(Sense::PARAMETER_LIST_LENGTH_ERROR.into());
    for descriptor in [&[][..], &[0, 1, 0], &[0, 1, 0, 2, 9]] {
        assert_eq!(send(&mut rig, FMTDATA, &with(descriptor)), short);
    }
}

/// Goal: commands are refused during the operation and after its failure: SBC-3 §4.10.
#[test]
fn formatting_and_a_corrupted_format() {
    let mut rig = Rig::thin();
    let format = rig.plan(&[0x04, 0, 0, 0, 0, 0]);
    begin(&mut rig, format.clone()).unwrap();
    rig.unit.set_operation_progress(1, 2);
    assert_eq!(rig.sense(&READY), Sense::FORMAT_IN_PROGRESS.with_progress(0x8000));
    rig.unit.fail_operation();
    for command in [READY.to_vec(), blocks(0x2a, 0, 0, 1)] {
        assert_eq!(rig.sense(&command), Sense::MEDIUM_FORMAT_CORRUPTED);
    }
    rig.reply(&[0x1a, 0, 0x3f, 0, 255, 0]);
    let refused = rig.sense(&[0x48, 0x1f, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(refused, Sense::invalid_field_in_cdb(1, Some(4)), "that is for SANITIZE");
    assert!(rig.run(A, &[0x48, 0x02, 0, 0, 0, 0, 0, 0, 0, 0]).is_ok(), "it would help too");
    begin(&mut rig, format).unwrap();
    rig.unit.set_operation_done();
    rig.unit.end_operation();
    rig.reply(&READY);
}
