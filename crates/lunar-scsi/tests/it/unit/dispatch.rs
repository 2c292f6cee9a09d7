//! The order in which a command is checked, and the state of nexuses.

use crate::unit::support::{A, B, Bench, blocks, options};
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
    let mut bench = Bench::fresh(options());
    bench.attach(A);
    bench.reply(&INQUIRY);
    bench.reply(&LUNS);
    assert_eq!(bench.sense(&[0xff; 16]), Sense::POWER_ON_RESET, "before the operation code");
    assert_eq!(bench.sense(&[0xff; 16]), Sense::INVALID_OPERATION_CODE);
    assert_eq!(bench.reply(&READY), []);
}

#[test]
fn request_sense_takes_the_attention() {
    let mut bench = Bench::fresh(options());
    bench.attach(A);
    let data = bench.reply(&REQUEST_SENSE);
    assert_eq!(Sense::decode(&data), Some(Sense::POWER_ON_RESET));
    let data = bench.reply(&REQUEST_SENSE);
    assert_eq!(Sense::decode(&data), Some(Sense::NO_ADDITIONAL_SENSE));
    bench.reply(&READY);
}

/// Goal: the attention of changed LUNs ends for the nexus whose list was reported, and only when
/// the report is made: a planned REPORT LUNS may still end BUSY.
#[test]
fn report_luns_clears_its_attention() {
    let mut bench = Bench::thin();
    bench.unit.raise(Attention::REPORTED_LUNS_DATA_HAS_CHANGED.0, None);
    bench.reply(&LUNS);
    assert_eq!(bench.refusal(A, &READY), Sense::REPORTED_LUNS_DATA_HAS_CHANGED);
    bench.unit.raise(Attention::REPORTED_LUNS_DATA_HAS_CHANGED.0, None);
    bench.reply(&LUNS);
    bench.unit.luns_were_reported(A);
    bench.reply(&READY);
    assert_eq!(bench.refusal(B, &READY), Sense::REPORTED_LUNS_DATA_HAS_CHANGED);
}

#[test]
fn a_reset_is_reported_to_the_others() {
    let mut bench = Bench::thin();
    bench.unit.reset(Some(A));
    bench.reply(&READY);
    assert_eq!(bench.refusal(B, &READY), Sense::RESET_BY_FUNCTION);
    bench.unit.reset(None);
    for nexus in [A, B] {
        assert_eq!(bench.refusal(nexus, &READY), Sense::RESET_BY_FUNCTION);
    }
}

#[test]
fn operation_code_then_service_action_then_control() {
    let mut bench = Bench::thin();
    assert_eq!(bench.sense(&[]), Sense::INVALID_OPERATION_CODE);
    for opcode in [0x01, 0x60, 0x7f, 0xc0, 0xff] {
        assert_eq!(bench.sense(&[opcode; 32]), Sense::INVALID_OPERATION_CODE);
    }
    for (opcode, action) in [(0x9e, 0x11), (0xa3, 0x1f), (0x5e, 4), (0x5e, 0x1f), (0x5f, 0x1f)] {
        let mut cdb = [0; 16];
        cdb[..2].copy_from_slice(&[opcode, action]);
        assert_eq!(bench.sense(&cdb), Sense::invalid_field_in_cdb(1, Some(4)));
    }
}

/// Goal: an initiator that returns after its own target reset is not informed of it, once; all
/// others are.
#[test]
fn the_sender_of_a_target_reset_is_not_informed() {
    let mut bench = Bench::thin();
    let back = |bench: &mut Bench, nexus, returns_from| {
        let initiator = InitiatorPort { name: "iqn.2026-11.org.lunarsan:i".into(), isid: [0; 6] };
        let options = NexusOptions::new(&initiator, &crate::unit::support::port());
        bench.unit.attach_with(nexus, NexusOptions { returns_from, ..options });
    };
    bench.unit.reset(Some(A));
    bench.unit.expect_login_after_reset(A);
    bench.unit.detach(A);
    bench.unit.detach(B);
    for stranger in [None, Some(B)] {
        back(&mut bench, B, stranger);
        assert_eq!(bench.refusal(B, &READY), Sense::POWER_ON_RESET);
        bench.unit.detach(B);
    }
    back(&mut bench, NexusId(3), Some(A));
    bench.run(NexusId(3), &READY).unwrap();
    back(&mut bench, NexusId(4), Some(A));
    assert_eq!(bench.refusal(NexusId(4), &READY), Sense::POWER_ON_RESET);
}

/// Goal: NACA is refused and a CDB is never read past its end. Method: every command of the table.
#[test]
fn control_and_length_of_every_command() {
    let mut bench = Bench::with_everything();
    for command in COMMANDS {
        let mut cdb = vec![0; command.cdb_bytes()];
        command.write_codes(&mut cdb);
        let last = cdb.len() - 1;
        let refused = Sense::invalid_field_in_cdb(last as u16, Some(2));
        for length in 2..=last {
            assert_eq!(bench.sense(&cdb[..length]), refused, "{}", command.name);
        }
        cdb[last] = 0x04;
        assert_eq!(bench.sense(&cdb), refused, "{}", command.name);
    }
}

