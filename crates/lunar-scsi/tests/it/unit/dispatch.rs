//! The order in which a command is checked, and the state of nexuses.

use crate::unit::support::{A, B, Rig, blocks, options};
use lunar_scsi::attention::Attention;
use lunar_scsi::commands::COMMANDS;
use lunar_scsi::plan::{NexusId, Plan};
use lunar_scsi::sense::Sense;
use lunar_scsi::unit::{InitiatorPort, NexusOptions, StateError, UnitOptions};

const READY: [u8; 6] = [0; 6];
const INQUIRY: [u8; 6] = [0x12, 0, 0, 0, 96, 0];
const REQUEST_SENSE: [u8; 6] = [0x03, 0, 0, 0, 252, 0];
const LUNS: [u8; 12] = [0xa0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0];

/// Goal: a new nexus receives the power-on before its first command; INQUIRY and REPORT LUNS run
/// first and leave it pending.
#[test]
fn unit_attentions_precede_commands() {
    let mut rig = Rig::fresh(options());
    rig.attach(A);
    rig.reply(&INQUIRY);
    rig.reply(&LUNS);
    assert_eq!(rig.sense(&[0xff; 16]), Sense::POWER_ON_RESET, "before the operation code");
    assert_eq!(rig.sense(&[0xff; 16]), Sense::INVALID_OPERATION_CODE);
    assert_eq!(rig.reply(&READY), []);
}

#[test]
fn request_sense_takes_the_attention() {
    let mut rig = Rig::fresh(options());
    rig.attach(A);
    let data = rig.reply(&REQUEST_SENSE);
    assert_eq!(Sense::decode(&data), Some(Sense::POWER_ON_RESET));
    let data = rig.reply(&REQUEST_SENSE);
    assert_eq!(Sense::decode(&data), Some(Sense::NO_ADDITIONAL_SENSE));
    rig.reply(&READY);
}

/// Goal: the attention of changed LUNs ends for the nexus whose list was reported, and only when
/// the report is made: a planned REPORT LUNS may still end BUSY.
#[test]
fn report_luns_clears_its_attention() {
    let mut rig = Rig::thin();
    rig.unit.raise(Attention::REPORTED_LUNS_DATA_HAS_CHANGED.0, None);
    rig.reply(&LUNS);
    assert_eq!(rig.refusal(A, &READY), Sense::REPORTED_LUNS_DATA_HAS_CHANGED);
    rig.unit.raise(Attention::REPORTED_LUNS_DATA_HAS_CHANGED.0, None);
    rig.reply(&LUNS);
    rig.unit.luns_were_reported(A);
    rig.reply(&READY);
    assert_eq!(rig.refusal(B, &READY), Sense::REPORTED_LUNS_DATA_HAS_CHANGED);
}

#[test]
fn a_reset_is_reported_to_the_others() {
    let mut rig = Rig::thin();
    rig.unit.reset(Some(A));
    rig.reply(&READY);
    assert_eq!(rig.refusal(B, &READY), Sense::RESET_BY_FUNCTION);
    rig.unit.reset(None);
    for nexus in [A, B] {
        assert_eq!(rig.refusal(nexus, &READY), Sense::RESET_BY_FUNCTION);
    }
}

#[test]
fn operation_code_then_service_action_then_control() {
    let mut rig = Rig::thin();
    assert_eq!(rig.sense(&[]), Sense::INVALID_OPERATION_CODE);
    for opcode in [0x01, 0x60, 0x7f, 0xc0, 0xff] {
        assert_eq!(rig.sense(&[opcode; 32]), Sense::INVALID_OPERATION_CODE);
    }
    for (opcode, action) in [(0x9e, 0x11), (0xa3, 0x1f), (0x5e, 4), (0x5e, 0x1f), (0x5f, 0x1f)] {
        let mut cdb = [0; 16];
        cdb[..2].copy_from_slice(&[opcode, action]);
        assert_eq!(rig.sense(&cdb), Sense::invalid_field_in_cdb(1, Some(4)));
    }
}

/// Goal: an initiator that returns after its own target reset is not informed of it, once; all
/// others are.
#[test]
fn the_sender_of_a_target_reset_is_not_informed() {
    let mut rig = Rig::thin();
    let back = |rig: &mut Rig, nexus, returns_from| {
        let initiator = InitiatorPort { name: "iqn.2026-11.org.lunarsan:i".into(), isid: [0; 6] };
        let options = NexusOptions::new(&initiator, &crate::unit::support::port());
        rig.unit.attach_with(nexus, NexusOptions { returns_from, ..options });
    };
    rig.unit.reset(Some(A));
    rig.unit.expect_login_after_reset(A);
    rig.unit.detach(A);
    rig.unit.detach(B);
    for stranger in [None, Some(B)] {
        back(&mut rig, B, stranger);
        assert_eq!(rig.refusal(B, &READY), Sense::POWER_ON_RESET);
        rig.unit.detach(B);
    }
    back(&mut rig, NexusId(3), Some(A));
    rig.run(NexusId(3), &READY).unwrap();
    back(&mut rig, NexusId(4), Some(A));
    assert_eq!(rig.refusal(NexusId(4), &READY), Sense::POWER_ON_RESET);
}

