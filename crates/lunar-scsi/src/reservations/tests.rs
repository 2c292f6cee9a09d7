mod moving;
mod ports;
mod shares;
mod state;

use super::*;
use crate::attention::Attention;
use crate::plan::Refusal;
use crate::sense::Sense;
use alloc::format;
use alloc::vec;
use core::cell::Cell;
use proptest::prelude::*;

use crate::reservations::ReservationType as Type;

const TYPES: [Type; 6] = [
    Type::WRITE_EXCLUSIVE,
    Type::EXCLUSIVE_ACCESS,
    Type::WRITE_EXCLUSIVE_REGISTRANTS_ONLY,
    Type::EXCLUSIVE_ACCESS_REGISTRANTS_ONLY,
    Type::WRITE_EXCLUSIVE_ALL_REGISTRANTS,
    Type::EXCLUSIVE_ACCESS_ALL_REGISTRANTS,
];

const REGISTER: u8 = 0;
const RESERVE: u8 = 1;
const RELEASE: u8 = 2;
const CLEAR: u8 = 3;
const PREEMPT: u8 = 4;
const PREEMPT_AND_ABORT: u8 = 5;
const REGISTER_AND_IGNORE: u8 = 6;
const REGISTER_AND_MOVE: u8 = 7;
const APTPL: u8 = 0x01;

const CONFLICT: Result<ReserveOutcome, Refusal> = Err(Refusal::ReservationConflict);

std::thread_local! {
    /// Number of comparisons of two nexuses in this thread.
    static COMPARISONS: Cell<usize> = const { Cell::new(0) };
}

/// Number of comparisons of two nexuses during `act`.
pub(crate) fn comparisons(act: impl FnOnce()) -> usize {
    COMPARISONS.set(0);
    act();
    COMPARISONS.get()
}

pub(super) fn count_comparison() {
    COMPARISONS.set(COMPARISONS.get() + 1);
}

/// The ports of the target: that of [`nexus`], and another.
fn ports() -> Vec<TargetPort> {
    let name = "iqn.2026-11.org.lunarsan:a";
    [1, 2]
        .map(|tag| TargetPort { name: name.into(), portal_group_tag: tag, relative_id: tag })
        .into()
}

/// The nexus of initiator `number`.
fn nexus(number: u8) -> ItNexus {
    let initiator = InitiatorPort {
        name: format!("iqn.2026-11.org.example:{number}"),
        isid: [0x80, 0, 0, 0, 0, number],
    };
    ItNexus::new(&initiator, &ports()[0])
}

/// The nexus of initiator `number` through the other port.
fn far(number: u8) -> ItNexus {
    ItNexus::new(&nexus(number).initiator, &ports()[1])
}

/// The key that initiator `number` registers in these tests.
fn key(number: u8) -> u64 {
    0x0a0b_0c0d_0000_0000 + u64::from(number)
}

fn list(key: u64, action_key: u64, flags: u8) -> Vec<u8> {
    let mut list = Vec::from(key.to_be_bytes());
    list.extend_from_slice(&action_key.to_be_bytes());
    list.extend_from_slice(&[0, 0, 0, 0, flags, 0, 0, 0]);
    list
}

fn request(service_action: u8, kind: Type) -> OutRequest {
    OutRequest { service_action, scope_and_type: kind.0, parameter_bytes: 24 }
}

impl Reservations {
    fn act_as(
        &mut self,
        number: u8,
        action: u8,
        kind: Type,
        action_key: u64,
    ) -> Result<ReserveOutcome, Refusal> {
        let outcome = self.out(
            &nexus(number),
            &ports(),
            request(action, kind),
            &list(key(number), action_key, 0),
        );
        assert!(self.is_consistent());
        outcome
    }

    fn register_number(&mut self, number: u8) {
        let entry = list(0, key(number), 0);
        let outcome = self.out(&nexus(number), &ports(), request(REGISTER, Type(0)), &entry);
        assert_eq!(outcome, Ok(ReserveOutcome::default()));
    }

    fn unregister_number(&mut self, number: u8) -> ReserveOutcome {
        self.act_as(number, REGISTER, Type(0), 0).unwrap()
    }

    fn keys(&self) -> Vec<u64> {
        self.registrations.iter().map(|entry| entry.key).collect()
    }
}

/// Registers 1, 2 and 3, and reserves with 1; 4 is not registered.
fn reserved(kind: Type) -> Reservations {
    let mut reservations = Reservations::new(true);
    for number in 1..=3 {
        reservations.register_number(number);
    }
    assert_eq!(reservations.act_as(1, RESERVE, kind, 0), Ok(ReserveOutcome::default()));
    reservations
}

