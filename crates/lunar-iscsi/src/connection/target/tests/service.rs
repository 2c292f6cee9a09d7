//! Texts, logouts, pings, asynchronous messages, rejects and format errors.

use super::super::{CloseReason, Input, Outcome, TargetRecord};
use super::requests::*;
use super::rig::{Rig, login_request, pattern};
use crate::login::AdmissionDecision;
use crate::pdu::{
    AsyncEvent, AsyncMessage, CommandFlags, FirstByte, HEADER_BYTES, LoginFlags, LoginResponse,
    LoginStatus, LogoutReason, LogoutRequest, LogoutResponse, LogoutResult, ManagementFunction,
    NopIn, Opcode, Reject, RejectReason, ScsiCommand, Stage, TAG_RESERVED, TextFlags, TextRequest,
    TextResponse,
};
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;
use bytes::Bytes;
use core::time::Duration;
use lunar_wire::SerialNumber;

const DISCOVERY: &str = "SessionType=Discovery";

fn records(count: usize) -> Vec<TargetRecord> {
    let record = |number| TargetRecord {
        name: alloc::format!("iqn.2026-01.example:disk{number}"),
        addresses: vec![("[2001:db8::1]:3260".to_string(), 1)],
    };
    (0..count).map(record).collect()
}

/// Goal: SendTargets works in a discovery session, over several responses if it does not fit one.
#[test]
fn send_targets() {
    let mut rig = Rig::new();
    rig.targets = records(40);
    rig.login(1, "SessionType=Discovery MaxRecvDataSegmentLength=512");
    rig.send(1, text(0, 5).encode(), b"SendTargets=All\0");
    let mut whole = Vec::new();
    let mut number = 1;
    loop {
        let pdu = rig.sent_one(1);
        let response = TextResponse::decode(&pdu.bhs);
        assert!(pdu.data.len() <= 512);
        assert_eq!(response.initiator_task_tag, 5);
        assert_eq!(response.stat_sn, SerialNumber(number - 1));
        whole.extend_from_slice(&pdu.data);
        if response.flags.has(TextFlags::FINAL) {
            assert_eq!(response.target_transfer_tag, TAG_RESERVED);
            break;
        }
        assert_ne!(response.target_transfer_tag, TAG_RESERVED);
        let target_transfer_tag = response.target_transfer_tag;
        rig.send(1, TextRequest { target_transfer_tag, ..text(number, 5) }.encode(), &[]);
        number += 1;
    }
    let text = String::from_utf8(whole).unwrap();
    assert_eq!(text.matches("TargetName=iqn.2026-01.example:disk").count(), 40);
    assert_eq!(text.matches("TargetAddress=[2001:db8::1]:3260,1\0").count(), 40);
    assert_eq!(rig.link(1).listed, [None]);
    assert!(number > 3);
}

/// Goal: one text at a time waits for delivery (RFC 7143 §11.10), so that one arriving request does
/// not trigger many lists. Fault: each of 128 requests was answered at once.
#[test]
fn one_text_waits_at_a_time() {
    let refused = |rig: &mut Rig, reason| {
        assert_eq!(Reject::decode(&rig.sent_one(1).bhs).reason, reason);
    };
    for keys in [DISCOVERY, ""] {
        let mut rig = Rig::normal(keys);
        rig.send(1, text(1, 5).encode(), b"SendTargets=All\0");
        assert!(rig.sent(1).is_empty(), "it waits for the request before it");
        for number in [2, 0, 1] {
            rig.send(1, text(number, 6).encode(), b"SendTargets=All\0");
            refused(&mut rig, RejectReason::PROTOCOL_ERROR);
        }
        assert!(rig.link(1).listed.is_empty());
        if keys.is_empty() {
            rig.send(1, nop_out(0, 7).encode(), &[]);
            assert_eq!(rig.sent(1).len(), 2, "the ping's answer and the text's");
        }
    }
}

