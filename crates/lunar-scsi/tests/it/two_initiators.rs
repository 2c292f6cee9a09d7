//! Two initiators at one unit, CDB by CDB: reservations, unit attentions, and mode parameters, in
//! the order of conformance suites.

use lunar_scsi::plan::{NexusId, Plan, Refusal};
use lunar_scsi::sense::{Sense, SenseKey};
use lunar_scsi::unit::{BlockUnit, Context, InitiatorPort, TargetPort, UnitOptions};

const ONE: u8 = 1;
const TWO: u8 = 2;
const KEY_ONE: u64 = 0x1111_0000_1111;
const KEY_TWO: u64 = 0x2222_0000_2222;

const TEST_UNIT_READY: [u8; 6] = [0; 6];
const RESERVE_6: [u8; 6] = [0x16, 0, 0, 0, 0, 0];
const RELEASE_6: [u8; 6] = [0x17, 0, 0, 0, 0, 0];
const READ_10: [u8; 10] = [0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0];
const WRITE_10: [u8; 10] = [0x2a, 0, 0, 0, 0, 0, 0, 0, 1, 0];

const REGISTER: u8 = 0;
const RESERVE: u8 = 1;
const RELEASE: u8 = 2;
const CLEAR: u8 = 3;
const PREEMPT: u8 = 4;
const PREEMPT_AND_ABORT: u8 = 5;
const REGISTER_AND_IGNORE: u8 = 6;
const READ_KEYS: u8 = 0;
const READ_RESERVATION: u8 = 1;

/// Type, name, and whether an unregistered nexus reads, a registrant reads, a registrant writes.
const TYPES: [(u8, &str, bool, bool, bool); 6] = [
    (1, "write exclusive", true, true, false),
    (3, "exclusive access", false, false, false),
    (5, "write exclusive, registrants only", true, true, true),
    (6, "exclusive access, registrants only", false, true, true),
    (7, "write exclusive, all registrants", true, true, true),
    (8, "exclusive access, all registrants", false, true, true),
];

fn port() -> TargetPort {
    TargetPort { name: "iqn.2026-11.org.lunarsan:a".into(), portal_group_tag: 1, relative_id: 1 }
}

fn initiator(number: u8) -> InitiatorPort {
    InitiatorPort {
        name: format!("iqn.2026-11.org.example:{number}"),
        isid: [0x80, 0, 0, 0, 0, number],
    }
}

/// A unit with both initiators logged in; both have received the power-on.
struct Rig {
    unit: BlockUnit,
    logins: u64,
    nexuses: [NexusId; 3],
}

type Answer = Result<Vec<u8>, Refusal>;

const GOOD: Answer = Ok(Vec::new());
const CONFLICT: Answer = Err(Refusal::ReservationConflict);

impl Rig {
    fn new() -> Self {
        Self::with(&[])
    }

    fn with(state: &[u8]) -> Self {
        let mut unit = BlockUnit::new(UnitOptions {
            uuid: [7; 16],
            product: "DISK".into(),
            block_bytes: 512,
            block_count: 2048,
            physical_block_bytes: 4096,
            transfer_blocks_max: 2048,
            optimal_transfer_blocks: 128,
            unmap_granularity_blocks: Some(8),
            ..UnitOptions::default()
        });
        unit.keep_state();
        if !state.is_empty() {
            unit.restore(state).unwrap();
        }
        let mut rig = Self { unit, logins: 0, nexuses: [NexusId(0); 3] };
        rig.log_in(ONE);
        rig.log_in(TWO);
        rig
    }

    fn log_in(&mut self, number: u8) {
        self.logins += 1;
        let nexus = NexusId(self.logins);
        self.nexuses[usize::from(number)] = nexus;
        self.unit.attach(nexus, initiator(number), port());
        while self.attention(number).is_some() {}
    }

    fn log_out(&mut self, number: u8) {
        self.unit.detach(self.nexuses[usize::from(number)]);
    }

    /// Runs a command to its end; `data` is its parameter list.
    fn run(&mut self, number: u8, cdb: &[u8], data: &[u8]) -> Answer {
        let nexus = self.nexuses[usize::from(number)];
        let port = port();
        let context = Context::new(&[], &port);
        let plan = match self.unit.plan(nexus, &context, cdb)? {
            Plan::Parameters { bytes, awaiting } => {
                assert_eq!(bytes as usize, data.len());
                self.unit.resume(nexus, &context, awaiting, data)?
            }
            plan => plan,
        };
        match plan {
            Plan::Reply(data) => Ok(data),
            _ => GOOD,
        }
    }

