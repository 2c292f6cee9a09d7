//! SANITIZE, and the effect of a long operation on all other commands.

use crate::unit::support::{A, B, Rig, blocks, options};
use lunar_scsi::commands::COMMANDS;
use lunar_scsi::copy::SegmentRole;
use lunar_scsi::long_operation::{LongOperation, OperationKind, OperationWork};
use lunar_scsi::plan::{NexusId, Plan};
use lunar_scsi::sense::Sense;
use lunar_scsi::unit::{BlockUnit, InitiatorPort, NexusOptions, UnitOptions};

const READY: [u8; 6] = [0; 6];
const REQUEST_SENSE: [u8; 6] = [0x03, 0, 0, 0, 252, 0];
const OVERWRITE: u8 = 0x01;
const BLOCK_ERASE: u8 = 0x02;
const EXIT_FAILURE_MODE: u8 = 0x1f;
const AUSE: u8 = 0x20;
const IMMED: u8 = 0x80;

fn cdb(flags: u8, bytes: u16) -> [u8; 10] {
    let [high, low] = bytes.to_be_bytes();
    [0x48, flags, 0, 0, 0, 0, 0, high, low, 0]
}

fn list(method: u8, pattern: &[u8]) -> Vec<u8> {
    let [high, low] = (pattern.len() as u16).to_be_bytes();
    [&[method, 0, high, low], pattern].concat()
}

/// Begins the planned operation, like a target.
pub fn begin(rig: &mut Rig, plan: Plan) -> Result<(), Sense> {
    match plan {
        Plan::LongOperation { operation, by, .. } => rig.unit.begin_operation(operation, by),
        other => panic!("{other:?}"),
    }
}

fn done(rig: &mut Rig) {
    rig.unit.set_operation_done();
    rig.unit.end_operation();
}

#[test]
fn overwrite_follows_its_parameter_list() {
    let mut rig = Rig::thin();
    for (flags, immediate, unrestricted_exit) in
        [(0, false, false), (IMMED, true, false), (AUSE, false, true), (IMMED | AUSE, true, true)]
    {
        for (method, passes, invert) in [(0x01, 1, false), (0x1f, 31, false), (0x82, 2, true)] {
            let list = list(method, &[0xaa, 0x55, 1]);
            let work = OperationWork::Overwrite { pattern: vec![0xaa, 0x55, 1], passes, invert };
            let kind = OperationKind::SANITIZE;
            let operation = LongOperation { kind, unrestricted_exit, work };
            let planned = rig.send(&cdb(flags | OVERWRITE, 7), &list);
            assert_eq!(planned, Ok(Plan::LongOperation { operation, by: A, immediate }));
        }
    }
    assert_eq!(rig.unit.operation(), None, "a plan begins nothing");
}

#[test]
fn invalid_overwrite_lists_are_refused() {
    let mut rig = Rig::thin();
    for bytes in [0, 1, 2, 3, 4, 517, 0xffff] {
        let refused = rig.sense(&cdb(OVERWRITE, bytes));
        assert_eq!(refused, Sense::invalid_field_in_cdb(7, None), "{bytes}");
    }
    let mut refuse = |list: &[u8], byte, bit| {
        let refused = rig.send(&cdb(OVERWRITE, list.len() as u16), list);
        let sense = Sense::invalid_field_in_parameter_list(byte, bit);
        assert_eq!(refused, Err(sense.into()), "{list:x?}");
    };
    refuse(&list(0x00, &[1]), 0, Some(4));
    refuse(&list(0x80, &[1]), 0, Some(4));
    for test in [0x20, 0x40, 0x60] {
        refuse(&list(0x01 | test, &[1]), 0, Some(6));
    }
    refuse(&[1, 0, 0, 0, 9], 2, None);
    refuse(&[1, 0, 0, 2, 9], 2, None);
    refuse(&[1, 0, 0, 1, 9, 9], 2, None);
    refuse(&[&[1, 0, 2, 1][..], &[9; 512]].concat(), 2, None);
    let whole_block = list(1, &[9; 512]);
    assert!(rig.send(&cdb(OVERWRITE, 516), &whole_block).is_ok());
}

