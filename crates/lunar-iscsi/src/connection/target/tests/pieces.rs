//! Data that moves in pieces: data-in before the end of its task, and data-out wanted in ranges.

use super::requests::*;
use super::rig::{Rig, pattern};
use crate::connection::target::{Input, Outcome, TransferFault};
use crate::framing::ahs::encode_command;
use crate::framing::{Pdu, TaskId};
use crate::pdu::{
    CommandFlags, DataIn, DataInFlags, NopIn, Opcode, ReadyToTransfer, ResponseFlags, ScsiCommand,
    ScsiResponse,
};
use alloc::vec;
use alloc::vec::Vec;
use bytes::Bytes;
use core::num::NonZeroU32;

const KEYS: &str = "MaxRecvDataSegmentLength=1024 MaxBurstLength=2048 MaxOutstandingR2T=2 \
                    InitialR2T=Yes ImmediateData=No";

/// The keys for data-in in any order.
const ANY_ORDER: &str = "DataPDUInOrder=No DataSequenceInOrder=No MaxRecvDataSegmentLength=1024";

/// Sense key, additional sense code and qualifier of an error of the target.
const INTERNAL: (u8, u8, u8) = (0x04, 0x44, 0x00);

/// Starts a read of `bytes` bytes with tag 5.
fn reading(keys: &str, bytes: u32) -> (Rig, TaskId) {
    let mut rig = Rig::normal(keys);
    rig.send(1, read(0, 5, bytes).encode(), &[]);
    let task = rig.started(1).id;
    (rig, task)
}

/// A digest that no data here has.
const DIGEST: u32 = 0xd1_6e57;

/// Goal: the digest of a segment is sent with its data if that is one PDU, with or without the
/// status. Otherwise, or if some of the data is not expected, none is named, and so the digests
/// are calculated. Method: a digest that is not that of the data.
#[test]
fn a_segment_keeps_its_digest() {
    let send = |rig: &mut Rig, task, offset_bytes: usize, bytes: usize| {
        let data = Bytes::from(pattern(8000)).slice(offset_bytes..offset_bytes + bytes);
        let (offset_bytes, digest) = (offset_bytes as u32, Some(DIGEST));
        rig.input(1, Input::DataIn { task, offset_bytes, data, digest });
        rig.sent(1).iter().map(|pdu| pdu.digest).collect::<Vec<_>>()
    };
    // MaxRecvDataSegmentLength is 1024.
    let (mut rig, task) = reading(KEYS, 4000);
    assert_eq!(send(&mut rig, task, 0, 1024), [Some(DIGEST)]);
    assert_eq!(send(&mut rig, task, 1024, 1025), [None, None]);
    assert_eq!(send(&mut rig, task, 2049, 1000), [Some(DIGEST)]);
    let data_in_digest = NonZeroU32::new(DIGEST);
    rig.done(1, task, Outcome { data_in_digest, ..rest(&pattern(8000)[3049..4000]) });
    let last = rig.sent_one(1);
    assert_eq!((last.opcode(), last.data.len()), (Opcode::DATA_IN, 951));
    assert_eq!(last.digest, Some(DIGEST));
    rig.assert_nothing_left();
    for (expected, bytes) in [(4000, 4000), (1000, 1001)] {
        let (mut rig, task) = reading(KEYS, expected);
        rig.done(1, task, Outcome { data_in_digest, ..rest(&pattern(bytes)) });
        assert!(rig.sent(1).iter().all(|pdu| pdu.digest.is_none()), "{bytes} of {expected}");
        let (mut rig, task) = reading(KEYS, expected);
        assert!(send(&mut rig, task, 0, bytes).iter().all(Option::is_none), "{bytes}");
    }
}

/// A rig whose target also accepts data in any order.
fn any_order() -> Rig {
    let mut rig = Rig::new();
    (rig.offer.data_pdu_in_order, rig.offer.data_sequence_in_order) = (false, false);
    rig.login(1, ANY_ORDER);
    rig
}

/// The outcome of a task that ends GOOD, with the rest of its data-in.
fn rest(data: &[u8]) -> Outcome {
    Outcome { data_in: Bytes::copy_from_slice(data), ..Outcome::default() }
}