    /// The unit attention that TEST UNIT READY reports, if any.
    fn attention(&mut self, number: u8) -> Option<u16> {
        match self.run(number, &TEST_UNIT_READY, &[]) {
            Err(Refusal::Check(sense)) if sense.key == SenseKey::UNIT_ATTENTION => Some(sense.code),
            _ => None,
        }
    }

    fn persistent_out(&mut self, number: u8, action: u8, kind: u8, keys: (u64, u64)) -> Answer {
        self.persistent_out_with(number, action, kind, keys, 0)
    }

    fn persistent_out_with(
        &mut self,
        number: u8,
        action: u8,
        kind: u8,
        (key, action_key): (u64, u64),
        flags: u8,
    ) -> Answer {
        let mut list = key.to_be_bytes().to_vec();
        list.extend_from_slice(&action_key.to_be_bytes());
        list.extend_from_slice(&[0, 0, 0, 0, flags, 0, 0, 0]);
        self.run(number, &[0x5f, action, kind, 0, 0, 0, 0, 0, 24, 0], &list)
    }

    fn persistent_in(&mut self, number: u8, action: u8) -> Answer {
        self.run(number, &[0x5e, action, 0, 0, 0, 0, 0, 0x10, 0, 0], &[])
    }

    fn register(&mut self, number: u8, key: u64) {
        assert_eq!(self.persistent_out(number, REGISTER_AND_IGNORE, 0, (0, key)), GOOD);
    }

    fn keys(&mut self, number: u8) -> Vec<u64> {
        let data = self.persistent_in(number, READ_KEYS).unwrap();
        data[8..].chunks(8).map(|key| u64::from_be_bytes(key.try_into().unwrap())).collect()
    }

    /// Key and type of the reservation.
    fn reservation(&mut self, number: u8) -> Option<(u64, u8)> {
        let data = self.persistent_in(number, READ_RESERVATION).unwrap();
        let held = data.get(8..24)?;
        Some((u64::from_be_bytes(held[..8].try_into().unwrap()), held[13]))
    }

    fn may(&mut self, number: u8, cdb: &[u8]) -> bool {
        match self.run(number, cdb, &[]) {
            Ok(_) => true,
            Err(refusal) => {
                assert_eq!(refusal, Refusal::ReservationConflict);
                false
            }
        }
    }
}

/// Goal: RESERVE (6) excludes the other nexus, and RELEASE (6) of another has no effect.
#[test]
fn reserve_6_and_two_initiators() {
    let mut rig = Rig::new();
    assert_eq!(rig.run(ONE, &RESERVE_6, &[]), GOOD);
    assert_eq!(rig.run(ONE, &RESERVE_6, &[]), GOOD);
    assert_eq!(rig.run(TWO, &RESERVE_6, &[]), CONFLICT);
    assert_eq!(rig.run(TWO, &RELEASE_6, &[]), GOOD);
    assert_eq!(rig.run(TWO, &RESERVE_6, &[]), CONFLICT);
    assert_eq!(rig.run(TWO, &TEST_UNIT_READY, &[]), CONFLICT);
    assert_eq!(rig.run(ONE, &TEST_UNIT_READY, &[]), GOOD);
    assert_eq!(rig.run(ONE, &RELEASE_6, &[]), GOOD);
    assert_eq!(rig.run(TWO, &RESERVE_6, &[]), GOOD);
    assert_eq!(rig.attention(ONE), None, "no nexus is informed");
}

/// Goal: a logout, a lost nexus and a reset end RESERVE (6).
#[test]
fn reserve_6_ends_with_its_nexus() {
    let mut rig = Rig::new();
    assert_eq!(rig.run(ONE, &RESERVE_6, &[]), GOOD);
    rig.log_out(ONE);
    assert_eq!(rig.run(TWO, &RESERVE_6, &[]), GOOD);
    rig.log_in(ONE);
    assert_eq!(rig.run(ONE, &RESERVE_6, &[]), CONFLICT);
    rig.unit.reset(None);
    assert_eq!(rig.attention(ONE), Some(0x2903));
    assert_eq!(rig.attention(ONE), None);
    assert_eq!(rig.run(ONE, &RESERVE_6, &[]), GOOD);
}

