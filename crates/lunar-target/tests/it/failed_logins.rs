//! Tests of failing logins: which credentials are accepted, and the delays for repeated failures.

use crate::common::chap::{answer, ask, entry, opening, prove};
use crate::common::*;
use lunar_target::ChapEntry;
use lunar_testkit::raw::{RawAnswer, RawClient};
use std::time::{Duration, Instant};

const ALICE: u32 = 1;
const BOB: u32 = 2;
const FAILED: u16 = 0x0201;

/// Logs in from this local address; returns the status and the time taken.
fn attempt(rig: &Rig, source: &str, user: &str, secret: &str) -> (u16, Duration) {
    let mut raw = connect_from(source, &rig.address);
    let began = Instant::now();
    let status = prove(&mut raw, ALICE, user, secret);
    (status, began.elapsed())
}

fn rig_of(chap: Vec<ChapEntry>, failures_free: u32, backoff_seconds_max: u16) -> Rig {
    Rig::with(|options| {
        options.targets[0].chap = chap;
        options.limits.login_failures_free = failures_free;
        options.limits.login_backoff_seconds_max = backoff_seconds_max;
        options.cores = 1;
    })
}

/// Goal: a credential belongs to one initiator only: name and secret must both be right, and names
/// are case-sensitive. The common credential does not open an initiator that has its own.
#[test]
fn a_credential_belongs_to_one_initiator() {
    let chap = vec![
        entry(Some(ALICE), "0xalice", "alices secret"),
        entry(Some(BOB), "bob", "bobs own secret"),
        entry(None, "0ball", "the one of all others"),
    ];
    let rig = rig_of(chap, 100, 0);
    for (number, user, secret, wanted) in [
        (ALICE, "0xalice", "alices secret", 0),
        (ALICE, "bob", "bobs own secret", FAILED),
        (ALICE, "0ball", "the one of all others", FAILED),
        (ALICE, "0xAlice", "alices secret", FAILED),
        (ALICE, "0xalic", "alices secret", FAILED),
        (ALICE, "bob", "alices secret", FAILED),
        (ALICE, "0xalice", "bobs own secret", FAILED),
        (ALICE, "0xalice", "", FAILED),
        (BOB, "bob", "bobs own secret", 0),
        (BOB, "0xalice", "alices secret", FAILED),
        (3, "0ball", "the one of all others", 0),
        (3, "bob", "bobs own secret", FAILED),
    ] {
        let mut raw = RawClient::connect(&rig.address).unwrap();
        assert_eq!(prove(&mut raw, number, user, secret), wanted, "{number} as {user}");
    }
    rig.stop_cleanly();
}

/// Goal: discovery that requires CHAP shows nothing without it. Method: login straight to the
/// operational stage, without a method, with an invalid method, and to the full feature phase
/// before the proof.
#[test]
fn discovery_requires_authentication() {
    let rig = Rig::with(|options| {
        options.discovery_chap = Some(entry(None, "find", "the one of discovery").requirement);
    });
    let who = "InitiatorName=iqn.2026-11.org.lunarsan.test:raw-1\0SessionType=Discovery\0";
    for (flags, more, after) in [
        (0x87, "", None),
        (0x83, "AuthMethod=None\0", None),
        (0x81, "AuthMethod=None\0", None),
        (0x00, "AuthMethod=CHAP\0CHAP_A=5\0", Some((0x83, ""))),
        (0x00, "AuthMethod=CHAP\0CHAP_A=5\0", Some((0x87, ""))),
        (0x00, "AuthMethod=CHAP\0CHAP_A=5\0", Some((0x83, "CHAP_N=find\0CHAP_R=0x00\0"))),
    ] {
        let mut raw = RawClient::connect(&rig.address).unwrap();
        let mut requests = vec![(flags, format!("{who}{more}"))];
        requests.extend(after.map(|(flags, text)| (flags, text.to_owned())));
        let mut status = 0;
        for (flags, text) in &requests {
            assert_eq!(status, 0, "before {requests:?} is through");
            status = ask(&mut raw, text.as_bytes(), *flags).0;
        }
        assert_eq!(status >> 8, 2, "{requests:?} ended with {status:#06x}");
        assert_eq!(raw.answer(TEST_TIMEOUT).unwrap(), RawAnswer::Closed);
    }
    rig.stop_cleanly();
}

