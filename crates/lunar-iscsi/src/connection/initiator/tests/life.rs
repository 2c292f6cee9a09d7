//! Life of a connection from login to logout.

use super::rig::Rig;
use crate::connection::initiator::{
    CloseReason, ConnectionLimits, Input, Output, RequestFailure, Residual, SendTargets,
};
use crate::framing::{Pdu, TaskId};
use crate::pdu::*;
use crate::text::Offer;
use bytes::Bytes;
use lunar_wire::{Lun, U24};

impl Rig {
    pub fn logout_response(&mut self, tag: u32) -> [u8; 48] {
        LogoutResponse {
            first: FirstByte::plain(Opcode::LOGOUT_RESPONSE),
            flags: FinalFlag::FINAL,
            response: LogoutResult::CLOSED,
            total_ahs_words: 0,
            data_segment_length: U24::default(),
            initiator_task_tag: tag,
            stat_sn: self.stat_sn.take(),
            exp_cmd_sn: self.exp_cmd_sn,
            max_cmd_sn: self.max_cmd_sn,
            time_to_wait_seconds: 2,
            time_to_retain_seconds: 0,
        }
        .encode()
    }
}

/// Goal: the simple case works: login, a read with its status in a SCSI Response, logout.
#[test]
fn login_command_logout() {
    let mut rig = Rig::new();
    rig.execute(1, &[], 512);
    let sent = rig.sent_command();
    assert_eq!(sent.expected_data_transfer_length, 512);
    assert!(sent.flags.has(CommandFlags::READ) && sent.flags.has(CommandFlags::FINAL));
    assert!(!sent.flags.has(CommandFlags::WRITE));
    let tag = sent.initiator_task_tag;
    rig.target(rig.data_in(tag, 0, 0).encode(), &[7; 512]);
    let response = rig.response(tag);
    rig.target(response.encode(), &[]);
    let outputs = rig.outputs();
    let [Output::Completed { id: TaskId(1), result: Ok(result) }] = &outputs[..] else {
        panic!("{outputs:?}")
    };
    assert_eq!((result.status, result.data_in_bytes), (0, 512));
    assert_eq!(result.residual, Residual::None);
    rig.assert_nothing_left();

    rig.handle(Input::Logout { reason: LogoutReason::CLOSE_SESSION, cid: None });
    let logout = LogoutRequest::decode(&rig.sent(Opcode::LOGOUT_REQUEST).bhs);
    assert_eq!(logout.reason(), LogoutReason::CLOSE_SESSION);
    let answer = rig.logout_response(logout.initiator_task_tag);
    rig.target(answer, &[]);
    let outputs = rig.outputs();
    let [Output::LoggedOut { result: Ok(reply) }, Output::Close(CloseReason::LoggedOut)] =
        &outputs[..]
    else {
        panic!("{outputs:?}")
    };
    assert_eq!(reply.result, LogoutResult::CLOSED);
    rig.assert_nothing_left();
    assert_eq!(rig.wait, None, "no timer is left");
}

impl Rig {
    fn async_message(&mut self, event: AsyncEvent, parameters: [u16; 3]) -> [u8; 48] {
        AsyncMessage {
            first: FirstByte::plain(Opcode::ASYNC_MESSAGE),
            flags: FinalFlag::FINAL,
            total_ahs_words: 0,
            data_segment_length: U24::default(),
            lun: Lun::new(3),
            initiator_task_tag: TAG_RESERVED,
            stat_sn: self.stat_sn.take(),
            exp_cmd_sn: self.exp_cmd_sn,
            max_cmd_sn: self.max_cmd_sn,
            event,
            vendor_code: 0,
            parameter_1: parameters[0],
            parameter_2: parameters[1],
            parameter_3: parameters[2],
        }
        .encode()
    }

    fn nop_in(&mut self, tag: u32, target_transfer_tag: u32) -> [u8; 48] {
        let stat_sn = if tag == TAG_RESERVED { self.stat_sn } else { self.stat_sn.take() };
        NopIn {
            first: FirstByte::plain(Opcode::NOP_IN),
            flags: FinalFlag::FINAL,
            total_ahs_words: 0,
            data_segment_length: U24::default(),
            lun: Lun::new(9),
            initiator_task_tag: tag,
            target_transfer_tag,
            stat_sn,
            exp_cmd_sn: self.exp_cmd_sn,
            max_cmd_sn: self.max_cmd_sn,
        }
        .encode()
    }

