//! Attacks of a hostile target: each is detected, nothing panics, all open requests are reported
//! and nothing remains.

use super::rig::{Rig, limits};
use crate::connection::initiator::{CloseReason, Input, Output, RequestFailure, Violation};
use crate::framing::{Header, SegmentDigest};
use crate::pdu::*;
use crate::text::Offer;
use bytes::Bytes;
use lunar_wire::U24;
use std::boxed::Box;
use std::vec::Vec;

/// Creates a rig with a read (tag 0) and a write (tag 1) of 1,000 bytes each open.
fn rig() -> (Rig, u32, u32) {
    let offer = Offer { immediate_data: false, initial_r2t: true, ..Offer::initiator() };
    let mut rig = Rig::with(offer, limits());
    rig.execute(1, &[], 1000);
    rig.execute(2, &[5; 1000], 0);
    let (read, write) =
        (rig.sent_command().initiator_task_tag, rig.sent_command().initiator_task_tag);
    (rig, read, write)
}

/// Checks that the connection ended for a violation, both commands were reported lost, and nothing
/// remains.
fn violation(rig: &mut Rig) -> Violation {
    let outputs = rig.outputs();
    let lost = |output: &&Output| {
        matches!(output, Output::Completed { result: Err(RequestFailure::Lost), .. })
    };
    assert_eq!(outputs.iter().filter(lost).count(), 2, "{outputs:?}");
    let Some(Output::Close(CloseReason::Violation(violation))) = outputs.last() else {
        panic!("{outputs:?}")
    };
    let violation = *violation;
    rig.sent.clear();
    rig.assert_nothing_left();
    assert_eq!(rig.wait, None, "no timer is left");
    // A closed machine accepts every input and has no output.
    rig.handle(Input::Header(Header::new([0xff; 48])));
    rig.handle(Input::PeerClosed);
    rig.handle(Input::Deadline);
    assert!(rig.outputs().is_empty());
    violation
}

type HostilePdu = Box<dyn Fn(&mut Rig, u32, u32)>;

fn hostile_data_in(change: impl Fn(&mut DataIn) + 'static, bytes: usize) -> HostilePdu {
    Box::new(move |rig, read, _| {
        let mut data_in = rig.data_in(read, 0, 0);
        change(&mut data_in);
        rig.target(data_in.encode(), &std::vec![1; bytes]);
    })
}

fn hostile_r2t(change: impl Fn(&mut ReadyToTransfer) + 'static) -> HostilePdu {
    Box::new(move |rig, _, write| {
        let mut r2t = rig.r2t(write, 0, 0, 1000);
        change(&mut r2t);
        rig.target(r2t.encode(), &[]);
    })
}

fn response_attack(
    change: impl Fn(&mut ScsiResponse) + 'static,
    data: &'static [u8],
) -> HostilePdu {
    Box::new(move |rig, _, write| {
        let mut response = rig.response(write);
        change(&mut response);
        rig.target(response.encode(), data);
    })
}

fn attacks() -> Vec<(&'static str, HostilePdu)> {
    let mut attacks = data_in_attacks();
    attacks.extend(r2t_attacks());
    attacks.extend(response_attacks());
    attacks
}

fn data_in_attacks() -> Vec<(&'static str, HostilePdu)> {
    std::vec![
        ("Data-In beyond the expected length", hostile_data_in(|_| {}, 1001)),
        ("Data-In at an offset that overflows", {
            hostile_data_in(|pdu| pdu.buffer_offset_bytes = u32::MAX, 2)
        }),
        ("Data-In with a gap", hostile_data_in(|pdu| pdu.buffer_offset_bytes = 4, 4)),
        ("Data-In with a wrong DataSN", hostile_data_in(|pdu| pdu.data_sn = 1, 4)),
        ("Data-In with an unknown tag", hostile_data_in(|pdu| pdu.initiator_task_tag ^= 64, 4)),
        ("Data-In with the reserved tag", {
            hostile_data_in(|pdu| pdu.initiator_task_tag = TAG_RESERVED, 4)
        }),
        ("Data-In with S but not F", hostile_data_in(|pdu| pdu.flags = DataInFlags::STATUS, 4)),
        ("Data-In that ends GOOD too early", {
            Box::new(|rig, read, _| {
                let mut data_in = rig.data_in(read, 0, 0);
                data_in.flags = DataInFlags::FINAL | DataInFlags::STATUS;
                data_in.stat_sn = rig.stat_sn;
                rig.target(data_in.encode(), &[1; 999]);
            })
        }),
        ("Data-In for a write", {
            Box::new(|rig, _, write| {
                rig.target(rig.data_in(write, 0, 0).encode(), &[1; 4]);
            })
        }),
        ("Data-In that repeats", {
            Box::new(|rig, read, _| {
                rig.target(rig.data_in(read, 0, 0).encode(), &[1; 8]);
                rig.target(rig.data_in(read, 1, 0).encode(), &[1; 8]);
            })
        }),
        ("a data segment over the limit", {
            Box::new(|rig, read, _| {
                let mut data_in = rig.data_in(read, 0, 0);
                data_in.data_segment_length = U24::truncate(U24::MAX);
                rig.handle(Input::Header(Header::new(data_in.encode())));
            })
        }),
    ]
}

