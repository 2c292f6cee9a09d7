//! Shares of the registrations: of one initiator, and of one origin.

use super::moving::move_list;
use super::*;

const FULL: Result<ReserveOutcome, Refusal> =
    Err(Refusal::Check(Sense::INSUFFICIENT_REGISTRATION_RESOURCES));
const GOOD: Result<ReserveOutcome, Refusal> =
    Ok(ReserveOutcome { attentions: Vec::new(), abort: Vec::new(), save: false });

/// The nexus of `name` with an ISID made from this number.
fn nexus_of(name: &str, number: usize, origin: Option<u128>) -> ItNexus {
    let [.., high, low] = number.to_be_bytes();
    let initiator = InitiatorPort { name: name.into(), isid: [0x80, 0, 0, 0, high, low] };
    ItNexus::new(&initiator, &ports()[0]).from_origin(origin.map(Origin))
}

fn register(reservations: &mut Reservations, nexus: &ItNexus) -> Result<ReserveOutcome, Refusal> {
    reservations.out(nexus, &ports(), request(REGISTER, Type(0)), &list(0, 1, 0))
}

/// Returns reservations with the maximum number of registrations of "iqn.one".
fn full_of_one() -> Reservations {
    let mut reservations = Reservations::new(true);
    for number in 0..REGISTRATIONS_OF_INITIATOR_MAX {
        assert_eq!(register(&mut reservations, &nexus_of("iqn.one", number, None)), GOOD);
    }
    reservations
}

/// Goal: an initiator that registers with ever new ISIDs leaves room for others.
#[test]
fn one_initiator_does_not_take_all_registrations() {
    let mut reservations = full_of_one();
    assert_eq!(register(&mut reservations, &nexus_of("IQN.one", 5000, None)), FULL);
    assert_eq!(reservations.registrations.len(), REGISTRATIONS_OF_INITIATOR_MAX);
    assert_eq!(register(&mut reservations, &nexus_of("iqn.two", 0, None)), GOOD);
    let ignore = request(REGISTER_AND_IGNORE, Type(0));
    let further = nexus_of("iqn.one", 5000, None);
    assert_eq!(reservations.out(&further, &ports(), ignore, &list(0, 1, 0)), FULL);
    let changed = reservations.out(&nexus_of("iqn.one", 7, None), &ports(), ignore, &list(0, 2, 0));
    assert_eq!(changed, GOOD, "a key is changed in place");
}

/// Goal: unregistered, preempted or cleared registrations free their room.
#[test]
fn removed_registrations_are_released() {
    let further = nexus_of("iqn.one", 5000, None);
    let other = nexus_of("iqn.two", 0, None);
    let mut reservations = full_of_one();
    let gone = list(1, 0, 0);
    let first = nexus_of("iqn.one", 0, None);
    assert_eq!(reservations.out(&first, &ports(), request(REGISTER, Type(0)), &gone), GOOD);
    assert_eq!(register(&mut reservations, &further), GOOD);
    for action in [PREEMPT, CLEAR] {
        let mut reservations = full_of_one();
        let own = reservations.out(&other, &ports(), request(REGISTER, Type(0)), &list(0, 9, 0));
        assert_eq!(own, GOOD);
        reservations.out(&other, &ports(), request(action, Type(1)), &list(9, 1, 0)).unwrap();
        assert_eq!(register(&mut reservations, &further), GOOD, "{action}");
    }
}

/// Goal: initiators without a proven name share the limit of their origin, whatever their names.
#[test]
fn one_origin_does_not_take_all_registrations() {
    let mut reservations = Reservations::new(true);
    for number in 0..REGISTRATIONS_OF_ORIGIN_MAX {
        let nexus = nexus_of(&format!("iqn.{number}"), 0, Some(7));
        assert_eq!(register(&mut reservations, &nexus), GOOD);
    }
    assert_eq!(register(&mut reservations, &nexus_of("iqn.more", 0, Some(7))), FULL);
    assert_eq!(register(&mut reservations, &nexus_of("iqn.more", 0, Some(8))), GOOD);
    assert_eq!(register(&mut reservations, &nexus_of("iqn.proven", 0, None)), GOOD);
}

/// Goal: claiming a name does not use up the share of that name.
#[test]
fn unproven_registrations_do_not_use_the_share_of_the_proven_name() {
    let mut reservations = Reservations::new(true);
    for number in 0..REGISTRATIONS_OF_INITIATOR_MAX {
        assert_eq!(register(&mut reservations, &nexus_of("iqn.one", number, Some(7))), GOOD);
    }
    assert_eq!(register(&mut reservations, &nexus_of("iqn.one", 5000, Some(7))), FULL);
    assert_eq!(register(&mut reservations, &nexus_of("iqn.one", 5001, Some(8))), GOOD);
    assert_eq!(register(&mut reservations, &nexus_of("iqn.one", 5002, None)), GOOD);
}