fn attentions_of(attention: Attention, numbers: &[u8]) -> Vec<(ItNexus, Attention)> {
    numbers.iter().map(|number| (nexus(*number), attention)).collect()
}

/// Goal: conflicts match SPC-4 table 65. Method: each type against holder, registrant and
/// unregistered nexus, and each class of command.
#[test]
fn conflicts_by_type() {
    let (no, yes) = (false, true);
    #[rustfmt::skip]
    let table = [
        //                                           registrant     stranger
        //                                           read  write    read  write
        (Type::WRITE_EXCLUSIVE,                      no,   yes,     no,   yes),
        (Type::EXCLUSIVE_ACCESS,                     yes,  yes,     yes,  yes),
        (Type::WRITE_EXCLUSIVE_REGISTRANTS_ONLY,     no,   no,      no,   yes),
        (Type::EXCLUSIVE_ACCESS_REGISTRANTS_ONLY,    no,   no,      yes,  yes),
        (Type::WRITE_EXCLUSIVE_ALL_REGISTRANTS,      no,   no,      no,   yes),
        (Type::EXCLUSIVE_ACCESS_ALL_REGISTRANTS,     no,   no,      yes,  yes),
    ];
    for (kind, registrant_reads, registrant_writes, stranger_reads, stranger_writes) in table {
        let reservations = reserved(kind);
        for number in 1..=4 {
            let who = nexus(number);
            assert!(!reservations.conflict(&who, ReservationAccess::Always), "{kind:?} {number}");
            assert!(
                !reservations.conflict(&who, ReservationAccess::Persistent),
                "{kind:?} {number}"
            );
            let expected = match number {
                1 => (no, no),
                2 | 3 => (registrant_reads, registrant_writes),
                _ => (stranger_reads, stranger_writes),
            };
            let read = reservations.conflict(&who, ReservationAccess::Read);
            let write = reservations.conflict(&who, ReservationAccess::Write);
            assert_eq!((read, write), expected, "{kind:?} {number}");
        }
    }
}

/// Goal: a registration alone excludes no nexus.
#[test]
fn registrations_are_no_reservation() {
    let mut reservations = Reservations::new(true);
    reservations.register_number(1);
    for access in [
        ReservationAccess::Always,
        ReservationAccess::Persistent,
        ReservationAccess::Read,
        ReservationAccess::Write,
    ] {
        assert!(!reservations.conflict(&nexus(2), access));
    }
}

/// Goal: a nexus is identified by name, ISID, target and portal group; not by the relative
/// identifier, not by the case.
#[test]
fn a_nexus_is_identified_by_name_isid_and_portal_group() {
    let initiator = InitiatorPort { name: "iqn.A".into(), isid: [1; 6] };
    let port = TargetPort { name: "iqn.T".into(), portal_group_tag: 1, relative_id: 1 };
    let one = ItNexus::new(&initiator, &port);
    let same = InitiatorPort { name: "IQN.a".into(), ..initiator.clone() };
    assert_eq!(one, ItNexus::new(&same, &TargetPort { relative_id: 9, ..port.clone() }));
    let other = InitiatorPort { isid: [2; 6], ..initiator.clone() };
    assert_ne!(one, ItNexus::new(&other, &port));
    assert_ne!(one, ItNexus::new(&initiator, &TargetPort { portal_group_tag: 2, ..port.clone() }));
    assert_ne!(one, ItNexus::new(&initiator, &TargetPort { name: "iqn.U".into(), ..port }));
}

/// Goal: registering follows SPC-4 §5.12.7, row by row.
#[test]
fn register_requires_the_existing_key() {
    let mut reservations = Reservations::new(true);
    let register = request(REGISTER, Type(0));
    let mut out =
        |number, own, new| reservations.out(&nexus(number), &ports(), register, &list(own, new, 0));
    assert_eq!(out(1, 7, 8), CONFLICT, "not registered, yet a key");
    assert_eq!(out(1, 0, 0), Ok(ReserveOutcome::default()), "nothing to do");
    assert_eq!(out(1, 0, 8), Ok(ReserveOutcome::default()));
    assert_eq!(out(1, 0, 9), CONFLICT, "registered already");
    assert_eq!(out(1, 8, 9), Ok(ReserveOutcome::default()), "another key");
    assert_eq!(out(1, 8, 0), CONFLICT, "the former key");
    assert_eq!(out(1, 9, 0), Ok(ReserveOutcome::default()), "unregistered");
    assert_eq!(reservations.keys(), []);
    assert_eq!(reservations.generation, 3, "the no-op and the refusals do not count");
}