fn r2t_attacks() -> Vec<(&'static str, HostilePdu)> {
    std::vec![
        ("R2T for nothing", hostile_r2t(|pdu| pdu.desired_length_bytes = 0)),
        ("R2T beyond the data", hostile_r2t(|pdu| pdu.desired_length_bytes = 1001)),
        ("R2T beyond MaxBurstLength", hostile_r2t(|pdu| pdu.desired_length_bytes = u32::MAX)),
        ("R2T that overflows", hostile_r2t(|pdu| pdu.buffer_offset_bytes = u32::MAX)),
        ("R2T with a gap", {
            hostile_r2t(|pdu| (pdu.buffer_offset_bytes, pdu.desired_length_bytes) = (8, 8))
        }),
        ("R2T with a wrong R2TSN", hostile_r2t(|pdu| pdu.r2t_sn = 7)),
        ("R2T with the reserved tag", hostile_r2t(|pdu| pdu.target_transfer_tag = TAG_RESERVED)),
        ("R2T for a task unknown", hostile_r2t(|pdu| pdu.initiator_task_tag ^= 64)),
        ("R2T for the same data again", {
            Box::new(|rig, _, write| {
                rig.target(rig.r2t(write, 0, 0, 1000).encode(), &[]);
                rig.target(rig.r2t(write, 1, 0, 1000).encode(), &[]);
            })
        }),
        ("R2T for a read", {
            Box::new(|rig, read, _| rig.target(rig.r2t(read, 0, 0, 8).encode(), &[]))
        }),
        ("R2T with a StatSN ahead", hostile_r2t(|pdu| pdu.stat_sn = pdu.stat_sn.plus(1))),
    ]
}

/// Wrong responses, and PDUs that are not allowed in this state.
fn response_attacks() -> Vec<(&'static str, HostilePdu)> {
    std::vec![
        ("a StatSN that skips", response_attack(|pdu| pdu.stat_sn = pdu.stat_sn.plus(1), &[])),
        ("a StatSN that repeats", response_attack(|pdu| pdu.stat_sn = pdu.stat_sn.minus(1), &[])),
        ("a response for nothing", response_attack(|pdu| pdu.initiator_task_tag ^= 64, &[])),
        ("both O and U", response_attack(|pdu| pdu.flags.0 |= 6, &[])),
        ("SenseLength is truncated", response_attack(|pdu| pdu.status = 2, &[0])),
        ("a wrong SenseLength", response_attack(|pdu| pdu.status = 2, &[0xff, 0xff, 1])),
        ("more data than arrived", response_attack(|pdu| pdu.exp_data_sn = 1, &[])),
        ("an opcode that does not exist", {
            Box::new(|rig, _, _| rig.handle(Input::Header(Header::new([0x3e; 48]))))
        }),
        ("a request of an initiator", {
            Box::new(|rig, _, _| rig.handle(Input::Header(Header::new([1; 48]))))
        }),
        ("an unexpected login response", {
            Box::new(|rig, _, _| {
                let mut bhs = [0; 48];
                bhs[0] = Opcode::LOGIN_RESPONSE.0;
                rig.handle(Input::Header(Header::new(bhs)));
            })
        }),
        ("a pong for nothing", {
            Box::new(|rig, _, write| {
                let mut bhs = rig.response(write).encode();
                bhs[0] = Opcode::NOP_IN.0;
                rig.target(bhs, &[]);
            })
        }),
        ("answers to a task of another kind", {
            Box::new(|rig, _, write| {
                let bhs = rig.management(write, ManagementResponse::FUNCTION_COMPLETE);
                rig.target(bhs, &[]);
            })
        }),
        ("a Reject without the rejected header", {
            Box::new(|rig, _, write| {
                let mut bhs = rig.response(write).encode();
                bhs[0] = Opcode::REJECT.0;
                rig.target(bhs, &[1; 47]);
            })
        }),
        ("a header digest error", { Box::new(|rig, _, _| rig.handle(Input::HeaderDigestError)) }),
        ("a data digest error", {
            Box::new(|rig, read, _| {
                let mut data_in = rig.data_in(read, 0, 0);
                data_in.data_segment_length = U24::truncate(8);
                rig.handle(Input::Header(Header::new(data_in.encode())));
                rig.handle(Input::Payload {
                    data: Bytes::new(),
                    digest: SegmentDigest::Mismatched,
                });
            })
        }),
    ]
}

