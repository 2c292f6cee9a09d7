//! ALL_TG_PT: one initiator port through all ports of the target.

use super::*;

const ALL_TG_PT: u8 = 0x04;

fn out(reservations: &mut Reservations, who: &ItNexus, action: u8, keys: [u64; 2]) -> Answer {
    let list = list(keys[0], keys[1], ALL_TG_PT);
    let outcome = reservations.out(who, &ports(), request(action, Type(0)), &list);
    assert!(reservations.is_consistent());
    outcome
}

type Answer = Result<ReserveOutcome, Refusal>;

const GOOD: Answer = Ok(ReserveOutcome { attentions: Vec::new(), abort: Vec::new(), save: false });

impl Reservations {
    fn key_of(&self, nexus: &ItNexus) -> Option<u64> {
        self.find(nexus).map(|at| self.registrations[at].key)
    }
}

/// Goal: ALL_TG_PT works "as if the same registration request had been received individually
/// through each target port" (SPC-4 §6.16.3); counted once in PRGENERATION, reported per nexus.
#[test]
fn all_ports_are_registered_changed_and_unregistered() {
    for through in [nexus(1), far(1)] {
        for action in [REGISTER, REGISTER_AND_IGNORE] {
            let mut reservations = Reservations::new(true);
            reservations.register_number(2);
            assert_eq!(out(&mut reservations, &through, action, [0, 7]), GOOD);
            assert_eq!(
                (reservations.key_of(&nexus(1)), reservations.key_of(&far(1))),
                (Some(7), Some(7))
            );
            assert_eq!(reservations.keys().len(), 3, "of initiator 2 nothing is new");
            assert_eq!(reservations.generation, 2);
            let status = reservations.report(3, usize::MAX).unwrap();
            let relative_ids = [8 + 72, 8 + 2 * 72].map(|at| status[at + 18..at + 20].to_vec());
            assert!(relative_ids.contains(&vec![0, 1]) && relative_ids.contains(&vec![0, 2]));
            assert_eq!(out(&mut reservations, &through, action, [7, 8]), GOOD);
            assert_eq!(
                (reservations.key_of(&nexus(1)), reservations.key_of(&far(1))),
                (Some(8), Some(8))
            );
            assert_eq!(out(&mut reservations, &through, action, [8, 0]), GOOD);
            assert_eq!(reservations.keys(), [key(2)]);
            assert_eq!(reservations.generation, 4);
            assert_eq!(out(&mut reservations, &through, action, [0, 0]), GOOD);
            assert_eq!(reservations.generation, 4, "nothing was done");
        }
    }
}

/// Goal: a conflict at one port is a conflict of the command, and nothing is changed.
#[test]
fn another_key_at_another_port() {
    let mut reservations = Reservations::new(true);
    let register = request(REGISTER, Type(0));
    reservations.out(&far(1), &ports(), register, &list(0, 5, 0)).unwrap();
    for action_key in [5, 6, 0] {
        assert_eq!(out(&mut reservations, &nexus(1), REGISTER, [0, action_key]), CONFLICT);
        assert_eq!(reservations.keys(), [5]);
    }
    assert_eq!(out(&mut reservations, &nexus(1), REGISTER_AND_IGNORE, [0, 6]), GOOD);
    assert_eq!(reservations.keys(), [6, 6]);
    reservations.out(&far(1), &ports(), register, &list(6, 0, 0)).unwrap();
    assert_eq!(reservations.keys(), [6], "without ALL_TG_PT one nexus alone");
    assert_eq!(out(&mut reservations, &nexus(1), REGISTER, [6, 9]), GOOD);
    assert_eq!(reservations.keys(), [9, 9], "the missing one is added");
}

/// Goal: a reservation held through one port ends when all are unregistered through the other;
/// remaining registrants are informed.
#[test]
fn unregistering_releases_a_reservation_of_another_port() {
    for kind in TYPES {
        let mut reservations = Reservations::new(true);
        reservations.register_number(2);
        out(&mut reservations, &nexus(1), REGISTER, [0, key(1)]).unwrap();
        let reserve = request(RESERVE, kind);
        reservations.out(&far(1), &ports(), reserve, &list(key(1), 0, 0)).unwrap();
        let outcome = out(&mut reservations, &nexus(1), REGISTER, [key(1), 0]).unwrap();
        let all = kind.is_all_registrants();
        assert_eq!(reservations.kind, all.then_some(kind));
        let expected = match kind.is_registrants_only() {
            true => attentions_of(Attention::RESERVATIONS_RELEASED, &[2]),
            false => vec![],
        };
        assert_eq!(outcome.attentions, expected, "{kind:?}");
    }
}

/// Goal: all of the registrations are made, or none.
#[test]
fn registrations_for_all_ports_are_all_or_none() {
    let mut reservations = Reservations::new(true);
    for number in 1..REGISTRATIONS_MAX {
        let mut who = nexus(0);
        who.initiator.name = format!("iqn.x:{number}");
        reservations.out(&who, &ports(), request(REGISTER, Type(0)), &list(0, 1, 0)).unwrap();
    }
    let full = Err(Refusal::Check(Sense::INSUFFICIENT_REGISTRATION_RESOURCES));
    assert_eq!(out(&mut reservations, &nexus(1), REGISTER, [0, 1]), full);
    assert_eq!(reservations.keys().len(), REGISTRATIONS_MAX - 1);
    let one = reservations.out(&nexus(1), &ports(), request(REGISTER, Type(0)), &list(0, 1, 0));
    assert_eq!(one, GOOD);
    assert_eq!(out(&mut reservations, &nexus(1), REGISTER, [1, 2]), full);
    assert_eq!(reservations.key_of(&nexus(1)), Some(1));
    assert_eq!(out(&mut reservations, &nexus(1), REGISTER, [1, 0]), GOOD);
}