#[test]
fn register_and_ignore_takes_any_key() {
    let mut reservations = Reservations::new(true);
    let register = request(REGISTER_AND_IGNORE, Type(0));
    for (new, keys) in [(0, vec![]), (5, vec![5]), (6, vec![6]), (0, vec![])] {
        let outcome = reservations.out(&nexus(1), &ports(), register, &list(0xbad, new, 0));
        assert_eq!(outcome, Ok(ReserveOutcome::default()));
        assert_eq!(reservations.keys(), keys);
    }
    assert_eq!(reservations.generation, 3);
}

/// Goal: a changed key keeps the reservation.
#[test]
fn a_new_key_keeps_the_reservation() {
    let mut reservations = reserved(Type::EXCLUSIVE_ACCESS);
    reservations.act_as(1, REGISTER, Type(0), 0x77).unwrap();
    assert!(!reservations.conflict(&nexus(1), ReservationAccess::Write));
    assert_eq!(reservations.report(1, usize::MAX).unwrap()[8..16], 0x77_u64.to_be_bytes());
}

#[test]
fn registrations_of_a_unit_are_limited() {
    let mut reservations = Reservations::new(true);
    let register = request(REGISTER, Type(0));
    for number in 0..=REGISTRATIONS_MAX {
        let mut who = nexus(0);
        who.initiator.name = format!("iqn.x:{number}");
        let outcome = reservations.out(&who, &ports(), register, &list(0, 1, 0));
        if number < REGISTRATIONS_MAX {
            assert_eq!(outcome, Ok(ReserveOutcome::default()));
        } else {
            let full = Sense::INSUFFICIENT_REGISTRATION_RESOURCES;
            assert_eq!(outcome, Err(Refusal::Check(full)));
        }
    }
    assert_eq!(reservations.keys().len(), REGISTRATIONS_MAX);
}

/// Fault: each command searched all registrations for its own, so that 1,000 registrations
/// with names that differ at their ends made every command of a reserved unit take five times as
/// long, even after the end of their sessions.
#[test]
fn a_command_does_not_search_all_registrations() {
    let nexus_of = |number: usize| {
        let name = format!("iqn.2026-11.org.example:{}{number:04}", "x".repeat(190));
        ItNexus::new(&InitiatorPort { name, isid: [0x80, 0, 0, 0, 0, 1] }, &ports()[0])
    };
    let mut reservations = Reservations::new(true);
    for number in 0..REGISTRATIONS_MAX {
        let entry = list(0, number as u64 + 1, APTPL);
        reservations.out(&nexus_of(number), &ports(), request(REGISTER, Type(0)), &entry).unwrap();
    }
    let kind = Type::EXCLUSIVE_ACCESS_REGISTRANTS_ONLY;
    let reserve = request(RESERVE, kind);
    reservations.out(&nexus_of(500), &ports(), reserve, &list(501, 0, 0)).unwrap();
    for number in [REGISTRATIONS_MAX - 1, REGISTRATIONS_MAX, 500, 0] {
        let nexus = nexus_of(number);
        let is_registered = number < REGISTRATIONS_MAX;
        let mut counted = |what, max, act: &mut dyn FnMut(&mut Reservations)| {
            COMPARISONS.set(0);
            act(&mut reservations);
            let comparisons = COMPARISONS.get();
            assert!(comparisons <= max, "{what} of {number}: {comparisons} comparisons");
        };
        for access in [ReservationAccess::Read, ReservationAccess::Write] {
            counted("a command", 12, &mut |reservations| {
                assert_eq!(reservations.conflict(&nexus, access), !is_registered);
            });
        }
        counted("RESERVE (6)", 12, &mut |reservations| {
            assert_eq!(reservations.reserve(&nexus).is_ok(), is_registered);
        });
        counted("a login", 12, &mut |reservations| reservations.nexus_attached(&nexus));
        counted("a new key, by 2 ports", 80, &mut |reservations| {
            let flags = APTPL | OutFlags::ALL_TG_PT.0;
            let entry = list(number as u64 + 1, number as u64 + 1, flags);
            let full = reservations.out(&nexus, &ports(), request(REGISTER, Type(0)), &entry);
            assert!(full.is_err(), "the other port finds no room");
            let entry = list(number as u64 + 1, number as u64 + 1, APTPL);
            let renewed = reservations.out(&nexus, &ports(), request(REGISTER, Type(0)), &entry);
            assert_eq!(renewed.is_ok(), is_registered);
        });
    }
}