/// Goal: every attack ends the connection, and nothing of it remains.
#[test]
fn every_invalid_pdu_is_a_violation() {
    for (name, attack) in attacks() {
        std::eprintln!("{name}");
        let (mut rig, read, write) = rig();
        attack(&mut rig, read, write);
        violation(&mut rig);
    }
}

/// Goal: no sequence of PDUs causes a panic, an endless loop or growth. Method: from a seed, mostly
/// valid PDUs with single flipped bits, for both open tasks.
#[test]
fn flipped_bits_never_panic() {
    let mut state = 0x1234_5678_u64;
    let mut next = move || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (mixed ^ mixed >> 27) as usize
    };
    for seed in 0..500 {
        let (mut rig, read, write) = rig();
        for _ in 0..20 {
            let tag = if next() % 2 == 0 { read } else { write };
            let mut bhs = match next() % 6 {
                0 => rig.data_in(tag, (next() % 2) as u32, 0).encode(),
                1 => rig.r2t(tag, 0, 0, 500).encode(),
                2 => rig.management(tag, ManagementResponse::FUNCTION_COMPLETE),
                3 => rig.response(tag).encode(),
                _ => core::array::from_fn(|_| next() as u8),
            };
            for _ in 0..next() % 3 {
                bhs[next() % 48] ^= 1 << (next() % 8);
            }
            let data = std::vec![0; next() % 64];
            rig.target(bhs, &data);
            assert!(rig.machine.open_requests() <= 64, "seed {seed}");
        }
        rig.handle(Input::PeerClosed);
        assert!(rig.machine.is_idle() && rig.session.is_idle(), "seed {seed}");
    }
}

/// Goal: a login that never ends, or an answer that is not a Login Response, ends the connection.
#[test]
fn a_silent_target_is_disconnected() {
    let mut rig = Rig::before_login(Offer::initiator(), limits());
    rig.later(14);
    assert!(rig.outputs().is_empty());
    rig.later(2);
    let outputs = rig.outputs();
    assert!(
        matches!(outputs[..], [Output::Close(CloseReason::TimedOut("the login"))]),
        "{outputs:?}"
    );
    assert_eq!(rig.wait, None);
}

/// Goal: a connection that is closed after keys that old targets do not support were proposed ends
/// with that reason; without these keys it ends with another reason.
#[test]
fn a_login_is_closed_over_newer_keys() {
    let newer = Offer::initiator();
    let older = newer.clone().without_newer_keys();
    for (offer, reason) in
        [(newer, CloseReason::NewerKeysUnanswered), (older, CloseReason::PeerClosed)]
    {
        let mut rig = Rig::before_login(offer, limits());
        rig.handle(Input::PeerClosed);
        let outputs = rig.outputs();
        assert!(matches!(&outputs[..], [Output::Close(why)] if *why == reason), "{outputs:?}");
    }
}

/// Goal: endless text reaches its limit. Method: each answer asks to continue.
#[test]
fn endless_text_is_limited() {
    let (mut rig, _, _) = rig();
    let id = crate::framing::TaskId(3);
    rig.handle(Input::Text { id, text: Bytes::from_static(b"X-test=1\0") });
    for _ in 0..300 {
        let Some(request) = rig.sent.pop_front() else { break };
        let header = TextRequest::decode(&request.bhs);
        let answer = TextResponse {
            first: FirstByte::plain(Opcode::TEXT_RESPONSE),
            flags: TextFlags::CONTINUE,
            total_ahs_words: 0,
            data_segment_length: U24::default(),
            lun: header.lun,
            initiator_task_tag: header.initiator_task_tag,
            target_transfer_tag: 7,
            stat_sn: rig.stat_sn.take(),
            exp_cmd_sn: header.cmd_sn.next(),
            max_cmd_sn: header.cmd_sn.plus(9),
        };
        rig.target(answer.encode(), b"");
    }
    let outputs = rig.outputs();
    let Some(Output::Close(CloseReason::Violation(Violation::TextTooLong { .. }))) = outputs.last()
    else {
        panic!("{outputs:?}")
    };
}

/// Goal: a false window changes nothing: MaxCmdSN before ExpCmdSN − 1, ExpCmdSN of commands that
/// were never sent.
#[test]
fn an_invalid_window_is_ignored() {
    let (mut rig, read, write) = rig();
    let start = rig.exp_cmd_sn;
    let mut false_window = rig.data_in(read, 0, 0);
    (false_window.exp_cmd_sn, false_window.max_cmd_sn) = (start.plus(2), start);
    rig.target(false_window.encode(), &[]);
    let mut false_window = rig.r2t(write, 0, 0, 1000);
    (false_window.exp_cmd_sn, false_window.max_cmd_sn) = (start.plus(3), start.plus(1 << 30));
    rig.target(false_window.encode(), &[]);
    rig.sent(Opcode::DATA_OUT);
    for id in 10..40 {
        rig.execute(id, &[], 0);
    }
    assert_eq!(rig.sent.len(), 14, "16 in the window, two of them sent before");
}