/// Goal: in a discovery session, which is open to everybody, at most as much text waits as in a
/// login.
#[test]
fn little_text_waits_in_discovery() {
    let mut rig = Rig::new();
    rig.limits.text_bytes_max = 9000;
    rig.login(1, DISCOVERY);
    rig.send(1, text(1, 5).encode(), &[b'x'; 9001]);
    let reject = Reject::decode(&rig.sent_one(1).bhs);
    assert_eq!(reject.reason, RejectReason::LONG_OPERATION_REJECT);
    rig.send(1, text(1, 5).encode(), &[b'x'; 9000]);
    assert!(rig.sent(1).is_empty());
}

/// Goal: a text in pieces that exceeds the limit is refused, in a login with a status of its own
/// and in full feature phase with a Reject.
#[test]
fn a_text_in_pieces_has_a_limit() {
    let mut rig = Rig::new();
    rig.limits.text_bytes_max = 8192;
    rig.connect(1);
    let mut login = login_request(1, 0);
    login.flags = LoginFlags::stage(Stage(1), None).with(LoginFlags::CONTINUE);
    rig.send(1, login.encode(), &[b'x'; 8192]);
    assert_eq!(LoginResponse::decode(&rig.sent_one(1).bhs).status, LoginStatus::SUCCESS);
    rig.send(1, login.encode(), b"x");
    let refused = LoginResponse::decode(&rig.sent_one(1).bhs).status;
    assert_eq!(refused, LoginStatus::INITIATOR_ERROR);
    let Some(CloseReason::LoginRefused { why, .. }) = &rig.link(1).closed else { panic!() };
    assert_eq!(why, "more than 8192 bytes of text");

    let mut rig = Rig::new();
    rig.limits.text_bytes_max = 8192;
    rig.login(1, DISCOVERY);
    let piece = TextRequest { flags: TextFlags::CONTINUE, ..text(0, 5) };
    rig.send(1, piece.encode(), &[b'x'; 8192]);
    let target_transfer_tag = TextResponse::decode(&rig.sent_one(1).bhs).target_transfer_tag;
    let piece = TextRequest { flags: TextFlags::CONTINUE, target_transfer_tag, ..text(1, 5) };
    rig.send(1, piece.encode(), b"x");
    assert_eq!(Reject::decode(&rig.sent_one(1).bhs).reason, RejectReason::PROTOCOL_ERROR);
}

/// Fault: the texts and keys of a login were no memory of the connection: 42 KB each, where 16 KB
/// were charged.
#[test]
fn an_unfinished_login_is_memory() {
    let mut rig = Rig::new();
    rig.connect(1);
    let before = rig.link(1).machine.task_memory_bytes();
    let mut login = login_request(1, 0);
    login.flags = LoginFlags::stage(Stage(1), None).with(LoginFlags::CONTINUE);
    rig.send(1, login.encode(), &[b'x'; 4000]);
    rig.sent_one(1);
    let after = rig.link(1).machine.task_memory_bytes();
    assert!(after >= before + 4000, "{before} to {after}");
}

/// Fault: the echo of a ping kept all of its data, up to 256 KiB, though the initiator can receive
/// 512 bytes of it only.
#[test]
fn an_echo_keeps_no_more_than_it_sends() {
    let mut rig = Rig::normal("MaxRecvDataSegmentLength=512");
    let data = pattern(8192);
    rig.send(1, nop_out(0, 5).encode(), &data);
    let echo = rig.sent_one(1).data;
    assert_eq!(echo, data[..512]);
    let kept = echo.try_into_mut().expect("it has one user").capacity();
    assert!(kept < 1024, "{kept} bytes are kept");
}

