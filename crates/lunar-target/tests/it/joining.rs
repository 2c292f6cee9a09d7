//! Tests of sessions and connections that replace others, also concurrently, and of access to
//! targets.

use crate::common::*;
use lunar_block::{Effect, Fault, FaultOperation};
use lunar_iscsi::login::{ChapAlgorithm, ChapRequirement, Credential, Secret};
use lunar_testkit::raw::{RawAnswer, RawClient, opcode};
use std::time::{Duration, Instant};

/// Goal: TARGET COLD RESET ends every session of the target, including those of other initiators,
/// once its response is sent. RFC 7143 §11.5.1.
#[test]
fn a_cold_reset_ends_every_session() {
    let rig = Rig::new();
    let (mut one, two) = (rig.log_in(1), rig.log_in(2));
    let mut second = RawClient::connect(&rig.address).unwrap();
    let (status, tsih) = join(&mut second, 3, 0, 0);
    assert_eq!(status, 0);
    let mut third = RawClient::connect(&rig.address).unwrap();
    third.cmd_sn = second.cmd_sn;
    assert_eq!(join(&mut third, 3, tsih, 1), (0, tsih));
    let tag = send_function(&mut one, TARGET_COLD_RESET, u32::MAX);
    let answer = answer_to(&mut one, tag);
    assert_eq!((answer.opcode(), answer.header[2]), (0x22, 0), "function complete");
    for mut raw in [one, two, second, third] {
        raw.wait_until_closed(TEST_TIMEOUT).unwrap();
    }
    rig.log_in(1).read_block(0).unwrap();
    rig.stop_cleanly();
}

/// Returns the number of these connections that are still open once no more PDUs arrive.
fn still_open(connections: &mut [RawClient]) -> usize {
    let is_open = |raw: &mut RawClient| loop {
        match raw.answer(Duration::from_millis(300)).unwrap() {
            RawAnswer::Closed => return false,
            RawAnswer::TimedOut => return true,
            RawAnswer::Pdu(_) => {}
        }
    };
    connections.iter_mut().map(is_open).filter(|open| *open).count()
}

/// Repeats [`still_open`] until at most `open_max` are open, or a minute has passed.
fn left_open(connections: &mut [RawClient], open_max: usize) -> usize {
    let until = Instant::now() + MINUTE;
    while still_open(connections) > open_max && Instant::now() < until {}
    still_open(connections)
}

/// Goal: session reinstatement, RFC 7143 §6.3.5: the old session ends first, with all its tasks,
/// and the new one has its own TSIH, never 0.
#[test]
fn a_session_replaces_another_one() {
    let rig = Rig::new();
    let mut old = RawClient::connect(&rig.address).unwrap();
    let (status, old_tsih) = join(&mut old, 1, 0, 0);
    assert_eq!(status, 0);
    assert_eq!(old.execute(&[0; 6], 0).unwrap().0, 0);
    rig.device.inject(Fault::new(Effect::Hang).on(FaultOperation::Read).times(1));
    send_read(&mut old, 0, 1);
    rig.wait_for("it hangs", |rig| rig.device.hanging() == 1);
    let mut bystander = rig.log_in(2);
    let mut new = RawClient::connect(&rig.address).unwrap();
    let (status, new_tsih) = join(&mut new, 1, 0, 0);
    assert_eq!(status, 0);
    assert!(old_tsih != 0 && new_tsih != 0 && old_tsih != new_tsih, "{old_tsih} {new_tsih}");
    assert_eq!(rig.device.hanging(), 0, "the task ended before the new session began");
    old.wait_until_closed(TEST_TIMEOUT).unwrap();
    new.read_block(0).unwrap();
    bystander.read_block(0).unwrap();
    rig.stop_cleanly();
}