/// Goal: reserved fields and unsupported features are refused: ZNR, CRYPTOGRAPHIC ERASE.
#[test]
fn reserved_and_unsupported_fields_are_refused() {
    let mut rig = Rig::thin();
    for (action, bytes) in [(OVERWRITE, 5), (BLOCK_ERASE, 0), (EXIT_FAILURE_MODE, 0)] {
        let refused = rig.sense(&cdb(0x40 | action, bytes));
        assert_eq!(refused, Sense::invalid_field_in_cdb(1, Some(6)));
        for at in 2..7 {
            let mut cdb = cdb(action, bytes);
            cdb[at] = 1;
            assert_eq!(rig.sense(&cdb), Sense::invalid_field_in_cdb(at as u16, None));
        }
    }
    for action in [BLOCK_ERASE, EXIT_FAILURE_MODE] {
        assert_eq!(rig.sense(&cdb(action, 8)), Sense::invalid_field_in_cdb(7, None));
    }
    for action in (0..32).filter(|it| ![OVERWRITE, BLOCK_ERASE, EXIT_FAILURE_MODE].contains(it)) {
        assert_eq!(rig.sense(&cdb(action, 0)), Sense::invalid_field_in_cdb(1, Some(4)));
    }
    let thick = UnitOptions { unmap_granularity_blocks: None, ..options() };
    let mut rig = Rig::new(thick);
    let refused = rig.sense(&cdb(BLOCK_ERASE, 0));
    assert_eq!(refused, Sense::invalid_field_in_cdb(1, Some(4)), "nothing to deallocate");
}

/// Goal: during the operation, every command is refused except those that report about the unit,
/// and these report the progress. Method: the whole table.
#[test]
fn commands_during_an_operation_are_refused_with_progress() {
    let mut rig = Rig::removable();
    let plan = rig.plan(&cdb(BLOCK_ERASE, 0));
    begin(&mut rig, plan).unwrap();
    rig.unit.set_operation_progress(1, 4);
    let progress = Sense::SANITIZE_IN_PROGRESS.with_progress(0x4000);
    let mut allowed = Vec::new();
    let features = rig.unit.options().features();
    for command in COMMANDS.iter().filter(|command| command.is_offered(features)) {
        let mut cdb = vec![0; command.cdb_bytes()];
        command.write_codes(&mut cdb);
        match rig.run(B, &cdb) {
            Err(lunar_scsi::plan::Refusal::Check(sense)) if sense == progress => {}
            _ => allowed.push(command.name),
        }
    }
    allowed.sort_unstable();
    let expected = [
        "INQUIRY",
        "LOG SENSE",
        "REPORT LUNS",
        "REPORT SUPPORTED OPERATION CODES",
        "REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS",
        "REPORT TARGET PORT GROUPS",
        "REPORT TIMESTAMP",
        "REQUEST SENSE",
    ];
    assert_eq!(allowed, expected);
    for party in [SegmentRole::Source, SegmentRole::Destination] {
        let refused = rig.unit.check_copy(A, party);
        assert_eq!(refused, Err(progress.clone().into()), "of other units' commands too");
    }
    assert_eq!(Sense::decode(&rig.reply(&REQUEST_SENSE)), Some(progress.clone()));
    let descriptor = [0x03, 1, 0, 0, 252, 0];
    assert_eq!(Sense::decode(&rig.reply(&descriptor)), Some(progress));
    done(&mut rig);
    rig.reply(&READY);
    assert_eq!(rig.refusal(B, &READY), Sense::MEDIUM_MAY_HAVE_CHANGED);
    rig.plan(&blocks(0x28, 0, 0, 1));
}

/// Goal: a nexus that logs in during the operation is not informed of the end: the answers report
/// the operation, and it has seen no block before.
#[test]
fn a_nexus_during_the_operation_is_not_informed_of_its_end() {
    let mut rig = Rig::thin();
    let plan = rig.plan(&cdb(BLOCK_ERASE, 0));
    begin(&mut rig, plan).unwrap();
    let later = NexusId(3);
    rig.attach(later);
    assert_eq!(rig.refusal(later, &READY), Sense::POWER_ON_RESET);
    done(&mut rig);
    rig.run(later, &READY).unwrap();
    rig.reply(&READY);
}