/// Fault: the answers of commands whose response waits for announced data were no memory of the
/// connection: 126 of them in each of 841 sessions killed the server.
#[test]
fn an_answer_that_is_held_back_is_memory() {
    let mut rig = Rig::normal("InitialR2T=No FirstBurstLength=1024");
    rig.send(1, write_unsolicited(0, 5, 1024).encode(), &[]);
    let task = rig.started(1).id;
    let before = rig.link(1).machine.task_memory_bytes();
    let data_in = Bytes::from(vec![1; 500]);
    rig.done(1, task, Outcome { data_in, ..Outcome::default() });
    assert!(rig.sent(1).is_empty(), "the response waits for the data");
    let after = rig.link(1).machine.task_memory_bytes();
    assert!(after >= before + 500, "{before} to {after}");
    rig.send(1, data_out(5, TAG_RESERVED, 0, 0, true).encode(), &pattern(1024));
    rig.sent(1);
    assert!(rig.link(1).machine.task_memory_bytes() < before, "the task is gone");
}

/// Fault: the text, the keys and the rest of the answer of an unfinished exchange were no memory of
/// the connection: 34 KB a session, where 17 KiB were charged for all of it.
#[test]
fn an_unfinished_exchange_is_memory() {
    let mut rig = Rig::normal("MaxRecvDataSegmentLength=512");
    let memory = |rig: &mut Rig| {
        let machine = &mut rig.link(1).machine;
        machine.free_spare_memory();
        machine.task_memory_bytes()
    };
    let before = memory(&mut rig);
    let piece = TextRequest { flags: TextFlags::CONTINUE, ..text(0, 5) };
    rig.send(1, piece.encode(), &[b'x'; 4000]);
    rig.sent_one(1);
    let with_text = memory(&mut rig);
    assert!(with_text >= before + 4000, "{before} to {with_text}");
    let keys: String = (0..100).map(|key| alloc::format!("X-org.example.{key:030}=1\0")).collect();
    rig.send(1, TextRequest { flags: TextFlags::NONE, ..text(1, 6) }.encode(), keys.as_bytes());
    let answer = TextResponse::decode(&rig.sent_one(1).bhs);
    assert!(answer.flags.has(TextFlags::CONTINUE), "the answer is longer than a segment");
    let with_keys = memory(&mut rig);
    assert!(with_keys >= before + 2 * keys.len(), "{before} to {with_keys}");
    rig.send(1, text(2, 7).encode(), b"X-org.example=1\0");
    let last = TextResponse::decode(&rig.sent_one(1).bhs);
    assert!(last.flags.has(TextFlags::FINAL));
    let after = memory(&mut rig);
    assert!(after < before + 4000, "after the end of an exchange: {before} to {after}");
}

/// Goal: a normal session shows only its own target; a bad key or value gets no success, and the
/// session survives.
#[test]
fn text_in_a_normal_session() {
    let mut rig = Rig::normal("");
    rig.targets = records(1);
    for (number, bad) in [&b"SendTargets=iqn.2026-01.example:other\0"[..], b"NoSuchKey\0", b"="]
        .into_iter()
        .enumerate()
    {
        rig.send(1, text(number as u32, 5).encode(), bad);
        let pdu = rig.sent_one(1);
        assert_eq!(pdu.opcode(), Opcode::REJECT, "{:?}", String::from_utf8_lossy(bad));
    }
    rig.send(1, text(3, 6).encode(), b"SendTargets=\0");
    let pdu = rig.sent_one(1);
    assert!(TextResponse::decode(&pdu.bhs).flags.has(TextFlags::FINAL));
    assert_eq!(rig.link(1).listed, [Some("iqn.2026-01.example:t".to_string())]);
}

/// Goal: a MaxRecvDataSegmentLength declared later applies from then on.
#[test]
fn a_longer_segment_is_declared() {
    let mut rig = Rig::normal("MaxRecvDataSegmentLength=512");
    rig.send(1, nop_out(0, 5).encode(), &[7; 1000]);
    assert_eq!(rig.sent_one(1).data.len(), 512);
    rig.send(1, text(1, 6).encode(), b"MaxRecvDataSegmentLength=4096\0");
    rig.sent_one(1);
    rig.send(1, nop_out(2, 5).encode(), &[7; 1000]);
    assert_eq!(rig.sent_one(1).data.len(), 1000);
}

