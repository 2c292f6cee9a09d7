//! REGISTER AND MOVE.

use super::*;

/// Builds the parameter list of REGISTER AND MOVE from initiator 1 to `destination`.
pub(super) fn move_list(
    action_key: u64,
    flags: u8,
    relative_id: u16,
    destination: &ItNexus,
) -> Vec<u8> {
    let transport_id = transport::encode(&destination.initiator);
    let mut list = Vec::from(key(1).to_be_bytes());
    list.extend_from_slice(&action_key.to_be_bytes());
    list.extend_from_slice(&[0, flags]);
    list.extend_from_slice(&relative_id.to_be_bytes());
    list.extend_from_slice(&(transport_id.len() as u32).to_be_bytes());
    list.extend(transport_id);
    list
}

fn move_with(
    reservations: &mut Reservations,
    number: u8,
    list: &[u8],
) -> Result<ReserveOutcome, Refusal> {
    let request = OutRequest {
        service_action: REGISTER_AND_MOVE,
        scope_and_type: 0,
        parameter_bytes: list.len() as u32,
    };
    let outcome = reservations.out(&nexus(number), &ports(), request, list);
    assert!(reservations.is_consistent());
    outcome
}

/// Goal: a reservation moves to an unregistered nexus and to a registrant, with and without UNREG.
/// SPC-4 §5.12.8.
#[test]
fn moving_a_reservation() {
    for kind in TYPES {
        for (to, unregister) in [(2, false), (2, true), (4, false), (4, true)] {
            let mut reservations = reserved(kind);
            let list = move_list(0x99, if unregister { 2 } else { 0 }, 1, &nexus(to));
            let outcome = move_with(&mut reservations, 1, &list);
            if kind.is_all_registrants() {
                assert_eq!(outcome, CONFLICT);
                continue;
            }
            assert_eq!(outcome, Ok(ReserveOutcome::default()));
            assert_eq!(reservations.kind, Some(kind));
            let holder = reservations.registrations.iter().find(|entry| entry.holds).unwrap();
            assert_eq!((&*holder.nexus, holder.key), (&nexus(to), 0x99));
            assert_eq!(reservations.find(&nexus(1)).is_none(), unregister);
            assert_eq!(reservations.generation, 4);
        }
    }
}

/// Goal: a reservation moves to a port without registrations, also of the sender's own initiator.
#[test]
fn moving_to_another_port() {
    for to in [1, 4] {
        let mut reservations = reserved(Type::EXCLUSIVE_ACCESS);
        let list = move_list(0x99, 0, 2, &nexus(to));
        assert_eq!(move_with(&mut reservations, 1, &list), Ok(ReserveOutcome::default()));
        assert!(!reservations.conflict(&far(to), ReservationAccess::Write));
        assert!(reservations.conflict(&nexus(1), ReservationAccess::Write));
        assert!(reservations.conflict(&nexus(to), ReservationAccess::Write));
    }
}

#[test]
fn invalid_moves_are_refused() {
    let kind = Type::WRITE_EXCLUSIVE;
    let wrong = |byte, bit| Err(Refusal::Check(Sense::invalid_field_in_parameter_list(byte, bit)));
    let mut reservations = reserved(kind);
    reservations.can_persist = false;
    let mut move_by = |number, list: &[u8]| move_with(&mut reservations, number, list);
    assert_eq!(move_by(2, &move_list(9, 0, 1, &nexus(4))), CONFLICT, "the key of another");
    assert_eq!(move_by(4, &move_list(9, 0, 1, &nexus(2))), CONFLICT, "not registered");
    assert_eq!(move_by(1, &move_list(0, 0, 1, &nexus(4))), wrong(8, None));
    assert_eq!(move_by(1, &move_list(9, APTPL, 1, &nexus(4))), wrong(17, Some(0)));
    assert_eq!(move_by(1, &move_list(9, 0, 3, &nexus(4))), wrong(18, None), "no such port");
    assert_eq!(move_by(1, &move_list(9, 0, 1, &nexus(1))), wrong(24, None), "to itself");
    let mut list = move_list(9, 0, 1, &nexus(4));
    list[23] += 4;
    assert_eq!(move_by(1, &list), wrong(20, None));
    list[23] -= 4;
    list[24] = 0x05;
    assert_eq!(move_by(1, &list), wrong(24, None), "no port");
    let short = Err(Refusal::Check(Sense::PARAMETER_LIST_LENGTH_ERROR));
    assert_eq!(move_by(1, &list[..44]), short);
    let mut holder = move_list(9, 0, 1, &nexus(4));
    holder[..8].copy_from_slice(&key(2).to_be_bytes());
    assert_eq!(move_by(2, &holder), CONFLICT, "not the holder");
    reservations.act_as(1, RELEASE, kind, 0).unwrap();
    let nothing = Err(Refusal::Check(Sense::invalid_field_in_cdb(1, Some(4))));
    let list = move_list(9, 0, 1, &nexus(4));
    assert_eq!(move_with(&mut reservations, 1, &list), nothing, "nothing to move");
    assert_eq!(reservations.keys(), [key(1), key(2), key(3)]);
}