/// Goal: registrations through all ports count individually, and are made all or none.
#[test]
fn registrations_through_all_ports_count_each() {
    const ALL_TG_PT: u8 = 0x04;
    let mut reservations = Reservations::new(true);
    let all = list(0, 1, ALL_TG_PT);
    let through_all = |reservations: &mut Reservations, number, origin| {
        let nexus = nexus_of("iqn.one", number, origin);
        reservations.out(&nexus, &ports(), request(REGISTER, Type(0)), &all)
    };
    for number in 0..REGISTRATIONS_OF_INITIATOR_MAX / 2 {
        assert_eq!(through_all(&mut reservations, number, Some(7)), GOOD);
    }
    assert_eq!(through_all(&mut reservations, 5000, Some(7)), FULL);
    let far = reservations.registrations.iter().filter(|entry| entry.nexus.port == ports()[1]);
    assert!(far.clone().all(|entry| entry.owner().origin == Some(Origin(7))));
    assert_eq!(far.count(), REGISTRATIONS_OF_INITIATOR_MAX / 2);
    assert_eq!(through_all(&mut reservations, 5000, Some(8)), GOOD);
}

/// Goal: a registration that REGISTER AND MOVE makes for another initiator counts for the sender.
#[test]
fn a_moved_registration_counts_for_its_sender() {
    let mut reservations = full_of_one();
    let mover = nexus_of("iqn.one", 0, None);
    let reserve = request(RESERVE, Type::WRITE_EXCLUSIVE);
    assert_eq!(reservations.out(&mover, &ports(), reserve, &list(1, 0, 0)), GOOD);
    let move_to = |reservations: &mut Reservations, nexus: &ItNexus| {
        let mut list = move_list(0x99, 0, 1, nexus);
        list[..8].copy_from_slice(&1_u64.to_be_bytes());
        let (parameter_bytes, scope_and_type) = (list.len() as u32, 0);
        let request =
            OutRequest { service_action: REGISTER_AND_MOVE, scope_and_type, parameter_bytes };
        reservations.out(&mover, &ports(), request, &list)
    };
    let invented = nexus_of("iqn.invented", 0, None);
    assert_eq!(move_to(&mut reservations, &invented), FULL);
    let gone = nexus_of("iqn.one", 9, None);
    reservations.registrations_mut().retain(|entry| *entry.nexus != gone);
    assert_eq!(move_to(&mut reservations, &invented), GOOD);
    assert_eq!(register(&mut reservations, &nexus_of("iqn.one", 9, None)), FULL);
    assert_eq!(register(&mut reservations, &nexus_of("iqn.invented", 1, None)), GOOD);
}

/// The state of registrations of "iqn.one", as many as one initiator may have.
fn persistent(origin: Option<u128>) -> Vec<u8> {
    let mut reservations = Reservations::new(true);
    for number in 0..REGISTRATIONS_OF_INITIATOR_MAX {
        let nexus = nexus_of("iqn.one", number, origin);
        let kept = list(0, 1, APTPL);
        reservations.out(&nexus, &ports(), request(REGISTER, Type(0)), &kept).unwrap();
    }
    reservations.encode()
}

/// Fault: 128 registrations that another host had made under a name kept the initiator of this name
/// from registering, from the next restart on: the saved state does not contain their origins.
#[test]
fn loaded_registrations_count_in_no_share() {
    assert_eq!(persistent(None), persistent(Some(7)));
    for origin in [None, Some(7), Some(8)] {
        let mut loaded = Reservations::decode(&persistent(Some(7)), true).unwrap();
        let kept = ReserveOutcome { save: true, ..ReserveOutcome::default() };
        let registered = register(&mut loaded, &nexus_of("iqn.one", 5000, origin));
        assert_eq!(registered, Ok(kept), "{origin:?}");
    }
}

/// Goal: registrations of an earlier run count for an initiator that has proven its name again, and
/// among all.
#[test]
fn loaded_registrations_count_for_a_proven_name() {
    let mut loaded = Reservations::decode(&persistent(None), true).unwrap();
    loaded.nexus_attached(&nexus_of("iqn.one", 0, Some(7)));
    for number in 1..REGISTRATIONS_OF_INITIATOR_MAX {
        loaded.nexus_attached(&nexus_of("iqn.one", number, None));
    }
    assert!(register(&mut loaded, &nexus_of("iqn.one", 5000, None)).is_ok(), "one is another's");
    assert_eq!(register(&mut loaded, &nexus_of("iqn.one", 5001, None)), FULL);
    for number in 0..REGISTRATIONS_MAX - loaded.registered() {
        assert!(register(&mut loaded, &nexus_of(&format!("iqn.{number}"), 0, None)).is_ok());
    }
    let full = register(&mut loaded, &nexus_of("iqn.more", 0, None));
    assert_eq!(full, FULL, "they count among all");
}
