//! The tables of SPC-4 and SBC-3 with the commands that a persistent reservation allows, row by
//! row, compared with every command.

use crate::unit::support::{A, B, Rig, options};
use lunar_scsi::commands::{COMMANDS, CommandRow};
use lunar_scsi::plan::{NexusId, Plan, Refusal};
use lunar_scsi::unit::{AtomicBlocks, UnitOptions};

/// Columns of the tables: write exclusive and exclusive access for a nexus that does not hold the
/// reservation; the types for registrants, or for all of them, for a registered nexus; the same for
/// an unregistered nexus: write exclusive, exclusive access.
type Row = [bool; 5];

const ALLOWED: Row = [true; 5];
const UNDER_WRITE_EXCLUSIVE: Row = [true, false, true, true, false];
const CONFLICT: Row = [false, false, true, false, false];

/// Rows of SPC-4 table 66 and SBC-3 table 13: one CDB, or two if a field decides. `None`: other
/// tables (PERSISTENT RESERVE OUT), or another standard (RESERVE and RELEASE of SPC-2).
fn rows(command: &CommandRow) -> Option<Vec<(Vec<u8>, Row)>> {
    let mut cdb = vec![0; command.cdb_bytes()];
    command.write_codes(&mut cdb);
    let with = |at: usize, value: u8| {
        let mut cdb = cdb.clone();
        cdb[at] = value;
        cdb
    };
    let row = match (command.opcode, command.service_action) {
        (0x16 | 0x17 | 0x5f, _) => return None,
        // START STOP UNIT: with START and POWER CONDITION 0, and all others.
        (0x1b, _) => {
            let others = [0x00, 0x10, 0x11].map(|byte| (with(4, byte), CONFLICT));
            return Some([vec![(with(4, 1), ALLOWED)], others.to_vec()].concat());
        }
        // PREVENT ALLOW MEDIUM REMOVAL: Prevent 0, and others.
        (0x1e, _) => return Some(vec![(with(4, 0), ALLOWED), (with(4, 1), CONFLICT)]),
        // TEST UNIT READY, REQUEST SENSE, INQUIRY, READ CAPACITY, LOG SENSE, PERSISTENT RESERVE IN,
        // REPORT LUNS, TARGET PORT GROUPS, TIMESTAMP.
        (0x00 | 0x03 | 0x12 | 0x25 | 0x4d | 0x5e | 0xa0, _)
        | (0x9e, Some(0x10))
        | (0xa3, Some(0x0a | 0x0f)) => ALLOWED,
        // READ, VERIFY, PRE-FETCH, READ DEFECT DATA, READ BUFFER, MODE SENSE, RECEIVE COPY RESULTS,
        // GET LBA STATUS, REPORT SUPPORTED OPERATION CODES and TASK MANAGEMENT FUNCTIONS.
        (0x08 | 0x28 | 0xa8 | 0x88 | 0x2f | 0xaf | 0x8f | 0x34 | 0x90, _)
        | (0x37 | 0xb7 | 0x3c | 0x1a | 0x5a | 0x84, _)
        | (0x9e, Some(0x12))
        | (0xa3, Some(0x0c | 0x0d)) => UNDER_WRITE_EXCLUSIVE,
        // WRITE, WRITE AND VERIFY, WRITE SAME, WRITE ATOMIC, COMPARE AND WRITE, ORWRITE, UNMAP,
        // SYNCHRONIZE CACHE, FORMAT UNIT, SANITIZE, WRITE BUFFER, MODE SELECT, SEND DIAGNOSTIC,
        // EXTENDED COPY, SET TARGET PORT GROUPS.
        (0x0a | 0x2a | 0xaa | 0x8a | 0x2e | 0xae | 0x8e | 0x41 | 0x93 | 0x9c, _)
        | (0x89 | 0x8b | 0x42 | 0x35 | 0x91 | 0x04 | 0x48 | 0x3b | 0x15 | 0x55 | 0x1d | 0x83, _)
        | (0xa4, Some(0x0a)) => CONFLICT,
        (opcode, action) => {
            panic!("{} ({opcode:02x}/{action:02x?}) is in no row: put it in", command.name)
        }
    };
    Some(vec![(cdb, row)])
}

fn out(rig: &mut Rig, nexus: NexusId, action: u8, kind: u8, keys: [u64; 2]) {
    let mut list = [keys[0].to_be_bytes(), keys[1].to_be_bytes()].concat();
    list.resize(24, 0);
    let cdb = [0x5f, action, kind, 0, 0, 0, 0, 0, 24, 0];
    assert_eq!(rig.send_from(nexus, &cdb, &list), Ok(Plan::Reply(vec![])));
}

/// Returns whether a nexus that does not hold a reservation of this type may send a command of this
/// row, before and after its registration.
fn allowed(row: Row, kind: u8) -> [bool; 2] {
    let [write_exclusive, exclusive, registrant, under_write_exclusive, under_exclusive] = row;
    match kind {
        1 => [write_exclusive; 2],
        3 => [exclusive; 2],
        5 | 7 => [under_write_exclusive, registrant],
        _ => [under_exclusive, registrant],
    }
}

/// Goal: every command conflicts with every type according to its row; commands without a row are
/// listed.
/// Method: a nexus other than the holder, also after its registration, then the holder.
#[test]
fn every_command_by_its_row() {
    let atomic = AtomicBlocks { unit_blocks: 8, blocks_max: 8 };
    let options = UnitOptions { removable: true, atomic: Some(atomic), ..options() };
    for command in COMMANDS {
        assert!(command.is_offered(options.features()), "{}", command.name);
        for (cdb, row) in rows(command).unwrap_or_default() {
            for kind in [1, 3, 5, 6, 7, 8] {
                let mut rig = Rig::new(options.clone());
                out(&mut rig, A, 0, 0, [0, 0xa]);
                out(&mut rig, A, 1, kind, [0xa, 0]);
                let [stranger, registrant] = allowed(row, kind);
                let check_conflict = |rig: &mut Rig, nexus, allowed: bool, who| {
                    let conflicts = rig.run(nexus, &cdb) == Err(Refusal::ReservationConflict);
                    assert_eq!(conflicts, !allowed, "{} of {who}, type {kind}", command.name);
                };
                check_conflict(&mut rig, B, stranger, "a stranger");
                out(&mut rig, B, 0, 0, [0, 0xb]);
                check_conflict(&mut rig, B, registrant, "a registrant");
                check_conflict(&mut rig, A, true, "the holder");
            }
        }
    }
}
