//! Tests of protocol level 2 (RFC 7144) and TaskReporting=FastAbort (RFC 7143 §4.2.3.4) over TCP.

use crate::common::*;
use lunar_block::{Effect, Fault, FaultOperation};
use lunar_testkit::raw::{RawAnswer, RawClient, RawPdu, opcode};
use std::time::{Duration, Instant};

const QUERY_TASK: u8 = 9;
const QUERY_TASK_SET: u8 = 10;
const I_T_NEXUS_RESET: u8 = 11;
const QUERY_ASYNCHRONOUS_EVENT: u8 = 12;
const ABORT_TASK_SET: u8 = 2;

const COMPLETE: u8 = 0;
const NO_UNIT: u8 = 2;
const NOT_SUPPORTED: u8 = 5;
const SUCCEEDED: u8 = 7;

const LEVEL_2: &str = "iSCSIProtocolLevel=2\0";
const FAST: &str = "TaskReporting=FastAbort,ResponseFence,RFC3720\0MaxConnections=4\0\
                    InitialR2T=Yes\0ImmediateData=No\0";

/// Connects as initiator `number` with these keys, to the session `tsih` unless that is 0.
fn connect(rig: &Rig, number: u32, keys: &str, tsih: u16, cid: u16) -> (RawClient, u16) {
    let mut raw = RawClient::connect(&rig.address).unwrap();
    let keys = if tsih == 0 { keys } else { "" };
    let text = format!(
        "InitiatorName=iqn.2026-11.org.lunarsan.test:raw-{number}\0TargetName={TARGET}\0{keys}"
    );
    let login = raw.login(text.as_bytes()).put(14, &tsih.to_be_bytes()).put(20, &cid.to_be_bytes());
    raw.send(&login).unwrap();
    let answer = raw.expect(opcode::LOGIN_RESPONSE).unwrap();
    assert_eq!(answer.header[36..38], [0, 0], "login status");
    raw.text = String::from_utf8(answer.data.clone()).unwrap();
    raw.exp_stat_sn = answer.u32_at(24).wrapping_add(1);
    (raw, u16::from_be_bytes([answer.header[14], answer.header[15]]))
}

/// Starts a session with these keys and takes its first unit attention.
fn session(rig: &Rig, number: u32, keys: &str) -> RawClient {
    let (mut raw, _) = connect(rig, number, keys, 0, 0);
    assert_eq!(attention(&mut raw), Some(0x2900));
    raw
}

/// Returns the additional sense code of a TEST UNIT READY that fails.
fn attention(raw: &mut RawClient) -> Option<u16> {
    let pdu = raw.command(0x80, &[0; 6], 0);
    raw.send(&pdu).unwrap();
    let answer = answer_to(raw, pdu.u32_at(16));
    match answer.header[3] {
        0 => None,
        2 => Some(u16::from_be_bytes([answer.data[14], answer.data[15]])),
        status => panic!("status {status:#x}"),
    }
}

/// Sends an immediate function for LUN 0; returns its response and additional information.
fn ask(raw: &mut RawClient, function: u8, referenced: u32) -> (u8, [u8; 3]) {
    let tag = send_function(raw, function, referenced);
    response(&answer_to(raw, tag))
}

fn response(answer: &RawPdu) -> (u8, [u8; 3]) {
    assert_eq!(answer.opcode(), 0x22, "{answer:02x?}");
    let header = &answer.header;
    (header[2], [header[8], header[9], header[10]])
}

fn version_descriptor(raw: &mut RawClient) -> [u8; 2] {
    let inquiry = raw.command(0xc0, &[0x12, 0, 0, 0, 96, 0], 96);
    raw.send(&inquiry).unwrap();
    let answer = answer_to(raw, inquiry.u32_at(16));
    [answer.data[64], answer.data[65]]
}

