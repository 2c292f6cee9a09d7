//! Persistent state, and refused states.

use super::*;

/// Goal: the last registration decides about APTPL. Method: state in bytes after each step.
#[test]
fn the_last_registration_decides_about_aptpl() {
    let mut reservations = Reservations::new(true);
    reservations.register_number(2);
    assert_eq!(reservations.encode(), []);
    let mut register = |own, new, flags| {
        reservations
            .out(&nexus(1), &ports(), request(REGISTER, Type(0)), &list(own, new, flags))
            .unwrap()
    };
    assert!(register(0, key(1), APTPL).save);
    assert!(!register(key(1), key(1), APTPL).save, "nothing changed");
    let outcome = reservations.act_as(1, RESERVE, Type::WRITE_EXCLUSIVE, 0).unwrap();
    assert!(outcome.save);
    let state = reservations.encode();
    let mut restored = Reservations::decode(&state, true).unwrap();
    assert_eq!(restored.encode(), state);
    assert_eq!(restored.generation, 0, "a power on");
    assert_eq!(restored.keys(), [key(1), key(2)]);
    assert!(restored.conflict(&nexus(2), ReservationAccess::Write));
    let outcome = restored.act_as(1, REGISTER, Type(0), key(1)).unwrap();
    assert!(outcome.save, "without APTPL the state is erased");
    assert_eq!(restored.encode(), []);
}

/// Goal: damaged state is refused. Method: each byte flipped, each prefix.
#[test]
fn damaged_state_is_refused() {
    let mut reservations = reserved(Type::EXCLUSIVE_ACCESS);
    reservations.persists = true;
    let state = reservations.encode();
    for at in 0..state.len() {
        let mut damaged = state.clone();
        damaged[at] ^= 0x40;
        assert!(Reservations::decode(&damaged, true).is_err(), "byte {at}");
        if at > 0 {
            assert!(Reservations::decode(&state[..at], true).is_err(), "cut at {at}");
        }
    }
    assert!(Reservations::decode(&state, true).is_ok());
}

/// Goal: state with a correct checksum and contradictory contents is refused as well.
/// Method: break an invariant, encode, decode.
#[test]
fn contradicting_state_is_refused() {
    let good = || {
        let mut reservations = reserved(Type::WRITE_EXCLUSIVE);
        reservations.persists = true;
        reservations
    };
    let breaks: [fn(&mut Reservations); 7] = [
        |state| state.registrations_mut()[1].holds = true,
        |state| state.registrations_mut()[0].holds = false,
        |state| state.kind = None,
        |state| state.kind = Some(Type(2)),
        |state| state.kind = Some(Type::WRITE_EXCLUSIVE_ALL_REGISTRANTS),
        |state| state.registrations_mut()[2].key = 0,
        |state| state.registrations_mut()[2].nexus = nexus(1).into(),
    ];
    assert!(Reservations::decode(&good().encode(), true).is_ok());
    for (number, break_it) in breaks.into_iter().enumerate() {
        let mut reservations = good();
        break_it(&mut reservations);
        assert!(Reservations::decode(&reservations.encode(), true).is_err(), "{number}");
    }
}

/// Goal: state that the encoder never writes is refused too, with a correct checksum.
/// Method: patch the bytes, then correct the checksum.
#[test]
fn impossible_state_is_refused() {
    const TYPE: usize = 5;
    const COUNT: core::ops::Range<usize> = 6..10;
    const FIRST_HOLDS: usize = 10 + 8;
    let mut full = Reservations::new(true);
    full.persists = true;
    for number in 0..=REGISTRATIONS_MAX as u64 {
        let mut nexus = nexus(0);
        nexus.initiator.name = format!("iqn.x:{number}");
        let nexus = Arc::new(nexus);
        full.registrations_mut().push(Registration { nexus, key: 1, holds: false, made_by: None });
    }
    assert!(Reservations::decode(&full.encode(), true).is_err(), "one too many");
    full.registrations_mut().pop();
    assert!(Reservations::decode(&full.encode(), true).is_ok());
    let mut reservations = reserved(Type::WRITE_EXCLUSIVE);
    reservations.persists = true;
    let state = reservations.encode();
    let patched = |patch: &dyn Fn(&mut Vec<u8>)| {
        let mut state = state[..state.len() - 4].to_vec();
        patch(&mut state);
        state.extend_from_slice(&lunar_wire::crc32c(&state).to_be_bytes());
        Reservations::decode(&state, true)
    };
    assert!(patched(&|_| {}).is_ok());
    let neither_yes_nor_no = |state: &mut Vec<u8>| {
        state[TYPE] = 0;
        state[FIRST_HOLDS] = 2;
    };
    assert!(patched(&neither_yes_nor_no).is_err());
    assert!(patched(&|state| state[COUNT].fill(0xff)).is_err(), "more than there are");
    assert!(patched(&|state| state[COUNT.end - 1] = 2).is_err(), "fewer than there are");
    assert!(patched(&|state| state.push(0)).is_err(), "something behind");
    assert!(patched(&|state| state[4] = 2).is_err(), "another version");
}

proptest! {
    /// Goal: hostile state never causes a panic, with or without a correct checksum.
    #[test]
    fn any_state_decodes_or_is_refused(mut bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = Reservations::decode(&bytes, true);
        let mut state = b"LNPR\x01".to_vec();
        bytes.iter_mut().skip(1).take(3).for_each(|byte| *byte = 0);
        state.extend(bytes);
        state.extend_from_slice(&lunar_wire::crc32c(&state).to_be_bytes());
        if let Ok(reservations) = Reservations::decode(&state, true) {
            prop_assert!(reservations.is_consistent());
        }
    }
}