/// Goal: an unnamed discovery session replaces one with the same initiator, ISID and address, RFC
/// 7143 §7.4.2.1; other sessions stay.
#[test]
fn a_discovery_session_replaces_another_one() {
    let rig = Rig::with(|options| options.portals.push(options.portals[0].clone()));
    let log_in = |address: &str, number: u32, isid: u8, more: &str| {
        let mut raw = RawClient::connect(address).unwrap();
        let text = format!(
            "InitiatorName=iqn.2026-11.org.lunarsan.test:raw-{number}\0\
             SessionType=Discovery\0{more}"
        );
        raw.send(&raw.login(text.as_bytes()).put(13, &[isid])).unwrap();
        assert_eq!(raw.expect(opcode::LOGIN_RESPONSE).unwrap().header[36..38], [0, 0]);
        raw
    };
    let named = format!("TargetName={TARGET}\0");
    let (here, there) = (&rig.address, &rig.addresses()[1]);
    let mut first = log_in(here, 1, 1, "");
    let mut others = [
        log_in(here, 2, 1, ""),
        log_in(here, 1, 2, ""),
        log_in(there, 1, 1, ""),
        log_in(here, 1, 1, &named),
        rig.log_in(1),
    ];
    let mut again = [log_in(here, 1, 1, "")];
    first.wait_until_closed(TEST_TIMEOUT).unwrap();
    assert_eq!((still_open(&mut others), still_open(&mut again)), (5, 1));
    drop((others, again));
    rig.stop_cleanly();
}

/// Goal: many concurrent logins of the same session leave one session, the last.
#[test]
fn one_session_of_a_name_at_a_time() {
    let rig = Rig::new();
    for _ in 0..5 {
        let address = &rig.address;
        let log_in = || {
            let mut raw = RawClient::connect(address).unwrap();
            let status = join(&mut raw, 1, 0, 0).0;
            assert!([0, 0x0302].contains(&status), "{status:#06x}");
            raw
        };
        let mut all: Vec<RawClient> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(log_in)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(left_open(&mut all, 1), 1);
    }
    rig.stop_cleanly();
}

/// Goal: connection reinstatement, RFC 7143 §6.3.4: the old connection closes, and the session goes
/// on, even if it was the only connection.
#[test]
fn a_connection_of_a_full_session_replaces_another() {
    let rig = Rig::new();
    let mut first = RawClient::connect(&rig.address).unwrap();
    let (status, tsih) = join(&mut first, 1, 0, 1);
    assert_eq!(status, 0);
    assert_eq!(first.execute(&[0; 6], 0).unwrap().0, 0);
    rig.device.inject(Fault::new(Effect::Hang).on(FaultOperation::Read).times(1));
    send_read(&mut first, 0, 1);
    rig.wait_for("it hangs", |rig| rig.device.hanging() == 1);
    let mut second = RawClient::connect(&rig.address).unwrap();
    second.cmd_sn = first.cmd_sn;
    assert_eq!(join(&mut second, 1, tsih, 1), (0, tsih));
    first.wait_until_closed(TEST_TIMEOUT).unwrap();
    // RFC 7143 §11.14.5: the read that ended with its connection is reported once.
    let ready = second.command(0x80, &[0; 6], 0);
    second.send(&ready).unwrap();
    let sense = answer_to(&mut second, ready.u32_at(16)).data;
    assert_eq!((sense[4] & 0x0f, sense[14], sense[15]), (6, 0x47, 0x7f), "{sense:02x?}");
    let ready = second.command(0x80, &[0; 6], 0);
    second.send(&ready).unwrap();
    assert_eq!(answer_to(&mut second, ready.u32_at(16)).header[3], 0, "GOOD");
    second.read_block(0).unwrap();
    let mut third = RawClient::connect(&rig.address).unwrap();
    third.cmd_sn = second.cmd_sn;
    assert_eq!(join(&mut third, 1, tsih, 2), (0, tsih), "one more connection");
    third.read_block(0).unwrap();
    second.cmd_sn = third.cmd_sn;
    second.read_block(0).unwrap();
    drop(third);
    second.read_block(0).unwrap();
    log_out(second);
    let mut late = RawClient::connect(&rig.address).unwrap();
    assert_eq!(join(&mut late, 1, tsih, 1).0, 0x020a, "session does not exist");
    rig.stop_cleanly();
}