/// Goal: the level is the one that both sides support, and shows in the iSCSI version descriptor as
/// 0960h plus the level. An initiator that does not offer the key, such as libiscsi, has level 1
/// and none of the functions of level 2. RFC 7144 §4.2, §7.1.1.
#[test]
fn the_level_is_negotiated() {
    let rig = Rig::new();
    for (number, keys, answer, descriptor) in [
        (1, "", None, [9, 0x61]),
        (2, "iSCSIProtocolLevel=1\0", Some("iSCSIProtocolLevel=1\0"), [9, 0x61]),
        (3, LEVEL_2, Some(LEVEL_2), [9, 0x62]),
        (4, "iSCSIProtocolLevel=31\0", Some(LEVEL_2), [9, 0x62]),
        (5, "iSCSIProtocolLevel=0\0", Some("iSCSIProtocolLevel=0\0"), [9, 0x60]),
    ] {
        let mut raw = session(&rig, number, keys);
        assert_eq!(raw.text.contains("iSCSIProtocolLevel"), answer.is_some(), "{keys}");
        assert!(raw.text.contains(answer.unwrap_or_default()), "{keys} {}", raw.text);
        assert_eq!(version_descriptor(&mut raw), descriptor, "{keys}");
        let functions = [QUERY_TASK, QUERY_TASK_SET, QUERY_ASYNCHRONOUS_EVENT, I_T_NEXUS_RESET];
        let level_2 = descriptor == [9, 0x62];
        for function in functions {
            let expected = if level_2 { COMPLETE } else { NOT_SUPPORTED };
            let answer = ask(&mut raw, function, u32::MAX - 1);
            assert_eq!(answer, (expected, [0; 3]), "{function} {keys}");
        }
        if level_2 {
            raw.wait_until_closed(TEST_TIMEOUT).unwrap();
        } else {
            log_out(raw);
        }
    }
    rig.stop_cleanly();
}

/// Goal: QUERY TASK and QUERY TASK SET distinguish running commands from others, for this session
/// and this unit. RFC 7144 §6.4.2.
#[test]
fn query_functions_find_running_tasks() {
    let rig = Rig::new();
    let (mut raw, mut other) = (session(&rig, 1, LEVEL_2), session(&rig, 2, LEVEL_2));
    assert_eq!(ask(&mut raw, QUERY_TASK_SET, u32::MAX), (COMPLETE, [0; 3]));
    rig.device.inject(Fault::new(Effect::Hang).on(FaultOperation::Read).times(1));
    let read = send_read(&mut raw, 0, 1);
    rig.wait_for("it hangs", |rig| rig.device.hanging() == 1);
    assert_eq!(ask(&mut raw, QUERY_TASK, read), (SUCCEEDED, [0; 3]));
    assert_eq!(ask(&mut raw, QUERY_TASK_SET, u32::MAX), (SUCCEEDED, [0; 3]));
    assert_eq!(ask(&mut other, QUERY_TASK_SET, u32::MAX), (COMPLETE, [0; 3]), "another's");
    rig.device.release();
    assert_eq!(answer_to(&mut raw, read).header[3], 0, "the task is not affected by the query");
    assert_eq!(ask(&mut raw, QUERY_TASK, read), (COMPLETE, [0; 3]));
    assert_eq!(ask(&mut raw, QUERY_TASK_SET, u32::MAX), (COMPLETE, [0; 3]));
    for function in [QUERY_TASK, QUERY_TASK_SET, QUERY_ASYNCHRONOUS_EVENT] {
        let tag = raw.new_tag();
        let pdu = RawPdu::new(0x40 | opcode::TASK_MANAGEMENT, 0x80 | function)
            .put(8, &[0, 9])
            .put_u32(16, tag)
            .put_u32(20, u32::MAX)
            .put_u32(24, raw.cmd_sn)
            .put_u32(28, raw.exp_stat_sn);
        raw.send(&pdu).unwrap();
        assert_eq!(response(&answer_to(&mut raw, tag)), (NO_UNIT, [0; 3]), "{function}");
    }
    log_out(raw);
    log_out(other);
    rig.stop_cleanly();
}

/// Goal: QUERY ASYNCHRONOUS EVENT reports the pending unit attention of this nexus only, and leaves
/// it pending. SAM-5 §7.
#[test]
fn pending_unit_attentions_are_reported() {
    let rig = Rig::new();
    let (mut raw, _) = connect(&rig, 1, LEVEL_2, 0, 0);
    let mut other = session(&rig, 2, LEVEL_2);
    assert_eq!(ask(&mut raw, QUERY_ASYNCHRONOUS_EVENT, u32::MAX), (SUCCEEDED, [0x16, 0x29, 0]));
    assert_eq!(ask(&mut other, QUERY_ASYNCHRONOUS_EVENT, u32::MAX), (COMPLETE, [0; 3]));
    assert_eq!(attention(&mut raw), Some(0x2900));
    assert_eq!(ask(&mut raw, QUERY_ASYNCHRONOUS_EVENT, u32::MAX), (COMPLETE, [0; 3]));
    assert_eq!(ask(&mut other, LOGICAL_UNIT_RESET, u32::MAX), (COMPLETE, [0; 3]));
    assert_eq!(ask(&mut raw, QUERY_ASYNCHRONOUS_EVENT, u32::MAX), (SUCCEEDED, [0x16, 0x29, 3]));
    log_out(raw);
    log_out(other);
    rig.stop_cleanly();
}

