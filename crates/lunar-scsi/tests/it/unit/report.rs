//! REPORT LUNS, REPORT SUPPORTED OPERATION CODES and the command table behind it.

use crate::unit::support::{A, Rig, options};
use lunar_scsi::commands::{COMMANDS, Offered};
use lunar_scsi::sense::Sense;
use lunar_scsi::unit::{AtomicBlocks, UnitOptions};
use lunar_wire::Lun;

fn luns_cdb(select: u8, allocation: u32) -> Vec<u8> {
    let mut cdb = vec![0xa0, 0, select, 0, 0, 0];
    cdb.extend_from_slice(&allocation.to_be_bytes());
    cdb.extend_from_slice(&[0, 0]);
    cdb
}

#[test]
fn luns_by_selection() {
    let mut rig = Rig::thin();
    let units = [Lun::new(0).0, Lun::new(1).0, Lun::new(300).0].concat();
    let known = Lun::REPORT_LUNS.0.to_vec();
    let both = [units.clone(), known.clone()].concat();
    let listed = [(0, units.clone()), (1, known), (2, both), (0x10, Vec::new()), (0x11, units)];
    for (select, list) in listed {
        let reply = rig.reply(&luns_cdb(select, 4096));
        assert_eq!(reply[..8], [0, 0, 0, list.len() as u8, 0, 0, 0, 0]);
        assert_eq!(reply[8..], list);
        assert_eq!(rig.reply(&luns_cdb(select, 17)), reply[..reply.len().min(17)]);
    }
    for select in (3..=0x0f).chain(0x12..=0xff) {
        let sense = rig.sense(&luns_cdb(select, 4096));
        assert_eq!(sense, Sense::invalid_field_in_cdb(2, None));
    }
    for allocation in 0..16 {
        let sense = rig.sense(&luns_cdb(0, allocation));
        assert_eq!(sense, Sense::invalid_field_in_cdb(6, None));
    }
}

/// Fault: a short REPORT LUNS was built as long as the list and then truncated; alongside such
/// commands of 16 hosts for 2,000 LUNs, the request rate of another host fell to 2 %.
#[test]
fn a_truncated_list_of_luns_is_built_short() {
    let luns: Vec<Lun> = (0..2000).map(Lun::new).collect();
    let port = crate::unit::support::port();
    let context = lunar_scsi::unit::Context::new(&luns, &port);
    let plan = lunar_scsi::unit::absent_unit_plan(Lun::new(5), &context, &luns_cdb(0, 20));
    let Ok(lunar_scsi::plan::Plan::Reply(reply)) = plan else { panic!("{plan:?}") };
    assert_eq!(reply[..8], [0, 0, 0x3e, 0x80, 0, 0, 0, 0]);
    assert_eq!(reply[8..], [luns[0].0, luns[1].0].concat()[..12]);
    assert!(reply.capacity() <= 64, "{}", reply.capacity());
}

fn codes(options: u8, opcode: u8, action: u16, allocation: u32) -> Vec<u8> {
    let mut cdb = vec![0xa3, 0x0c, options, opcode];
    cdb.extend_from_slice(&action.to_be_bytes());
    cdb.extend_from_slice(&allocation.to_be_bytes());
    cdb.extend_from_slice(&[0, 0]);
    cdb
}

/// (operation code, service action, flags, CDB length) of each descriptor.
fn descriptors(reply: &[u8], size: usize) -> Vec<(u8, u16, u8, u16)> {
    let length = u32::from_be_bytes(reply[..4].try_into().unwrap()) as usize;
    assert_eq!(length, reply.len() - 4);
    assert_eq!(length % size, 0);
    reply[4..]
        .chunks(size)
        .map(|at| {
            let pair = |from: usize| u16::from_be_bytes([at[from], at[from + 1]]);
            (at[0], pair(2), at[5], pair(6))
        })
        .collect()
}

/// Goal: the report matches the table. Method: all commands, with and without timeouts, of units of
/// each kind.
#[test]
fn all_operation_codes() {
    let thick = UnitOptions { unmap_granularity_blocks: None, ..options() };
    let removable = UnitOptions { removable: true, ..options() };
    let atomic = Some(AtomicBlocks { unit_blocks: 8, blocks_max: 64 });
    let atomic = UnitOptions { atomic, ..options() };
    for unit in [options(), thick, removable, atomic] {
        let offered = COMMANDS.iter().filter(|command| match command.offered {
            Offered::Always => true,
            Offered::Thin => unit.unmap_granularity_blocks.is_some(),
            Offered::Removable => unit.removable,
            Offered::Atomic => unit.atomic.is_some(),
            Offered::Threshold => unit.threshold.is_some(),
        });
        let expected: Vec<_> = offered
            .map(|command| {
                let action = command.service_action;
                let bytes = command.cdb_bytes() as u16;
                (command.opcode, action.unwrap_or(0), u8::from(action.is_some()), bytes)
            })
            .collect();
        let mut rig = Rig::new(unit);
        let plain = descriptors(&rig.reply(&codes(0, 0, 0, u32::MAX)), 8);
        assert_eq!(plain, expected);
        let timed = rig.reply(&codes(0x80, 0, 0, u32::MAX));
        let with_flag = expected.iter().map(|(op, sa, flags, len)| (*op, *sa, flags | 2, *len));
        assert_eq!(descriptors(&timed, 20), with_flag.collect::<Vec<_>>());
        assert!(timed[4..].chunks(20).all(|at| at[8..10] == [0, 10]));
    }
}