/// Goal: after the free failures logins from the same address are delayed, longer each time, up to
/// a limit; a successful login ends the delay.
#[test]
fn failures_delay_logins_from_their_address() {
    let rig = rig_of(vec![entry(None, "u", "the right secret")], 1, 4);
    let wrong = |source: &str| attempt(&rig, source, "u", "a wrong secret");
    for at_least in [0, 0, 250, 500, 1000, 2000] {
        let (status, took) = wrong("127.0.0.1");
        assert_eq!(status, FAILED);
        assert!(took >= Duration::from_millis(at_least), "{took:?}");
    }
    let (status, took) = attempt(&rig, "127.0.0.1", "u", "the right secret");
    assert!(status == 0 && took >= Duration::from_secs(4), "{status:#x} {took:?}");
    // The first failure is free again; otherwise both logins would wait for four seconds.
    for _ in 0..2 {
        let (status, took) = wrong("127.0.0.1");
        assert!(status == FAILED && took < Duration::from_secs(4), "{status:#x} {took:?}");
    }
    rig.stop_cleanly();
}

/// Starts a server that delays the next login from 127.0.0.1 for longer than any machine stalls:
/// ten CHAP proofs from there have failed, and all challenges were sent before the first failure.
fn rig_that_delays_logins() -> Rig {
    let rig = Rig::with(|options| {
        options.targets[0].chap =
            vec![entry(Some(BOB), "bob", "bobs own secret"), entry(None, "u", "the right secret")];
        options.limits.login_failures_free = 0;
        options.limits.login_seconds = 120;
        options.limits.login_backoff_seconds_max = 60;
        options.cores = 1;
    });
    let mut failing: Vec<RawClient> =
        (0..10).map(|_| RawClient::connect(&rig.address).unwrap()).collect();
    let challenged: Vec<_> =
        failing.iter_mut().map(|raw| ask(raw, opening(ALICE).as_bytes(), 0x00)).collect();
    for (raw, (status, challenge)) in failing.iter_mut().zip(challenged) {
        assert_eq!(status, 0, "none has failed yet");
        assert_eq!(answer(raw, &challenge, "u", "a wrong secret"), FAILED);
    }
    rig
}

/// Goal: while logins of one address are delayed, other addresses are served at once, even on the
/// same core.
#[test]
fn delayed_logins_delay_no_other_address() {
    let rig = rig_that_delays_logins();
    let mut delayed = RawClient::connect(&rig.address).unwrap();
    delayed.send(&delayed.login(opening(ALICE).as_bytes()).put(1, &[0])).unwrap();
    for _ in 0..10 {
        assert_eq!(attempt(&rig, "127.0.0.2", "u", "the right secret").0, 0);
    }
    assert_eq!(delayed.answer(Duration::from_millis(20)).unwrap(), RawAnswer::TimedOut);
    drop(delayed);
    rig.stop_cleanly();
}

/// Goal: a flood from one address has a limited number of waiting logins; further ones are refused
/// at once with status 0301h, service unavailable. The server stops while some wait.
#[test]
fn waiting_logins_of_an_address_are_limited() {
    let rig = rig_that_delays_logins();
    let mut all: Vec<RawClient> =
        (0..20).map(|_| RawClient::connect(&rig.address).unwrap()).collect();
    for raw in &mut all {
        raw.send(&raw.login(opening(ALICE).as_bytes()).put(1, &[0])).unwrap();
    }
    assert_eq!(await_refusals(&mut all, 12), 12, "eight of twenty wait");
    assert_eq!(send_targets_from("127.0.0.2", &rig), 1, "others are served meanwhile");
    drop(all);
    rig.stop_cleanly();
}