#[test]
fn unsupported_options_are_refused() {
    let mut reservations = Reservations::new(false);
    for (flag, bit) in [(0x08, 3), (APTPL, 0)] {
        for action in [REGISTER, REGISTER_AND_IGNORE] {
            let outcome =
                reservations.out(&nexus(1), &ports(), request(action, Type(0)), &list(0, 1, flag));
            let sense = Sense::invalid_field_in_parameter_list(20, Some(bit));
            assert_eq!(outcome, Err(Refusal::Check(sense)));
        }
    }
    let check = |service_action, scope_and_type, parameter_bytes| {
        OutRequest { service_action, scope_and_type, parameter_bytes }.check()
    };
    for action in 8..32 {
        assert_eq!(check(action, 1, 24), Err(Sense::invalid_field_in_cdb(1, Some(4))));
    }
    for bytes in [0, 23, 4097, u32::MAX] {
        assert_eq!(check(REGISTER, 1, bytes), Err(Sense::PARAMETER_LIST_LENGTH_ERROR));
        assert_eq!(check(RESERVE, 1, bytes.min(25)), Err(Sense::PARAMETER_LIST_LENGTH_ERROR));
    }
    for (flag, sense) in [
        (0, Sense::PARAMETER_LIST_LENGTH_ERROR),
        (0x08, Sense::invalid_field_in_parameter_list(20, Some(3))),
    ] {
        let longer = OutRequest { parameter_bytes: 52, ..request(REGISTER, Type(0)) };
        let mut list = list(0, 1, flag);
        list.resize(52, 0);
        assert_eq!(reservations.out(&nexus(1), &ports(), longer, &list), Err(sense.into()));
    }
    assert_eq!(check(RESERVE, 0x11, 24), Err(Sense::invalid_field_in_cdb(2, Some(7))));
    for kind in [0, 2, 4, 9, 15] {
        assert_eq!(check(RESERVE, kind, 24), Err(Sense::invalid_field_in_cdb(2, Some(3))));
    }
    let short = reservations.out(&nexus(1), &ports(), request(REGISTER, Type(0)), &[0; 23]);
    assert_eq!(short, Err(Refusal::Check(Sense::PARAMETER_LIST_LENGTH_ERROR)));
}

/// Goal: only the holder may reserve again. Method: each type reserved, then again by all, same and
/// other type.
#[test]
fn only_holders_reserve_again() {
    for kind in TYPES {
        for other in TYPES {
            for number in 1..=4 {
                let mut reservations = reserved(kind);
                let holds = number == 1 || (number < 4 && kind.is_all_registrants());
                let expected =
                    if holds && kind == other { Ok(ReserveOutcome::default()) } else { CONFLICT };
                assert_eq!(reservations.act_as(number, RESERVE, other, 0), expected);
            }
        }
    }
}

/// Goal: all actions except registering require the correct key.
#[test]
fn actions_require_the_registered_key() {
    for action in [RESERVE, RELEASE, CLEAR, PREEMPT, PREEMPT_AND_ABORT] {
        let mut reservations = reserved(Type::WRITE_EXCLUSIVE);
        let wrong = reservations.out(
            &nexus(1),
            &ports(),
            request(action, Type::WRITE_EXCLUSIVE),
            &list(key(2), key(2), 0),
        );
        assert_eq!(wrong, CONFLICT);
        assert_eq!(reservations.act_as(4, action, Type::WRITE_EXCLUSIVE, key(2)), CONFLICT);
        assert_eq!(reservations.keys().len(), 3);
    }
}

/// Goal: a release causes unit attentions for types by which others had access. SPC-4 §5.12.11.2.
#[test]
fn a_release_informs_other_registrants() {
    for kind in TYPES {
        let mut reservations = reserved(kind);
        let other = if kind == Type::WRITE_EXCLUSIVE { TYPES[1] } else { TYPES[0] };
        let wrong = Sense::INVALID_RELEASE_OF_PERSISTENT_RESERVATION;
        assert_eq!(reservations.act_as(1, RELEASE, other, 0), Err(Refusal::Check(wrong)));
        if !kind.is_all_registrants() {
            assert_eq!(reservations.act_as(2, RELEASE, kind, 0), Ok(ReserveOutcome::default()));
        }
        assert_eq!(reservations.kind, Some(kind), "still reserved");
        let outcome = reservations.act_as(1, RELEASE, kind, 0).unwrap();
        let alone = matches!(kind, Type::WRITE_EXCLUSIVE | Type::EXCLUSIVE_ACCESS);
        let expected: &[u8] = if alone { &[] } else { &[2, 3] };
        assert_eq!(outcome.attentions, attentions_of(Attention::RESERVATIONS_RELEASED, expected));
        assert_eq!(reservations.kind, None);
        assert_eq!(reservations.act_as(1, RELEASE, kind, 0), Ok(ReserveOutcome::default()));
        assert_eq!(reservations.keys().len(), 3);
    }
}

