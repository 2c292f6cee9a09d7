//! State of one nexus: its loss by I_T NEXUS RESET, its pending events, and the effects of a
//! session's protocol level. SAM-5 §7, RFC 7144 §4.2, §6.3.

use crate::unit::support::{A, B, Rig};
use lunar_scsi::plan::{NexusId, Plan, Refusal};
use lunar_scsi::sense::Sense;
use lunar_scsi::share::Origin;
use lunar_scsi::unit::{Context, InitiatorPort, absent_unit_plan};
use lunar_wire::Lun;

const TEST_UNIT_READY: [u8; 6] = [0; 6];
const RESERVE: [u8; 6] = [0x16, 0, 0, 0, 0, 0];
const PREVENT: [u8; 6] = [0x1e, 0, 0, 0, 1, 0];
const EJECT: [u8; 6] = [0x1b, 0, 0, 0, 0x02, 0];
const MODE_SELECT: [u8; 6] = [0x15, 0x10, 0, 0, 16, 0];

/// Sets D_SENSE, a change of mode parameters for all nexuses except A.
fn change_modes(rig: &mut Rig) {
    let list = [0, 0, 0, 0, 10, 10, 0x26, 0x10, 0, 0, 0, 0, 0, 0, 0, 0];
    rig.send(&MODE_SELECT, &list).unwrap();
}

/// Goal: I_T nexus loss removes only state of this nexus; its initiator is informed, in this
/// session or the next.
#[test]
fn a_nexus_loss_clears_only_state_of_the_nexus() {
    let mut rig = Rig::removable();
    rig.plan(&PREVENT);
    rig.unit.nexus_loss(A);
    rig.run(B, &EJECT).expect("A prevents it no longer");
    assert_eq!(rig.sense(&TEST_UNIT_READY), Sense::NEXUS_LOSS);
    let mut rig = Rig::removable();
    rig.run(B, &PREVENT).unwrap();
    rig.unit.nexus_loss(A);
    assert_eq!(rig.sense(&TEST_UNIT_READY), Sense::NEXUS_LOSS);
    assert_eq!(rig.sense(&EJECT), Sense::MEDIUM_REMOVAL_PREVENTED, "B still prevents removal");
    rig.run(B, &TEST_UNIT_READY).expect("B gets no unit attention");
}

/// Goal: RESERVE (6) ends with its nexus; a persistent reservation and its registration stay.
#[test]
fn nexus_loss_and_reservations() {
    let mut rig = Rig::thin();
    rig.plan(&RESERVE);
    rig.unit.nexus_loss(B);
    let conflict = rig.run(B, &TEST_UNIT_READY);
    assert_eq!(conflict, Err(Sense::NEXUS_LOSS.into()), "reported first");
    assert_eq!(rig.run(B, &TEST_UNIT_READY), Err(Refusal::ReservationConflict));
    rig.unit.nexus_loss(A);
    rig.run(B, &TEST_UNIT_READY).expect("released");
    assert_eq!(rig.sense(&TEST_UNIT_READY), Sense::NEXUS_LOSS);
    let register = [0x5f, 0, 0, 0, 0, 0, 0, 0, 24, 0];
    let mut list = [0; 24];
    list[15] = 7;
    rig.send(&register, &list).unwrap();
    let reserve = [0x5f, 1, 3, 0, 0, 0, 0, 0, 24, 0];
    let mut list = [0; 24];
    list[7] = 7;
    rig.send(&reserve, &list).unwrap();
    rig.unit.nexus_loss(A);
    let write = crate::unit::support::blocks(0x2a, 0, 0, 1);
    assert_eq!(rig.run(B, &write), Err(Refusal::ReservationConflict));
}

/// Goal: an initiator that returns after I_T NEXUS RESET is informed of the loss and of later
/// events; a reset meanwhile implies them; an initiator that logged out itself receives the
/// power-on as usual.
#[test]
fn the_next_session_receives_the_nexus_loss() {
    let mut rig = Rig::thin();
    rig.unit.nexus_loss(B);
    rig.unit.detach(B);
    change_modes(&mut rig);
    rig.attach(B);
    assert_eq!(rig.refusal(B, &TEST_UNIT_READY), Sense::NEXUS_LOSS);
    assert_eq!(rig.refusal(B, &TEST_UNIT_READY), Sense::MODE_PARAMETERS_CHANGED);
    rig.run(B, &TEST_UNIT_READY).unwrap();
    rig.unit.nexus_loss(B);
    rig.unit.detach(B);
    rig.unit.reset(Some(A));
    rig.attach(B);
    assert_eq!(rig.refusal(B, &TEST_UNIT_READY), Sense::RESET_BY_FUNCTION);
    rig.run(B, &TEST_UNIT_READY).unwrap();
    rig.unit.detach(B);
    rig.attach(B);
    assert_eq!(rig.refusal(B, &TEST_UNIT_READY), Sense::POWER_ON_RESET);
}