/// Goal: access under each type is correct. Method: the holder, an unregistered nexus, and the same
/// nexus after its registration.
#[test]
fn access_by_type() {
    for (kind, name, stranger_reads, registrant_reads, registrant_writes) in TYPES {
        let mut rig = Rig::new();
        rig.register(ONE, KEY_ONE);
        assert_eq!(rig.persistent_out(ONE, RESERVE, kind, (KEY_ONE, 0)), GOOD);
        assert!(rig.may(ONE, &READ_10) && rig.may(ONE, &WRITE_10), "{name}");
        assert_eq!(rig.may(TWO, &READ_10), stranger_reads, "{name}");
        assert!(!rig.may(TWO, &WRITE_10), "{name}");
        rig.register(TWO, KEY_TWO);
        assert_eq!(rig.may(TWO, &READ_10), registrant_reads, "{name}");
        assert_eq!(rig.may(TWO, &WRITE_10), registrant_writes, "{name}");
        assert_eq!(rig.persistent_out(ONE, RELEASE, kind, (KEY_ONE, 0)), GOOD);
        let expected = (kind >= 5).then_some(0x2a04);
        assert_eq!(rig.attention(TWO), expected, "{name}");
        assert!(rig.may(TWO, &WRITE_10), "{name}");
        assert_eq!(rig.attention(ONE), None, "{name}");
    }
}

/// Goal: unregistering the holder has the right effect on the reservation, and informs the right
/// nexuses.
#[test]
fn ownership_by_type() {
    for (kind, name, ..) in TYPES {
        let mut rig = Rig::new();
        rig.register(ONE, KEY_ONE);
        rig.register(TWO, KEY_TWO);
        assert_eq!(rig.persistent_out(ONE, RESERVE, kind, (KEY_ONE, 0)), GOOD);
        let all = kind >= 7;
        let shown = if all { 0 } else { KEY_ONE };
        assert_eq!(rig.reservation(TWO), Some((shown, kind)), "{name}");
        assert_eq!(rig.persistent_out(ONE, REGISTER, 0, (KEY_ONE, 0)), GOOD);
        let expected = matches!(kind, 5 | 6).then_some(0x2a04);
        assert_eq!(rig.attention(TWO), expected, "{name}");
        assert_eq!(rig.attention(TWO), None, "{name}");
        assert_eq!(rig.reservation(ONE), all.then_some((0, kind)), "{name}");
        assert_eq!(rig.persistent_out(TWO, REGISTER, 0, (KEY_TWO, 0)), GOOD);
        assert_eq!(rig.reservation(TWO), None, "{name}");
        assert_eq!(rig.attention(ONE), None, "{name}: not registered any more");
    }
}

#[test]
fn registering_twice_and_reading_keys() {
    let mut rig = Rig::new();
    assert_eq!(rig.keys(ONE), []);
    assert_eq!(rig.persistent_out(ONE, REGISTER, 0, (0, KEY_ONE)), GOOD);
    assert_eq!(rig.keys(TWO), [KEY_ONE]);
    assert_eq!(rig.persistent_out(ONE, REGISTER, 0, (0, KEY_TWO)), CONFLICT);
    assert_eq!(rig.persistent_out(ONE, REGISTER, 0, (KEY_ONE, 0)), GOOD);
    assert_eq!(rig.keys(TWO), []);
    let cut = rig.run(ONE, &[0x5e, READ_KEYS, 0, 0, 0, 0, 0, 0, 4, 0], &[]);
    assert_eq!(cut, Ok(vec![0, 0, 0, 2]), "PRGENERATION alone");
}

#[test]
fn clearing_and_preempting() {
    let mut rig = Rig::new();
    rig.register(ONE, KEY_ONE);
    rig.register(TWO, KEY_TWO);
    assert_eq!(rig.persistent_out(ONE, RESERVE, 1, (KEY_ONE, 0)), GOOD);
    assert_eq!(rig.persistent_out(TWO, PREEMPT, 3, (KEY_TWO, KEY_ONE)), GOOD);
    assert_eq!(rig.keys(TWO), [KEY_TWO]);
    assert_eq!(rig.reservation(TWO), Some((KEY_TWO, 3)));
    assert_eq!(rig.attention(ONE), Some(0x2a05));
    assert_eq!(rig.attention(ONE), None);
    rig.register(ONE, KEY_ONE);
    assert_eq!(rig.persistent_out(ONE, CLEAR, 0, (KEY_ONE, 0)), GOOD);
    assert_eq!(rig.attention(TWO), Some(0x2a03));
    assert_eq!(rig.attention(ONE), None);
    assert_eq!((rig.keys(ONE), rig.reservation(ONE)), (vec![], None));
}

