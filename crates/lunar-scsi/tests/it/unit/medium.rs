//! START STOP UNIT, PREVENT ALLOW MEDIUM REMOVAL.

use crate::unit::support::{A, B, Rig, blocks};
use lunar_scsi::plan::Plan;
use lunar_scsi::sense::Sense;

const READY: [u8; 6] = [0; 6];
const STOP: [u8; 6] = [0x1b, 0, 0, 0, 0, 0];
const START: [u8; 6] = [0x1b, 0, 0, 0, 1, 0];
const EJECT: [u8; 6] = [0x1b, 0, 0, 0, 2, 0];
const LOAD: [u8; 6] = [0x1b, 0, 0, 0, 3, 0];
const PREVENT: [u8; 6] = [0x1e, 0, 0, 0, 1, 0];
const ALLOW: [u8; 6] = [0x1e, 0, 0, 0, 0, 0];
const FLUSH: Plan = Plan::Flush { immediate: false };

#[test]
fn a_stopped_unit_is_not_ready_until_started() {
    let mut rig = Rig::thin();
    assert_eq!(rig.plan(&STOP), FLUSH);
    let stopped = Sense::NOT_READY_INITIALIZING_COMMAND_REQUIRED;
    for cdb in [READY.to_vec(), blocks(0x28, 0, 0, 1), blocks(0x25, 0, 0, 0)] {
        assert_eq!(rig.sense(&cdb), stopped);
        assert_eq!(rig.refusal(B, &cdb), stopped);
    }
    let data = rig.reply(&[0x03, 0, 0, 0, 252, 0]);
    assert_eq!(Sense::decode(&data), Some(stopped));
    rig.reply(&[0x12, 0, 0, 0, 96, 0]);
    assert_eq!(rig.reply(&START), []);
    rig.reply(&READY);
    rig.plan(&STOP);
    rig.unit.reset(Some(A));
    rig.reply(&READY);
}

#[test]
fn stop_flushes_unless_no_flush_is_set() {
    let mut rig = Rig::thin();
    assert_eq!(rig.plan(&[0x1b, 1, 0, 0, 0, 0]), Plan::Flush { immediate: true });
    assert_eq!(rig.plan(&[0x1b, 1, 0, 0, 4, 0]), Plan::Reply(vec![]), "NO_FLUSH");
}

/// Goal: START and LOEJ are ignored with a power condition; the unit is ready in all of them.
#[test]
fn power_conditions_are_entered_at_once() {
    let mut rig = Rig::removable();
    for condition in 1..16 {
        for low in 0..4 {
            assert_eq!(rig.reply(&[0x1b, 0, 0, 0, (condition << 4) | low, 0]), []);
            rig.reply(&READY);
        }
    }
}

/// Goal: without LOEJ nothing is ejected, and a removable unit stays ready; written data is
/// durable.
#[test]
fn a_removable_medium_stays_ready_without_loej() {
    let mut rig = Rig::removable();
    for stop in [STOP, [0x1b, 0, 0, 0, 4, 0], [0x1b, 1, 0, 0, 4, 0]] {
        let no_flush = stop[4] & 4 != 0;
        assert_eq!(rig.plan(&stop), if no_flush { Plan::Reply(vec![]) } else { FLUSH });
        rig.reply(&READY);
        rig.run(B, &READY).expect("for the others too");
        assert_eq!(rig.reply(&START), []);
        rig.reply(&READY);
    }
}

#[test]
fn a_fixed_medium_stays() {
    let mut rig = Rig::thin();
    for cdb in [EJECT, LOAD] {
        assert_eq!(rig.sense(&cdb), Sense::invalid_field_in_cdb(4, Some(1)));
    }
    assert_eq!(rig.sense(&PREVENT), Sense::INVALID_OPERATION_CODE);
    rig.reply(&READY);
}

#[test]
fn an_ejected_medium_is_not_present() {
    let mut rig = Rig::removable();
    assert_eq!(rig.plan(&EJECT), FLUSH);
    for opcode in [0x00, 0x28, 0x2a, 0x2f, 0x35, 0x41, 0x25, 0x34, 0x89, 0x8b, 0x42] {
        let sense = rig.sense(&blocks(opcode, 0, 0, 1));
        assert_eq!(sense, Sense::MEDIUM_NOT_PRESENT, "{opcode:#x}");
    }
    for action in [0x10, 0x12] {
        assert_eq!(rig.sense(&blocks(0x9e, action, 0, 32)), Sense::MEDIUM_NOT_PRESENT);
    }
    for cdb in [START, STOP] {
        assert_eq!(rig.sense(&cdb), Sense::MEDIUM_NOT_PRESENT, "there is nothing to start");
    }
    rig.unit.reset(Some(A));
    assert_eq!(rig.refusal(B, &READY), Sense::RESET_BY_FUNCTION);
    assert_eq!(rig.sense(&READY), Sense::MEDIUM_NOT_PRESENT, "a reset loads nothing");
    rig.plan(&LOAD);
    rig.reply(&READY);
    assert_eq!(rig.refusal(B, &READY), Sense::MEDIUM_MAY_HAVE_CHANGED);
    rig.plan(&LOAD);
    rig.run(B, &READY).expect("loaded already: no unit attention");
}

#[test]
fn any_nexus_can_prevent_ejection() {
    let mut rig = Rig::removable();
    rig.reply(&PREVENT);
    rig.run(B, &PREVENT).unwrap();
    assert_eq!(rig.sense(&EJECT), Sense::MEDIUM_REMOVAL_PREVENTED);
    rig.reply(&ALLOW);
    assert_eq!(rig.sense(&EJECT), Sense::MEDIUM_REMOVAL_PREVENTED, "B still prevents removal");
    rig.unit.detach(B);
    assert_eq!(rig.plan(&EJECT), FLUSH);
    rig.reply(&PREVENT);
    assert_eq!(
        rig.sense(&LOAD),
        Sense::MEDIUM_REMOVAL_PREVENTED,
        "removal is prevented for LOAD as well"
    );
    rig.reply(&ALLOW);
    rig.plan(&LOAD);
    rig.reply(&PREVENT);
    rig.unit.reset(Some(A));
    assert_eq!(rig.plan(&EJECT), FLUSH);
    for prevent in [2, 3] {
        let sense = rig.sense(&[0x1e, 0, 0, 0, prevent, 0]);
        assert_eq!(sense, Sense::invalid_field_in_cdb(4, Some(1)), "obsolete");
    }
}
