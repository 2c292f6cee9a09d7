//! Restrictions of an initiator that does not administer a unit.

use crate::unit::support::{A, B, Rig, port};
use lunar_scsi::commands::COMMANDS;
use lunar_scsi::plan::{Plan, Refusal};
use lunar_scsi::rights::{Administration, Rights};
use lunar_scsi::sense::Sense;
use lunar_scsi::unit::Context;
use proptest::prelude::*;

const READY: [u8; 6] = [0; 6];
const NONE: Rights = Rights { administers_unit: false, administers_target: false };
const DENIED: Sense = Sense::ACCESS_DENIED_NO_ACCESS_RIGHTS;
const GOOD: Result<Plan, Refusal> = Ok(Plan::Reply(Vec::new()));

const FORMAT: [u8; 6] = [0x04, 0, 0, 0, 0, 0];
const BLOCK_ERASE: [u8; 10] = [0x48, 0x02, 0, 0, 0, 0, 0, 0, 0, 0];
const SET_GROUPS: [u8; 12] = [0xa4, 0x0a, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0];
const STOP: [u8; 6] = [0x1b, 0, 0, 0, 0, 0];
const START: [u8; 6] = [0x1b, 0, 0, 0, 1, 0];

/// Creates a unit with all features; `B` does not administer it.
fn rig() -> Rig {
    restricted(Rig::with_everything())
}

fn restricted(mut rig: Rig) -> Rig {
    rig.unit.set_rights(B, NONE);
    assert_eq!(rig.refusal(B, &READY), Sense::INQUIRY_DATA_HAS_CHANGED);
    rig
}

#[test]
fn commands_that_affect_all_users_require_administration() {
    let cdbs: &[&[u8]] = &[
        &FORMAT,
        &[0x04, 0x10, 0, 0, 0, 0],             // with a parameter list
        &[0x48, 0x01, 0, 0, 0, 0, 0, 0, 8, 0], // OVERWRITE
        &BLOCK_ERASE,
        &[0x48, 0x82, 0, 0, 0, 0, 0, 0, 0, 0], // with IMMED
        &[0x48, 0x1f, 0, 0, 0, 0, 0, 0, 0, 0], // EXIT FAILURE MODE
        &STOP,
        &[0x1b, 1, 0, 0, 0, 0],    // with IMMED
        &[0x1b, 0, 0, 0, 0x02, 0], // eject
        &[0x1b, 0, 0, 0, 0x03, 0], // load
        &[0x1b, 0, 0, 0, 0x11, 0], // power condition ACTIVE
        &[0x1b, 0, 0, 0, 0x30, 0], // power condition STANDBY
        &SET_GROUPS,
        &[0xa4, 0x0a, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], // an empty list
    ];
    for cdb in cdbs {
        let mut rig = rig();
        assert_eq!(rig.refusal(B, cdb), DENIED, "{cdb:02x?}");
        assert_eq!(rig.run(B, &READY), GOOD, "the unit is unchanged: {cdb:02x?}");
        assert_ne!(rig.run(A, cdb), Err(DENIED.into()), "{cdb:02x?}");
    }
    let mut rig = restricted(Rig::thin());
    rig.plan(&STOP);
    assert_eq!(rig.refusal(B, &READY), Sense::NOT_READY_INITIALIZING_COMMAND_REQUIRED);
    assert_eq!(rig.run(B, &START), GOOD, "every initiator may start the unit");
    assert_eq!(rig.run(B, &READY), GOOD);
}

/// Goal: the table alone determines which commands are denied. Method: every command with its other
/// fields 0, and with ones in each byte, from a nexus with and one without rights.
#[test]
fn the_table_says_which_commands_are_denied() {
    for command in COMMANDS {
        for fill in [0, 0xff] {
            let mut cdb = vec![fill; command.cdb_bytes()];
            cdb[1] = 0;
            command.write_codes(&mut cdb);
            *cdb.last_mut().unwrap() = 0;
            let expected = match command.administration {
                Administration::Always | Administration::UnlessStarts => true,
                Administration::Never | Administration::WhenChanges => false,
            };
            let mut rig = rig();
            let denied = rig.run(B, &cdb) == Err(DENIED.into());
            assert_eq!(denied, expected, "{} {cdb:02x?}", command.name);
            assert_ne!(rig.run(A, &cdb), Err(DENIED.into()), "{}", command.name);
        }
    }
}

/// Byte 2 of the control mode page: TST 001b, and GLTSD.
const TST_GLTSD: u8 = 0x22;

/// MODE SELECT (6) or (10) of a control mode page with these bytes 2 and 4.
fn select(is_ten_byte: bool, byte_2: u8, byte_4: u8) -> (Vec<u8>, Vec<u8>) {
    let page = [0x0a, 10, byte_2, 0x10, byte_4, 0, 0, 0, 0, 0, 0, 0];
    match is_ten_byte {
        false => (vec![0x15, 0x10, 0, 0, 16, 0], [&[0; 4][..], &page].concat()),
        true => (vec![0x55, 0x10, 0, 0, 0, 0, 0, 0, 20, 0], [&[0; 8][..], &page].concat()),
    }
}

