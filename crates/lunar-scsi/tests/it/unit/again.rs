//! Tests of the second check of a command when its data has arrived: changes in between count, no
//! relevant change is missed, and the check itself reports and changes nothing.

use crate::unit::support::{A, B, Rig, blocks, options, port};
use lunar_scsi::commands::COMMANDS;
use lunar_scsi::long_operation::{LongOperation, OperationKind, OperationWork};
use lunar_scsi::plan::{LbaRange, NexusId, Plan, Refusal};
use lunar_scsi::rights::Rights;
use lunar_scsi::sense::Sense;
use lunar_scsi::unit::{AtomicBlocks, Context, UnitOptions};
use proptest::prelude::*;

const WRITE_EXCLUSIVE: u8 = 1;
const EXCLUSIVE_ACCESS: u8 = 3;

fn again(rig: &Rig, nexus: NexusId, cdb: &[u8], ranges: &[LbaRange]) -> Result<(), Refusal> {
    let port = port();
    rig.unit.check_again(nexus, &Context::new(&rig.luns, &port), cdb, ranges)
}

fn out_cdb(action: u8, kind: u8) -> [u8; 10] {
    [0x5f, action, kind, 0, 0, 0, 0, 0, 24, 0]
}

fn out_list(keys: [u64; 2]) -> Vec<u8> {
    let mut list = [keys[0].to_be_bytes(), keys[1].to_be_bytes()].concat();
    list.resize(24, 0);
    list
}

fn out(rig: &mut Rig, nexus: NexusId, action: u8, kind: u8, keys: [u64; 2]) {
    let done = rig.send_from(nexus, &out_cdb(action, kind), &out_list(keys));
    assert_eq!(done, Ok(Plan::Reply(vec![])));
}

/// Builds the control page with this SWP.
fn control_list(swp: bool) -> [u8; 16] {
    [0, 0, 0, 0, 10, 10, 0x22, 0x10, if swp { 8 } else { 0 }, 0, 0, 0, 0, 0, 0, 0]
}

fn sanitize() -> LongOperation {
    let kind = OperationKind::SANITIZE;
    LongOperation { kind, unrestricted_exit: false, work: OperationWork::Zero }
}

/// An event between a command of `A` and its data.
type Event = fn(&mut Rig);

/// Goal: each event between a write and its data has its own effect, and the revision shows it; a
/// unit attention established meanwhile waits for the next command.
#[test]
fn events_before_the_data_take_effect() {
    let conflict = Refusal::ReservationConflict;
    let gone = Sense::LBA_OUT_OF_RANGE.with_information(8);
    let cases: [(Event, Option<Refusal>); 8] = [
        (|rig| out(rig, B, 4, WRITE_EXCLUSIVE, [0xb, 0xa]), Some(conflict.clone())),
        (|rig| rig.unit.resize(8), Some(gone.into())),
        (
            |rig| {
                let select = [0x15, 0x10, 0, 0, 16, 0];
                rig.send_from(B, &select, &control_list(true)).unwrap();
            },
            Some(Sense::LOGICAL_UNIT_SOFTWARE_WRITE_PROTECTED.into()),
        ),
        (
            |rig| rig.unit.begin_operation(sanitize(), B).unwrap(),
            Some(Sense::SANITIZE_IN_PROGRESS.with_progress(0).into()),
        ),
        (
            |rig| drop(rig.run(B, &[0x1b, 0, 0, 0, 0x02, 0]).unwrap()),
            Some(Sense::MEDIUM_NOT_PRESENT.into()),
        ),
        (|rig| rig.unit.detach(A), Some(Sense::INTERNAL_TARGET_FAILURE.into())),
        (|rig| rig.unit.resize(1 << 30), None),
        (|_| {}, None),
    ];
    for (number, (between, refusal)) in cases.into_iter().enumerate() {
        let mut rig = Rig::removable();
        out(&mut rig, A, 0, 0, [0, 0xa]);
        out(&mut rig, A, 1, WRITE_EXCLUSIVE, [0xa, 0]);
        out(&mut rig, B, 0, 0, [0, 0xb]);
        let cdb = blocks(0x2a, 0, 8, 8);
        if number > 0 {
            // Otherwise B may change nothing.
            out(&mut rig, A, 2, WRITE_EXCLUSIVE, [0xa, 0]);
        }
        let plan = rig.plan(&cdb);
        let before = rig.unit.revision();
        assert_eq!(again(&rig, A, &cdb, plan.ranges()), Ok(()));
        between(&mut rig);
        assert_eq!(again(&rig, A, &cdb, plan.ranges()).err(), refusal, "case {number}");
        assert!(refusal.is_none() || rig.unit.revision() != before, "case {number}");
        let waits = rig.unit.pending_event(A);
        let _ = again(&rig, A, &cdb, plan.ranges());
        assert_eq!(rig.unit.pending_event(A), waits);
    }
}

