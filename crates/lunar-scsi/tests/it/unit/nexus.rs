//! State of one nexus: its loss by I_T NEXUS RESET, its pending events, and the effects of a
//! session's protocol level. SAM-5 §7, RFC 7144 §4.2, §6.3.

use crate::unit::support::{A, B, Bench};
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
fn change_modes(bench: &mut Bench) {
    let list = [0, 0, 0, 0, 10, 10, 0x26, 0x10, 0, 0, 0, 0, 0, 0, 0, 0];
    bench.send(&MODE_SELECT, &list).unwrap();
}

/// Goal: I_T nexus loss removes only state of this nexus; its initiator is informed, in this
/// session or the next.
#[test]
fn a_nexus_loss_clears_only_state_of_the_nexus() {
    let mut bench = Bench::removable();
    bench.plan(&PREVENT);
    bench.unit.nexus_loss(A);
    bench.run(B, &EJECT).expect("A prevents it no longer");
    assert_eq!(bench.sense(&TEST_UNIT_READY), Sense::NEXUS_LOSS);
    let mut bench = Bench::removable();
    bench.run(B, &PREVENT).unwrap();
    bench.unit.nexus_loss(A);
    assert_eq!(bench.sense(&TEST_UNIT_READY), Sense::NEXUS_LOSS);
    assert_eq!(bench.sense(&EJECT), Sense::MEDIUM_REMOVAL_PREVENTED, "B still prevents removal");
    bench.run(B, &TEST_UNIT_READY).expect("B gets no unit attention");
}

/// Goal: RESERVE (6) ends with its nexus; a persistent reservation and its registration stay.
#[test]
fn nexus_loss_and_reservations() {
    let mut bench = Bench::thin();
    bench.plan(&RESERVE);
    bench.unit.nexus_loss(B);
    let conflict = bench.run(B, &TEST_UNIT_READY);
    assert_eq!(conflict, Err(Sense::NEXUS_LOSS.into()), "reported first");
    assert_eq!(bench.run(B, &TEST_UNIT_READY), Err(Refusal::ReservationConflict));
    bench.unit.nexus_loss(A);
    bench.run(B, &TEST_UNIT_READY).expect("released");
    assert_eq!(bench.sense(&TEST_UNIT_READY), Sense::NEXUS_LOSS);
    let register = [0x5f, 0, 0, 0, 0, 0, 0, 0, 24, 0];
    let mut list = [0; 24];
    list[15] = 7;
    bench.send(&register, &list).unwrap();
    let reserve = [0x5f, 1, 3, 0, 0, 0, 0, 0, 24, 0];
    let mut list = [0; 24];
    list[7] = 7;
    bench.send(&reserve, &list).unwrap();
    bench.unit.nexus_loss(A);
    let write = crate::unit::support::blocks(0x2a, 0, 0, 1);
    assert_eq!(bench.run(B, &write), Err(Refusal::ReservationConflict));
}

/// Goal: an initiator that returns after I_T NEXUS RESET is informed of the loss and of later
/// events; a reset meanwhile implies them; an initiator that logged out itself receives the
/// power-on as usual.
#[test]
fn the_next_session_receives_the_nexus_loss() {
    let mut bench = Bench::thin();
    bench.unit.nexus_loss(B);
    bench.unit.detach(B);
    change_modes(&mut bench);
    bench.attach(B);
    assert_eq!(bench.refusal(B, &TEST_UNIT_READY), Sense::NEXUS_LOSS);
    assert_eq!(bench.refusal(B, &TEST_UNIT_READY), Sense::MODE_PARAMETERS_CHANGED);
    bench.run(B, &TEST_UNIT_READY).unwrap();
    bench.unit.nexus_loss(B);
    bench.unit.detach(B);
    bench.unit.reset(Some(A));
    bench.attach(B);
    assert_eq!(bench.refusal(B, &TEST_UNIT_READY), Sense::RESET_BY_FUNCTION);
    bench.run(B, &TEST_UNIT_READY).unwrap();
    bench.unit.detach(B);
    bench.attach(B);
    assert_eq!(bench.refusal(B, &TEST_UNIT_READY), Sense::POWER_ON_RESET);
}