/// Goal: an initiator that does not administer a unit cannot change its mode parameters, which all
/// initiators share. A list without changes is accepted.
#[test]
fn mode_parameters_are_changed_by_administrators() {
    const D_SENSE: u8 = 0x04;
    const SWP: u8 = 0x08;
    const SENSE: [u8; 6] = [0x1a, 0x08, 0x0a, 0, 255, 0];
    for is_ten_byte in [false, true] {
        let mut rig = rig();
        let before = rig.reply(&SENSE);
        for (byte_2, byte_4) in
            [(TST_GLTSD, SWP), (TST_GLTSD | D_SENSE, 0), (TST_GLTSD | D_SENSE, SWP)]
        {
            let (cdb, list) = select(is_ten_byte, byte_2, byte_4);
            assert_eq!(rig.send_from(B, &cdb, &list), Err(DENIED.into()));
            assert_eq!(rig.reply(&SENSE), before);
        }
        let (cdb, list) = select(is_ten_byte, TST_GLTSD, 0);
        assert_eq!(rig.send_from(B, &cdb, &list), GOOD, "without a change");
        let (cdb, list) = select(is_ten_byte, TST_GLTSD, SWP);
        assert_eq!(rig.send_from(A, &cdb, &list), GOOD);
        assert_eq!(rig.refusal(B, &READY), Sense::MODE_PARAMETERS_CHANGED);
        assert_eq!(rig.send_from(B, &cdb, &list), GOOD, "without a change of the current value");
        let (cdb, list) = select(is_ten_byte, TST_GLTSD, 0);
        assert_eq!(rig.send_from(B, &cdb, &list), Err(DENIED.into()), "B cannot clear SWP either");
        let (cdb, mut list) = select(is_ten_byte, TST_GLTSD, SWP);
        *list.last_mut().unwrap() = 1;
        let sense = rig.send_from(B, &cdb, &list);
        assert_ne!(sense, Err(DENIED.into()), "an invalid list is refused as invalid");
    }
}

/// The operation codes and service actions that REPORT SUPPORTED OPERATION CODES lists.
fn listed(rig: &mut Rig, nexus: lunar_scsi::plan::NexusId) -> Vec<(u8, u8)> {
    let all = [0xa3, 0x0c, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0];
    let Ok(Plan::Reply(reply)) = rig.run(nexus, &all) else { panic!("no list") };
    reply[4..].chunks(8).map(|at| (at[0], at[3])).collect()
}

/// Goal: a nexus may send exactly the commands reported to it as supported.
#[test]
fn reports_are_for_the_nexus_that_asks() {
    let mut rig = rig();
    let restricted = [(0x04, 0), (0x48, 1), (0x48, 2), (0x48, 0x1f), (0xa4, 0x0a)];
    let (all, less) = (listed(&mut rig, A), listed(&mut rig, B));
    let without: Vec<_> = all.iter().copied().filter(|code| !restricted.contains(code)).collect();
    assert_eq!(less, without);
    assert_eq!(all.len(), less.len() + restricted.len());
    assert!(less.contains(&(0x15, 0)) && less.contains(&(0x1b, 0)), "some uses are everybody's");
    for (opcode, action) in restricted {
        let one = [0xa3, 0x0c, 3, opcode, 0, action, 0, 0, 0, 255, 0, 0];
        assert_eq!(rig.reply(&one)[..2], [0, 3]);
        assert_eq!(rig.run(B, &one), Ok(Plan::Reply(vec![0, 1, 0, 0])), "{opcode:02x}");
    }
    let functions = [0xa3, 0x0d, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0];
    assert_eq!(rig.reply(&functions), [0xda, 0, 0, 0]);
    assert_eq!(rig.run(B, &functions), Ok(Plan::Reply(vec![0xd8, 0, 0, 0])), "no TARGET RESET");
    rig.unit.set_rights(B, Rights { administers_target: true, ..NONE });
    assert_eq!(rig.run(B, &functions), Ok(Plan::Reply(vec![0xda, 0, 0, 0])));
}

/// Goal: TPGS is 01b for an initiator that may not send SET TARGET PORT GROUPS, and the rest of
/// INQUIRY is unchanged.
#[test]
fn inquiry_offers_no_groups_that_may_not_be_set() {
    let mut rig = rig();
    for (page, evpd) in [(0, 0), (0x00, 1), (0x83, 1), (0xb1, 1)] {
        let cdb = [0x12, evpd, page, 0, 255, 0];
        let mut expected = rig.reply(&cdb);
        if evpd == 0 {
            assert_eq!(expected[5], 0x38);
            expected[5] = 0x18;
        }
        assert_eq!(rig.run(B, &cdb), Ok(Plan::Reply(expected)), "{evpd} {page:02x}");
    }
    assert_eq!(rig.run(B, &[0x12, 0, 0, 0, 5, 0]).map(|_| ()), Ok(()), "cut before it");
}