/// Takes the Data-In PDUs that were sent: offset, length, F and S.
fn data_ins(rig: &mut Rig, first_sn: u32, data: &[u8]) -> Vec<(u32, usize, bool, bool)> {
    let sent = rig.sent(1);
    let check = |(sn, pdu): (u32, &Pdu)| {
        assert_eq!(pdu.opcode(), Opcode::DATA_IN);
        let header = DataIn::decode(&pdu.bhs);
        assert_eq!(header.data_sn, sn);
        assert_eq!(pdu.data[..], data[header.buffer_offset_bytes as usize..][..pdu.data.len()]);
        let has = |flag| header.flags.has(flag);
        let (last, status) = (has(DataInFlags::FINAL), has(DataInFlags::STATUS));
        (header.buffer_offset_bytes, pdu.data.len(), last, status)
    };
    (first_sn..).zip(&sent).map(check).collect()
}

/// Asserts that the only PDU sent is a CHECK CONDITION with this sense; returns its header.
fn check_condition(rig: &mut Rig, sense: (u8, u8, u8)) -> ScsiResponse {
    let pdu = rig.sent_one(1);
    assert_eq!(pdu.opcode(), Opcode::SCSI_RESPONSE);
    let response = ScsiResponse::decode(&pdu.bhs);
    assert_eq!(response.status, 2);
    assert_eq!((pdu.data[4], pdu.data[14], pdu.data[15]), sense);
    response
}

/// Goal: pieces are sent when they are given, cut at both limits, each ending a sequence, with
/// DataSN without gaps; the rest follows with the status.
#[test]
fn pieces_of_data_in() {
    let (mut rig, task) = reading(KEYS, 7000);
    let data = pattern(7000);
    rig.data_in(1, task, 0, &data[..3500]);
    let sent = data_ins(&mut rig, 0, &data);
    let plain = |offset, bytes, last| (offset, bytes, last, false);
    let expected = [
        plain(0, 1024, false),
        plain(1024, 1024, true),
        plain(2048, 1024, false),
        plain(3072, 428, true),
    ];
    assert_eq!(sent, expected);
    rig.data_in(1, task, 3500, &[]);
    assert!(rig.sent(1).is_empty(), "an empty piece sends nothing");
    rig.data_in(1, task, 3500, &data[3500..4000]);
    assert_eq!(data_ins(&mut rig, 4, &data), [plain(3500, 500, true)]);
    rig.done(1, task, rest(&data[4000..]));
    let sent = data_ins(&mut rig, 5, &data);
    assert_eq!(sent, [plain(4000, 1024, false), plain(5024, 1024, true), (6048, 952, true, true)]);
    rig.assert_nothing_left();
}

/// Goal: the data of a task may end with its last piece; the status then has its own PDU, and the
/// residual counts all pieces.
#[test]
fn the_status_follows_the_last_piece() {
    for (expected, given, residual, flag) in [
        (1000, 1000, 0, ResponseFlags::NONE),
        (1000, 600, 400, ResponseFlags::UNDERFLOW),
        (1000, 1700, 700, ResponseFlags::OVERFLOW),
        (0, 300, 300, ResponseFlags::OVERFLOW),
    ] {
        let (mut rig, task) = reading(KEYS, expected);
        let data = pattern(given);
        for (number, piece) in data.chunks(500).enumerate() {
            rig.data_in(1, task, number as u32 * 500, piece);
        }
        let sent = data_ins(&mut rig, 0, &data);
        let bytes: usize = sent.iter().map(|(_, bytes, ..)| bytes).sum();
        assert_eq!(bytes, given.min(expected as usize));
        rig.good(1, task);
        let response = ScsiResponse::decode(&rig.sent_one(1).bhs);
        assert_eq!((response.status, response.residual_bytes), (0, residual));
        assert_eq!(response.flags, ResponseFlags::FINAL | flag);
        assert_eq!(response.exp_data_sn as usize, sent.len());
        rig.assert_nothing_left();
    }
}