/// Goal: unregistering the holder ends the reservation and informs the right nexuses.
/// SPC-4 §5.12.11.3.
#[test]
fn unregistering_the_holder_ends_the_reservation() {
    for kind in TYPES {
        let mut reservations = reserved(kind);
        assert_eq!(reservations.unregister_number(3), ReserveOutcome::default(), "not the holder");
        assert_eq!(reservations.kind, Some(kind));
        let outcome = reservations.unregister_number(1);
        if kind.is_all_registrants() {
            assert_eq!(outcome, ReserveOutcome::default());
            assert_eq!(reservations.kind, Some(kind), "2 still holds the reservation");
            assert_eq!(reservations.unregister_number(2), ReserveOutcome::default());
        } else {
            let expected: &[u8] = if kind.is_registrants_only() { &[2] } else { &[] };
            assert_eq!(
                outcome.attentions,
                attentions_of(Attention::RESERVATIONS_RELEASED, expected)
            );
        }
        assert_eq!(reservations.kind, None);
    }
}

#[test]
fn clear_removes_registrations_and_reservation() {
    for kind in TYPES {
        let mut reservations = reserved(kind);
        let outcome = reservations.act_as(2, CLEAR, Type(0), 0).unwrap();
        assert_eq!(outcome.attentions, attentions_of(Attention::RESERVATIONS_PREEMPTED, &[1, 3]));
        assert_eq!(outcome.abort, []);
        assert_eq!(reservations.keys(), []);
        assert_eq!(reservations.kind, None);
        assert_eq!(reservations.generation, 4);
    }
}

/// Goal: preempting with the holder's key takes over the reservation. Method: same type and another
/// one; tasks are aborted only if requested.
#[test]
fn preempting_the_holder_takes_the_reservation_over() {
    for kind in TYPES {
        for new in TYPES {
            for action in [PREEMPT, PREEMPT_AND_ABORT] {
                let mut reservations = reserved(kind);
                let all = kind.is_all_registrants();
                let victim = if all { 0 } else { key(1) };
                let outcome = reservations.act_as(2, action, new, victim).unwrap();
                let removed: &[u8] = if all { &[1, 3] } else { &[1] };
                let mut expected = attentions_of(Attention::REGISTRATIONS_PREEMPTED, removed);
                if kind != new && !all {
                    expected.extend(attentions_of(Attention::RESERVATIONS_RELEASED, &[3]));
                }
                assert_eq!(outcome.attentions, expected, "{kind:?} {new:?}");
                let aborted = if action == PREEMPT { &[] } else { removed };
                let aborted: Vec<_> = aborted.iter().map(|number| nexus(*number)).collect();
                assert_eq!(outcome.abort, aborted);
                assert_eq!(reservations.kind, Some(new));
                assert!(!reservations.conflict(&nexus(2), ReservationAccess::Write));
                assert!(reservations.conflict(&nexus(1), ReservationAccess::Write));
            }
        }
    }
}

/// Goal: preempting with another key removes registrations and keeps the reservation.
#[test]
fn preempting_a_registrant_keeps_the_reservation() {
    for kind in TYPES {
        let mut reservations = reserved(kind);
        let outcome = reservations.act_as(2, PREEMPT_AND_ABORT, Type(0xff), key(3)).unwrap();
        assert_eq!(outcome.attentions, attentions_of(Attention::REGISTRATIONS_PREEMPTED, &[3]));
        assert_eq!(outcome.abort, [nexus(3)]);
        assert_eq!(reservations.kind, Some(kind));
        assert_eq!(reservations.keys(), [key(1), key(2)]);
        assert_eq!(reservations.act_as(2, PREEMPT, kind, key(3)), CONFLICT, "no such key");
    }
}

#[test]
fn preempting_oneself() {
    let mut reservations = reserved(Type::WRITE_EXCLUSIVE);
    let outcome = reservations.act_as(1, PREEMPT, Type::EXCLUSIVE_ACCESS, key(1)).unwrap();
    let expected = attentions_of(Attention::RESERVATIONS_RELEASED, &[2, 3]);
    assert_eq!(outcome.attentions, expected, "the holder changes its type");
    assert_eq!(reservations.keys().len(), 3);
    let outcome = reservations.act_as(2, PREEMPT_AND_ABORT, Type(0), key(2)).unwrap();
    assert_eq!(
        outcome,
        ReserveOutcome::default(),
        "a registrant that unregisters itself causes no unit attention"
    );
    assert_eq!(reservations.keys(), [key(1), key(3)]);
}

/// Goal: with an all registrants type, the reservation ends with the last registration.
#[test]
fn preempting_the_last_registrant() {
    let mut reservations = Reservations::new(true);
    reservations.register_number(1);
    reservations.act_as(1, RESERVE, Type::WRITE_EXCLUSIVE_ALL_REGISTRANTS, 0).unwrap();
    reservations.act_as(1, PREEMPT, Type(0), key(1)).unwrap();
    assert_eq!(reservations.kind, None);
    assert_eq!(reservations.keys(), []);
}