/// Goal: PREEMPT AND ABORT returns the nexuses whose tasks must be aborted, if they exist.
#[test]
fn preempt_and_abort_names_the_victims() {
    let list = |key: u64, victim: u64| {
        let mut list = key.to_be_bytes().to_vec();
        list.extend_from_slice(&victim.to_be_bytes());
        list.extend_from_slice(&[0; 8]);
        list
    };
    let cdb = [0x5f, PREEMPT_AND_ABORT, 1, 0, 0, 0, 0, 0, 24, 0];
    for is_there in [true, false] {
        let mut rig = Rig::new();
        rig.register(ONE, KEY_ONE);
        rig.register(TWO, KEY_TWO);
        if !is_there {
            rig.log_out(ONE);
        }
        let port = port();
        let context = Context::new(&[], &port);
        let two = rig.nexuses[2];
        let Ok(Plan::Parameters { awaiting, .. }) = rig.unit.plan(two, &context, &cdb) else {
            panic!("it wants its parameters");
        };
        let plan = rig.unit.resume(two, &context, awaiting, &list(KEY_TWO, KEY_ONE)).unwrap();
        if is_there {
            let nexuses = vec![rig.nexuses[1]];
            assert_eq!(plan, Plan::AbortTasksOf { nexuses, save: false });
        } else {
            assert_eq!(plan, Plan::Reply(Vec::new()));
        }
        assert_eq!(rig.keys(TWO), [KEY_TWO]);
    }
}

#[test]
fn service_actions_in_range() {
    let mut rig = Rig::new();
    for action in 0..32 {
        let answer = rig.persistent_in(ONE, action);
        if action < 4 {
            assert!(answer.is_ok(), "{action}");
        } else {
            let invalid = Sense::invalid_field_in_cdb(1, Some(4));
            assert_eq!(answer, Err(Refusal::Check(invalid)), "{action}");
        }
    }
}

/// Goal: a registration belongs to the nexus, not to the session; with APTPL it survives the
/// process.
#[test]
fn reservations_outlive_logout_and_process() {
    const APTPL: u8 = 1;
    let mut rig = Rig::new();
    let answer = rig.persistent_out_with(ONE, REGISTER, 0, (0, KEY_ONE), APTPL);
    assert_eq!(answer, GOOD);
    assert_eq!(rig.persistent_out(ONE, RESERVE, 3, (KEY_ONE, 0)), GOOD);
    rig.log_out(ONE);
    assert!(!rig.may(TWO, &READ_10));
    rig.log_in(ONE);
    assert!(rig.may(ONE, &WRITE_10));
    let mut restarted = Rig::with(&rig.unit.persistent_state());
    assert!(!restarted.may(TWO, &READ_10));
    assert!(restarted.may(ONE, &WRITE_10));
    assert_eq!(restarted.reservation(ONE), Some((KEY_ONE, 3)));
    restarted.register(ONE, KEY_ONE);
    let state = restarted.unit.persistent_state();
    assert_eq!(Rig::with(&state).keys(ONE), [], "APTPL 0 forgets");
}

/// Goal: D_SENSE and SWP take effect, and the other initiator is informed, but not the sender.
#[test]
fn mode_changes_are_reported_to_the_other_initiator() {
    let mut rig = Rig::new();
    let select = [0x15, 0x10, 0, 0, 16, 0];
    let sense_page = [0x1a, 0, 0x0a, 0, 255, 0];
    let mut list = rig.run(ONE, &sense_page, &[]).unwrap();
    list.drain(4..12);
    list[..4].fill(0);
    assert_eq!(rig.run(ONE, &select, &list), GOOD);
    assert_eq!(rig.attention(TWO), None, "nothing changed");
    list[6] |= 0x04;
    assert_eq!(rig.run(ONE, &select, &list), GOOD);
    assert_eq!((rig.attention(ONE), rig.attention(TWO)), (None, Some(0x2a01)));
    assert_eq!(rig.unit.encode_sense(&Sense::LBA_OUT_OF_RANGE)[0], 0x72);
    list[8] |= 0x08;
    assert_eq!(rig.run(TWO, &select, &list), GOOD);
    assert_eq!((rig.attention(ONE), rig.attention(TWO)), (Some(0x2a01), None));
    let protected = Sense::LOGICAL_UNIT_SOFTWARE_WRITE_PROTECTED;
    assert_eq!(rig.run(ONE, &WRITE_10, &[]), Err(Refusal::Check(protected)));
    assert!(rig.may(ONE, &READ_10));
    rig.unit.reset(None);
    while rig.attention(ONE).is_some() {}
    assert!(rig.may(ONE, &WRITE_10), "a reset brings the defaults back");
    assert_eq!(rig.unit.encode_sense(&Sense::LBA_OUT_OF_RANGE)[0], 0x70);
}
