//! Two ports of one target: their identification, and the commands that their states allow.

use crate::unit::support::options;
use lunar_scsi::plan::{NexusId, Plan, Refusal};
use lunar_scsi::ports::AccessState;
use lunar_scsi::sense::Sense;
use lunar_scsi::unit::{BlockUnit, Context, InitiatorPort, TargetPort};

const READY: [u8; 6] = [0; 6];
const INQUIRY: [u8; 6] = [0x12, 0, 0, 0, 96, 0];
const READ: [u8; 10] = [0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0];
/// The tags of the target's portal groups.
const TAGS: [u16; 2] = [1, 0x0203];
const STANDBY: u8 = 2;
const UNAVAILABLE: u8 = 3;

/// Four nexuses: two initiators, each through both ports.
struct Paths {
    unit: BlockUnit,
    ports: Vec<TargetPort>,
}

/// Initiator and port, both counted from 0.
type NexusIndex = (u8, usize);
const EACH: [NexusIndex; 4] = [(0, 0), (0, 1), (1, 0), (1, 1)];

fn nexus((initiator, port): NexusIndex) -> NexusId {
    NexusId(u64::from(initiator) * 2 + port as u64)
}

impl Paths {
    fn new() -> Self {
        let port = |tag| TargetPort {
            name: "iqn.2026-11.org.lunarsan:t".into(),
            portal_group_tag: tag,
            relative_id: tag,
        };
        let ports = TAGS.map(port).to_vec();
        let mut paths = Self { unit: BlockUnit::new(options()), ports };
        for at in EACH {
            let isid = [0x80, 0, 0, 0, 0, at.0];
            let initiator = InitiatorPort { name: "iqn.2026-11.org.lunarsan:i".into(), isid };
            paths.unit.attach(nexus(at), initiator, paths.ports[at.1].clone());
            assert_eq!(paths.sense(at, &READY), Sense::POWER_ON_RESET);
        }
        paths
    }

    fn run(&mut self, at: NexusIndex, cdb: &[u8], list: &[u8]) -> Result<Plan, Refusal> {
        let context = Context { ports: &self.ports, ..Context::new(&[], &self.ports[at.1]) };
        match self.unit.plan(nexus(at), &context, cdb)? {
            Plan::Parameters { bytes, awaiting } => {
                assert_eq!(bytes as usize, list.len());
                self.unit.resume(nexus(at), &context, awaiting, list)
            }
            plan => Ok(plan),
        }
    }

    fn reply(&mut self, at: NexusIndex, cdb: &[u8]) -> Vec<u8> {
        match self.run(at, cdb, &[]) {
            Ok(Plan::Reply(reply)) => reply,
            other => panic!("{cdb:02x?} gave {other:x?}"),
        }
    }

    fn sense(&mut self, at: NexusIndex, cdb: &[u8]) -> Sense {
        match self.run(at, cdb, &[]) {
            Err(Refusal::Check(sense)) => sense,
            other => panic!("{cdb:02x?} gave {other:x?}"),
        }
    }

    /// Sends SET TARGET PORT GROUPS of these (state, group).
    fn set(&mut self, at: NexusIndex, groups: &[(u8, u16)]) -> Result<Plan, Refusal> {
        let mut list = vec![0; 4];
        for (state, group) in groups {
            list.extend_from_slice(&[*state, 0]);
            list.extend_from_slice(&group.to_be_bytes());
        }
        self.run(at, &set_cdb(list.len()), &list)
    }

    fn set_well(&mut self, at: NexusIndex, groups: &[(u8, u16)]) {
        assert_eq!(self.set(at, groups), Ok(Plan::Reply(vec![])));
    }

    /// Returns which nexuses have a pending unit attention, in the order of `EACH`, and clears it.
    fn pending_attentions(&mut self) -> [bool; 4] {
        EACH.map(|at| match self.run(at, &READY, &[]) {
            Err(Refusal::Check(Sense::ASYMMETRIC_ACCESS_STATE_CHANGED)) => true,
            Err(Refusal::Check(sense)) => {
                assert_eq!(sense.key, Sense::TARGET_PORT_IN_STANDBY_STATE.key, "{sense:?}");
                false
            }
            other => {
                assert_eq!(other, Ok(Plan::Reply(vec![])));
                false
            }
        })
    }