/// Goal: a nexus that logged in before the beginning is informed of the end, also if the unit
/// attaches it afterwards.
#[test]
fn a_nexus_before_the_operation_is_informed_of_its_end() {
    let mut rig = Rig::thin();
    let login = |number| {
        let initiator = InitiatorPort { name: "iqn.late".into(), isid: [0, 0, 0, 0, 0, number] };
        NexusOptions::new(&initiator, &crate::unit::support::port())
    };
    let before = login(3);
    let plan = rig.plan(&cdb(BLOCK_ERASE, 0));
    begin(&mut rig, plan).unwrap();
    let meanwhile = login(4);
    done(&mut rig);
    rig.unit.attach_with(NexusId(3), before);
    rig.unit.attach_with(NexusId(4), meanwhile);
    for nexus in [NexusId(3), NexusId(4)] {
        assert_eq!(rig.refusal(nexus, &READY), Sense::POWER_ON_RESET);
    }
    assert_eq!(rig.refusal(NexusId(3), &READY), Sense::MEDIUM_MAY_HAVE_CHANGED);
    for nexus in [NexusId(3), NexusId(4)] {
        rig.run(nexus, &READY).unwrap();
    }
}

/// Goal: neither a reset nor the loss of the requesting nexus ends the operation.
#[test]
fn resets_do_not_end_the_operation() {
    let mut rig = Rig::thin();
    let plan = rig.plan(&cdb(BLOCK_ERASE, 0));
    begin(&mut rig, plan).unwrap();
    rig.unit.reset(Some(B));
    rig.unit.detach(A);
    assert_eq!(rig.refusal(B, &READY), Sense::SANITIZE_IN_PROGRESS.with_progress(0));
    assert!(rig.unit.operation().is_some());
}

/// Goal: only one of two operations begins. Method: the second one has been planned, or waits for
/// its parameter list, when the first begins.
#[test]
fn only_one_operation_runs_at_a_time() {
    let mut rig = Rig::thin();
    let Ok(Plan::Parameters { awaiting, .. }) = rig.run(B, &cdb(OVERWRITE, 5)) else { panic!() };
    let plan = rig.plan(&cdb(BLOCK_ERASE, 0));
    begin(&mut rig, plan.clone()).unwrap();
    let running = Sense::SANITIZE_IN_PROGRESS.with_progress(0);
    assert_eq!(begin(&mut rig, plan), Err(running.clone()));
    let port = crate::unit::support::port();
    let context = lunar_scsi::unit::Context::new(&[], &port);
    let resumed = rig.unit.resume(B, &context, awaiting, &list(1, &[1]));
    assert_eq!(resumed, Err(running.into()));
}

/// Goal: after a failure the blocks stay inaccessible until another SANITIZE succeeds, or EXIT
/// FAILURE MODE if AUSE permits it. SBC-3 §4.11.
#[test]
fn a_failure_ends_by_sanitize_or_exit_failure_mode() {
    for unrestricted in [false, true] {
        let mut rig = Rig::thin();
        let flags = BLOCK_ERASE | if unrestricted { AUSE } else { 0 };
        let plan = rig.plan(&cdb(flags, 0));
        begin(&mut rig, plan).unwrap();
        rig.unit.fail_operation();
        let failed = Sense::SANITIZE_COMMAND_FAILED;
        for command in [READY.to_vec(), blocks(0x28, 0, 0, 1), vec![0x04, 0, 0, 0, 0, 0]] {
            assert_eq!(rig.sense(&command), failed);
        }
        assert_eq!(Sense::decode(&rig.reply(&REQUEST_SENSE)), Some(failed));
        rig.reply(&[0x12, 0, 0, 0, 96, 0]);
        let exit = rig.run(A, &cdb(EXIT_FAILURE_MODE, 0));
        if unrestricted {
            assert_eq!(exit, Ok(Plan::ExitFailureMode));
            let failure = rig.unit.exit_failure_mode().unwrap();
            rig.unit.restore_failure(failure);
            assert_eq!(rig.sense(&READY), Sense::SANITIZE_COMMAND_FAILED, "not saved");
            rig.unit.exit_failure_mode().unwrap();
        } else {
            assert_eq!(exit, Err(Sense::invalid_field_in_cdb(1, Some(4)).into()));
            let refused = rig.sense(&cdb(BLOCK_ERASE | AUSE, 0));
            assert_eq!(
                refused,
                Sense::invalid_field_in_cdb(1, Some(5)),
                "AUSE is not added by another SANITIZE"
            );
            let refused = rig.sense(&cdb(OVERWRITE | AUSE, 5));
            assert_eq!(refused, Sense::invalid_field_in_cdb(1, Some(5)));
            let plan = rig.plan(&cdb(BLOCK_ERASE, 0));
            begin(&mut rig, plan).unwrap();
            done(&mut rig);
        }
        rig.plan(&blocks(0x28, 0, 0, 1));
        assert_eq!(rig.reply(&cdb(EXIT_FAILURE_MODE, 0)), [], "nothing to exit");
    }
}