/// Begins a session of this initiator and loses it.
fn lose(rig: &mut Rig, nexus: NexusId, name: &str, origin: Option<Origin>) {
    rig.attach_named(nexus, name, origin);
    rig.unit.nexus_loss(nexus);
    rig.unit.detach(nexus);
}

/// True if the initiator is informed of the loss of its nexus, and not of a power-on.
fn is_remembered(rig: &mut Rig, nexus: NexusId, name: &str) -> bool {
    let isid = [0x80, 0, 0, 0, (nexus.0 >> 8) as u8, nexus.0 as u8];
    rig.unit.attach(nexus, InitiatorPort { name: name.into(), isid }, crate::unit::support::port());
    rig.refusal(nexus, &TEST_UNIT_READY) == Sense::NEXUS_LOSS
}

/// Goal: initiators that never return use bounded memory.
#[test]
fn lost_nexuses_take_bounded_memory() {
    let mut rig = Rig::thin();
    let many: Vec<_> = (1000..1300).map(|number| (NexusId(number), format!("i{number}"))).collect();
    for (nexus, name) in &many {
        lose(&mut rig, *nexus, name, None);
    }
    let remembered = many.iter().filter(|(nexus, name)| is_remembered(&mut rig, *nexus, name));
    assert_eq!(remembered.count(), 128);
}

/// Goal: an initiator that loses many nexuses with ever new ISIDs, or ever new names from one
/// origin, does not cause power-on reports for others.
#[test]
fn lost_nexuses_of_one_origin_displace_no_others() {
    for origin in [None, Some(Origin(7))] {
        let mut rig = Rig::thin();
        lose(&mut rig, NexusId(500), "victim", None);
        for number in 1000..1300 {
            let name = origin.map_or("one".to_owned(), |_| format!("i{number}"));
            lose(&mut rig, NexusId(number), &name, origin);
        }
        assert!(is_remembered(&mut rig, NexusId(500), "victim"), "{origin:?}");
    }
}

/// Goal: QUERY ASYNCHRONOUS EVENT returns the next unit attention of a nexus and the number of
/// pending ones, and clears none.
#[test]
fn pending_events() {
    let mut rig = Rig::thin();
    assert_eq!(rig.unit.pending_event(B), None);
    change_modes(&mut rig);
    assert_eq!(rig.unit.pending_event(B), Some([0x16, 0x2a, 0x01]));
    assert_eq!(rig.unit.pending_event(A), None, "it asked for the change");
    rig.unit.raise(0x2a09, None);
    assert_eq!(rig.unit.pending_event(B), Some([0x26, 0x2a, 0x01]));
    assert_eq!(rig.unit.pending_event(B), Some([0x26, 0x2a, 0x01]));
    assert_eq!(rig.refusal(B, &TEST_UNIT_READY), Sense::MODE_PARAMETERS_CHANGED);
    assert_eq!(rig.unit.pending_event(B), Some([0x16, 0x2a, 0x09]));
    assert_eq!(rig.unit.pending_event(NexusId(99)), None);
}

/// Goal: the iSCSI version descriptor is 0960h plus the session's protocol level, with and without
/// a unit, and the functions of level 2 are reported at level 2 only.
#[test]
fn the_protocol_level_changes_descriptor_and_functions() {
    let mut rig = Rig::thin();
    let inquiry = [0x12, 0, 0, 0, 255, 0];
    let functions = [0xa3, 0x0d, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0];
    let expected =
        [(0, 0x60, [0xda, 0, 0, 0]), (1, 0x61, [0xda, 0, 0, 0]), (2, 0x62, [0xde, 7, 0, 0])];
    for (level, descriptor, named) in expected {
        rig.protocol_level = level;
        assert_eq!(rig.reply(&inquiry)[64..66], [0x09, descriptor], "level {level}");
        assert_eq!(rig.reply(&functions), named, "level {level}");
        let port = crate::unit::support::port();
        let context = Context { protocol_level: level, ..Context::new(&rig.luns, &port) };
        let Ok(Plan::Reply(reply)) = absent_unit_plan(Lun::new(9), &context, &inquiry) else {
            panic!("INQUIRY is answered everywhere")
        };
        assert_eq!(reply[64..66], [0x09, descriptor], "no unit, level {level}");
    }
}