/// Goal: I_T NEXUS RESET aborts this nexus's tasks and ends its session, releases RESERVE (6),
/// keeps persistent registrations, is reported to the initiator after its next login, and does not
/// affect another nexus. RFC 7144 §6.3, SAM-5 §6.3.4.
#[test]
fn a_nexus_is_reset_alone() {
    let rig = Rig::new();
    let (mut raw, mut other) = (session(&rig, 1, LEVEL_2), session(&rig, 2, LEVEL_2));
    assert_eq!(raw.execute(&[0x16, 0, 0, 0, 0, 0], 0).unwrap().0, 0, "RESERVE (6)");
    assert_eq!(other.execute(&ten(0x28, 0, 1), 512).unwrap().0, 0x18, "a conflict");
    assert_eq!(raw.execute(&[0x17, 0, 0, 0, 0, 0], 0).unwrap().0, 0, "RELEASE (6)");
    rig.device.inject(Fault::new(Effect::Hang).on(FaultOperation::Read).times(2));
    send_read(&mut raw, 0, 1);
    let theirs = send_read(&mut other, 0, 1);
    rig.wait_for("both hang", |rig| rig.device.hanging() == 2);
    assert_eq!(raw.execute(&[0x16, 0, 0, 0, 0, 0], 0).unwrap().0, 0, "RESERVE (6)");
    assert_eq!(ask(&mut raw, I_T_NEXUS_RESET, u32::MAX), (COMPLETE, [0; 3]));
    raw.wait_until_closed(TEST_TIMEOUT).unwrap();
    drop(raw);
    rig.wait_for("its task ended", |rig| rig.device.hanging() == 1);
    assert_eq!(attention(&mut other), None, "no unit attention and no conflict");
    rig.device.release();
    assert_eq!(answer_to(&mut other, theirs).header[3], 0);
    let (mut raw, _) = connect(&rig, 1, LEVEL_2, 0, 0);
    assert_eq!(attention(&mut raw), Some(0x2907), "I_T NEXUS LOSS OCCURRED");
    assert_eq!(attention(&mut raw), None);
    log_out(raw);
    log_out(other);
    rig.stop_cleanly();
}

/// Sends a WRITE (10) of one block without its data and waits for its R2T; returns the tag and the
/// R2T.
fn write_asked(raw: &mut RawClient, lba: u32) -> (u32, RawPdu) {
    let pdu = raw.command(0xa0, &ten(0x2a, lba, 1), 512);
    raw.send(&pdu).unwrap();
    let r2t = raw.expect(opcode::R2T).unwrap();
    (pdu.u32_at(16), r2t)
}

fn data_out(r2t: &RawPdu, byte: u8) -> RawPdu {
    RawPdu::new(opcode::DATA_OUT, 0x80)
        .put(8, &r2t.header[8..16])
        .put(16, &r2t.header[16..24])
        .with_data(vec![byte; 512])
}

/// Waits for Asynchronous Message 5, still sends `late`, then acknowledges the message as RFC 7143
/// §11.9.1 requires.
fn acknowledge_end(raw: &mut RawClient, late: &RawPdu) {
    let message = loop {
        match raw.answer(TEST_TIMEOUT).unwrap() {
            RawAnswer::Pdu(pdu) if pdu.opcode() == 0x32 => break pdu,
            // A ping: the acknowledgement below covers it as well.
            RawAnswer::Pdu(pdu) if pdu.opcode() == opcode::NOP_IN => {}
            other => panic!("{other:02x?}"),
        }
    };
    assert_eq!((message.header[36], &message.header[8..16]), (5, &[0; 8][..]));
    raw.send(late).unwrap();
    raw.exp_stat_sn = message.u32_at(24).wrapping_add(1);
    let nop = RawPdu::new(0x40 | opcode::NOP_OUT, 0x80)
        .put(8, &message.header[8..16])
        .put_u32(16, u32::MAX)
        .put_u32(20, u32::MAX)
        .put_u32(24, raw.cmd_sn)
        .put_u32(28, raw.exp_stat_sn);
    raw.send(&nop).unwrap();
}

