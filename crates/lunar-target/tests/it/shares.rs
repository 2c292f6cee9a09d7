//! Tests of one initiator's share of common resources: registrations and connections.

use crate::common::chap::{entry, prove};
use crate::common::*;
use lunar_scsi::reservations::{REGISTRATIONS_OF_INITIATOR_MAX, REGISTRATIONS_OF_ORIGIN_MAX};
use lunar_testkit::raw::{RawAnswer, RawClient, RawOutcome};
use std::sync::Arc;

const INSUFFICIENT_REGISTRATION_RESOURCES: u16 = 0x5504;
const OUT_OF_RESOURCES: u16 = 0x0302;
/// A second target that shows the same unit without CHAP.
const OPEN_TARGET: &str = "iqn.2026-11.org.lunarsan.test:open";

fn isid(number: usize) -> [u8; 6] {
    let [.., high, low] = number.to_be_bytes();
    [0x80, 0, 0, 0, high, low]
}

/// Logs in under a name and an ISID; returns the status of the login.
fn log_in_as(raw: &mut RawClient, target: &str, name: &str, number: usize) -> u16 {
    raw.isid = isid(number);
    let text = format!("InitiatorName={name}\0SessionType=Normal\0TargetName={target}\0");
    raw.send(&raw.login(text.as_bytes())).unwrap();
    let RawAnswer::Pdu(answer) = raw.answer(TEST_TIMEOUT).unwrap() else {
        panic!("no Login Response")
    };
    raw.exp_stat_sn = answer.u32_at(24).wrapping_add(1);
    u16::from_be_bytes([answer.header[36], answer.header[37]])
}

/// Registers a key; returns the sense code, or 0 for GOOD.
fn register(raw: &mut RawClient) -> u16 {
    let mut list = [0; 24];
    list[15] = 1;
    let cdb = [0x5f, 0, 0, 0, 0, 0, 0, 0, 24, 0];
    let outcome: RawOutcome = raw.execute_with(&cdb, &list).unwrap();
    if outcome.status == 0 { 0 } else { outcome.sense_codes().1 }
}

/// Logs in from a local address, registers, and disconnects.
fn register_as(rig: &Rig, source: &str, target: &str, name: &str, number: usize) -> u16 {
    let mut raw = connect_from(source, &rig.address);
    assert_eq!(log_in_as(&mut raw, target, name, number), 0);
    register(&mut raw)
}

/// Goal: an initiator that registers under ever new ISIDs does not use up the registrations of the
/// unit: other initiators can still register.
#[test]
fn one_initiator_does_not_take_all_registrations() {
    let rig = Rig::new();
    let greedy = "iqn.2026-11.org.lunarsan.test:greedy";
    for number in 0..REGISTRATIONS_OF_INITIATOR_MAX {
        assert_eq!(register_as(&rig, "127.0.0.1", TARGET, greedy, number), 0, "{number}");
    }
    let refused = register_as(&rig, "127.0.0.1", TARGET, greedy, 5000);
    assert_eq!(refused, INSUFFICIENT_REGISTRATION_RESOURCES);
    let other = "iqn.2026-11.org.lunarsan.test:other";
    assert_eq!(register_as(&rig, "127.0.0.1", TARGET, other, 0), 0);
    assert_eq!(register_as(&rig, "127.0.0.2", TARGET, greedy, 5000), 0, "the name claimed there");
    rig.stop_cleanly();
}

/// Goal: a host that uses ever new names does not use them up either, unless it proves the names;
/// one credential for all names proves none.
#[test]
fn one_address_does_not_take_all_registrations() {
    let rig = Rig::with(|options| {
        let unit = Arc::clone(&options.targets[0].luns[0].unit);
        options.targets.push(target(OPEN_TARGET, unit));
        let own = entry(Some(1), "alice", "alices secret");
        options.targets[0].chap = vec![own, entry(None, "all", "the one of all")];
    });
    for number in 0..REGISTRATIONS_OF_ORIGIN_MAX {
        let name = format!("iqn.2026-11.org.lunarsan.test:greedy-{number}");
        assert_eq!(register_as(&rig, "127.0.0.1", OPEN_TARGET, &name, 0), 0, "{number}");
    }
    let more = "iqn.2026-11.org.lunarsan.test:more";
    let refused = register_as(&rig, "127.0.0.1", OPEN_TARGET, more, 0);
    assert_eq!(refused, INSUFFICIENT_REGISTRATION_RESOURCES);
    assert_eq!(register_as(&rig, "127.0.0.2", OPEN_TARGET, more, 0), 0, "another address");
    for (number, user, secret, expected) in [
        (1, "alice", "alices secret", 0),
        (2, "all", "the one of all", INSUFFICIENT_REGISTRATION_RESOURCES),
    ] {
        let mut raw = RawClient::connect(&rig.address).unwrap();
        assert_eq!(prove(&mut raw, number, user, secret), 0);
        assert_eq!(register(&mut raw), expected, "{user}");
    }
    rig.stop_cleanly();
}

/// Goal: the sessions of one initiator leave half of all connections to others, and so do sessions
/// of one address that use a common credential. A session or connection that replaces its
/// predecessor does not count twice. Sessions without proof have a share of their own (decision
/// 089).
#[test]
fn one_initiator_does_not_take_all_connections() {
    const HALF: usize = 65;
    const MINE: (u32, &str, &str) = (1, "alice", "alices secret");
    const OTHERS: (u32, &str, &str) = (2, "bob", "bobs own secret");
    const EVERYBODYS: (&str, &str) = ("all", "the one of all");
    for shared in [false, true] {
        let rig = Rig::with(|options| {
            options.limits.connections = 2 * HALF;
            options.targets[0].chap = [(Some(MINE.0), MINE), (Some(OTHERS.0), OTHERS)]
                .into_iter()
                .map(|(number, (_, user, secret))| entry(number, user, secret))
                .chain([entry(None, EVERYBODYS.0, EVERYBODYS.1)])
                .collect();
        });
        let log_in = |source, (number, user, secret), isid_number, (tsih, cid)| {
            let mut raw = connect_from(source, &rig.address);
            (raw.isid, raw.tsih, raw.cid) = (isid(isid_number), tsih, cid);
            (prove(&mut raw, number, user, secret), raw)
        };
        // Sessions of one name, or of ever new names with one credential.
        let greedy = |number: usize| match shared {
            true => (100 + number as u32, EVERYBODYS.0, EVERYBODYS.1),
            false => MINE,
        };
        let mut held = Vec::new();
        for number in 0..HALF {
            let (status, raw) = log_in("127.0.0.1", greedy(number), number, (0, 0));
            assert_eq!(status, 0, "{number}");
            held.push(raw);
        }
        assert_eq!(log_in("127.0.0.1", greedy(HALF), HALF, (0, 0)).0, OUT_OF_RESOURCES);
        let tsih = rig.server().sessions().iter().find(|s| s.isid == isid(7)).unwrap().tsih;
        let further = log_in("127.0.0.1", greedy(7), 7, (tsih, 1));
        assert_eq!(further.0, OUT_OF_RESOURCES, "one more connection of a session");
        let instead = log_in("127.0.0.1", greedy(7), 7, (tsih, 0));
        assert_eq!(instead.0, 0, "in place of the one there is");
        let again = log_in("127.0.0.1", greedy(3), 3, (0, 0));
        assert_eq!(again.0, 0, "in place of its own session");
        let other = log_in("127.0.0.1", OTHERS, 0, (0, 0));
        assert_eq!(other.0, 0, "another name that is proven");
        drop((held, instead, again, other));
        rig.stop_cleanly();
    }
}