/// Goal: the rest of data-in behind pieces is cut at the expected length, and data that the
/// executor left out counts in the residual.
#[test]
fn residuals_count_pieces_and_rest() {
    let (mut rig, task) = reading(KEYS, 900);
    let data = pattern(2000);
    rig.data_in(1, task, 0, &data[..700]);
    rig.done(1, task, Outcome { data_in_bytes: 5000, ..rest(&data[700..1500]) });
    let sent = rig.sent(1);
    assert_eq!((sent[0].data.len(), sent[1].data.len()), (700, 200));
    let last = DataIn::decode(&sent[1].bhs);
    assert_eq!((last.buffer_offset_bytes, last.residual_bytes), (700, 4100));
    assert!(last.flags.has(DataInFlags::STATUS) && last.flags.has(DataInFlags::OVERFLOW));
    rig.assert_nothing_left();
}

/// Goal: CHECK CONDITION after data-in was delivered counts its Data-In PDUs in ExpDataSN, in a
/// bidirectional command too, where R2Ts take numbers of the same count. RFC 7143 §11.4.8.
#[test]
fn check_condition_after_data_in() {
    let (mut rig, task) = reading(KEYS, 4096);
    rig.data_in(1, task, 0, &pattern(3000));
    assert_eq!(rig.sent(1).len(), 3);
    let sense = Bytes::from_static(&[0x70, 0, 3, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x11, 0, 0, 0, 0, 0]);
    rig.done(1, task, Outcome { status: 2, sense: sense.clone(), ..Outcome::default() });
    let response = check_condition(&mut rig, (3, 0x11, 0));
    assert_eq!((response.exp_data_sn, response.residual_bytes), (3, 1096));
    rig.assert_nothing_left();

    let mut rig = Rig::normal(KEYS);
    let (start, ahs) = encode_command(&[0xee; 16], Some(3000));
    let flags = CommandFlags::FINAL | CommandFlags::READ | CommandFlags::WRITE;
    let pdu = ScsiCommand { cdb: start, ..command(0, 5, flags, 512) };
    rig.send_whole(1, pdu.encode(), &ahs, &[], true);
    let task = rig.started(1).id;
    rig.data_in(1, task, 0, &pattern(1000));
    rig.wants(1, task, 512);
    let sent = rig.sent(1);
    assert_eq!(DataIn::decode(&sent[0].bhs).data_sn, 0);
    let r2t = ReadyToTransfer::decode(&sent[1].bhs);
    assert_eq!(r2t.r2t_sn, 1);
    rig.data_in(1, task, 1000, &pattern(24));
    assert_eq!(DataIn::decode(&rig.sent_one(1).bhs).data_sn, 2);
    rig.send(1, data_out(5, r2t.target_transfer_tag, 0, 0, true).encode(), &pattern(512));
    rig.done(1, task, Outcome { status: 2, sense, data_out_bytes: 512, ..Outcome::default() });
    let response = check_condition(&mut rig, (3, 0x11, 0));
    assert_eq!(response.exp_data_sn, 2, "R2Ts do not count");
    assert_eq!((response.residual_bytes, response.bidi_read_residual_bytes), (0, 1976));
    rig.assert_nothing_left();
}

/// Goal: a piece out of order ends its own task with INTERNAL TARGET FAILURE, nothing else; its
/// result does not count, and further pieces are dropped. Method: a gap, and a repetition.
#[test]
fn pieces_out_of_order_end_their_task() {
    for offset in [1000, 0, 999, u32::MAX] {
        let (mut rig, task) = reading(KEYS, 4096);
        rig.aborts_at_once = false;
        rig.send(1, read(1, 6, 512).encode(), &[]);
        let other = rig.started(1).id;
        rig.data_in(1, task, 0, &pattern(998));
        assert_eq!(rig.sent(1).len(), 1);
        rig.data_in(1, task, offset, &pattern(500));
        assert_eq!(rig.link(1).faults, [(task, TransferFault::Internal)]);
        rig.data_in(1, task, 998, &pattern(500));
        rig.good(1, task);
        assert!(rig.sent(1).is_empty());
        rig.answer_fault(1);
        rig.run_until_idle();
        let response = check_condition(&mut rig, INTERNAL);
        assert_eq!((response.exp_data_sn, response.residual_bytes), (1, 4096 - 998));
        rig.done(1, other, rest(&pattern(512)));
        assert!(DataIn::decode(&rig.sent_one(1).bhs).flags.has(DataInFlags::STATUS));
        rig.assert_nothing_left();
    }
}