/// Goal: a nexus is informed exactly when its rights to the unit change.
#[test]
fn a_change_of_rights_is_reported() {
    let mut rig = rig();
    rig.unit.set_rights(B, NONE);
    rig.unit.set_rights(B, Rights { administers_target: true, ..NONE });
    assert_eq!(rig.run(B, &READY), GOOD);
    assert_eq!(rig.run(A, &READY), GOOD);
    rig.unit.set_rights(B, Rights::default());
    assert_eq!(rig.refusal(B, &READY), Sense::INQUIRY_DATA_HAS_CHANGED);
    assert!(rig.run(B, &STOP).is_ok());
    rig.unit.set_rights(lunar_scsi::plan::NexusId(99), NONE);
}

/// Goal: a right that is removed while a parameter list is on its way no longer applies.
#[test]
fn rights_are_checked_again_with_the_parameter_list() {
    let port = port();
    for cdb in [&SET_GROUPS[..], &[0x04, 0x10, 0, 0, 0, 0], &[0x48, 1, 0, 0, 0, 0, 0, 0, 8, 0]] {
        let mut rig = Rig::with_everything();
        let Plan::Parameters { awaiting, .. } = rig.plan(cdb) else { panic!("{cdb:02x?}") };
        rig.unit.set_rights(A, NONE);
        let resumed = rig.unit.resume(A, &Context::new(&[], &port), awaiting, &[0; 8]);
        assert_eq!(resumed, Err(DENIED.into()), "{cdb:02x?}");
    }
}

/// Goal: a unit attention is checked first, then the right, then the reservation.
#[test]
fn rights_come_before_reservations() {
    let mut rig = rig();
    rig.plan(&[0x16, 0, 0, 0, 0, 0]);
    assert_eq!(rig.refusal(B, &FORMAT), DENIED);
    assert_eq!(rig.run(B, &READY), Err(Refusal::ReservationConflict));
    rig.unit.raise_for(0x2a09, B);
    assert_eq!(rig.refusal(B, &FORMAT), Sense::CAPACITY_DATA_HAS_CHANGED);
}

/// All shared state: mode parameters, states of port groups, responses of the medium.
fn shared_state(rig: &mut Rig) -> [Vec<u8>; 4] {
    [
        rig.reply(&[0x5a, 0, 0x3f, 0xff, 0, 0, 0, 0xff, 0xff, 0]),
        rig.reply(&[0xa3, 0x0a, 0, 0, 0, 0, 0, 0, 0, 255, 0, 0]),
        rig.reply(&[0x03, 0, 0, 0, 252, 0]),
        rig.reply(&READY),
    ]
}

/// A command of any kind, more often one with uses for administrators only, with fields that are
/// mostly 0; and a parameter list, which for MODE SELECT may be a control mode page.
fn commands() -> impl Strategy<Value = (Vec<u8>, Vec<u8>)> {
    let restricted: Vec<_> = (0..COMMANDS.len())
        .filter(|at| COMMANDS[*at].administration != Administration::Never)
        .collect();
    let which = prop_oneof![0..COMMANDS.len(), prop::sample::select(restricted)];
    let field = || prop_oneof![8 => Just(0), 1 => any::<u8>()];
    let fields = prop::collection::vec(field(), 16);
    let list = prop::collection::vec(field(), 64);
    let page = (any::<bool>(), any::<[bool; 2]>());
    (which, fields, list, page).prop_map(|(which, fields, list, (valid, [d_sense, swp]))| {
        let command = &COMMANDS[which];
        if valid && command.administration == Administration::WhenChanges {
            let byte_2 = TST_GLTSD | if d_sense { 0x04 } else { 0 };
            return select(command.opcode == 0x55, byte_2, if swp { 0x08 } else { 0 });
        }
        let mut cdb = fields[..command.cdb_bytes()].to_vec();
        if command.service_action.is_some() {
            cdb[1] &= 0xe0;
        }
        command.write_codes(&mut cdb);
        *cdb.last_mut().unwrap() = 0;
        (cdb, list)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1024))]

    /// Goal: commands of a nexus without rights never change shared state, and no plan erases the
    /// unit.
    #[test]
    fn without_rights_shared_state_does_not_change(
        (cdb, mut list) in commands(),
        removable in any::<bool>(),
    ) {
        // Reservations are the standard's way to exclude others.
        prop_assume!(!matches!(cdb[0], 0x16 | 0x17 | 0x5f));
        let mut rig = if removable { rig() } else { restricted(Rig::thin()) };
        let before = shared_state(&mut rig);
        let mut plan = rig.run(B, &cdb);
        if let Ok(Plan::Parameters { bytes, awaiting }) = plan {
            list.resize(bytes as usize, 0);
            let port = port();
            plan = rig.unit.resume(B, &Context::new(&[], &port), awaiting, &list);
        }
        let erases = matches!(plan, Ok(Plan::LongOperation { .. } | Plan::ExitFailureMode));
        prop_assert!(!erases, "{cdb:02x?} {plan:?}");
        prop_assert!(rig.run(A, &READY).is_ok(), "{cdb:02x?} {plan:?}");
        prop_assert_eq!(shared_state(&mut rig), before, "{:02x?}", cdb);
    }
}