/// Goal: reservations are checked before the medium, the medium before write protection, and that
/// before the fields.
#[test]
fn the_order_of_refusals() {
    let protected = UnitOptions { removable: true, read_only: true, ..options() };
    let mut bench = Bench::new(protected);
    let wrong = blocks(0x2a, 0xe0, u64::from(u32::MAX), 1);
    assert_eq!(bench.refusal(B, &wrong), Sense::WRITE_PROTECTED);
    bench.plan(&[0x1b, 0, 0, 0, 2, 0]);
    assert_eq!(bench.refusal(B, &wrong), Sense::MEDIUM_NOT_PRESENT);
    bench.plan(&[0x16, 0, 0, 0, 0, 0]);
    assert_eq!(bench.run(B, &wrong), Err(lunar_scsi::plan::Refusal::ReservationConflict));
    bench.unit.raise(Attention::MODE_PARAMETERS_CHANGED.0, None);
    assert_eq!(bench.refusal(B, &wrong), Sense::MODE_PARAMETERS_CHANGED);
}

#[test]
fn sense_follows_d_sense_and_swp_protects() {
    let mut bench = Bench::thin();
    let sense = Sense::LBA_OUT_OF_RANGE.with_information(1 << 40);
    assert_eq!(bench.unit.encode_sense(&sense)[0], 0x70);
    let mut list = vec![0, 0, 0, 0];
    list.extend_from_slice(&bench.reply(&[0x1a, 8, 0x0a, 0, 255, 0])[4..]);
    list[4] &= 0x3f;
    list[4 + 2] |= 0x04;
    list[4 + 4] |= 0x08;
    let select = [0x15, 0x10, 0, 0, list.len() as u8, 0];
    assert_eq!(bench.send(&select, &list), Ok(Plan::Reply(vec![])));
    assert_eq!(bench.unit.encode_sense(&sense)[0], 0x72);
    let refused = Sense::LOGICAL_UNIT_SOFTWARE_WRITE_PROTECTED;
    assert_eq!(bench.sense(&blocks(0x2a, 0, 0, 1)), refused);
    assert_eq!(bench.refusal(B, &READY), Sense::MODE_PARAMETERS_CHANGED);
    bench.reply(&READY);
    bench.unit.reset(Some(A));
    bench.plan(&blocks(0x2a, 0, 0, 1));
    assert_eq!(bench.unit.encode_sense(&sense)[0], 0x70);
}

#[test]
fn mode_commands_of_both_lengths() {
    let mut bench = Bench::thin();
    let six = bench.reply(&[0x1a, 0, 0x3f, 0, 255, 0]);
    let ten = bench.reply(&[0x5a, 0, 0x3f, 0, 0, 0, 0, 1, 0, 0]);
    assert_eq!(six[4..], ten[8..]);
    assert_eq!(bench.reply(&[0x1a, 0, 0x3f, 0, 4, 0]), six[..4]);
    assert_eq!(bench.reply(&[0x5a, 0, 0x3f, 0, 0, 0, 0, 0, 0, 0]), []);
    for select in [&[0x15, 0x10, 0, 0, 0, 0][..], &[0x55, 0x10, 0, 0, 0, 0, 0, 0, 0, 0]] {
        assert_eq!(bench.reply(select), [], "an empty list");
    }
    let page = &bench.reply(&[0x5a, 8, 0x0a, 0, 0, 0, 0, 1, 0, 0])[8..].to_vec();
    let list = [&[0; 8][..], &[page[0] & 0x3f], &page[1..]].concat();
    let select = [0x55, 0x10, 0, 0, 0, 0, 0, 0, list.len() as u8, 0];
    assert_eq!(bench.send(&select, &list), Ok(Plan::Reply(vec![])));
    bench.run(B, &READY).expect("without a change there is no unit attention");
    assert_eq!(bench.sense(&[0x15, 0, 0, 0, 8, 0]), Sense::invalid_field_in_cdb(1, Some(4)));
}

/// Goal: an unattached nexus is an internal error without further effects.
#[test]
fn an_unattached_nexus_is_an_internal_error() {
    let mut bench = Bench::thin();
    let unknown = NexusId(99);
    assert_eq!(bench.refusal(unknown, &READY), Sense::INTERNAL_TARGET_FAILURE);
    bench.unit.detach(unknown);
}

#[test]
fn state_of_another_kind_is_refused() {
    let mut bench = Bench::fresh(options());
    let state = bench.unit.persistent_state();
    bench.unit.restore(&state).unwrap();
    for wrong in [&b""[..], b"LunarLU\0", &state[1..], &state[..state.len() - 1]] {
        let error: StateError = bench.unit.restore(wrong).unwrap_err();
        assert!(!error.to_string().is_empty());
    }
    let initiator = InitiatorPort { name: "iqn.2026-11.org.lunarsan:i".into(), isid: [0; 6] };
    bench.unit.attach(A, initiator, crate::unit::support::port());
    assert_eq!(bench.sense(&READY), Sense::POWER_ON_RESET);
}