/// Goal: concurrent logins with the same CID, and more than MaxConnections, never exceed the limit.
#[test]
fn connections_that_join_at_once() {
    let rig = Rig::new();
    let mut leader = RawClient::connect(&rig.address).unwrap();
    let (_, tsih) = join(&mut leader, 1, 0, 0);
    let address = &rig.address;
    let log_in = |cid: u16| {
        let mut raw = RawClient::connect(address).unwrap();
        raw.cmd_sn = 1;
        let status = join(&mut raw, 1, tsih, cid).0;
        assert!([0, 0x0206].contains(&status), "{status:#06x}");
        raw
    };
    let mut all: Vec<RawClient> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..12).map(|n| scope.spawn(move || log_in(1 + n % 6))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    all.push(leader);
    assert!((2..=4).contains(&left_open(&mut all, 4)), "MaxConnections is 4");
    let last = all.pop().unwrap();
    drop(all);
    drop(last);
    assert_eq!(log_in_again(&rig), 0);
    rig.stop_cleanly();
}

fn log_in_again(rig: &Rig) -> u16 {
    let mut raw = RawClient::connect(&rig.address).unwrap();
    join(&mut raw, 1, 0, 0).0
}

/// Goal: waiting takes no CPU time. Method: a session that has replaced one whose write hangs; a
/// peer that does not read; a peer that has closed its half while its write hangs; all at once, for
/// two seconds.
#[test]
fn waiting_is_idle() {
    let rig = Rig::alone_with(|options| options.limits.data_in_bytes = 1 << 20);
    let mut deaf = rig.log_in(1);
    let (mut stuck, mut half) = (rig.log_in(2), rig.log_in(3));
    for _ in 0..20 {
        send_read(&mut deaf, 0, 16384);
    }
    rig.device.inject(Fault::new(Effect::Hang).on(FaultOperation::Write));
    send_write(&mut stuck, 0, 1, 1);
    send_write(&mut half, 1, 1, 1);
    rig.wait_for("both hang", |rig| rig.device.hanging() == 2);
    let bytes = half.command(0xc1, &ten(0x28, 0, 1), 512).bytes();
    half.send_bytes(&bytes[..20]).unwrap();
    half.close_sending().unwrap();
    let mut late = RawClient::connect(&rig.address).unwrap();
    let text = format!("InitiatorName=iqn.2026-11.org.lunarsan.test:raw-2\0TargetName={TARGET}\0");
    late.send(&late.login(text.as_bytes())).unwrap();
    let RawAnswer::Pdu(answer) = late.answer(TEST_TIMEOUT).unwrap() else {
        panic!("no Login Response")
    };
    assert_eq!(answer.header[36..38], [0, 0]);
    rig.wait_for("both writes are left", |rig| rig.unit().detached_write_count() == 2);
    std::thread::sleep(Duration::from_millis(1500));
    let (began, used) = (Instant::now(), cpu_seconds());
    std::thread::sleep(Duration::from_secs(2));
    let used = cpu_seconds() - used;
    assert!(used < 0.4, "{used} s of CPU in {:?}", began.elapsed());
    drop((deaf, late, stuck, half));
    rig.stop_cleanly();
}

/// Goal: an initiator without a credential for a target does not learn that the target exists,
/// neither by discovery nor at login.
#[test]
fn no_credential_no_target() {
    let rig = Rig::with(|options| {
        options.targets[0].chap = vec![lunar_target::ChapEntry {
            initiator: Some("iqn.2026-11.org.lunarsan.test:raw-7".into()),
            requirement: ChapRequirement {
                algorithms: vec![ChapAlgorithm::Md5],
                initiator: Credential { user: "a".into(), secret: Secret::new("0123456789ab") },
                target: None,
            },
        }];
    });
    let mut raw = RawClient::connect(&rig.address).unwrap();
    assert_eq!(join(&mut raw, 1, 0, 0).0, 0x0203, "not found");
    drop(raw);
    for (number, seen) in [(1, false), (7, true)] {
        assert_eq!(
            send_targets(&rig.address, number, None).contains(TARGET),
            seen,
            "initiator {number}"
        );
    }
    rig.stop_cleanly();
}