#[test]
fn preempting_an_unregistered_key() {
    let zero = Err(Refusal::Check(Sense::invalid_field_in_parameter_list(8, None)));
    let mut reservations = reserved(Type::WRITE_EXCLUSIVE);
    assert_eq!(reservations.act_as(2, PREEMPT, Type::WRITE_EXCLUSIVE, 0), zero);
    reservations.act_as(1, RELEASE, Type::WRITE_EXCLUSIVE, 0).unwrap();
    assert_eq!(reservations.act_as(2, PREEMPT, Type::WRITE_EXCLUSIVE, 0), zero);
    assert_eq!(reservations.act_as(2, PREEMPT, Type::WRITE_EXCLUSIVE, 0x99), CONFLICT);
    let outcome = reservations.act_as(2, PREEMPT, Type::WRITE_EXCLUSIVE, key(1)).unwrap();
    assert_eq!(outcome.attentions, attentions_of(Attention::REGISTRATIONS_PREEMPTED, &[1]));
    assert_eq!(reservations.kind, None, "nothing was reserved, nothing is taken over");
    let mut reservations = reserved(Type::WRITE_EXCLUSIVE);
    let sense = Err(Refusal::Check(Sense::invalid_field_in_cdb(2, Some(3))));
    assert_eq!(reservations.act_as(2, PREEMPT, Type(2), key(1)), sense);
    assert_eq!(reservations.keys().len(), 3, "a refusal changes nothing");
}

#[test]
fn reserve_6_and_release_6() {
    let mut reservations = Reservations::new(true);
    let conflict = Err(Refusal::ReservationConflict);
    assert_eq!(reservations.reserve(&nexus(1)), Ok(()));
    assert_eq!(reservations.reserve(&nexus(1)), Ok(()), "again");
    assert_eq!(reservations.reserve(&nexus(2)), conflict);
    assert_eq!(reservations.release(&nexus(2)), Ok(()), "without effect");
    assert!(reservations.conflict(&nexus(2), ReservationAccess::Persistent));
    assert!(reservations.conflict(&nexus(2), ReservationAccess::Read));
    assert!(!reservations.conflict(&nexus(2), ReservationAccess::Always));
    assert!(!reservations.conflict(&nexus(1), ReservationAccess::Write));
    assert_eq!(reservations.release(&nexus(1)), Ok(()));
    assert_eq!(reservations.reserve(&nexus(2)), Ok(()));
    reservations.nexus_lost(&nexus(1));
    assert_eq!(reservations.reserve(&nexus(1)), conflict);
    reservations.nexus_lost(&nexus(2));
    assert_eq!(reservations.reserve(&nexus(1)), Ok(()));
    reservations.reset();
    assert_eq!(reservations.reserve(&nexus(2)), Ok(()));
}

/// Goal: the two kinds of reservation exclude each other, with the exceptions. SPC-2 §5.5.1,
/// SPC-4 §5.12.3.
#[test]
fn both_kinds_of_reservation_exclude_each_other() {
    let mut reservations = Reservations::new(true);
    reservations.reserve(&nexus(1)).unwrap();
    for action in 0..4 {
        assert_eq!(reservations.report(action, usize::MAX), Err(Refusal::ReservationConflict));
    }
    let register = request(REGISTER, Type(0));
    assert_eq!(reservations.out(&nexus(1), &ports(), register, &list(0, 1, 0)), CONFLICT);
    let mut reservations = Reservations::new(true);
    reservations.register_number(1);
    let conflict = Err(Refusal::ReservationConflict);
    assert_eq!(reservations.reserve(&nexus(1)), conflict);
    assert_eq!(reservations.release(&nexus(2)), conflict);
    for kind in TYPES {
        let mut reservations = reserved(kind);
        for number in 1..=4 {
            let only = matches!(kind, Type::WRITE_EXCLUSIVE | Type::EXCLUSIVE_ACCESS);
            let excepted = number == 1 || (number < 4 && !only);
            let expected = if excepted { Ok(()) } else { conflict.clone() };
            assert_eq!(reservations.reserve(&nexus(number)), expected, "{kind:?} {number}");
            assert_eq!(reservations.release(&nexus(number)), expected, "{kind:?} {number}");
        }
        assert_eq!(reservations.kind, Some(kind));
    }
}