/// Goal: a command whose parameter list arrives late is checked again like one that writes blocks.
/// Method: every command with a parameter list, and a reservation between CDB and list.
#[test]
fn a_late_parameter_list_is_checked_against_reservations() {
    let commands: [(&[u8], usize); 7] = [
        (&[0x15, 0x10, 0, 0, 16, 0], 16),
        (&[0x55, 0x10, 0, 0, 0, 0, 0, 0, 20, 0], 20),
        (&[0x42, 0, 0, 0, 0, 0, 0, 0, 24, 0], 24),
        (&[0x3b, 2, 0, 0, 0, 0, 0, 0, 4, 0], 4),
        (&[0x48, 1, 0, 0, 0, 0, 0, 0, 5, 0], 5),
        (&[0xa4, 0x0a, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0], 8),
        (&[0x83, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 16, 0, 0], 16),
    ];
    for (cdb, bytes) in commands {
        let mut rig = Rig::thin();
        let Plan::Parameters { awaiting, .. } = rig.plan(cdb) else { panic!("{cdb:02x?}") };
        out(&mut rig, B, 0, 0, [0, 0xb]);
        out(&mut rig, B, 1, EXCLUSIVE_ACCESS, [0xb, 0]);
        let port = port();
        let context = Context::new(&rig.luns, &port);
        let resumed = rig.unit.resume(A, &context, awaiting, &vec![0; bytes]);
        assert_eq!(resumed, Err(Refusal::ReservationConflict), "{cdb:02x?}");
    }
}

/// One event at the unit.
#[derive(Clone, Debug)]
enum Step {
    Send(NexusId, Vec<u8>, Vec<u8>),
    Resize(u64),
    Reset,
    NexusLoss(NexusId),
    Leave(NexusId),
    Come(NexusId),
    Rights(NexusId, bool),
    Begin,
    End(bool),
    RollBack,
}

fn steps() -> impl Strategy<Value = Step> {
    let nexus = || prop_oneof![Just(A), Just(B)];
    let key = || prop_oneof![Just(0_u64), Just(0xa), Just(0xb)];
    let out = (nexus(), 0..8_u8, prop::sample::select(vec![1_u8, 3, 5, 6, 7, 8]), [key(), key()])
        .prop_map(|(nexus, action, kind, keys)| {
            Step::Send(nexus, out_cdb(action, kind).to_vec(), out_list(keys))
        });
    let plain = prop::sample::select(vec![
        [0x16, 0, 0, 0, 0, 0],
        [0x17, 0, 0, 0, 0, 0],
        [0x1b, 0, 0, 0, 0x02, 0],
        [0x1b, 0, 0, 0, 0x03, 0],
        [0x1b, 0, 0, 0, 0, 0],
        [0x1b, 0, 0, 0, 1, 0],
        [0x1e, 0, 0, 0, 1, 0],
        [0x1e, 0, 0, 0, 0, 0],
    ]);
    let plain = (nexus(), plain).prop_map(|(nexus, cdb)| Step::Send(nexus, cdb.into(), vec![]));
    let select = (nexus(), any::<bool>()).prop_map(|(nexus, swp)| {
        Step::Send(nexus, vec![0x15, 0x10, 0, 0, 16, 0], control_list(swp).into())
    });
    let groups = (nexus(), 0..4_u8).prop_map(|(nexus, state)| {
        let list = vec![0, 0, 0, 0, state, 0, 0, 1];
        Step::Send(nexus, vec![0xa4, 0x0a, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0], list)
    });
    prop_oneof![
        8 => out,
        6 => plain,
        3 => select,
        2 => groups,
        1 => (1..100_u64).prop_map(Step::Resize),
        1 => Just(Step::Reset),
        1 => nexus().prop_map(Step::NexusLoss),
        1 => nexus().prop_map(Step::Leave),
        2 => nexus().prop_map(Step::Come),
        1 => (nexus(), any::<bool>()).prop_map(|(nexus, may)| Step::Rights(nexus, may)),
        1 => Just(Step::Begin),
        1 => any::<bool>().prop_map(Step::End),
        1 => Just(Step::RollBack),
    ]
}