    fn reject(&mut self, reason: RejectReason, bad: &Pdu) {
        let reject = Reject {
            first: FirstByte::plain(Opcode::REJECT),
            flags: FinalFlag::FINAL,
            reason,
            total_ahs_words: 0,
            data_segment_length: U24::default(),
            initiator_task_tag: TAG_RESERVED,
            stat_sn: self.stat_sn.take(),
            exp_cmd_sn: self.exp_cmd_sn,
            max_cmd_sn: self.max_cmd_sn,
            data_sn: 0,
        };
        self.target(reject.encode(), &bad.bhs);
    }
}

/// Goal: a ping of the target is answered with its tag and unit, immediate and without a tag of
/// ours; a NOP-In that only reports numbers is not answered.
#[test]
fn a_ping_is_answered() {
    let mut rig = Rig::new();
    let nop = rig.nop_in(TAG_RESERVED, TAG_RESERVED);
    rig.target(nop, &[]);
    assert!(rig.sent.is_empty());
    let ping = rig.nop_in(TAG_RESERVED, 77);
    rig.target(ping, &[]);
    let answer = NopOut::decode(&rig.sent(Opcode::NOP_OUT).bhs);
    assert!(answer.first.is_immediate());
    assert_eq!((answer.initiator_task_tag, answer.target_transfer_tag), (TAG_RESERVED, 77));
    assert_eq!(answer.lun, Lun::new(9));
    rig.assert_nothing_left();
}

/// Goal: our own ping must come back with its data, or the connection ends.
#[test]
fn a_ping_is_echoed() {
    let mut rig = Rig::new();
    for echo in [&b"four"[..], b"five"] {
        let data = Bytes::from_static(b"four");
        rig.handle(Input::Ping { id: TaskId(1), data });
        let pdu = rig.sent(Opcode::NOP_OUT);
        assert_eq!(pdu.data, b"four"[..]);
        let pong = rig.nop_in(NopOut::decode(&pdu.bhs).initiator_task_tag, TAG_RESERVED);
        rig.target(pong, echo);
        let outputs = rig.outputs();
        match outputs[..] {
            [Output::Pong { id: TaskId(1), result: Ok(()) }] => assert_eq!(echo, b"four"),
            [Output::Close(CloseReason::Violation(_))] => assert_eq!(echo, b"five"),
            _ => panic!("{outputs:?}"),
        }
    }
    rig.assert_nothing_left();
}

/// Goal: when nothing arrives, a ping is sent; its answer restarts the timer, silence ends the
/// connection.
#[test]
fn a_dead_target_is_noticed() {
    let mut rig = Rig::with(Offer::initiator(), ConnectionLimits::default());
    rig.later(4);
    assert!(rig.sent.is_empty());
    rig.later(1);
    let ping = NopOut::decode(&rig.sent(Opcode::NOP_OUT).bhs);
    rig.later(4);
    let pong = rig.nop_in(ping.initiator_task_tag, TAG_RESERVED);
    rig.target(pong, &[]);
    rig.later(4);
    assert!(rig.sent.is_empty() && rig.outputs().is_empty());
    rig.later(1);
    rig.sent(Opcode::NOP_OUT);
    rig.later(6);
    let outputs = rig.outputs();
    assert!(matches!(outputs[..], [Output::Close(CloseReason::TimedOut("a ping"))]), "{outputs:?}");
    rig.assert_nothing_left();
}