/// Begins a session of this initiator and loses it.
fn lose(bench: &mut Bench, nexus: NexusId, name: &str, origin: Option<Origin>) {
    bench.attach_named(nexus, name, origin);
    bench.unit.nexus_loss(nexus);
    bench.unit.detach(nexus);
}

/// True if the initiator is informed of the loss of its nexus, and not of a power-on.
fn is_remembered(bench: &mut Bench, nexus: NexusId, name: &str) -> bool {
    let isid = [0x80, 0, 0, 0, (nexus.0 >> 8) as u8, nexus.0 as u8];
    bench.unit.attach(
        nexus,
        InitiatorPort { name: name.into(), isid },
        crate::unit::support::port(),
    );
    bench.refusal(nexus, &TEST_UNIT_READY) == Sense::NEXUS_LOSS
}

/// Goal: initiators that never return use bounded memory.
#[test]
fn lost_nexuses_take_bounded_memory() {
    let mut bench = Bench::thin();
    let many: Vec<_> = (1000..1300).map(|number| (NexusId(number), format!("i{number}"))).collect();
    for (nexus, name) in &many {
        lose(&mut bench, *nexus, name, None);
    }
    let remembered = many.iter().filter(|(nexus, name)| is_remembered(&mut bench, *nexus, name));
    assert_eq!(remembered.count(), 128);
}

/// Goal: an initiator that loses many nexuses with ever new ISIDs, or ever new names from one
/// origin, does not cause power-on reports for others.
#[test]
fn lost_nexuses_of_one_origin_displace_no_others() {
    for origin in [None, Some(Origin(7))] {
        let mut bench = Bench::thin();
        lose(&mut bench, NexusId(500), "victim", None);
        for number in 1000..1300 {
            let name = origin.map_or("one".to_owned(), |_| format!("i{number}"));
            lose(&mut bench, NexusId(number), &name, origin);
        }
        assert!(is_remembered(&mut bench, NexusId(500), "victim"), "{origin:?}");
    }
}

/// Goal: QUERY ASYNCHRONOUS EVENT returns the next unit attention of a nexus and the number of
/// pending ones, and clears none.
#[test]
fn pending_events() {
    let mut bench = Bench::thin();
    assert_eq!(bench.unit.pending_event(B), None);
    change_modes(&mut bench);
    assert_eq!(bench.unit.pending_event(B), Some([0x16, 0x2a, 0x01]));
    assert_eq!(bench.unit.pending_event(A), None, "it asked for the change");
    bench.unit.raise(0x2a09, None);
    assert_eq!(bench.unit.pending_event(B), Some([0x26, 0x2a, 0x01]));
    assert_eq!(bench.unit.pending_event(B), Some([0x26, 0x2a, 0x01]));
    assert_eq!(bench.refusal(B, &TEST_UNIT_READY), Sense::MODE_PARAMETERS_CHANGED);
    assert_eq!(bench.unit.pending_event(B), Some([0x16, 0x2a, 0x09]));
    assert_eq!(bench.unit.pending_event(NexusId(99)), None);
}

/// Goal: the iSCSI version descriptor is 0960h plus the session's protocol level, with and without
/// a unit, and the functions of level 2 are reported at level 2 only.
#[test]
fn the_protocol_level_changes_descriptor_and_functions() {
    let mut bench = Bench::thin();
    let inquiry = [0x12, 0, 0, 0, 255, 0];
    let functions = [0xa3, 0x0d, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0];
    let expected =
        [(0, 0x60, [0xda, 0, 0, 0]), (1, 0x61, [0xda, 0, 0, 0]), (2, 0x62, [0xde, 7, 0, 0])];
    for (level, descriptor, named) in expected {
        bench.protocol_level = level;
        assert_eq!(bench.reply(&inquiry)[64..66], [0x09, descriptor], "level {level}");
        assert_eq!(bench.reply(&functions), named, "level {level}");
        let port = crate::unit::support::port();
        let context = Context { protocol_level: level, ..Context::new(&bench.luns, &port) };
        let Ok(Plan::Reply(reply)) = absent_unit_plan(Lun::new(9), &context, &inquiry) else {
            panic!("INQUIRY is answered everywhere")
        };
        assert_eq!(reply[64..66], [0x09, descriptor], "no unit, level {level}");
    }
}