fn take(rig: &mut Rig, step: Step) {
    match step {
        Step::Send(nexus, cdb, list) => {
            if let Ok(Plan::Parameters { awaiting, .. }) = rig.run(nexus, &cdb) {
                let port = port();
                let context = Context::new(&rig.luns, &port);
                let _ = rig.unit.resume(nexus, &context, awaiting, &list);
            }
        }
        Step::Resize(blocks) => rig.unit.resize(blocks),
        Step::Reset => rig.unit.reset(None),
        Step::NexusLoss(nexus) => rig.unit.nexus_loss(nexus),
        Step::Leave(nexus) => rig.unit.detach(nexus),
        Step::Come(nexus) => rig.attach(nexus),
        Step::Rights(nexus, administers_unit) => {
            rig.unit.set_rights(nexus, Rights { administers_unit, ..Rights::default() });
        }
        Step::Begin => drop(rig.unit.begin_operation(sanitize(), A)),
        Step::End(well) if rig.unit.operation().is_some() => match well {
            true => {
                rig.unit.set_operation_done();
                rig.unit.end_operation();
            }
            false => rig.unit.fail_operation(),
        },
        Step::End(_) => {}
        Step::RollBack => rig.unit.roll_back(),
    }
}

/// Returns the results of all existing commands now, sent by either nexus.
fn verdicts(rig: &Rig) -> Vec<Result<(), Refusal>> {
    let range = LbaRange { lba: 50, count: 1 };
    let mut verdicts = Vec::new();
    for command in COMMANDS {
        let mut cdb = vec![0; command.cdb_bytes()];
        command.write_codes(&mut cdb);
        for nexus in [A, B] {
            verdicts.push(again(rig, nexus, &cdb, &[range]));
        }
    }
    verdicts
}

proptest! {
    /// Goal: while the revision is unchanged, all results are unchanged, so that a target need not
    /// check again.
    /// Method: sequences of all events that may change a result, for all commands and two nexuses.
    #[test]
    fn changed_results_change_the_revision(steps in prop::collection::vec(steps(), 1..40)) {
        let mut rig = Rig::with_everything();
        let mut known = (rig.unit.revision(), verdicts(&rig));
        for step in steps {
            take(&mut rig, step.clone());
            let now = (rig.unit.revision(), verdicts(&rig));
            prop_assert!(now.0 != known.0 || now.1 == known.1, "{step:?}");
            known = now;
        }
    }

    /// Goal: the second check has the same result as the first, except for unit attentions and the
    /// command's fields: no plan is made for a command that would be refused, and a conflict in the
    /// second check is one in the first.
    #[test]
    fn both_checks_have_the_same_result(
        steps in prop::collection::vec(steps(), 0..30), index in 0..COMMANDS.len(),
    ) {
        let atomic = Some(AtomicBlocks { unit_blocks: 8, blocks_max: 64 });
        let mut rig = Rig::new(UnitOptions { removable: true, atomic, ..options() });
        steps.into_iter().for_each(|step| take(&mut rig, step));
        let command = &COMMANDS[index];
        let mut cdb = vec![0; command.cdb_bytes()];
        command.write_codes(&mut cdb);
        while rig.unit.pending_event(A).is_some() {
            let _ = rig.run(A, &[0; 6]);
        }
        let checked = again(&rig, A, &cdb, &[]);
        match rig.run(A, &cdb) {
            Ok(_) => prop_assert_eq!(checked, Ok(())),
            Err(refusal) if checked.is_err() => prop_assert_eq!(Err(refusal), checked),
            Err(_) => {}
        }
    }
}