/// Goal: when the target requests a logout, the initiator accepts no new commands, lets the open
/// ones end, and then logs out; at the latest a second before the time limit of the target.
#[test]
fn a_requested_logout() {
    for patient in [true, false] {
        let mut rig = Rig::new();
        rig.execute(1, &[], 0);
        let tag = rig.sent_command().initiator_task_tag;
        let message = rig.async_message(AsyncEvent::LOGOUT_REQUESTED, [0, 0, 10]);
        rig.target(message, &[]);
        rig.execute(2, &[], 0);
        let outputs = rig.outputs();
        assert!(
            matches!(
                outputs[..],
                [
                    Output::Event(_),
                    Output::Completed { id: TaskId(2), result: Err(RequestFailure::Refused(_)) }
                ]
            ),
            "{outputs:?}"
        );
        assert!(rig.sent.is_empty());
        if patient {
            let response = rig.response(tag);
            rig.target(response.encode(), &[]);
        } else {
            rig.later(9);
        }
        let logout = LogoutRequest::decode(&rig.sent(Opcode::LOGOUT_REQUEST).bhs);
        assert_eq!((logout.reason(), logout.cid), (LogoutReason::CLOSE_CONNECTION, 7));
        let answer = rig.logout_response(logout.initiator_task_tag);
        rig.target(answer, &[]);
        let outputs = rig.outputs();
        let ([Output::Completed { .. }, Output::Close(CloseReason::LoggedOut)], _) =
            (&outputs[..], patient)
        else {
            panic!("{outputs:?}")
        };
        rig.assert_nothing_left();
        assert_eq!(rig.wait, None);
    }
}

/// Goal: each request acknowledges all status received before it. RFC 7143 §4.2.2.2.
#[test]
fn status_is_acknowledged() {
    let mut rig = Rig::new();
    for id in 0..4 {
        rig.execute(id, &[], 0);
        let sent = rig.sent_command();
        assert_eq!(sent.exp_stat_sn, rig.stat_sn, "the next one, over the wrap");
        let response = rig.response(sent.initiator_task_tag);
        rig.target(response.encode(), &[]);
    }
    let ping = rig.nop_in(TAG_RESERVED, 77);
    rig.target(ping, &[]);
    let answer = NopOut::decode(&rig.sent(Opcode::NOP_OUT).bhs);
    assert_eq!(answer.exp_stat_sn, rig.stat_sn);
    rig.assert_nothing_left();
}

/// Goal: when the target announces that a connection or the session will drop, the initiator
/// reports to its owner how long it must wait before it returns, and neither logs in again nor logs
/// out by itself. RFC 7143 §11.9.1, events 2 and 3.
#[test]
fn an_announced_drop_is_reported() {
    for event in [AsyncEvent::CONNECTION_WILL_DROP, AsyncEvent::SESSION_WILL_DROP] {
        let mut rig = Rig::new();
        let message = rig.async_message(event, [7, 30, 60]);
        rig.target(message, &[]);
        let outputs = rig.outputs();
        let [Output::Event(message)] = &outputs[..] else { panic!("{outputs:?}") };
        assert_eq!((message.event, message.parameters), (event, [7, 30, 60]));
        rig.handle(Input::PeerClosed);
        let outputs = rig.outputs();
        assert!(matches!(outputs[..], [Output::Close(CloseReason::PeerClosed)]), "{outputs:?}");
        rig.later(3600);
        assert!(rig.sent.is_empty() && rig.outputs().is_empty());
        rig.assert_nothing_left();
    }
}

/// Goal: when the target requests a negotiation, the initiator sends an empty Text Request.
#[test]
fn a_requested_negotiation() {
    let mut rig = Rig::new();
    let message = rig.async_message(AsyncEvent::RENEGOTIATE, [0, 0, 3]);
    rig.target(message, &[]);
    let request = rig.sent(Opcode::TEXT_REQUEST);
    assert!(request.data.is_empty());
    let header = TextRequest::decode(&request.bhs);
    let bhs = rig.text_response(&header, TextFlags::FINAL, TAG_RESERVED);
    rig.target(bhs, &[]);
    rig.outputs();
    rig.assert_nothing_left();
}

impl Rig {
    fn text_response(&mut self, request: &TextRequest, flags: TextFlags, ttt: u32) -> [u8; 48] {
        TextResponse {
            first: FirstByte::plain(Opcode::TEXT_RESPONSE),
            flags,
            total_ahs_words: 0,
            data_segment_length: U24::default(),
            lun: request.lun,
            initiator_task_tag: request.initiator_task_tag,
            target_transfer_tag: ttt,
            stat_sn: self.stat_sn.take(),
            exp_cmd_sn: self.exp_cmd_sn,
            max_cmd_sn: self.max_cmd_sn,
        }
        .encode()
    }
}