/// Fault: the first logins to arrive took all waiting slots of an address. While other peers tried
/// out secrets in a loop, from the same host or behind the same NAT, a login with the right secret
/// was refused each time. Method: twice as many logins as there are slots come before it, and as
/// many after it, each under another name without a credential of its own.
#[test]
fn a_flood_of_logins_does_not_refuse_configured_names() {
    let rig = rig_that_delays_logins();
    let mut flood: Vec<RawClient> =
        (0..32).map(|_| RawClient::connect(&rig.address).unwrap()).collect();
    let (before, after) = flood.split_at_mut(16);
    let begin = |part: &mut [RawClient]| {
        for (raw, number) in part.iter_mut().zip(10..) {
            raw.send(&raw.login(opening(number).as_bytes()).put(1, &[0])).unwrap();
        }
    };
    begin(before);
    assert_eq!(await_refusals(before, 8), 8);
    let mut honest = RawClient::connect(&rig.address).unwrap();
    honest.send(&honest.login(opening(BOB).as_bytes()).put(1, &[0])).unwrap();
    begin(after);
    assert_eq!(await_refusals(after, 9), 9, "all before and nine of these made room");
    assert_eq!(honest.answer(Duration::from_millis(20)).unwrap(), RawAnswer::TimedOut);
    drop((flood, honest));
    rig.stop_cleanly();
}

/// Polls all connections in turn until `wanted` were refused with 0301h, and once more; returns the
/// number of refusals.
fn await_refusals(all: &mut [RawClient], wanted: usize) -> usize {
    let end = Instant::now() + TEST_TIMEOUT;
    let mut refused = vec![false; all.len()];
    loop {
        let complete = refused.iter().filter(|refused| **refused).count() >= wanted;
        for (raw, refused) in all.iter_mut().zip(&mut refused).filter(|(_, refused)| !**refused) {
            match raw.answer(Duration::from_millis(20)).unwrap() {
                RawAnswer::TimedOut => {}
                RawAnswer::Pdu(pdu) if pdu.header[36..38] == [3, 1] => *refused = true,
                other => panic!("{other:?}"),
            }
        }
        if complete || Instant::now() > end {
            return refused.into_iter().filter(|refused| *refused).count();
        }
    }
}

/// Returns the number of targets in a discovery session from this address.
fn send_targets_from(source: &str, rig: &Rig) -> usize {
    let raw = connect_from(source, &rig.address);
    let text = send_targets_over(raw, 9, None);
    text.matches("TargetName=").count()
}

/// Goal: names cannot be tried out faster than secrets, and a login to an open target gives no new
/// attempts at a protected one.
#[test]
fn attempts_with_other_names_are_counted() {
    let rig = Rig::with(|options| {
        let unit = std::sync::Arc::clone(&options.targets[0].luns[0].unit);
        let open = target("iqn.2026-11.org.lunarsan.test:open", unit);
        options.targets.push(open);
        options.targets[0].chap = vec![entry(None, "u", "the right secret")];
        options.limits.login_failures_free = 1;
        options.limits.login_backoff_seconds_max = 4;
    });
    let log_in = |name: &str| {
        let began = Instant::now();
        let status = RawClient::log_in_as(&rig.address, name, ALICE).map(drop);
        (status.is_ok(), began.elapsed())
    };
    let waits = |name: &str| {
        let (taken, took) = log_in(name);
        (taken, took >= Duration::from_secs(4))
    };
    let (open, closed) = ("iqn.2026-11.org.lunarsan.test:open", "iqn.2026-11.org.example:none");
    let [.., sixth] = [closed; 6].map(log_in);
    assert!(!sixth.0 && sixth.1 >= Duration::from_secs(2), "{sixth:?}");
    assert_eq!([open; 2].map(waits), [(true, true), (true, false)], "names: forgiven");
    for _ in 0..3 {
        assert_eq!(attempt(&rig, "127.0.0.1", "u", "a wrong secret").0, FAILED);
    }
    for (taken, took) in [open; 2].map(log_in) {
        assert!(taken && took >= Duration::from_millis(500), "not forgiven: {took:?}");
    }
    rig.stop_cleanly();
}