/// Goal: a discovery session accepts only SendTargets and the logout of the session. RFC 7143 §4.3.
#[test]
fn discovery_sessions_do_not_read() {
    let mut rig = Rig::normal(DISCOVERY);
    rig.send(1, pong(0, TAG_RESERVED, SerialNumber(0)).encode(), &[]);
    assert!(rig.sent(1).is_empty(), "an acknowledgement asks for nothing");
    let refused: [([u8; HEADER_BYTES], &[u8]); 8] = [
        (read(0, 5, 512).encode(), &[]),
        (management(0, 5, ManagementFunction::ABORT_TASK_SET).encode(), &[]),
        (data_out(5, 1, 0, 0, true).encode(), &[]),
        (nop_out(0, 5).encode(), &[]),
        (logout(0, 5, LogoutReason::CLOSE_CONNECTION, 1).encode(), &[]),
        (logout(0, 5, LogoutReason::REMOVE_FOR_RECOVERY, 1).encode(), &[]),
        (text(0, 5).encode(), b"X-key=1\0"),
        (text(1, 5).encode(), b""),
    ];
    for (bhs, data) in refused {
        rig.send(1, bhs, data);
        assert_eq!(Reject::decode(&rig.sent_one(1).bhs).reason, RejectReason::PROTOCOL_ERROR);
    }
    assert!(rig.link(1).started.is_empty() && rig.link(1).listed.is_empty());
    rig.send(1, logout(0, 6, LogoutReason::CLOSE_SESSION, 1).encode(), &[]);
    assert_eq!(LogoutResponse::decode(&rig.sent_one(1).bhs).response, LogoutResult::CLOSED);
    assert!(rig.ended);
}

/// Goal: a logout ends running tasks without a response, waits until they have ended, answers, and
/// closes. RFC 7143 §11.14.5.
#[test]
fn logout_with_tasks() {
    let mut rig = Rig::normal("");
    rig.aborts_at_once = false;
    rig.send(1, write(0, 5, 512).encode(), &[]);
    let asked = rig.started(1).id;
    rig.wants(1, asked, 512);
    rig.send(1, read(1, 6, 512).encode(), &[]);
    let running = rig.started(1).id;
    rig.sent(1);
    rig.send(1, logout(2, 7, LogoutReason::CLOSE_CONNECTION, 1).encode(), &[]);
    rig.send(1, read(2, 8, 512).encode(), &[]);
    rig.send(1, nop_out(3, 9).encode(), &[1; 8]);
    assert_eq!(rig.link(1).aborts, [asked, running]);
    rig.good(1, asked);
    assert!(rig.sent(1).is_empty() && !rig.ended);
    rig.good(1, running);
    assert_eq!(LogoutResponse::decode(&rig.sent_one(1).bhs).response, LogoutResult::CLOSED);
    assert_eq!(rig.link(1).closed, Some(CloseReason::Ended));
    assert!(rig.ended, "its last connection");
    rig.assert_nothing_left();
}