/// Goal: with FastAbort, writes that wait for requested data are aborted at once, on every
/// connection. The other connection is informed, and late data changes nothing. Method: without
/// FastAbort the target would wait three seconds for the data, every time; with it, only a busy
/// machine takes that long.
#[test]
fn outstanding_writes_are_aborted_fast() {
    let until = Instant::now() + MINUTE;
    while abort_outstanding_writes() >= Duration::from_secs(2) {
        assert!(Instant::now() < until, "the data is waited for");
    }
}

/// Returns the time that ABORT TASK SET takes.
fn abort_outstanding_writes() -> Duration {
    let rig = Rig::new();
    let (mut one, tsih) = connect(&rig, 1, FAST, 0, 0);
    assert!(one.text.contains("TaskReporting=FastAbort\0"), "{}", one.text);
    assert_eq!(attention(&mut one), Some(0x2900));
    let (mut two, _) = connect(&rig, 1, FAST, tsih, 1);
    write_asked(&mut one, 0);
    two.cmd_sn = one.cmd_sn;
    let (_, r2t) = write_asked(&mut two, 1);
    one.cmd_sn = two.cmd_sn;
    let began = Instant::now();
    let function = send_function(&mut one, ABORT_TASK_SET, u32::MAX);
    acknowledge_end(&mut two, &data_out(&r2t, 7));
    // The response also waits for this connection's acknowledgement.
    assert_eq!(response(&answer_to(&mut one, function)), (COMPLETE, [0; 3]));
    let took = began.elapsed();
    let nop = RawPdu::new(0x40 | opcode::NOP_OUT, 0x80)
        .put_u32(16, u32::MAX)
        .put_u32(20, u32::MAX)
        .put_u32(24, one.cmd_sn)
        .put_u32(28, one.exp_stat_sn);
    one.send(&nop).unwrap();
    assert_eq!(one.read_block(1).unwrap(), vec![0; 512], "the write had no effect");
    assert_eq!(one.read_block(0).unwrap(), vec![0; 512]);
    log_out(one); // the session
    two.wait_until_closed(TEST_TIMEOUT).unwrap();
    drop(two);
    rig.stop_cleanly();
    took
}

/// Goal: another session's reset ends a FastAbort session's write by a message, then by a unit
/// attention; a session without FastAbort gets the unit attention only. RFC 7143 §4.2.3.5.
#[test]
fn third_parties_are_informed_as_negotiated() {
    let rig = Rig::new();
    let mut by = session(&rig, 1, "");
    let mut fast = session(&rig, 2, FAST);
    let mut old = session(&rig, 3, "InitialR2T=Yes\0ImmediateData=No\0");
    let (_, r2t) = write_asked(&mut fast, 0);
    let (_, old_r2t) = write_asked(&mut old, 1);
    assert_eq!(ask(&mut by, LOGICAL_UNIT_RESET, u32::MAX).0, COMPLETE);
    acknowledge_end(&mut fast, &data_out(&r2t, 7));
    assert_eq!(old.answer(Duration::from_millis(100)).unwrap(), RawAnswer::TimedOut);
    old.send(&data_out(&old_r2t, 7)).unwrap();
    for raw in [&mut fast, &mut old] {
        assert_eq!(attention(raw), Some(0x2903));
        assert_eq!(raw.read_blocks(0, 2).unwrap(), vec![0; 1024], "neither had an effect");
    }
    for raw in [by, fast, old] {
        log_out(raw);
    }
    rig.stop_cleanly();
}

