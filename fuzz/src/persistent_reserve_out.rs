//! Hostile PERSISTENT RESERVE OUT lists, TransportIDs among them, from four initiators through two
//! ports.

use lunar_scsi::reservations::{
    ItNexus, OutRequest, REGISTRATIONS_MAX, ReservationAccess, Reservations,
};
use lunar_scsi::unit::{InitiatorPort, TargetPort};
use std::sync::OnceLock;

const HEAD_BYTES: usize = 4;
const INITIATORS: u8 = 4;
/// Maximum number of commands in one run: further ones test little more.
const COMMANDS_MAX: usize = 16;
/// Maximum number of commands with a nearly full table, which makes each of them slow.
const COMMANDS_WITH_A_FULL_TABLE_MAX: usize = 4;
/// Value of the first byte, shifted, that selects a nearly full table of registrations: rarely
/// chosen by chance, because a run is slow.
const NEARLY_FULL: u8 = 0x60;
/// Number of further registrations for which a nearly full table has room.
const ROOM: usize = 3;

/// Runs an input. The first byte selects whether state can be kept, and whether there are many
/// registrations already. Commands follow: a byte with the sender (low bits) or another event, the
/// service action, scope and type, the list's length, and the list. The rest is used as a state
/// file.
pub fn run(input: &[u8]) {
    let Some((choice, mut rest)) = input.split_first() else { return };
    let can_persist = choice & 1 == 0;
    let is_nearly_full = choice >> 1 == NEARLY_FULL;
    let (mut reservations, commands_max) = if is_nearly_full {
        (nearly_full(can_persist), COMMANDS_WITH_A_FULL_TABLE_MAX)
    } else {
        (Reservations::new(can_persist), COMMANDS_MAX)
    };
    let ports = [port(1), port(2)];
    let mut commands = 0;
    while let Some((head, after)) = rest.split_at_checked(HEAD_BYTES) {
        commands += 1;
        if commands > commands_max {
            break;
        }
        let (list, after) = after.split_at(usize::from(head[3]).min(after.len()));
        rest = after;
        let who = nexus(head[0] % INITIATORS, &ports[usize::from(head[0] >> 2 & 1)]);
        match head[0] >> 4 {
            0xe => reservations.nexus_lost(&who),
            0xd => reservations.nexus_attached(&who),
            0xc => reservations.reset(),
            0xb => drop(reservations.reserve(&who)),
            0xa => drop(reservations.release(&who)),
            _ => {
                let request = OutRequest {
                    service_action: head[1] & 0x1f,
                    scope_and_type: head[2],
                    parameter_bytes: list.len() as u32,
                };
                out(&mut reservations, &who, &ports, request, list, is_nearly_full);
            }
        }
        if !is_nearly_full {
            check(&reservations);
        }
    }
    check(&reservations);
    let state = reservations.encode();
    let decoded = Reservations::decode(&state, can_persist).expect("a saved state can be restored");
    assert_eq!(decoded.encode(), state);
    if let Ok(taken) = Reservations::decode(rest, true) {
        assert_eq!(taken.encode(), rest, "a state that is taken is all of it");
    }
}

fn port(tag: u16) -> TargetPort {
    TargetPort { name: "iqn.2026-01.example:t".into(), portal_group_tag: tag, relative_id: tag }
}

fn nexus(number: u8, port: &TargetPort) -> ItNexus {
    let initiator =
        InitiatorPort { name: format!("iqn.i{number}"), isid: [0x80, 0, 0, 0, 0, number] };
    ItNexus::new(&initiator, port)
}

