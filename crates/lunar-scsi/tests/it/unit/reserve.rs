//! Conflicts of commands with reservations.

use crate::unit::support::{A, B, Rig, blocks, options};
use lunar_scsi::plan::{NexusId, Plan, Refusal};
use lunar_scsi::sense::Sense;
use lunar_scsi::unit::UnitOptions;

const RESERVE: [u8; 6] = [0x16, 0, 0, 0, 0, 0];
const RELEASE: [u8; 6] = [0x17, 0, 0, 0, 0, 0];
const READY: [u8; 6] = [0; 6];
const CONFLICT: Result<Plan, Refusal> = Err(Refusal::ReservationConflict);

fn out(rig: &mut Rig, nexus: NexusId, action: u8, kind: u8, keys: [u64; 2]) -> Plan {
    let cdb = [0x5f, action, kind, 0, 0, 0, 0, 0, 24, 0];
    let mut list = [keys[0].to_be_bytes(), keys[1].to_be_bytes()].concat();
    list.resize(24, 0);
    rig.send_from(nexus, &cdb, &list).unwrap()
}

/// CDBs by class: always allowed, allowed under persistent reservations, reads, writes.
fn classes() -> [Vec<Vec<u8>>; 4] {
    let free = vec![vec![0x12, 0, 0, 0, 96, 0], vec![0x03, 0, 0, 0, 18, 0], vec![0x1e; 1]];
    let mut free = free;
    free[2] = vec![0x1e, 0, 0, 0, 0, 0];
    free.push(vec![0xa0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0]);
    let persistent = vec![
        READY.to_vec(),
        blocks(0x25, 0, 0, 0),
        blocks(0x9e, 0x10, 0, 32),
        vec![0x1b, 0, 0, 0, 1, 0],
    ];
    let reads = [0x08, 0x28, 0xa8, 0x88, 0x2f, 0xaf, 0x8f, 0x34, 0x90];
    let mut reads: Vec<_> = reads.iter().map(|opcode| blocks(*opcode, 0, 0, 1)).collect();
    reads.push(blocks(0x9e, 0x12, 0, 24));
    reads.push(vec![0x1a, 0, 0x3f, 0, 255, 0]);
    reads.push(vec![0xa3, 0x0c, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0]);
    let writes = [0x0a, 0x2a, 0xaa, 0x8a, 0x2e, 0xae, 0x8e, 0x41, 0x93, 0x89, 0x8b, 0x35, 0x91];
    let mut writes: Vec<_> = writes.iter().map(|opcode| blocks(*opcode, 0, 0, 1)).collect();
    writes.push(vec![0x42, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    writes.push(vec![0x15, 0x10, 0, 0, 0, 0]);
    writes.push(vec![0x1e, 0, 0, 0, 1, 0]);
    writes.push(vec![0x1b, 0, 0, 0, 0x10, 0]);
    [free, persistent, reads, writes]
}

fn check(rig: &mut Rig, nexus: NexusId, allowed: [bool; 4], what: &str) {
    for (class, allowed) in classes().iter().zip(allowed) {
        for cdb in class {
            let result = rig.run(nexus, cdb);
            let conflicts = result == CONFLICT;
            assert_eq!(conflicts, !allowed, "{what}: {cdb:02x?} gave {result:?}");
            assert!(conflicts || result.is_ok(), "{what}: {cdb:02x?} gave {result:?}");
        }
    }
}

/// Goal: conflicts match the table of SPC-4 and SBC-3. Method: every type, an unregistered nexus
/// and a registrant.
#[test]
fn access_under_persistent_reservations() {
    for kind in [1, 3, 5, 6, 7, 8] {
        let mut rig = Rig::removable();
        out(&mut rig, A, 0, 0, [0, 0xa]);
        out(&mut rig, A, 1, kind, [0xa, 0]);
        check(&mut rig, A, [true; 4], "the holder");
        let reads = matches!(kind, 1 | 5 | 7);
        check(&mut rig, B, [true, true, reads, false], "a stranger");
        out(&mut rig, B, 0, 0, [0, 0xb]);
        let all = kind >= 5;
        check(&mut rig, B, [true, true, reads || all, all], "a registrant");
    }
}

#[test]
fn reserve_6_excludes_other_initiators() {
    let mut rig = Rig::removable();
    rig.reply(&RESERVE);
    rig.reply(&RESERVE);
    check(&mut rig, A, [true; 4], "the owner");
    check(&mut rig, B, [true, false, false, false], "another");
    assert_eq!(rig.run(B, &RESERVE), CONFLICT);
    rig.run(B, &RELEASE).expect("no effect, no error");
    assert_eq!(rig.run(B, &READY), CONFLICT);
    for action in 0..4 {
        assert_eq!(rig.run(B, &[0x5e, action, 0, 0, 0, 0, 0, 0, 24, 0]), CONFLICT);
    }
    rig.reply(&RELEASE);
    rig.run(B, &READY).unwrap();
}

/// Goal: logout and resets end RESERVE (6), with a unit attention only for the reset.
#[test]
fn reserve_six_ends_with_its_nexus_and_with_resets() {
    let mut rig = Rig::thin();
    rig.reply(&RESERVE);
    rig.unit.detach(A);
    rig.run(B, &READY).unwrap();
    rig.attach(A);
    assert_eq!(rig.sense(&READY), Sense::POWER_ON_RESET);
    rig.reply(&RESERVE);
    rig.unit.reset(Some(A));
    assert_eq!(rig.refusal(B, &READY), Sense::RESET_BY_FUNCTION);
    rig.run(B, &READY).unwrap();
}

#[test]
fn reserve_6_reserves_the_whole_unit() {
    let mut rig = Rig::thin();
    let sense = rig.sense(&[0x16, 0x01, 0, 0, 0, 0]);
    assert_eq!(sense, Sense::invalid_field_in_cdb(1, Some(0)));
    let sense = rig.sense(&[0x17, 0x10, 0, 0, 0, 0]);
    assert_eq!(sense, Sense::invalid_field_in_cdb(1, Some(4)));
}

#[test]
fn preempt_and_abort_names_the_victims() {
    let mut rig = Rig::thin();
    out(&mut rig, A, 0, 0, [0, 0xa]);
    out(&mut rig, B, 0, 0, [0, 0xb]);
    out(&mut rig, B, 1, 1, [0xb, 0]);
    assert_eq!(rig.run(A, &blocks(0x2a, 0, 0, 1)), CONFLICT);
    let plan = out(&mut rig, A, 5, 1, [0xa, 0xb]);
    assert_eq!(plan, Plan::AbortTasksOf { nexuses: vec![B], save: false });
    rig.plan(&blocks(0x2a, 0, 0, 1));
    assert_eq!(rig.refusal(B, &READY), Sense::REGISTRATIONS_PREEMPTED);
    assert_eq!(rig.run(B, &blocks(0x2a, 0, 0, 1)), CONFLICT);
}

#[test]
fn persistent_reserve_in_is_cut_to_the_allocation_length() {
    let mut rig = Rig::thin();
    out(&mut rig, A, 0, 0, [0, 0xa]);
    let keys = [0, 0, 0, 1, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0xa];
    for allocation in 0..20 {
        let reply = rig.reply(&[0x5e, 0, 0, 0, 0, 0, 0, 0, allocation, 0]);
        assert_eq!(reply, keys[..usize::from(allocation).min(16)]);
    }
}

/// Goal: APTPL survives a restart, and is refused if state is not kept. Method: save, create
/// another unit from it.
#[test]
fn reservations_survive_where_state_is_kept() {
    let register = |rig: &mut Rig| {
        let mut list = [0; 24];
        list[15] = 0xa;
        list[20] = 1;
        rig.send(&[0x5f, 0, 0, 0, 0, 0, 0, 0, 24, 0], &list)
    };
    let refused = Sense::invalid_field_in_parameter_list(20, Some(0));
    assert_eq!(register(&mut Rig::thin()), Err(refused.into()));

    let kept = || {
        let mut rig = Rig::fresh(UnitOptions { removable: true, ..options() });
        rig.unit.keep_state();
        rig
    };
    let mut rig = kept();
    rig.attach(A);
    rig.sense(&READY);
    assert_eq!(register(&mut rig), Ok(Plan::SaveState));
    assert_eq!(out(&mut rig, A, 1, 3, [0xa, 0]), Plan::SaveState);
    let state = rig.unit.persistent_state();

    let mut after = kept();
    after.unit.restore(&state).unwrap();
    for nexus in [A, B] {
        after.attach(nexus);
        assert_eq!(after.refusal(nexus, &READY), Sense::POWER_ON_RESET);
    }
    check(&mut after, A, [true; 4], "the holder, back again");
    check(&mut after, B, [true, true, false, false], "a stranger");
    assert_eq!(after.unit.persistent_state(), state);
}

/// Goal: of many nexuses exactly those whose registrations are preempted are informed and have
/// their tasks aborted, however the two kinds alternate.
#[test]
fn preempt_and_abort_of_many_nexuses() {
    const VICTIM: u64 = 0xb;
    let mut rig = Rig::thin();
    let initiators: Vec<_> = (100..200).map(NexusId).collect();
    for (index, nexus) in initiators.iter().enumerate() {
        rig.attach(*nexus);
        assert_eq!(rig.refusal(*nexus, &READY), Sense::POWER_ON_RESET);
        let key = if index % 3 == 0 { VICTIM } else { 0xc };
        out(&mut rig, *nexus, 0, 0, [0, key]);
    }
    out(&mut rig, A, 0, 0, [0, 0xa]);
    let plan = out(&mut rig, A, 5, 1, [0xa, VICTIM]);
    let victims: Vec<_> = initiators.iter().step_by(3).copied().collect();
    assert_eq!(plan, Plan::AbortTasksOf { nexuses: victims.clone(), save: false });
    for nexus in initiators {
        if victims.contains(&nexus) {
            assert_eq!(rig.refusal(nexus, &READY), Sense::REGISTRATIONS_PREEMPTED);
        }
        rig.run(nexus, &READY).unwrap();
    }
}

/// Goal: if the limit of all units is reached, a registration is refused and nothing changes;
/// registered nexuses may continue.
#[test]
fn registrations_of_all_units_share_a_limit() {
    let register = |rig: &mut Rig, nexus, keys: [u64; 2]| {
        let cdb = [0x5f, 0, 0, 0, 0, 0, 0, 0, 24, 0];
        let mut list = [keys[0].to_be_bytes(), keys[1].to_be_bytes()].concat();
        list.resize(24, 0);
        rig.send_from(nexus, &cdb, &list)
    };
    let mut rig = Rig::new(options());
    rig.unit.set_registrations_allowed(1);
    assert!(register(&mut rig, A, [0, 7]).is_ok());
    rig.unit.set_registrations_allowed(0);
    let refused = register(&mut rig, B, [0, 8]);
    assert_eq!(refused, Err(Sense::INSUFFICIENT_REGISTRATION_RESOURCES.into()));
    assert_eq!(rig.unit.registration_origins().count(), 1);
    assert!(register(&mut rig, A, [7, 9]).is_ok(), "another key");
    assert!(register(&mut rig, A, [9, 0]).is_ok(), "and none");
    assert_eq!(rig.unit.registration_origins().count(), 0);
}