/// Goal: TASK SET FULL reports a retry delay, at level 2 only. RFC 7144 §5.2.1.
#[test]
fn task_set_full_reports_a_retry_delay() {
    let rig = Rig::with(|options| {
        options.limits.data_out_bytes = 512;
        options.limits.memory_wait_seconds = 1;
    });
    for (number, keys, qualifier) in [(1, LEVEL_2, [0, 1]), (2, "", [0, 0])] {
        let keys = format!("InitialR2T=Yes\0ImmediateData=No\0{keys}");
        let mut raw = session(&rig, number, &keys);
        let (first, r2t) = write_asked(&mut raw, 0);
        let pdu = raw.command(0xa0, &ten(0x2a, 1, 1), 512);
        raw.send(&pdu).unwrap();
        let refused = answer_to(&mut raw, pdu.u32_at(16));
        assert_eq!((refused.header[3], &refused.header[8..10]), (0x28, &qualifier[..]));
        raw.send(&data_out(&r2t, 7)).unwrap();
        assert_eq!(answer_to(&mut raw, first).header[3], 0);
        log_out(raw);
    }
    rig.stop_cleanly();
}

/// Goal: REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS names exactly the functions that work, at
/// either level. SPC-4 §6.36.
#[test]
fn named_functions_are_those_supported() {
    /// Byte and bit of the report, and the function's code.
    const NAMED: [(usize, u8, u8); 9] = [
        (0, 0x80, 1),
        (0, 0x40, ABORT_TASK_SET),
        (0, 0x20, 3), // CLEAR ACA
        (0, 0x10, CLEAR_TASK_SET),
        (0, 0x08, LOGICAL_UNIT_RESET),
        (0, 0x04, QUERY_TASK),
        (1, 0x04, QUERY_ASYNCHRONOUS_EVENT),
        (1, 0x02, QUERY_TASK_SET),
        (1, 0x01, I_T_NEXUS_RESET),
    ];
    let rig = Rig::new();
    for (number, keys) in [(1, ""), (2, LEVEL_2)] {
        let mut raw = session(&rig, number, keys);
        let report = raw.command(0xc0, &[0xa3, 0x0d, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0], 4);
        raw.send(&report).unwrap();
        let named = answer_to(&mut raw, report.u32_at(16)).data;
        for (byte, bit, function) in NAMED {
            let works = ask(&mut raw, function, u32::MAX - 1).0 != NOT_SUPPORTED;
            assert_eq!(named[byte] & bit != 0, works, "function {function}, level {number}");
        }
    }
    rig.stop_cleanly();
}

/// Goal: a unit attention on one connection waits until earlier PDUs on the other one are
/// acknowledged. RFC 7143 §4.2.2.3.4 a).
#[test]
fn a_unit_attention_does_not_overtake() {
    let rig = Rig::new();
    let mut by = session(&rig, 1, "");
    let (mut one, tsih) = connect(&rig, 2, FAST, 0, 0);
    assert_eq!(attention(&mut one), Some(0x2900));
    let (mut two, _) = connect(&rig, 2, FAST, tsih, 1);
    let ready = one.command(0x80, &[0; 6], 0);
    one.send(&ready).unwrap();
    let RawAnswer::Pdu(early) = one.answer(TEST_TIMEOUT).unwrap() else { panic!("no response") };
    assert_eq!((early.opcode(), early.header[3]), (opcode::SCSI_RESPONSE, 0));
    assert_eq!(ask(&mut by, LOGICAL_UNIT_RESET, u32::MAX).0, COMPLETE);
    two.cmd_sn = one.cmd_sn;
    let ready = two.command(0x80, &[0; 6], 0);
    two.send(&ready).unwrap();
    let RawAnswer::Pdu(ping) = one.answer(TEST_TIMEOUT).unwrap() else { panic!("no ping") };
    assert_eq!(ping.opcode(), opcode::NOP_IN, "to be acknowledged");
    assert_eq!(two.answer(Duration::from_millis(100)).unwrap(), RawAnswer::TimedOut);
    one.cmd_sn = two.cmd_sn;
    let pong = RawPdu::new(0x40 | opcode::NOP_OUT, 0x80)
        .put_u32(16, u32::MAX)
        .put(20, &ping.header[20..24])
        .put_u32(24, one.cmd_sn)
        .put_u32(28, early.u32_at(24).wrapping_add(1));
    one.send(&pong).unwrap();
    let answer = answer_to(&mut two, ready.u32_at(16));
    assert_eq!((answer.header[3], &answer.data[14..16]), (2, &[0x29, 3][..]));
    log_out(by);
    drop((one, two));
    rig.stop_cleanly();
}