fn out(
    reservations: &mut Reservations,
    who: &ItNexus,
    ports: &[TargetPort],
    request: OutRequest,
    list: &[u8],
    is_nearly_full: bool,
) {
    // The reports of a nearly full table are long: its state contains the same.
    let seen = |reservations: &Reservations| {
        let reports = if is_nearly_full { Default::default() } else { reports(reservations) };
        (reports, reservations.encode())
    };
    let before = seen(reservations);
    match reservations.out(who, ports, request, list) {
        Ok(outcome) => {
            assert_eq!(outcome.save, before.1 != reservations.encode());
            assert!(outcome.attentions.iter().all(|(nexus, _)| nexus != who), "it knows");
            assert!(!outcome.abort.contains(who), "its own command is one of them");
        }
        Err(_) => {
            let after = seen(reservations);
            assert_eq!(before, after, "a refused command changes nothing: {request:?}");
        }
    }
}

/// Returns all reports of PERSISTENT RESERVE IN.
fn reports(reservations: &Reservations) -> [Option<Vec<u8>>; 4] {
    [0, 1, 2, 3].map(|action| reservations.report(action, usize::MAX).ok())
}

/// Returns reservations with room for few registrations beside those of others.
fn nearly_full(can_persist: bool) -> Reservations {
    static TABLES: [OnceLock<Reservations>; 2] = [const { OnceLock::new() }; 2];
    let table = TABLES[usize::from(can_persist)].get_or_init(|| {
        let mut reservations = Reservations::new(can_persist);
        let request = OutRequest { service_action: 0, scope_and_type: 0, parameter_bytes: 24 };
        let mut list = [0; 24];
        (list[15], list[20]) = (1, u8::from(can_persist));
        for number in 0..REGISTRATIONS_MAX - ROOM {
            let [.., high, low] = number.to_be_bytes();
            let name = format!("iqn.other{number}");
            let who =
                ItNexus::new(&InitiatorPort { name, isid: [0, 0, 0, 0, high, low] }, &port(1));
            reservations.out(&who, &[], request, &list).expect("there is room");
        }
        reservations
    });
    table.clone()
}

fn check(reservations: &Reservations) {
    let [keys, held, _, status] = reports(reservations);
    let (Some(keys), Some(held), Some(status)) = (keys, held, status) else {
        return; // RESERVE (6) is in effect
    };
    let keys = list_of(&keys);
    assert!(keys.len() / 8 <= REGISTRATIONS_MAX, "{} registrations", keys.len() / 8);
    assert!(keys.chunks(8).all(|key| key != [0; 8]), "0 is no key");
    let kind = list_of(&held).get(13).copied();
    assert!(matches!(kind, None | Some(1 | 3 | 5..=8)), "{kind:?}");
    let holders = holders(list_of(&status), keys, kind);
    let expected = match kind {
        None => 0,
        Some(7 | 8) => keys.len() / 8,
        Some(_) => 1,
    };
    assert_eq!(holders, expected, "{kind:?}");
    if kind.is_none() {
        assert!(
            !reservations.conflict(&nexus(9, &port(9)), ReservationAccess::Write),
            "nothing is reserved"
        );
    } else {
        assert!(reservations.conflict(&nexus(9, &port(9)), ReservationAccess::Write), "a stranger");
    }
}

/// Returns the list after the header, which contains its length.
fn list_of(report: &[u8]) -> &[u8] {
    let (head, list) = report.split_at(8);
    assert_eq!(u32::from_be_bytes([head[4], head[5], head[6], head[7]]) as usize, list.len());
    list
}

/// Walks the full status descriptors, one per key in order; returns how many hold the reservation.
fn holders(mut status: &[u8], keys: &[u8], kind: Option<u8>) -> usize {
    let mut holders = 0;
    for key in keys.chunks(8) {
        let (head, after) = status.split_at(24);
        assert_eq!(&head[..8], key);
        let holds = head[12] & 1 != 0;
        assert_eq!(head[13], if holds { kind.unwrap_or(0) } else { 0 });
        holders += usize::from(holds);
        let bytes = u32::from_be_bytes([head[20], head[21], head[22], head[23]]) as usize;
        status = &after[bytes..];
    }
    assert!(status.is_empty());
    holders
}