/// Goal: pieces may come in any order if that was negotiated, each in a sequence of its own; data
/// that is repeated, or missing at the end, is an internal error.
#[test]
fn pieces_in_any_order() {
    let data = pattern(3000);
    for (offsets, good) in
        [(vec![2000, 0, 1000], true), (vec![1000, 2000], false), (vec![1000, 2000, 1000], false)]
    {
        let mut rig = any_order();
        rig.send(1, read(0, 5, 3000).encode(), &[]);
        let task = rig.started(1).id;
        for offset in &offsets {
            rig.data_in(1, task, *offset, &data[*offset as usize..][..1000]);
        }
        let pieces = offsets.len().min(if good { 3 } else { 2 });
        let mut sent = rig.sent(1);
        let response = sent.split_off(pieces);
        assert!(sent.iter().all(|pdu| DataIn::decode(&pdu.bhs).flags == DataInFlags::FINAL));
        rig.link(1).sent = response;
        rig.good(1, task);
        match good {
            true => {
                let response = ScsiResponse::decode(&rig.sent_one(1).bhs);
                assert_eq!((response.status, response.exp_data_sn), (0, 3));
            }
            false => {
                let response = check_condition(&mut rig, INTERNAL);
                assert_eq!((response.exp_data_sn, response.residual_bytes), (2, 1000));
            }
        }
        rig.assert_nothing_left();
    }
}

/// Goal: pieces for a task that is being aborted, that was never started or that has ended send
/// nothing.
#[test]
fn pieces_of_other_tasks_are_dropped() {
    let (mut rig, task) = reading(KEYS, 4096);
    rig.aborts_at_once = false;
    rig.data_in(1, TaskId(task.0 + 7), 0, &pattern(100));
    rig.send(1, abort_task(1, 6, 5, 0).encode(), &[]);
    rig.data_in(1, task, 0, &pattern(100));
    assert!(rig.sent(1).is_empty());
    rig.good(1, task);
    assert_eq!(rig.sent_one(1).opcode(), Opcode::TASK_MANAGEMENT_RESPONSE);
    rig.data_in(1, task, 0, &pattern(100));
    assert!(rig.sent(1).is_empty());
    rig.assert_nothing_left();
}

/// Acknowledges everything on a connection by answering its latest NOP-In ping.
fn answer_ping(rig: &mut Rig, cid: u16, sent: &[Pdu]) {
    let ping = sent.iter().rfind(|pdu| pdu.opcode() == Opcode::NOP_IN).expect("a ping");
    let ping = NopIn::decode(&ping.bhs);
    rig.send(cid, pong(3, ping.target_transfer_tag, ping.stat_sn).encode(), &[]);
}

/// Goal: a fence holds back responses, not pieces of data-in. RFC 7143 §4.2.2.3.3.
#[test]
fn pieces_pass_a_fence() {
    let keys = "TaskReporting=ResponseFence MaxConnections=2";
    let mut rig = Rig::normal(keys);
    rig.login(2, keys);
    let mut tasks = Vec::new();
    for (number, cid, bytes) in [(0, 1, 0), (1, 2, 0), (2, 2, 1024)] {
        rig.send(cid, read(number, 5 + number, bytes).encode(), &[]);
        tasks.push(rig.started(cid).id);
    }
    rig.good(1, tasks[0]);
    rig.sent(1);
    rig.done(2, tasks[1], Outcome { status: 2, fenced: true, ..Outcome::default() });
    let ping = rig.sent(1);
    rig.data_in(2, tasks[2], 0, &pattern(512));
    assert_eq!(DataIn::decode(&rig.sent_one(2).bhs).flags, DataInFlags::FINAL);
    rig.done(2, tasks[2], rest(&pattern(512)));
    assert!(rig.sent(2).is_empty(), "the status is held back");
    answer_ping(&mut rig, 1, &ping);
    let sent = rig.sent(2);
    assert_eq!(ScsiResponse::decode(&sent[0].bhs).initiator_task_tag, 6);
    answer_ping(&mut rig, 2, &sent);
    let last = DataIn::decode(&rig.sent_one(2).bhs);
    assert_eq!((last.data_sn, last.buffer_offset_bytes), (1, 512));
    assert!(last.flags.has(DataInFlags::STATUS));
    rig.assert_nothing_left();
}