/// Goal: NACA is refused and a CDB is never read past its end. Method: every command of the table.
#[test]
fn control_and_length_of_every_command() {
    let mut rig = Rig::with_everything();
    for command in COMMANDS {
        let mut cdb = vec![0; command.cdb_bytes()];
        command.write_codes(&mut cdb);
        let last = cdb.len() - 1;
        let refused = Sense::invalid_field_in_cdb(last as u16, Some(2));
        for length in 2..=last {
            assert_eq!(rig.sense(&cdb[..length]), refused, "{}", command.name);
        }
        cdb[last] = 0x04;
        assert_eq!(rig.sense(&cdb), refused, "{}", command.name);
    }
}

/// Goal: reservations are checked before the medium, the medium before write protection, and that
/// before the fields.
#[test]
fn the_order_of_refusals() {
    let protected = UnitOptions { removable: true, read_only: true, ..options() };
    let mut rig = Rig::new(protected);
    let wrong = blocks(0x2a, 0xe0, u64::from(u32::MAX), 1);
    assert_eq!(rig.refusal(B, &wrong), Sense::WRITE_PROTECTED);
    rig.plan(&[0x1b, 0, 0, 0, 2, 0]);
    assert_eq!(rig.refusal(B, &wrong), Sense::MEDIUM_NOT_PRESENT);
    rig.plan(&[0x16, 0, 0, 0, 0, 0]);
    assert_eq!(rig.run(B, &wrong), Err(lunar_scsi::plan::Refusal::ReservationConflict));
    rig.unit.raise(Attention::MODE_PARAMETERS_CHANGED.0, None);
    assert_eq!(rig.refusal(B, &wrong), Sense::MODE_PARAMETERS_CHANGED);
}

#[test]
fn sense_follows_d_sense_and_swp_protects() {
    let mut rig = Rig::thin();
    let sense = Sense::LBA_OUT_OF_RANGE.with_information(1 << 40);
    assert_eq!(rig.unit.encode_sense(&sense)[0], 0x70);
    let mut list = vec![0, 0, 0, 0];
    list.extend_from_slice(&rig.reply(&[0x1a, 8, 0x0a, 0, 255, 0])[4..]);
    list[4] &= 0x3f;
    list[4 + 2] |= 0x04;
    list[4 + 4] |= 0x08;
    let select = [0x15, 0x10, 0, 0, list.len() as u8, 0];
    assert_eq!(rig.send(&select, &list), Ok(Plan::Reply(vec![])));
    assert_eq!(rig.unit.encode_sense(&sense)[0], 0x72);
    let refused = Sense::LOGICAL_UNIT_SOFTWARE_WRITE_PROTECTED;
    assert_eq!(rig.sense(&blocks(0x2a, 0, 0, 1)), refused);
    assert_eq!(rig.refusal(B, &READY), Sense::MODE_PARAMETERS_CHANGED);
    rig.reply(&READY);
    rig.unit.reset(Some(A));
    rig.plan(&blocks(0x2a, 0, 0, 1));
    assert_eq!(rig.unit.encode_sense(&sense)[0], 0x70);
}

#[test]
fn mode_commands_of_both_lengths() {
    let mut rig = Rig::thin();
    let six = rig.reply(&[0x1a, 0, 0x3f, 0, 255, 0]);
    let ten = rig.reply(&[0x5a, 0, 0x3f, 0, 0, 0, 0, 1, 0, 0]);
    assert_eq!(six[4..], ten[8..]);
    assert_eq!(rig.reply(&[0x1a, 0, 0x3f, 0, 4, 0]), six[..4]);
    assert_eq!(rig.reply(&[0x5a, 0, 0x3f, 0, 0, 0, 0, 0, 0, 0]), []);
    for select in [&[0x15, 0x10, 0, 0, 0, 0][..], &[0x55, 0x10, 0, 0, 0, 0, 0, 0, 0, 0]] {
        assert_eq!(rig.reply(select), [], "an empty list");
    }
    let page = &rig.reply(&[0x5a, 8, 0x0a, 0, 0, 0, 0, 1, 0, 0])[8..].to_vec();
    let list = [&[0; 8][..], &[page[0] & 0x3f], &page[1..]].concat();
    let select = [0x55, 0x10, 0, 0, 0, 0, 0, 0, list.len() as u8, 0];
    assert_eq!(rig.send(&select, &list), Ok(Plan::Reply(vec![])));
    rig.run(B, &READY).expect("without a change there is no unit attention");
    assert_eq!(rig.sense(&[0x15, 0, 0, 0, 8, 0]), Sense::invalid_field_in_cdb(1, Some(4)));
}

/// Goal: an unattached nexus is an internal error without further effects.
#[test]
fn an_unattached_nexus_is_an_internal_error() {
    let mut rig = Rig::thin();
    let unknown = NexusId(99);
    assert_eq!(rig.refusal(unknown, &READY), Sense::INTERNAL_TARGET_FAILURE);
    rig.unit.detach(unknown);
}

#[test]
fn state_of_another_kind_is_refused() {
    let mut rig = Rig::fresh(options());
    let state = rig.unit.persistent_state();
    rig.unit.restore(&state).unwrap();
    for wrong in [&b""[..], b"LunarLU\0", &state[1..], &state[..state.len() - 1]] {
        let error: StateError = rig.unit.restore(wrong).unwrap_err();
        assert!(!error.to_string().is_empty());
    }
    let initiator = InitiatorPort { name: "iqn.2026-11.org.lunarsan:i".into(), isid: [0; 6] };
    rig.unit.attach(A, initiator, crate::unit::support::port());
    assert_eq!(rig.sense(&READY), Sense::POWER_ON_RESET);
}