/// Goal: registrations survive a logout and a reset.
#[test]
fn registrations_survive_logout_and_reset() {
    let mut reservations = reserved(Type::EXCLUSIVE_ACCESS);
    reservations.nexus_lost(&nexus(1));
    reservations.reset();
    assert!(reservations.conflict(&nexus(2), ReservationAccess::Read));
    let mut back = nexus(1);
    back.port.relative_id = 7;
    reservations.nexus_attached(&back);
    assert!(!reservations.conflict(&back, ReservationAccess::Write));
    let status = reservations.report(3, usize::MAX).unwrap();
    assert_eq!(status[8 + 18..8 + 20], [0, 7]);
}

#[test]
fn read_keys_and_reservation_bytes() {
    let mut reservations = Reservations::new(true);
    assert_eq!(reservations.report(0, usize::MAX).unwrap(), [0; 8]);
    assert_eq!(reservations.report(1, usize::MAX).unwrap(), [0; 8]);
    reservations.register_number(1);
    reservations.register_number(2);
    let keys = [0, 0, 0, 2, 0, 0, 0, 16, 10, 11, 12, 13, 0, 0, 0, 1, 10, 11, 12, 13, 0, 0, 0, 2];
    assert_eq!(reservations.report(0, usize::MAX).unwrap(), keys);
    reservations.act_as(2, RESERVE, Type::WRITE_EXCLUSIVE_REGISTRANTS_ONLY, 0).unwrap();
    let held = [0, 0, 0, 2, 0, 0, 0, 16, 10, 11, 12, 13, 0, 0, 0, 2, 0, 0, 0, 0, 0, 5, 0, 0];
    assert_eq!(reservations.report(1, usize::MAX).unwrap(), held);
    let mut reservations = reserved(Type::EXCLUSIVE_ACCESS_ALL_REGISTRANTS);
    let held = [0, 0, 0, 3, 0, 0, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0];
    assert_eq!(reservations.report(1, usize::MAX).unwrap(), held, "no key where all hold it");
    reservations.act_as(1, RELEASE, Type::EXCLUSIVE_ACCESS_ALL_REGISTRANTS, 0).unwrap();
    assert_eq!(reservations.report(1, usize::MAX).unwrap(), [0, 0, 0, 3, 0, 0, 0, 0]);
}

/// Goal: only the requested part of a full status is built, and it equals the beginning of the
/// whole one. Fault: READ FULL STATUS with an allocation length of 8 built 128 kB of
/// descriptors under the unit's lock; twelve sessions with 128 of them stopped all other
/// initiators.
#[test]
fn full_status_is_built_up_to_the_allocation_length() {
    let mut reservations = Reservations::new(true);
    (1..=9).for_each(|number| reservations.register_number(number));
    let whole = reservations.report(3, usize::MAX).unwrap();
    let additional = u32::from_be_bytes(whole[4..8].try_into().unwrap()) as usize;
    assert_eq!(additional, whole.len() - 8);
    let descriptor = additional / 9;
    for (wanted, made) in [(0, 8), (8, 8), (9, 8 + descriptor), (8 + descriptor, 8 + descriptor)] {
        assert_eq!(reservations.report(3, wanted).unwrap(), whole[..made], "{wanted} bytes");
    }
}

/// Fault: READ KEYS built all keys, 8 KiB, whatever the allocation length.
#[test]
fn keys_are_built_up_to_the_allocation_length() {
    let mut reservations = Reservations::new(true);
    (1..=9).for_each(|number| reservations.register_number(number));
    let whole = reservations.report(0, usize::MAX).unwrap();
    assert_eq!(whole.len(), 8 + 9 * 8);
    for (wanted, made) in [(0, 8), (8, 8), (9, 16), (16, 16), (17, 24), (80, 80), (81, 80)] {
        assert_eq!(reservations.report(0, wanted).unwrap(), whole[..made], "{wanted} bytes");
    }
}

#[test]
fn capabilities_bytes() {
    let capabilities = Reservations::new(false).report(2, usize::MAX).unwrap();
    assert_eq!(capabilities, [0, 8, 0x14, 0xb0, 0xea, 0x01, 0, 0]);
    let mut reservations = Reservations::new(true);
    assert_eq!(reservations.report(2, usize::MAX).unwrap()[..4], [0, 8, 0x15, 0xb0]);
    let outcome =
        reservations.out(&nexus(1), &ports(), request(REGISTER, Type(0)), &list(0, 1, APTPL));
    assert!(outcome.unwrap().save);
    assert_eq!(reservations.report(2, usize::MAX).unwrap()[..4], [0, 8, 0x15, 0xb1]);
}

#[test]
fn persistent_reserve_in_has_four_service_actions() {
    let refused = Err(Refusal::Check(Sense::invalid_field_in_cdb(1, Some(4))));
    for action in 0..32 {
        let report = Reservations::new(true).report(action, usize::MAX);
        if action < 4 { assert!(report.is_ok()) } else { assert_eq!(report, refused) }
    }
}