/// Goal: SendTargets works over two responses, split in the middle of a word; the second request
/// continues under the same tag with the tag of the target; a second SendTargets waits for the
/// first.
#[test]
fn send_targets() {
    let mut rig = Rig::new();
    rig.handle(Input::SendTargets { id: TaskId(1), which: SendTargets::All });
    rig.handle(Input::SendTargets { id: TaskId(2), which: SendTargets::This });
    let request = rig.sent(Opcode::TEXT_REQUEST);
    assert_eq!(request.data, b"SendTargets=All\0"[..]);
    assert!(rig.sent.is_empty(), "one exchange at a time");
    let header = TextRequest::decode(&request.bhs);
    let unit = TextRequest { lun: Lun::new(6), ..header };
    let bhs = rig.text_response(&unit, TextFlags::CONTINUE, 0x55);
    rig.target(bhs, b"TargetName=iqn.2026-01.example:a\0TargetAddr");
    let more = TextRequest::decode(&rig.sent(Opcode::TEXT_REQUEST).bhs);
    assert_eq!(more.lun, Lun::new(6), "copied with the tag");
    assert_eq!(more.initiator_task_tag, header.initiator_task_tag);
    assert_eq!((more.target_transfer_tag, more.cmd_sn), (0x55, header.cmd_sn.next()));
    let bhs = rig.text_response(&more, TextFlags::FINAL, TAG_RESERVED);
    rig.target(
        bhs,
        b"ess=10.0.0.1:3260,1\0TargetAddress=[fd00::1]:3260,2\0TargetName=iqn.2026-01.example:b\0",
    );
    let outputs = rig.outputs();
    let [Output::Targets { id: TaskId(1), result: Ok(targets) }] = &outputs[..] else {
        panic!("{outputs:?}")
    };
    assert_eq!(targets.len(), 2);
    assert_eq!(targets[0].name, "iqn.2026-01.example:a");
    assert_eq!(targets[0].addresses, [("10.0.0.1:3260".into(), 1), ("[fd00::1]:3260".into(), 2)]);
    assert!(targets[1].addresses.is_empty());
    let second = rig.sent(Opcode::TEXT_REQUEST);
    assert_eq!(second.data, b"SendTargets=\0"[..]);
    rig.reject(RejectReason::PROTOCOL_ERROR, &second);
    let outputs = rig.outputs();
    let [Output::Targets { id: TaskId(2), result: Err(failure) }] = &outputs[..] else {
        panic!("{outputs:?}")
    };
    assert_eq!(*failure, RequestFailure::Rejected(RejectReason::PROTOCOL_ERROR));
    rig.assert_nothing_left();
}

/// Goal: a rejected command fails, and a ping uses up its CmdSN unless the target counted it.
/// RFC 7143 §7.3.
#[test]
fn a_rejected_command_leaves_no_gap() {
    for counted in [false, true] {
        let mut rig = Rig::new();
        rig.execute(1, &[], 512);
        let pdu = rig.sent(Opcode::SCSI_COMMAND);
        let cmd_sn = ScsiCommand::decode(&pdu.bhs).cmd_sn;
        rig.exp_cmd_sn = if counted { cmd_sn.next() } else { cmd_sn };
        rig.reject(RejectReason::DATA_DIGEST_ERROR, &pdu);
        let outputs = rig.outputs();
        let failure = RequestFailure::Rejected(RejectReason::DATA_DIGEST_ERROR);
        assert!(
            matches!(&outputs[..], [Output::Completed { result: Err(why), .. }] if *why == failure),
            "{outputs:?}"
        );
        if !counted {
            let plug = NopOut::decode(&rig.sent(Opcode::NOP_OUT).bhs);
            assert_eq!((plug.first.is_immediate(), plug.cmd_sn), (false, cmd_sn));
            rig.exp_cmd_sn = cmd_sn.next();
            let pong = rig.nop_in(plug.initiator_task_tag, TAG_RESERVED);
            rig.target(pong, &[]);
        }
        rig.assert_nothing_left();
    }
}