/// Creates a unit with the state of that of `rig`, with one nexus.
fn restarted(rig: &Rig) -> Rig {
    let mut after = Rig::fresh(options());
    after.unit = BlockUnit::new(options());
    after.unit.keep_state();
    after.unit.restore(&rig.unit.persistent_state()).unwrap();
    after.attach(A);
    assert_eq!(after.sense(&READY), Sense::POWER_ON_RESET);
    after
}

/// Goal: an operation, its failure and its end survive the process.
#[test]
fn an_operation_survives_a_restart() {
    let mut rig = Rig::thin();
    let plan = rig.send(&cdb(OVERWRITE | AUSE, 6), &list(0x83, &[1, 2])).unwrap();
    begin(&mut rig, plan).unwrap();
    let operation = rig.unit.operation().cloned();
    let mut after = restarted(&rig);
    assert_eq!(after.unit.operation().cloned(), operation);
    assert_eq!(after.sense(&READY), Sense::SANITIZE_IN_PROGRESS.with_progress(0));
    after.unit.fail_operation();
    let mut after = restarted(&after);
    assert_eq!(after.sense(&READY), Sense::SANITIZE_COMMAND_FAILED);
    assert_eq!(after.plan(&cdb(EXIT_FAILURE_MODE, 0)), Plan::ExitFailureMode);
    after.unit.exit_failure_mode().unwrap();
    restarted(&after).reply(&READY);
    rig.unit.set_operation_done();
    assert_eq!(rig.sense(&READY), Sense::SANITIZE_IN_PROGRESS.with_progress(0));
    restarted(&rig).reply(&READY);
}

#[test]
fn an_operation_that_cannot_begin_changes_nothing() {
    let mut rig = Rig::removable();
    let plan = rig.plan(&cdb(BLOCK_ERASE, 0));
    rig.plan(&[0x1b, 0, 0, 0, 2, 0]);
    assert_eq!(begin(&mut rig, plan.clone()), Err(Sense::MEDIUM_NOT_PRESENT));
    rig.plan(&[0x1b, 0, 0, 0, 3, 0]);
    begin(&mut rig, plan).unwrap();
    rig.unit.withdraw_operation();
    rig.reply(&READY);
    assert_eq!(rig.run(B, &READY), Err(Sense::MEDIUM_MAY_HAVE_CHANGED.into()), "of the load");
    rig.run(B, &READY).unwrap();
    let protected = UnitOptions { read_only: true, ..options() };
    let mut rig = Rig::new(protected);
    for action in [OVERWRITE, BLOCK_ERASE] {
        assert_eq!(rig.sense(&cdb(action, 0)), Sense::WRITE_PROTECTED);
    }
    let by = NexusId(1);
    let operation = LongOperation {
        kind: OperationKind::SANITIZE,
        unrestricted_exit: false,
        work: OperationWork::Deallocate,
    };
    assert_eq!(rig.unit.begin_operation(operation, by), Err(Sense::WRITE_PROTECTED));
}