/// Goal: logouts of the connection itself, of another one, of a missing one, and of the session are
/// correct.
#[test]
fn logouts_of_several_connections() {
    let keys = "MaxConnections=3";
    let mut rig = Rig::normal(keys);
    rig.login(2, keys);
    rig.login(3, keys);
    rig.send(1, logout(0, 5, LogoutReason::CLOSE_CONNECTION, 9).encode(), &[]);
    let response = LogoutResponse::decode(&rig.sent_one(1).bhs);
    assert_eq!(response.response, LogoutResult::CID_NOT_FOUND);
    rig.send(1, logout(0, 5, LogoutReason::REMOVE_FOR_RECOVERY, 2).encode(), &[]);
    let response = LogoutResponse::decode(&rig.sent_one(1).bhs);
    assert_eq!(response.response, LogoutResult::RECOVERY_NOT_SUPPORTED);

    rig.aborts_at_once = false;
    rig.send(2, read(0, 5, 0).encode(), &[]);
    let task = rig.started(2).id;
    rig.send(1, logout(1, 6, LogoutReason::CLOSE_CONNECTION, 2).encode(), &[]);
    assert!(rig.sent(1).is_empty());
    rig.good(2, task);
    assert_eq!(LogoutResponse::decode(&rig.sent_one(1).bhs).response, LogoutResult::CLOSED);
    assert!(rig.link(2).closed.is_some() && rig.link(1).closed.is_none());

    rig.send(3, read(1, 5, 0).encode(), &[]);
    let task = rig.started(3).id;
    rig.send(1, logout(2, 7, LogoutReason::CLOSE_SESSION, 0).encode(), &[]);
    assert!(rig.sent(1).is_empty(), "tasks of the other connection run");
    rig.good(3, task);
    assert_eq!(LogoutResponse::decode(&rig.sent_one(1).bhs).response, LogoutResult::CLOSED);
    assert!(rig.ended && rig.links.values().all(|link| link.closed.is_some()));
    rig.assert_nothing_left();
}

/// Goal: a silent initiator is pinged, and disconnected if it does not answer; an answer keeps it.
#[test]
fn silence() {
    let mut rig = Rig::normal("");
    rig.wait(Duration::from_secs(29));
    assert!(rig.sent(1).is_empty());
    rig.wait(Duration::from_secs(1));
    let ping = NopIn::decode(&rig.sent_one(1).bhs);
    assert_eq!(ping.initiator_task_tag, TAG_RESERVED);
    assert_eq!(ping.stat_sn, SerialNumber(0), "the next, not taken");
    rig.wait(Duration::from_secs(29));
    rig.send(1, pong(0, ping.target_transfer_tag, SerialNumber(0)).encode(), &[]);
    rig.wait(Duration::from_secs(59));
    assert_eq!(rig.sent(1).len(), 1);
    rig.wait(Duration::from_secs(1));
    assert!(matches!(rig.link(1).closed, Some(CloseReason::TimedOut(_))));
    assert!(rig.ended);

    let mut rig = Rig::normal(DISCOVERY);
    rig.wait(Duration::from_secs(119));
    assert!(rig.sent(1).is_empty(), "a discovery session is not pinged");
    rig.wait(Duration::from_secs(1));
    assert!(matches!(rig.link(1).closed, Some(CloseReason::TimedOut(_))));
}

/// Goal: a login that never ends, or never begins, is closed.
#[test]
fn logins_that_never_end() {
    let mut rig = Rig::new();
    rig.connect(1);
    rig.input(1, Input::Deadline);
    assert!(rig.link(1).closed.is_none(), "it now knows what time it is");
    rig.wait(Duration::from_secs(14));
    let mut request = login_request(1, 0);
    request.flags = crate::pdu::LoginFlags::stage(crate::pdu::Stage::OPERATIONAL_NEGOTIATION, None);
    rig.send(1, request.encode(), b"InitiatorName=iqn.2026-01.example:i\0SessionType=Discovery\0");
    assert_eq!(rig.sent(1).len(), 1);
    rig.wait(Duration::from_secs(1));
    assert!(matches!(rig.link(1).closed, Some(CloseReason::TimedOut(_))));
}