    /// State and status code of each group from REPORT TARGET PORT GROUPS.
    fn states(&mut self, at: NexusIndex) -> [(u8, u8); 2] {
        let report = self.reply(at, &report_cdb(0, 255));
        [4, 16].map(|group| (report[group], report[group + 5]))
    }
}

fn set_cdb(bytes: usize) -> [u8; 12] {
    [0xa4, 0x0a, 0, 0, 0, 0, 0, 0, (bytes >> 8) as u8, bytes as u8, 0, 0]
}

fn report_cdb(format: u8, allocation: u8) -> [u8; 12] {
    [0xa3, 0x0a | (format << 5), 0, 0, 0, 0, 0, 0, 0, allocation, 0, 0]
}

/// Goal: both parameter data formats are correct, byte by byte, and truncated as usual; any other
/// is refused.
#[test]
fn report_target_port_groups_bytes() {
    let mut paths = Paths::new();
    #[rustfmt::skip]
    let groups = [
        0, 0x0f, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1,
        0, 0x0f, 2, 3, 0, 0, 0, 1, 0, 0, 2, 3,
    ];
    for at in EACH {
        let short = [&[0, 0, 0, 24][..], &groups].concat();
        assert_eq!(paths.reply(at, &report_cdb(0, 255)), short);
        let long = [&[0, 0, 0, 28, 0x10, 0, 0, 0][..], &groups].concat();
        assert_eq!(paths.reply(at, &report_cdb(1, 255)), long);
        for allocation in 0..40 {
            let cut = usize::from(allocation).min(28);
            assert_eq!(paths.reply(at, &report_cdb(0, allocation)), short[..cut]);
        }
    }
    for format in 2..8 {
        let refused = Sense::invalid_field_in_cdb(1, Some(7));
        assert_eq!(paths.sense((0, 0), &report_cdb(format, 255)), refused);
    }
}

/// Goal: a state change is visible on every port, and every nexus except the sender is informed,
/// once. Method: one nexus sets, all four are queried; setting the same state again informs none.
#[test]
fn all_other_nexuses_are_informed() {
    for by in EACH {
        let mut paths = Paths::new();
        paths.set_well(by, &[(STANDBY, 0x0203)]);
        assert_eq!(paths.pending_attentions(), EACH.map(|at| at != by));
        assert_eq!(paths.pending_attentions(), [false; 4]);
        for at in EACH {
            assert_eq!(paths.states(at), [(0, 0), (STANDBY, 1)]);
        }
        paths.set_well(by, &[(STANDBY, 0x0203), (0, 1)]);
        assert_eq!(paths.pending_attentions(), [false; 4], "nothing changed");
        assert_eq!(paths.states(by), [(0, 1), (STANDBY, 1)]);
        paths.set_well(by, &[(1, 0x0203), (UNAVAILABLE, 1)]);
        assert_eq!(paths.pending_attentions(), EACH.map(|at| at != by));
        assert_eq!(paths.states(by), [(UNAVAILABLE, 1), (1, 1)], "a standby port takes it");
    }
}