/// Goal: R2Ts never cross the end of a range, and as many may be open as negotiated, over several
/// ranges; the task runs when all ranges have arrived.
#[test]
fn ranges_of_data_out() {
    let mut rig = Rig::normal(KEYS);
    let data = pattern(6000);
    rig.send(1, write(0, 5, 6000).encode(), &[]);
    let task = rig.started(1).id;
    rig.wants_range(1, task, 0, 1000);
    rig.wants_range(1, task, 1000, 3000);
    rig.wants_range(1, task, 4000, 9000);
    let mut open: Vec<ReadyToTransfer> = Vec::new();
    for expected in [(0, 1000), (1000, 2048), (3048, 952), (4000, 2000)] {
        open.extend(rig.sent(1).iter().map(|pdu| ReadyToTransfer::decode(&pdu.bhs)));
        assert!(open.len() <= 2 && rig.link(1).runs.is_empty());
        let r2t = open.remove(0);
        assert_eq!((r2t.buffer_offset_bytes, r2t.desired_length_bytes), expected);
        let (at, end) = (expected.0 as usize, (expected.0 + expected.1) as usize);
        let tag = r2t.target_transfer_tag;
        let half = (at + end) / 2;
        rig.send(1, data_out(5, tag, 0, at as u32, false).encode(), &data[at..half]);
        rig.send(1, data_out(5, tag, 1, half as u32, true).encode(), &data[half..end]);
    }
    assert_eq!(rig.link(1).runs, [task]);
    assert_eq!(rig.link(1).buffers[&task], data);
    rig.good(1, task);
    assert_eq!(ScsiResponse::decode(&rig.sent_one(1).bhs).status, 0);
    rig.assert_nothing_left();
}

/// Goal: the first range may begin within the data that came unsolicited, which is not requested
/// again.
#[test]
fn a_range_behind_unsolicited_data() {
    let keys = "FirstBurstLength=1024 InitialR2T=No ImmediateData=Yes";
    for offset in [0, 100, 1024] {
        let mut rig = Rig::normal(keys);
        let data = pattern(2000);
        rig.send(1, write(0, 5, 2000).encode(), &data[..1024]);
        let task = rig.started(1).id;
        rig.wants_range(1, task, offset, 2000 - offset);
        let r2t = ReadyToTransfer::decode(&rig.sent_one(1).bhs);
        assert_eq!((r2t.buffer_offset_bytes, r2t.desired_length_bytes), (1024, 976));
        let tag = r2t.target_transfer_tag;
        rig.send(1, data_out(5, tag, 0, 1024, true).encode(), &data[1024..]);
        assert_eq!(rig.link(1).runs, [task]);
        rig.good(1, task);
        rig.sent(1);
        rig.assert_nothing_left();
    }
}

/// Goal: a range that leaves a gap or repeats an earlier one ends its task with INTERNAL TARGET
/// FAILURE, after the data that was requested.
#[test]
fn misplaced_ranges_end_their_task() {
    for offset in [0, 999, 1001, u32::MAX] {
        let mut rig = Rig::normal(KEYS);
        rig.send(1, write(0, 5, 4096).encode(), &[]);
        let task = rig.started(1).id;
        rig.wants_range(1, task, 0, 1000);
        let r2t = ReadyToTransfer::decode(&rig.sent_one(1).bhs);
        rig.wants_range(1, task, offset, 1000);
        assert_eq!(rig.link(1).aborts, [task]);
        assert!(rig.sent(1).is_empty(), "the requested data is awaited");
        let data = data_out(5, r2t.target_transfer_tag, 0, 0, true);
        rig.send(1, data.encode(), &pattern(1000));
        check_condition(&mut rig, INTERNAL);
        rig.assert_nothing_left();
    }
}