/// Goal: the connection closes after a Login Response whose status is not success, whatever its
/// class, and its session does not exist. RFC 7143 §11.13.5.
#[test]
fn a_refused_login_is_closed() {
    let refused = |status: LoginStatus| AdmissionDecision::Refuse(status);
    let moved =
        AdmissionDecision::Redirect { address: "192.0.2.1:3260,1".to_string(), permanent: false };
    for (answer, class) in [
        (moved, 1),
        (refused(LoginStatus::NOT_FOUND), 2),
        (refused(LoginStatus::SERVICE_UNAVAILABLE), 3),
    ] {
        let mut rig = Rig::new();
        rig.identified = Some(answer);
        rig.connect(1);
        let text = b"InitiatorName=iqn.2026-01.example:i\0TargetName=iqn.2026-01.example:t\0";
        rig.send(1, login_request(1, 0).encode(), text);
        let pdu = rig.sent_one(1);
        let response = LoginResponse::decode(&pdu.bhs);
        assert_eq!(response.status.0 >> 8, class);
        let address = b"TargetAddress=192.0.2.1:3260\0";
        assert_eq!(&pdu.data[..], if class == 1 { &address[..] } else { b"" });
        let why = if class == 1 { "" } else { "refused by policy" }.into();
        let expected = CloseReason::LoginRefused { status: response.status, why };
        assert_eq!(rig.link(1).closed, Some(expected));
        assert!(rig.session.is_none());
    }
}

/// Goal: a target that stops requests a logout, then announces the drop, then closes; without time
/// it only announces the drop.
#[test]
fn shutdown() {
    let mut rig = Rig::normal("");
    rig.input(1, Input::Shutdown { within_seconds: 5 });
    let message = AsyncMessage::decode(&rig.sent_one(1).bhs);
    assert_eq!((message.event, message.parameter_3), (AsyncEvent::LOGOUT_REQUESTED, 5));
    assert_eq!((message.initiator_task_tag, message.stat_sn), (TAG_RESERVED, SerialNumber(0)));
    rig.send(1, read(0, 5, 0).encode(), &[]);
    let task = rig.started(1).id;
    rig.good(1, task);
    assert_eq!(rig.sent(1).len(), 1, "commands go on until then");
    rig.wait(Duration::from_secs(5));
    let message = AsyncMessage::decode(&rig.sent_one(1).bhs);
    assert_eq!((message.event, message.parameter_1), (AsyncEvent::CONNECTION_WILL_DROP, 1));
    assert_eq!(rig.link(1).closed, Some(CloseReason::Dropped));

    let mut rig = Rig::normal("");
    rig.input(1, Input::Shutdown { within_seconds: 0 });
    let message = AsyncMessage::decode(&rig.sent_one(1).bhs);
    assert_eq!(message.event, AsyncEvent::SESSION_WILL_DROP);
    assert_eq!(rig.link(1).closed, Some(CloseReason::Dropped));
    assert!(rig.ended);
}

/// Goal: opcodes that are not allowed here are rejected with the whole header, and the session
/// continues.
#[test]
fn opcodes_of_the_other_role_are_violations() {
    let mut rig = Rig::normal("");
    let cases = [
        (Opcode::LOGIN_REQUEST, RejectReason::PROTOCOL_ERROR),
        (Opcode::SNACK_REQUEST, RejectReason::SNACK_REJECT),
        (Opcode::DATA_IN, RejectReason::COMMAND_NOT_SUPPORTED),
        (Opcode(0x1d), RejectReason::COMMAND_NOT_SUPPORTED),
    ];
    for (opcode, reason) in cases {
        let mut bhs = [3; HEADER_BYTES];
        bhs[0] = opcode.0;
        rig.send(1, bhs, &[1; 12]);
        let pdu = rig.sent_one(1);
        let reject = Reject::decode(&pdu.bhs);
        assert_eq!((reject.reason, reject.initiator_task_tag), (reason, TAG_RESERVED));
        assert_eq!(pdu.data.len(), HEADER_BYTES);
        assert_eq!(pdu.data[8..], bhs[8..]);
    }
    assert!(rig.link(1).closed.is_none());
}