/// Goal: each command can be reported alone. Method: every one of the table, each way.
#[test]
fn one_operation_code() {
    let mut rig = Rig::with_everything();
    for command in COMMANDS {
        let action = command.service_action.unwrap_or(0);
        let by_code = u8::from(command.service_action.is_some()) + 1;
        for options in [by_code, 3] {
            let reply = rig.reply(&codes(options, command.opcode, action, 255));
            assert_eq!(reply[..3], [0, 3, 0], "{}", command.name);
            assert_eq!(usize::from(reply[3]), command.cdb_bytes());
            assert_eq!(reply[4..], command.usage_bitmap());
            assert_eq!(reply[4], command.opcode);
        }
        let reply = rig.reply(&codes(0x80 | by_code, command.opcode, action, 255));
        assert_eq!(reply[1], 0x83, "CTDP");
        assert_eq!(reply.len(), 4 + command.cdb_bytes() + 12);
        let other = if by_code == 1 { 2 } else { 1 };
        let sense = rig.sense(&codes(other, command.opcode, action, 255));
        assert_eq!(sense, Sense::invalid_field_in_cdb(3, None), "{}", command.name);
    }
}

#[test]
fn unsupported_operation_codes_are_reported() {
    let mut rig = Rig::thin();
    for (options, opcode, action) in
        [(1, 0xff, 0), (2, 0xff, 0), (3, 0xff, 0), (2, 0x9e, 0x11), (3, 0x28, 1), (1, 0x1e, 0)]
    {
        assert_eq!(rig.reply(&codes(options, opcode, action, 255)), [0, 1, 0, 0]);
    }
    for options in 4..8 {
        let sense = rig.sense(&codes(options, 0x28, 0, 255));
        assert_eq!(sense, Sense::invalid_field_in_cdb(2, Some(2)));
    }
    assert_eq!(rig.reply(&codes(0, 0, 0, 0)), []);
}

/// Goal: the table is sorted and without duplicates, and lengths match the group codes.
#[test]
fn the_table_is_in_order() {
    assert!(COMMANDS.is_sorted_by_key(|command| (command.opcode, command.service_action)));
    for pair in COMMANDS.windows(2) {
        let same = pair[0].opcode == pair[1].opcode;
        let both_act = pair[0].service_action.is_some() && pair[1].service_action.is_some();
        assert!(!same || (both_act && pair[0].service_action != pair[1].service_action));
    }
    for command in COMMANDS {
        assert_eq!(lunar_scsi::cdb::length(command.opcode), Some(command.cdb_bytes()));
        let later = command.standard == "SBC-4"; // section numbers change from draft to draft
        assert!(command.timeout_seconds > 0 && (later || command.standard.contains('§')));
        assert!(!command.reservation.to_string().is_empty());
    }
}

#[test]
fn the_table_as_text() {
    let text = lunar_scsi::commands::markdown();
    assert_eq!(text.lines().count(), COMMANDS.len() + 2);
    assert!(text.lines().all(|line| line.matches('|').count() == 9), "{text}");
    let unmap = "| 42 | UNMAP | SBC-3 §5.28 | as a write |  | thin \
                 | `42 01 00 00 00 00 00 ff ff 04` | 60 s |";
    let format = "| 04 | FORMAT UNIT | SBC-3 §5.3 | as a write | yes | all \
                  | `04 ff 00 00 00 04` | 43200 s |";
    for row in [unmap, format] {
        assert!(text.lines().any(|line| line == row), "{text}");
    }
}

#[test]
fn reported_usage_of_commands_of_the_suite() {
    let usage = |opcode| {
        COMMANDS.iter().find(|command| command.opcode == opcode).unwrap().usage_bitmap()[1]
    };
    for opcode in [0x28, 0xa8, 0x88, 0x2a, 0xaa, 0x8a, 0x89, 0x8b] {
        assert_eq!(usage(opcode) & 0x18, 0x18, "{opcode:#x} has DPO and FUA");
    }
    for opcode in [0x2f, 0xaf, 0x8f, 0x2e, 0xae, 0x8e] {
        assert_eq!(usage(opcode) & 0x18, 0x10, "{opcode:#x} has DPO");
    }
}

#[test]
fn task_management_functions() {
    let cdb = |options: u8, allocation: u8| {
        [0xa3, 0x0d, options, 0, 0, 0, 0, 0, 0, allocation, 0, 0].to_vec()
    };
    let mut rig = Rig::thin();
    assert_eq!(rig.reply(&cdb(0, 4)), [0xda, 0, 0, 0]);
    let extended = rig.reply(&cdb(0x80, 255));
    assert_eq!((extended.len(), extended[3]), (16, 12));
    assert_eq!(rig.refusal(A, &cdb(0, 3)), Sense::invalid_field_in_cdb(6, None));
}