/// Goal: a standby or unavailable port gives no access to blocks, the other port does; the state
/// can be read and set on both. SPC-4 §5.15.2.4.
#[test]
fn inactive_ports_give_no_access_to_blocks() {
    for (state, refusal) in [
        (STANDBY, Sense::TARGET_PORT_IN_STANDBY_STATE),
        (UNAVAILABLE, Sense::TARGET_PORT_IN_UNAVAILABLE_STATE),
    ] {
        let (near, far) = ((0, 0), (0, 1));
        let mut paths = Paths::new();
        paths.set_well(far, &[(state, 0x0203)]);
        paths.pending_attentions();
        let mode_sense = [0x1a, 0, 0x3f, 0, 255, 0];
        let keys = [0x5e, 0, 0, 0, 0, 0, 0, 0, 8, 0];
        let capacity = [0x25, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let codes = [0xa3, 0x0c, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0];
        for cdb in [&READY[..], &READ, &capacity, &codes] {
            assert_eq!(paths.sense(far, cdb), refusal, "{cdb:02x?}");
            paths.run(near, cdb, &[]).unwrap();
        }
        for cdb in [&mode_sense[..], &keys] {
            let result = paths.run(far, cdb, &[]);
            assert_eq!(result.is_ok(), state == STANDBY, "{cdb:02x?}: {result:x?}");
        }
        let asked = paths.reply(far, &[0x03, 0, 0, 0, 18, 0]);
        assert_eq!(Sense::decode(&asked), Some(refusal));
        let qualifier = if state == UNAVAILABLE { 0x20 } else { 0 };
        assert_eq!(paths.reply(far, &INQUIRY)[0], qualifier);
        assert_eq!(paths.reply(far, &[0x12, 1, 0x83, 0, 255, 0])[0], qualifier);
        assert_eq!(paths.reply(near, &INQUIRY)[0], 0);
        paths.set_well(far, &[(0, 0x0203)]);
        assert!(paths.run(far, &READ, &[]).is_ok());
    }
}

/// Goal: a refused list changes nothing. Method: each error after a valid descriptor.
#[test]
fn lists_that_are_no_configuration() {
    let mut paths = Paths::new();
    let wrong = |at, bit| Err(Refusal::Check(Sense::invalid_field_in_parameter_list(at, bit)));
    for state in 4..16 {
        let refused = paths.set((0, 0), &[(STANDBY, 1), (state, 0x0203)]);
        assert_eq!(refused, wrong(8, Some(3)));
    }
    assert_eq!(paths.set((0, 0), &[(STANDBY, 1), (0, 2)]), wrong(10, None), "no such group");
    assert_eq!(paths.set((0, 0), &[(STANDBY, 1), (0, 1)]), wrong(10, None), "twice");
    for state in [STANDBY, UNAVAILABLE] {
        let none_left = paths.set((0, 0), &[(STANDBY, 1), (state, 0x0203)]);
        assert_eq!(none_left, wrong(4, Some(3)));
    }
    paths.set_well((0, 0), &[]);
    assert_eq!(paths.run((0, 0), &set_cdb(0), &[]), Ok(Plan::Reply(vec![])));
    for bytes in [1, 3, 5, 11] {
        assert_eq!(paths.sense((0, 0), &set_cdb(bytes)), Sense::PARAMETER_LIST_LENGTH_ERROR);
    }
    for bytes in [13, 16, 0xffff] {
        assert_eq!(paths.sense((0, 0), &set_cdb(bytes)), Sense::invalid_field_in_cdb(6, None));
    }
    assert_eq!(paths.states((0, 0)), [(0, 0); 2]);
    assert_eq!(paths.pending_attentions(), [false; 4]);
}

/// Goal: a reset and a lost nexus keep the states, as SPC-4 §5.15.2.9 permits.
#[test]
fn states_survive_a_reset() {
    let mut paths = Paths::new();
    paths.set_well((0, 0), &[(1, 0x0203)]);
    paths.unit.reset(None);
    paths.unit.detach(nexus((0, 0)));
    assert_eq!(paths.sense((1, 0), &READY), Sense::RESET_BY_FUNCTION);
    assert_eq!(paths.states((1, 0)), [(0, 0), (AccessState::ACTIVE_NON_OPTIMIZED.0, 1)]);
}

/// Goal: reservations are checked first, as in SPC-4's table: setting is a write, reporting is
/// allowed.
#[test]
fn reservations_and_port_groups() {
    let mut paths = Paths::new();
    let mut list = vec![0; 24];
    list[15] = 0xa;
    paths.run((0, 0), &[0x5f, 0, 0, 0, 0, 0, 0, 0, 24, 0], &list).unwrap();
    list[..16].rotate_left(8);
    paths.run((0, 0), &[0x5f, 1, 3, 0, 0, 0, 0, 0, 24, 0], &list).unwrap();
    for at in [(0, 1), (1, 0), (1, 1)] {
        assert_eq!(paths.set(at, &[(1, 1)]), Err(Refusal::ReservationConflict));
        assert_eq!(paths.states(at), [(0, 0); 2]);
    }
    paths.set_well((0, 0), &[(1, 1)]);
}