/// Goal: format errors end the session with all its connections. RFC 7143 §7.7.
#[test]
fn format_errors_end_the_session() {
    type Send = fn(&mut Rig);
    let cases: [(&str, Send); 8] = [
        ("neither W nor F", |rig| rig.send(1, command(0, 5, CommandFlags::READ, 0).encode(), &[])),
        ("a reserved tag", |rig| rig.send(1, read(0, TAG_RESERVED, 0).encode(), &[])),
        ("a segment too long", |rig| {
            rig.send(1, write(0, 5, 1 << 20).encode(), &vec![0; 262_148]);
        }),
        ("invalid header segments", |rig| {
            rig.send_whole(1, read(0, 5, 0).encode(), &[0, 0, 1, 0], &[], true);
        }),
        ("header segments where none belong", |rig| {
            rig.send_whole(1, nop_out(0, 5).encode(), &[0, 5, 2, 0, 0, 0, 0, 0], &[], true);
        }),
        ("a reserved logout reason", |rig| {
            rig.send(1, logout(0, 5, LogoutReason(9), 1).encode(), &[]);
        }),
        ("a logout with data", |rig| {
            let pdu = logout(0, 5, LogoutReason::CLOSE_SESSION, 1);
            rig.send(1, LogoutRequest { ..pdu }.encode(), &[1; 4]);
        }),
        ("task management with data", |rig| {
            rig.send(1, management(0, 5, ManagementFunction::ABORT_TASK_SET).encode(), &[1; 4]);
        }),
    ];
    // One command that waits for a lost one, and one that is being executed.
    for number in [1, 0] {
        for (what, send) in cases {
            let mut rig = Rig::normal("MaxConnections=2");
            rig.login(2, "MaxConnections=2");
            rig.send(2, read(number, 6, 0).encode(), &[]);
            send(&mut rig);
            assert!(matches!(rig.link(1).closed, Some(CloseReason::Violation(_))), "{what}");
            assert_eq!(rig.link(2).closed, Some(CloseReason::Dropped), "{what}");
            assert!(rig.ended, "{what}");
            rig.assert_nothing_left();
        }
    }
}

/// Goal: a lost header closes the connection. RFC 7143 §7.8.
#[test]
fn header_digest_error() {
    let mut rig = Rig::normal("");
    rig.input(1, Input::HeaderDigestError);
    assert!(matches!(rig.link(1).closed, Some(CloseReason::Violation(_))));
    assert!(rig.ended);
}

/// Goal: a connection that is replaced or lost closes only when its tasks have ended.
#[test]
fn a_connection_closes_after_its_tasks_have_ended() {
    let mut rig = Rig::normal("");
    rig.aborts_at_once = false;
    rig.send(1, read(0, 5, 512).encode(), &[]);
    let task = rig.started(1).id;
    rig.input(1, Input::PeerClosed);
    assert_eq!(rig.link(1).aborts, [task]);
    assert!(rig.link(1).closed.is_none() && !rig.ended);
    rig.send(1, nop_out(1, 5).encode(), &[1; 4]);
    rig.good(1, task);
    assert_eq!(rig.link(1).closed, Some(CloseReason::Ended));
    assert!(rig.sent(1).is_empty() && rig.ended);
    rig.assert_nothing_left();
}

/// Goal: a command with reserved bits set is accepted.
#[test]
fn reserved_bits_are_passed_over() {
    let mut rig = Rig::normal("");
    let pdu = ScsiCommand { priority: 0xff, ..read(0, 5, 0) };
    let mut bhs = pdu.encode();
    bhs[0] |= 0x80;
    bhs[1] |= 0x18;
    assert_eq!(FirstByte(bhs[0]).opcode(), Opcode::SCSI_COMMAND);
    rig.send(1, bhs, &[]);
    let task = rig.started(1).id;
    rig.good(1, task);
    assert_eq!(rig.sent(1).len(), 1);
}