#[test]
fn full_status_bytes() {
    let status = reserved(Type::EXCLUSIVE_ACCESS).report(3, usize::MAX).unwrap();
    // "iqn.2026-11.org.example:1,i,0x800000000001" is 42 characters.
    assert_eq!(status[..8], [0, 0, 0, 3, 0, 0, 0, 3 * (24 + 48)]);
    let (first, second) = (&status[8..80], &status[80..152]);
    let head = [10, 11, 12, 13, 0, 0, 0, 1, 0, 0, 0, 0, 1, 3, 0, 0, 0, 0, 0, 1, 0, 0, 0, 48];
    assert_eq!(first[..24], head);
    assert_eq!(first[24..28], [0x45, 0, 0, 44]);
    assert_eq!(&first[28..], b"iqn.2026-11.org.example:1,i,0x800000000001\0\0");
    assert_eq!(second[12..14], [0, 0], "not the holder");
    let status = reserved(Type::WRITE_EXCLUSIVE_ALL_REGISTRANTS).report(3, usize::MAX).unwrap();
    for at in [8, 80, 152] {
        assert_eq!(status[at + 12..at + 14], [1, 7], "each of them holds it");
    }
}

fn any_kind() -> impl Strategy<Value = u8> {
    prop_oneof![8 => prop::sample::select(TYPES.map(|kind| kind.0).to_vec()), 1 => any::<u8>()]
}

proptest! {
    /// Goal: no sequence of commands breaks the invariants, and a refusal changes nothing.
    /// Method: five initiators, each through two ports, few keys so that they collide, every
    /// action, with losses and resets in between.
    #[test]
    fn any_sequence_keeps_the_invariants(steps in prop::collection::vec(
        (0_u8..10, 0_u8..10, any_kind(), 0_u64..4, 0_u64..4, 0_u8..4), 0..60,
    )) {
        let mut reservations = Reservations::new(true);
        for (number, action, scope_and_type, key, action_key, flags) in steps {
            let who = if number < 5 { nexus(number) } else { far(number - 5) };
            let (aptpl, all_ports) = (flags & 1, (flags & 2) << 1);
            if action == 8 {
                reservations.nexus_lost(&who);
                let _ = reservations.reserve(&who);
            } else if action == 9 {
                reservations.reset();
            } else {
                let before = reservations.clone();
                let request =
                    OutRequest { service_action: action, scope_and_type, parameter_bytes: 24 };
                let list = if action == REGISTER_AND_MOVE {
                    let mut list = moving::move_list(action_key, aptpl * 3, 2, &nexus(3));
                    list[..8].copy_from_slice(&key.to_be_bytes());
                    list
                } else {
                    list(key, action_key, aptpl | all_ports)
                };
                let request = OutRequest { parameter_bytes: list.len() as u32, ..request };
                match reservations.out(&who, &ports(), request, &list) {
                    Ok(outcome) => {
                        prop_assert_eq!(outcome.save, before.encode() != reservations.encode());
                        prop_assert!(outcome.attentions.iter().all(|(nexus, _)| *nexus != who));
                        prop_assert!(!outcome.abort.contains(&who));
                        prop_assert_eq!(outcome.abort.is_empty() || action == 5, true);
                    }
                    Err(_) => {
                        // Fault: a refused command copied all registrations.
                        let after = &reservations.registrations;
                        prop_assert!(Arc::ptr_eq(&before.registrations, after));
                        prop_assert_eq!(&before.registrations, &reservations.registrations);
                        prop_assert_eq!(before.kind, reservations.kind);
                        prop_assert_eq!(before.generation, reservations.generation);
                    }
                }
            }
            prop_assert!(reservations.is_consistent());
            for action in 0..4 {
                if let Ok(data) = reservations.report(action, usize::MAX) {
                    let length = if action == 2 { data[1].into() } else {
                        8 + u32::from_be_bytes([data[4], data[5], data[6], data[7]]) as usize
                    };
                    prop_assert_eq!(data.len(), length);
                }
            }
            let state = reservations.encode();
            prop_assert_eq!(Reservations::decode(&state, true).unwrap().encode(), state);
        }
    }

    /// Goal: hostile parameter lists never cause a panic.
    #[test]
    fn any_parameter_list_is_handled(
        service_action in any::<u8>(), scope_and_type in any::<u8>(),
        bytes in prop::collection::vec(any::<u8>(), 0..40),
    ) {
        let parameter_bytes = bytes.len() as u32;
        let request = OutRequest { service_action, scope_and_type, parameter_bytes };
        let mut reservations = reserved(Type::WRITE_EXCLUSIVE);
        let _ = reservations.out(&nexus(2), &ports(), request, &bytes);
        prop_assert!(reservations.is_consistent());
    }
}
