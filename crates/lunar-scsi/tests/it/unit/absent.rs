//! LUNs without a unit, and the REPORT LUNS well known unit.

use crate::unit::support::port;
use lunar_scsi::plan::{Plan, Refusal};
use lunar_scsi::sense::Sense;
use lunar_scsi::unit::{Context, absent_unit_plan};
use lunar_wire::Lun;

fn run(lun: Lun, cdb: &[u8]) -> Result<Plan, Refusal> {
    let port = port();
    absent_unit_plan(lun, &Context::new(&[Lun::new(0), Lun::new(2)], &port), cdb)
}

fn reply(lun: Lun, cdb: &[u8]) -> Vec<u8> {
    match run(lun, cdb) {
        Ok(Plan::Reply(reply)) => reply,
        other => panic!("{other:?}"),
    }
}

const LUNS: [u8; 12] = [0xa0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0];

#[test]
fn inquiry_reports_no_unit() {
    let data = reply(Lun::new(1), &[0x12, 0, 0, 0, 255, 0]);
    assert_eq!(data[0], 0x7f);
    assert!(data.len() >= 36);
    assert_eq!(reply(Lun::new(1), &[0x12, 0, 0, 0, 5, 0]), data[..5]);
    let sense = Sense::invalid_field_in_cdb(2, None);
    assert_eq!(run(Lun::new(1), &[0x12, 1, 0x80, 0, 255, 0]), Err(sense.into()));
}

#[test]
fn a_lun_without_a_unit_answers_only_three_commands() {
    let not_supported = Sense::LOGICAL_UNIT_NOT_SUPPORTED;
    for opcode in 0..=255 {
        let mut cdb = [0; 16];
        cdb[0] = opcode;
        match opcode {
            0x12 | 0xa0 | 0x03 => {}
            _ => assert_eq!(run(Lun::new(1), &cdb), Err(not_supported.clone().into())),
        }
    }
    assert_eq!(reply(Lun::new(1), &LUNS)[..8], [0, 0, 0, 16, 0, 0, 0, 0]);
    let data = reply(Lun::new(1), &[0x03, 0, 0, 0, 252, 0]);
    assert_eq!(Sense::decode(&data), Some(not_supported.clone()));
    let data = reply(Lun::new(1), &[0x03, 1, 0, 0, 252, 0]);
    assert_eq!((data[0], Sense::decode(&data)), (0x72, Some(not_supported.clone())));
    assert_eq!(run(Lun::new(1), &[]), Err(not_supported.into()));
}

#[test]
fn the_well_known_unit_processes_its_commands() {
    let lun = Lun::REPORT_LUNS;
    assert_eq!(reply(lun, &[0; 6]), [], "TEST UNIT READY");
    assert_eq!(reply(lun, &[0x12, 0, 0, 0, 255, 0])[0], 0x1e);
    assert_eq!(reply(lun, &LUNS).len(), 8 + 16);
    let data = reply(lun, &[0x03, 0, 0, 0, 252, 0]);
    assert_eq!(Sense::decode(&data), Some(Sense::NO_ADDITIONAL_SENSE));
    assert_eq!(run(lun, &[0x28; 10]), Err(Sense::INVALID_OPERATION_CODE.into()));
}
